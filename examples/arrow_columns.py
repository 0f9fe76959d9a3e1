"""Whole Arrow tables in and out, with no Python object per record.

python examples/arrow_columns.py [HOST:PORT]
"""

from __future__ import annotations

import sys
import time

import pyarrow as pa

from headrace import Consumer, LocalCluster, Producer, TopicPartition

ROWS = 1_000_000


def main(bootstrap: str) -> None:
    table = pa.table({"value": pa.array([b"reading %012d" % n for n in range(ROWS)], pa.binary())})
    with Producer(bootstrap_servers=bootstrap) as producer:
        begun = time.perf_counter()
        metadata = producer.send_arrow("readings", table).result(timeout=60)
        print(f"sent {metadata.record_count:,} records in {time.perf_counter() - begun:.2f} s")
        partitions = [TopicPartition("readings", number) for number in producer.partitions_for("readings")]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        left = sum(consumer.end_offsets(partitions).values())
        consumer.assign(partitions)
        begun = time.perf_counter()
        read = 0
        while read < left:
            columns = consumer.fetch_arrow(timeout=5, columns=["value", "offset"], include_headers=False)
            read += columns.num_rows
        print(f"read {read:,} records in {time.perf_counter() - begun:.2f} s; the last: {columns['value'][-1]}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with LocalCluster() as cluster:
            main(cluster.bootstrap_servers)
