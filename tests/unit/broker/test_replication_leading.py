"""A leader's stream: the batches that it pushes, their order and amount, and the updates that it sends."""

from __future__ import annotations

import random

import pytest

from headrace_broker.partition.push_stream import (
    CATCH_UP,
    CATCH_UP_BYTES,
    HAND_OVER_BYTES,
    LIVE,
    MESSAGE_BYTES,
    SHARE_BYTES_MIN,
    UPDATE_DELAY_MS,
    State,
)
from headrace_core import errors
from headrace_protos.v1.replication_pb2 import ReplicationLane
from tests.worlds.replication_leaders import (
    FOLLOWER,
    LEADER,
    OTHER,
    Batch,
    LeadingBroker,
    acked,
    drain,
    join,
    said,
    taken,
)
from tests.worlds.replication_messages import a_request, an_ack, follows

KIB = 1024
MIB = 1024 * KIB


# -- pushing -----------------------------------------------------------------------------------------------------------


def test_a_follower_is_pushed_what_it_lacks_and_then_what_comes():
    broker = LeadingBroker()
    led = broker.lead("orders")
    first = led.append(100)
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 7)]))
    message = said(stream)
    (joined,), (push,) = message.joined, message.pushes
    assert follows(joined)
    assert (joined.log_start, joined.log_end) == (0, 1)
    assert (push.handle, push.records) == (7, first.data)
    assert stream.next() is None
    second = led.append(50)
    assert [push.records for push in said(stream).pushes] == [second.data]


def test_records_go_out_before_they_are_forced_to_the_leaders_disk():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    said(stream)
    batch = led.append(100, flushed=False)
    assert led.leader.flushed_end == 0
    assert [push.records for push in said(stream).pushes] == [batch.data]


def test_records_are_committed_when_they_are_durable_at_the_follower_and_the_leader():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    said(stream)
    led.append(100, flushed=False)
    said(stream)
    stream.received(a_request(acks=[an_ack(1, 1, 1, 0)]))
    assert led.leader.high_watermark == 0
    led.leader.advanced(led.leader.log_end, 1)
    assert led.leader.high_watermark == 1


def test_what_many_partitions_have_goes_into_one_message():
    broker = LeadingBroker()
    led = [broker.lead(f"topic-{number}") for number in range(500)]
    stream = broker.stream()
    for handle, each in enumerate(led):
        stream.received(a_request(joins=[join(each, handle)]))
    drain(stream)
    for each in led:
        each.append(1000)
    (message,) = drain(stream)
    assert {push.handle for push in message.pushes} == set(range(500))


def test_a_message_is_cut_at_its_limit_and_a_larger_batch_goes_alone():
    broker = LeadingBroker()
    small, large = broker.lead("small"), broker.lead("large")
    stream = broker.stream()
    for handle, each in enumerate((small, large)):
        stream.received(a_request(joins=[join(each, handle)]))
    drain(stream)
    small.append(10)
    batch = large.append(3 * MIB)
    small.append(10)
    messages = drain(stream)
    for message in messages:
        size = sum(len(push.records) for push in message.pushes)
        assert size <= MESSAGE_BYTES + SHARE_BYTES_MIN or len(message.pushes) == 1
    assert [push.records for message in messages for push in message.pushes if push.handle == 1] == [batch.data]


def test_no_partition_waits_for_one_that_has_much_to_send():
    broker = LeadingBroker()
    busy, quiet = broker.lead("busy"), broker.lead("quiet")
    stream = broker.stream()
    for handle, each in enumerate((busy, quiet)):
        stream.received(a_request(joins=[join(each, handle)]))
    drain(stream)
    for _ in range(200):
        busy.append(50 * KIB)
    quiet.append(100)
    assert [push.handle for push in said(stream).pushes if push.handle == 1] == [1]


def test_under_load_everybody_gets_the_same_share():
    broker = LeadingBroker()
    led = [broker.lead(f"topic-{number}") for number in range(40)]
    stream = broker.stream(window=2**40)
    for handle, each in enumerate(led):
        stream.received(a_request(joins=[join(each, handle)]))
    drain(stream)
    sent = dict.fromkeys(range(40), 0)
    for each in led:
        for _ in range(400):
            each.append(16 * KIB)
    for _ in range(60):
        for push in said(stream).pushes:
            sent[push.handle] += len(push.records)
            acked(stream, push.handle, _end_of(led[push.handle], push.records))
    assert max(sent.values()) - min(sent.values()) <= 2 * SHARE_BYTES_MIN


