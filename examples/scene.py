"""Kill a worker process twenty times; at_most_once.py, at_least_once.py and exactly_once.py call this module.

A topic has 2,000 payments. A worker process reads the payments and writes a receipt for each payment to another topic.
This module kills the worker with SIGKILL at a random moment while it writes, and starts it again. The last worker
finishes the work. After the run this module counts the payments without a receipt (lost) and the payments with several
receipts (duplicated).

    python examples/exactly_once.py                                # starts a LocalCluster
    python examples/exactly_once.py HOST:PORT [--kills 20] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, Record, TopicPartition

PAYMENTS = 2_000
#: A worker that writes nothing for this number of seconds has failed.
SILENT_S_MAX = 120.0

#: A worker is called as work(bootstrap, payments topic, receipts topic), and reads all payments that its group has not
#: committed.
Work = Callable[[str, str, str], None]


def receipt(payment: Record) -> bytes:
    """Simulate the work for one payment, which takes 5 ms."""
    time.sleep(0.005)
    assert payment.value is not None
    return b"receipt of " + payment.value


def play(work: Work) -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("bootstrap", nargs="?")
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--work", nargs=2, metavar=("PAYMENTS", "RECEIPTS"))
    given = arguments.parse_args()
    if given.work is not None:
        work(given.bootstrap, *given.work)
    elif given.bootstrap is not None:
        _play(given.bootstrap, given.kills, random.Random(given.seed))
    else:
        with LocalCluster() as cluster:
            _play(cluster.bootstrap_servers, given.kills, random.Random(given.seed))


def _play(bootstrap: str, kills: int, chance: random.Random) -> None:
    run = uuid.uuid4().hex[:8]
    payments, receipts = f"payments-{run}", f"receipts-{run}"
    values = [b"%d" % number for number in range(PAYMENTS)]
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap) as producer:
        admin.create_topics([NewTopic(payments, partitions=1), NewTopic(receipts, partitions=1)])
        producer.send_many(payments, values).result(timeout=60)
        for _ in range(kills):
            worker = _started(bootstrap, payments, receipts)
            _wait_for_receipts(admin, receipts, worker)
            time.sleep(chance.uniform(0.0, 0.15))
            worker.kill()
            worker.wait()
        worker = _started(bootstrap, payments, receipts)
        if worker.wait(timeout=SILENT_S_MAX + PAYMENTS / 10) != 0:
            sys.exit("the last worker failed")
    found = _receipts(bootstrap, receipts)
    lost = [value for value in values if b"receipt of " + value not in found]
    doubled = [name for name, count in found.items() if count > 1]
    print(f"{PAYMENTS} payments, {kills} kills")
    print(f"lost: {len(lost)} doubled: {len(doubled)}")


def _started(bootstrap: str, payments: str, receipts: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, sys.argv[0], bootstrap, "--work", payments, receipts])


def _wait_for_receipts(admin: Admin, receipts: str, worker: subprocess.Popen[bytes]) -> None:
    """Wait until the worker has written something; records of open transactions count, too."""
    partition = TopicPartition(receipts, 0)

    def end() -> int:
        return admin.list_offsets({partition: "latest"})[partition].offset

    before, deadline = end(), time.monotonic() + SILENT_S_MAX
    while end() == before:
        if worker.poll() is not None:
            sys.exit("the worker has ended before it could be killed: --kills is too large, or it failed")
        if time.monotonic() > deadline:
            worker.kill()
            sys.exit(f"the worker wrote nothing within {SILENT_S_MAX:g} s")
        time.sleep(0.02)


def _receipts(bootstrap: str, receipts: str) -> Counter[bytes]:
    """Count how often readers with read_committed see each receipt."""
    partition = TopicPartition(receipts, 0)
    found: Counter[bytes] = Counter()
    with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        end = consumer.end_offsets([partition])[partition]
        consumer.assign([partition])
        while consumer.position(partition) < end:
            found.update(record.value or b"" for record in consumer.poll(timeout=1.0))
    return found
