"""At most once: commit first, then work. No payment is handled twice; a crash loses the payments that the worker is
handling.

Use at-most-once for records that are useless if they arrive late or twice: a sensor's reading, a page view for a live
counter. scene.py kills the worker twenty times, and counts lost and duplicated receipts.

    python examples/at_most_once.py            # starts a LocalCluster
    python examples/at_most_once.py HOST:PORT
"""

from __future__ import annotations

from scene import PAYMENTS, play, receipt

from headrace import Consumer, Producer


def work(bootstrap: str, payments: str, receipts: str) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"at-most-once-of-{payments}",
        "auto.offset.reset": "earliest",  # a new group begins at the log start, not at its end
        "enable.auto.commit": False,
    }
    with Producer(bootstrap_servers=bootstrap) as producer, Consumer(settings) as consumer:
        consumer.subscribe([payments])
        for records in consumer.batches(max_records=10):
            consumer.commit()  # the commit precedes the work, and returns when all in-sync replicas have it
            for record in records:
                producer.send(receipts, receipt(record)).result(timeout=30)
            if records[-1].offset == PAYMENTS - 1:
                break


if __name__ == "__main__":
    play(work)
