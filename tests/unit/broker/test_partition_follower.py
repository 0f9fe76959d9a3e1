"""The states of a follower, and the search for the offset where logs diverge (partition/follower.py,
partition/matching.py)."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from headrace_broker.partition import FollowerState, PartitionFollower, match
from headrace_broker.partition.follower import (
    LeaderLacks,
    LogsMatch,
    OtherStream,
    Restart,
    Stale,
    Truncate,
    Wait,
)
from headrace_broker.partition.matching import MATCHES, OUT_OF_RANGE, EndOf, Match, cut_for
from headrace_core.errors import FencedLeaderEpochError, StorageError
from headrace_core.log.epochs import EpochStart, LeaderEpochs
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1.replication_pb2 import FollowJoined
from tests.worlds.replication_messages import a_divergence, a_push, an_answer, an_end, an_update

PARTITION = TopicPartition("orders", 3)


def epochs(*starts: tuple[int, int]) -> LeaderEpochs:
    """The pairs (epoch, start offset) of a log."""
    fs = CrashingFileSystem()
    fs.mkdir("/log")
    found = LeaderEpochs(fs, "/log")
    found.replace(EpochStart(*start) for start in starts)
    return found


def end_of(log_end: int, *starts: tuple[int, int]) -> EndOf:
    known = epochs(*starts)
    return lambda epoch: known.end_of(epoch, log_end)


def follower(*, end: int = 100, last_epoch: int = 4, high_watermark: int = 80, start: int = 0) -> PartitionFollower:
    return PartitionFollower(
        PARTITION,
        topic_id=bytes(16),
        leader_id=2,
        leader_epoch=5,
        log_start=start,
        log_end=end,
        durable_end=end,
        last_epoch=last_epoch,
        high_watermark=high_watermark,
    )


def following(**given: int) -> PartitionFollower:
    it = follower(**given)
    it.join(7, 1 << 20)
    assert it.joined(an_answer(7, high_watermark=80), end_of(it.log_end)) == LogsMatch()
    return it


# -- matching ----------------------------------------------------------------------------------------------------------


def matched(follower_end: int, follower_epoch: int, *starts: tuple[int, int], start: int = 0, end: int = 100) -> Match:
    return match(
        log_start=start,
        log_end=end,
        latest_epoch=starts[-1][0] if starts else -1,
        end_of=lambda epoch: epochs(*starts).known_end_of(epoch, end),
        follower_end=follower_end,
        follower_epoch=follower_epoch,
    )


def test_logs_match_when_the_leader_has_the_follower_s_last_epoch_at_least_as_far():
    assert matched(100, 4, (2, 0), (4, 60)) == MATCHES
    assert matched(70, 4, (2, 0), (4, 60)) == MATCHES
    assert matched(60, 2, (2, 0), (4, 60)) == MATCHES


def test_a_follower_with_more_of_an_epoch_than_the_leader_parts_where_it_ended_there():
    """KIP-101."""
    assert matched(75, 2, (2, 0), (4, 60)) == Match(False, a_divergence(2, 60))
    assert matched(120, 4, (2, 0), (4, 60)) == Match(False, a_divergence(4, 100))


def test_a_follower_with_an_epoch_that_the_leader_never_had_parts_at_the_largest_below_it():
    """KIP-279: fast double failover."""
    assert matched(70, 3, (2, 0), (4, 60)) == Match(False, a_divergence(2, 60))
    assert matched(100, 7, (2, 0), (4, 60)) == Match(False, a_divergence(4, 100))


def test_an_empty_follower_goes_on_wherever_the_leader_has_records():
    assert matched(0, -1, (2, 0)) == MATCHES
    assert matched(100, -1, (2, 0)) == MATCHES
    assert matched(101, -1, (2, 0)) == OUT_OF_RANGE


def test_a_follower_that_ends_below_the_leader_s_start_begins_anew():
    assert matched(49, 2, (2, 50), start=50) == OUT_OF_RANGE
    assert matched(40, -1, (2, 50), start=50) == OUT_OF_RANGE


def test_a_follower_that_ends_where_the_leader_deleted_its_records_is_compared_by_the_epoch_before():
    """Without a restart the follower keeps its table of producers. If the follower becomes the leader, it therefore
    knows the duplicates of its producers."""
    assert matched(50, 2, (2, 50), (4, 50), start=50) == MATCHES
    assert matched(70, 2, (2, 50), (4, 50), start=50) == Match(False, a_divergence(2, 50))
    assert matched(70, 3, (2, 50), (4, 50), start=50) == Match(False, a_divergence(2, 50))
    assert matched(50, 1, (2, 50), (4, 50), start=50) == OUT_OF_RANGE


def test_logs_that_have_nothing_in_common_above_the_leader_s_start_do_not_match():
    assert matched(70, 1, (2, 50), start=50) == OUT_OF_RANGE
    assert matched(70, 3, start=50, end=50) == OUT_OF_RANGE


def test_a_log_is_cut_where_the_epoch_ends_in_the_log_that_has_less_of_it():
    assert cut_for(a_divergence(2, 60), end_of(100, (2, 0), (3, 40)), 100) == 40
    assert cut_for(a_divergence(2, 60), end_of(100, (2, 0), (3, 80)), 100) == 60


def test_a_log_without_the_leader_s_epoch_is_cut_where_the_largest_one_below_it_ends():
    """KIP-279: the leader names epoch 3, but the follower knows only epochs 2 and 4."""
    assert cut_for(a_divergence(3, 90), end_of(100, (2, 0), (4, 40)), 100) == 40


def test_an_epoch_that_a_follower_has_noted_and_has_no_record_of_is_not_where_logs_match():
    """The follower received the end of epoch 2 and the start of epoch 4 while its disk was full. The follower's log
    ends at 50, but its epochs already contain 4. The next records from the leader belong to epoch 2, and a log refuses
    epoch 2 after epoch 4."""
    assert matched(50, 4, (2, 0), (4, 60)) == Match(False, a_divergence(2, 60))
    assert matched(60, 4, (2, 0), (4, 60)) == Match(False, a_divergence(2, 60))
    assert matched(61, 4, (2, 0), (4, 60)) == MATCHES
    assert matched(99, 4, (2, 0), (4, 100)) == Match(False, a_divergence(2, 100)), "the leader has none of it either"
    it = follower(end=50, high_watermark=20)
    it.join(7, 1)
    assert it.joined(an_answer(7, diverging=a_divergence(2, 60)), end_of(50, (2, 0), (4, 60))) == Truncate(50, 2)


def test_a_follower_that_ends_where_the_leader_s_records_were_deleted_up_to_goes_on_from_there():
    """Retention makes the leader's first epoch begin at the log start, although the epoch began earlier."""
    assert matched(50, 4, (4, 50), start=50) == MATCHES


