"""Offsets in transactions at the shard of their group (KIP-447): which offsets the shard accepts, what a marker does,
and what other requests do while offsets are pending."""

from __future__ import annotations

import time
from random import Random

import pytest

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.group.messages import DescribedGroup, DescribeGroup, GroupState, ListGroups
from headrace_coordinator.offsets.codec import CommittedOffset, record_bytes
from headrace_coordinator.offsets.logic import OffsetSettings
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DeleteOffsets,
    EndOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from headrace_coordinator.offsets.pending import (
    PendingBook,
    PendingKey,
    PendingOffset,
    PendingOffsets,
    decode_pending,
    decode_pending_key,
    encode_pending,
    encode_pending_key,
    key_of,
)
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import RecordKind, kind_of
from headrace_core.errors import (
    CoordinatorNotAvailableError,
    CorruptLogError,
    GroupIdNotFoundError,
    HeadraceError,
    InvalidCommitOffsetSizeError,
    InvalidProducerEpochError,
    StaleMemberEpochError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import NOW_MS, Group, OffsetsWorld
from tests.worlds.waiting import check_spent

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_commit_takes_effect_from_its_end_on_in_one_batch() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1, 7, "before"))
    world.send("g", OffsetToCommit("t", 0, 5, 8, "note"))
    world.send("g", OffsetToCommit("t", 1, 6))
    world.send("h", OffsetToCommit("t", 0, 9))
    assert world.fetch("g")["t", 0].metadata == "before"
    decision = world.end(commit=True, now_ms=NOW_MS + 60_000)
    assert decision.is_atomic
    assert [record.value is None for record in decision.records] == [False, False, True, False, True]
    assert world.fetch("g")["t", 0][2:6] == (5, 8, "note", NOW_MS + 60_000)
    assert (world.fetch("g")["t", 1].offset, world.fetch("h")["t", 0].offset) == (6, 9)
    assert list(world.successor().book) == list(world.logic.book)
    assert not world.end(commit=True).records, "a repeated marker appends nothing"


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_commit_outside_of_the_transaction_replaces_an_older_pending_offset(is_committed: bool) -> None:
    """Kafka compares the log offsets of both records when the transaction commits."""
    world = OffsetsWorld()
    for producer in ((7, 3), (8, 3)):
        world.send("g", *(OffsetToCommit("t", partition, 5) for partition in (0, 1, 40)), producer=producer)
    decision = world.commit("g", OffsetToCommit("t", 0, 2), OffsetToCommit("t", 40, 3))
    assert decision.is_atomic
    assert [record.value is None for record in decision.records] == [False, False, False, False, True, True]
    for logic in (world.logic, world.successor()):
        found = logic.fetch(FetchOffsets("g", require_stable=True), NOW_MS).reply.offsets  # type: ignore[attr-defined]
        assert {each.partition: None if each.error else each.offset for each in found} == {0: 2, 1: None, 40: 3}
    world.send("g", OffsetToCommit("t", 40, 9))  # after the commit
    world.end((7, 4), commit=is_committed)
    world.end((8, 4), commit=False)
    expected = {0: 2, 1: 5, 40: 9} if is_committed else {0: 2, 40: 3}
    assert {key[1]: one.offset for key, one in world.fetch("g", require_stable=True).items()} == expected
    assert list(world.successor().book) == list(world.logic.book)
    assert not list(world.logic.book.pending.group_ids())


def test_a_refused_commit_leaves_the_pending_offsets() -> None:
    world = OffsetsWorld(OffsetSettings(commit_bytes_max=250))
    world.send("g", OffsetToCommit("t", 0, 5))
    with pytest.raises(InvalidCommitOffsetSizeError):
        world.commit("g", OffsetToCommit("t", 0, 2, metadata="x" * 200))
    world.end(commit=True)
    assert world.fetch("g")["t", 0].offset == 5


@pytest.mark.parametrize(
    ("marker", "version", "coordinator_epoch", "error"),
    [
        ((7, 4), 2, 5, None),
        ((7, 9), 2, 5, None),  # KIP-1228
        ((7, 4), 2, 6, None),
        ((7, 3), 2, 5, "INVALID_PRODUCER_EPOCH"),  # KAFKA-17754
        ((7, 2), 2, 5, "INVALID_PRODUCER_EPOCH"),
        ((7, 3), 1, 5, None),
        ((7, 2), 1, 5, "INVALID_PRODUCER_EPOCH"),
        ((7, 3), 1, 4, "TRANSACTION_COORDINATOR_FENCED"),
    ],
)
def test_a_marker_is_judged_by_its_epochs_and_version(
    marker: tuple[int, int], version: int, coordinator_epoch: int, error: str | None
) -> None:
    world = OffsetsWorld()
    world.send("g", OffsetToCommit("t", 0, 5), producer=(7, 3), coordinator_epoch=5)
    if error is None:
        world.end(marker, commit=True, version=version, coordinator_epoch=coordinator_epoch)
    else:
        with pytest.raises(HeadraceError) as refused:
            world.end(marker, commit=True, version=version, coordinator_epoch=coordinator_epoch)
        assert refused.value.code == error
    found = world.fetch("g", require_stable=True)["t", 0]
    assert found.offset == (5 if error is None else -1)
    assert (found.error is None) == (error is None)