def _end_of(led, records: bytes) -> int:
    return next(batch.end for batch in led.batches if records.endswith(batch.data))


def test_thousands_of_idle_partitions_cost_nothing():
    broker = LeadingBroker()
    led = [broker.lead(f"topic-{number}") for number in range(5_000)]
    stream = broker.stream()
    for handle, each in enumerate(led):
        each.append(10)
        stream.received(a_request(joins=[join(each, handle, log_end=1, last_epoch=1)]))
    drain(stream)
    before = sum(each.reads for each in led)
    led[4_321].append(10)
    assert [push.handle for push in said(stream).pushes] == [4_321]
    assert stream.next() is None
    assert stream.due_ms() is None
    assert sum(each.reads for each in led) - before <= 2


def test_every_byte_arrives_once_and_in_order_whatever_happens_between():
    for seed in range(60):
        rng = random.Random(seed)
        broker = LeadingBroker()
        led = [broker.lead(f"t{number}") for number in range(rng.randrange(1, 12))]
        stream = broker.stream(window=rng.choice((10 * KIB, MIB, 32 * MIB)))
        window = rng.choice((4 * KIB, 300 * KIB, MIB))
        for handle, each in enumerate(led):
            stream.received(a_request(joins=[join(each, handle, window=window)]))
        got: dict[int, bytes] = dict.fromkeys(range(len(led)), b"")
        reading = []
        for _ in range(300):
            each = rng.choice(led)
            if rng.random() < 0.5:
                each.append(rng.choice((10, 1000, 70 * KIB)), rng.randrange(1, 5))
            each.cold_below = each.leader.log_end if rng.random() < 0.1 else 0
            if rng.random() < 0.6:
                _take(stream, got)
            if rng.random() < 0.3:
                reading += taken(stream)
            if reading and rng.random() < 0.5:
                read = reading.pop(rng.randrange(len(reading)))
                stream.was_read(read, read.source.read_cold(read.offset, read.max_bytes))
            handle = rng.randrange(len(led))
            acked(stream, handle, _durable(led[handle], got[handle], rng))
        for each in led:
            each.cold_below = 0
        for _ in range(400):
            _take(stream, got)
            for read in [*reading, *taken(stream)]:
                stream.was_read(read, read.source.read_cold(read.offset, read.max_bytes))
            reading = []
            for handle, each in enumerate(led):
                acked(stream, handle, _durable(each, got[handle], None))
        assert [got[handle] for handle in range(len(led))] == [_all(each) for each in led], f"seed {seed}"
        assert stream.in_flight_bytes == 0, f"seed {seed}"


def _take(stream, got: dict[int, bytes]) -> None:
    outgoing = stream.next()
    if outgoing is not None:
        for push in outgoing.response.pushes:
            got[push.handle] += push.records


def _all(led) -> bytes:
    return b"".join(batch.data for batch in led.batches)


def _durable(led, got: bytes, rng: random.Random | None) -> int:
    """The end of the received records. With ``rng``, a random offset before the end of the received records."""
    end = size = 0
    for batch in led.batches:
        size += len(batch.data)
        if size > len(got):
            break
        end = batch.end
    return end if rng is None else rng.randrange(end + 1)


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_acknowledged_gets_no_more_than_its_window():
    broker = LeadingBroker()
    slow, other = broker.lead("slow"), broker.lead("other")
    stream = broker.stream()
    stream.received(a_request(joins=[join(slow, 1, window=100 * KIB)]))
    stream.received(a_request(joins=[join(other, 2)]))
    for _ in range(100):
        slow.append(10 * KIB)
        other.append(10 * KIB)
    pushes = [push for message in drain(stream) for push in message.pushes]
    assert sum(len(push.records) for push in pushes if push.handle == 1) == 100 * KIB
    assert sum(len(push.records) for push in pushes if push.handle == 2) == 1000 * KIB
    acked(stream, 1, 10)
    assert sum(len(push.records) for message in drain(stream) for push in message.pushes) == 100 * KIB


