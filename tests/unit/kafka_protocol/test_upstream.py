"""Calls to coordinators: which one is called, and when a call is repeated. ``call`` is replaced; the rest is real."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidRequestError,
    NetworkError,
    NotCoordinatorError,
    ServerBusyError,
)
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.rpc.channel import PLAINTEXT, REPLACED_S, ChannelPurpose, Channels
from headrace_kafka import upstream as module
from headrace_kafka.client import Client
from headrace_kafka.cluster import GROUP, Cluster
from headrace_kafka.upstream import Upstream
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc
from headrace_protos.v1.common_pb2 import Error

Outcome = str | HeadraceError | Message
NOTHING: dict[str, Any] = dict.fromkeys(("own", "open_produce", "open_fetch"))  #: The broker itself is not asked here.


def unreachable() -> NetworkError:
    error = NetworkError("no connection")
    error.was_sent = False
    return error


class _Cluster(Cluster):
    """A cluster whose coordinator the test names."""

    owner: str | HeadraceError = "coordinator-1:9095"

    def owner_address(self, kind: str, key: str) -> str:
        if isinstance(self.owner, HeadraceError):
            raise self.owner
        return self.owner


class _Upstream(Upstream):
    """``outcomes``: what each address answers or raises; ``called``: the addresses in order."""

    def __init__(self, **outcomes: Outcome) -> None:
        self.state = MetadataState()
        self.cluster = _Cluster(self.state)
        self.outcomes = {f"{name.replace('_', '-')}:9095": outcome for name, outcome in outcomes.items()}
        self.called: list[str] = []
        self.then: Callable[[], None] = lambda: None
        super().__init__(self.cluster, PLAINTEXT, **NOTHING)

    async def call(self, client: Client, address: str, *_: Any) -> Any:
        self.called.append(address)
        outcome = self.outcomes[address]
        self.then()
        if isinstance(outcome, HeadraceError):
            raise outcome
        return outcome


def coordinator(upstream: Upstream) -> Any:
    client = Client(host="10.0.0.1", listener="PLAINTEXT")
    return asyncio.run(upstream.coordinator(client, GROUP, "group", lambda channel: None, "JoinGroup", None, 60_000))


def test_a_call_follows_a_shard_to_its_new_coordinator_once() -> None:
    def moved() -> None:
        upstream.cluster.owner = "coordinator-2:9095"

    upstream = _Upstream(coordinator_1=NotCoordinatorError("moved"), coordinator_2="joined")
    upstream.then = moved
    assert coordinator(upstream) == "joined"
    assert upstream.called == ["coordinator-1:9095", "coordinator-2:9095"]
    upstream = _Upstream(coordinator_1=NotCoordinatorError("moved"), coordinator_2=NotCoordinatorError("again"))
    upstream.then = moved
    with pytest.raises(NotCoordinatorError, match="again"):
        coordinator(upstream)
    assert len(upstream.called) == 2


def test_newer_metadata_are_awaited_after_not_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWER_METADATA_S", 60.0)
    upstream = _Upstream(coordinator_1=NotCoordinatorError("moved"), coordinator_2="joined")

    def later() -> None:
        upstream.cluster.owner = "coordinator-2:9095"
        upstream.state.advance(MetadataImage(next_offset=1), MetadataDelta(0, 1))

    upstream.then = lambda: None if len(upstream.called) > 1 else _soon(later)
    assert coordinator(upstream) == "joined"


def _soon(callback: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(loop.call_soon, callback)


def test_without_newer_metadata_the_first_error_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEWER_METADATA_S", 0.0)
    with pytest.raises(NotCoordinatorError, match="moved"):
        coordinator(_Upstream(coordinator_1=NotCoordinatorError("moved")))
    with pytest.raises(CoordinatorNotAvailableError):
        coordinator(_Upstream(coordinator_1=unreachable()))


def loading_three_times(loading: Outcome) -> _Upstream:
    """A coordinator that answers "joined" after three calls with ``loading``."""
    upstream = _Upstream(coordinator_1=loading)

    def loaded() -> None:
        if len(upstream.called) == 3:
            upstream.outcomes["coordinator-1:9095"] = "joined"

    upstream.then = loaded
    return upstream


@pytest.mark.parametrize(
    "loading",
    [
        CoordinatorLoadInProgressError("the shard is being loaded"),
        groups_pb2.JoinGroupResponse(error=Error(code="ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS")),
        groups_pb2.FetchOffsetsResponse(
            groups=[groups_pb2.CommittedOffsetsOfGroup(error=Error(code="ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS"))]
        ),
    ],
    ids=["raised", "of the answer", "of the only group"],
)
def test_a_coordinator_that_is_loading_is_asked_again_for_a_while(
    loading: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOADED_PAUSE_S", 0.0)
    upstream = loading_three_times(loading)
    assert coordinator(upstream) == "joined"
    assert len(upstream.called) == 4
    monkeypatch.setattr(module, "LOADED_WITHIN_S", 0.0)
    upstream = loading_three_times(loading)
    if isinstance(loading, HeadraceError):
        with pytest.raises(CoordinatorLoadInProgressError):
            coordinator(upstream)
    else:
        assert coordinator(upstream) is loading
    assert len(upstream.called) == 1


def test_a_broken_call_to_a_coordinator_makes_the_client_look_it_up_again() -> None:
    upstream = _Upstream(coordinator_1=NetworkError("broke"))
    with pytest.raises(NotCoordinatorError, match="broke"):
        coordinator(upstream)
    assert len(upstream.called) == 1


class _Opened(Channels):
    """Counts the channels that a pool opens. ``present``: the generation of the certificates."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.closed: list[float | None] = []
        self.present = 1

    @property
    def generation(self) -> int:
        return self.present

    def open(self, address: str, purpose: ChannelPurpose) -> Any:
        self.opened.append(address)

        async def close(grace_s: float | None) -> None:
            self.closed.append(grace_s)

        return SimpleNamespace(close=close)


