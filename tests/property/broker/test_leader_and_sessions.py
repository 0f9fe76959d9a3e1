"""A partition's leader and the sessions that read from it, against plain lists: no session waits for available
records."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace_broker.partition import PartitionLeader
from headrace_broker.partition.session import FetchSession, SessionPartition
from headrace_core.errors import HeadraceError, NotLeaderOrFollowerError
from headrace_core.types import FlushPolicy, TopicPartition
from tests.worlds.this_process import examples

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
#: The size of every record in bytes.
RECORD_BYTES = 10

numbers = st.integers(0, 2)


class Reader:
    """A session and what its client knows. ``waiting`` is the number of bytes for which a poll waits."""

    def __init__(self) -> None:
        self.session = FetchSession(self.woken)
        self.positions: dict[TopicPartition, int] = {}
        self.waiting: int | None = None
        self.wakes = 0

    def woken(self) -> None:
        self.wakes += 1
        self.waiting = None


class LeaderMachine(RuleBasedStateMachine):
    @initialize(policies=st.tuples(*[st.sampled_from(FlushPolicy)] * 3))
    def begin(self, policies: tuple[FlushPolicy, ...]) -> None:
        self.leaders = [self.elected(partition, 1, 0, 0, policy) for partition, policy in zip(PARTITIONS, policies)]  # noqa: B905
        self.readers = [Reader(), Reader()]
        self.promised = [0, 0, 0]
        self.starts = [0, 0, 0]
        #: The end of each append.
        self.ends: list[list[int]] = [[], [], []]
        #: (partition, end offset, result that the waiter received) of every producer.
        self.producers: list[tuple[int, int, list[HeadraceError | None]]] = []

    def elected(
        self, partition: TopicPartition, epoch: int, start: int, end: int, policy: FlushPolicy
    ) -> PartitionLeader:
        return PartitionLeader(
            partition,
            topic_id=b"t" * 16,
            leader_id=1,
            leader_epoch=epoch,
            log_start=start,
            log_end=end,
            flushed_end=end,
            flush_policy=policy,
        )

    def moved(self, number: int) -> None:
        """A rule of the model: an end that the leader has promised never becomes smaller."""
        leader = self.leaders[number]
        promise = leader.flushed_end if leader.flush_policy is FlushPolicy.COMMIT else leader.log_end
        self.promised[number] = max(self.promised[number], promise)

    # ---------------------------------------------------------------- the log and its producers

    @rule(number=numbers, count=st.integers(1, 5), flushed=st.booleans(), waits=st.booleans())
    def append(self, number: int, count: int, flushed: bool, waits: bool) -> None:
        leader = self.leaders[number]
        end = leader.log_end + count
        leader.advanced(end, end if flushed else leader.flushed_end, count * RECORD_BYTES)
        self.ends[number].append(end)
        self.moved(number)
        if waits:
            outcomes: list[HeadraceError | None] = []
            leader.when_committed(end, outcomes.append)
            self.producers.append((number, end, outcomes))

    @rule(number=numbers, share=st.floats(0, 1))
    def flush(self, number: int, share: float) -> None:
        """A flush forces whole appends: the bytes of an append count when all of it is on disk."""
        leader = self.leaders[number]
        ends = [leader.flushed_end, *(end for end in self.ends[number] if end > leader.flushed_end)]
        leader.advanced(leader.log_end, ends[round(share * (len(ends) - 1))])
        self.moved(number)

    @rule(number=numbers, policy=st.sampled_from(FlushPolicy))
    def change_policy(self, number: int, policy: FlushPolicy) -> None:
        self.leaders[number].set_flush_policy(policy)
        self.moved(number)

    @rule(number=numbers, share=st.floats(0, 1))
    def advance_log_start(self, number: int, share: float) -> None:
        leader = self.leaders[number]
        leader.advance_log_start(int(leader.high_watermark * share))
        self.starts[number] = max(self.starts[number], int(self.promised[number] * share))

    @rule(number=numbers)
    def new_leader(self, number: int) -> None:
        """The leader resigns. The next leader has the whole log on its disk."""
        old = self.leaders[number]
        reason = NotLeaderOrFollowerError("moved")
        old.resign(reason)
        old.resign(NotLeaderOrFollowerError("twice"))
        for at, end, outcomes in self.producers:
            if at == number and end > self.promised[number]:
                assert outcomes == [reason]
        self.producers = [item for item in self.producers if item[0] != number]
        assert old.waiting[0] == 0
        leader = self.elected(old.partition, old.leader_epoch + 1, self.starts[number], old.log_end, old.flush_policy)
        self.leaders[number] = leader
        self.moved(number)
        for reader in self.readers:
            old.unsubscribe(reader.session)
            if old.partition in reader.session:
                leader.subscribe(reader.session)

    # ---------------------------------------------------------------- readers

    @rule(which=st.integers(0, 1), number=numbers)
    def name_partition(self, which: int, number: int) -> None:
        reader, leader = self.readers[which], self.leaders[number]
        reader.session.expected = None  # it comes with a request, and any newer request ends a wait
        reader.waiting = None
        entry = SessionPartition(leader.partition, position=leader.log_start, max_bytes=100)
        assert reader.session.put(entry) == (leader.partition not in reader.positions)
        reader.positions[leader.partition] = leader.log_start
        leader.subscribe(reader.session)

    @rule(which=st.integers(0, 1), number=numbers)
    def forget_partition(self, which: int, number: int) -> None:
        reader, leader = self.readers[which], self.leaders[number]
        assert reader.session.forget(leader.partition) == (leader.partition in reader.positions)
        leader.unsubscribe(reader.session)
        reader.positions.pop(leader.partition, None)

    @rule(which=st.integers(0, 1), most=st.integers(1, 8), wants=st.integers(1, 60))
    def poll(self, which: int, most: int, wants: int) -> None:
        """Take up to ``most`` of the available records. Without available records, wait for ``wants`` bytes."""
        reader = self.readers[which]
        reader.session.expected = None
        taken = 0
        for entry in reader.session.ready():
            leader = self.leaders[entry.partition.partition]
            position = max(entry.position, leader.log_start)
            count = min(leader.high_watermark - position, most - taken)
            taken += count
            reader.session.advance(entry, position + count, exhausted=position + count == leader.high_watermark)
            reader.positions[entry.partition] = position + count
            if taken == most:
                break
        reader.waiting = None
        if not taken:
            reader.session.expect(wants)
            reader.waiting = wants

    # ---------------------------------------------------------------- what holds

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        for leader, promised, start in zip(
            getattr(self, "leaders", ()), getattr(self, "promised", ()), getattr(self, "starts", ()), strict=False
        ):
            assert leader.high_watermark == promised
            assert leader.log_start == start <= leader.high_watermark <= leader.log_end

    @invariant()
    def producers_hear_once_and_not_too_soon(self) -> None:
        for number, end, outcomes in getattr(self, "producers", ()):
            assert outcomes == ([None] if end <= self.promised[number] else [])

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for reader in getattr(self, "readers", ()):
            ready = {entry.partition for entry in reader.session.ready()}
            unread = {
                partition: self.promised[partition.partition] - max(position, self.starts[partition.partition])
                for partition, position in reader.positions.items()
            }
            assert {partition for partition, count in unread.items() if count > 0} <= ready, "unread, and not ready"
            if reader.waiting is not None:
                assert sum(unread.values()) * RECORD_BYTES < reader.waiting, "it waits for bytes that are there"
            assert set(reader.session.partitions()) == set(reader.positions)


LeaderMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestLeaderAndSessions = LeaderMachine.TestCase
