"""Followers on a leader's stream: the comparison of logs, valid broker epochs, the end of a handle, and invalid
messages."""

from __future__ import annotations

import pytest

from headrace_broker.partition.push_stream import CATCH_UP, MESSAGE_BYTES, PRODUCERS_MAX
from headrace_core import errors
from headrace_core.item_errors import error_of
from headrace_protos.v1.replication_pb2 import FollowAck, FollowDivergence
from tests.worlds.replication_leaders import FOLLOWER, LEADER, OTHER, LeadingBroker, Led, acked, drain, join, said
from tests.worlds.replication_messages import a_divergence, a_request, an_ack, follows, replaced

MIB = 1024 * 1024


# -- joining -----------------------------------------------------------------------------------------------------------


def _with_epochs(broker: LeadingBroker, *epochs: tuple[int, int], leader_epoch: int = 9):
    """A log with these (epoch, number of records) pairs."""
    led = broker.lead("orders", leader_epoch=leader_epoch)
    for epoch, records in epochs:
        led.append(10, records, epoch=epoch)
    return led


@pytest.mark.parametrize(
    ("log_end", "last_epoch", "expected"),
    [
        (0, -1, None),  # empty: from the beginning
        (10, 1, None),  # a prefix that ends within epoch 1
        (15, 3, None),
        (20, 3, None),
        (20, 1, a_divergence(1, 10)),  # its records of epoch 1 beyond offset 10 were never committed (KIP-101)
        (25, 3, a_divergence(3, 20)),
        (12, 2, a_divergence(1, 10)),  # an epoch that the leader does not know (KIP-279)
        (30, 5, a_divergence(3, 20)),  # above all epochs of its log, and below the leader's own epoch
        (40, 6, a_divergence(3, 20)),
    ],
)
def test_logs_are_compared_by_epochs(log_end: int, last_epoch: int, expected: FollowDivergence | None):
    broker = LeadingBroker()
    led = _with_epochs(broker, (1, 10), (3, 10))
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, log_end=log_end, last_epoch=last_epoch)]))
    (joined,) = said(stream).joined
    assert (joined.diverging if joined.HasField("diverging") else None) == expected
    assert follows(joined) is (expected is None)
    assert not joined.out_of_range
    assert led.leader.progress[1].is_joined is (expected is None)


def test_an_end_outside_of_the_leaders_log_begins_anew():
    broker = LeadingBroker()
    led = _with_epochs(broker, (1, 10), (3, 10))
    led.leader.high_watermark = 20
    led.leader.advance_log_start(10)
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, log_end=5, last_epoch=1)]))  # all of it is deleted here
    stream.received(a_request(joins=[join(led, 2, log_end=21, last_epoch=-1)]))  # empty, and beyond the end
    for joined in said(stream).joined:
        assert joined.out_of_range
        assert (joined.log_start, joined.log_end) == (10, 20)
    stream.received(a_request(joins=[join(led, 3, log_end=10, last_epoch=1)]))
    assert follows(said(stream).joined[0])


@pytest.mark.parametrize("log_end", [15, 20])
def test_a_follower_begins_again_where_the_log_starts_and_not_where_the_leader_last_knew(log_end: int):
    broker = LeadingBroker()
    led = _with_epochs(broker, (1, 10), (3, 10), (4, 10))
    led.leader.high_watermark = 30
    led.leader.advance_log_start(10)
    led.deleted_below = 20  # retention has run on the writer's thread: epoch 3 is gone with its records
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, log_end=log_end, last_epoch=3)]))
    (joined,) = said(stream).joined
    assert joined.out_of_range
    assert (joined.log_start, joined.producers) == (20, b"producers at 20")


