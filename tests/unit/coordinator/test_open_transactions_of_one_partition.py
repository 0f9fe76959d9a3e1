"""Several open transactions have an offset of one partition: the offset that was written last counts, as in Kafka, and
not the one whose marker comes last. A coordinator that replays the log, or what compaction left of it, agrees."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from headrace_coordinator.offsets.codec import CommittedOffset
from headrace_coordinator.offsets.logic import OffsetSettings, OffsetsLogic
from headrace_coordinator.offsets.messages import EndOffsets, FetchOffsets, OffsetToCommit
from headrace_coordinator.offsets.pending import (
    PendingKey,
    PendingOffset,
    PendingOffsets,
    decode_pending,
    encode_pending,
    encode_pending_key,
)
from headrace_coordinator.state_machine import ShardRecord
from headrace_core.errors import CorruptLogError
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import NOW_MS, OffsetsWorld

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def at(offset: int, partition: int = 0) -> OffsetToCommit:
    return OffsetToCommit("t", partition, offset)


def stable(logic: OffsetsLogic) -> dict[int, int | None]:
    """The offsets of group g; None: an open transaction may change the offset."""
    found = logic.fetch(FetchOffsets("g", require_stable=True), NOW_MS).reply
    return {one.partition: None if one.error else one.offset for one in found.offsets}  # type: ignore[attr-defined]


def of_all(world: OffsetsWorld) -> dict[int, int | None]:
    """The offsets at the coordinator, at its successor, and after compaction; they must be equal."""
    found = [stable(world.logic), stable(world.successor()), stable(compacted(world))]
    assert found[0] == found[1] == found[2]
    return found[0]


def compacted(world: OffsetsWorld) -> OffsetsLogic:
    logic, last = OffsetsLogic(world.groups, world.settings), {key: number for number, (key, _) in enumerate(world.log)}
    for number, (key, value) in enumerate(world.log):
        if last[key] == number:
            logic.replay(key, value)
    return logic


@pytest.mark.parametrize("order", list(itertools.permutations((7, 8, 9))))
@pytest.mark.parametrize("outcomes", list(itertools.product((True, False), repeat=3)))
@pytest.mark.parametrize("takes_over", [False, True])
def test_the_last_write_of_a_committed_transaction_counts_in_whatever_order_they_end(
    order: tuple[int, ...], outcomes: tuple[bool, ...], takes_over: bool
) -> None:
    world = OffsetsWorld()
    committed = dict(zip((7, 8, 9), outcomes, strict=True))
    for producer in committed:
        world.send("g", at(producer), producer=(producer, 3))
    world.send("g", at(5, partition=1), producer=(7, 3))  # writes the first offset's record again
    for producer in order:
        if takes_over:
            world.logic = compacted(world)
        world.end((producer, 4), commit=committed[producer])
        assert sorted(world.successor().book) == sorted(world.logic.book)
    expected = {0: max((each for each in committed if committed[each]), default=None), 1: 5 if committed[7] else None}
    assert of_all(world) == {partition: offset for partition, offset in expected.items() if offset is not None}
    assert not world.logic.book.pending.group_ids()


def test_a_transaction_that_writes_again_is_the_last_one() -> None:
    world = OffsetsWorld()
    for producer, offset in ((7, 10), (8, 20), (7, 30)):
        world.send("g", at(offset), producer=(producer, 3))
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 30}, "nothing that is open can change it"
    world.end((8, 4), commit=True)
    assert of_all(world) == {0: 30}


def test_a_transaction_that_writes_after_the_others_commit_is_the_last_one() -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3))
    world.send("g", at(20), producer=(8, 3))
    world.end((8, 4), commit=True)
    world.send("g", at(30), producer=(7, 3))
    assert of_all(world) == {0: None}
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 30}


def test_a_request_that_arrives_twice_is_no_later_write() -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3), sequence=1)
    world.send("g", at(20), producer=(8, 3), sequence=1)
    world.send("g", at(10), producer=(7, 3), sequence=1)
    world.end((8, 4), commit=True)
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 20}


@pytest.mark.parametrize("by", ["a transaction", "a commit"])
def test_a_request_that_arrives_again_brings_no_dropped_offset_back(by: str) -> None:
    world = OffsetsWorld()
    world.send("g", at(10), at(11, partition=1), producer=(7, 3), sequence=1)
    if by == "a commit":
        world.commit("g", at(20))
    else:
        world.send("g", at(20), producer=(8, 3), sequence=1)
        world.end((8, 4), commit=True)
    for _ in range(2):
        world.send("g", at(10), at(11, partition=1), producer=(7, 3), sequence=1)
        assert of_all(world) == {0: 20, 1: None}
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 20, 1: 11}


@pytest.mark.parametrize("late", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("bump", [0, 1], ids=["version 1", "version 2"])
def test_a_late_marker_of_the_former_transaction_brings_no_dropped_offset_back(late: bool, bump: int) -> None:
    world = OffsetsWorld()
    world.end((7, 3 + bump), commit=late, version=1 + bump)
    world.send("g", at(10), producer=(7, 4), sequence=1)
    world.commit("g", at(20))  # nothing is pending now
    world.end((7, 3 + bump), commit=late, version=1 + bump)
    world.send("g", at(10), producer=(7, 4), sequence=1)
    world.end((7, 4 + bump), commit=True, version=1 + bump)
    assert of_all(world) == {0: 20}
    assert not world.logic._dropped


def test_a_dropped_offset_may_be_all_that_a_repeated_request_has() -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3), sequence=1)
    world.commit("g", at(20))
    repeated = world.send("g", at(10), producer=(7, 3), sequence=1)
    assert not repeated.records
    assert [each.error for each in repeated.reply.results] == [None]  # type: ignore[attr-defined]
    assert of_all(world) == {0: 20}


@pytest.mark.parametrize("bump", [0, 1], ids=["version 1", "version 2"])
def test_a_dropped_offset_keeps_no_later_request_and_no_later_transaction_from_writing(bump: int) -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3), sequence=1)
    world.commit("g", at(20))
    world.send("g", at(30), producer=(7, 3), sequence=2)
    world.commit("g", at(40))
    world.end((7, 3 + bump), commit=True, version=1 + bump)
    assert of_all(world) == {0: 40}
    world.send("g", at(50), producer=(7, 3 + bump), sequence=1)
    world.end((7, 3 + 2 * bump), commit=True, version=1 + bump)
    assert of_all(world) == {0: 50}
    assert not world.logic._dropped


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
def test_a_plain_commit_between_them_counts_for_the_older_one(order: tuple[int, ...]) -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3))
    world.commit("g", at(2))
    world.send("g", at(20), producer=(8, 3))
    for producer in order:
        world.end((producer, 4), commit=producer == 7)
    assert of_all(world) == {0: 2}


def test_other_partitions_of_the_older_transaction_and_other_groups_are_left() -> None:
    world = OffsetsWorld()
    for group in "gh":
        world.send(group, at(10), at(11, partition=1), at(12, partition=70), producer=(7, 3))
    world.send("g", at(20), at(22, partition=70), producer=(8, 3))
    world.end((8, 4), commit=True)
    assert of_all(world) == {0: 20, 1: None, 70: 22}
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 20, 1: 11, 70: 22}
    assert {key[1]: one.offset for key, one in world.fetch("h").items()} == {0: 10, 1: 11, 70: 12}


def test_an_end_that_no_batch_holds_is_done_by_the_repeated_marker_wherever_it_was_cut() -> None:
    """The records of the overtaken offsets come in addition to those of which the size was checked."""
    world = OffsetsWorld(OffsetSettings(commit_bytes_max=6_000))
    partitions = {7: range(30), 8: range(30), 9: range(20)}
    for producer in partitions:
        for partition in partitions[producer]:
            world.send("g", OffsetToCommit("t", partition, producer, metadata="m" * 100), producer=(producer, 3))
    before = list(world.log)
    decision = world.end((9, 4), commit=True)
    assert not decision.is_atomic
    whole = stable(world.logic)
    assert whole == {**dict.fromkeys(range(20), 9), **dict.fromkeys(range(20, 30), None)}
    for end in range(len(decision.records) + 1):
        world.log = [*before, *decision.records[:end]]
        world.logic = world.successor()
        world.end((9, 4), commit=True)
        assert of_all(world) == whole
        for producer in (8, 7):
            world.end((producer, 4), commit=True)
        assert of_all(world) == {**whole, **dict.fromkeys(range(20, 30), 8)}


# -- records ----------------------------------------------------------------------------------------------------------

KEY = PendingKey(7, "g", "t", 0)


def test_the_order_is_in_the_record() -> None:
    pending = PendingOffsets(
        3, {T0: PendingOffset(CommittedOffset(5), 1, 4), T1: PendingOffset(CommittedOffset(6))}, "a"
    )
    assert decode_pending(KEY, encode_pending(pending)) == pending


def older(pending: PendingOffsets) -> bytes:
    """A record as an older coordinator writes it."""
    return b"\0\1" + msgspec.msgpack.encode(msgspec.msgpack.decode(encode_pending(pending)[2:])[:-1])


def test_records_of_an_older_coordinator_are_older_than_those_after_an_upgrade() -> None:
    world = OffsetsWorld()
    for producer, offset in ((6, 5), (7, 10)):
        pending = PendingOffsets(3, {T0: PendingOffset(CommittedOffset(offset), 1)}, "a")
        key = encode_pending_key(KEY._replace(producer_id=producer))
        world.log.append(ShardRecord(key, older(pending)))
    world.logic = world.successor()
    world.send("g", at(20), producer=(8, 3))
    world.end((6, 4), commit=True)
    world.end((8, 4), commit=True)
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 20}


def older_writes(world: OffsetsWorld, producer: int, now_ms: int, **offsets: int) -> None:
    """An older coordinator has the shard, adds offsets (``p0=30``) to a producer's transaction, and loses the shard. It
    writes the producer's other offsets of the part again as they are."""
    key = KEY._replace(producer_id=producer)
    part = world.logic.book.pending.part(key)
    known = {} if part is None else dict(part.offsets)
    for name, offset in offsets.items():
        known[TopicPartition("t", int(name[1:]))] = PendingOffset(CommittedOffset(offset, commit_timestamp_ms=now_ms))
    world.log.append(ShardRecord(encode_pending_key(key), older(PendingOffsets(3, known, "a"))))
    world.logic = world.successor()


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
@pytest.mark.parametrize("outcomes", list(itertools.product((True, False), repeat=2)))
@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("writes", ["the first again", "the second again", "another partition of the first"])
def test_an_older_coordinator_that_had_the_shard_in_between_forgets_no_order(
    order: tuple[int, ...], outcomes: tuple[bool, ...], is_compacted: bool, writes: str
) -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3), now_ms=NOW_MS)
    world.send("g", at(20), producer=(8, 3), now_ms=NOW_MS + 10)
    expected = {7: 10, 8: 20}
    match writes:
        case "the first again":
            older_writes(world, 7, NOW_MS + 20, p0=30)
            expected = {8: 20, 7: 30}
        case "the second again":
            older_writes(world, 8, NOW_MS + 20, p0=30)
            expected = {7: 10, 8: 30}
        case _:
            older_writes(world, 7, NOW_MS + 20, p1=5)
    if is_compacted:
        world.logic = compacted(world)
    committed = dict(zip((7, 8), outcomes, strict=True))
    for producer in order:
        world.end((producer, 4), commit=committed[producer])
    last = [offset for producer, offset in expected.items() if committed[producer]]
    assert of_all(world).get(0) == (last[-1] if last else None)
    assert not world.logic.book.pending.group_ids()