def test_a_stream_that_is_not_acknowledged_gets_no_more_than_its_window():
    broker = LeadingBroker()
    led = [broker.lead(f"topic-{number}") for number in range(20)]
    stream = broker.stream(window=MIB)
    for handle, each in enumerate(led):
        stream.received(a_request(joins=[join(each, handle)]))
        for _ in range(20):
            each.append(100 * KIB)
    sent = dict.fromkeys(range(20), 0)
    for message in drain(stream):
        for push in message.pushes:
            sent[push.handle] += len(push.records)
    assert stream.in_flight_bytes == sum(sent.values())
    assert MIB <= sum(sent.values()) <= MIB + 100 * KIB
    for _ in range(400):
        for handle in range(20):
            acked(stream, handle, sent[handle] // (100 * KIB))
        for message in drain(stream):
            for push in message.pushes:
                sent[push.handle] += len(push.records)
    assert set(sent.values()) == {2000 * KIB}


def test_a_batch_larger_than_the_window_goes_when_nothing_else_is_in_flight():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, window=KIB)]))
    large = led.append(MIB)
    led.append(10)
    assert [push.records for message in drain(stream) for push in message.pushes] == [large.data]
    acked(stream, 1, 1)
    assert len(said(stream).pushes) == 1


def test_a_partition_whose_window_stays_full_gives_room_to_the_others():
    broker = LeadingBroker()
    stuck, other = broker.lead("stuck"), broker.lead("other")
    stream = broker.stream(window=MIB + 50 * KIB)
    stream.received(a_request(joins=[join(stuck, 1, window=100 * KIB)]))
    stream.received(a_request(joins=[join(other, 2)]))
    stuck.append(90 * KIB)
    stuck.append(MIB)
    stuck.append(10)
    drain(stream)
    owed = other.append(10)
    assert drain(stream) == [], "the window of the stream is full"
    wakes = broker.wakes
    acked(stream, 1, 1)
    assert broker.wakes == wakes + 1
    assert [push.records for message in drain(stream) for push in message.pushes] == [owed.data]


def test_windows_that_a_follower_asks_for_are_bounded():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream(window=2**62)
    stream.received(a_request(joins=[join(led, 1, window=2**62)]))
    for _ in range(200):
        led.append(MIB)
    sent = sum(len(push.records) for message in drain(stream) for push in message.pushes)
    assert sent <= 65 * MIB


def test_what_is_not_sent_is_not_read():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, window=10 * KIB)]))
    for _ in range(1000):
        led.append(10 * KIB)
    drain(stream)
    assert led.reads <= 2


# -- offsets updates ---------------------------------------------------------------------------------------------------


def test_a_high_watermark_that_moved_is_reported_after_a_pause_and_once():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    drain(stream)
    wakes = broker.wakes
    acked(stream, 1, 1)
    assert stream.next() is None
    assert (broker.wakes, set(broker.wakes_at)) == (wakes, {broker.now_ms + UPDATE_DELAY_MS})
    assert stream.due_ms() == broker.now_ms + UPDATE_DELAY_MS
    broker.now_ms += UPDATE_DELAY_MS
    (update,) = said(stream).updates
    assert (update.handle, update.high_watermark, update.log_start) == (1, 1, 0)
    assert stream.next() is None
    assert stream.due_ms() is None


def test_changed_offsets_travel_with_the_next_push_when_there_is_one():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    drain(stream)
    acked(stream, 1, 1)
    led.append(10)
    (push,) = said(stream).pushes
    assert push.high_watermark == 1
    assert stream.due_ms() is None
    broker.now_ms += UPDATE_DELAY_MS
    assert stream.next() is None


def test_a_log_start_that_moved_is_sent():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    drain(stream)
    acked(stream, 1, 1)
    led.leader.advance_log_start(1)
    broker.now_ms += UPDATE_DELAY_MS
    assert [(update.high_watermark, update.log_start) for update in said(stream).updates] == [(1, 1)]


# -- far behind --------------------------------------------------------------------------------------------------------


