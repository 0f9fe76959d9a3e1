"""The log of a shard: appends while the leader's disk is full, and replays of a shard that Kafka wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.offsets.codec import CommittedOffset, encode_key, encode_value
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    EndOffsets,
    FetchOffsets,
    OffsetsFetched,
    OffsetToCommit,
)
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_coordinator.transport import shard_log
from headrace_coordinator.transport.brokers import Leader
from headrace_coordinator.transport.shard_log import ShardLog
from headrace_core.clock import SystemClock
from headrace_core.errors import DiskFullError, RequestTimedOutError
from headrace_core.log.transactions import Marker, marker_batch
from headrace_core.records import Compression, encode_batch, with_base
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2, produce_pb2

SHARD = TopicPartition("__consumer_offsets", 3)
NOW_MS = 1_800_000_000_000
COMMIT = [[ShardRecord(b"group", b"offset")]]


class Brokers:
    """Broker 1 leads the shard, and its disk is full; broker 2 takes appends. ``elected``: broker 2 leads from now
    on."""

    def __init__(self) -> None:
        self.leader = 1
        self.asked: list[int] = []
        self.expected_ends: set[int] = set()
        self.after_refusal: Callable[[], None] = lambda: None
        self.is_silent = False  #: Broker 1 does not answer.
        self.metadata: Any = self
        self.stream: Any = None
        self._watchers: list[Callable[[Any, Any], None]] = []

    def elected(self) -> None:
        self.leader = 2
        for watcher in list(self._watchers):
            watcher(None, None)

    def watch(self, watcher: Callable[[Any, Any], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def leader_of(self, partition: TopicPartition) -> Leader:
        assert partition == SHARD
        return Leader(self.leader, 0, f"internal-{self.leader}", f"client-{self.leader}")

    def produce_link(self, address: str) -> Any:
        self.asked.append(int(address.removeprefix("internal-")))
        return self

    def fetch_stream(self, address: str) -> Any:
        return self.stream

    async def append(self, message: Any, timeout_s: float) -> Any:
        self.expected_ends.add(message.expected_end)
        result = produce_pb2.ProducePartitionResult(base_offset=7)
        if self.is_silent and self.asked[-1] == 1:
            asyncio.get_running_loop().call_soon(self.after_refusal)
            await asyncio.Event().wait()
        if self.leader == 1:
            result.error.code = DiskFullError.number
            asyncio.get_running_loop().call_soon(self.after_refusal)
        return result


def log(brokers: Brokers, timeout_s: float) -> ShardLog:
    return ShardLog(
        brokers,  # type: ignore[arg-type]
        SHARD,
        b"t" * 16,
        5,
        clock=SystemClock(),
        append_timeout_s=timeout_s,
        load_bytes=1,
        compression=Compression.NONE,
    )


async def append(brokers: Brokers, timeout_s: float) -> int:
    return await log(brokers, timeout_s).append(COMMIT, 7)


def test_commit_goes_to_the_new_leader_as_soon_as_one_is_elected() -> None:
    brokers = Brokers()
    brokers.after_refusal = lambda: brokers.elected() if len(brokers.asked) == 2 else None
    assert asyncio.run(append(brokers, 60.0)) == 7
    assert brokers.asked == [1, 1, 2]
    assert brokers.expected_ends == {7}, "an append that took effect unseen is not repeated"
    assert not brokers._watchers


def test_an_append_without_an_answer_does_not_count_as_a_move() -> None:
    async def no_answer(message: Any, timeout_s: float) -> Any:
        raise RequestTimedOutError("internal-1 has not answered within 5 s")

    async def once(brokers: Brokers) -> None:
        brokers.append = no_answer  # type: ignore[method-assign]
        await log(brokers, 60.0)._append_once(produce_pb2.ProducePartition(), 5.0)

    with pytest.raises(RequestTimedOutError, match="has not answered"):
        asyncio.run(once(Brokers()))


def test_commit_leaves_a_silent_leader_when_another_broker_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_log, "_MOVED_S", 0.02)
    brokers = Brokers()
    brokers.is_silent = True
    brokers.after_refusal = brokers.elected
    assert asyncio.run(append(brokers, 60.0)) == 7
    assert brokers.asked == [1, 2]
    assert not brokers._watchers


def test_commit_fails_with_the_full_disk_when_no_other_broker_leads_in_time() -> None:
    brokers = Brokers()
    with pytest.raises(DiskFullError, match="internal-1"):
        asyncio.run(asyncio.wait_for(append(brokers, 0.1), 30))
    assert set(brokers.asked) == {1}


class Stream:
    """A fetch stream that returns ``data`` in its first response."""

    def __init__(self, data: bytes, end: int) -> None:
        self._result = fetch_pb2.FetchPartitionResult(records=data, next_offset=end)

    async def run(self, reading: Any, watching: Any) -> None:
        watching.close()
        await reading

    async def connected(self) -> None:
        pass

    async def write(self, request: Any) -> None:
        pass

    async def read(self) -> Any:
        return fetch_pb2.FetchResponse(results=[self._result])


class KafkasLog:
    """The log of a shard as Kafka writes it."""

    def __init__(self) -> None:
        self.end = 0
        self.data = b""

    def commit(self, partition: int, offset: int | None, producer: tuple[int, int] | None = None) -> None:
        """An offset commit of group g; with ``producer`` (id, epoch), in a transaction of this producer. ``offset``:
        None for a tombstone."""
        key = encode_key("g", TopicPartition("t", partition))
        value = None if offset is None else encode_value(CommittedOffset(offset, commit_timestamp_ms=NOW_MS))
        more: dict[str, Any] = {}
        if producer is not None:
            more = {
                "producer_id": producer[0],
                "producer_epoch": producer[1],
                "transactional": True,
                "base_sequence": 0,
            }
        self._add(encode_batch([(NOW_MS, key, value, None)], **more))

    def marker(self, producer: tuple[int, int], *, commit: bool) -> None:
        self._add(marker_batch(Marker(*producer, commit, 1, 2), NOW_MS))

    def own(self, decision: Decision) -> None:
        """The records that this coordinator appends after Kafka's records."""
        for record in decision.records:
            self._add(encode_batch([(NOW_MS, record.key, record.value, None)]))

    def _add(self, batch: bytes) -> None:
        self.data += with_base(batch, 0, self.end, 0) + batch[16:]
        self.end += 1

    def replayed(self) -> ShardStateMachine:
        state_machine = ShardStateMachine(Groups())
        brokers = Brokers()
        brokers.stream = Stream(self.data, self.end)

        def take(records: Sequence[tuple[bytes, bytes | None, int]]) -> None:
            for record in records:
                state_machine.replay(*record)

        asyncio.run(log(brokers, 1.0).read(self.end, take))
        return state_machine


