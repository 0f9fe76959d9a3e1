"""Lake tables in both formats: exactly once, merge, schema evolution, compaction, time travel. No Spark."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace_pipelines.errors import (
    InvalidColumnsError,
    SchemaChangeError,
    TableConflictError,
    TableNotFoundError,
)
from headrace_pipelines.tables import table as table_module
from headrace_pipelines.tables.delta import DeltaLakeTable
from headrace_pipelines.tables.iceberg import IcebergTable, local_catalog
from headrace_pipelines.tables.table import Batch, LakeTable

Open = Callable[[], LakeTable]


def opened(kind: str, directory: Path) -> LakeTable:
    if kind == "delta":
        return DeltaLakeTable(directory / "delta" / "t")
    return IcebergTable(local_catalog(directory / "iceberg"), "lake.t")


@pytest.fixture(params=["delta", "iceberg"])
def open_table(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the test's table; each call is another client of the table."""
    return lambda: opened(request.param, tmp_path)


def rows(*keys: int, **columns: Any) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), **columns})


def keys_of(table: LakeTable, version: int | None = None) -> list[int]:
    return sorted(table.read(version)["k"].to_pylist())


def test_a_batch_is_written_once(open_table: Open) -> None:
    table = open_table()
    assert table.append(rows(1, 2), Batch("q", 0))
    assert not table.append(rows(1, 2), Batch("q", 0))
    assert table.append(rows(3), Batch("q", 1))
    assert not open_table().append(rows(1, 2), Batch("q", 0)), "a batch before the last one is known too"
    assert table.append(rows(4), Batch("another", 0)), "batches of another query are other batches"
    assert table.append(rows(5)), "a write without a batch is always another one"
    assert keys_of(table) == [1, 2, 3, 4, 5]


def test_a_merged_batch_is_written_once(open_table: Open) -> None:
    table = open_table()
    table.merge(rows(1, 2, v=["a", "b"]), ["k"], Batch("q", 0))
    table.merge(rows(2, 3, v=["B", "C"]), ["k"], Batch("q", 1))
    assert not table.merge(rows(1, 2, v=["a", "b"]), ["k"], Batch("q", 0)), "an old batch would undo a later one"
    assert sorted((row["k"], row["v"]) for row in table.read().to_pylist()) == [(1, "a"), (2, "B"), (3, "C")]


@pytest.mark.parametrize("merge", [False, True])
def test_two_drivers_that_write_the_same_batch_at_once_write_it_once(
    open_table: Open, monkeypatch: pytest.MonkeyPatch, merge: bool
) -> None:
    def write(table: LakeTable, content: pa.Table, batch: Batch) -> bool:
        return table.merge(content, ["k"], batch) if merge else table.append(content, batch)

    table, other = open_table(), open_table()
    write(table, rows(0), Batch("q", 0))
    commit = table._commit

    def commit_second(*arguments: Any) -> None:
        monkeypatch.setattr(table, "_commit", commit)
        assert write(other, rows(1), Batch("q", 1))
        commit(*arguments)

    monkeypatch.setattr(table, "_commit", commit_second)
    assert not write(table, rows(1), Batch("q", 1))
    assert keys_of(table) == [0, 1]


@pytest.mark.parametrize("merge", [False, True])
def test_a_write_begins_again_when_another_query_was_first(
    open_table: Open, monkeypatch: pytest.MonkeyPatch, merge: bool
) -> None:
    table, other = open_table(), open_table()
    table.append(rows(0, v=["old"]), Batch("q", 0))
    commit = table._commit

    def commit_second(*arguments: Any) -> None:
        monkeypatch.setattr(table, "_commit", commit)
        other.append(rows(7, v=["other"], more=[True]), Batch("other", 0))
        commit(*arguments)

    monkeypatch.setattr(table, "_commit", commit_second)
    if merge:
        assert table.merge(rows(0, 1, v=["new", "new"]), ["k"], Batch("q", 1))
    else:
        assert table.append(rows(1, v=["new"]), Batch("q", 1))
    found = {row["k"]: (row["v"], row["more"]) for row in table.read().to_pylist()}
    assert found == {0: ("new" if merge else "old", None), 1: ("new", None), 7: ("other", True)}


