"""A group whose members are the SDK's, and whose shard is the coordinator's: real code on both sides, on one event loop
with virtual time.

    SDK      ConsumerCore, GroupConsumer, Membership, Member, Commits      a program polls, processes, commits
    network  streams in order, calls on their own; delays, cuts            simulated
    shard    Members, MembershipStream, GroupsService, ShardStateMachine   records count as committed at once

Positions live in the SDK, epochs in the coordinator. The rule of this world needs both: no commit sets a committed
offset back, because then records are processed twice.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import selectors
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from unittest import mock

from headrace import OffsetAndMetadata, TopicPartition
from headrace.consumer import group as consumer_group
from headrace.consumer import inbox
from headrace.consumer.core import ConsumerCore
from headrace.consumer.driving import drive_async
from headrace.consumer.group import Callbacks, GroupConsumer
from headrace.engine.coordinators import Shard as ShardNews
from headrace.group import commits, membership
from headrace.group.member import Subscription
from headrace.settings import CONSUMER, resolve
from headrace_coordinator.group.messages import DescribeGroup, Topic, TopicsChanged
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.handlers.classic import ClassicWaits
from headrace_coordinator.handlers.groups import GroupsService
from headrace_coordinator.handlers.membership import Members, MembershipStream
from headrace_coordinator.offsets.messages import CommitOffsets, CommitTransactionOffsets, EndOffsets, OffsetToCommit
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, OwnershipAsked, OwnershipProven
from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError

GROUP, TOPIC = "g", "in"
TOPIC_ID = TOPIC.encode().ljust(16, b"-")
STARTED_MS = 1_800_000_000_000
GRACE_S, SESSION_S, TICK_S = 1.5, 45.0, 0.02


class _Jumps(selectors.SelectSelector):
    """Time passes only while the loop waits, and then at once."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen again"
        self.now += max(timeout, 0.0)
        return super().select(0)


def _random_uuid() -> uuid.UUID:
    return uuid.UUID(int=random.getrandbits(128))


Scenario = Callable[["Shard", random.Random], Coroutine[Any, Any, None]]


def run(scenario: Scenario, *, partitions: int = 2, seed: int = 0) -> None:
    """Run a scenario in virtual time. Raises AssertionError if the committed offset of a partition went back."""

    async def main() -> None:
        shard = Shard(partitions)
        ending = asyncio.ensure_future(scenario(shard, random.Random(seed)))
        await asyncio.wait([ending, shard.violated], return_when=asyncio.FIRST_COMPLETED)
        if shard.violated.done():
            ending.cancel()
            raise AssertionError(shard.violated.result())
        ending.result()

    selector = _Jumps()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    random_state = random.getstate()
    random.seed(f"sdk group {seed}")
    try:
        with (
            mock.patch.object(time, "monotonic", loop.time),
            mock.patch.object(uuid, "uuid4", _random_uuid),
            mock.patch.object(membership, "boottime_s", loop.time),
            mock.patch.object(consumer_group, "boottime_s", loop.time),
            mock.patch.object(inbox, "boottime_s", loop.time),
        ):
            try:
                loop.run_until_complete(main())
            finally:
                while left := asyncio.all_tasks(loop):
                    for task in left:
                        task.cancel()
                    loop.run_until_complete(asyncio.wait(left))
    finally:
        random.setstate(random_state)
        loop.close()