def test_a_marker_of_another_producer_changes_nothing() -> None:
    world = OffsetsWorld()
    world.send("g", OffsetToCommit("t", 0, 5), producer=(7, 3))
    assert not world.end((8, 9), commit=True).records
    assert world.fetch("g", require_stable=True)["t", 0].error is not None


def test_the_last_request_of_a_transaction_counts_and_not_the_one_that_arrives_last() -> None:
    world = OffsetsWorld()
    for sequence in (1, 3, 2):
        world.send("g", OffsetToCommit("t", 0, sequence), sequence=sequence)
    world.send("g", OffsetToCommit("t", 1, 2), sequence=2)  # the first one for its partition
    world.end(commit=True)
    assert {key: one.offset for key, one in world.fetch("g").items()} == {("t", 0): 3, ("t", 1): 2}
    for offset in (8, 7):
        world.send("g", OffsetToCommit("t", 0, offset), producer=(7, 4))
    world.end((7, 5), commit=True)
    assert world.fetch("g")["t", 0].offset == 7, "without numbers, the order of arrival decides"


def test_the_next_transaction_waits_for_the_marker_of_the_former_one() -> None:
    world = OffsetsWorld()
    world.send("g", OffsetToCommit("t", 0, 5), producer=(7, 3))
    with pytest.raises(TransactionAbortableError, match="with epoch 3, is still missing"):
        world.send("h", OffsetToCommit("t", 0, 6), producer=(7, 4))
    with pytest.raises(InvalidProducerEpochError, match="out of date"):
        world.send("g", OffsetToCommit("t", 0, 6), producer=(7, 2))
    world.end((7, 4), commit=False)
    world.send("h", OffsetToCommit("t", 0, 6), producer=(7, 4))


def test_the_member_is_checked_before_and_after_the_verification() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 5})
    commit = CommitOffsets("g", (OffsetToCommit("t", 0, 1),), "m", 5)
    request = CommitTransactionOffsets(commit, "payments", 7, 3)
    verification = world.logic.commit_in_transaction(request, NOW_MS).reply
    world.groups.groups["g"] = Group({"m": 6})
    with pytest.raises(StaleMemberEpochError):
        world.logic.commit_in_transaction(request._replace(verification=verification), NOW_MS)  # type: ignore[arg-type]
    with pytest.raises(StaleMemberEpochError):
        world.logic.commit_in_transaction(request, NOW_MS)
    with pytest.raises(GroupIdNotFoundError):
        world.send("h", OffsetToCommit("t", 0, 1), member_id="m", member_epoch=5)
    assert not world.log


def test_a_client_that_names_only_the_group_commits_in_a_transaction_beside_the_members() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 5})
    for epoch in (-1, 0):
        world.send("g", OffsetToCommit("t", 0, 1), member_epoch=epoch)
    for who in ({"member_id": "n"}, {"member_epoch": 5}, {"member_epoch": -1, "instance_id": "i"}):
        with pytest.raises(UnknownMemberIdError):
            world.send("g", OffsetToCommit("t", 0, 9), **who)
    world.end(commit=True)
    assert world.fetch("g")["t", 0].offset == 1


def test_a_verification_from_before_a_replay_is_repeated_and_one_that_a_marker_cancelled_is_not() -> None:
    world = OffsetsWorld()
    request = CommitTransactionOffsets(CommitOffsets("g", (OffsetToCommit("t", 0, 1),)), "payments", 7, 3)
    request = request._replace(verification=world.logic.commit_in_transaction(request, NOW_MS).reply)  # type: ignore[arg-type]
    with pytest.raises(CoordinatorNotAvailableError, match="retry"):
        world.successor().commit_in_transaction(request, NOW_MS)
    world.end((7, 3), commit=False)  # of the transaction before
    world.end((7, 4), commit=False)
    with pytest.raises(TransactionAbortableError, match="has ended"):
        world.logic.commit_in_transaction(request, NOW_MS)


