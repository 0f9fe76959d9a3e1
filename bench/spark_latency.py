"""Latency of a small streaming query with and without checksums of its checkpoint (docs/spark-running.md).

    bench/spark_latency.py [--rate 40] [--seconds 12]

The query copies records from one topic to another. The latency is from the send to a consumer of the copy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from typing import Any

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_spark import session
from headrace_spark.session import LOW_LATENCY

FILES = "fs.AbstractFileSystem.file.impl"
#: Seconds of warm-up whose latencies do not count. The first query also starts the workers, and Java compiles its code.
WARM_UP_S, FIRST_WARM_UP_S = 8.0, 28.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rate", type=float, default=40, help="records per second (default %(default)g)")
    parser.add_argument("--seconds", type=float, default=12, help="measured seconds of a query (default %(default)g)")
    arguments = parser.parse_args()
    with LocalCluster(brokers=1, controllers=1, mode="process") as cluster:
        spark = session("latency", master="local[2]")
        for number, name in enumerate(("checksums", "no checksums", "checksums", "no checksums")):
            if name == "checksums":
                spark.conf.unset(FILES)
            else:
                spark.conf.set(FILES, LOW_LATENCY[f"spark.hadoop.{FILES}"])
            warm_up_s = WARM_UP_S if number else FIRST_WARM_UP_S
            found = sorted(_run(spark, cluster.bootstrap_servers, number, arguments, warm_up_s))
            figures = {f"p{percent}_ms": round(found[len(found) * percent // 100] * 1e3) for percent in (50, 99)}
            print(json.dumps({"checkpoint": name, "records": len(found), **figures}), flush=True)
        spark.stop()


def _run(spark: Any, servers: str, number: int, arguments: argparse.Namespace, warm_up_s: float) -> list[float]:
    """The latencies in seconds of the records that were sent after the warm-up."""
    origin, copy = f"from-{number}", f"to-{number}"
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(origin, partitions=1), NewTopic(copy, partitions=1)])
    source = spark.readStream.format("headrace").option("headrace.bootstrap.servers", servers)
    stream = source.option("subscribe", origin).option("startingOffsets", "earliest").load().select("value")
    found: list[float] = []
    ended = threading.Event()

    def read(after_s: float) -> None:
        with Consumer(bootstrap_servers=servers) as consumer:
            consumer.assign([TopicPartition(copy, 0)])
            consumer.seek(TopicPartition(copy, 0), 0)
            while not ended.is_set():
                for record in consumer.poll(timeout=0.2):
                    sent_s = float(record.value or b"0")
                    if sent_s >= after_s:
                        found.append(time.time() - sent_s)

    with tempfile.TemporaryDirectory() as checkpoint:
        sink = stream.writeStream.format("headrace").option("headrace.bootstrap.servers", servers)
        query = sink.option("topic", copy).option("checkpointLocation", checkpoint).start()
        began_s = time.time()
        reader = threading.Thread(target=read, args=(began_s + warm_up_s,))
        reader.start()
        with Producer(bootstrap_servers=servers, linger_ms=0) as producer:
            for index in range(int((warm_up_s + arguments.seconds) * arguments.rate)):
                time.sleep(max(0.0, began_s + index / arguments.rate - time.time()))
                producer.send(origin, repr(time.time()).encode())
        query.processAllAvailable()
        ended.wait(1.0)  # the consumer reads the last records during this wait
        ended.set()
        reader.join()
        query.stop()
    return found


if __name__ == "__main__":
    main()
