"""Send the payments at a rate, and watch the alerts arrive."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from headrace import Consumer, Producer, TopicPartition

from .planting import Event, Fraud
from .schema import ACCOUNTS, ALERTS, PAYMENTS, Account, Alert, Payment, alert_of

#: Length in seconds of the slices in which payments are sent.
_SLICE_S = 0.01
#: Maximum number of futures that are checked later; the traffic then waits for the oldest future, so a slow cluster
#: slows the traffic down.
_OPEN_MAX = 20_000


class Traffic(threading.Thread):
    """Sends the first accounts of ``events``, waits for ``pay``, and sends the rest with ``rate`` payments a second.

    ``truth``: the planted fraud of the payments sent so far.
    """

    def __init__(self, servers: str, events: Iterable[Event], *, rate: float) -> None:
        super().__init__(name="fraud traffic", daemon=True)
        self._servers, self._events, self._rate = servers, events, rate
        self._stop_asked = threading.Event()
        self._may_pay = threading.Event()
        self._failure: BaseException | None = None
        self.has_sent_accounts = threading.Event()
        self.truth: dict[int, Fraud] = {}
        # Numbers of payments and of records sent so far; records are payments and accounts.
        self.payments = self.records = 0
        self.began_ms = 0.0  #: when the first payment was sent
        self.ended_s = 0.0

    def run(self) -> None:
        try:
            self._send_all()
        except BaseException as error:  # noqa: BLE001 - ``result`` raises it in the thread that waits
            self._failure = error
        self.ended_s = time.time()

    def _send_all(self) -> None:
        began_s: float | None = None
        due_s = 0.0
        futures: deque[Future[Any]] = deque()
        with Producer({"bootstrap.servers": self._servers, "acks": "all", "linger.ms": 50}) as producer:
            for event in self._events:
                if event.is_payment:
                    if began_s is None:
                        producer.flush(timeout=120)
                        self.has_sent_accounts.set()
                        self._may_pay.wait()
                        began_s, self.began_ms = time.monotonic(), time.time() * 1000
                    due_s = self.payments / self._rate
                    if not self._wait_until(began_s + due_s):
                        break
                    self.payments += 1
                # A payment that is sent late has the timestamp when it was due, so its latency includes the delay. The
                # accounts get timestamps by the same clock, so the order of timestamps is the order of events.
                timestamp_ms = time.time() * 1000
                if began_s is not None:
                    timestamp_ms = min(timestamp_ms, self.began_ms + due_s * 1000)
                futures.append(_send(producer, event, int(timestamp_ms)))
                self.records += 1
                if event.fraud is not None and isinstance(event.content, Payment):
                    self.truth[event.content.payment] = event.fraud
                while len(futures) > _OPEN_MAX or (futures and futures[0].done()):
                    futures.popleft().result(timeout=120)
            producer.flush(timeout=120)
            for future in futures:
                future.result(timeout=0)

    def _wait_until(self, due_s: float) -> bool:
        """Wait if the payment is not due in this slice. Returns False if the traffic was stopped."""
        left_s = due_s - time.monotonic()
        if left_s > _SLICE_S:
            self._stop_asked.wait(left_s)
        return not self._stop_asked.is_set()

    @property
    def seconds(self) -> float:
        """For how many seconds payments were sent."""
        return self.ended_s - self.began_ms / 1000

    def pay(self) -> None:
        """Allow the traffic to send the payments, after the first accounts."""
        self._may_pay.set()

    def stop(self) -> None:
        self._stop_asked.set()
        self._may_pay.set()

    def result(self) -> None:
        """Wait for the end; raises the error that ended the traffic."""
        self.join()
        if self._failure is not None:
            raise self._failure


def _send(producer: Producer, event: Event, timestamp_ms: int) -> Future[Any]:
    topic = PAYMENTS if event.is_payment else ACCOUNTS
    content = event.content
    value = content.encoded() if isinstance(content, Payment | Account) else content
    return producer.send(topic, key=event.customer.encode(), value=value, timestamp_ms=timestamp_ms)


class Seen(NamedTuple):
    """An alert that the watch has read: the timestamp of its record, and when the watch received it."""

    alert: Alert
    written_ms: int
    seen_ms: float


class Watch(threading.Thread):
    """Reads the alerts as an application would: with ``read_committed``, and from the first one."""

    def __init__(self, servers: str, partitions: int) -> None:
        super().__init__(name="fraud watch", daemon=True)
        self._servers = servers
        self._partitions = [TopicPartition(ALERTS, number) for number in range(partitions)]
        self._stop_asked = threading.Event()
        self._failure: BaseException | None = None
        self.seen: list[Seen] = []

    def run(self) -> None:
        try:
            settings = {"bootstrap.servers": self._servers, "isolation.level": "read_committed"}
            with Consumer(settings) as consumer:
                consumer.assign(self._partitions)
                consumer.seek_to_beginning(*self._partitions)
                while not self._stop_asked.is_set():
                    for record in consumer.poll(timeout=0.2):
                        self.seen.append(Seen(alert_of(record.value), record.timestamp_ms, time.time() * 1000))
        except BaseException as error:  # noqa: BLE001 - ``stop`` raises it
            self._failure = error

    def stop(self) -> None:
        """End the watch; raises the error that ended the watch earlier."""
        self._stop_asked.set()
        self.join()
        if self._failure is not None:
            raise self._failure