def test_a_node_gets_channels_for_calls_that_last_long_and_no_more_than_the_limit() -> None:
    channels = _Opened()
    opened, pool = channels.opened, module._Pool("broker-1:9095", channels)
    taken = [pool.take() for _ in range(module.CALLS_MAX * 2)]
    assert len(opened) == 2
    taken[0].calls -= 1
    assert pool.take() is taken[0]
    assert len(opened) == 2
    for _ in range(module.CALLS_MAX * (module.CHANNELS_MAX - 2)):
        pool.take()
    with pytest.raises(ServerBusyError):
        pool.take()


def test_a_new_certificate_opens_other_channels_and_lets_calls_end() -> None:
    async def scenario() -> None:
        channels = _Opened()
        pool = module._Pool("broker-1:9095", channels)
        before = pool.take()
        channels.present = 2
        assert pool.take() is not before
        await asyncio.sleep(0)
        assert (len(channels.opened), channels.closed) == (2, [REPLACED_S])
        await pool.close()
        assert channels.closed == [REPLACED_S, None]

    asyncio.run(scenario())


def test_a_request_that_a_node_would_refuse_is_not_sent() -> None:
    """After a large refused request, a node does not read the connection for a time, and other clients use it."""

    async def scenario() -> None:
        upstream = Upstream(_Cluster(MetadataState()), PLAINTEXT, **NOTHING)
        client = Client(host="10.0.0.1", listener="PLAINTEXT")
        request = groups_pb2.DeleteGroupsRequest(group_ids=["g" * 20] * 1_001)
        with pytest.raises(InvalidRequestError, match="more than 1000 group_ids"):
            await upstream.call(
                client, "127.0.0.1:1", groups_pb2_grpc.GroupsStub, "DeleteGroups", request, time.monotonic() + 60
            )
        assert not upstream._pools

    asyncio.run(scenario())
