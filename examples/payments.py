"""Payments: exactly once, and in order for each user.

Orders are keyed by user, so that all orders of a user are in one partition, in order. Two workers share the partitions
in a group. A worker reads a batch, writes a payment for each order, and commits payments and offsets in a transaction.
In the middle of the run one worker leaves and returns, so its partitions move to the other worker and back.

Each user's payments have the same order as the user's orders. The order is kept, because a partition has one reader at
a time. The group's coordinator refuses the offsets of a worker that has lost the partition, so this worker's
transaction is aborted.

    python examples/payments.py            # starts a LocalCluster
    python examples/payments.py HOST:PORT
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections import defaultdict

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import TransactionAbortableError

USERS, ORDERS_PER_USER, PARTITIONS = 20, 50, 4


class Worker(threading.Thread):
    """Reads orders and writes payments until ``stop()``."""

    def __init__(self, name: str, bootstrap: str, suffix: str) -> None:
        super().__init__(name=name)
        self.failure: BaseException | None = None
        self._servers, self._suffix, self._stopped = bootstrap, suffix, threading.Event()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failure = error
            raise

    def _work(self) -> None:
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": f"payments-{self._suffix}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transactions commit the offsets
            "isolation.level": "read_committed",
        }
        transactional_id = f"{self.name}-{self._suffix}"  # each worker has a transactional id of its own
        with (
            Producer(bootstrap_servers=self._servers, transactional_id=transactional_id) as producer,
            Consumer(settings) as consumer,
        ):
            consumer.subscribe([f"orders-{self._suffix}"])
            while not self._stopped.is_set():
                records = consumer.poll(timeout=0.2, max_records=20)
                if not records:
                    continue
                try:
                    with producer.transaction():
                        for record in records:
                            producer.send(f"payments-{self._suffix}", record.value, record.key)
                        producer.send_offsets(consumer)
                except TransactionAbortableError:
                    consumer.seek_to_committed()  # read these orders again

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def main(bootstrap: str) -> None:
    run = uuid.uuid4().hex[:8]
    expected = USERS * ORDERS_PER_USER
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_topics([NewTopic(f"{name}-{run}", partitions=PARTITIONS) for name in ("orders", "payments")])
        workers = [Worker(name, bootstrap, run) for name in ("ann", "bob")]
        for worker in workers:
            worker.start()
        payments: dict[str, list[int]] = defaultdict(list)
        with Consumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as reader:
            reader.assign([TopicPartition(f"payments-{run}", number) for number in range(PARTITIONS)])
            sent = []
            for number in range(ORDERS_PER_USER):
                orders = [(b"user-%d" % user, b"%d" % number) for user in range(USERS)]
                sent.append(producer.send_many(f"orders-{run}", orders))
                if number == ORDERS_PER_USER // 3:
                    workers[0].stop()  # leaves the group
                    workers[0] = Worker("ann", bootstrap, run)
                    workers[0].start()
            for future in sent:
                future.result(timeout=60)
            seen = 0
            while seen < expected and all(worker.is_alive() for worker in workers):
                for record in reader.poll(timeout=1.0):
                    payments[(record.key or b"").decode()].append(int(record.value or b""))
                    seen += 1
            for worker in workers:
                worker.stop()
            for record in reader.poll(timeout=1.0):  # nothing may follow
                payments[(record.key or b"").decode()].append(int(record.value or b""))
    right = list(range(ORDERS_PER_USER))
    unordered = sum(numbers != sorted(numbers) for numbers in payments.values())
    doubled = sum(len(numbers) - len(set(numbers)) for numbers in payments.values())
    lost = expected - sum(len(set(numbers)) for numbers in payments.values())
    print(f"{len(payments)} users, {sum(map(len, payments.values()))} payments")
    print(f"users out of order: {unordered} lost: {lost} doubled: {doubled}")
    if any(numbers != right for numbers in payments.values()) or any(worker.failure for worker in workers):
        sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with LocalCluster() as cluster:
            main(cluster.bootstrap_servers)
