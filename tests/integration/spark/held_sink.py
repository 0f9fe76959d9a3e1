"""For once_driver.py: a sink and a query step that stop at a chosen place. Spark's workers import this module."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

from headrace_spark.exactly_once import BATCH_ID
from headrace_spark.sink import HeadraceStreamWriter
from headrace_spark.source import HeadraceDataSource


def hold(held: Path) -> None:
    """Wait until the driver dies."""
    parent = os.getppid()
    held.touch()
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(0.2)
    os._exit(1)


class HeldWriter(HeadraceStreamWriter):
    """A sink that stops before or after the commit of a batch."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__({name: value for name, value in options.items() if not name.startswith("held.")}, schema)
        self._held = Path(options["held.file"])
        self._place, self._batch_id = options["held.place"], int(options["held.batch"])

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        if (self._place, self._batch_id) == ("prepared", batchId):
            hold(self._held)
        super().commit(messages, batchId)
        if (self._place, self._batch_id) == ("decided", batchId):
            hold(self._held)


class HeldDataSource(HeadraceDataSource):
    @classmethod
    def name(cls) -> str:
        super().name()
        return "held"

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeldWriter:
        return HeldWriter(dict(self.options), schema)


def gate_at(place: str, batch: int, held: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def gate(batches: Iterator[Any]) -> Iterator[Any]:
        rows = 0
        for each in batches:
            rows += each.num_rows
            yield each
        context = TaskContext.get()
        if context is None or not rows or context.getLocalProperty(BATCH_ID) != str(batch):
            return
        if place == "task":
            hold(held)
        elif place == "fail" and not held.exists():
            held.touch()
            raise RuntimeError("a task of the test fails once")

    return gate
