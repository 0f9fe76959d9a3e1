"""The first five minutes: create a topic, send records, read them back.

Run the example against a cluster (`headrace up --data /tmp/headrace`), or let the example start a cluster:

    python examples/first_minutes.py            # starts a LocalCluster
    python examples/first_minutes.py HOST:PORT
"""

from __future__ import annotations

import contextlib
import sys

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import TopicAlreadyExistsError


def main(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin, contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics([NewTopic("orders", partitions=3)])

    with Producer(bootstrap_servers=bootstrap) as producer:
        futures = [producer.send("orders", f"order {n}".encode(), key=f"customer-{n % 5}".encode()) for n in range(20)]
        for future in futures[:3]:
            print("acknowledged:", future.result(timeout=10))

    everywhere = [TopicPartition("orders", number) for number in range(3)]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        left = sum(consumer.end_offsets(everywhere).values())
        consumer.assign(everywhere)
        for record in consumer:
            print(f"{record.partition}/{record.offset}: {record.key} {record.value}")
            left -= 1
            if not left:
                break


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with LocalCluster() as cluster:
            main(cluster.bootstrap_servers)