def test_a_follower_of_an_older_epoch_that_ends_at_the_leader_s_log_start_begins_anew():
    """Epoch 4 may have ended below 50 in the leader's log, which is now deleted up to 50. If epoch 4 ended below 50,
    the follower's tail was never committed. (Found by the simulator: brokers, seeds 7349 and 8309.)"""
    assert matched(50, 4, (7, 50), start=50) == OUT_OF_RANGE
    assert matched(50, 7, (7, 50), start=50) == MATCHES
    assert matched(50, 4, (4, 40), (7, 50), start=50) == MATCHES, "the leader knows where epoch 4 ended"


def test_a_follower_of_an_older_epoch_begins_anew_though_the_leader_s_start_is_not_reported_yet():
    """Retention has cut the leader's epochs, and reports its new log start a moment later. (Simulator, brokers, seed
    20261122150.)"""
    assert matched(36, 0, (2, 52), start=25) == OUT_OF_RANGE


def test_any_number_of_elections_in_between_ends_in_logs_that_match():
    """The follower led in epochs 3 and 5, and the leader in 2, 4 and 6. Each round trip removes one epoch."""
    ours = [(1, 0), (3, 10), (5, 20)]
    end, trips = 30, 0
    leader = [(1, 0), (2, 5), (4, 12), (6, 40)]
    while True:
        found = matched(end, ours[-1][0], *leader, end=50)
        if found.matches:
            break
        assert found.diverging is not None
        cut = cut_for(found.diverging, end_of(end, *ours), end)
        assert cut < end
        end, trips = cut, trips + 1
        ours = [each for each in ours if each[1] < end]
    assert (end, ours) == (5, [(1, 0)])
    assert trips <= 3


