"""Merges with deletes in both formats of lake tables. No Spark."""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from headrace_pipelines.errors import InvalidColumnsError
from headrace_pipelines.tables.delta import DeltaLakeTable
from headrace_pipelines.tables.iceberg import IcebergTable, local_catalog
from headrace_pipelines.tables.table import Batch, LakeTable

Open = Callable[[], LakeTable]


@pytest.fixture(params=["delta", "iceberg"])
def open_table(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "delta":
        return lambda: DeltaLakeTable(tmp_path / "delta" / "t")
    return lambda: IcebergTable(local_catalog(tmp_path / "iceberg"), "lake.t")


def rows(content: dict[int, str], **columns: list[Any]) -> pa.Table:
    keys, values = pa.array(content, pa.int64()), pa.array(content.values(), pa.string())
    return pa.table({"k": keys, "v": values, **columns})


def keys(*values: int) -> pa.Table:
    return pa.table({"k": pa.array(values, pa.int64())})


def content_of(table: LakeTable) -> dict[int, str]:
    return {row["k"]: row["v"] for row in table.read().to_pylist()}


def test_one_transaction_adds_replaces_and_deletes(open_table: Open) -> None:
    table = open_table()
    table.merge(rows({1: "a", 2: "b", 3: "c"}), ["k"], Batch("q", 0))
    before = len(table.versions())
    assert table.merge(rows({2: "B", 4: "d"}), ["k"], Batch("q", 1), deleted=keys(3, 9))
    assert content_of(table) == {1: "a", 2: "B", 4: "d"}
    assert not open_table().merge(rows({3: "again"}), ["k"], Batch("q", 1), deleted=keys(1)), "the batch is known"
    assert content_of(table) == {1: "a", 2: "B", 4: "d"}
    assert len(table.versions()) - before in (1, 2), "Iceberg's overwrite is a delete and an append"


def test_a_merge_may_only_delete(open_table: Open) -> None:
    table = open_table()
    table.merge(rows({1: "a", 2: "b"}), ["k"], Batch("q", 0))
    assert table.merge(rows({}), ["k"], Batch("q", 1), deleted=keys(1))
    assert content_of(table) == {2: "b"}
    assert table.merge(rows({}), ["k"], Batch("q", 2), deleted=keys(2))
    assert content_of(table) == {}
    assert not table.merge(rows({}), ["k"], Batch("q", 3), deleted=keys()), "nothing to do"


def test_a_first_merge_that_only_deletes_creates_the_table(open_table: Open) -> None:
    table = open_table()
    assert table.columns() is None
    assert table.merge(rows({}), ["k"], Batch("q", 0), deleted=keys(7))
    assert content_of(table) == {}
    assert table.columns() == pa.schema({"k": pa.int64(), "v": pa.string()})


def test_a_new_column_arrives_in_a_merge_that_deletes(open_table: Open) -> None:
    table = open_table()
    table.merge(rows({1: "a", 2: "b"}), ["k"], Batch("q", 0))
    table.merge(rows({3: "c"}, more=[7]), ["k"], Batch("q", 1), deleted=keys(1))
    assert sorted(table.read().to_pylist(), key=lambda row: row["k"]) == [
        {"k": 2, "v": "b", "more": None},
        {"k": 3, "v": "c", "more": 7},
    ]


def test_a_key_that_is_kept_and_deleted_is_refused(open_table: Open) -> None:
    table = open_table()
    with pytest.raises(InvalidColumnsError, match="several rows in one batch"):
        table.merge(rows({1: "a"}), ["k"], Batch("q", 0), deleted=keys(1))
    with pytest.raises(InvalidColumnsError, match="null in 1 rows"):
        table.merge(rows({1: "a"}), ["k"], deleted=pa.table({"k": pa.array([None], pa.int64())}))


def test_random_merges_keep_the_rows_of_a_dictionary(open_table: Open) -> None:
    random = Random(os.environ["HEADRACE_TEST_SEED"])
    expected: dict[int, str] = {}
    for number in range(12):
        touched = random.sample(range(20), random.randint(1, 8))
        changed = {key: f"{key} in {number}" for key in touched if random.random() < 0.6}
        gone = [key for key in touched if key not in changed]
        open_table().merge(rows(changed), ["k"], Batch("q", number), deleted=keys(*gone))
        expected = {key: value for key, value in {**expected, **changed}.items() if key not in gone}
        assert content_of(open_table()) == expected


def test_keys_that_differ_beyond_a_doubles_digits_are_different_rows(open_table: Open) -> None:
    """A table's files have statistics, which some writers keep as JSON doubles."""
    kind, table = pa.decimal128(38, 18), open_table()
    wanted = [Decimal(text) for text in ("0.123456789012345678", "0.123456789012345679", "-12345678901234567890.5")]
    for number, key in enumerate([*wanted, *wanted]):
        one = pa.table({"k": pa.array([key], kind), "v": [str(number)]})
        table.merge(one, ["k"], Batch("q", number))
    assert {row["k"]: row["v"] for row in table.read().to_pylist()} == dict(zip(wanted, "345", strict=True))
    gone = pa.table({"k": pa.array(wanted[:1], kind)})
    table.merge(one.slice(0, 0), ["k"], Batch("q", 6), deleted=gone)
    assert sorted(row["k"] for row in table.read().to_pylist()) == sorted(wanted[1:])