class Shard:
    """The shard of the group, and the runner that the handlers see."""

    def __init__(self, partitions: int) -> None:
        settings = GroupSettings(assignment_interval_ms=0, connection_grace_ms=int(GRACE_S * 1_000))
        self.state_machine = ShardStateMachine(GroupsOfBothTypes(settings, awaits_proof=True))
        self.state_machine.loaded(self.now_ms)
        self.members = Members(lambda group_id: self)  # type: ignore[arg-type, return-value]
        self.service = GroupsService(lambda: self, self.members, ClassicWaits())  # type: ignore[arg-type, return-value]
        self.shard = SimpleNamespace(claim=SimpleNamespace(shard_epoch=1), name="shard")
        self.is_serving = True
        self.committed: dict[int, int] = {}
        self.violated: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.producer_ids = itertools.count(1)
        self._proofs = 0
        self.ask_now(TopicsChanged({TOPIC: Topic(TOPIC, TOPIC_ID, partitions)}))
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    @property
    def now_ms(self) -> int:
        return STARTED_MS + int(asyncio.get_running_loop().time() * 1_000)

    def of_group(self, group_id: str) -> Shard:
        return self

    def ask_now(self, request: object) -> Any:
        return self._done(self.state_machine.handle(request, self.now_ms))

    async def ask(self, request: object, *, is_fenced: bool = False) -> Any:
        return self.ask_now(request)

    def put(self, request: object, done: Callable[[object], None] | None = None, *, is_fenced: bool = False) -> None:
        try:
            outcome = self.ask_now(request)
        except HeadraceError as error:
            outcome = error
        if done is not None:
            done(outcome)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._proofs += 1
            self.ask_now(OwnershipAsked(self._proofs))
            self.ask_now(OwnershipProven(self._proofs))
            while (due_ms := self.state_machine.next_due_ms()) is not None and due_ms <= self.now_ms:
                decision = self.state_machine.tick(self.now_ms)
                self._done(decision)
                if not decision.records and not decision.pushes:
                    break

    def _done(self, decision: Decision) -> Any:
        self.members.tell(decision.pushes)
        for partition, one in self.state_machine._offsets.book.of(GROUP).items():
            before = self.committed.get(partition.partition, 0)
            if one.offset < before and not self.violated.done():
                self.violated.set_result(f"{partition}: the committed offset went back from {before} to {one.offset}")
            self.committed[partition.partition] = one.offset
        return decision.reply

    def assigned(self) -> dict[str, set[int]]:
        """The partitions of each member, according to the coordinator."""
        members = self.ask_now(DescribeGroup(GROUP)).members
        return {each.member_id: {partition for _, partition in each.assigned} for each in members}