def test_answers_with_many_producers_go_in_messages_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch):
    broker = LeadingBroker()
    stream = broker.stream()
    taken: list[int] = []

    def producers_at(self: Led, offset: int) -> bytes:
        taken.append(offset)
        return bytes(MESSAGE_BYTES // 2)

    monkeypatch.setattr(Led, "producers_at", producers_at)
    for handle in range(5):
        led = broker.lead(f"topic-{handle}")
        led.append(10)
        led.leader.high_watermark = 1
        led.leader.advance_log_start(1)
        stream.received(a_request(joins=[join(led, handle, log_end=0, last_epoch=-1)]))
    assert taken == [], "queued answers hold no producers"
    messages = [message.joined for message in drain(stream)]
    assert [answer.handle for joined in messages for answer in joined] == list(range(5))
    assert len(messages) == 3
    assert all(sum(len(answer.producers) for answer in joined) <= MESSAGE_BYTES for joined in messages)


def test_a_follower_of_a_log_with_too_many_producers_begins_without_them(monkeypatch: pytest.MonkeyPatch):
    broker = LeadingBroker()
    led = _with_epochs(broker, (1, 10), (3, 10))
    led.leader.high_watermark = 20
    led.leader.advance_log_start(10)
    monkeypatch.setattr(Led, "producers_at", lambda self, offset: bytes(PRODUCERS_MAX + 1))
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1, log_end=5, last_epoch=1)]))
    (joined,) = said(stream).joined
    assert (joined.out_of_range, joined.log_start, joined.producers) == (True, 10, b"")


def test_epochs_that_are_over_or_not_known_yet_are_refused():
    broker = LeadingBroker()
    led = broker.lead("orders", leader_epoch=5)
    stream = broker.stream()
    for handle, epoch in enumerate((4, 6, -1)):
        stream.received(a_request(joins=[join(led, handle, leader_epoch=epoch)]))
    kinds = [type(error_of(joined.error)) for joined in said(stream).joined]
    assert kinds == [errors.FencedLeaderEpochError, errors.UnknownLeaderEpochError, errors.InvalidRequestError]
    assert not led.leader.progress[1].is_joined


def test_who_is_no_replica_does_not_follow():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream(broker_id=OTHER)
    stream.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    message = said(stream)
    assert isinstance(error_of(message.joined[0].error), errors.NotLeaderOrFollowerError)
    assert not message.pushes
    assert stream.next() is None


def test_a_leader_cannot_be_followed_by_itself():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream(broker_id=LEADER)
    stream.received(a_request(joins=[join(led, 1)]))
    assert said(stream).joined[0].error.code


def test_unknown_topics_are_refused_one_by_one():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[replaced(join(led, 1), topic_id=b"?" * 16)]))
    stream.received(a_request(joins=[replaced(join(led, 2), partition=77)]))
    stream.received(a_request(joins=[join(led, 3)]))
    first, second, third = said(stream).joined
    assert isinstance(error_of(first.error), errors.UnknownTopicIdError)
    assert isinstance(error_of(second.error), errors.UnknownTopicIdError)
    assert follows(third)


# -- fencing -----------------------------------------------------------------------------------------------------------


def test_a_former_life_of_a_broker_joins_nothing_that_its_present_life_follows():
    broker = LeadingBroker()
    led = broker.lead("orders")
    now, before = broker.stream(broker_epoch=11), broker.stream(broker_epoch=10)
    now.received(a_request(joins=[join(led, 1)]))
    before.received(a_request(joins=[join(led, 1, log_end=0)]))
    assert isinstance(error_of(said(before).joined[0].error), errors.StaleBrokerEpochError)
    batch = led.append(10)
    pushes = [push.records for message in drain(now) for push in message.pushes]
    assert pushes == [batch.data]


def test_acknowledgements_of_a_former_life_count_for_nothing():
    broker = LeadingBroker()
    led = broker.lead("orders")
    before = broker.stream(broker_epoch=10)
    before.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    drain(before)
    now = broker.stream(broker_epoch=11)
    now.received(a_request(joins=[join(led, 1)]))
    acked(before, 1, 1)
    assert led.leader.high_watermark == 0
    drain(now)
    acked(now, 1, 1)
    assert led.leader.high_watermark == 1


