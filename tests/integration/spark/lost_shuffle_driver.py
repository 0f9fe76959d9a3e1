"""A driver for test_pipelines_expectations.py: a frame with counted rules, whose reducer deletes the shuffle's files,
so that Spark runs the stage with the counts again.

    lost_shuffle_driver.py DIRECTORY

writes DIRECTORY/found.json. The driver is a separate process, because Spark's local mode does not survive lost shuffle
files. Spark removes its only executor, whose heartbeats fail from then on. After 60 failed heartbeats (10 minutes) the
JVM ends with exit code 56.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import Observation

import headrace_spark
from headrace_pipelines.expectations import Expectation, Expectations


def _mark(file: Path) -> Any:
    """A step that writes one line for each task."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        with file.open("a") as opened:
            opened.write("task\n")
        yield from batches

    return step


def _delete_once(flag: Path, local: Path) -> Any:
    """A step whose first task of partition 0 deletes the shuffle files in ``local`` after it has passed all rows on."""

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        context = TaskContext.get()
        if context is not None and context.partitionId() == 0 and not flag.exists():
            flag.touch()
            for path in local.rglob("shuffle_*"):
                path.unlink(missing_ok=True)

    return step


def main() -> None:
    directory = Path(sys.argv[1])
    local, marks = directory / "local", directory / "marks"
    spark = headrace_spark.session(
        "lost shuffle", master="local[2]", spark_local_dir=str(local), spark_ui_enabled="false"
    )
    rules = Expectations(Expectation("id is even", "id % 2 = 0", "drop"))
    base = spark.range(0, 1000, 1, 4)
    observation = Observation("counts")
    reduced = rules.apply(base.mapInArrow(_mark(marks), base.schema), observe=observation).repartition(3, "id")
    kept = reduced.mapInArrow(_delete_once(directory / "lost", local), reduced.schema).count()
    counts = rules.observed(observation.get)
    found = {
        "kept": kept,
        "tasks": len(marks.read_text().split()),
        "counts": [counts.rows, counts.dropped, counts.quarantined],
        "violations": counts.violations,
    }
    (directory / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
