"""Read a topic from its start to its end with both isolation levels in turn; print one JSON object.

    transactions_reader.py BOOTSTRAP TOPIC PASSES --api object|arrow

A pass reads the topic once with each level; every second pass begins with read_committed. The object has the number of
records of one reading, and the records per second of each reading: {"records": 3000000, "read_committed": [...],
"read_uncommitted": [...]}.
"""

from __future__ import annotations

import argparse
import json
import time

from headrace import Consumer, TopicPartition

LEVELS = ("read_uncommitted", "read_committed")
#: Seconds after which a reading fails.
TIMEOUT_S = 60.0


def read(bootstrap: str, topic: str, level: str, api: str) -> tuple[int, float]:
    """Return the number of records, and the seconds from the first request to the end of every partition."""
    records = 0
    with Consumer({"bootstrap.servers": bootstrap, "isolation.level": level, "check.crcs": True}) as consumer:
        partitions = [TopicPartition(topic, each) for each in sorted(consumer.partitions_for(topic))]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        begun = time.perf_counter()
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            if api == "arrow":
                records += consumer.fetch_arrow(timeout=1.0).num_rows
            else:
                records += len(consumer.poll(timeout=1.0, max_records=50_000))
            if time.perf_counter() - begun > TIMEOUT_S:
                raise TimeoutError(
                    f"{topic}: {records:,} records with {level} in {TIMEOUT_S:.0f} s, and not at the end"
                )
        return records, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("passes", type=int)
    parser.add_argument("--api", choices=("object", "arrow"), default="object")
    asked = parser.parse_args()
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    counts = set()
    read(asked.bootstrap, asked.topic, LEVELS[0], asked.api)  # warms up the page cache and this process
    for number in range(asked.passes):
        for level in reversed(LEVELS) if number % 2 else LEVELS:
            count, seconds = read(asked.bootstrap, asked.topic, level, asked.api)
            counts.add(count)
            rates[level].append(round(count / seconds, 1))
    if len(counts) > 1:
        raise AssertionError(f"every transaction was committed, but the readings have {sorted(counts)} records")
    print(json.dumps({"records": counts.pop(), **rates}))


if __name__ == "__main__":
    main()
