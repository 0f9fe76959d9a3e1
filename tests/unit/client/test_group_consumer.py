"""A consumer in its group, on one event loop with a scripted coordinator: the events that the caller receives, their
order, and the time when partitions are revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace.consumer.core import ConsumerCore
from headrace.consumer.driving import drive_async
from headrace.consumer.group import Callbacks, GroupConsumer
from headrace.consumer.inbox import Slice
from headrace.group.member import Subscription
from headrace.settings import CONSUMER, resolve
from headrace_core.clock import boottime_s
from headrace_core.errors import (
    BootstrapError,
    HeadraceError,
    NetworkError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.records import RecordIterator
from headrace_protos.v1 import groups_pb2

LIMIT_S = 60.0
TOPIC_ID = b"t" * 16
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Io:
    """The I/O thread's part, on the caller's loop."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, failed: Any = None) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    @property
    def loop(self) -> Any:
        return SimpleNamespace(call_soon_threadsafe=asyncio.get_running_loop().call_soon)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        asyncio.get_running_loop().call_soon(function, *arguments)

    async def run_async(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self.spawn(work, "asked")

    def finish(self, close: Coroutine[Any, Any, None], timeout_s: float) -> None:
        self.spawn(close, "close")

    async def end_async(self, close: Coroutine[Any, Any, None]) -> None:
        await self.spawn(close, "close")


class Stream:
    """A membership stream, from the member's side: what Membership uses of a Duplex."""

    address = "coordinator:1"

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self.said: list[Any] = []

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        done.pop().result()

    async def connected(self) -> None:
        return

    async def write(self, request: Any) -> None:
        self.said.append(request)
        await self._coordinator.hears(self, request)

    async def read(self) -> Any:
        return await self._answers.get()

    def tell(self, message: Any) -> None:
        self._answers.put_nowait(message)


class Coordinator:
    """A coordinator that assigns ``gives`` to its only member. Each join increases the member epoch."""

    def __init__(self, *gives: int) -> None:
        self.gives = gives
        self.topic_id = TOPIC_ID
        self.epoch = 0
        self.revision = 1
        self.streams: list[Stream] = []
        self.joins = 0
        self.goodbyes = 0
        self.commits: list[Any] = []
        self.may_answer_leave = asyncio.Event()
        self.may_answer_leave.set()
        self.may_commit = asyncio.Event()
        self.may_commit.set()
        self.commit_error: HeadraceError | None = None
        self.breaks_writes = 0

    # connections
    def membership_stream(self, address: str) -> Stream:
        self.streams.append(Stream(self))
        return self.streams[-1]

    def groups(self, address: str) -> Coordinator:
        return self

    # the Groups service
    async def hears(self, stream: Stream, request: Any) -> None:
        if self.breaks_writes:
            self.breaks_writes -= 1
            raise NetworkError("the connection broke")
        if request.WhichOneof("request") == "leave":
            self.goodbyes += 1
            await self.may_answer_leave.wait()
            stream.tell(groups_pb2.MembershipResponse(correlation_id=request.correlation_id))
            return
        if request.heartbeat.member_epoch == 0:
            self.joins += 1
            self.epoch += 1
        knows = request.heartbeat.revision == self.revision and request.heartbeat.member_epoch
        self.tell(stream, request.correlation_id, with_assignment=not knows)

    def tell(self, stream: Stream, number: int = 0, *, with_assignment: bool = True) -> None:
        response = groups_pb2.MembershipResponse(
            correlation_id=number,
            member_epoch=self.epoch,
            revision=self.revision,
            heartbeat_interval_ms=5_000,
            session_timeout_ms=45_000,
            connection_grace_ms=1_500,
        )
        if with_assignment:
            response.assignment.SetInParent()
            if self.gives:
                response.assignment.topics.add(topic_id=self.topic_id, topic="t", partitions=self.gives)
        stream.tell(response)

    def push(self, *gives: int) -> None:
        self.gives = gives
        self.revision += 1
        self.tell(self.streams[-1])

    async def CommitOffsets(self, request: Any, timeout: float) -> Any:
        self.commits.append(request)
        await self.may_commit.wait()
        answer = groups_pb2.CommitOffsetsResponse()
        for each in request.offsets:
            answer.results.add(topic=each.topic, partition=each.partition, error=error_to_proto(self.commit_error))
        return answer

    async def FetchOffsets(self, request: Any, timeout: float) -> Any:
        answer = groups_pb2.FetchOffsetsResponse()
        reported = answer.groups.add(group_id=request.groups[0].group_id)
        for each in request.groups[0].partitions.partitions:
            reported.offsets.add(topic=each.topic, partition=each.partition, offset=10, leader_epoch=-1)
        return answer


class Party:
    """A consumer's core and its group, and its callbacks' calls."""

    def __init__(self, coordinator: Coordinator, **settings: Any) -> None:
        self.coordinator = coordinator
        given = {"bootstrap_servers": "127.0.0.1:1", "group_id": "g", "retry_backoff_ms": 1, **settings}
        self.core = ConsumerCore(resolve(CONSUMER, None, given))
        self.io: Any = Io()
        engine: Any = self.core.engine
        engine._io, engine.connections, engine.start = self.io, coordinator, lambda: None
        self.group: GroupConsumer = self.core.in_group("this")
        self.group._coordinators.address = self._address  # type: ignore[method-assign]
        self.reported: list[tuple[str, list[TopicPartition]]] = []

    async def _address(self, group_id: str, timeout_s: float) -> str:
        return "coordinator:1"

    def subscribe(self, **callbacks: Any) -> None:
        def note(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.reported.append((what, partitions))

        named = {f"on_{what}": note(what) for what in ("assigned", "revoked", "lost")}
        self.callbacks = Callbacks(**{**named, **callbacks})  # (the group does not store these calls)
        self.group.subscribe(Subscription(("t",)), self.callbacks)

    async def comes_back(self) -> None:
        """The caller polls, and gets no records."""
        self.group.check()
        if self.group.has_work:
            await drive_async(self.group.steps(), self.io)

    async def until(self, condition: Callable[[], object]) -> None:
        """The caller polls until the condition holds."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                await self.comes_back()
                await asyncio.sleep(0.001)

    async def away_until(self, condition: Callable[[], object]) -> None:
        """The caller works without a call of the consumer."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 - of code that has no event for it
                await asyncio.sleep(0.001)

    def read_up_to(self, position: int) -> None:
        for assigned in self.core.reading.partitions.values():
            assigned.position = position

    def is_thrown_out(self) -> None:
        """Another member may own the partitions of the lost member. The member joins again automatically."""
        membership = self.group._membership
        membership.member.refused(0, UnknownMemberIdError("who?"), boottime_s())
        membership.nudge()

    async def is_evicted(self) -> None:
        await self.away_until(lambda: self.group.is_evicted)

    @property
    def owned(self) -> set[int]:
        return {part.partition for part in self.group._membership.member.owned}


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


@pytest.fixture
def parties() -> Iterator[list[Party]]:
    made: list[Party] = []
    yield made
    for each in made:
        each.core.begin_close()


Make = Callable[..., Party]


@pytest.fixture
def make(parties: list[Party]) -> Make:
    def made(coordinator: Coordinator, **settings: Any) -> Party:
        parties.append(Party(coordinator, **settings))
        return parties[-1]

    return made


async def joined(make: Make, *gives: int, **settings: Any) -> Party:
    party = make(Coordinator(*gives), **settings)
    party.subscribe()
    await party.until(lambda: len(party.core.reading.partitions) == len(gives))
    return party


# -- who was silent for too long ---------------------------------------------------------------------------------------


def test_who_comes_back_while_he_is_evicted_reads_nothing_and_joins_after_the_goodbye(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, max_poll_interval_ms=50, enable_auto_commit=False)
        coordinator = party.coordinator
        coordinator.may_answer_leave.clear()
        await party.away_until(lambda: coordinator.goodbyes == 1)
        assert party.core.reading.inbox.alarm, "others have what it had from the goodbye on"
        for _ in range(20):  # the caller polls again, while the leave request is not answered yet
            await party.comes_back()
            await asyncio.sleep(0.001)
        assert party.reported[-1] == ("lost", [T0])
        assert coordinator.joins == 1
        assert len(coordinator.streams) == 1
        coordinator.may_answer_leave.set()
        await party.until(lambda: party.reported[-1] == ("assigned", [T0]))
        assert coordinator.joins == 2
        members = [task for task in party.io.tasks if task.get_name() == "headrace-member"]
        assert len(members) == 1
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_who_is_evicted_while_nobody_knew_whether_he_might_read_reads_when_he_is_back(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, max_poll_interval_ms=300, enable_auto_commit=False)
        found = asyncio.Event()

        async def address(group_id: str, timeout_s: float) -> str:
            await found.wait()
            return "coordinator:1"

        party.group._coordinators.address = address  # type: ignore[method-assign]
        party.coordinator.streams[-1].tell(grpc.aio.EOF)  # and the group has no coordinator for a while
        await party.away_until(lambda: not party.group._membership.member._is_connected)
        party.group._membership.member._broken_at = boottime_s() - 100.0
        party.group._membership.nudge()
        await party.away_until(lambda: party.core.reading.inbox.shut)
        await party.is_evicted()
        found.set()
        await party.until(lambda: [what for what, _ in party.reported] == ["assigned", "lost", "assigned"])
        assert not party.core.reading.inbox.shut
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_an_iteration_goes_on_after_an_eviction_by_itself(make: Make) -> None:
    """The caller polls once, learns that its partitions are lost, and waits. Only a new membership can wake the
    caller."""

    async def scenario() -> None:
        party = await joined(make, 0, max_poll_interval_ms=50, enable_auto_commit=False)
        await party.is_evicted()
        await party.comes_back()
        assert party.reported[-1] == ("lost", [T0])
        await party.away_until(lambda: party.owned == {0})
        assert await party.core.reading.inbox.wait_async(time.monotonic() + LIMIT_S)
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_who_was_evicted_and_unsubscribed_may_commit_as_no_member(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, max_poll_interval_ms=50)
        await party.is_evicted()
        with pytest.raises(UnknownMemberIdError, match=r"max\.poll\.interval\.ms"):
            await party.group.commit_work({T0: OffsetAndMetadata(3)})
        await drive_async(party.group.leave_steps(), party.io)
        await party.group.commit_work({T0: OffsetAndMetadata(3)})
        assert party.coordinator.commits[-1].member_id == ""

    run(scenario)


# -- offsets for transactions -----------------------------------------------------------------------------------------


def test_offsets_for_a_transaction_carry_the_member_and_end_auto_commits(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0)
        party.core.reading.seek(T0, 7)
        sent = party.core.offsets_for_transaction()
        assert (sent.group.group_id, sent.group.generation_id) == ("g", party.coordinator.epoch)
        assert sent.group.member_id == party.group.metadata.member_id
        assert {tp: each.offset for tp, each in sent.offsets.items()} == {T0: 7}
        assert sent.topic_ids == {T0: TOPIC_ID}
        assert sent.refusal is None
        assert sent.end_auto_commits is not None
        await sent.end_auto_commits()
        party.core.reading.seek(T0, 9)
        party.group._next_commit_at = 0.0
        await party.comes_back()
        await drive_async(party.group.leave_steps(), party.io)
        assert party.coordinator.commits == [], "neither at intervals nor at the end"

    run(scenario)


def test_offsets_for_a_transaction_wait_for_an_earlier_commit(make: Make) -> None:
    """If an earlier commit arrived after the transaction, it would set the committed offsets back."""

    async def scenario() -> None:
        party = await joined(make, 0)
        party.coordinator.may_commit.clear()
        commit = asyncio.ensure_future(party.group.commit_work({T0: OffsetAndMetadata(3)}))
        await party.until(lambda: party.coordinator.commits)
        end_auto_commits = party.core.offsets_for_transaction().end_auto_commits
        assert end_auto_commits is not None
        waiting = asyncio.ensure_future(end_auto_commits())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert not waiting.done()
        party.coordinator.may_commit.set()
        await asyncio.wait_for(waiting, LIMIT_S)
        assert commit.done()
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_a_revocation_is_committed_under_the_epoch_of_before_it(make: Make) -> None:
    """Both the auto-commit of the revocation, and offsets for a transaction. The member's own epoch goes on while its
    caller is busy, and may be the epoch of the partition's next ownership."""

    async def scenario() -> None:
        party = await joined(make, 0, 1)
        party.read_up_to(12)
        owned_under = party.coordinator.epoch
        party.coordinator.epoch += 1
        party.coordinator.push(0)
        party.coordinator.epoch += 3
        party.coordinator.push(0)
        member = party.group._membership.member
        await party.away_until(lambda: member.epoch == owned_under + 4)
        assert party.core.offsets_for_transaction().group.generation_id == owned_under
        await party.until(lambda: party.owned == {0})
        (commit,) = party.coordinator.commits
        assert [each.partition for each in commit.offsets] == [1]
        assert commit.member_epoch == owned_under
        assert party.core.offsets_for_transaction().group.generation_id == owned_under + 4
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_consumer_that_has_lost_its_partitions_has_no_offsets_for_a_transaction(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, max_poll_interval_ms=50)
        party.core.reading.seek(T0, 7)
        await party.is_evicted()
        refusal = party.core.offsets_for_transaction().refusal
        assert isinstance(refusal, UnknownMemberIdError)
        assert "max.poll.interval.ms" in refusal.message
        await party.until(lambda: party.owned == {0} and party.reported[-1][0] == "assigned")
        assert party.core.offsets_for_transaction().refusal is None, "the loss was reported, and it is a member again"
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


# -- what was lost -----------------------------------------------------------------------------------------------------


def test_what_was_lost_is_not_committed_in_the_name_of_the_next_membership(make: Make) -> None:
    """The member has joined again before its caller learned of the loss. After the loss, other members have continued
    to read."""

    async def scenario() -> None:
        party = make(Coordinator(0), enable_auto_commit=False)
        refused: list[str] = []

        async def lost(partitions: list[TopicPartition]) -> None:
            try:
                await party.group.commit_work({T0: OffsetAndMetadata(12)})
            except UnknownMemberIdError as error:
                refused.append(str(error))

        party.subscribe(on_lost=lost)
        await party.until(lambda: party.core.reading.partitions)
        party.read_up_to(12)
        party.is_thrown_out()
        await party.away_until(lambda: party.owned == {0} and party.coordinator.joins == 2)
        with pytest.raises(UnknownMemberIdError, match=r"who\?"):
            await party.group.commit_work(party.core.reading.offsets_to_commit(None))
        await party.until(lambda: len(party.reported) == 2)
        assert len(refused) == 1
        assert party.coordinator.commits == []
        await party.group.commit_work(party.core.reading.offsets_to_commit(None))
        assert [(each.offset, asked.member_epoch) for asked in party.coordinator.commits for each in asked.offsets] == [
            (10, 2)
        ]
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


class Handlers:
    """The progress of ``process``, whose calls are moments at which the I/O thread may run."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self.loses_in_revoking = self.loses_in_positions = False

    def assigned(self, offsets: Any) -> None: ...

    def forget(self, partitions: list[TopicPartition]) -> None: ...

    async def revoking(self, partitions: list[TopicPartition]) -> None:
        if self.loses_in_revoking:
            self._party.is_thrown_out()
            await self._party.away_until(lambda: self._party.coordinator.joins == 2 and self._party.owned)

    def positions(self, read: Any) -> Any:
        if self.loses_in_positions:
            self.loses_in_positions = False
            self._party.is_thrown_out()
        return dict(read)


def test_a_loss_while_handlers_finish_a_revocation_is_not_committed_under_the_next_membership(make: Make) -> None:
    """The member loses its partitions and joins again before the last commit of a revocation begins."""

    async def scenario() -> None:
        party = await joined(make, 0, 1)
        party.read_up_to(12)
        handlers = Handlers(party)
        handlers.loses_in_revoking = True
        party.group.begin_progress(handlers, 1_000.0)
        party.coordinator.push(0)
        await party.until(lambda: ("lost", [T0]) in party.reported)
        await party.until(lambda: party.reported[-1] == ("assigned", [T0]))
        assert ("revoked", [T1]) in party.reported
        assert party.coordinator.commits == []
        party.group.end_progress(1_000.0)
        await drive_async(party.group.leave_steps(commits=False), party.io)

    run(scenario)


def test_a_loss_just_before_an_auto_commit_is_not_committed_under_the_next_membership(make: Make) -> None:
    """The member loses its partitions while the caller gathers the positions to commit."""

    async def scenario() -> None:
        party = await joined(make, 0)
        party.read_up_to(12)
        handlers = Handlers(party)
        party.group.begin_progress(handlers, 1_000.0)
        handlers.loses_in_positions = True
        party.group._next_commit_at = 0.0
        await party.comes_back()
        assert not handlers.loses_in_positions
        await party.away_until(lambda: party.coordinator.joins == 2 and party.owned)
        assert party.coordinator.commits == []
        party.group.end_progress(1_000.0)
        await drive_async(party.group.leave_steps(commits=False), party.io)

    run(scenario)


def test_a_slice_that_is_being_waited_for_learns_that_reading_goes_on(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, enable_auto_commit=False)
        core = party.core
        begun = RecordIterator([b""], topic="t", partition=0, start_offset=10, check_crc=True)
        core.reading.current = (
            Slice(core.reading.partitions[T0], 10, 11),
            begun,
        )
        core.reading.shut(True)
        assert core.reading.next_iterator() is None
        waiting = asyncio.ensure_future(core.reading.inbox.wait_async(time.monotonic() + LIMIT_S))
        await asyncio.sleep(0)
        core.reading.shut(False)
        assert await waiting
        await party.comes_back()
        assert core.reading.next_iterator() is begun
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


# -- commits -----------------------------------------------------------------------------------------------------------


def test_who_only_commits_waits_for_records_and_not_for_commits(make: Make) -> None:
    """A time in the past would let the caller check again and again without a pause during a poll."""

    async def scenario() -> None:
        party = make(Coordinator())
        await party.group.commit_work({T0: OffsetAndMetadata(3)})
        deadline = time.monotonic() + LIMIT_S
        assert party.group.wake_at(deadline) == deadline
        member = await joined(make, 0)
        assert member.group.wake_at(deadline) < deadline
        await drive_async(member.group.leave_steps(), member.io)
        assert member.group.wake_at(deadline) == deadline

    run(scenario)


def test_a_commit_is_of_the_topic_that_was_read_and_not_of_its_name(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, 1)
        await party.group.commit_work({T0: OffsetAndMetadata(3), TopicPartition("other", 0): OffsetAndMetadata(1)})
        assert [each.topic_id for each in party.coordinator.commits[-1].offsets] == [TOPIC_ID, b""]
        party.coordinator.topic_id = b"u" * 16  # deleted and re-created
        party.coordinator.push(0, 1)
        await party.until(lambda: [what for what, _ in party.reported] == ["assigned", "revoked", "assigned"])
        assert {each.topic_id for each in party.coordinator.commits[-1].offsets} == {TOPIC_ID}
        await party.group.commit_work({T0: OffsetAndMetadata(3)})
        assert party.coordinator.commits[-1].offsets[0].topic_id == b"u" * 16
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


@pytest.mark.parametrize("error", [UnknownTopicOrPartitionError("gone"), UnknownTopicIdError("another one")])
def test_an_auto_commit_of_a_topic_that_is_gone_keeps_nobody_waiting(make: Make, error: HeadraceError) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, request_timeout_ms=600_000)
        party.coordinator.commit_error = error
        party.coordinator.push()
        await party.until(lambda: ("revoked", [T0]) in party.reported)
        assert len(party.coordinator.commits) == 1
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_auto_commits_do_not_queue_behind_one_that_takes_long(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, auto_commit_interval_ms=1)
        party.coordinator.may_commit.clear()
        for position in range(11, 41):
            party.read_up_to(position)
            await asyncio.sleep(0.002)
            await party.comes_back()
        under_way = [task for task in party.io.tasks if task.get_name() == "headrace-auto-commit"]
        assert len(under_way) == 1
        party.coordinator.may_commit.set()
        await party.until(lambda: any(asked.offsets[0].offset == 40 for asked in party.coordinator.commits))
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


# -- what is broken off ------------------------------------------------------------------------------------------------


def test_the_next_poll_reports_the_revocation_after_one_was_cancelled_in_a_commit(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0)
        party.coordinator.may_commit.clear()
        party.coordinator.push()
        await party.away_until(lambda: party.core.reading.inbox.alarm)
        poll = asyncio.ensure_future(party.comes_back())
        await party.away_until(lambda: party.coordinator.commits)
        poll.cancel()
        with pytest.raises(asyncio.CancelledError):
            await poll
        assert party.owned == {0}
        assert party.reported == [("assigned", [T0])]
        await party.until(lambda: not party.owned)
        assert party.reported == [("assigned", [T0]), ("revoked", [T0])]
        assert len(party.coordinator.commits) == 1, "he is not made to wait again"
        party.coordinator.may_commit.set()
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_a_close_that_is_cancelled_in_the_goodbye_leaves_no_task_behind(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, enable_auto_commit=False)
        party.coordinator.may_answer_leave.clear()
        closing = asyncio.ensure_future(drive_async(party.group.leave_steps(), party.io))
        await party.away_until(lambda: party.coordinator.goodbyes == 1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await party.away_until(lambda: not party.io.tasks)
        assert party.group.subscription is None

    run(scenario)


def test_a_close_during_an_eviction_leaves_no_task_behind(make: Make) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, max_poll_interval_ms=50, enable_auto_commit=False)
        party.coordinator.may_answer_leave.clear()
        await party.away_until(lambda: party.coordinator.goodbyes == 1)
        await drive_async(party.group.leave_steps(), party.io)
        await party.away_until(lambda: not party.io.tasks)
        assert party.reported[-1] == ("lost", [T0])

    run(scenario)


def test_who_unsubscribes_within_a_callback_is_asked_once_more_at_most(make: Make) -> None:
    async def scenario() -> None:
        party = make(Coordinator(0), enable_auto_commit=False)
        revoked = []

        async def stops(partitions: list[TopicPartition]) -> None:
            revoked.append(partitions)
            await drive_async(party.group.leave_steps(), party.io)

        party.subscribe(on_revoked=stops)
        await party.until(lambda: party.core.reading.partitions)
        party.coordinator.push()
        await party.until(lambda: revoked)
        assert len(revoked) <= 2
        await party.away_until(lambda: not party.io.tasks)

    run(scenario)


# -- the stream --------------------------------------------------------------------------------------------------------


def test_a_stream_that_breaks_while_something_is_written_is_followed_by_another(make: Make) -> None:
    """When a stream breaks during a write, gRPC raises CancelledError, as if the member's task had been cancelled."""

    async def scenario() -> None:
        party = await joined(make, 0, enable_auto_commit=False)
        party.coordinator.breaks_writes = 1
        party.group._membership.member.subscribed_anew()
        party.group._membership.nudge()
        await party.away_until(lambda: len(party.coordinator.streams) == 2 and party.coordinator.streams[1].said)
        assert party.owned == {0}
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_a_topic_without_a_name_is_not_read(make: Make) -> None:
    """The topic was just deleted: the coordinator knows only its id, and is about to revoke its partitions."""

    async def scenario() -> None:
        party = await joined(make, 0, 1, enable_auto_commit=False)
        reported = groups_pb2.MembershipResponse(
            member_epoch=1,
            revision=2,
            heartbeat_interval_ms=5_000,
            session_timeout_ms=45_000,
            connection_grace_ms=1_500,
        )
        reported.assignment.topics.add(topic_id=TOPIC_ID, topic="", partitions=[0, 1])
        party.coordinator.revision = 2
        party.coordinator.streams[-1].tell(reported)
        await party.until(lambda: not party.owned)
        assert party.reported == [("assigned", [T0, T1]), ("revoked", [T0, T1])]
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_where_nobody_answers_at_all_the_caller_is_informed(make: Make) -> None:
    async def scenario() -> None:
        party = make(Coordinator(0))
        answers: list[Any] = [BootstrapError("127.0.0.1:1: connection refused"), "coordinator:1"]

        async def address(group_id: str, timeout_s: float) -> str:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, HeadraceError):
                raise answer
            return str(answer)

        party.group._coordinators.address = address  # type: ignore[method-assign]
        party.subscribe()
        with pytest.raises(BootstrapError, match="refused"):
            await party.until(lambda: party.core.reading.partitions)
        await party.until(lambda: party.core.reading.partitions)
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)
