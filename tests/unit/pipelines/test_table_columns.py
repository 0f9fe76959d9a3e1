"""The columns of lake tables: types that both formats have, and which changes of a schema are safe."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace_pipelines.errors import InvalidColumnsError, SchemaChangeError
from headrace_pipelines.tables.columns import aligned, check_keys, new_fields, normal_type, normalized, rows_without


def fields(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


def test_types_become_those_that_both_formats_have() -> None:
    pairs = [
        (pa.int8(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.timestamp("ns", "Europe/Paris"), pa.timestamp("us", "UTC")),
        (pa.timestamp("ms"), pa.timestamp("us")),
        (pa.binary(4), pa.binary()),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.struct([("a", pa.int16())]), pa.struct([("a", pa.int32())])),
        (pa.map_(pa.large_string(), pa.int8()), pa.map_(pa.string(), pa.int32())),
        (pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (pa.decimal32(9, 2), pa.decimal128(9, 2)),
        (pa.decimal64(18, 2), pa.decimal128(18, 2)),
        (pa.dictionary(pa.uint32(), pa.string_view()), pa.string()),
        (pa.dictionary(pa.int8(), pa.int64()), pa.int64()),
        (pa.run_end_encoded(pa.int32(), pa.binary_view()), pa.binary()),
        (pa.list_view(pa.string_view()), pa.list_(pa.string())),
        (pa.uuid(), pa.binary()),
        (pa.json_(), pa.string()),
        (pa.bool8(), pa.bool_()),
        (pa.float16(), pa.float32()),
        (pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))]), pa.struct([("a", pa.string())])),
    ]
    assert [normal_type(kind) for kind, _ in pairs] == [normal for _, normal in pairs]
    for _, normal in pairs:
        assert normal_type(normal) == normal


@pytest.mark.parametrize(
    "kind",
    [pa.null(), pa.uint64(), pa.time64("us"), pa.duration("us"), pa.list_(pa.null()), pa.decimal256(50, 2),
     pa.struct([("a", pa.time64("us"))]), pa.struct([])],
)  # fmt: skip
def test_a_type_that_a_format_lacks_is_refused_by_the_columns_name(kind: pa.DataType) -> None:
    rows = pa.table({"fine": pa.nulls(1, pa.int32()), "odd one": pa.nulls(1, kind)})
    with pytest.raises(InvalidColumnsError, match=r"table t: the column 'odd one' is "):
        normalized(rows, "t")


def test_values_keep_their_meaning() -> None:
    at = datetime(2013, 1, 1, 12, tzinfo=UTC)
    rows = pa.table(
        {
            "at": pa.array([at], pa.timestamp("ms", "Europe/Paris")),
            "day": pa.array([date(2013, 1, 1)], pa.date64()),
            "text": pa.array(["a"]).dictionary_encode(),
            "amount": pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
        }
    )
    assert normalized(rows, "t").to_pylist() == [
        {"at": at, "day": date(2013, 1, 1), "text": "a", "amount": Decimal("1.50")}
    ]


def test_dictionaries_of_views_runs_and_nested_layouts_keep_their_values() -> None:
    texts = pa.array(["north", "south"], pa.string_view())
    polars = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.uint32()), texts)
    rows = pa.table(
        {
            "polars": polars,
            "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), texts),
            "nested": pa.StructArray.from_arrays([polars], ["region"]),
            "lists": pa.array([["a"], None, []], pa.list_view(pa.string_view())),
            "half": pa.array([0.5, None, 1.5], pa.float16()),
        }
    )
    for part in (rows, rows.slice(1)):
        assert normalized(part, "t").to_pylist() == part.to_pylist()


def test_a_damaged_dictionary_is_refused_by_the_columns_name() -> None:
    damaged = pa.DictionaryArray.from_arrays(pa.array([5], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(InvalidColumnsError, match=r"the column 'c' does not fit string: Index 5 out of bounds"):
        normalized(pa.table({"c": damaged}), "t")


def test_nanoseconds_are_not_cut_silently() -> None:
    with pytest.raises(InvalidColumnsError, match=r"the column 'at' does not fit timestamp\[us\]"):
        normalized(pa.table({"at": pa.array([1_500], pa.timestamp("ns"))}), "t")


DAY, AT = pa.date32(), pa.timestamp("us")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DAY, -719_163),  # the day before the year 1
        (DAY, 2_932_897),  # the first day of the year 10000
        (DAY, 2**31 - 1),
        (AT, -62_135_596_800_000_001),
        (AT, 253_402_300_800_000_000),
        (pa.timestamp("ms", "UTC"), 253_402_300_800_000),
        (pa.list_(DAY), [0, None, 2**31 - 1]),
        (pa.map_(pa.string(), AT), [("a", 0), ("b", 2**62)]),
        (pa.struct([("a", pa.list_(AT))]), {"a": [2**62]}),
    ],
    ids=str,
)
def test_a_time_that_would_damage_a_table_is_refused(kind: pa.DataType, value: Any) -> None:
    rows = pa.table({"fine": pa.array([1, 2]), "at": pa.array([None, value], kind)})
    with pytest.raises(InvalidColumnsError, match="the column 'at' has a time that is not in the years 1 to 9999"):
        normalized(rows, "t")
    assert normalized(rows.slice(0, 1), "t").num_rows == 1  # the other row, in an array that also has the time


@pytest.mark.parametrize(
    ("kind", "values"),
    [(DAY, [-719_162, 2_932_896]), (AT, [-62_135_596_800_000_000, 253_402_300_799_999_999])],
    ids=str,
)
def test_the_first_and_the_last_time_are_right(kind: pa.DataType, values: list[int]) -> None:
    assert normalized(pa.table({"at": pa.array(values, kind)}), "t")["at"].to_pylist()[1].year == 9999


def test_names_that_differ_in_case_only_are_refused() -> None:
    with pytest.raises(InvalidColumnsError, match="two columns are named 'day'"):
        normalized(pa.table({"Day": [1], "day": [2]}), "t")
    with pytest.raises(SchemaChangeError, match="has the column 'day', and the rows have 'Day'"):
        new_fields(fields(Day=pa.int64()), fields(day=pa.int64()), "t")


def test_new_columns_are_found_and_narrower_types_fit() -> None:
    table = fields(k=pa.int64(), x=pa.float64(), d=pa.decimal128(9, 2), s=pa.string())
    rows = fields(k=pa.int32(), x=pa.float32(), d=pa.decimal128(5, 2), extra=pa.string())
    assert new_fields(rows, table, "t") == [pa.field("extra", pa.string())]


@pytest.mark.parametrize(
    ("there", "now"),
    [
        (pa.int32(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.int64(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.decimal128(9, 2), pa.decimal128(10, 2)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
    ],
)
def test_another_type_is_refused_by_the_columns_name(there: pa.DataType, now: pa.DataType) -> None:
    with pytest.raises(SchemaChangeError) as refused:
        new_fields(fields(delay=now), fields(delay=there), "silver")
    assert refused.value.message.startswith(
        f"table silver refuses the column 'delay': it is {there} in the table and {now} in the rows"
    )


def test_rows_take_the_order_of_the_table_and_lacking_columns_are_null() -> None:
    rows = pa.table({"b": pa.array([1], pa.int32()), "a": ["x"]})
    columns = fields(a=pa.string(), b=pa.int64(), c=pa.float64())
    assert aligned(rows, columns).to_pylist() == [{"a": "x", "b": 1, "c": None}]
    assert aligned(rows, columns).schema == columns


@pytest.mark.parametrize(
    ("rows", "keys", "said"),
    [
        ({"a": [1]}, ["b"], "the rows have no column 'b'; they have a"),
        ({"a": [1, None]}, ["a"], "the key 'a' is null in 1 rows"),
        ({"a": [1, 1], "b": [2, 2]}, ["a", "b"], r"the first is {'a': 1, 'b': 2}"),
        ({"a": [1.5]}, ["a"], "the key 'a' is double"),
        ({"a": [[1]]}, ["a"], "the key 'a' is list"),
    ],
)
def test_keys_that_do_not_identify_a_row_are_refused(rows: dict[str, Any], keys: list[str], said: str) -> None:
    with pytest.raises(InvalidColumnsError, match=said):
        check_keys(pa.table(rows), keys, "t")


def test_rows_with_other_keys_keep_their_order_and_their_nested_columns() -> None:
    rows = pa.table({"a": [3, 1, 2, 1], "b": ["x", "x", "y", "z"], "l": [[3], [1], [2], [4]]})
    others = pa.table({"b": ["x", "y"], "a": [1, 3]})
    assert rows_without(rows, ["a", "b"], others).to_pylist() == [
        {"a": 3, "b": "x", "l": [3]},
        {"a": 2, "b": "y", "l": [2]},
        {"a": 1, "b": "z", "l": [4]},
    ]