def offsets(state_machine: ShardStateMachine) -> dict[int, int | None]:
    """Return the stable offsets of group g; None: an open transaction may change the offset."""
    reply = state_machine.handle(FetchOffsets("g", require_stable=True), NOW_MS).reply
    assert isinstance(reply, OffsetsFetched)
    return {each.partition: None if each.error else each.offset for each in reply.offsets}


def test_a_replay_understands_transactions_that_kafka_wrote() -> None:
    kafka = KafkasLog()
    kafka.commit(0, 1)
    kafka.commit(1, 1)
    kafka.commit(0, 10, (7, 3))
    kafka.commit(2, 5)  # of another client, between the transaction's batches
    kafka.commit(3, 20, (8, 0))
    kafka.commit(1, 11, (7, 3))
    assert offsets(kafka.replayed()) == {0: None, 1: None, 2: 5, 3: None}
    kafka.marker((7, 4), commit=True)
    assert offsets(kafka.replayed()) == {0: 10, 1: 11, 2: 5, 3: None}
    kafka.marker((8, 1), commit=False)
    assert offsets(kafka.replayed()) == {0: 10, 1: 11, 2: 5}


@pytest.mark.parametrize("commit", [False, True])
def test_a_later_commit_in_kafkas_log_replaces_the_offset_of_a_transaction(commit: bool) -> None:
    kafka = KafkasLog()
    for partition in range(3):
        kafka.commit(partition, 10, (7, 3))
    kafka.commit(0, 2)
    kafka.commit(1, None)
    assert offsets(kafka.replayed()) == {0: 2, 2: None}
    kafka.commit(1, 11, (7, 3))
    kafka.marker((7, 4), commit=commit)
    assert offsets(kafka.replayed()) == ({0: 2, 1: 11, 2: 10} if commit else {0: 2})


@pytest.mark.parametrize("later_ends_first", [False, True])
@pytest.mark.parametrize("later_commits", [False, True])
def test_of_two_open_transactions_in_kafkas_log_the_later_write_counts(
    later_ends_first: bool, later_commits: bool
) -> None:
    kafka = KafkasLog()
    for partition in (0, 40):
        kafka.commit(partition, 10, (7, 3))
    kafka.commit(0, 20, (8, 3))
    if later_ends_first:
        kafka.marker((8, 3), commit=later_commits)
        assert offsets(kafka.replayed()) == {0: 20 if later_commits else None, 40: None}
        kafka.marker((7, 3), commit=True)
    else:
        kafka.marker((7, 3), commit=True)
        kafka.marker((8, 3), commit=later_commits)
    assert offsets(kafka.replayed()) == {0: 20 if later_commits else 10, 40: 10}


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
@pytest.mark.parametrize("is_moved", [False, True])
def test_of_two_transactions_that_kafka_left_open_the_later_write_counts(
    order: tuple[int, int], is_moved: bool
) -> None:
    """Headrace ends them, and a replay of the whole log agrees after each end."""
    kafka = KafkasLog()
    kafka.commit(0, 10, (7, 3))
    kafka.commit(0, 20, (8, 3))
    state_machine = kafka.replayed()
    for producer in order:
        kafka.own(state_machine.handle(EndOffsets(producer, 4, True, 2, 1), NOW_MS))
        assert offsets(kafka.replayed()) == offsets(state_machine)
        if is_moved:
            state_machine = kafka.replayed()
    assert offsets(state_machine) == {0: 20}


