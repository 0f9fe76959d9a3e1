"""Columns of a SQL table: faults of their names, and names that are given twice."""

from __future__ import annotations

import time

import pytest

from headrace_pipelines.sql.faults import Source, SqlError
from headrace_pipelines.sql.naming import column_fault, distinct
from headrace_pipelines.sql.parsing import parse
from tests.worlds.waiting import check_spent


def test_a_table_with_many_columns_is_parsed_in_seconds() -> None:
    """Each column was compared with all columns before it, again for each column: 5,000 took minutes, in which Ctrl-C
    had no effect."""
    columns = [f"c{number} INT" for number in range(5_000)]
    began_s = time.thread_time()
    (table,) = parse(Source(f"CREATE TABLE t ({', '.join(columns)})"))
    assert len(table.columns) == 5_000  # type: ignore[union-attr]
    with pytest.raises(SqlError, match="two columns have the name C7"):
        list(parse(Source(f"CREATE TABLE t ({', '.join([*columns, 'C7 INT'])})")))
    assert len(set(distinct(["id"] * 5_000))) == 5_000
    check_spent(began_s, 20)


def test_a_fault_of_columns_is_the_first_one() -> None:
    assert column_fault(["a", "b"]) is None
    assert "two columns have the name A" in (column_fault(["a", "A", "_offset"]) or "")
    assert "a record's position" in (column_fault(["a", "_OFFSET", "a"]) or "")


def test_a_made_name_is_none_that_is_given() -> None:
    assert distinct(["id", "id", "id_2", "id"]) == ["id", "id_3", "id_2", "id_4"]
