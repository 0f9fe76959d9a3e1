"""Exactly once: one transaction contains the receipts and the group's offsets. No receipt is lost, and no receipt is
duplicated.

Readers of the receipts use isolation.level=read_committed. A killed worker leaves an open transaction; the next worker
has the same transactional.id, and aborts that transaction at its first call. scene.py kills the worker twenty times,
and counts lost and duplicated receipts.

    python examples/exactly_once.py            # starts a LocalCluster
    python examples/exactly_once.py HOST:PORT
"""

from __future__ import annotations

from scene import PAYMENTS, play, receipt

from headrace import Consumer, Producer
from headrace.errors import TransactionAbortableError


def work(bootstrap: str, payments: str, receipts: str) -> None:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"exactly-once-of-{payments}",
        "auto.offset.reset": "earliest",  # a new group begins at the log start, not at its end
        "enable.auto.commit": False,  # the transactions commit the offsets
        "isolation.level": "read_committed",
    }
    name = f"worker-of-{payments}"
    with Producer(bootstrap_servers=bootstrap, transactional_id=name) as producer, Consumer(settings) as consumer:
        producer.init_transactions()  # fences the killed worker, and aborts its transaction
        consumer.subscribe([payments])
        for records in consumer.batches(max_records=10):
            try:
                with producer.transaction():
                    for record in records:
                        producer.send(receipts, receipt(record))
                    producer.send_offsets(consumer)
            except TransactionAbortableError:
                consumer.seek_to_committed()  # read these records again
                continue
            if records[-1].offset == PAYMENTS - 1:
                break


if __name__ == "__main__":
    play(work)
