"""The sink's columns, and the rows of each topic in their order."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace_spark.errors import NullTopicError, SinkSchemaError
from headrace_spark.schema import RECORD_WITH_HEADERS
from headrace_spark.sink_columns import SinkColumns, check_columns, rows_by_topic
from headrace_spark.sink_task import gathered

HEADERS = "array<struct<key:string,value:binary>>"


def schema(**columns: str) -> StructType:
    """Columns by name, types as in DDL."""
    fields = [
        {"name": name, "nullable": False, "metadata": {}, "type": TYPES.get(kind, kind)}
        for name, kind in columns.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


TYPES: dict[str, Any] = {
    HEADERS: {
        "type": "array",
        "containsNull": False,
        "elementType": {
            "type": "struct",
            "fields": [
                {"name": "key", "type": "string", "nullable": False, "metadata": {}},
                {"name": "value", "type": "binary", "nullable": False, "metadata": {}},
            ],
        },
    },
    "array<string>": {"type": "array", "containsNull": True, "elementType": "string"},
}


def test_value_alone_is_enough_when_the_option_says_the_topic() -> None:
    assert check_columns(schema(value="string"), "out") == SinkColumns(("value",), by_row=False, ignored=())


def test_every_column_of_the_kafka_sink_is_taken() -> None:
    found = check_columns(
        schema(partition="integer", topic="string", headers=HEADERS, value="binary", key="string"), None
    )
    assert (found.taken, found.by_row) == (("key", "value", "headers", "partition"), True)


def test_a_frame_read_from_a_topic_is_taken_as_it_stands() -> None:
    found = check_columns(RECORD_WITH_HEADERS, "out")
    assert found.taken == ("key", "value", "headers", "partition")
    assert found.ignored == ("offset", "timestamp", "timestampType")
    assert found.note is None, "nobody wonders where the offset went"


def test_other_columns_are_left_out_and_reported() -> None:
    found = check_columns(schema(value="string", colour="string"), "out")
    assert found.taken == ("value",)
    assert found.note is not None
    assert "the columns colour are not written" in found.note


def test_the_topics_column_may_be_anything_when_the_option_wins() -> None:
    assert not check_columns(schema(value="string", topic="integer"), "out").by_row


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"key": "string"}, "out", r"no column value, which is required; its columns are key"),
        ({"Value": "string"}, "out", r"it has 'Value', and names are matched exactly"),
        ({"value": "string"}, None, r"no topic: set the option topic, or give the frame a string column named topic"),
        ({"value": "integer"}, "out", r"column 'value' is int, but must be string or binary"),
        ({"value": "string", "key": "double"}, "out", r"column 'key' is double, but must be string or binary"),
        ({"value": "string", "topic": "binary"}, None, r"column 'topic' is binary, but must be string"),
        ({"value": "string", "partition": "long"}, "out", r"column 'partition' is bigint, but must be int"),
        ({"value": "string", "headers": "array<string>"}, "out", r"column 'headers' is array<string>, but must be arr"),
    ],
)
def test_wrong_columns_are_refused_with_the_name_and_both_types(
    columns: dict[str, str], topic: str | None, message: str
) -> None:
    with pytest.raises(SinkSchemaError, match=message):
        check_columns(schema(**columns), topic)


def test_a_column_that_is_there_twice_is_refused() -> None:
    twice = StructType([*schema(value="string").fields, *schema(value="string").fields])
    with pytest.raises(SinkSchemaError, match="two columns named 'value'"):
        check_columns(twice, "out")


def table(**columns: list[Any]) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})


BY_ROW = SinkColumns(("key", "value"), by_row=True, ignored=())


def test_rows_of_several_topics_are_parted_and_keep_their_order() -> None:
    rows = [("a" if n % 3 else "b" if n % 2 else "c", f"k{n}", n) for n in range(100)]
    given = table(
        topic=[topic for topic, _, _ in rows], key=[key for _, key, _ in rows], value=[str(n) for *_, n in rows]
    )
    chunked = pa.concat_tables([given.slice(0, 1), given.slice(1, 40), given.slice(41)])
    found = {topic: part.to_pylist() for topic, part in rows_by_topic(chunked, BY_ROW, None, 0)}
    for wanted in "abc":
        assert found[wanted] == [{"key": k, "value": str(n)} for topic, k, n in rows if topic == wanted]
    assert set(found) == set("abc")


def test_rows_of_one_topic_are_handed_on_as_they_are() -> None:
    given = table(topic=["a", "a"], key=["x", "y"], value=["1", "2"])
    [(topic, part)] = rows_by_topic(given, BY_ROW, None, 0)
    assert topic == "a"
    assert part.column("value").chunk(0).buffers()[2].address == given.column("value").chunk(0).buffers()[2].address


def test_the_option_wins_over_the_column() -> None:
    given = table(topic=["a", None], key=["x", "y"], value=["1", "2"])
    columns = SinkColumns(("value",), by_row=False, ignored=("key",))
    [(topic, part)] = rows_by_topic(given, columns, "out", 0)
    assert (topic, part.column_names, part.num_rows) == ("out", ["value"], 2)


def test_a_null_topic_is_reported_with_the_rows_facts_and_nothing_is_sent() -> None:
    given = table(topic=["a", None], key=["x", "who"], value=["1", "what" * 40])
    with pytest.raises(NullTopicError, match=r"null in row 71 of this task \(key='who', value='what.{35}\.\.\.\)"):
        next(rows_by_topic(given, BY_ROW, None, 70))


@given(
    topics=st.lists(st.sampled_from(["orders", "clicks", "a", "zz"]), max_size=150),
    batch_rows=st.integers(1, 20),
    size=st.sampled_from([1, 200, 1_000, 1 << 20]),
    by_row=st.booleans(),
)
def test_rows_of_each_topic_keep_their_order(topics: list[str], batch_rows: int, size: int, by_row: bool) -> None:
    """From Spark's batches to the tables that ``send_arrow`` gets."""
    rows = pa.table({"topic": pa.array(topics, pa.string()), "value": pa.array(range(len(topics)), pa.int64())})
    columns = SinkColumns(("value",), by_row=by_row, ignored=())
    found: dict[str, list[int]] = {}
    first = 0
    for table in gathered(rows.to_batches(max_chunksize=batch_rows), size):
        for topic, part in rows_by_topic(table, columns, None if by_row else "all", first):
            found.setdefault(topic, []).extend(part["value"].to_pylist())
        first += table.num_rows
    expected: dict[str, list[int]] = {}
    for number, topic in enumerate(topics):
        expected.setdefault(topic if by_row else "all", []).append(number)
    assert found == expected