def test_orders_that_were_found_out_are_written_with_the_next_offset() -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3), now_ms=NOW_MS)
    world.send("g", at(20), producer=(8, 3), now_ms=NOW_MS + 10)
    older_writes(world, 7, NOW_MS + 20, p0=30)
    world.send("g", at(5, partition=1), producer=(8, 3), now_ms=NOW_MS + 30)  # after the older one's record in the log
    world.send("g", at(6, partition=1), producer=(7, 3), now_ms=NOW_MS + 40)
    (found,) = {
        tuple((producer, one.order) for producer, one in logic.book.pending.of_partition("g", T0))
        for logic in (world.logic, world.successor(), compacted(world))
    }
    assert found == ((7, 3), (8, 2))


def test_without_the_record_before_and_with_another_clock_an_older_coordinators_offset_counts_as_older() -> None:
    """It may be one that it left as it was; then a later offset must not be overwritten."""
    world = OffsetsWorld()
    world.send("g", at(20), producer=(8, 3), now_ms=NOW_MS)
    older_writes(world, 7, NOW_MS - 10, p0=30)
    world.end((8, 4), commit=True)
    world.end((7, 4), commit=True)
    assert of_all(world) == {0: 20}


def test_a_record_with_too_few_orders_is_damage() -> None:
    whole = encode_pending(
        PendingOffsets(3, {T0: PendingOffset(CommittedOffset(5), 1, 4), T1: PendingOffset(CommittedOffset(6))})
    )
    fields = msgspec.msgpack.decode(whole[2:])
    with pytest.raises(CorruptLogError, match="2 pending offsets are listed with 1 orders"):
        decode_pending(KEY, b"\0\1" + msgspec.msgpack.encode([*fields[:-1], [4]]))


def test_a_marker_that_commits_nothing_drops_nothing_of_the_others() -> None:
    world = OffsetsWorld()
    world.send("g", at(10), producer=(7, 3))
    assert not world.logic.end_transaction(EndOffsets(8, 4, True, 2, 5), NOW_MS).records
    assert of_all(world) == {0: None}
