"""A driver for test_spark_restart.py: streams into Parquet and into a topic that can be held in the middle of a batch.

    stream_driver.py BOOTSTRAP DIRECTORY SINK:TOPIC:HOLD_AT...

SINK is ``files``, or the topic to write to. The task of partition 1 of TOPIC that meets offset HOLD_AT writes
DIRECTORY/SINK/held and then waits until its driver ends. If HOLD_AT is -1, no task waits. All streams share one
session. At the end DIRECTORY/files/rows.json has the rows that Spark reads from the files.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headrace_spark


def gate_at(hold_at: int, held: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def gate(batches: Iterator[Any]) -> Iterator[Any]:
        parent = os.getppid()
        for batch in batches:
            yield batch
            here = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
            if hold_at >= 0 and (1, hold_at) in set(here):
                held.touch()
                never = threading.Event()
                while os.getppid() == parent:  # the daemon has ended, so the driver has ended too
                    never.wait(0.2)
                os._exit(1)

    return gate


def main() -> None:
    bootstrap, directory = sys.argv[1], Path(sys.argv[2])
    # A held task occupies one of the session's four threads permanently.
    spark = headrace_spark.session("restart test", master="local[4]")
    queries = []
    for stream in sys.argv[3:]:
        sink, topic, hold_at = stream.split(":")
        place = directory / sink
        place.mkdir(exist_ok=True)
        frame = (
            spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 200)
            .load()
            .select("partition", "offset", "value")
        )
        writer = frame.mapInArrow(gate_at(int(hold_at), place / "held"), frame.schema).writeStream
        if sink == "files":
            writer = writer.format("parquet").option("path", str(place / "out"))
        else:
            writer = writer.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("topic", sink)
        writer = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True)
        queries.append(writer.start())
    for query in queries:
        query.awaitTermination()
    if (directory / "files").exists():
        rows = spark.read.parquet(str(directory / "files" / "out")).collect()
        records = [(row.partition, row.offset, bytes(row.value).decode()) for row in rows]
        (directory / "files" / "rows.json").write_text(json.dumps(records))
    spark.stop()


if __name__ == "__main__":
    main()
