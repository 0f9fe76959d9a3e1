"""The changes of a batch to one lake table: the last event of a key counts, and what does not fit is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from headrace_pipelines.cdc.changes import CHANGED_AT, LSN, REFUSED, Changes, Version, changes
from headrace_pipelines.cdc.columns import Column
from headrace_pipelines.cdc.comparison import compared
from headrace_pipelines.expectations import REASON

ID, NAME, NOTE = Column("id", "BIGINT", False), Column("name", "STRING"), Column("note", "STRING")
AT = datetime(2026, 1, 2, tzinfo=UTC)
TYPES = {"BIGINT": pa.int64(), "DOUBLE": pa.float64(), "INT": pa.int32(), "STRING": pa.string()}
Event = tuple[int, int, str, dict[str, Any]]


def version(
    events: Sequence[Event], *row: Column, key: tuple[Column, ...] = (ID,), reason: str | None = None
) -> Version:
    """``events``: partition, offset, operation, and the row; for a delete, the key."""

    def struct(columns: Sequence[Column]) -> pa.DataType:
        return pa.struct([(column.name, TYPES[column.json]) for column in columns])

    table = pa.table(
        {
            "partition": pa.array([each[0] for each in events], pa.int32()),
            "offset": pa.array([each[1] for each in events], pa.int64()),
            "op": pa.array([each[2] for each in events], pa.string()),
            "lsn": pa.array([10 * each[1] for each in events], pa.int64()),
            "changed_at": pa.array([AT] * len(events), pa.timestamp("us", "UTC")),
            "key": pa.array([{column.name: each[3][column.name] for column in key} for each in events], struct(key)),
            "data": pa.array([None if each[2] == "d" else each[3] for each in events], struct(row)),
            REASON: pa.array([reason] * len(events), pa.string()),
        }
    )
    return Version(key, row, table)


def names(found: Changes) -> dict[int, Any]:
    return {row["id"]: row["name"] for row in found.rows.to_pylist()}


def reasons(found: Changes) -> dict[int, str]:
    return {row["offset"]: row[REASON] for row in found.refused.to_pylist()}


def test_the_last_event_of_a_key_counts() -> None:
    events: list[Event] = [
        (0, 0, "r", {"id": 1, "name": "a"}),
        (0, 1, "u", {"id": 1, "name": "b"}),
        (1, 0, "c", {"id": 2, "name": "c"}),
        (1, 1, "d", {"id": 2}),
        (0, 2, "d", {"id": 3}),
        (0, 3, "c", {"id": 3, "name": "again"}),
    ]
    found = changes([version(events, ID, NAME)], None, "t")
    assert names(found) == {1: "b", 3: "again"}
    assert found.deleted.to_pydict() == {"id": [2]}
    assert found.keys == ("id",)
    assert found.rows.schema.names == ["id", "name", LSN, CHANGED_AT]
    assert {row["id"]: row[LSN] for row in found.rows.to_pylist()} == {1: 10, 3: 30}
    assert found.refused.equals(REFUSED.empty_table())


def test_a_changed_key_is_a_delete_and_an_insert() -> None:
    events: list[Event] = [(0, 5, "d", {"id": 1}), (1, 0, "c", {"id": 7, "name": "a"})]
    found = changes([version(events, ID, NAME)], None, "t")
    assert (names(found), found.deleted.to_pydict()) == ({7: "a"}, {"id": [1]})


def test_a_column_that_comes_in_the_middle_of_a_batch_is_null_in_older_rows() -> None:
    old = version([(0, 0, "c", {"id": 1, "name": "a"}), (1, 9, "u", {"id": 2, "name": "old"})], ID, NAME)
    new = version([(0, 1, "c", {"id": 3, "name": "b", "note": "n"})], ID, NAME, NOTE)
    found = changes([old, new], None, "t")
    assert {row["id"]: row["note"] for row in found.rows.to_pylist()} == {1: None, 2: None, 3: "n"}


def test_a_batch_without_a_column_of_the_table_leaves_it_null() -> None:
    columns = pa.schema({"id": pa.int64(), "name": pa.string(), "note": pa.string()})
    found = changes([version([(0, 0, "c", {"id": 1, "name": "a"})], ID, NAME)], columns, "t")
    assert found.rows.to_pylist()[0]["note"] is None


def test_numbers_that_stand_for_dates_become_dates() -> None:
    day = Column("day", "INT", True, pa.date32())
    found = changes([version([(0, 0, "c", {"id": 1, "day": 3})], ID, day)], None, "t")
    assert found.rows["day"].to_pylist() == [date(1970, 1, 4)]


def test_a_date_may_be_the_key() -> None:
    day = Column("day", "INT", False, pa.date32())
    events = [(0, 0, "c", {"day": 3}), (0, 1, "d", {"day": 4})]
    found = changes([version(events, day, key=(day,))], None, "t")
    assert (found.rows["day"].to_pylist(), found.deleted["day"].to_pylist()) == ([date(1970, 1, 4)], [date(1970, 1, 5)])


def test_a_version_whose_column_has_another_type_than_the_table_is_refused_as_a_whole() -> None:
    columns = pa.schema({"id": pa.int64(), "name": pa.int32()})
    bad = version([(0, 0, "c", {"id": 1, "name": "a"}), (0, 1, "d", {"id": 2})], ID, NAME)
    good = version([(0, 2, "c", {"id": 3, "name": 5})], ID, Column("name", "INT"))
    found = changes([bad, good], columns, "public.t")
    assert names(found) == {3: 5}
    assert reasons(found).keys() == {0, 1}
    assert "table public.t refuses the column 'name': it is int32 in the table and string" in reasons(found)[0]


def test_an_event_with_a_reason_is_refused_and_others_are_applied() -> None:
    found = changes(
        [
            version([(0, 0, "c", {"id": 1, "name": "a"})], ID, NAME, reason="broken"),
            version([(0, 1, "c", {"id": 2, "name": "b"})], ID, NAME),
        ],
        None,
        "t",
    )
    assert (names(found), reasons(found)) == ({2: "b"}, {0: "broken"})


@pytest.mark.parametrize(
    "case", ["another key", "a key outside the row", "a column of ours", "a key of another type", "a float as key"]
)
def test_a_version_with_impossible_columns_is_refused(case: str) -> None:
    other, rate = Column("other", "BIGINT", False), Column("rate", "DOUBLE", False)
    bad = {
        "another key": version([(0, 1, "c", {"id": 1, "name": "a"})], ID, NAME, key=(ID, NAME)),
        "a key outside the row": version([(0, 1, "d", {"other": 1})], ID, NAME, key=(other,)),
        "a column of ours": version([(0, 1, "c", {"id": 1, LSN: "a"})], ID, Column(LSN, "STRING")),
        "a key of another type": version([(0, 1, "d", {"id": 2**40})], Column("id", "INT"), NAME),
        "a float as key": version([(0, 1, "c", {"rate": 0.5})], rate, key=(rate,)),
    }[case]
    alone = ("a key outside the row", "a key of another type", "a float as key")
    first = [] if case in alone else [version([(0, 0, "c", {"id": 9, "name": "z"})], ID, NAME)]
    found = changes([*first, bad], None, "t")
    expected = {
        "another key": "has the primary key (id), but the event's key is (id, name)",
        "a key outside the row": "'other' is not a column of the row",
        "a column of ours": "two columns are named",
        "a key of another type": "'id': it is int32 in the table and int64 in the rows",
        "a float as key": "'rate' is double, and equality of such values is not certain",
    }[case]
    assert expected in reasons(found)[1]
    assert found.rows.num_rows == len(first)


def test_only_refused_events_change_nothing() -> None:
    found = changes([version([(0, 0, "c", {"id": 1, "name": "a"})], ID, NAME, reason="broken")], None, "t")
    assert (found.rows.num_rows, found.deleted.num_rows, found.refused.num_rows) == (0, 0, 1)


def test_random_histories_end_in_the_rows_of_the_source() -> None:
    random = Random(os.environ["HEADRACE_TEST_SEED"])
    source: dict[int, str] = {}
    table: dict[int, str | None] = {}
    offsets = [0, 0]
    for number in range(60):
        batch: list[Event] = []
        for step in range(random.randint(1, 12)):
            key = random.randint(0, 9)
            partition = key % 2
            if key in source and random.random() < 0.4:
                del source[key]
                batch.append((partition, offsets[partition], "d", {"id": key}))
            else:
                source[key] = f"{number}.{step}"
                batch.append((partition, offsets[partition], "u", {"id": key, "name": source[key]}))
            offsets[partition] += 1
        random.shuffle(batch)
        found = changes([version(batch, ID, NAME)], pa.schema({"id": pa.int64(), "name": pa.string()}), "t")
        for key in found.deleted.to_pydict()["id"]:
            table.pop(key, None)
        table.update(names(found))
        assert table == source


def test_a_comparison_finds_each_difference() -> None:
    expected = pa.table({"id": [1, 2, 3], "name": ["a", "b", None]})
    assert (
        compared("t", expected, pa.table({"id": [3, 1, 2], "name": [None, "a", "b"], LSN: [1, 2, 3]}), ["id"]).different
        == 0
    )
    assert compared("t", expected, pa.table({"id": [1, 2], "name": ["a", "b"]}), ["id"]).different == 1, "missing"
    assert compared("t", expected, pa.table({"id": [1, 2, 3, 4], "name": ["a", "b", None, "d"]}), ["id"]).different == 1
    assert (
        compared("t", expected, pa.table({"id": [1, 2, 3, 3], "name": ["a", "b", None, None]}), ["id"]).different == 1
    )
    wrong = compared("t", expected, pa.table({"id": [1, 2, 3], "name": ["a", "", ""]}), ["id"])
    assert wrong.different == 2
    assert "t: 2 of 3 rows differ: {'id': 2} is" in str(wrong)
