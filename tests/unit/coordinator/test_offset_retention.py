"""Offsets that no member reads from expire after offsets.retention.minutes, and never earlier (KIP-211, KAFKA-8338)."""

from __future__ import annotations

from headrace_coordinator.offsets.codec import CommittedOffset, encode_key, encode_value
from headrace_coordinator.offsets.messages import OffsetToCommit
from headrace_coordinator.offsets.retention import REMOVALS_PER_TICK
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import DAY_MS, HOUR_MS, NOW_MS, Group, OffsetsWorld

CHECK_MS = 600_000


def _wait(world: OffsetsWorld, until_ms: int, *, since_ms: int = NOW_MS) -> list[str]:
    """Run a tick at each check, as the runtime does. Return the groups that were deleted."""
    gone: list[str] = []
    for now_ms in range(since_ms + CHECK_MS, until_ms + 1, CHECK_MS):
        gone += world.expire(now_ms)
        while world.logic.next_due_ms() == now_ms:
            gone += world.expire(now_ms)
    return gone


def test_offsets_of_a_plain_consumer_go_seven_days_after_the_commit() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1))
    world.commit("g", OffsetToCommit("t", 1, 1), now_ms=NOW_MS + DAY_MS)
    _wait(world, NOW_MS + 7 * DAY_MS - 1)
    assert len(world.fetch("g")) == 2
    _wait(world, NOW_MS + 7 * DAY_MS, since_ms=NOW_MS + 7 * DAY_MS - CHECK_MS)
    assert list(world.fetch("g")) == [("t", 1)]
    assert list(world.successor().book) == list(world.logic.book)


def test_the_days_are_counted_from_when_the_last_member_left() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 1}, {"t"})
    world.commit("g", OffsetToCommit("t", 0, 1), member_id="m", member_epoch=1)
    left_ms = NOW_MS + 30 * DAY_MS
    assert _wait(world, left_ms) == []
    world.groups.groups["g"] = Group(empty_since_ms=left_ms)
    assert _wait(world, left_ms + 7 * DAY_MS - 1, since_ms=left_ms) == []
    assert len(world.fetch("g")) == 1
    assert _wait(world, left_ms + 7 * DAY_MS, since_ms=left_ms + 7 * DAY_MS - CHECK_MS) == ["g"]
    assert world.fetch("g") == {}


def test_an_active_group_never_loses_an_offset_that_it_reads_from_whatever_the_clock_does() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 1}, {"t"})
    world.commit("g", OffsetToCommit("t", 0, 1), member_id="m", member_epoch=1)
    now_ms = NOW_MS
    for leap_ms in (10 * DAY_MS, CHECK_MS, CHECK_MS, -20 * DAY_MS, CHECK_MS, CHECK_MS, 400 * DAY_MS, CHECK_MS):
        now_ms += leap_ms
        assert world.expire(now_ms) == ()
    assert len(world.fetch("g")) == 1


def test_an_active_group_loses_the_offsets_of_topics_that_it_left() -> None:
    """They stayed for ever, and so did their growing lag."""
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 1}, {"t", "left"})
    world.commit("g", OffsetToCommit("t", 0, 1), OffsetToCommit("left", 0, 1), member_id="m", member_epoch=1)
    left_ms = NOW_MS + 6 * DAY_MS
    assert _wait(world, left_ms) == []
    world.groups.groups["g"].topics = {"t"}
    _wait(world, NOW_MS + 7 * DAY_MS - 1, since_ms=left_ms)
    assert set(world.fetch("g")) == {("t", 0), ("left", 0)}, "the days are counted from the commit"
    assert _wait(world, NOW_MS + 7 * DAY_MS, since_ms=NOW_MS + 7 * DAY_MS - CHECK_MS) == []
    assert list(world.fetch("g")) == [("t", 0)]
    assert list(world.successor().book) == list(world.logic.book)
    world.groups.groups["g"].topics = set()
    assert _wait(world, NOW_MS + 8 * DAY_MS, since_ms=NOW_MS + 7 * DAY_MS) == [], "a group with members stays"
    assert world.fetch("g") == {}


def test_nothing_expires_while_members_join_by_the_classic_protocol() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 1}, is_joining=True)
    world.commit("g", OffsetToCommit("t", 0, 1), member_id="m", member_epoch=1)
    _wait(world, NOW_MS + 8 * DAY_MS)
    assert len(world.fetch("g")) == 1
    world.groups.groups["g"].is_joining = False
    _wait(world, NOW_MS + 9 * DAY_MS, since_ms=NOW_MS + 8 * DAY_MS)
    assert world.fetch("g") == {}


