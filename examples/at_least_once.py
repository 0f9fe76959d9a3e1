"""At least once: process first, then commit. After a crash the uncommitted records are processed again; none is
skipped.

So the handler must tolerate a repeated record: write with a key from the record (an upsert), or store (partition,
offset) with the result, in the same transaction.

    python examples/at_least_once.py            # starts a LocalCluster
    python examples/at_least_once.py HOST:PORT
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, Record, TopicPartition
from headrace.errors import TopicAlreadyExistsError

TOPIC, GROUP = "payments-handled-first", "bank"


def work(bootstrap: str, handle: Callable[[Record], None], end: int) -> None:
    """Process everything below ``end`` that the group has not committed, in batches of ten."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",  # a new group begins at the log start, not at its end
        "enable.auto.commit": False,
    }
    with Consumer(settings) as consumer:
        consumer.subscribe([TOPIC])
        reached = 0
        while reached < end:
            records = consumer.poll(timeout=1.0, max_records=10)
            for record in records:
                handle(record)
                reached = record.offset + 1
            consumer.commit()  # after the work; commits the positions after the polled records


def main(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin, contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(TOPIC, partitions=1)])
    with Producer(bootstrap_servers=bootstrap) as producer:
        last = [producer.send(TOPIC, f"payment {number}".encode()) for number in range(30)][-1].result(timeout=30)
    first = last.offset - 29
    handled: list[int] = []

    def handle(record: Record) -> None:
        handled.append(record.offset - first)
        if handled[-1] == 14 and handled.count(14) == 1:
            raise RuntimeError("the power fails")

    with contextlib.suppress(RuntimeError):
        work(bootstrap, handle, last.offset + 1)
    print("handled before the failure:", handled)
    with Consumer(bootstrap_servers=bootstrap, group_id=GROUP) as consumer:
        committed = consumer.committed(TopicPartition(TOPIC, 0)) or 0
    print("committed:", committed - first)
    before, handled = handled, []
    work(bootstrap, lambda record: handled.append(record.offset - first), last.offset + 1)
    print("handled after it:", handled)
    print("twice:", sorted(set(before) & set(handled)), "never:", sorted(set(range(30)) - set(before) - set(handled)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with LocalCluster() as cluster:
            main(cluster.bootstrap_servers)