@pytest.mark.parametrize("is_moved", [False, True])
def test_what_kafka_wrote_of_a_transaction_that_headrace_continues_is_still_kafkas(is_moved: bool) -> None:
    kafka = KafkasLog()
    kafka.commit(40, 10, (8, 3))
    kafka.commit(40, 20, (7, 3))
    state_machine = kafka.replayed()
    add_offsets(kafka, state_machine, (7, 3), 5)  # of partition 0, which is in another record
    for producer in (8, 7):
        kafka.own(state_machine.handle(EndOffsets(producer, 4, True, 2, 1), NOW_MS))
        assert offsets(kafka.replayed()) == offsets(state_machine)
        if is_moved:
            state_machine = kafka.replayed()
    assert offsets(state_machine) == {0: 5, 40: 20}


def test_a_transaction_of_headrace_is_later_than_one_that_kafka_left_open() -> None:
    kafka = KafkasLog()
    for partition in (0, 1, 2):
        kafka.commit(partition, 10, (7, 3))
    state_machine = kafka.replayed()
    add_offsets(kafka, state_machine, (8, 3), 20)
    for producer in (8, 7):
        kafka.own(state_machine.handle(EndOffsets(producer, 4, True, 2, 1), NOW_MS))
        assert offsets(kafka.replayed()) == offsets(state_machine)
    assert offsets(state_machine) == {0: 20, 1: 10, 2: 10}


def test_a_transaction_that_kafka_left_open_ends_here() -> None:
    kafka = KafkasLog()
    kafka.commit(0, 10, (7, 3))
    state_machine = kafka.replayed()
    decision = state_machine.handle(EndOffsets(7, 4, True, 2, 1), NOW_MS + 5)
    assert offsets(state_machine) == {0: 10}
    kafka.own(decision)
    assert offsets(kafka.replayed()) == {0: 10}
    kafka.marker((7, 3), commit=False)  # an operator ends the transaction in the log (AbortHangingTransaction)
    assert offsets(kafka.replayed()) == {0: 10}, "what is committed stays"


def test_a_transaction_that_an_operator_ends_in_kafkas_log_leaves_nothing() -> None:
    kafka = KafkasLog()
    kafka.commit(0, 1)
    kafka.commit(0, 10, (7, 3))
    kafka.marker((7, 3), commit=False)
    state_machine = kafka.replayed()
    assert offsets(state_machine) == {0: 1}
    assert not state_machine.handle(EndOffsets(7, 4, True, 2, 1), NOW_MS).records


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_marker_in_kafkas_log_leaves_later_transactions_of_the_producer(
    version: int, is_moved: bool, commit: bool
) -> None:
    """Headrace ended a transaction that Kafka left open, and wrote no marker. The producer continues with its id. Only
    version 2 gives the next transaction another epoch."""
    bump = version - 1
    kafka = KafkasLog()
    kafka.commit(0, 10, (7, 5))
    kafka.commit(40, 3, (7, 5))  # in another record of pending offsets
    state_machine = kafka.replayed()
    kafka.own(state_machine.handle(EndOffsets(7, 5 + bump, False, version, 1), NOW_MS))
    if is_moved:
        state_machine = kafka.replayed()
    add_offsets(kafka, state_machine, (7, 5 + bump), 20)
    kafka.marker((7, 5), commit=commit)  # AbortHangingTransaction in the middle of the next transaction
    state_machine = kafka.replayed()
    assert offsets(state_machine) == {0: None}
    kafka.own(state_machine.handle(EndOffsets(7, 5 + 2 * bump, True, version, 1), NOW_MS))
    assert offsets(state_machine) == offsets(kafka.replayed()) == {0: 20}


def test_an_abort_in_kafkas_log_leaves_what_headrace_added_to_the_transaction() -> None:
    kafka = KafkasLog()
    kafka.commit(0, 10, (7, 5))
    kafka.commit(40, 3, (7, 5))
    add_offsets(kafka, kafka.replayed(), (7, 5), 20)
    kafka.marker((7, 5), commit=False)
    state_machine = kafka.replayed()
    assert offsets(state_machine) == {0: None}
    state_machine.handle(EndOffsets(7, 6, True, 2, 1), NOW_MS)
    assert offsets(state_machine) == {0: 20}


def add_offsets(kafka: KafkasLog, state_machine: ShardStateMachine, producer: tuple[int, int], offset: int) -> None:
    """The producer's transaction gets an offset of partition 0, as send_offsets does."""
    commit = CommitOffsets("g", (OffsetToCommit("t", 0, offset),))
    request = CommitTransactionOffsets(commit, "app", *producer)
    verification = state_machine.handle(request, NOW_MS).reply
    kafka.own(state_machine.handle(request._replace(verification=verification), NOW_MS))