def test_a_clock_that_leaps_takes_no_offset_from_a_group_that_left_the_topic_for_a_moment() -> None:
    """A group whose members restart one after the other with another subscription has old offsets for a moment."""
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m": 1}, {"t", "u"})
    world.commit("g", OffsetToCommit("t", 0, 1), OffsetToCommit("u", 0, 1), member_id="m", member_epoch=1)
    world.groups.groups["g"].topics = {"t"}
    world.expire(NOW_MS + 30 * DAY_MS)  # a check that is much too late
    world.expire(NOW_MS + 30 * DAY_MS + CHECK_MS - 1)
    world.expire(NOW_MS + 2 * CHECK_MS)  # set right again
    _wait(world, NOW_MS + DAY_MS, since_ms=NOW_MS + 2 * CHECK_MS)
    assert list(world.fetch("g")) == [("t", 0), ("u", 0)]
    world.groups.groups["g"].topics = {"t", "u"}
    _wait(world, NOW_MS + 30 * DAY_MS, since_ms=NOW_MS + DAY_MS)
    assert list(world.fetch("g")) == [("t", 0), ("u", 0)]


def test_a_clock_that_is_ahead_for_less_than_a_check_costs_an_empty_group_nothing() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1))
    leap_ms = NOW_MS + 30 * DAY_MS
    world.expire(leap_ms)
    world.expire(leap_ms + CHECK_MS - 1)
    assert len(world.fetch("g")) == 1, "a check that is much too late removes nothing"
    world.expire(NOW_MS + 2 * CHECK_MS)  # set right again
    _wait(world, NOW_MS + DAY_MS, since_ms=NOW_MS + 2 * CHECK_MS)
    assert len(world.fetch("g")) == 1
    # If the wall clock runs on from the value to which it leapt, the coordinator accepts that value as the time.
    world.expire(leap_ms)
    world.expire(leap_ms + CHECK_MS)
    assert world.fetch("g") == {}


def test_checks_go_on_after_the_clock_was_set_back() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1), now_ms=NOW_MS - 8 * DAY_MS)
    world.expire(NOW_MS - HOUR_MS)
    assert world.logic.next_due_ms() == NOW_MS - HOUR_MS + CHECK_MS
    world.expire(NOW_MS - HOUR_MS + CHECK_MS)
    assert world.fetch("g") == {}


def test_an_expiry_that_an_old_client_asked_for_is_kept() -> None:
    world = OffsetsWorld()
    for partition, expires_ms in ((0, NOW_MS + HOUR_MS), (1, NOW_MS + 30 * DAY_MS)):
        head = encode_value(CommittedOffset(1, metadata="m", commit_timestamp_ms=NOW_MS))
        version_1 = b"\x00\x01" + head[2:10] + head[14:] + expires_ms.to_bytes(8, "big")
        world.logic.replay(encode_key("g", TopicPartition("t", partition)), version_1)
    _wait(world, NOW_MS + HOUR_MS)
    assert list(world.fetch("g")) == [("t", 1)]
    _wait(world, NOW_MS + 29 * DAY_MS, since_ms=NOW_MS + HOUR_MS)
    assert list(world.fetch("g")) == [("t", 1)]


def test_what_a_transaction_may_still_change_does_not_expire() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group()
    world.commit("g", OffsetToCommit("t", 0, 1), now_ms=NOW_MS - 8 * DAY_MS)
    world.send("g", OffsetToCommit("t", 0, 2), now_ms=NOW_MS - 8 * DAY_MS)
    assert _wait(world, NOW_MS + CHECK_MS) == []
    world.end(commit=False)
    assert _wait(world, NOW_MS + 2 * CHECK_MS, since_ms=NOW_MS + CHECK_MS) == ["g"]


def test_an_empty_group_that_never_committed_goes_at_the_next_check() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group(empty_since_ms=NOW_MS)
    world.groups.groups["busy"] = Group({"m": 1})
    assert _wait(world, NOW_MS + CHECK_MS) == ["g"]


def test_a_large_sweep_is_done_in_pieces_and_loses_its_place_never() -> None:
    world = OffsetsWorld()
    world.groups.groups["big"] = Group()
    old_ms = NOW_MS - 8 * DAY_MS
    for number in range(2 * REMOVALS_PER_TICK + 5):
        world.commit("big", OffsetToCommit("t", number, 1), now_ms=old_ms)
    for number in range(50):
        world.commit(f"small{number}", OffsetToCommit("t", 0, 1), now_ms=old_ms)
    now_ms, sizes, gone = NOW_MS + CHECK_MS, [], []
    while world.logic.next_due_ms() <= now_ms:  # type: ignore[operator]
        before = len(world.log)
        gone += world.expire(now_ms)
        sizes.append(len(world.log) - before)
        assert len(sizes) < 20, "the sweep does not end"
    assert sizes[:3] == [REMOVALS_PER_TICK, REMOVALS_PER_TICK, 55]
    assert sum(sizes) == 2 * REMOVALS_PER_TICK + 55
    assert gone == ["big"]
    assert list(world.logic.book) == []
    assert list(world.successor().book) == []


def test_a_member_that_joins_in_the_middle_of_a_sweep_keeps_what_is_left() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group()
    for number in range(REMOVALS_PER_TICK + 10):
        world.commit("g", OffsetToCommit("t", number, 1), now_ms=NOW_MS - 8 * DAY_MS)
    world.expire(NOW_MS + CHECK_MS)
    world.groups.groups["g"] = Group({"m": 1}, {"t"})
    assert world.expire(NOW_MS + CHECK_MS) == ()
    assert len(world.fetch("g")) == 10