# -- joining -----------------------------------------------------------------------------------------------------------


def test_a_join_tells_what_is_in_the_log():
    join = follower().join(7, 1 << 20)
    assert (join.handle, join.log_end, join.last_epoch, join.durable_end, join.leader_epoch) == (7, 100, 4, 100, 5)


def test_the_log_is_cut_by_epoch_though_the_high_watermark_is_lower_and_the_follower_joins_again():
    it = follower(high_watermark=20)
    it.join(7, 1)
    assert it.joined(an_answer(7, diverging=a_divergence(4, 90)), end_of(100, (2, 0), (4, 60))) == Truncate(90, 4)
    assert it.state is FollowerState.TRUNCATING
    assert not it.can_join
    it.truncated(90, 4)
    assert it.high_watermark == 20
    assert it.join(8, 1).log_end == 90


def test_a_cut_below_the_high_watermark_takes_it_along():
    it = follower(high_watermark=80)
    it.join(7, 1)
    it.joined(an_answer(7, diverging=a_divergence(2, 60)), end_of(100, (2, 0), (4, 60)))
    it.truncated(60, 2)
    assert (it.high_watermark, it.durable_end, it.last_epoch) == (60, 60, 2)


def test_a_former_leader_whose_epoch_has_no_record_lets_go_of_the_epoch_alone():
    it = follower(last_epoch=4)
    it.join(7, 1)
    assert it.joined(an_answer(7, diverging=a_divergence(2, 100)), end_of(100, (2, 0), (4, 100))) == Truncate(100, 2)
    it.truncated(100, 2)
    assert (it.log_end, it.high_watermark, it.join(8, 1).last_epoch) == (100, 80, 2)


def test_so_does_one_whose_records_are_all_deleted():
    it = follower(last_epoch=4, start=100, high_watermark=100)
    it.join(7, 1)
    assert it.joined(an_answer(7, diverging=a_divergence(2, 100)), end_of(100, (2, 100), (4, 100))) == Truncate(100, 2)
    it.truncated(100, 2)
    assert (it.log_start, it.log_end, it.join(8, 1).last_epoch) == (100, 100, 2)


def test_a_divergence_that_cuts_nothing_is_no_reason_to_cut():
    it = follower()
    it.join(7, 1)
    assert isinstance(it.joined(an_answer(7, diverging=a_divergence(4, 100)), end_of(100, (4, 0))), Wait)
    assert it.state is FollowerState.OUT


def test_a_follower_out_of_range_begins_anew_at_the_leader_s_start():
    it = follower(end=30, high_watermark=30)
    it.join(7, 1)
    answer = an_answer(7, out_of_range=True, log_start=50, producers=b"producers")
    assert it.joined(answer, end_of(30, (4, 0))) == Restart(50, b"producers")
    it.truncated(50, -1, log_start=50)
    assert (it.log_start, it.log_end, it.high_watermark) == (50, 50, 50)
    assert it.join(8, 1).last_epoch == -1


def test_a_refused_join_waits_and_is_retried_on_request():
    it = follower()
    it.join(7, 1)
    error = FencedLeaderEpochError("epoch 5 is over")
    outcome = it.joined(an_answer(7, error=error), end_of(100))
    assert isinstance(outcome, Wait)
    assert (type(outcome.error), outcome.error.message) == (FencedLeaderEpochError, "epoch 5 is over")
    assert it.error is outcome.error
    assert not it.can_join
    it.retry()
    assert it.can_join


def test_a_follower_that_is_far_behind_is_sent_to_the_other_stream():
    it = follower()
    it.join(7, 1)
    assert it.joined(an_answer(7, other_lane=True), end_of(100)) == OtherStream()
    it.retry()
    it.join(8, 1)
    it.joined(an_answer(8), end_of(100))
    assert it.ended(an_end(8, other_lane=True)) == OtherStream()