def test_the_offsets_of_a_transaction_fit_into_one_batch() -> None:
    world = OffsetsWorld(OffsetSettings(commit_bytes_max=2_000))
    number = 0
    while number < 100:
        try:
            world.send(f"g{number % 3}", OffsetToCommit("t", number, 1, metadata="m" * 20))
        except InvalidCommitOffsetSizeError:
            break
        number += 1
    assert 10 < number < 100
    before = len(world.log)
    with pytest.raises(InvalidCommitOffsetSizeError):  # a long id is a part of each record
        world.logic.commit_in_transaction(
            CommitTransactionOffsets(CommitOffsets("h", (OffsetToCommit("t", 0, 1),)), "i" * 3_000, 8, 0)._replace(
                verification=world.logic._verifications.begin(8, 0)
            ),
            NOW_MS,
        )
    assert len(world.log) == before
    decision = world.end(commit=True)
    assert sum(len(record.key) + len(record.value or b"") for record in decision.records) < 2_000
    assert sum(len(world.fetch(f"g{each}")) for each in range(3)) == number


def test_partitions_that_cannot_be_committed_are_refused_one_by_one() -> None:
    world = OffsetsWorld()
    decision = world.send("g", OffsetToCommit("../t", 0, 1), OffsetToCommit("t", 1, 5))
    assert [each.error and each.error.code for each in decision.reply.results] == ["INVALID_TOPIC_EXCEPTION", None]  # type: ignore[attr-defined]
    assert not world.send("g", OffsetToCommit("../t", 0, 1), producer=(8, 0)).records
    assert set(world.logic.book.pending.partitions("g")) == {T1}


def test_deleted_offsets_are_dropped_from_transactions_too() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group()
    world.send("g", OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 6))
    world.send("g", OffsetToCommit("t", 0, 7), producer=(8, 0))
    decision = world.logic.delete(DeleteOffsets("g", (T0,)))
    world.log += decision.records
    for logic in (world.logic, world.successor()):
        assert logic.book.pending.partitions("g") == {T1}
    world.end((8, 1), commit=True)
    world.end(commit=True)
    assert list(world.fetch("g")) == [("t", 1)]


def test_a_group_with_nothing_but_pending_offsets_is_a_group() -> None:
    shard = ShardStateMachine(Groups())
    commit = CommitOffsets("g", (OffsetToCommit("t", 0, 5),))
    request = CommitTransactionOffsets(commit, "payments", 7, 3)
    verification = shard.handle(request, NOW_MS).reply
    shard.handle(request._replace(verification=verification, coordinator_epoch=2), NOW_MS)  # type: ignore[arg-type]
    (listed,) = shard.handle(ListGroups(), NOW_MS).reply  # type: ignore[misc]
    assert (listed.group_id, listed.state) == ("g", GroupState.EMPTY)
    described = shard.handle(DescribeGroup("g"), NOW_MS).reply
    assert isinstance(described, DescribedGroup)
    assert described.pending == (("t", 0, 5, "payments", 7, 3, NOW_MS),)
    deleted = shard.handle(DeleteGroup("g"), NOW_MS)
    assert [record.value for record in deleted.records] == [None]
    assert not shard.handle(EndOffsets(7, 4, True, 2, 2), NOW_MS).records
    with pytest.raises(GroupIdNotFoundError):
        shard.handle(DescribeGroup("g"), NOW_MS)


def test_a_request_writes_what_it_adds_and_not_what_is_pending() -> None:
    world = OffsetsWorld()
    sizes = []
    for number in range(2_000):
        decision = world.send("g", OffsetToCommit("t", number, number), sequence=number + 1)
        sizes.append(sum(len(record.key) + len(record.value or b"") for record in decision.records))
    assert max(sizes) < 4_000, "at most one part of the topic is written again"
    for logic in (world.logic, world.successor()):
        assert len(logic.book.pending.partitions("g")) == 2_000
    before = len(world.log)
    world.send("g", *(OffsetToCommit("t", number, 9_000 + number) for number in (3, 4, 40)), sequence=2_001)
    assert len(world.log) == before + 2
    decision = world.end(commit=True)
    assert len(decision.records) == 2_000 + 2_000 // 32 + 1
    offsets = {partition: one.offset for (_, partition), one in world.fetch("g").items()}
    assert (offsets[3], offsets[40], offsets[41]) == (9_003, 9_040, 41)
    assert list(world.successor().book) == list(world.logic.book)
    assert not world.successor().book.pending.group_ids()


