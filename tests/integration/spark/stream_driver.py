"""A driver for test_spark_restart.py: a stream into Parquet, or a topic, that can be held in the middle of a batch.

    stream_driver.py BOOTSTRAP TOPIC DIRECTORY HOLD_AT [TO_TOPIC]

The task of partition 1 that meets offset HOLD_AT writes DIRECTORY/held and then waits for as long as its driver lives;
-1 holds nowhere.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace_spark


def main() -> None:
    bootstrap, topic, directory, hold_at = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    to_topic = sys.argv[5] if len(sys.argv) > 5 else None
    held = directory / "held"

    def gate(batches: Iterator[Any]) -> Iterator[Any]:
        parent = os.getppid()
        for batch in batches:
            yield batch
            here = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
            if hold_at >= 0 and (1, hold_at) in set(here):
                held.touch()
                never = threading.Event()
                while os.getppid() == parent:  # the daemon is gone: so is the driver
                    never.wait(0.2)
                os._exit(1)

    spark = headrace_spark.session("restart test", master="local[2]")
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200)
        .load()
        .select("partition", "offset", "value")
    )
    writer = frame.mapInArrow(gate, frame.schema).writeStream
    if to_topic is None:
        writer = writer.format("parquet").option("path", str(directory / "out"))
    else:
        writer = writer.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("topic", to_topic)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
