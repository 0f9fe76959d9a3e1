"""A Spark session that suits the source: finds Java, runs the driver's Python in the workers, registers the format."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from .java import find_java
from .source import HeadraceDataSource

#: What a local session is given unless the caller says otherwise; docs/spark.md explains each.
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def session(name: str = "headrace", *, master: str | None = None, **settings: Any) -> SparkSession:
    """A session with ``format("headrace")`` registered.

    ``master`` defaults to Spark's own setting, else ``local[*]``. ``settings`` are Spark's, with ``_`` for ``.``
    (``spark_sql_shuffle_partitions=4``) or spelled out in a dict. Raises JavaNotFoundError.
    """
    if SparkSession.getActiveSession() is None:
        if "SPARK_REMOTE" not in os.environ:
            os.environ["JAVA_HOME"] = str(find_java())
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    if (master or "local").startswith("local"):
        for key, value in LOCAL_DEFAULTS.items():
            builder = builder.config(key, value)
    for key, value in settings.items():
        builder = builder.config(key.replace("_", "."), value)
    spark = builder.getOrCreate()
    spark.dataSource.register(HeadraceDataSource)
    return spark
