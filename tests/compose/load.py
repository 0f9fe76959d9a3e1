"""Send records during events in the stack, and check afterwards that all records are in the log."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

from headrace import Admin, Consumer, Producer, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError
from tests.compose.stack import BOOTSTRAP, LIMIT_S, until

TOPIC = "orders"
PARTITIONS = 12
#: The maximum time for an acknowledgement: longer than any event of the stack takes on a slow machine.
DELIVERY_MS = 280_000


def settings(**more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": BOOTSTRAP, **{key.replace("_", "."): value for key, value in more.items()}}


class Load:
    """Sends numbered records to all partitions in a thread until it is stopped, and keeps the outcome of each
    record."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ending = threading.Event()
        self._outcomes: list[tuple[bytes, Future[Any], float]] = []
        self.latencies_ms: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        until(lambda: len(self.latencies_ms) > 50, "records of the load are acknowledged")
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def acknowledged(self) -> int:
        return len(self.latencies_ms)

    def goes_on(self, records: int = 200) -> None:
        """Wait until ``count`` more records are acknowledged."""
        before = self.acknowledged
        until(lambda: self.acknowledged > before + records, f"{records} more records are acknowledged")

    def _run(self) -> None:
        with Producer(settings(acks="all", linger_ms=5, delivery_timeout_ms=DELIVERY_MS)) as producer:
            number = 0
            while not self._ending.wait(0.002):
                value = f"{self._name}-{number}".encode()
                sent = time.monotonic()
                future = producer.send(TOPIC, value=value, partition=number % PARTITIONS)
                future.add_done_callback(
                    lambda done, sent=sent: self.latencies_ms.append((time.monotonic() - sent) * 1e3)
                )
                self._outcomes.append((value, future, sent))
                number += 1
            producer.flush(timeout=DELIVERY_MS / 1e3)

    def values(self) -> set[bytes]:
        """Return the acknowledged records. Raise the error of a failed record, because no record may fail."""
        for _, future, _ in self._outcomes:
            future.result(timeout=LIMIT_S)
        return {value for value, _, _ in self._outcomes}

    def figures(self, name: str) -> dict[str, float]:
        """The number of records, and their p50, p99.9 and maximum latency in milliseconds, as a text for ``note``."""
        ordered = sorted(self.latencies_ms)
        return {
            f"{name}_p50_ms": round(ordered[len(ordered) // 2], 1),
            f"{name}_p999_ms": round(ordered[int(len(ordered) * 0.999)], 1),
            f"{name}_max_ms": round(ordered[-1], 1),
            f"{name}_records": len(ordered),
        }


def stored(topic: str = TOPIC) -> list[tuple[bytes | None, bytes]]:
    """Read the topic from the host up to its current end. Return the key and value of every record."""
    with Admin(settings()) as admin:
        (described,) = admin.describe_topics([topic])
    partitions = [TopicPartition(topic, each.partition) for each in described.partitions]
    found: list[tuple[bytes | None, bytes]] = []
    with Consumer(settings(auto_offset_reset="earliest")) as consumer:
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        deadline = time.monotonic() + LIMIT_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if time.monotonic() >= deadline:
                raise NotInTimeError("the topic is read to its end")
            found += [(record.key, record.value) for record in consumer.poll(timeout=1.0) if record.value is not None]
    return found


def check_nothing_lost(load: Load) -> None:
    acknowledged, found = load.values(), [value for _, value in stored()]
    assert len(acknowledged) > 100
    assert acknowledged - set(found) == set(), "acknowledged, and lost"
    assert len(found) == len(set(found)), "written twice"
