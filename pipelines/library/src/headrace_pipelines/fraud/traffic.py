"""Send the payments at a rate, and watch the alerts arrive."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple

from headrace import Consumer, Producer, TopicPartition
from headrace.partitioners import key_partition

from ..access import Access
from ..replays import is_replayed
from ..topics import records_in_topic
from ..workers import Worker
from .planting import Event, Fraud
from .schema import ACCOUNTS, ALERTS, PAYMENTS, Account, Alert, Payment, alert_of

#: Length in seconds of the slices in which payments are sent.
_SLICE_S = 0.01
#: Maximum number of sent records whose futures are not checked yet. When _OPEN_MAX futures are open, the traffic waits
#: for the oldest one, so a slow cluster slows the traffic down.
_OPEN_MAX = 20_000


class Before(NamedTuple):
    """The state that earlier runs have left: the number of events in each partition, and the sum of the topics' end
    offsets."""

    events: Counter[tuple[str, int]]
    offsets: int


def sent_before(access: Access) -> Before:
    """Find out what earlier runs have sent to the topics of the traffic.

    The producer keeps the order of events, so ``n`` records in a partition are the first ``n`` events for this
    partition. The topic of the accounts is compacted, so its end offsets count the events. Replayed dead letters do not
    count as events, even while their transaction is open.
    """
    events: Counter[tuple[str, int]] = Counter()
    with Consumer(access.consumer()) as consumer:
        partitions = [
            TopicPartition(name, each) for name in (PAYMENTS, ACCOUNTS) for each in consumer.partitions_for(name)
        ]
        ends = consumer.end_offsets(partitions)
        events.update({(ACCOUNTS, each.partition): ends[each] for each in partitions if each.topic == ACCOUNTS})
        for records in records_in_topic(consumer, PAYMENTS):
            events.update((PAYMENTS, each.partition) for each in records if not is_replayed(each))
    return Before(events, sum(ends.values()))


class Traffic(Worker):
    """Sends the first accounts of ``events``, waits for ``pay``, and sends the rest with ``rate`` payments per second.

    ``before``: the events that earlier runs have sent, which the traffic does not send again. ``payments`` counts all
    payments sent so far, and ``truth`` has their planted fraud. ``offsets``: the sum of the end offsets of the topics.
    """

    def __init__(
        self, access: Access, events: Iterable[Event], *, rate: float, partitions: int = 1, before: Before | None = None
    ) -> None:
        super().__init__("fraud traffic")
        self._access, self._events, self._rate = access, events, rate
        self._partitions, self._before = partitions, before or Before(Counter(), 0)
        self._paid_before = 0
        self._may_pay = threading.Event()
        self.has_sent_accounts = threading.Event()
        self.truth: dict[int, Fraud] = {}
        self.payments = 0
        self.offsets = self._before.offsets
        self.began_ms = 0.0  #: when the first payment of this run was sent
        self.ended_s = 0.0

    def work(self) -> None:
        try:
            self._send_all()
        finally:
            self.ended_s = time.time()

    def _send_all(self) -> None:
        began_s: float | None = None
        due_s = 0.0
        futures: deque[Future[Any]] = deque()
        with Producer(self._access.producer() | {"acks": "all", "linger.ms": 50}) as producer:
            for event in self._events:
                if self._is_sent(event):
                    continue
                if event.is_payment:
                    if began_s is None:
                        began_s = self._begin(producer)
                    due_s = (self.payments - self._paid_before) / self._rate
                    if not self._wait_until(began_s + due_s):
                        break
                    self._count(event)
                # The timestamp of a delayed payment is the time when it was due, so its latency includes the delay.
                # Accounts and payments get timestamps from the same clock, so timestamps have the order of the events.
                timestamp_ms = time.time() * 1000
                if began_s is not None:
                    timestamp_ms = min(timestamp_ms, self.began_ms + due_s * 1000)
                futures.append(_send(producer, event, int(timestamp_ms)))
                self.offsets += 1
                while len(futures) > _OPEN_MAX or (futures and futures[0].done()):
                    futures.popleft().result(timeout=120)
            producer.flush(timeout=120)
            for future in futures:
                future.result(timeout=0)
            if began_s is None:  # earlier runs have sent all payments
                self._begin(producer)

    def _is_sent(self, event: Event) -> bool:
        """Whether an earlier run has sent the event. A payment that was sent is added to ``payments`` and ``truth``."""
        partition = (_topic(event), key_partition(event.customer.encode(), self._partitions))
        if not self._before.events[partition]:
            return False
        self._before.events[partition] -= 1
        if event.is_payment:
            self._paid_before += 1
            self._count(event)
        return True

    def _count(self, payment: Event) -> None:
        self.payments += 1
        if payment.fraud is not None and isinstance(payment.content, Payment):
            self.truth[payment.content.payment] = payment.fraud

    def _begin(self, producer: Producer) -> float:
        """Wait for ``pay``; returns the time of the first payment."""
        producer.flush(timeout=120)
        self.has_sent_accounts.set()
        self._may_pay.wait()
        self.began_ms = time.time() * 1000
        return time.monotonic()

    def _wait_until(self, due_s: float) -> bool:
        """Wait for ``due_s`` (time.monotonic()) if that time is more than one slice (_SLICE_S) ahead. Returns False if
        the traffic was stopped."""
        left_s = due_s - time.monotonic()
        if left_s > _SLICE_S:
            self.is_stopped.wait(left_s)
        return not self.is_stopped.is_set()

    @property
    def payments_per_s(self) -> float:
        """The rate of this run."""
        return (self.payments - self._paid_before) / (self.ended_s - self.began_ms / 1000)

    def pay(self) -> None:
        """Allow the traffic to send the payments, after the first accounts."""
        self._may_pay.set()

    def stop(self) -> None:
        """Ask the thread to end, also while it waits for ``pay``; and wait for its end."""
        self.is_stopped.set()
        self._may_pay.set()
        super().stop()


def _topic(event: Event) -> str:
    return PAYMENTS if event.is_payment else ACCOUNTS


def _send(producer: Producer, event: Event, timestamp_ms: int) -> Future[Any]:
    content = event.content
    value = content.encoded() if isinstance(content, Payment | Account) else content
    return producer.send(_topic(event), key=event.customer.encode(), value=value, timestamp_ms=timestamp_ms)


class Seen(NamedTuple):
    """An alert that the watch has read: the timestamp of its record, and when the watch received it."""

    alert: Alert
    written_ms: int
    seen_ms: float


class Watch(Worker):
    """Reads the alerts as an application would: with ``read_committed``, and from the first alert."""

    def __init__(self, access: Access, partitions: int) -> None:
        super().__init__("fraud watch")
        self._access = access
        self._partitions = [TopicPartition(ALERTS, number) for number in range(partitions)]
        self.seen: list[Seen] = []

    def work(self) -> None:
        with Consumer(self._access.consumer() | {"isolation.level": "read_committed"}) as consumer:
            consumer.assign(self._partitions)
            consumer.seek_to_beginning(*self._partitions)
            while not self.is_stopped.is_set():
                for record in consumer.poll(timeout=0.2):
                    self.seen.append(Seen(alert_of(record.value or b""), record.timestamp_ms, time.time() * 1000))
