"""Urgent records get their own partition, so that consumers read them at once, even if many other records are waiting.

`headrace.PriorityPartitioner` sends keys that begin with PRIORITY_HIGH to partition 0 and hashes other keys over the
rest. The class has a dozen lines: see headrace/partitioners.py, and write your own partitioner in the same way.

    python examples/priority_partitioner.py [HOST:PORT]
"""

from __future__ import annotations

import sys
from collections import Counter

from headrace import Admin, LocalCluster, NewTopic, PriorityPartitioner, Producer


def main(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        if "tickets" not in admin.list_topics():
            admin.create_topics([NewTopic("tickets", partitions=4)])
    with Producer(bootstrap_servers=bootstrap, partitioner_class=PriorityPartitioner) as producer:
        keys = [b"PRIORITY_HIGH-%d" % n if n % 10 == 0 else b"ticket-%d" % n for n in range(200)]
        futures = [(key, producer.send("tickets", b"help!", key=key)) for key in keys]
        producer.flush(timeout=10)
    urgent = Counter(future.result().partition for key, future in futures if key.startswith(b"PRIORITY_HIGH"))
    others = Counter(future.result().partition for key, future in futures if not key.startswith(b"PRIORITY_HIGH"))
    print("urgent records by partition:", dict(sorted(urgent.items())))
    print("other records by partition: ", dict(sorted(others.items())))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with LocalCluster() as cluster:
            main(cluster.bootstrap_servers)
