"""Crash points: named places at which a test kills the driver of a job (testing.py).

    crash_point("merged", batch_id)        # in a job; does nothing outside of Harness.crash

Streams that write with ``format("headrace")`` have three crash points without any code:

    task        a task of the batch has written its rows, and has not reported them
    prepared    all tasks have reported, and the batch is not committed
    decided     the batch is committed, and Spark has not recorded it
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

from headrace_spark.exactly_once import BATCH_ID
from headrace_spark.sink import HeadraceStreamWriter
from headrace_spark.source import HeadraceDataSource

if TYPE_CHECKING:
    import pyarrow as pa

#: The environment variable with the crash point of a driver, as JSON: name, batch, file.
VARIABLE = "HEADRACE_PIPELINES_CRASH_POINT"
TASK, PREPARED, DECIDED = "task", "prepared", "decided"
_LOOK_S = 0.2


def crash_point(name: str, batch: int | None = None) -> None:
    """Wait for SIGKILL if ``Harness.crash`` has chosen this crash point for this batch or for any batch; otherwise
    return.

    The process ends with its parent, so a worker does not outlive the driver.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return
    chosen = json.loads(text)
    if chosen["name"] != name or (chosen["batch"] is not None and chosen["batch"] != batch):
        return
    parent = os.getppid()
    Path(chosen["file"]).touch()
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_LOOK_S)
    os._exit(1)


class CrashingWriter(HeadraceStreamWriter):
    """The sink of a stream, with its crash points."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        written = super().write(iterator)
        context = TaskContext.get()
        number = context.getLocalProperty(BATCH_ID) if context is not None else None
        if getattr(written, "written", ()):
            crash_point(TASK, int(number) if number else None)
        return written

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        crash_point(PREPARED, batchId)
        super().commit(messages, batchId)
        crash_point(DECIDED, batchId)


class CrashingDataSource(HeadraceDataSource):
    """The data source ``headrace``, whose sink has crash points."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> CrashingWriter:
        return CrashingWriter(dict(self.options), schema)
