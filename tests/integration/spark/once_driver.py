"""A driver for test_spark_kills.py: a stateful stream from one topic to another, which stops at a chosen place to be
killed.

    once_driver.py BOOTSTRAP DIRECTORY FROM TO DELIVERY PLACE BATCH

At PLACE of batch BATCH the query writes DIRECTORY/held and waits until its driver is killed. PLACE is ``task`` (a task
has written its rows), ``prepared`` (all tasks have ended, and the driver has not committed), ``decided`` (the driver
has committed, and Spark has not recorded it), ``fail`` (a task fails once, and Spark repeats it; the query does not
wait), or ``none``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F

import headrace_spark
from tests.integration.spark.held_sink import HeldDataSource, gate_at


def main() -> None:
    bootstrap, directory, origin, copy, delivery, place, batch = sys.argv[1:]
    held = Path(directory) / "held"
    spark = headrace_spark.session(
        "exactly once", master="local[2,4]", spark_sql_shuffle_partitions="2", spark_ui_enabled="false"
    )
    spark.dataSource.register(HeldDataSource)
    frame = (
        spark.readStream.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("subscribe", origin)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .select(F.col("value").cast("string").alias("value"))
        .dropDuplicates(["value"])  # stateful, because the state of a batch must match its rows
    )
    query = (
        frame.mapInArrow(gate_at(place, int(batch), held), frame.schema)
        .writeStream.format("held")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("headrace.delivery", delivery)
        .option("topic", copy)
        .option("held.file", str(held))
        .option("held.place", place)
        .option("held.batch", batch)
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
