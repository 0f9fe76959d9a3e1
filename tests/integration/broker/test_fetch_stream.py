"""The guarantees of fetch.proto over the wire: the stream is the session."""

from __future__ import annotations

import time

import grpc
import pytest

from headrace_core import errors
from headrace_core.records import split_batches
from headrace_protos.v1 import admin_pb2
from tests.worlds.broker_world import (
    batch,
    fetch_partition,
    fetch_request,
    fetch_stream,
    produce_partition,
    produce_request,
    produce_stream,
    values_of,
)

#: A wait time that no test may reach, because it is longer than the deadline of the call.
FOREVER_MS = 600_000


def only(answer):
    (result,) = answer.results
    return result


def code(result) -> int:
    return result.error.code


def test_the_position_advances_by_what_was_sent_and_an_empty_request_goes_on(cluster, topic):
    orders = topic()
    for value in (b"a", b"b", b"c"):
        orders.produce(value)
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, 0, max_bytes=1)))  # one batch at a time
        stream.send(fetch_request(2), fetch_request(3))
        results = [only(stream.receive()) for _ in range(3)]
    assert [(result.fetch_offset, result.next_offset) for result in results] == [(0, 1), (1, 2), (2, 3)]
    assert [values_of(result.records) for result in results] == [[b"a"], [b"b"], [b"c"]]
    assert {(result.high_watermark, result.last_stable_offset, result.log_start_offset) for result in results} == {
        (3, 3, 0)
    }


def test_requests_in_flight_are_answered_each_once_and_in_order(cluster, topic):
    orders = topic()
    for number in range(20):
        orders.produce(b"%d" % number)
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(0, fetch_partition(orders.name, max_bytes=1)))
        stream.send(*[fetch_request(number) for number in range(1, 20)])
        answers = stream.half_close()
    assert [answer.correlation_id for answer in answers] == list(range(20))
    assert [values_of(only(answer).records)[0] for answer in answers] == [b"%d" % number for number in range(20)]


def test_a_long_poll_is_answered_at_once_when_records_arrive(cluster, topic):
    orders = topic()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name), max_wait_ms=FOREVER_MS))
        settle(cluster)
        orders.produce(b"a")
        assert values_of(only(stream.receive()).records) == [b"a"]
        stream.send(fetch_request(2, max_wait_ms=FOREVER_MS))
        settle(cluster)
        orders.produce(b"b")
        assert values_of(only(stream.receive()).records) == [b"b"]


def settle(cluster) -> None:
    """Wait until earlier messages on other streams were processed: the broker has answered a later call."""
    cluster.topic_probe = getattr(cluster, "topic_probe", None) or cluster.topic("probe")
    cluster.topic_probe.produce(b"probe")


def test_a_long_poll_without_records_is_answered_when_its_time_is_over(cluster, topic):
    orders = topic()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name), max_wait_ms=0))
        assert only(stream.receive()).high_watermark == 0
        started = time.monotonic()
        stream.send(fetch_request(2, max_wait_ms=200))
        assert list(stream.receive().results) == []
        assert time.monotonic() - started >= 0.19


def test_a_poll_that_may_not_wait_is_answered_at_once(cluster, topic):
    orders = topic()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name), max_wait_ms=0, min_bytes=1_000_000))
        assert (only(stream.receive()).next_offset, stream.half_close()) == (0, [])


def test_a_long_poll_waits_until_min_bytes_are_there(cluster, topic):
    orders = topic(2)
    size = len(batch(b"x" * 1000))
    with fetch_stream(cluster) as stream:
        both = [fetch_partition(orders.name, partition=number) for number in (0, 1)]
        stream.send(fetch_request(1, *both, max_wait_ms=FOREVER_MS, min_bytes=3 * size))
        for partition in (0, 1, 0):
            settle(cluster)
            orders.produce(b"x" * 1000, partition=partition)
        answer = stream.receive()
    assert {result.partition: len(result.records) for result in answer.results} == {0: 2 * size, 1: size}


def test_a_newer_request_ends_an_older_long_poll(cluster, topic):
    orders, others = topic(), topic()
    others.produce(b"a")
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name), max_wait_ms=FOREVER_MS))
        settle(cluster)
        stream.send(fetch_request(2, fetch_partition(others.name), max_wait_ms=FOREVER_MS))
        first, second = stream.receive(), stream.receive()
    assert (first.correlation_id, only(first).records) == (1, b"")
    assert (second.correlation_id, values_of(only(second).records)) == (2, [b"a"])


def test_a_newer_request_is_given_what_an_older_poll_found_too_little(cluster, topic):
    orders = topic()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name), max_wait_ms=FOREVER_MS, min_bytes=10_000))
        settle(cluster)
        orders.produce(b"a")
        stream.send(fetch_request(2, max_wait_ms=0))
        first, second = stream.receive(), stream.receive()
    assert (values_of(only(first).records), list(second.results)) == ([b"a"], [])


