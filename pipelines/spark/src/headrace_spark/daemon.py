"""Spark's daemon of Python workers, which imports the modules of a task before it forks workers.

Use the daemon with ``spark.python.daemon.module=headrace_spark.daemon``; ``session()`` sets this key on local masters.
Without this daemon, each worker imports pyarrow, pandas, gRPC and the SDK in its first task. This daemon opens no
channel, because the channels of gRPC do not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

from pyspark.daemon import manager

#: The modules that tasks of the source and the sink import, directly or through Spark.
MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.conversion",
    "headrace_spark.sink",
    "headrace_spark.source",
    "headrace_spark.stream",
    "headrace_spark.sdk_cluster",
    "headrace.producer.blocking",
    "headrace.admin.blocking",
)


def preload() -> None:
    """Import the modules, and freeze them for the garbage collector, so that workers share their memory. A module that
    is not installed is skipped here: the worker whose task needs the module reports that it is missing."""
    for module in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # reseed, because otherwise all workers would draw the same random numbers
        os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # other daemons plan queries, and need other modules
        preload()
    manager()
