"""Runs the Python blocks of the page of lake tables in their order: the stream is a stand-in, the tables are real."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import duckdb
import pyarrow as pa
import pytest

from headrace_pipelines.tables import streams
from tests.docs import documented_pages as pages

PAGE = "docs/pipelines-tables.md"
ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "amount": [1.0, 2.5, 4.0],
        "at": pa.array([datetime(2026, 1, day, 5, tzinfo=UTC) for day in (1, 1, 2)], pa.timestamp("us", "UTC")),
    }
)


def test_the_page_of_lake_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = SimpleNamespace(toArrow=lambda: ROWS)
    monkeypatch.setattr(streams, "batch_of", lambda frame, number: streams.Batch("the query", number))
    names: dict[str, Any] = {"stream": MagicMock()}
    found = [block for block in pages.blocks(PAGE) if block.language == "python"]
    assert [block.not_run for block in found] == [None] * len(found)
    for block in found:
        text = block.text.replace('"/data/', f'"{tmp_path}/')
        exec(compile(text, f"{PAGE}:{block.line}", "exec"), names)
        if "def write(" in text:
            names["latest"] = names["IcebergTable"](names["orders"]._catalog, "shop.latest")
            names["write"](frame, 0)
            assert names["latest"].read().num_rows == 3
    sink = names["stream"].select.return_value.writeStream.foreachBatch
    assert sink.call_count == 1, "the first block starts a query"
    assert "2026-01-02 00:00:00+00" in capsys.readouterr().out
    rows = names["orders"].read()  # noqa: F841 (DuckDB reads it by its name)
    (first, *_) = duckdb.sql("""SELECT "at" FROM rows ORDER BY id""").fetchall()
    assert first == (datetime(2026, 1, 1, 5, tzinfo=UTC),), "the lake extra has what DuckDB needs for times"
