"""The leader's offsets, checks and waiters (headrace_broker.partition.leader)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from headrace_broker.partition import PartitionLeader
from headrace_broker.partition.leader import Waiting
from headrace_broker.partition.versions import check_epoch, check_topic_id
from headrace_core.errors import (
    FencedLeaderEpochError,
    HeadraceError,
    InconsistentTopicIdError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
)
from headrace_core.types import FlushPolicy, TopicPartition

PARTITION = TopicPartition("orders", 3)
TOPIC_ID = bytes(range(16))


def leader(policy: FlushPolicy = FlushPolicy.COMMIT, *, start: int = 0, end: int = 0) -> PartitionLeader:
    return PartitionLeader(
        PARTITION,
        topic_id=TOPIC_ID,
        leader_id=1,
        leader_epoch=5,
        log_start=start,
        log_end=end,
        flushed_end=end,
        flush_policy=policy,
    )


class Watcher:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def partition_advanced(self, partition: TopicPartition, readable_bytes: int) -> None:
        self.calls.append((partition, readable_bytes))

    def partition_changed(self, partition: TopicPartition) -> None:
        self.calls.append(partition)


def test_high_watermark_stops_at_the_flushed_end_under_commit():
    it = leader(FlushPolicy.COMMIT)
    it.advanced(10, 0, 1000)
    assert (it.log_end, it.high_watermark) == (10, 0)
    it.advanced(it.log_end, 10)
    assert it.high_watermark == 10


@pytest.mark.parametrize("policy", [FlushPolicy.OS, FlushPolicy.INTERVAL])
def test_high_watermark_follows_the_log_end_under_lazy_policies(policy):
    it = leader(policy)
    it.advanced(10, 0, 1000)
    assert it.high_watermark == 10


def test_high_watermark_never_goes_back_when_the_policy_becomes_stricter():
    it = leader(FlushPolicy.OS)
    it.advanced(10, 4, 1000)
    it.set_flush_policy(FlushPolicy.COMMIT)
    assert it.high_watermark == 10
    it.advanced(12, 4, 200)
    assert it.high_watermark == 10
    it.advanced(it.log_end, 12)
    assert it.high_watermark == 12


def test_high_watermark_rises_at_once_when_the_policy_becomes_laxer():
    it = leader(FlushPolicy.COMMIT)
    it.advanced(10, 0, 1000)
    it.set_flush_policy(FlushPolicy.OS)
    assert it.high_watermark == 10


def test_producers_are_answered_in_order_and_only_up_to_the_high_watermark():
    it = leader()
    answered: list[tuple[int, HeadraceError | None]] = []
    it.advanced(30, 0, 3000)
    for end in (10, 20, 30):
        it.when_committed(end, lambda error, end=end: answered.append((end, error)))
    it.advanced(it.log_end, 9)  # the last record of the first append is missing
    assert answered == []
    it.advanced(it.log_end, 20)
    assert answered == [(10, None), (20, None)]
    it.advanced(it.log_end, 29)
    assert answered == [(10, None), (20, None)]
    it.advanced(it.log_end, 30)
    assert answered[-1] == (30, None)
    assert it.waiting == (0, 0)


def test_a_producer_whose_offset_is_committed_already_is_answered_at_once():
    it = leader(end=10)
    answered: list[object] = []
    it.when_committed(10, answered.append)
    assert answered == [None]


def test_resigning_fails_every_waiter_and_every_later_check():
    it = leader()
    it.advanced(10, 0, 1000)
    answered: list[object] = []
    watcher = Watcher()
    it.subscribe(watcher)
    it.when_committed(10, answered.append)
    reason = NotLeaderOrFollowerError("moved")
    it.resign(reason)
    it.resign(NotLeaderOrFollowerError("a second reason does not count"))
    assert answered == [reason]
    assert watcher.calls == [PARTITION]
    with pytest.raises(NotLeaderOrFollowerError, match="moved"):
        it.check_serving()
    it.when_committed(5, answered.append)
    assert answered == [reason, reason]


def test_the_reason_of_a_resignation_does_not_grow_with_each_refused_request():
    """Each raise of one error lengthens its traceback, and the traceback keeps the frames of the refused requests."""
    it, reason = leader(), NotLeaderOrFollowerError("moved")
    it.resign(reason)
    for _ in range(3):
        with pytest.raises(NotLeaderOrFollowerError, match="moved"):
            it.check_serving()
    assert reason.__traceback__ is None


def test_a_watcher_hears_how_many_bytes_became_readable_and_not_before_they_are():
    it, watcher = leader(), Watcher()
    it.subscribe(watcher)
    it.advanced(10, 0, 1000)
    it.advanced(12, 0, 200)
    assert watcher.calls == []
    it.advanced(it.log_end, 12)
    assert watcher.calls == [(PARTITION, 1200)]


def test_what_is_committed_step_by_step_is_notified_step_by_step():
    """If all bytes were reported with the first step, the second step would report no bytes, and its readers would not
    wake up."""
    it, watcher = leader(), Watcher()
    it.subscribe(watcher)
    it.advanced(10, 0, 1000)
    it.advanced(12, 0, 200)
    it.advanced(it.log_end, 10)
    it.advanced(it.log_end, 12)
    assert watcher.calls == [(PARTITION, 1000), (PARTITION, 200)]


def test_a_step_into_the_midst_of_an_append_is_reported_too():
    it, watcher = leader(), Watcher()
    it.subscribe(watcher)
    it.advanced(10, 0, 1000)
    it.advanced(it.log_end, 4)
    it.advanced(it.log_end, 10)
    assert watcher.calls == [(PARTITION, 1), (PARTITION, 1000)]


def test_what_nobody_commits_for_long_takes_no_memory_and_is_reported_in_full_at_last():
    """With acks=1, producers continue to append while fewer than min.insync.replicas are in sync, but the high
    watermark does not advance."""
    it, watcher = leader(), Watcher()
    it.subscribe(watcher)
    for end in range(1, 5_001):
        it.advanced(end, 0, 100)

    def go_on() -> None:
        for end in range(5_001, 50_001):
            it.advanced(end, 0, 100)

    left = tracemalloc_of(go_on)
    assert left < 500_000  # one entry for each record would take megabytes
    assert watcher.calls == []
    it.advanced(it.log_end, 1)
    it.advanced(it.log_end, 50_000)
    assert watcher.calls == [(PARTITION, 100), (PARTITION, 4_999_900)]


def tracemalloc_of(work: Callable[[], object]) -> int:
    """The bytes that stay allocated after ``work``."""
    tracemalloc.start()
    work()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return left


def test_a_watcher_that_left_hears_nothing():
    it, watcher = leader(), Watcher()
    it.subscribe(watcher)
    it.unsubscribe(watcher)
    it.unsubscribe(watcher)
    it.advanced(10, 10, 1000)
    assert watcher.calls == []


def test_the_log_start_moves_forwards_only_and_watchers_are_notified():
    it, watcher = leader(end=10), Watcher()
    it.subscribe(watcher)
    it.advance_log_start(4)
    it.advance_log_start(3)
    assert it.log_start == 4
    assert watcher.calls == [PARTITION]


@pytest.mark.parametrize(("epoch", "error"), [(4, FencedLeaderEpochError), (6, UnknownLeaderEpochError)])
def test_a_client_with_another_leader_epoch_is_refused(epoch, error):
    with pytest.raises(error, match=r"orders-3.*5"):
        check_epoch(leader(), epoch)


@pytest.mark.parametrize("epoch", [-1, 5])
def test_a_client_with_the_present_or_no_leader_epoch_passes(epoch):
    check_epoch(leader(), epoch)


def test_a_client_that_means_a_topic_of_an_earlier_life_is_refused():
    check_topic_id(leader(), b"")
    check_topic_id(leader(), TOPIC_ID)
    with pytest.raises(InconsistentTopicIdError, match="created again"):
        check_topic_id(leader(), bytes(16))


def test_a_leader_refuses_impossible_reports():
    with pytest.raises(AssertionError):
        leader(end=10).advanced(10, 11)
    with pytest.raises(AssertionError):
        leader(end=10).advanced(9, 9, 0)
    with pytest.raises(AssertionError):
        leader(end=10).advance_log_start(11)


def test_a_waiter_that_gives_up_gets_its_error_once_and_the_others_go_on_waiting():
    it = leader()
    it.advanced(30, 0, 1000)
    called: list[tuple[int, object]] = []
    late = RequestTimedOutError("late")

    def wait(end: int) -> Waiting:
        waiting = it.when_committed(end, lambda error: called.append((end, error)))
        assert waiting is not None
        return waiting

    first, second, third = wait(10), wait(20), wait(30)
    it.give_up(second, late)
    assert (called, it.waiting[0]) == ([(20, late)], 3), "it leaves with those before it"
    it.give_up(first, late)
    it.give_up(first, late)
    assert (called, it.waiting[0]) == ([(20, late), (10, late)], 1)
    it.advanced(it.log_end, 30)
    assert called[2:] == [(30, None)]
    it.give_up(third, late)
    assert (len(called), it.waiting[0]) == (3, 0)
    assert it.when_committed(30, lambda error: None) is None
    it.advanced(40, 30, 100)
    it.give_up(wait(40), late)
    wait(40)
    it.resign(NotLeaderOrFollowerError("gone"))
    assert [end for end, _ in called[3:]] == [40, 40]
