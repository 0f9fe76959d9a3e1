"""A Spark session for one run: in this process, with two tasks at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from headrace_spark import session


@contextmanager
def local_spark(name: str, make: Callable[..., SparkSession] = session) -> Iterator[SparkSession]:
    """Make a Spark session with ``make``, and stop it at the end of the block; the session logs only errors."""
    spark = make(name, master="local[2]", spark_sql_session_timeZone="UTC")
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