def test_answers_and_pushes_for_a_former_handle_count_for_nothing():
    it = follower()
    it.join(7, 1)
    it.disconnected()
    assert it.joined(an_answer(7), end_of(100)) == Stale()
    it.join(8, 1)
    assert it.joined(an_answer(7, diverging=a_divergence(2, 0)), end_of(100)) == Stale()
    assert it.joined(an_answer(8), end_of(100)) == LogsMatch()
    assert not it.pushed(a_push(7, b"", 100, 0), 110, 5)
    assert it.ended(an_end(7)) == Stale()
    it.updated(an_update(7, 100, 0))
    assert it.high_watermark == 80


def test_nobody_joins_while_records_are_on_their_way_to_the_log():
    """The join must report the actual content of the log."""
    it = following()
    it.pushed(a_push(7, b"x", 80, 0), 110, 5)
    it.disconnected()
    assert not it.can_join
    it.advanced(110, 100, 5)
    assert it.can_join
    assert it.join(8, 1).log_end == 110


# -- following ---------------------------------------------------------------------------------------------------------


def test_pushes_go_on_where_the_last_one_ended_not_where_the_log_does():
    it = following()
    assert it.pushed(a_push(7, b"a", 80, 0), 110, 5)
    assert it.pushed(a_push(7, b"b", 80, 0), 120, 5)
    assert (it.taken_end, it.taken_epoch, it.log_end) == (120, 5, 100)
    it.advanced(110, 110, 5)
    it.advanced(120, 110, 5)
    assert (it.log_end, it.durable_end, it.last_epoch) == (120, 110, 5)


def test_the_high_watermark_is_the_leader_s_as_far_as_the_log_goes():
    it = following()
    it.pushed(a_push(7, b"a", 115, 0), 120, 5)
    assert it.high_watermark == 100
    it.advanced(120, 100, 5)
    assert it.high_watermark == 115
    it.updated(an_update(7, 90, 0))
    assert it.high_watermark == 115
    it.updated(an_update(7, 120, 0))
    assert it.high_watermark == 120


def test_a_new_leader_that_knows_less_does_not_take_the_high_watermark_back():
    it = follower(high_watermark=80)
    it.join(7, 1)
    it.joined(an_answer(7, high_watermark=50), end_of(100))
    assert it.high_watermark == 80


def test_the_leader_s_log_start_is_followed_no_further_than_the_high_watermark():
    it = following()
    it.updated(an_update(7, 85, 90))
    assert it.wanted_log_start == 85
    it.log_start_moved(85)
    it.updated(an_update(7, 95, 90))
    assert it.wanted_log_start == 90


def test_what_is_durable_is_acknowledged_and_said_once():
    it = following()
    assert it.next_ack() is not None
    assert it.next_ack() is None
    it.pushed(a_push(7, b"a", 80, 0), 120, 5)
    assert it.next_ack() is None
    it.advanced(120, 100, 5)
    ack = it.next_ack()
    assert ack is not None
    assert (ack.log_end, ack.durable_end) == (120, 100)
    it.advanced(120, 120, 5)
    ack = it.next_ack()
    assert ack is not None
    assert ack.durable_end == 120
    it.disconnected()
    assert it.next_ack() is None


def test_an_append_that_failed_lets_the_follower_join_from_what_it_has():
    it = following()
    it.pushed(a_push(7, b"a", 80, 0), 120, 5)
    it.append_failed(StorageError("no space left"))
    assert it.state is FollowerState.OUT
    it.retry()
    assert it.join(8, 1).log_end == 100


def test_impossible_reports_are_refused():
    with pytest.raises(AssertionError):
        following().advanced(110, 100, 5)
    with pytest.raises(AssertionError):
        following().advanced(100, 101, 5)
    with pytest.raises(AssertionError):
        following().join(8, 1)


# -- a leader with an older copy of its directory ---------------------------------------------------------------------