def test_a_late_leave_on_one_stream_says_nothing_of_the_other():
    broker = LeadingBroker()
    led = broker.lead("orders")
    live, catch_up = broker.stream(), broker.stream(kind=CATCH_UP)
    for _ in range(20):
        led.append(MIB)
    catch_up.received(a_request(joins=[join(led, 1)]))
    drain(catch_up)
    live.received(a_request(joins=[join(led, 5, log_end=19, last_epoch=1)]))
    assert follows(said(live).joined[0])
    catch_up.received(a_request(leaves=[1]))
    catch_up.close()
    assert led.leader.progress[1].is_joined
    assert len(broker.joined) == 1
    live.close()
    assert not led.leader.progress[1].is_joined
    assert len(broker.joined) == 0


# -- the end of a handle -----------------------------------------------------------------------------------------------


def test_a_leader_that_resigned_ends_its_handles_with_the_reason():
    broker = LeadingBroker()
    led, other = broker.lead("orders"), broker.lead("payments")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    stream.received(a_request(joins=[join(other, 2)]))
    led.append(10)
    led.leader.resign(errors.NotLeaderOrFollowerError("broker 3 leads it"))
    messages = drain(stream)
    (ended,) = [ended for message in messages for ended in message.ended]
    assert ended.handle == 1
    assert isinstance(error_of(ended.error), errors.NotLeaderOrFollowerError)
    assert not [push for message in messages for push in message.pushes if push.handle == 1]
    other.append(10)
    assert [push.handle for push in said(stream).pushes] == [2]
    acked(stream, 1, 0)  # late, for no handle


def test_a_handle_that_was_let_go_of_gets_nothing_and_costs_nothing():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    drain(stream)
    stream.received(a_request(leaves=[1]))
    stream.received(a_request(leaves=[1]))
    led.append(10)
    assert stream.next() is None
    assert stream.in_flight_bytes == 0
    assert not led.leader.progress[1].is_joined


def test_a_stream_that_broke_leaves_no_trace_but_what_is_durable():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    led.append(10)
    led.append(10)
    drain(stream)
    acked(stream, 1, 1)
    stream.close()
    stream.close()
    led.append(10)
    assert stream.next() is None
    assert led.leader.high_watermark == 1  # the follower stays in sync until the controllers decide otherwise
    assert not led.leader.progress[1].is_joined


def test_a_read_that_fails_ends_one_handle_and_no_other():
    broker = LeadingBroker()
    bad, good = broker.lead("bad"), broker.lead("good")
    stream = broker.stream()
    stream.received(a_request(joins=[join(bad, 1)]))
    stream.received(a_request(joins=[join(good, 2)]))
    drain(stream)
    bad.failure = errors.StorageError("the disk is gone")
    bad.append(10)
    good.append(10)
    messages = drain(stream)
    assert [(ended.handle, type(error_of(ended.error))) for message in messages for ended in message.ended] == [
        (1, errors.StorageError)
    ]
    assert [push.handle for message in messages for push in message.pushes] == [2]


def test_records_that_retention_took_before_they_were_pushed_end_the_handle():
    broker = LeadingBroker()
    led = broker.lead("orders", replicas=(LEADER, FOLLOWER, OTHER))
    stream = broker.stream()
    led.append(10)
    stream.received(a_request(joins=[join(led, 1, window=1)]))
    led.append(10)
    drain(stream)
    led.leader.high_watermark = 2  # records that retention deleted were committed
    led.append(10)
    led.leader.high_watermark = 3
    led.leader.advance_log_start(3)
    led.append(10)
    acked(stream, 1, 1)
    (ended,) = [ended for message in drain(stream) for ended in message.ended]
    assert isinstance(error_of(ended.error), errors.OffsetOutOfRangeError)


