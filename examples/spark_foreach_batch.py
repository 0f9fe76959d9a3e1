"""foreachBatch with two targets, both exactly once: a table, and a topic with the customers' new totals.

python examples/spark_foreach_batch.py [HOST:PORT]

When the driver crashes before it has recorded a batch as done, Spark runs it again with the same number and rows. The
table therefore stores the numbers of applied batches, in the transaction that applies them: a repeated batch changes
nothing. The totals are then read from the table and written to the topic, as a version of the application ``totals``.
The sink skips a repeated version. The application's id contains the name of the checkpoint, because a new checkpoint
counts its batches from 0 again.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace_spark
from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace.errors import TopicAlreadyExistsError

TABLES = """
create table if not exists totals (customer text primary key, orders integer not null, cents integer not null);
create table if not exists batches (batch_id integer primary key);
"""


class Totals:
    """The two sinks of a batch. foreachBatch calls ``apply`` on the driver."""

    def __init__(self, bootstrap: str, database: Path) -> None:
        self._bootstrap = bootstrap
        self._application = f"totals of {database.parent}"
        self._database = database
        with contextlib.closing(self._connect()) as connection:
            connection.executescript(TABLES)

    def apply(self, batch: DataFrame, batch_id: int) -> None:
        order = F.from_json(F.col("value").cast("string"), "customer STRING, cents LONG")
        changes = (
            batch.select(order.alias("order"))
            .groupBy("order.customer")
            .agg(F.count("*").alias("orders"), F.sum("order.cents").alias("cents"))
            .collect()
        )
        with contextlib.closing(self._connect()) as connection:
            with connection:  # one transaction writes the totals and the batch's number
                first_time = connection.execute("insert or ignore into batches values (?)", [batch_id]).rowcount
                if first_time:
                    connection.executemany(
                        "insert into totals values (?, ?, ?) on conflict (customer) do update "
                        "set orders = orders + excluded.orders, cents = cents + excluded.cents",
                        [(row.customer, row.orders, row.cents) for row in changes],
                    )
            totals = {name: (orders, cents) for name, orders, cents in connection.execute("select * from totals")}
        changed = [
            (row.customer, json.dumps({"orders": totals[row.customer][0], "cents": totals[row.customer][1]}))
            for row in changes
        ]
        (
            batch.sparkSession.createDataFrame(changed, "key STRING, value STRING")
            .write.format("headrace")
            .option("headrace.bootstrap.servers", self._bootstrap)
            .option("topic", "totals")
            .option("headrace.txn.app.id", self._application)
            .option("headrace.txn.version", batch_id)
            .mode("append")
            .save()
        )

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database)


def run(spark: SparkSession, bootstrap: str, totals: Totals, checkpoint: Path) -> None:
    """Process the records that are in the topic now."""
    query = (
        spark.readStream.format("headrace")
        .option("headrace.bootstrap.servers", bootstrap)
        .option("subscribe", "orders-to-total")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
        .writeStream.foreachBatch(totals.apply)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(spark: SparkSession, bootstrap: str, directory: Path) -> dict[str, tuple[int, int]]:
    """Returns {customer: (orders, cents)} from the table."""
    with Admin(bootstrap_servers=bootstrap) as admin, contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics(
            [
                NewTopic("orders-to-total", partitions=2),
                NewTopic("totals", partitions=2, config={"cleanup.policy": "compact"}),
            ]
        )
    with Producer(bootstrap_servers=bootstrap) as producer:
        orders = [(f"customer-{number % 5}", number) for number in range(100)]
        values = [(name.encode(), json.dumps({"customer": name, "cents": cents}).encode()) for name, cents in orders]
        producer.send_many("orders-to-total", values).result(timeout=60)
    database = directory / "totals.sqlite"
    run(spark, bootstrap, Totals(bootstrap, database), directory / "checkpoint")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return {name: (orders, cents) for name, orders, cents in connection.execute("select * from totals order by 1")}


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        servers = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(LocalCluster()).bootstrap_servers
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for customer, (orders, cents) in main(headrace_spark.session("foreach_batch"), servers, scratch).items():
            print(f"{customer}: {orders} orders, {cents / 100:.2f}")