def cautious(
    *,
    end: int = 100,
    last_epoch: int = 4,
    high_watermark: int = 80,
    start: int = 0,
    clean_since: int | None = 0,
    compacts: bool = False,
) -> PartitionFollower:
    """A follower that knows when the last unclean election was, and has joined."""
    it = PartitionFollower(
        PARTITION,
        topic_id=bytes(16),
        leader_id=2,
        leader_epoch=5,
        log_start=start,
        log_end=end,
        durable_end=end,
        last_epoch=last_epoch,
        high_watermark=high_watermark,
        clean_since=clean_since,
        compacts=compacts,
    )
    it.join(7, 1 << 20)
    return it


def diverging(epoch: int, end_offset: int, *, log_end: int = 0) -> FollowJoined:
    return an_answer(7, diverging=a_divergence(epoch, end_offset), log_end=log_end or end_offset)


EPOCHS = end_of(100, (2, 0), (4, 60))


def test_a_follower_keeps_what_was_committed_if_its_leader_lacks_it() -> None:
    for answer in (diverging(4, 79), diverging(2, 50), diverging(2, 60, log_end=200)):
        it = cautious()
        outcome = it.joined(answer, EPOCHS)
        assert isinstance(outcome, LeaderLacks), answer
        assert "no unclean election" in outcome.error.message
        assert it.state is FollowerState.OUT
        assert it.leader_lacks is outcome.error
        assert it.log_end == 100, "nothing is cut"
        it.retry()
        it.join(8, 1 << 20)
        assert it.joined(an_answer(8, high_watermark=90), EPOCHS) == LogsMatch()
        assert it.leader_lacks is None


def test_records_above_the_high_watermark_are_cut_as_ever() -> None:
    assert cautious().joined(diverging(4, 80), EPOCHS) == Truncate(80, 4)
    assert cautious(high_watermark=60).joined(diverging(2, 60), EPOCHS) == Truncate(60, 2)


@pytest.mark.parametrize(
    ("clean_since", "refuses"),
    [(0, True), (3, True), (4, True), (5, False), (None, False)],
    ids=["never", "before 4", "with 4", "after 4", "unknown"],
)
def test_an_unclean_election_since_allows_the_cut(clean_since: int | None, refuses: bool) -> None:
    outcome = cautious(clean_since=clean_since).joined(diverging(4, 70), EPOCHS)
    assert isinstance(outcome, LeaderLacks) if refuses else outcome == Truncate(70, 4)


def test_only_the_last_committed_record_counts() -> None:
    """The follower led epoch 4 and committed nothing in it: what it committed is older than the unclean election."""
    assert cautious(high_watermark=60, clean_since=4).joined(diverging(2, 50), EPOCHS) == Truncate(50, 2)


def test_a_follower_does_not_empty_its_log_for_a_leader_whose_log_ends_below() -> None:
    lost = an_answer(7, out_of_range=True, log_start=0, log_end=0)
    assert isinstance(cautious().joined(lost, EPOCHS), LeaderLacks)
    assert isinstance(cautious(compacts=True).joined(lost, EPOCHS), LeaderLacks)
    deleted = an_answer(7, out_of_range=True, log_start=120, log_end=150)
    assert cautious().joined(deleted, EPOCHS) == Restart(120)
    uncommitted = an_answer(7, out_of_range=True, log_start=80, log_end=150)
    assert cautious().joined(uncommitted, EPOCHS) == Restart(80)
    assert isinstance(cautious(high_watermark=81).joined(uncommitted, EPOCHS), LeaderLacks)


@pytest.mark.parametrize(
    ("clean_since", "refuses"), [(0, True), (4, True), (5, False), (None, False)], ids=["never", "before", "after", "?"]
)
def test_deleted_records_were_committed_too(clean_since: int | None, refuses: bool) -> None:
    """Found by the simulator, seed 600413: the leader's log ended below this log's start."""
    it = cautious(start=80, clean_since=clean_since)
    outcome = it.joined(an_answer(7, out_of_range=True, log_start=0, log_end=50), end_of(100, (4, 80)))
    assert isinstance(outcome, LeaderLacks) if refuses else outcome == Restart(0)


