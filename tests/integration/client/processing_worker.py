"""A program that processes a topic concurrently and notes each finished record in a file, until it is killed.

processing_worker.py BOOTSTRAP TOPIC GROUP FILE
"""

from __future__ import annotations

import os
import random
import sys
import time

from headrace import Consumer


def main(bootstrap: str, topic: str, group: str, path: str) -> None:
    notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def handle(record: object) -> None:
        time.sleep(random.uniform(0.001, 0.02))
        line = f"{record.partition} {record.offset} {record.key.decode()}\n"  # type: ignore[attr-defined]
        os.write(notes, line.encode())

    config = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    with Consumer({**config, "group.instance.id": "worker"}) as consumer:
        consumer.subscribe([topic])
        consumer.process(handle, concurrency=16)


if __name__ == "__main__":
    main(*sys.argv[1:])