def test_a_seek_takes_effect_immediately(cluster, topic):
    orders = topic()
    orders.produce(b"a")
    orders.produce(b"b")
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, 2), max_wait_ms=FOREVER_MS))
        settle(cluster)
        stream.send(fetch_request(2, fetch_partition(orders.name, 1)))
        stream.receive()
        assert values_of(only(stream.receive()).records, 1) == [b"b"]


def test_a_forgotten_partition_is_not_sent_any_more(cluster, topic):
    orders = topic(2)
    with fetch_stream(cluster) as stream:
        both = [fetch_partition(orders.name, partition=number) for number in (0, 1)]
        stream.send(fetch_request(1, *both, max_wait_ms=0))
        stream.receive()
        stream.send(fetch_request(2, forgotten=[(orders.name, 0), ("never-named", 3)], max_wait_ms=0))
        stream.receive()
        orders.produce(b"a", partition=0)
        orders.produce(b"b", partition=1)
        stream.send(fetch_request(3))
        assert only(stream.receive()).partition == 1


def test_a_slice_begins_with_the_batch_that_holds_the_position(cluster, topic):
    orders = topic()
    orders.produce(b"a", b"b", b"c")
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, 1)))
        result = only(stream.receive())
    assert split_batches(result.records)[0].base_offset == 0
    assert values_of(result.records, 1) == [b"b", b"c"]
    assert (result.fetch_offset, result.next_offset) == (1, 3)


def test_slices_keep_to_their_limits_but_the_first_batch_is_sent_whole(cluster, topic):
    orders = topic(2)
    size = len(batch(b"x" * 1000))
    for _ in range(4):
        for partition in (0, 1):
            orders.produce(b"x" * 1000, partition=partition)
    with fetch_stream(cluster) as stream:
        both = [fetch_partition(orders.name, partition=number, max_bytes=2 * size + 1) for number in (0, 1)]
        stream.send(fetch_request(1, *both, max_bytes=3 * size))
        answer = stream.receive()
        assert [len(result.records) for result in answer.results] == [2 * size, size]
        stream.send(fetch_request(2, fetch_partition(orders.name, max_bytes=10), max_bytes=1))
        assert [len(result.records) for result in stream.receive().results] == [size]


def test_partitions_take_turns(cluster, topic):
    orders = topic(3)
    size = len(batch(b"x" * 1000))
    for _ in range(4):
        for partition in range(3):
            orders.produce(b"x" * 1000, partition=partition)
    with fetch_stream(cluster) as stream:
        every = [fetch_partition(orders.name, partition=number) for number in range(3)]
        stream.send(fetch_request(0, *every, max_bytes=size))
        stream.send(*[fetch_request(number, max_bytes=size) for number in range(1, 12)])
        answers = stream.half_close()
    served = [[result.partition for result in answer.results if result.records] for answer in answers]
    assert served == [[0], [1], [2]] * 4


def test_the_first_answer_describes_the_partitions_for_whose_records_it_has_no_room(cluster, topic):
    orders = topic(3)
    size = len(batch(b"x" * 1000))
    for partition in range(3):
        for _ in range(2):
            orders.produce(b"x" * 1000, partition=partition)
    with fetch_stream(cluster) as stream:
        every = [fetch_partition(orders.name, partition=number) for number in range(3)]
        stream.send(fetch_request(0, *every, max_bytes=size), fetch_request(1, max_bytes=size))
        first, second = stream.half_close()
    described = [(each.partition, each.next_offset, each.high_watermark, each.last_stable_offset, each.log_start_offset)
                 for each in first.results]  # fmt: skip
    assert described == [(0, 1, 2, 2, 0), (1, 0, 2, 2, 0), (2, 0, 2, 2, 0)]
    assert [len(each.records) for each in first.results] == [size, 0, 0]
    assert (only(second).partition, len(only(second).records)) == (1, size)


def test_the_moved_log_start_is_reported(cluster, topic):
    orders = topic()
    orders.produce(b"a")
    orders.produce(b"b")
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, 2), max_wait_ms=0))
        assert only(stream.receive()).log_start_offset == 0
        delete_before(cluster, orders.name, 1)
        stream.send(fetch_request(2, max_wait_ms=0))
        assert only(stream.receive()).log_start_offset == 1


def delete_before(cluster, topic: str, offset: int) -> None:
    from headrace_protos.v1 import offsets_pb2

    item = offsets_pb2.DeleteRecordsPartition(topic=topic, partition=0, before_offset=offset)
    (result,) = cluster.offsets.DeleteRecords(offsets_pb2.DeleteRecordsRequest(partitions=[item])).results
    assert not result.error.code, result.error


@pytest.mark.parametrize("offset", [-1, -(2**63), 5, 2**63 - 1])
def test_a_position_outside_of_the_log_is_out_of_range(cluster, topic, offset):
    orders = topic()
    orders.produce(b"a")
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, offset), max_wait_ms=FOREVER_MS))
        result = only(stream.receive())
    assert (code(result), result.records) == (errors.OffsetOutOfRangeError.number, b"")


def test_a_position_below_the_log_start_is_out_of_range(cluster, topic):
    orders = topic()
    orders.produce(b"a")
    orders.produce(b"b")
    delete_before(cluster, orders.name, 1)
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, 0), max_wait_ms=FOREVER_MS))
        assert code(only(stream.receive())) == errors.OffsetOutOfRangeError.number


