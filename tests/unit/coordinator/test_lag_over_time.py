"""Lag in seconds, from occasional high watermarks."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.offsets.messages import DescribeLag, GroupLag, OffsetToCommit, PartitionEnd, WatermarksSeen
from headrace_coordinator.offsets.watermarks import SAMPLES_MAX, Waiting, WatermarkHistory
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import NOW_MS, OffsetsWorld


def _history(*samples: tuple[int, int]) -> WatermarkHistory:
    history = WatermarkHistory()
    for time_ms, offset in samples:
        history.sample(time_ms, offset)
    return history


def test_a_record_came_in_proportion_between_two_samples() -> None:
    history = _history((0, 400), (1_000, 500), (2_000, 900))
    assert history.waiting(700, 2_000) == Waiting(500, False)
    assert history.waiting(450, 2_500) == Waiting(2_000, False)


def test_who_has_read_everything_does_not_wait() -> None:
    history = _history((0, 400), (1_000, 500))
    assert history.waiting(500, 9_000) == Waiting(0, False)
    assert history.waiting(600, 9_000) == Waiting(0, False), "a commit may be newer than the last sample"
    assert WatermarkHistory().waiting(0, 9_000) == Waiting(0, False)


def test_what_was_there_before_anybody_watched_has_waited_at_least_since_then() -> None:
    assert _history((1_000, 400), (2_000, 500)).waiting(399, 5_000) == Waiting(4_000, True)


def test_a_log_at_rest_keeps_the_two_ends_of_its_rest() -> None:
    history = _history(*[(1_000 * number, 500) for number in range(100)], (100_000, 600))
    assert len(history) == 3
    assert history.waiting(500, 100_000).waited_ms == 1_000, "it came within the last second, not over the whole rest"


def test_a_full_memory_forgets_every_other_old_sample_and_no_new_one() -> None:
    rate = 7
    history = _history(*[(1_000 * number, rate * number) for number in range(10 * SAMPLES_MAX)])
    assert len(history) <= SAMPLES_MAX
    now_ms = 1_000 * (10 * SAMPLES_MAX - 1)
    for age_s in (1, 10, 60, 600, 10 * SAMPLES_MAX - 2):  # a steady log: the thinned memory is still exact
        assert abs(history.waiting(rate * (now_ms // 1_000 - age_s), now_ms).waited_ms - 1_000 * age_s) <= 1
    assert not history.waiting(0, now_ms).at_least, "it reaches back to the first sample"


def test_a_high_watermark_that_went_back_is_believed() -> None:
    history = _history((0, 100), (1_000, 200), (2_000, 150), (3_000, 300))
    assert history.high_watermark == 300
    assert history.waiting(150, 3_000) == Waiting(1_000, False)
    assert history.waiting(125, 3_000) == Waiting(2_000, False), "from 100 to 150 in the first two seconds"


def test_a_clock_that_was_set_back_takes_the_history_along() -> None:
    history = _history((100_000, 0), (101_000, 100), (102_000, 200), (50_000, 300))
    assert history.waiting(100, 50_000).waited_ms == 1_000
    assert history.waiting(200, 53_000).waited_ms == 3_000


@given(st.data())
def test_the_answer_is_never_off_by_more_than_the_samples_around_it_are_apart(data: st.DataObject) -> None:
    """Compare with a log in which the arrival time of every record is known."""
    arrivals: list[int] = []
    history, now_ms, sampled_ms = WatermarkHistory(), 0, []
    for _ in range(data.draw(st.integers(2, 20))):
        step_ms = data.draw(st.integers(1, 5_000))
        arrivals += sorted(data.draw(st.lists(st.integers(now_ms, now_ms + step_ms - 1), max_size=5)))
        now_ms += step_ms
        history.sample(now_ms, len(arrivals))
        sampled_ms.append(now_ms)
    offset = data.draw(st.integers(0, len(arrivals)))
    waiting = history.waiting(offset, now_ms)
    if offset == len(arrivals):
        assert waiting == (0, False)
        return
    waited_ms = now_ms - arrivals[offset]
    if waiting.at_least:
        assert waiting.waited_ms <= waited_ms
        return
    after = next(number for number, time_ms in enumerate(sampled_ms) if time_ms > arrivals[offset])
    assert now_ms - sampled_ms[after] <= waiting.waited_ms <= now_ms - sampled_ms[after - 1]


@given(st.integers(0, 2**32))
def test_whatever_is_sampled_the_memory_is_bounded_and_in_order(seed: int) -> None:
    rng = random.Random(seed)
    history, now_ms, end = WatermarkHistory(), 0, 0
    for _ in range(300):
        now_ms += rng.choice((0, 1, 1_000, 60_000, -5_000))
        end = max(0, end + rng.choice((0, 0, 1, 500, -50)))
        history.sample(now_ms, end)
        assert len(history) <= SAMPLES_MAX
        assert history.high_watermark == end
    waits = [history.waiting(offset, now_ms).waited_ms for offset in range(0, end + 10, max(1, end // 50))]
    assert waits == sorted(waits, reverse=True), "what came earlier has waited longer"
    assert history.waiting(end, now_ms) == Waiting(0, False)


# -- a group's lag ----------------------------------------------------------------------------------------------------


def _see(world: OffsetsWorld, now_ms: int, *ends: PartitionEnd) -> None:
    world.logic.watermarks_seen(WatermarksSeen(ends), now_ms)


def _lag(world: OffsetsWorld, group_id: str, now_ms: int) -> GroupLag:
    reply = world.logic.describe_lag(DescribeLag(group_id), now_ms).reply
    assert isinstance(reply, GroupLag)
    return reply


def test_a_groups_lag_is_reported_by_partition_and_summed() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 1, 70), OffsetToCommit("t", 0, 100), OffsetToCommit("s", 0, 5))
    _see(world, NOW_MS, PartitionEnd("t", 0, 100), PartitionEnd("t", 1, 50), PartitionEnd("unread", 0, 9))
    _see(world, NOW_MS + 1_000, PartitionEnd("t", 0, 100), PartitionEnd("t", 1, 90))
    lag = _lag(world, "g", NOW_MS + 2_000)
    assert [(one.topic, one.partition, one.lag, one.lag_ms) for one in lag.partitions] == [
        ("s", 0, None, None),
        ("t", 0, 0, 0),
        ("t", 1, 20, 1_500),
    ]
    assert lag.total_lag == 20
    assert set(world.logic.lags.watched()) == {("s", 0), ("t", 0), ("t", 1)}


def test_a_commit_beyond_the_last_sample_is_no_negative_lag() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 70))
    _see(world, NOW_MS, PartitionEnd("t", 0, 50))
    assert _lag(world, "g", NOW_MS).partitions[0].lag == 0


def test_records_that_were_deleted_unread_are_counted_and_wait_no_more() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 10))
    _see(world, NOW_MS, PartitionEnd("t", 0, 100))
    _see(world, NOW_MS + 1_000, PartitionEnd("t", 0, 200, log_start=150))
    (lag,) = _lag(world, "g", NOW_MS + 1_000).partitions
    assert (lag.lag, lag.records_lost, lag.lag_ms, lag.lag_ms_is_at_least) == (190, 140, 500, False)


def test_a_new_owner_of_the_shard_knows_the_lag_in_records_at_once_and_in_time_as_far_as_it_has_watched() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 10))
    _see(world, NOW_MS, PartitionEnd("t", 0, 10))
    _see(world, NOW_MS + 60_000, PartitionEnd("t", 0, 500))
    world.logic = world.successor()
    _see(world, NOW_MS + 61_000, PartitionEnd("t", 0, 510))
    (lag,) = _lag(world, "g", NOW_MS + 65_000).partitions
    assert (lag.lag, lag.lag_ms, lag.lag_ms_is_at_least) == (500, 4_000, True)


def test_a_partition_is_watched_for_as_long_as_some_group_has_an_offset_of_it() -> None:
    world = OffsetsWorld()
    for group_id in ("g", "h"):
        world.commit(group_id, OffsetToCommit("t", 0, 1))
        world.commit(group_id, OffsetToCommit("t", 0, 2))
    partition = TopicPartition("t", 0)
    world.logic.remove([("g", partition), ("g", partition)])
    assert world.logic.lags.watched() == (partition,)
    world.logic.remove([("h", partition)])
    assert world.logic.lags.watched() == ()
    _see(world, NOW_MS, PartitionEnd("t", 0, 50))
    world.commit("g", OffsetToCommit("t", 0, 1))
    assert _lag(world, "g", NOW_MS).partitions[0].high_watermark is None, "nothing of the time before is believed"