def _far_behind(broker: LeadingBroker, size: int = 4 * CATCH_UP_BYTES):
    led = broker.lead("orders", replicas=(LEADER, OTHER))
    led.leader.metadata_changed(
        isr=(LEADER, OTHER), partition_epoch=1, replicas=(LEADER, OTHER, FOLLOWER), min_insync=1
    )
    for _ in range(size // (256 * KIB)):
        led.append(256 * KIB)
    return led


def test_who_is_far_behind_is_sent_to_the_other_lane():
    broker = LeadingBroker()
    led = _far_behind(broker)
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    message = said(stream)
    assert message.joined[0].other_lane
    assert not message.pushes
    assert stream.next() is None


def test_who_is_near_does_not_stay_on_the_catch_up_lane():
    broker = LeadingBroker()
    led = _far_behind(broker)
    stream = broker.stream(kind=CATCH_UP)
    stream.received(a_request(joins=[join(led, 1, log_end=led.leader.log_end - 1, last_epoch=1)]))
    assert said(stream).joined[0].other_lane


def test_catching_up_ends_near_the_end_with_all_that_was_pushed():
    broker = LeadingBroker()
    led = _far_behind(broker)
    stream = broker.stream(kind=CATCH_UP, window=4 * MIB)
    stream.received(a_request(joins=[join(led, 1, window=2 * MIB)]))
    got = b""
    ended = []
    while not ended:
        messages = drain(stream)
        assert messages, "it stands still"
        for message in messages:
            got += b"".join(push.records for push in message.pushes)
            ended += message.ended
        acked(stream, 1, len(got) // (256 * KIB))
    assert ended[0].other_lane
    assert not ended[0].error.code
    assert _all(led).startswith(got)
    assert led.bytes_from(len(got) // (256 * KIB)) < HAND_OVER_BYTES
    assert stream.in_flight_bytes == 0


def test_records_that_are_not_in_memory_are_read_on_threads_a_few_at_a_time():
    broker = LeadingBroker()
    stream = broker.stream(kind=CATCH_UP)
    led = []
    for number in range(5):
        each = broker.lead(f"topic-{number}")
        for _ in range(40):
            each.append(256 * KIB)
        each.cold_below = each.leader.log_end
        led.append(each)
        stream.received(a_request(joins=[join(each, number)]))
    assert not said(stream).pushes
    got: dict[int, bytes] = dict.fromkeys(range(5), b"")
    most = rounds = 0
    reading = taken(stream)
    while reading:
        most, rounds = max(most, len(reading)), rounds + 1
        read = reading.pop(0)
        stream.was_read(read, read.source.read_cold(read.offset, read.max_bytes))
        for message in drain(stream):
            for push in message.pushes:
                got[push.handle] += push.records
                acked(stream, push.handle, len(got[push.handle]) // (256 * KIB))
        reading += taken(stream)
    assert most == 2
    for number, each in enumerate(led):
        assert _all(each).startswith(got[number])
        assert len(_all(each)) - len(got[number]) < HAND_OVER_BYTES


def test_reads_that_nobody_can_be_sent_are_not_begun():
    broker = LeadingBroker()
    stream = broker.stream(kind=CATCH_UP, window=MIB)
    for number in range(6):
        each = broker.lead(f"topic-{number}")
        for _ in range(40):
            each.append(256 * KIB)
        each.cold_below = each.leader.log_end
        stream.received(a_request(joins=[join(each, number)]))
    begun, waiting = 0, []
    for _ in range(50):
        drain(stream)
        waiting += taken(stream)
        begun += len(waiting)
        for read in waiting:
            stream.was_read(read, read.source.read_cold(read.offset, read.max_bytes))
        waiting = []
    assert begun <= 4  # two of them fill the window, two are held for when there is room


def test_a_read_that_ends_after_its_handle_did_is_dropped():
    broker = LeadingBroker()
    led = broker.lead("orders")
    led.append(10)
    led.cold_below = 1
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    drain(stream)
    (read,) = taken(stream)
    assert read.replica.state is State.READING
    stream.received(a_request(leaves=[1]))
    stream.was_read(read, led.read_cold(0, 100))
    assert stream.next() is None
    stream.received(a_request(joins=[join(led, 2)]))
    drain(stream)
    (again,) = taken(stream)
    stream.was_read(again, errors.StorageError("the disk is gone"))
    assert [ended.handle for ended in said(stream).ended] == [2]


def test_a_live_follower_that_fell_out_of_memory_changes_streams():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, window=MIB)]))
    drain(stream)
    for _ in range(2 * CATCH_UP_BYTES // MIB):
        led.append(MIB)
    drain(stream)
    led.cold_below = led.leader.log_end
    acked(stream, 1, 1)
    (ended,) = [ended for message in drain(stream) for ended in message.ended]
    assert ended.other_lane


@pytest.mark.parametrize(("stream", "size"), [(CATCH_UP, 40 * MIB), (LIVE, CATCH_UP_BYTES)])
def test_the_throttle_of_a_move_holds_on_both_streams(stream: ReplicationLane, size: int):
    broker = LeadingBroker()
    led = _far_behind(broker, size)
    broker.throttled = True
    broker.pacer.set_rate(MIB, broker.now_ms)
    stream = broker.stream(kind=stream)
    stream.received(a_request(joins=[join(led, 1)]))
    sent, started_ms = 0, broker.now_ms
    while sent < size // 2:
        for message in drain(stream):
            sent += sum(len(push.records) for push in message.pushes)
        acked(stream, 1, sent // (256 * KIB))
        due_ms = stream.due_ms()
        assert due_ms is not None
        broker.now_ms = max(due_ms, broker.now_ms + 1)
    assert sent / MIB - 3 <= (broker.now_ms - started_ms) / 1000 <= sent / MIB + 3
    broker.pacer.set_rate(2**63 - 1, broker.now_ms)
    broker.now_ms += 500
    assert said(stream).pushes


def test_a_throttled_replica_does_not_delay_the_others_of_its_stream():
    broker = LeadingBroker()
    moving, in_sync = _far_behind(broker, CATCH_UP_BYTES), broker.lead("others")
    broker.throttled = True
    broker.pacer.set_rate(0, broker.now_ms)
    stream = broker.stream()
    stream.received(a_request(joins=[join(moving, 1)]))
    stream.received(a_request(joins=[join(in_sync, 2)]))
    drain(stream)
    in_sync.append(10)
    assert [push.handle for push in said(stream).pushes] == [2]


def test_who_is_in_sync_is_not_throttled():
    broker = LeadingBroker()
    led = broker.lead("orders")
    for _ in range(40):
        led.append(MIB)
    broker.throttled = True
    broker.pacer.set_rate(0, broker.now_ms)
    stream = broker.stream(kind=CATCH_UP)
    stream.received(a_request(joins=[join(led, 1)]))
    assert said(stream).pushes


# -- where followers' logs start ---------------------------------------------------------------------------------------


def test_a_follower_that_deleted_too_moves_the_low_watermark_and_so_does_one_that_goes():
    broker = LeadingBroker()
    led = broker.lead("orders", isr=(LEADER,))
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    for _ in range(4):
        led.append(10)
    drain(stream)
    acked(stream, 1, 4)
    led.leader.advance_log_start(3)
    assert led.leader.low_watermark == 0
    stream.received(a_request(acks=[an_ack(1, 4, 4, 2)]))
    assert led.leader.low_watermark == 2
    stream.close()
    assert led.leader.low_watermark == 3


# -- what is rare ------------------------------------------------------------------------------------------------------


def test_a_gap_that_compaction_left_is_passed_over_and_nothing_empty_is_pushed():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    drain(stream)
    first = led.append(10)
    led.leader.advanced(5, 5, 0)  # offsets 1 to 4 are gone
    last = Batch(5, 6, b"last", 1)
    led.batches += [Batch(1, 5, b"", 1), last]
    led.leader.advanced(6, 6, 4)
    assert b"".join(push.records for message in drain(stream) for push in message.pushes) == first.data + last.data
    acked(stream, 1, 6)
    assert led.leader.high_watermark == 6

    gap = broker.lead("gap")
    stream.received(a_request(joins=[join(gap, 2)]))
    drain(stream)
    gap.batches.append(Batch(0, 3, b"", 1))
    gap.leader.advanced(3, 3, 0)
    assert stream.next() is None
    gap.batches.append(last._replace(base=3, end=4))
    gap.leader.advanced(4, 4, 4)
    assert [push.records for push in said(stream).pushes] == [b"last"]


def test_a_follower_that_comes_and_goes_while_nothing_can_go_out_leaves_no_litter():
    broker = LeadingBroker()
    full, led = broker.lead("full"), broker.lead("orders")
    stream = broker.stream(window=10)
    full.append(20)
    led.append(20)
    stream.received(a_request(joins=[join(full, 0)]))
    drain(stream)  # the window is full now
    for handle in range(1, 10_000):
        stream.received(a_request(joins=[join(led, handle)]))
        stream.received(a_request(leaves=[handle]))
        stream.next()
    assert len(stream.ready) < 1_100
    acked(stream, 0, 1)
    stream.received(a_request(joins=[join(led, 10_000)]))
    assert [push.handle for message in drain(stream) for push in message.pushes] == [10_000]