class Network:
    """The network between one consumer and its coordinator."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.is_cut = False
        self.streams: set[ClientStream] = set()
        #: Additional delay of the requests, and of the answers, of a call, by its name. The stream has no delay then.
        self.requests_late_s: dict[str, float] = {}
        self.answers_late_s: dict[str, float] = {}

    def delay_s(self) -> float:
        return self._rng.uniform(0.001, 0.015)

    def cut(self) -> None:
        """The connections break, and no new ones can be made."""
        self.is_cut = True
        for stream in list(self.streams):
            stream.breaks()

    def heal(self) -> None:
        self.is_cut = False


class ClientStream:
    """A membership stream: what Membership uses of a Duplex, and what the coordinator uses of a ServerStream."""

    address = "coordinator:1"
    queued_bytes = 0
    paused = False

    def __init__(self, network: Network, shard: Shard) -> None:
        self._network, self._shard = network, shard
        self._loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._up_at = self._down_at = 0.0
        self._handler: MembershipStream | None = None

    # the member's end

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        tasks = [self._loop.create_task(part) for part in parts]
        self._network.streams.add(self)
        try:
            done, _ = await asyncio.wait([*tasks, self._broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._network.streams.discard(self)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._loop.call_later(self._network.delay_s(), self._closed)
        done.pop().result()

    async def connected(self) -> None:
        await asyncio.sleep(self._network.delay_s())
        if self._network.is_cut:
            raise NetworkError("connection refused")
        members = self._shard.members
        self._handler = MembershipStream(members, self, next(members._connections), "host")  # type: ignore[arg-type]
        members._streams.add(self._handler)

    async def write(self, request: Any) -> None:
        self._up_at = self._in_order(self._up_at, self._arrives, request)

    async def read(self) -> Any:
        return await self._answers.get()

    def breaks(self, error: HeadraceError | None = None) -> None:
        if not self._broken.done():
            self._broken.set_exception(error or NetworkError("connection reset"))
            self._broken.exception()  # (perhaps nobody runs the stream)

    # the coordinator's end

    def _arrives(self, request: Any) -> None:
        if self._handler is not None and not self._broken.done():
            self._handler.on_request(request)

    def _closed(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.on_closed()

    def send(self, response: Any, size: int = 0) -> None:
        if not self._broken.done():
            self._down_at = self._in_order(self._down_at, self._answers.put_nowait, response)

    def finish(self, error: HeadraceError | None = None) -> None:
        self._down_at = self._in_order(self._down_at, self.breaks, error)

    def pause(self) -> None:
        raise AssertionError("no consumer sends so many requests")

    def _in_order(self, last: float, act: Callable[[Any], None], message: Any) -> float:
        at = max(last, self._loop.time() + self._network.delay_s())
        self._loop.call_at(at, act, message)
        return at


class Calls:
    """The Groups service, seen by a consumer."""

    def __init__(self, network: Network, shard: Shard) -> None:
        self._network, self._shard = network, shard

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def served(request: Any) -> Any:
            await asyncio.sleep(self._network.delay_s() + self._network.requests_late_s.get(name, 0.0))
            answer = await getattr(self._shard.service, name)(request, None)
            await asyncio.sleep(self._network.delay_s() + self._network.answers_late_s.get(name, 0.0))
            return answer

        async def call(request: Any, timeout: float) -> Any:
            if self._network.is_cut:
                await asyncio.sleep(min(timeout, 0.1))
                raise NetworkError("connection refused")
            serving = asyncio.get_running_loop().create_task(served(request))
            done, _ = await asyncio.wait({serving}, timeout=timeout)  # (the coordinator goes on without the caller)
            if not done or self._network.is_cut:
                serving.add_done_callback(lambda task: task.cancelled() or task.exception())
                raise RequestTimedOutError("no answer in time")
            return serving.result()

        return call


class Io:
    """The I/O thread's part, on the same loop."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, failed: Any = None) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        if failed is not None:
            task.add_done_callback(lambda ended: _report(ended, name, failed))
        return task

    @property
    def loop(self) -> Any:
        return SimpleNamespace(call_soon_threadsafe=asyncio.get_running_loop().call_soon)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(function, *arguments)

    async def run_async(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.spawn(work, "asked")


def _report(task: asyncio.Task[Any], name: str, failed: Callable[[str, BaseException], None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        failed(name, error)


class Program:
    """A program with one consumer. Records are simulated: each poll processes some of each partition that the consumer
    would return records of."""

    def __init__(
        self, shard: Shard, name: str, rng: random.Random, *, instance_id: str | None = None, **settings: Any
    ) -> None:
        self.name, self._rng = name, rng
        self.network = Network(rng)
        given = {
            "bootstrap_servers": "127.0.0.1:1",
            "group_id": GROUP,
            "group_instance_id": instance_id,
            "auto_commit_interval_ms": 200,
            "request_timeout_ms": 2_000,
            **settings,
        }
        self.core = ConsumerCore(resolve(CONSUMER, None, given))
        self.io: Any = Io()
        engine: Any = self.core.engine
        engine._io, engine.connections, engine.start = self.io, self, lambda: None
        self._calls, self._shard = Calls(self.network, shard), shard
        self.group: GroupConsumer = self.core.in_group("this")
        self.group._coordinators.address = self._address  # type: ignore[method-assign]
        self.group._coordinators.who_has = self._who_has  # type: ignore[method-assign]
        self.group._coordinators.has_moved = self._has_moved  # type: ignore[method-assign]
        self._stopped: set[TopicPartition] = set()
        self.core.reading.fetcher.stop = self._stopped.update  # type: ignore[method-assign]
        self.events: list[tuple[str, list[int]]] = []
        self.is_busy = False
        self._transactions = 0
        self._thread = asyncio.Lock()  # a program makes one call after the other
        self.producer_id = next(shard.producer_ids)
        self.callbacks = Callbacks(self._note("assigned"), self._note("revoked"), self._note("lost"))
        self.subscribe(TOPIC)
        self._polling = asyncio.get_running_loop().create_task(self._polls())

    def subscribe(self, *topics: str) -> None:
        self.group.subscribe(Subscription(topics), self.callbacks)

    def membership_stream(self, address: str) -> ClientStream:
        return ClientStream(self.network, self._shard)

    def groups(self, address: str) -> Calls:
        return self._calls

    async def _address(self, group_id: str, timeout_s: float) -> str:
        return "coordinator:1"

    async def _who_has(self, group_id: str, timeout_s: float) -> ShardNews:
        """The brokers know that the coordinator lives."""
        return ShardNews(1, False, 0.0)

    async def _has_moved(self, group_id: str, address: str) -> bool:
        return False

    def _note(self, what: str) -> Callable[[list[TopicPartition]], None]:
        def note(partitions: list[TopicPartition]) -> None:
            self.events.append((what, [tp.partition for tp in partitions]))
            if what == "assigned":
                self._stopped.difference_update(partitions)

        return note

    async def _polls(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(0.02, 0.08))
            if not self.is_busy:
                await self.poll()

    async def poll(self) -> None:
        async with self._thread:
            self.group.check()
            if self.group.has_work:
                await drive_async(self.group.steps(), self.io)
            self.process()

    def process(self) -> None:
        for partition in self.reading:
            assigned = self.core.reading.partitions[TopicPartition(TOPIC, partition)]
            assigned.position = (assigned.position or 0) + self._rng.randrange(4)

    @property
    def reading(self) -> list[int]:
        """The partitions of which a poll would return records."""
        reading = self.core.reading
        if reading.inbox.is_shut:
            return []
        return sorted(tp.partition for tp in reading.partitions if tp not in self._stopped)

    @property
    def owned(self) -> set[int]:
        return {part.partition for part in self.group._membership.member.owned}

    def position(self, partition: int) -> int | None:
        position = self.core.reading.partitions[TopicPartition(TOPIC, partition)].position
        return None if position is None else int(position)

    async def commit(self, offsets: dict[int, int]) -> None:
        """The program's own commit."""
        given = {TopicPartition(TOPIC, partition): OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        await self.group.commit_work(given)

    async def commit_async(self) -> None:
        """Commit the positions, and poll meanwhile."""
        async with self._thread:
            work = self.group.commit_work(self.core.reading.offsets_to_commit(None))
            commit = self.io.spawn(work, "commit")
        await commit

    async def transact(self, marker_after_s: float) -> None:
        """Commit the positions in a transaction, as the SDK's producer does; from now on the consumer commits nothing
        by itself. The marker comes later. Offsets that are refused abort the transaction."""
        async with self._thread:
            await self._transact(marker_after_s)

    async def _transact(self, marker_after_s: float) -> None:
        found = self.core.offsets_for_transaction()
        if found.refusal is not None or not found.offsets:
            return
        self._transactions += 1
        assert found.end_auto_commits is not None
        await found.end_auto_commits()
        group, epoch, producer_id = found.group, self._transactions, self.producer_id
        offsets = tuple(OffsetToCommit(*tp, each.offset) for tp, each in found.offsets.items())
        commit = CommitOffsets(
            GROUP,
            offsets,
            group.member_id,
            group.generation_id,
            group.group_instance_id,
            commits.next_number(group.member_id),
        )
        request = CommitTransactionOffsets(commit, self.name, producer_id, epoch, 1)
        await asyncio.sleep(self.network.delay_s())
        succeeds = True
        try:
            verification = self._shard.ask_now(request)
            await asyncio.sleep(self.network.delay_s())
            self._shard.ask_now(request._replace(verification=verification, coordinator_epoch=1))
        except HeadraceError:
            succeeds = False
        await asyncio.sleep(marker_after_s)
        self._shard.ask_now(EndOffsets(producer_id, epoch + 1, succeeds, 2, 1))

    async def close(self) -> None:
        self._polling.cancel()
        await asyncio.wait({self._polling})
        await drive_async(self.group.leave_steps(), self.io)
        self.end()

    def end(self) -> None:
        """The process ends."""
        self._polling.cancel()
        self.network.cut()
        self.core.begin_close()


async def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    """Let time pass until the condition holds."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        await asyncio.sleep(0.01)
