"""A Spark session for one run on this machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from headrace_spark import session
from headrace_spark.retries import is_local
from headrace_spark.session import LOCAL_DEFAULTS

#: Spark keys for Java options. The driver's options already set the quiet log of a local session.
_DRIVER_OPTIONS, _EXECUTOR_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


def settings_of(master: str) -> dict[str, str]:
    """The settings of a session of the library. The executors of ``local-cluster[...]`` log as little as the driver.

    Sets SPARK_LOCAL_IP, which Spark reads when its JVM starts: executors listen on the loopback address only.
    """
    settings = {**LOCAL_DEFAULTS, "spark.sql.session.timeZone": "UTC"}
    if not is_local(master):
        settings[_EXECUTOR_OPTIONS] = settings[_DRIVER_OPTIONS]
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    return settings


@contextmanager
def local_spark(
    name: str, make: Callable[..., SparkSession] = session, *, master: str = "local[2]"
) -> Iterator[SparkSession]:
    """A context manager for a session that ``make`` creates. The session ends with the block, and logs only errors.
    ``master``: ``local[N]``, or ``local-cluster[N,CORES,MB]``, which gets the settings of a local session, too."""
    spark = make(name, master=master, **settings_of(master))
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