def test_a_failed_partition_leaves_the_session_and_the_others_go_on(cluster, topic):
    orders = topic()
    orders.produce(b"a")
    with fetch_stream(cluster) as stream:
        stream.send(
            fetch_request(
                1,
                fetch_partition("no-such-topic"),
                fetch_partition(orders.name, 0),
                fetch_partition(orders.name, 0, 7),
                max_wait_ms=FOREVER_MS,
            )
        )
        answer = stream.receive()
        assert {(result.topic, result.partition): code(result) for result in answer.results} == {
            ("no-such-topic", 0): errors.UnknownTopicOrPartitionError.number,
            (orders.name, 7): errors.UnknownTopicOrPartitionError.number,
            (orders.name, 0): 0,
        }
        stream.send(fetch_request(2, max_wait_ms=FOREVER_MS))
        settle(cluster)
        orders.produce(b"b")
        assert values_of(only(stream.receive()).records) == [b"b"]


@pytest.mark.parametrize(("step", "error"), [(-1, errors.FencedLeaderEpochError), (1, errors.UnknownLeaderEpochError)])
def test_another_leader_epoch_than_the_brokers_is_refused(make_cluster, step, error):
    cluster = make_cluster()
    orders = cluster.topic("orders")
    cluster.broker.terminate()
    cluster.restart()  # so that an earlier epoch exists
    epoch = orders.leader_epoch()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, epoch=epoch + step), max_wait_ms=FOREVER_MS))
        result = only(stream.receive())
        assert code(result) == error.number
        stream.send(fetch_request(2, fetch_partition(orders.name, epoch=epoch), max_wait_ms=0))
        assert code(only(stream.receive())) == 0
    if step < 0:
        assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (1, epoch)


def test_a_reader_of_a_truncated_log_is_informed(cluster, topic):
    orders = topic()
    orders.produce(b"a")
    epoch = orders.leader_epoch()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, 1, last_fetched_epoch=epoch), max_wait_ms=0))
        assert code(only(stream.receive())) == 0
        stream.send(fetch_request(2, fetch_partition(orders.name, 9, last_fetched_epoch=epoch), max_wait_ms=0))
        result = only(stream.receive())
        assert (code(result), "truncated" in result.error.message) == (errors.OffsetOutOfRangeError.number, True)
        stream.send(fetch_request(3, fetch_partition(orders.name, 1, last_fetched_epoch=epoch + 5), max_wait_ms=0))
        assert code(only(stream.receive())) == errors.OffsetOutOfRangeError.number


def test_deleting_a_topic_ends_its_readers_wait_with_an_error(cluster, topic):
    orders = topic()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name), max_wait_ms=FOREVER_MS))
        settle(cluster)
        cluster.admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(topics=[orders.name]))
        assert code(only(stream.receive())) == errors.UnknownTopicOrPartitionError.number
        again = cluster.topic(orders.name)
        again.produce(b"new life")
        stream.send(fetch_request(2, fetch_partition(orders.name, topic_id=orders.topic_id), max_wait_ms=0))
        assert code(only(stream.receive())) == errors.InconsistentTopicIdError.number
        stream.send(fetch_request(3, fetch_partition(orders.name, topic_id=again.topic_id)))
        assert values_of(only(stream.receive()).records) == [b"new life"]


@pytest.mark.parametrize("field", ["max_wait_ms", "min_bytes", "max_bytes"])
def test_a_negative_limit_ends_the_call(cluster, field):
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, **{field: -1}))
        with pytest.raises(grpc.RpcError) as failed:
            stream.receive()
    assert failed.value.details().startswith("INVALID_REQUEST: ")


def test_a_negative_limit_of_a_partition_is_that_partitions_error(cluster, topic):
    orders = topic()
    with fetch_stream(cluster) as stream:
        stream.send(fetch_request(1, fetch_partition(orders.name, max_bytes=-5), max_wait_ms=FOREVER_MS))
        assert code(only(stream.receive())) == errors.InvalidRequestError.number


def test_a_client_that_floods_with_requests_and_reads_no_answer_is_held_back(cluster, topic):
    """Responses wait in the broker only up to a limit; other clients are not affected."""
    orders = topic()
    flood = batch(*[b"x" * 1000] * 900)
    with produce_stream(cluster) as stream:
        for number in range(60):
            stream.send(produce_request(number, produce_partition(orders.name, flood)))
        assert all(not answer.results[0].error.code for answer in stream.half_close())
    own = cluster.connect()
    before = cluster.rss_bytes()
    with fetch_stream(cluster, own) as stream:
        stream.send(fetch_request(0, fetch_partition(orders.name)))
        stream.receive()
        for number in range(1, 2000):
            stream.send(fetch_request(number, fetch_partition(orders.name)))
        settle(cluster)
        assert topic().produce(b"a").base_offset == 0
        assert cluster.rss_bytes() - before < 100 * 1024 * 1024
    own.close()
