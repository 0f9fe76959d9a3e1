"""A Spark session for one run on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from headrace_spark import session
from headrace_spark.retries import is_local
from headrace_spark.session import LOCAL_DEFAULTS

#: Spark keys for Java options. LOCAL_DEFAULTS sets the driver's options, which keep a JVM's warnings out of stdout.
_DRIVER_OPTIONS, _EXECUTOR_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"

#: Limits of the checkpoint and the memory of a query. Spark's defaults keep 100 batches, write a snapshot after ten
#: batches, and give each partition of a state 8 MiB of cache. With Spark's defaults, the checkpoint and the memory of a
#: query with a batch every few minutes grow for hours.
_BOUNDS = {
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "5",
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "2",
    "spark.sql.streaming.stateStore.rocksdb.writeBufferSizeMB": "2",
}


def settings_of(master: str) -> dict[str, str]:
    """The settings of a session of the library. The executors of ``local-cluster[...]`` log as little as the driver.

    Sets SPARK_LOCAL_IP, which Spark reads when its JVM starts: executors listen on the loopback address only.
    """
    settings = {**LOCAL_DEFAULTS, **_BOUNDS, "spark.sql.session.timeZone": "UTC"}
    if not is_local(master):
        settings[_EXECUTOR_OPTIONS] = settings[_DRIVER_OPTIONS]
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    return settings


@contextmanager
def local_spark(
    name: str, make: Callable[..., SparkSession] = session, *, master: str = "local[2]"
) -> Iterator[SparkSession]:
    """A context manager for a session that ``make`` creates. The session ends with the block, and logs only errors.
    ``master``: ``local[N]``, or ``local-cluster[N,CORES,MB]``, which gets the settings of a local session, too.

    Ctrl-C raises KeyboardInterrupt, as without Spark. Spark's own handler may call the JVM during another call to the
    JVM, and then prints tracebacks.

    In the block the time zone of the process is UTC, like that of the session. ``collect`` returns timestamps without a
    zone, in the zone of the process."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    with _in_utc():
        with _interruptible():
            spark = make(name, master=master, **settings_of(master))
        logging.getLogger("py4j").setLevel(logging.ERROR)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _in_utc() -> Iterator[None]:
    """The time zone of this process, and of those that it starts, is UTC in this block."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C in this block, which starts a JVM, ends the JVM, and raises KeyboardInterrupt at the end of the block.
    Raising KeyboardInterrupt at once is not safe. The exception may be lost in a fork, and a JVM that is interrupted at
    its start would continue to run."""
    is_raising = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_raising or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, own = _children(), os.readlink("/proc/self/exe")
    is_interrupted = threading.Event()

    def end(number: int, frame: object) -> None:
        is_interrupted.set()
        for process in _children() - before:
            with contextlib.suppress(OSError):  # it has ended
                if os.readlink(f"/proc/{process}/exe") != own:  # otherwise it is no JVM yet, and has our handlers
                    os.kill(process, signal.SIGTERM)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    except Exception:
        if not is_interrupted.is_set():
            raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_interrupted.is_set():
        raise KeyboardInterrupt


def _children() -> set[int]:
    """The processes that this process has started."""
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found |= set(map(int, path.read_text().split()))
    return found


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j logs each interrupted call with the root logger, and raises the error, too."""
    return Path(record.pathname).parent.name != "py4j"
