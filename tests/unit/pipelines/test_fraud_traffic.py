"""The traffic of the fraud pipeline: the latency of a payment begins when the payment is due."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from headrace.partitioners import key_partition
from headrace_pipelines.access import Access
from headrace_pipelines.fraud import traffic
from headrace_pipelines.fraud.planting import START_MS, Event, events
from headrace_pipelines.fraud.schema import Account, Payment


class SlowProducer:
    """A producer whose first payment takes until ``goes_on``."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.sent: list[tuple[str, int]] = []

    def send(self, topic: str, *, key: bytes, value: bytes | None, timestamp_ms: int) -> Future[None]:
        if topic == "fraud.payments" and len(self.sent) == 1:
            assert self.goes_on.wait(60)
        self.sent.append((topic, timestamp_ms))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def flush(self, timeout: float) -> None:
        pass

    def __enter__(self) -> SlowProducer:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def test_a_payment_that_is_sent_late_has_the_time_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000.0]
    producer = SlowProducer()
    monkeypatch.setattr(traffic, "Producer", lambda _: producer)
    monkeypatch.setattr(traffic, "time", SimpleNamespace(time=lambda: clock[0], monotonic=lambda: clock[0]))
    paid = [Event("c", Payment(number, "c", START_MS, 500, None)) for number in range(4)]
    late = Event("c", Account("c", 4_000))
    events = [Event("c", Account("c", 3_000)), *paid[:2], late, *paid[2:], Event("c", None)]
    sender = traffic.Traffic(Access("nowhere"), events, rate=100)
    sender.pay()
    sender.start()
    while not sender.began_ms:
        threading.Event().wait(0.001)  # polls
    clock[0] += 5  # the cluster does not answer for five seconds
    producer.goes_on.set()
    sender.result()
    began = 1_000_000
    due = [began + milliseconds for milliseconds in (0, 10, 10, 20, 30, 30)]
    assert [at for _, at in producer.sent[1:]] == due, "accounts are in the order of the payments"
    assert sender.payments == 4
    assert sender.offsets == 7


class Recorder(SlowProducer):
    """A producer that keeps the records that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, bytes, bytes | None]] = []

    def send(self, topic: str, *, key: bytes, value: bytes | None, timestamp_ms: int) -> Future[None]:
        self.records.append((topic, key, value))
        done: Future[None] = Future()
        done.set_result(None)
        return done


@pytest.mark.parametrize("part", [0.0, 0.01, 0.4, 1.0])
def test_a_continued_traffic_sends_what_the_topics_lack(monkeypatch: pytest.MonkeyPatch, part: float) -> None:
    """Each partition has a beginning of its events, and each beginning has another length."""

    def sent(before: traffic.Before | None) -> tuple[list[tuple[str, bytes, bytes | None]], traffic.Traffic]:
        producer = Recorder()
        monkeypatch.setattr(traffic, "Producer", lambda _: producer)
        sender = traffic.Traffic(Access("nowhere"), events(3, 900), rate=1e6, partitions=2, before=before)
        sender.pay()
        sender.start()
        sender.result()
        return producer.records, sender

    whole, unbroken = sent(None)
    by_partition: dict[tuple[str, int], list[tuple[str, bytes, bytes | None]]] = {}
    for topic, key, value in whole:
        by_partition.setdefault((topic, key_partition(key, 2)), []).append((topic, key, value))
    assert len(by_partition) == 4
    lengths = {where: round(len(records) * part) for where, records in by_partition.items()}
    there = [each for where, records in by_partition.items() for each in records[: lengths[where]]]
    rest, continued = sent(traffic.Before(Counter(lengths), len(there)))
    assert Counter(rest) + Counter(there) == Counter(whole)
    assert [each for each in whole if each in set(rest)] == rest
    assert (continued.payments, continued.truth) == (900, unbroken.truth)
    assert continued.offsets == unbroken.offsets == len(whole)