@pytest.mark.parametrize("clean_since", [0, 1, None])
def test_an_empty_log_tells_of_deleted_records_if_no_election_was_unclean(clean_since: int | None) -> None:
    it = cautious(start=100, end=100, last_epoch=-1, high_watermark=100, clean_since=clean_since)
    outcome = it.joined(an_answer(7, out_of_range=True, log_start=0, log_end=50), end_of(100))
    assert isinstance(outcome, LeaderLacks) if clean_since == 0 else outcome == Restart(0)


def test_a_compacted_leader_may_not_know_an_epoch_whose_records_are_gone() -> None:
    """It copied the log after the compaction: 2 at 0, 5 at 110. All records of epoch 4, 60 to 99, were compacted
    away, so the follower cuts them, and copies what is left."""
    assert cautious(compacts=True).joined(diverging(2, 110, log_end=130), EPOCHS) == Truncate(60, 2)
    assert isinstance(cautious().joined(diverging(2, 110, log_end=130), EPOCHS), LeaderLacks)
    assert isinstance(cautious(compacts=True).joined(diverging(2, 70, log_end=130), EPOCHS), LeaderLacks)


class Log(NamedTuple):
    """The epoch of each record, by offset; a compacted record has None."""

    records: list[int | None]

    @property
    def starts(self) -> tuple[tuple[int, int], ...]:
        found: dict[int, int] = {}
        for offset, epoch in enumerate(self.records):
            if epoch is not None:
                found.setdefault(epoch, offset)
        return tuple(found.items())

    @property
    def last_epoch(self) -> int:
        return self.starts[-1][0] if self.starts else -1


def rounds(leader: Log, mine: Log, high_watermark: int, *, compacts: bool) -> Log | None:
    """Join until the logs match; None if the follower refuses."""
    while True:
        end = len(mine.records)
        it = cautious(end=end, last_epoch=mine.last_epoch, high_watermark=min(high_watermark, end), compacts=compacts)
        found = matched(end, mine.last_epoch, *leader.starts, end=len(leader.records))
        answer = an_answer(
            7,
            diverging=found.diverging,
            out_of_range=not (found.matches or found.diverging),
            log_end=len(leader.records),
        )
        outcome = it.joined(answer, end_of(end, *mine.starts))
        if isinstance(outcome, LogsMatch):
            return mine
        if isinstance(outcome, LeaderLacks):
            return None
        if isinstance(outcome, Restart):
            mine = Log([])
        else:
            assert isinstance(outcome, Truncate)
            if outcome.offset >= end:
                kept = [each if each is None or each <= outcome.last_epoch else None for each in mine.records]
                mine = Log(kept)
            else:
                mine = Log(mine.records[: outcome.offset])


@pytest.mark.parametrize("compacts", [False, True])
def test_a_complete_leader_is_never_accused_and_an_older_copy_cuts_nothing(compacts: bool) -> None:
    rng = random.Random(5)
    refused = 0
    for _ in range(300):
        committed: list[int | None] = []
        epoch = rng.randrange(3)
        while len(committed) < 12:
            committed += [epoch] * rng.randrange(1, 5)
            epoch += rng.randrange(1, 3)
        high_watermark = rng.randrange(len(committed) + 1)
        tail = [rng.randrange(epoch, epoch + 3)] * rng.randrange(3)  # what it led, and nobody committed
        mine = Log([*committed[: rng.randrange(high_watermark, len(committed) + 1)], *tail])
        now = [*committed, *[epoch + 4] * rng.randrange(3)]
        if compacts:
            now = [None if rng.random() < 0.4 and at < len(committed) - 1 else each for at, each in enumerate(now)]
        assert rounds(Log(now), mine, high_watermark, compacts=compacts) is not None, (now, mine, high_watermark)
        # Beyond a compaction, an older copy is recognized only until it has appended.
        appended = [] if compacts else [epoch + 4] * rng.randrange(4)
        copy = Log([*committed[: rng.randrange(len(committed))], *appended])
        after = rounds(copy, mine, high_watermark, compacts=compacts)
        if after is None:
            refused += 1
        else:
            assert after.records[:high_watermark] == committed[:high_watermark], (copy, mine, high_watermark)
    assert refused > 50
