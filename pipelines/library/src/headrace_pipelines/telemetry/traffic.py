"""Send the records of the fleet at their times, at a multiple of real time."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from headrace import Consumer, Producer
from headrace.partitioners import key_partition

from ..access import Access
from ..replays import is_replayed
from ..topics import records_in_topic
from ..workers import Worker
from .fleet import AGAIN, GOOD, PERIOD_S, Delivery
from .schema import READINGS

#: Maximum amount of sent but unacknowledged records, in seconds of the fleet. If the leader of a partition dies, the
#: partition falls behind the other partitions by at most OPEN_S; DISORDER_MS allows for this delay.
OPEN_S = 10
_SLICE_S = 0.02


def sent_before(access: Access) -> Counter[int]:
    """The number of records of each partition that earlier runs have sent, without ticks and replayed dead letters."""
    found: Counter[int] = Counter()
    with Consumer(access.consumer()) as consumer:
        for records in records_in_topic(consumer, READINGS):
            found.update(each.partition for each in records if each.value is not None and not is_replayed(each))
    return found


class Traffic(Worker):
    """Sends ``deliveries``: in one second, the records of ``speed`` seconds of the fleet. ``before``: the number of
    records of each partition that earlier runs have sent. ``total``: the approximate number of records. ``sent`` counts
    the records, including the records of earlier runs (``sent_before``); ``kinds`` counts them by kind (fleet.KINDS).
    ``newest_ms`` has the time of the latest good reading of each device.
    """

    def __init__(
        self,
        access: Access,
        deliveries: Iterable[Delivery],
        *,
        devices: int,
        minutes: int,
        speed: float,
        partitions: int,
        before: Counter[int] | None = None,
    ) -> None:
        super().__init__("telemetry traffic")
        self._access, self._deliveries, self._speed = access, deliveries, speed
        self._partitions, self._before = partitions, Counter(before or {})
        self._open_max = max(1, devices * OPEN_S // PERIOD_S)
        self.total = devices * minutes * 60 // PERIOD_S
        self.sent = 0
        self.sent_before = sum(self._before.values())
        self.kinds: Counter[str] = Counter()
        self.newest_ms: dict[str, int] = {}

    def work(self) -> None:
        began_s: float | None = None
        start_ms = 0
        futures: deque[Future[Any]] = deque()
        with Producer(self._access.producer() | {"acks": "all", "linger.ms": 50}) as producer:
            for delivery in self._deliveries:
                key = delivery.device.encode()
                if not self._is_sent(key):
                    if began_s is None:
                        began_s, start_ms = time.monotonic(), delivery.at_ms
                    if not self._wait_until(began_s + (delivery.at_ms - start_ms) / 1000 / self._speed):
                        break
                    futures.append(producer.send(READINGS, key=key, value=delivery.value, timestamp_ms=delivery.at_ms))
                self._count(delivery)
                while len(futures) > self._open_max or (futures and futures[0].done()):
                    futures.popleft().result(timeout=120)
            producer.flush(timeout=120)
            for future in futures:
                future.result(timeout=0)

    def _is_sent(self, key: bytes) -> bool:
        """Whether an earlier run has sent the next record of the key's partition. Earlier runs have sent the first
        records of each partition, because the producer keeps their order."""
        partition = key_partition(key, self._partitions)
        if not self._before[partition]:
            return False
        self._before[partition] -= 1
        return True

    def _wait_until(self, due_s: float) -> bool:
        """Wait for ``due_s`` (time.monotonic()) if that time is more than one slice (_SLICE_S) ahead. Returns False if
        the traffic was stopped."""
        left_s = due_s - time.monotonic()
        if left_s > _SLICE_S:
            self.is_stopped.wait(left_s)
        return not self.is_stopped.is_set()

    def _count(self, delivery: Delivery) -> None:
        self.sent += 1
        self.kinds[delivery.kind] += 1
        if delivery.kind == GOOD:
            self.newest_ms[delivery.device] = max(delivery.time_ms, self.newest_ms.get(delivery.device, 0))

    @property
    def bad(self) -> int:
        """The number of records that are not good readings."""
        return self.sent - self.kinds[GOOD] - self.kinds[AGAIN]
