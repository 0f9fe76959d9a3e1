"""A fetch session's partitions, their order, and long polls (headrace_broker.partition.session)."""

from __future__ import annotations

from headrace_broker.partition import FetchSession, SessionPartition
from headrace_core.types import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def session(*partitions: TopicPartition) -> tuple[FetchSession, list[int]]:
    woken: list[int] = []
    it = FetchSession(lambda: woken.append(1))
    for partition in partitions:
        it.put(SessionPartition(partition, position=0, max_bytes=1000))
    return it, woken


def ready(it: FetchSession) -> list[TopicPartition]:
    return [entry.partition for entry in it.ready()]


def test_a_named_partition_is_ready_until_it_has_said_all():
    it, _ = session(A)
    (entry,) = it.ready()
    it.advance(entry, 5, exhausted=True)
    assert (ready(it), entry.position, len(it)) == ([], 5, 1)


def test_partitions_with_more_to_say_take_turns():
    it, _ = session(A, B, C)
    served = []
    for _ in range(6):
        entry = it.ready()[0]
        served.append(entry.partition)
        it.advance(entry, entry.position + 1, exhausted=False)
    assert served == [A, B, C, A, B, C]


def test_an_idle_partition_becomes_ready_when_its_leader_advances():
    it, _ = session(A, B)
    for entry in it.ready():
        it.advance(entry, 0, exhausted=True)
    it.partition_advanced(B, 10)
    assert ready(it) == [B]


def test_a_seek_replaces_the_position_and_goes_to_the_end_of_the_queue():
    it, _ = session(A, B)
    assert it.put(SessionPartition(A, position=7, max_bytes=1000)) is False
    assert [(entry.partition, entry.position) for entry in it.ready()] == [(B, 0), (A, 7)]


def test_a_forgotten_partition_is_neither_ready_nor_woken_for():
    it, woken = session(A)
    assert it.forget(A)
    assert not it.forget(A)
    it.expect(1)
    it.partition_advanced(A, 10)
    it.partition_changed(A)
    assert (ready(it), woken, A in it) == ([], [], False)


def test_a_waiting_poll_wakes_once_when_the_bytes_it_misses_are_there():
    it, woken = session(A, B)
    it.expect(100)
    it.partition_advanced(A, 60)
    assert woken == []
    it.partition_advanced(B, 40)
    assert woken == [1]
    it.partition_advanced(B, 40)
    assert woken == [1]


def test_a_waiting_poll_wakes_at_once_when_a_leader_resigns():
    it, woken = session(A)
    it.expect(1_000_000)
    it.partition_changed(A)
    assert woken == [1]


def test_nobody_is_woken_when_no_poll_waits():
    it, woken = session(A)
    it.expect(10)
    it.expected = None
    it.partition_advanced(A, 100)
    assert woken == []


def test_a_partition_has_changed_when_high_watermark_or_log_start_moved():
    entry = SessionPartition(A, position=0, max_bytes=1)
    assert entry.has_changed(0, 0)
    entry.sent_high_watermark, entry.sent_log_start = 5, 2
    assert not entry.has_changed(5, 2)
    assert entry.has_changed(6, 2)
    assert entry.has_changed(5, 3)
