"""An idempotent producer: under any failure, each acknowledged record is in the log once, in sending order."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import grpc
import pytest

from headrace import Producer
from headrace.accumulator import SendBatch, TopicQueues
from headrace.errors import DeliveryTimeoutError, HeadraceError, UnknownOutcomeError, UnsupportedVersionError
from headrace_core.records import check_batch
from tests.worlds.waiting import until

NOT_LEADER, TIMED_OUT, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, DUPLICATE, INVALID_RECORD = 6, 7, 19, 45, 46, 87


def producer(cluster: Any, **settings: Any) -> Producer:
    given = {"enable_idempotence": True, "retry_backoff_ms": 5, "retry_backoff_max_ms": 20, **settings}
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **given)


def headers(cluster: Any) -> list[Any]:
    """The headers of every batch that was sent, in order."""
    with cluster.changed:
        return [check_batch(item.records, 0) for _, request in cluster.produced for item in request.partitions]


def values(cluster: Any, topic: str = "t", partition: int = 0) -> list[bytes]:
    return [bytes(record.value) for record in cluster.records(topic, partition)]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_batches_are_numbered_in_one_row_by_every_way_of_sending(fake: Any, compression: str) -> None:
    import pyarrow as pa

    with producer(fake, compression_type=compression) as out:
        out.send("t", b"0").result(60)
        out.send_many("t", [b"1", b"2", b"3"]).result(60)
        out.send_arrow("t", pa.table({"value": pa.array([b"4", b"5"], pa.binary())})).result(60)
        out.send("t", b"6").result(60)
    assert len(fake.identities) == 1
    found = headers(fake)
    assert {(header.producer_id, header.producer_epoch) for header in found} == {(1_001, 0)}
    assert [header.base_sequence for header in found] == [0, 1, 4, 6]
    assert values(fake) == [b"%d" % number for number in range(7)]


def test_a_stamp_changes_the_number_and_the_checksum_with_it(fake: Any) -> None:
    with producer(fake) as out:
        out.send("t", b"0").result(60)
        core = out._core
        accumulator = core.accumulator
        queues = TopicQueues(accumulator, "t", 1, 1 << 20)
        batch = SendBatch(queues.queues[0], None, fake.logs["t", 0][0], 1)
        batch.stamp(5, 3, 9)
        header = check_batch(batch.data, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, 9)


@pytest.mark.parametrize("verdict", ["silent", "break", TIMED_OUT])
def test_batch_whose_answer_is_lost_is_known_when_it_comes_again(fake: Any, verdict: Any) -> None:
    with producer(fake, request_timeout_ms=400) as out:
        out.send("t", b"0").result(60)
        once = iter([verdict])

        def lost(broker: int, item: Any) -> Any:
            what = next(once, 0)
            if what == TIMED_OUT:
                fake.append_numbered(item.topic, item.partition, item.records)
            return what

        fake.on_produce = lost
        sent = [out.send("t", b"%d" % number) for number in range(1, 20)]
        assert [future.result(60).offset for future in sent] == list(range(1, 20))
    assert values(fake) == [b"%d" % number for number in range(20)]


def test_batches_behind_a_refused_one_are_refused_and_come_again_in_order(fake: Any) -> None:
    with producer(fake, batch_size=200, linger_ms=0) as out:
        out.send("t", b"first").result(60)
        verdicts = iter([NOT_ENOUGH_REPLICAS, 0, 0, 0, 0, NOT_ENOUGH_REPLICAS])
        fake.hold_answers(True)
        fake.on_produce = lambda broker, item: next(verdicts, 0)
        sent = [out.send("t", b"%04d" % number * 20) for number in range(40)]
        fake.hold_answers(False)
        assert [future.result(60).offset for future in sent] == list(range(1, 41))
    assert values(fake)[1:] == [b"%04d" % number * 20 for number in range(40)]
    assert len(fake.identities) == 1


def test_first_batch_goes_alone_so_that_the_second_is_not_taken_for_it(fake: Any) -> None:
    verdicts = iter([NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS])
    fake.on_produce = lambda broker, item: next(verdicts, 0)
    with producer(fake, batch_size=200) as out:
        sent = [out.send("t", b"%04d" % number * 20) for number in range(20)]
        assert [future.result(60).offset for future in sent] == list(range(20))


def test_duplicate_whose_offset_nobody_knows_is_a_success(fake: Any) -> None:
    fake.on_produce = lambda broker, item: DUPLICATE
    with producer(fake) as out:
        assert out.send("t", b"v").result(60).offset == -1


def test_bad_record_fails_alone_and_the_rest_goes_on_under_a_new_epoch(fake: Any) -> None:
    with producer(fake) as out:
        out.send("t", b"0").result(60)
        fake.on_produce = lambda broker, item: INVALID_RECORD if b"bad" in item.records else 0
        error = out.send("t", b"bad").exception(30)
        assert error is not None
        assert error.code == "INVALID_RECORD"
        assert out.send("t", b"1").result(60).offset == 1
    assert values(fake) == [b"0", b"1"]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers(fake)][-1] == (1_001, 1, 0)
    assert (fake.identities[1].producer_id, fake.identities[1].producer_epoch) == (1_001, 0)


def test_broker_that_lost_its_log_is_written_to_under_a_new_epoch(fake: Any) -> None:
    with producer(fake) as out:
        for number in range(3):
            out.send("t", b"%d" % number).result(60)
        with fake.changed:  # an unclean election: the new leader lacks the last two batches
            _, batches = fake.producers["t", 0][1_001]
            batches.pop()
            batches.pop()
            del fake.logs["t", 0][1:]
            fake.ends["t", 0] = 1
        assert out.send("t", b"3").result(60).offset == 1
    assert values(fake) == [b"0", b"3"]


def test_expired_batch_that_may_be_written_is_never_sent_under_another_number(fake: Any) -> None:
    """KAFKA-18579. The broker appends the record and does not answer. The record after an unanswered record is written
    once, and after that record."""
    with producer(fake, request_timeout_ms=100, delivery_timeout_ms=2_000) as out:
        out.send("t", b"0").result(60)
        fake.on_produce = lambda broker, item: "silent"
        error = out.send("t", b"1").exception(30)
        assert isinstance(error, UnknownOutcomeError), error
        fake.on_produce = lambda broker, item: 0
        assert out.send("t", b"2").result(60).offset == 2
    assert values(fake) == [b"0", b"1", b"2"]


def test_outcome_that_is_unknown_before_its_time_is_over_is_not_said_to_have_timed_out(fake: Any) -> None:
    """The response to the first attempt is lost; at the second attempt the broker does not know the earlier batches."""
    with producer(fake, request_timeout_ms=400) as out:
        out.send("t", b"0").result(60)
        verdicts = iter(["silent", OUT_OF_ORDER])
        fake.on_produce = lambda broker, item: next(verdicts, 0)
        error = out.send("t", b"1").exception(60)
        assert isinstance(error, UnknownOutcomeError), error
        assert "the broker's answer forbids a retry: they may or may not be in the log" in error.message
        assert "the last failure: OUT_OF_ORDER_SEQUENCE_NUMBER" in error.message
        assert "delivery.timeout.ms" not in error.message
        assert out.send("t", b"2").exception(60) is None
    assert [(h.producer_epoch, h.base_sequence) for h in headers(fake)] == [(0, 0), (0, 1), (0, 1), (1, 0)]


def test_no_producer_id_is_said_why(fake: Any) -> None:
    def unavailable(context: Any) -> None:
        context.abort(grpc.StatusCode.UNAVAILABLE, "COORDINATOR_NOT_AVAILABLE: no controller leads")

    fake.on_identity = unavailable
    with producer(fake, request_timeout_ms=100, delivery_timeout_ms=2_000) as out:
        error = out.send("t", b"v").exception(30)
        assert isinstance(error, DeliveryTimeoutError)
        assert not isinstance(error, UnknownOutcomeError)
        assert "no producer id" in error.message
        assert "no controller leads" in error.message
        fake.on_identity = lambda context: None
        assert out.send("t", b"v").result(60).offset == 0


def test_brokers_that_give_no_ids_are_an_error_that_says_what_to_do(fake: Any) -> None:
    fake.on_identity = lambda context: context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
    with producer(fake) as out:
        error = out.send("t", b"v").exception(30)
    assert isinstance(error, UnsupportedVersionError)
    assert "enable.idempotence=false" in error.message


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_chaos_loses_doubles_and_reorders_nothing(fake_cluster: Any, rng: Any, compression: str) -> None:
    """Refusals, lost responses, broken streams and leader changes, while records are sent to two partitions."""
    cluster = fake_cluster(2)
    cluster.create("t", 2)
    chance = random.Random(rng.random())
    verdicts = [0] * 12 + [NOT_ENOUGH_REPLICAS, "silent", "break", NOT_LEADER]
    trouble = True
    cluster.on_produce = lambda broker, item: chance.choice(verdicts) if trouble else 0
    stop = threading.Event()

    def elect() -> None:
        while not stop.wait(0.05):
            cluster.move("t", chance.randrange(2), chance.randrange(2))

    mover = threading.Thread(target=elect)
    mover.start()
    settings = {"request_timeout_ms": 150, "delivery_timeout_ms": 60_000, "batch_size": 300}
    try:
        with producer(cluster, compression_type=compression, **settings) as out:
            sent = []
            for number in range(2_000):
                sent.append(out.send("t", b"%06d" % number, partition=number % 2))
                if number % 100 == 0:
                    asked = len(cluster.produced)
                    until(lambda asked=asked: len(cluster.produced) > asked)
            trouble = False
            stop.set()  # on a slow machine a leader that changes every 50 ms may never be found
            outcomes = [future.exception(60) for future in sent]
    finally:
        stop.set()
        mover.join()
    unknown = {b"%06d" % number for number, error in enumerate(outcomes) if error is not None}
    assert not [error for error in outcomes if error is not None and not isinstance(error, HeadraceError)]
    for partition in (0, 1):
        found = values(cluster, "t", partition)
        assert [value for value, times in Counter(found).items() if times > 1] == []
        assert found == sorted(found)
        wanted = [b"%06d" % number for number in range(2_000) if number % 2 == partition]
        assert set(wanted) - unknown <= set(found)
    assert len(unknown) == 0, sorted(unknown)[:5]
