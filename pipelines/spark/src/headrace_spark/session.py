"""A Spark session for the source: finds Java, runs the driver's Python in the workers, registers the format."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace_core.errors import InvalidArgumentError

from .causes import tell_causes
from .java import find_java
from .retries import is_local

#: Options with which a JVM writes its warnings to stderr. By default a JVM writes warnings to stdout, between the lines
#: of the program, such as "[12.345s][warning][os,thread] Failed to start thread ...".
JVM_WARNINGS_TO_STDERR = ("-Xlog:disable", "-Xlog:all=warning:stderr", "-XX:+DisplayVMOutputToStderr")
_DRIVER_OPTIONS = (
    f'"-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties")}"',
    *JVM_WARNINGS_TO_STDERR,
)

#: Default settings of a local session; docs/spark.md explains each setting.
LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": " ".join(_DRIVER_OPTIONS),
}

#: Settings of a session with low latency; docs/spark-running.md has the measured latencies.
LOW_LATENCY = {
    # By default each batch writes two log files and two checksum files. The file system RawLocalFs writes no checksum
    # files.
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A batch stores what has changed in the state, not a new snapshot of RocksDB.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
}


def session(name: str = "headrace", *, master: str | None = None, **settings: Any) -> SparkSession:
    """Return a Spark session in which ``format("headrace")`` is registered.

    ``master`` defaults to the master of spark-submit, otherwise to ``local[*]``. ``settings`` are Spark settings, with
    ``_`` in place of ``.`` (``spark_sql_shuffle_partitions=4``) or with their own names
    (``**{"spark.sql.shuffle.partitions": 4}``). If a session is already active, the active session is returned
    unchanged. An uncaught error of a query then ends with its cause. Raises JavaNotFoundError.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    chosen = defaults(master)
    if master is not None and master.startswith("local"):  # a local-cluster[...] master is on this machine, too
        python = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if python == sys.executable:  # the workers run the same Python, so they have this package
            chosen["spark.python.daemon.module"] = "headrace_spark.daemon"
    if not submitted and SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(find_java())
    chosen |= {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    from .source import HeadraceDataSource  # late: workers import this module, too

    spark = builder.getOrCreate()
    spark.dataSource.register(HeadraceDataSource)
    tell_causes()
    return spark


def low_latency_session(name: str = "headrace", *, master: str | None = None, **settings: Any) -> SparkSession:
    """Return ``session(...)`` with LOW_LATENCY: small batches take less time, and checkpoints have no checksums.

    On file systems other than the local file system, such as HDFS, checkpoints keep their checksums. Stateful queries
    keep their state in RocksDB. Arguments and errors are the same as for ``session``. Raises InvalidArgumentError if a
    session is active: an active session keeps its settings.
    """
    if SparkSession.getActiveSession() is not None:
        raise InvalidArgumentError(
            "low_latency_session() cannot change the settings of the active Spark session; stop it first with "
            "spark.stop(), or call low_latency_session() before session()"
        )
    dotted = {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
    return session(name, master=master, **{**LOW_LATENCY, **dotted})


def defaults(master: str | None) -> dict[str, Any]:
    """The settings that a session with this master gets unless the user overrides them."""
    return dict(LOCAL_DEFAULTS) if master is not None and is_local(master) else {}