def test_the_bytes_of_a_transactions_end_are_known_before_it_ends() -> None:
    """The bytes are counted while offsets are added and deleted; with a wrong count, the shard would refuse offsets or
    a marker."""
    world = OffsetsWorld()
    world.groups.groups["g"] = Group()
    for number in (0, 1, 33, 1, 70):
        world.send("g", OffsetToCommit("t", number, 1, metadata="m" * number))
        world.send("h", OffsetToCommit("t", number, 1))
    world.log += world.logic.delete(DeleteOffsets("g", (T1, TopicPartition("t", 70)))).records
    for logic in (world.logic, world.successor()):
        size = logic.book.pending.end_bytes(7, {})
        records = logic.end_transaction(EndOffsets(7, 4, True, 2, 5), NOW_MS).records
        assert size == sum(record_bytes(*record) for record in records)
        assert logic.book.pending.end_bytes(7, {}) == 0


def test_the_newest_confirmation_of_a_transaction_counts_for_all_its_offsets() -> None:
    world = OffsetsWorld()
    world.send("g", OffsetToCommit("t", 0, 5), coordinator_epoch=6)
    world.send("g", OffsetToCommit("t", 0, 5), OffsetToCommit("u", 0, 5), coordinator_epoch=5)
    for logic in (world.logic, world.successor()):
        with pytest.raises(TransactionCoordinatorFencedError):
            logic.end_transaction(EndOffsets(7, 4, True, 2, 5), NOW_MS)


KEY = PendingKey(1 << 40, "grüppe", "t", 0)


def test_records_of_pending_offsets_come_back() -> None:
    assert decode_pending_key(encode_pending_key(KEY)) == KEY
    committed = CommittedOffset(5, 3, "note", NOW_MS, None, bytes(15) + b"\x01")
    pending = PendingOffsets(3, {T1: PendingOffset(committed, 2), T0: PendingOffset(committed)}, "payments", 9)
    assert decode_pending(KEY, encode_pending(pending)) == pending


def test_damaged_records_of_pending_offsets_are_reported() -> None:
    key, value = encode_pending_key(KEY), encode_pending(PendingOffsets(3, {T0: PendingOffset(CommittedOffset(5))}))
    for damaged in (key[:-1], key[:2], key + b"\0"):
        with pytest.raises(CorruptLogError):
            decode_pending_key(damaged)
    for damaged in (b"", value[:1], value[:-1], value + b"\0"):
        with pytest.raises(CorruptLogError):
            decode_pending(KEY, damaged)
    with pytest.raises(UnsupportedVersionError, match="upgrade the coordinator"):
        decode_pending(KEY, b"\0\2" + value[2:])


@pytest.mark.parametrize("seed", range(5))
def test_pending_offsets_are_found_by_group_and_by_partition(seed: int) -> None:
    random, book = Random(seed), PendingBook()
    for _ in range(400):
        partitions = [TopicPartition(random.choice("tu"), random.randrange(70)) for _ in range(random.randrange(1, 4))]
        key = key_of(random.randrange(4), random.choice("gh"), partitions[0])
        offsets = {
            each: PendingOffset(CommittedOffset(random.randrange(9))) for each in partitions if each in key.partitions()
        }
        book.apply(key, PendingOffsets(3, offsets) if random.random() < 0.6 else None)
        for group_id in "gh":
            found = {
                (partition, producer_id): one
                for producer_id, pending in book.of_group(group_id)
                for partition, one in pending.offsets.items()
            }
            by_partition = {
                (partition, producer_id): one
                for partition in book.partitions(group_id)
                for producer_id, one in book.of_partition(group_id, partition)
            }
            assert by_partition == found
            assert book.partitions(group_id) == {partition for partition, _ in found}


def test_a_group_is_described_with_all_its_pending_offsets() -> None:
    """Beyond 10,000 they were left out, and what looks for orphaned offsets did not find them."""
    world, producers, each = OffsetsWorld(), 6, 2_000
    for number in range(producers):
        partitions = range(number * each, (number + 1) * each)
        world.send("g", *(OffsetToCommit("t", partition, 5) for partition in partitions), producer=(number, 3))
    assert [found.partition for found in world.logic.pending("g")] == list(range(producers * each))


def test_a_group_with_many_open_transactions_is_deleted_in_time_in_proportion_to_its_offsets() -> None:
    """Each offset looked at each transaction: 10,000 offsets and 1,000 transactions stopped a coordinator for 3.5 s."""
    world, producers, each = OffsetsWorld(), 1_000, 10
    for number in range(producers):
        offsets = [OffsetToCommit("t", partition, 5) for partition in range(number * each, (number + 1) * each)]
        world.commit("g", *offsets)
        world.send("g", *offsets, producer=(number, 3))
    began = time.thread_time()
    records = world.logic.remove_group("g")
    check_spent(began, 1.0)
    assert len(records) == producers * each + len(
        {key for key, _ in records if kind_of(key) == RecordKind.PENDING_OFFSETS}
    )
    assert not world.logic.book.has("g")
