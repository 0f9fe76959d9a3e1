"""Run Headrace producers that write one transaction after the other; print one JSON object.
bench/java/Transactions.java does the same with Kafka's producers.

    transactions_client.py BOOTSTRAP TOPIC records|ms SIZE PRODUCERS SECONDS --api object|many|arrow [--plain]

A transaction has SIZE records of 100 random bytes, or sends at full speed for SIZE milliseconds. A latency is the time
from the begin of a transaction to the end of its commit. --plain: no transactions; the producer sends without a break,
and waits for all acknowledgements at the end of the run.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
from measure import percentiles

from headrace import Producer

#: Number of records of one ``send_many`` or ``send_arrow`` call.
PORTION = 1_000
#: Number of records after which the clock is read.
LOOK = 64


def sender(producer: Producer, topic: str, api: str, seed: int) -> Callable[[int], object]:
    """Return a function that sends some records and returns their number."""
    value = random.Random(seed).randbytes(100)
    if api == "arrow":
        table = pa.table({"value": pa.array([value] * PORTION, pa.binary())})
        return lambda count: producer.send_arrow(topic, table if count == PORTION else table.slice(0, count))
    if api == "many":
        values = [value] * PORTION
        return lambda count: producer.send_many(topic, values if count == PORTION else values[:count])

    def send(count: int) -> None:
        for _ in range(count):
            producer.send(topic, value)

    return send


class Driver:
    """One producer, which has a thread of its own."""

    def __init__(self, asked: argparse.Namespace, number: int) -> None:
        config: dict[str, Any] = {"bootstrap.servers": asked.bootstrap, "acks": "all"}
        if not asked.plain:
            config["transactional.id"] = f"{asked.topic}-{number}"
        self.producer = Producer(config)
        self._asked = asked
        self._send = sender(self.producer, asked.topic, asked.api, number)
        self.latencies: list[float] = []
        self.records_per_s = self.transactions_per_s = 0.0

    def once(self) -> int:
        """Write one transaction; return its number of records."""
        within: AbstractContextManager[None] = nullcontext() if self._asked.plain else self.producer.transaction()
        with within:
            if self._asked.kind == "ms":
                return self._send_for(self._asked.size / 1e3)
            left = self._asked.size
            while left:
                count = min(left, PORTION)
                self._send(count)
                left -= count
            return int(self._asked.size)

    def _send_for(self, seconds: float) -> int:
        portion = LOOK if self._asked.api == "object" else PORTION
        sent, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._send(portion)
            sent += portion
        return sent

    def run(self, go: threading.Barrier) -> None:
        self.once()
        self.producer.flush()
        go.wait()
        begun = before = time.perf_counter()
        end, records = begun + self._asked.seconds, 0
        while before < end:
            records += self.once()
            after = time.perf_counter()
            self.latencies.append((after - before) * 1e3)
            before = after
        self.producer.flush()
        took = time.perf_counter() - begun
        self.records_per_s, self.transactions_per_s = records / took, len(self.latencies) / took
        self.producer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("kind", choices=("records", "ms"))
    parser.add_argument("size", type=int)
    parser.add_argument("producers", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--api", choices=("object", "many", "arrow"), default="object")
    parser.add_argument("--plain", action="store_true")
    asked = parser.parse_args()
    drivers = [Driver(asked, number) for number in range(asked.producers)]
    go = threading.Barrier(len(drivers))
    threads = [threading.Thread(target=each.run, args=(go,)) for each in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = percentiles([latency for each in drivers for latency in each.latencies])
    print(
        json.dumps(
            {
                "records_per_s": round(sum(each.records_per_s for each in drivers), 1),
                "transactions_per_s": round(sum(each.transactions_per_s for each in drivers), 2),
                "latency_ms": {"p50": found["p50"], "p99": found["p99"]},
            }
        )
    )


if __name__ == "__main__":
    main()