# -- what no follower says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ack",
    [
        an_ack(1, 3, 3, 0),  # more than was pushed
        an_ack(1, 2, 1, 0),  # a durable end beyond the log end
        an_ack(1, 1, 1, 2),  # a log start after the log end
        an_ack(1, -1, 1, 0),
        an_ack(1, 0, -1, 0),
        an_ack(1, 1, 1, -1),
    ],
)
def test_an_acknowledgement_of_what_was_never_sent_ends_the_stream(ack: FollowAck):
    broker = LeadingBroker()
    led = broker.lead("orders")
    led.append(10)
    led.append(10)
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    drain(stream)
    led.append(10)
    with pytest.raises(errors.InvalidRequestError):
        stream.received(a_request(acks=[ack]))
    assert led.leader.high_watermark == 0


def test_joins_that_mean_nothing_end_the_stream():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    sound = join(led, 1)
    stream.received(a_request(joins=[sound]))
    for wrong in (
        sound,  # the handle is in use
        replaced(join(led, 2), log_end=-1),
        replaced(join(led, 2), log_start=1),
        replaced(join(led, 2), durable_end=1),
        replaced(join(led, 2), durable_end=-1),
        join(led, 2, window=0),
        join(led, 2, window=-5),
    ):
        with pytest.raises(errors.InvalidRequestError):
            stream.received(a_request(joins=[wrong]))


def test_a_window_that_lets_nothing_through_is_refused():
    for window in (0, -1):
        with pytest.raises(errors.InvalidRequestError):
            LeadingBroker().stream(window=window)


def test_a_follower_that_joins_the_same_partition_again_and_again_holds_one_handle():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    for handle in range(1000):
        stream.received(a_request(joins=[join(led, handle)]))
    assert len(stream.replicas()) == 1
    assert len(broker.joined) == 1
    led.append(10)
    assert [push.handle for message in drain(stream) for push in message.pushes] == [999]


def test_many_joins_are_answered_in_messages_of_a_bounded_size_and_before_any_push():
    broker = LeadingBroker()
    stream = broker.stream()
    for handle in range(5_000):
        led = broker.lead(f"topic-{handle}")
        led.append(10)
        stream.received(a_request(joins=[join(led, handle)]))
    known: set[int] = set()
    for message in drain(stream):
        assert len(message.joined) + len(message.pushes) <= 4_000
        known |= {joined.handle for joined in message.joined}
        assert {push.handle for push in message.pushes} <= known
    assert len(known) == 5_000


def test_late_acknowledgements_of_a_former_join_count_for_nothing():
    """The follower replaced a damaged log in the same life of its broker, and has fewer records than before."""
    broker = LeadingBroker()
    led = broker.lead("orders")
    led.append(10)
    former, present = broker.stream(), broker.stream()
    former.received(a_request(joins=[join(led, 1)]))
    drain(former)
    present.received(a_request(joins=[join(led, 1)]))
    acked(former, 1, 1)
    former.close()
    assert led.leader.high_watermark == 0
    drain(present)
    acked(present, 1, 1)
    assert led.leader.high_watermark == 1


def test_a_follower_that_was_taken_off_a_partition_and_put_back_joins_anew():
    broker = LeadingBroker()
    led = broker.lead("orders")
    stream = broker.stream()
    stream.received(a_request(joins=[join(led, 1)]))
    drain(stream)
    for epoch, replicas in enumerate([(LEADER,), (LEADER, FOLLOWER)], start=1):
        led.leader.metadata_changed(isr=(LEADER,), partition_epoch=epoch, replicas=replicas, min_insync=1)
    led.append(100)
    said(stream)
    stream.received(a_request(acks=[an_ack(1, 1, 1, 0)]))  # the follower saw only the last state, and continues
    (ended,) = said(stream).ended
    assert isinstance(error_of(ended.error), errors.NotLeaderOrFollowerError)
    stream.received(a_request(joins=[join(led, 2, log_end=1, last_epoch=1)]))
    assert follows(said(stream).joined[0])
    assert led.leader.progress[1].is_joined
