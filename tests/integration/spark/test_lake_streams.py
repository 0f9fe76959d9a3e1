"""Spark streams into lake tables: a batch that Spark repeats, because the driver failed after the table had it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from headrace.errors import UnsupportedVersionError
from headrace_pipelines.errors import SchemaChangeError
from headrace_pipelines.tables.delta import DeltaLakeTable
from headrace_pipelines.tables.iceberg import IcebergTable, local_catalog
from headrace_pipelines.tables.streams import append_to, batch_of, merge_into
from headrace_pipelines.tables.table import LakeTable

pytestmark = pytest.mark.timeout(200)


def arrive(directory: Path, name: str, *rows: dict[str, Any]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(spark: Any, tmp_path: Path, write: Any, schema: str = "k BIGINT, v STRING") -> None:
    """Process the files that have arrived, one in a batch, with the checkpoint of the test."""
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_repeated_batch_is_written_once_to_both_tables(spark: Any, tmp_path: Path) -> None:
    appended: LakeTable = IcebergTable(local_catalog(tmp_path / "iceberg"), "lake.appended")
    merged: LakeTable = DeltaLakeTable(tmp_path / "merged")
    asked, fails = [], [1]

    def write(frame: DataFrame, number: int) -> None:
        batch = batch_of(frame, number)
        rows = frame.toArrow()
        asked.append((number, batch.query, appended.append(rows, batch), merged.merge(rows, ["k"], batch)))
        if number in fails:
            fails.remove(number)
            raise OSError("the driver fails here")

    arrive(tmp_path / "in", "a.json", {"k": 1, "v": "one"}, {"k": 2, "v": "two"})
    arrive(tmp_path / "in", "b.json", {"k": 2, "v": "TWO"})
    with pytest.raises(StreamingQueryException, match="the driver fails here"):
        run(spark, tmp_path, write)
    arrive(tmp_path / "in", "c.json", {"k": 3, "v": "three"})
    run(spark, tmp_path, write)

    assert [(number, first, second) for number, _, first, second in asked] == [
        (0, True, True), (1, True, True), (1, False, False), (2, True, True),
    ]  # fmt: skip
    assert len({query for _, query, _, _ in asked}) == 1, "a restarted query keeps its id"
    assert sorted(appended.read()["v"].to_pylist()) == ["TWO", "one", "three", "two"]
    assert sorted(merged.read()["v"].to_pylist()) == ["TWO", "one", "three"]


def test_a_schema_evolves_with_a_restart_and_a_changed_type_fails_the_query(spark: Any, tmp_path: Path) -> None:
    table = DeltaLakeTable(tmp_path / "evolving")
    arrive(tmp_path / "in", "a.json", {"k": 1, "v": "one"})
    run(spark, tmp_path, append_to(table))
    arrive(tmp_path / "in", "b.json", {"k": 1, "v": "uno", "more": 5})
    run(spark, tmp_path, merge_into(table, ["k"]), "k BIGINT, v STRING, more INT")
    assert table.read().to_pylist() == [{"k": 1, "v": "uno", "more": 5}]
    arrive(tmp_path / "in", "c.json", {"k": 2, "v": "two", "more": 6.5})
    with pytest.raises(StreamingQueryException, match=f"{SchemaChangeError.__name__}.*the column 'more'"):
        run(spark, tmp_path, append_to(table), "k BIGINT, v STRING, more DOUBLE")
    assert table.read().num_rows == 1


def test_outside_of_a_stream_there_is_no_batch(spark: Any) -> None:
    with pytest.raises(UnsupportedVersionError, match=r"call batch_of within foreachBatch"):
        batch_of(spark.range(1), 0)
