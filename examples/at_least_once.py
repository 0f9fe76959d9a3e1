"""At least once: work first, then commit. No payment is lost; after a crash the worker handles uncommitted payments
again.

The work must therefore tolerate a repeated record: write with a key from the record (an upsert), or store (partition,
offset) with the result. scene.py kills the worker twenty times, and counts lost and duplicated receipts.

    python examples/at_least_once.py            # starts a LocalCluster
    python examples/at_least_once.py HOST:PORT
"""

from __future__ import annotations

from scene import PAYMENTS, play, receipt

from headrace import Consumer, Producer


def work(bootstrap: str, payments: str, receipts: str) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"at-least-once-of-{payments}",
        "auto.offset.reset": "earliest",  # a new group begins at the log start, not at its end
        "enable.auto.commit": False,
    }
    with Producer(bootstrap_servers=bootstrap) as producer, Consumer(settings) as consumer:
        consumer.subscribe([payments])
        for records in consumer.batches(max_records=10):
            for record in records:
                producer.send(receipts, receipt(record)).result(timeout=30)
            consumer.commit()  # the commit follows the work, and covers these records
            if records[-1].offset == PAYMENTS - 1:
                break


if __name__ == "__main__":
    play(work)
