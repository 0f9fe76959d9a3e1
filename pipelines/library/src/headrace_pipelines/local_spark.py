"""A Spark session for one run on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from headrace_spark import session
from headrace_spark.session import LOCAL_DEFAULTS


@contextmanager
def local_spark(
    name: str, make: Callable[..., SparkSession] = session, *, master: str = "local[2]"
) -> Iterator[SparkSession]:
    """A session by ``make``, which ends with the block; its log has only errors. ``master``: ``local[N]``, or
    ``local-cluster[N,CORES,MB]``, which gets the settings of a local session, too."""
    spark = make(name, master=master, **{**LOCAL_DEFAULTS, "spark.sql.session.timeZone": "UTC"})
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