def test_all_rows_are_replaced_once_and_may_be_none(open_table: Open) -> None:
    table = open_table()
    table.append(rows(1, 2, v=["a", "b"]))
    before = table.versions()[-1].number
    assert table.replace(rows(3, more=[True]), Batch("q", 0))
    assert not table.replace(rows(4), Batch("q", 0))
    assert table.read().to_pylist() == [{"k": 3, "v": None, "more": True}]
    assert keys_of(table, before) == [1, 2]
    assert table.replace(rows(), Batch("q", 1))
    assert keys_of(table) == []
    assert table.append(rows(5), Batch("q", 2))
    assert keys_of(table) == [5]


def test_two_drivers_may_create_the_table_at_once(open_table: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = open_table(), open_table()
    exists = table.exists

    def there_is_none_yet() -> bool:
        monkeypatch.setattr(table, "exists", exists)
        other.append(rows(1), Batch("q", 0))
        return False

    monkeypatch.setattr(table, "exists", there_is_none_yet)
    assert not table.append(rows(1), Batch("q", 0))
    assert keys_of(table) == [1]


def test_a_write_that_is_always_second_fails_and_writes_nothing(
    open_table: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_module, "ATTEMPTS", 3)
    table, other = open_table(), open_table()
    table.append(rows(0))
    commit, count = table._commit, iter(range(100, 200))

    def commit_second(*arguments: Any) -> None:
        other.append(rows(next(count)))
        commit(*arguments)

    monkeypatch.setattr(table, "_commit", commit_second)
    with pytest.raises(TableConflictError, match="other writers committed first 3 times"):
        table.append(rows(1), Batch("q", 0))
    assert keys_of(table) == [0, 100, 101, 102]


def test_a_batch_is_known_after_compaction_and_many_commits(open_table: Open) -> None:
    """Delta writes a checkpoint of its log after a hundred commits; an Iceberg table may lose its old snapshots."""
    table = open_table()
    last = 103 if isinstance(table, DeltaLakeTable) else 5
    table.append(rows(-1), Batch("rare", 3))
    for number in range(last + 1):
        table.append(rows(number), Batch("q", number))
    table.compact()
    if isinstance(table, IcebergTable):
        table._open().maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        assert len(table.versions()) == 1
    assert not open_table().append(rows(-1), Batch("rare", 3))
    assert not open_table().append(rows(last), Batch("q", last))
    assert keys_of(table) == list(range(-1, last + 1))


def test_new_columns_are_added_and_null_before(open_table: Open) -> None:
    table = open_table()
    table.append(rows(1), Batch("q", 0))
    at = datetime(2013, 7, 1, 12, 30, tzinfo=UTC)
    everything = {
        "i": pa.array([1], pa.int32()), "f": [1.5], "b": [True], "day": [date(2013, 7, 1)], "text": ["é"],
        "raw": [b"\x00"], "at": pa.array([at], pa.timestamp("us", "UTC")), "list": [[1, 2]], "Two Words": [1],
        "local": pa.array([at.replace(tzinfo=None)], pa.timestamp("us")), "amount": [Decimal("1.25")],
        "nested": [{"a": 1, "b": ["x"]}], "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    }  # fmt: skip
    table.append(rows(2, **everything), Batch("q", 1))
    table.merge(rows(3, extra=["merged"]), ["k"], Batch("q", 2))
    first, second, third = sorted(table.read().to_pylist(), key=lambda row: row["k"])
    assert first == dict.fromkeys([*everything, "extra"], None) | {"k": 1}
    assert second == rows(2, **everything).to_pylist()[0] | {"extra": None}
    assert third == dict.fromkeys(everything, None) | {"k": 3, "extra": "merged"}
    assert not table.append(rows(2, **everything), Batch("q", 1))


@pytest.mark.parametrize("day", [2**31 - 1, 2_932_897], ids=["infinity", "the year 10000"])
def test_a_day_that_would_damage_the_table_is_refused_and_nothing_is_written(open_table: Open, day: int) -> None:
    """PostgreSQL's ``infinity`` made delta-rs panic; with a day of the year 10000 no row could be read any more."""
    table = open_table()
    table.append(rows(1, day=pa.array([0], pa.date32())))
    with pytest.raises(InvalidColumnsError, match="the column 'day' has a time that is not in the years 1 to 9999"):
        table.append(rows(2, day=pa.array([day], pa.date32())))
    assert keys_of(open_table()) == [1]


def test_a_changed_type_is_refused_and_nothing_is_written(open_table: Open) -> None:
    table = open_table()
    table.append(rows(1, delay=pa.array([5], pa.int32())), Batch("q", 0))
    before = table.versions()
    for column in (pa.array([5], pa.int64()), pa.array(["5"]), pa.array([5.0])):
        with pytest.raises(SchemaChangeError, match="refuses the column 'delay': it is int32 in the table"):
            table.append(rows(2, delay=column), Batch("q", 1))
        with pytest.raises(SchemaChangeError, match="'delay'"):
            table.merge(rows(2, delay=column), ["k"], Batch("q", 1))
    assert table.versions() == before
    assert table.append(rows(2, delay=pa.array([5], pa.int8())), Batch("q", 1))


@pytest.mark.parametrize("seed", range(2))
def test_any_history_of_writes_is_that_of_a_dictionary(open_table: Open, seed: int) -> None:
    """Merges by two keys with repeated batches, new columns, compactions, and reads of earlier versions."""
    random = Random(seed)
    table, model, columns = open_table(), {}, ["v"]
    states: dict[int, dict[tuple[int, str], dict[str, Any]]] = {}
    batches: list[pa.Table] = []
    for number in range(15):
        if random.random() < 0.15:
            columns.append(f"v{number}")
        keys = random.sample([(k, s) for k in range(12) for s in "ab"], random.randint(1, 8))
        some = [column for column in columns if random.random() < 0.8]
        content = {key: {column: random.randint(0, 99) for column in some} for key in keys}
        batch = pa.table(
            {"k": [k for k, _ in keys], "s": [s for _, s in keys]}
            | {column: [content[key][column] for key in keys] for column in some}
        )
        batches.append(batch)
        assert table.merge(batch, ["k", "s"], Batch("q", number))
        model |= content
        states[table.versions()[-1].number] = dict(model)
        if random.random() < 0.3:
            table = open_table()
            again = random.randint(0, number)
            assert not table.merge(batches[again], ["k", "s"], Batch("q", again))
        if random.random() < 0.2:
            table.compact()
    for version, state in [(None, model), *random.sample(sorted(states.items(), key=lambda each: each[0]), 3)]:
        found = {(row.pop("k"), row.pop("s")): row for row in table.read(version).to_pylist()}
        assert {key: {c: v for c, v in row.items() if v is not None} for key, row in found.items()} == state
        assert table.read(version).num_rows == len(state)


def test_small_files_become_one_and_no_row_changes(open_table: Open) -> None:
    table = open_table()
    for number in range(8):
        more = {"more": [number]} if number > 4 else {}
        table.append(rows(number, **more), Batch("q", number))
    before, rows_before = table.versions()[-1].number, table.read().sort_by("k")
    assert table.files() == 8
    compacted = table.compact()
    assert (compacted.files_before, compacted.files_after) == (8, 1) == (8, table.files())
    assert table.read().sort_by("k") == rows_before
    assert table.read(before).sort_by("k") == rows_before
    assert table.compact().files_after == 1
    assert table.append(rows(9), Batch("q", 9))


def test_large_files_are_not_rewritten(open_table: Open) -> None:
    table = open_table()
    for number in range(3):
        table.append(rows(number))
    compacted = table.compact(target_bytes=1)
    assert (compacted.files_before, compacted.files_after) == (3, 3)


def test_compaction_begins_again_when_a_merge_was_first(open_table: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = open_table(), open_table()
    for number in range(3):
        table.append(rows(number, v=["old"]))
    compact, target = table._compact, [table_module.TARGET_BYTES]
    calls = []

    def merge_after_the_first(target_bytes: int) -> Any:
        calls.append(target_bytes)
        if len(calls) == 1:
            other.merge(rows(1, v=["new"]), ["k"], Batch("q", 0))
            raise table_module.Conflict("another writer was first")
        return compact(target_bytes)

    monkeypatch.setattr(table, "_compact", merge_after_the_first)
    table.compact()
    assert calls == target * 2
    assert {row["k"]: row["v"] for row in table.read().to_pylist()} == {0: "old", 1: "new", 2: "old"}


def test_earlier_versions_are_read_as_they_were(open_table: Open) -> None:
    table = open_table()
    seen = []
    for number in range(3):
        table.append(rows(number), Batch("q", number))
        seen.append(table.versions()[-1])
    assert [keys_of(table, version.number) for version in seen] == [[0], [0, 1], [0, 1, 2]]
    assert [version.at for version in seen] == sorted(version.at for version in seen)
    assert table.read(columns=["k"]).column_names == ["k"]
    with pytest.raises(TableNotFoundError, match=r"no (version|snapshot) 12345"):
        table.read(12345)


def test_a_table_that_there_is_not_is_named(open_table: Open) -> None:
    table = open_table()
    assert not table.exists()
    for use in (table.read, table.versions, table.files, table.compact):
        with pytest.raises(TableNotFoundError, match="a first append creates it"):
            use()
    assert not table.append(rows(), Batch("q", 0)), "no rows: no table"
    assert not table.exists()
    assert table.append(rows(1), Batch("q", 1))
    assert table.exists()


def test_keys_are_checked_before_a_merge(open_table: Open) -> None:
    table = open_table()
    for wrong in (["missing"], [], "k"):
        with pytest.raises(InvalidColumnsError):
            table.merge(rows(1), wrong)
    with pytest.raises(InvalidColumnsError, match="several rows in one batch"):
        table.merge(rows(1, 1), ["k"])
    assert not table.exists()


@pytest.mark.parametrize(
    "key",
    [
        pa.array(["a'b", 'c"d', "é"]),
        pa.array([date(2013, 1, 1), date(2013, 1, 2), date(1950, 1, 1)]),
        pa.array([datetime(2013, 1, d, tzinfo=UTC) for d in (1, 2, 3)], pa.timestamp("us", "UTC")),
        pa.array([Decimal("1.10"), Decimal("-2.20"), Decimal("3.30")]),
        pa.array([b"\x00", b"\xff", b""]),
    ],
    ids=["text", "date", "time", "decimal", "binary"],
)
def test_keys_of_every_type_match(open_table: Open, key: pa.Array) -> None:
    table = open_table()
    table.append(pa.table({"Odd key": key, "v": [1, 2, 3]}))
    table.merge(pa.table({"Odd key": key.take(pa.array([2, 0])), "v": [30, 10]}), ["Odd key"])
    assert sorted(table.read()["v"].to_pylist()) == [2, 10, 30]


def test_merging_by_a_new_column_adds_the_rows(open_table: Open) -> None:
    table = open_table()
    table.append(pa.table({"v": [1]}))
    table.merge(pa.table({"v": [2], "k": [5]}), ["k"])
    table.merge(pa.table({"v": [3], "k": [5]}), ["k"])
    assert sorted((row["v"], row["k"] or 0) for row in table.read().to_pylist()) == [(1, 0), (3, 5)]


def test_duckdb_reads_a_table_through_arrow(open_table: Open) -> None:
    table = open_table()
    table.append(rows(*range(100)))
    found = table.read()
    with duckdb.connect() as connection:
        connection.register("found", found)
        assert connection.sql("SELECT count(*), sum(k) FROM found").fetchall() == [(100, 4950)]
