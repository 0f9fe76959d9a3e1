"""A call that waits for a silent coordinator goes to the new one when its shard has moved, and waits for a coordinator
that is only slow."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.engine import coordinators as module
from headrace.engine.client import Engine
from headrace.engine.coordinators import GROUPS, Coordinators
from headrace.group.membership import Membership
from headrace_core.clock import boottime_s
from headrace_core.errors import CoordinatorNotAvailableError, HeadraceError, NetworkError
from headrace_core.item_errors import error_to_proto
from headrace_protos.v1 import metadata_pb2

OLD, NEW = "old:1", "new:1"
Answer = tuple[str, int] | HeadraceError


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr("headrace.group.membership.LOOK_EVERY_S", 0.001)


class Cluster:
    """Coordinators by address, whose calls wait for ``answers[address]``. ``owners``: the (address, shard epoch) or
    error of each lookup, the last one for ever."""

    def __init__(self, *owners: Answer) -> None:
        self.owners = list(owners)
        self.looked = 0
        self.answers = {OLD: asyncio.Event(), NEW: asyncio.Event()}
        self.called: list[str] = []
        self.cancelled: list[str] = []
        self.when_looked: Callable[[], object] = lambda: None
        engine: Any = SimpleNamespace(
            start=lambda: None,
            connections=SimpleNamespace(metadata=lambda address: SimpleNamespace(FindCoordinator=None)),
            anywhere=self.find,
            request_timeout_s=30.0,
            backoff=SimpleNamespace(delay_s=lambda attempt: 0.0),
        )
        engine.retrying = functools.partial(Engine.retrying, engine)
        kind = GROUPS._replace(stub=lambda _, address: SimpleNamespace(Commit=functools.partial(self.commit, address)))
        self.coordinators = Coordinators(engine, kind)

    async def find(self, stub_of: Any, request: Any, timeout_s: float) -> Any:
        self.looked += 1
        owner = self.owners.pop(0) if len(self.owners) > 1 else self.owners[0]
        self.when_looked()
        if isinstance(owner, NetworkError):
            raise owner
        answer = metadata_pb2.FindCoordinatorResponse()
        if isinstance(owner, HeadraceError):
            answer.coordinators.add(key="g", error=error_to_proto(owner), coordinator_id=-1)
        else:
            host, _, port = owner[0].partition(":")
            answer.coordinators.add(key="g", coordinator_id=1, host=host, port=int(port), shard_epoch=owner[1])
        return answer

    async def commit(self, address: str, request: Any, timeout: float) -> str:
        self.called.append(address)
        try:
            await self.answers[address].wait()
        except asyncio.CancelledError:
            self.cancelled.append(address)
            raise
        return f"{request} at {address}"

    async def call(self, within_s: float = 60.0) -> Any:
        return await self.coordinators.call("g", "Commit", "x", time.monotonic() + within_s, "committing")


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


@pytest.mark.parametrize("epochs", [(3, 4), (0, 0)], ids=["known epochs", "unknown epochs"])
def test_a_call_to_a_silent_coordinator_goes_to_the_new_owner_of_its_shard(epochs: tuple[int, int]) -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, epochs[0]), (OLD, epochs[0]), (NEW, epochs[1]))
        cluster.answers[NEW].set()
        assert await cluster.call() == f"x at {NEW}"
        assert (cluster.called, cluster.cancelled) == ([OLD, NEW], [OLD])
        assert await cluster.call() == f"x at {NEW}", "it is remembered"

    run(scenario)


def test_all_who_wait_for_a_silent_coordinator_learn_that_its_shard_has_moved() -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3), (OLD, 3), (NEW, 4))
        cluster.answers[NEW].set()
        assert await cluster.call() == f"x at {NEW}"
        assert await cluster.coordinators.has_moved("g", OLD), "a member's stream, or another commit, still waits there"
        assert not await cluster.coordinators.has_moved("g", NEW)

    run(scenario)


def test_a_coordinator_that_is_only_slow_is_awaited() -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3))
        cluster.when_looked = lambda: cluster.looked > 20 and cluster.answers[OLD].set()
        assert await cluster.call() == f"x at {OLD}"
        assert cluster.called == [OLD]

    run(scenario)


def test_an_answer_that_arrives_while_the_shard_moves_counts() -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3), (OLD, 3), (NEW, 4))
        arrived = asyncio.Event()

        async def find(*given: Any) -> Any:
            found = await Cluster.find(cluster, *given)
            if cluster.looked == 3:
                cluster.answers[OLD].set()
                await asyncio.sleep(0)
                arrived.set()
                await asyncio.sleep(0)
            return found

        cluster.coordinators._engine.anywhere = find  # type: ignore[method-assign,assignment]
        assert await cluster.call() == f"x at {OLD}"
        assert arrived.is_set()
        assert cluster.called == [OLD], "a repeated commit"

    run(scenario)


def test_an_answer_does_not_wait_for_a_lookup_at_a_silent_broker() -> None:
    """A call of a second took two."""

    async def scenario() -> None:
        cluster = Cluster((OLD, 3))
        ended: list[str] = []

        async def find(*given: Any) -> Any:
            found = await Cluster.find(cluster, *given)
            if cluster.looked > 1:
                cluster.answers[OLD].set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("lookup")
            return found

        cluster.coordinators._engine.anywhere = find  # type: ignore[method-assign,assignment]
        assert await asyncio.wait_for(cluster.call(), 10) == f"x at {OLD}"
        await asyncio.sleep(0)
        assert ended == ["lookup"]

    run(scenario)


@pytest.mark.parametrize(
    "lookup",
    [(NEW, 2), CoordinatorNotAvailableError("the shard has no coordinator"), NetworkError("no broker answers")],
    ids=["old metadata", "no owner", "no broker"],
)
def test_a_lookup_that_names_no_newer_owner_changes_nothing(lookup: Answer) -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3), *[lookup] * 20, (NEW, 4))
        cluster.answers[NEW].set()
        cluster.when_looked = lambda: cluster.looked == 20 and cluster.called.append("still waits")
        assert await cluster.call() == f"x at {NEW}"
        assert cluster.called == [OLD, "still waits", NEW]

    run(scenario)


def test_a_shard_that_moves_again_and_again_is_followed() -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3), (NEW, 4), (NEW, 4), (OLD, 5), (OLD, 5))
        cluster.when_looked = lambda: cluster.looked == 5 and cluster.answers[OLD].set()
        assert await cluster.call() == f"x at {OLD}"
        assert cluster.called == [OLD, NEW, OLD]

    run(scenario)


def test_a_cancelled_caller_cancels_the_call() -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3))
        looked = asyncio.Event()
        cluster.when_looked = lambda: cluster.looked == 2 and looked.set()
        calling = asyncio.ensure_future(cluster.call())
        await looked.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await asyncio.sleep(0)
        assert cluster.cancelled == [OLD]

    run(scenario)


def test_an_error_of_the_call_needs_no_lookup() -> None:
    async def scenario() -> None:
        cluster = Cluster((OLD, 3), (NEW, 4))
        cluster.answers[NEW].set()

        async def broken(*given: Any, **more: Any) -> Any:
            raise NetworkError("the connection broke")

        stub = cluster.coordinators._kind.stub
        cluster.coordinators._kind = cluster.coordinators._kind._replace(
            stub=lambda connections, address: (
                SimpleNamespace(Commit=broken) if address == OLD else stub(connections, address)
            )
        )
        assert await cluster.call() == f"x at {NEW}"
        assert cluster.looked == 2, "one for each coordinator"

    run(scenario)


# -- heartbeats -------------------------------------------------------------------------------------------------------


class Stream:
    """A stream to a coordinator that never answers."""

    address = OLD

    def __init__(self) -> None:
        self.written: list[Any] = []

    async def connected(self) -> None: ...

    async def write(self, request: Any) -> None:
        self.written.append(request)


def membership(moved: list[bool], *, is_waiting: bool = True) -> Any:
    """A membership whose member has sent a heartbeat. ``moved``: what the lookups say."""

    async def has_moved(group_id: str, address: str) -> bool:
        assert (group_id, address) == ("g", OLD)
        return moved.pop(0)

    config = {"group.id": "g", "group.instance.id": None, "retry.backoff.ms": 1, "max.poll.interval.ms": 1_000}
    engine: Any = SimpleNamespace(request_timeout_s=0.05 if not moved else 30.0)
    coordinators: Any = SimpleNamespace(has_moved=has_moved)
    made = Membership(engine, coordinators, config, "m", lambda: None)
    requests = ["heartbeat"]
    made.member = SimpleNamespace(  # type: ignore[assignment]
        connected=lambda now: None,
        request=lambda now: requests.pop() if requests else None,
        is_waiting=is_waiting,
        next_at=lambda: boottime_s() + 0.001,
    )
    made._encode = lambda request: request  # type: ignore[method-assign,assignment]
    return made


def test_a_member_leaves_a_silent_coordinator_that_lost_its_group() -> None:
    async def scenario() -> None:
        moved, stream = [False, False, True], Stream()
        with pytest.raises(NetworkError, match="has moved to another coordinator"):
            await membership(moved)._write(stream)
        assert (moved, stream.written) == ([], ["heartbeat"])

    run(scenario)


def test_a_member_that_waits_for_nothing_looks_nothing_up() -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await membership([], is_waiting=False)._write(Stream())

    run(scenario)
