"""The traffic of the fraud pipeline: the latency of a payment begins when the payment is due."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from headrace_pipelines.fraud import traffic
from headrace_pipelines.fraud.planting import START_MS, Event
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
    sender = traffic.Traffic("nowhere", events, rate=100)
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
    assert sender.records == 7
