"""At most once: commit first, then process. No record is processed twice; those in process during a crash are skipped.

For records that are useless late or twice: a sensor's reading, a page view for a live counter.

    python examples/at_most_once.py            # starts a LocalCluster
    python examples/at_most_once.py HOST:PORT
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, Record, TopicPartition
from headrace.errors import TopicAlreadyExistsError

TOPIC, GROUP = "readings-committed-first", "dashboard"


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
            consumer.commit()  # before the work; returns when the commit is on all in-sync replicas
            for record in records:
                handle(record)
                reached = record.offset + 1


def main(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin, contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(TOPIC, partitions=1)])
    with Producer(bootstrap_servers=bootstrap) as producer:
        last = [producer.send(TOPIC, f"reading {number}".encode()) for number in range(30)][-1].result(timeout=30)
    first = last.offset - 29
    handled: list[int] = []

    def handle(record: Record) -> None:
        if record.offset - first == 14:
            raise RuntimeError("the power fails")
        handled.append(record.offset - first)

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
