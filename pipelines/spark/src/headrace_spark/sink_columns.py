"""The rows of the Spark sink: the accepted columns and types, and the rows of each topic. Pure.

The rules for columns are the Kafka sink's. The column ``value`` is required; ``key``, ``headers``, ``topic`` and
``partition`` are optional. Columns with other names are ignored, so a DataFrame read from one topic can be written to
another topic unchanged. Column names are case-sensitive, and the option ``topic`` overrides the column ``topic``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from .errors import NullTopicError, SinkSchemaError
from .schema import HEADERS, RECORD_WITH_HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT_OR_BYTES = "string or binary"
_HEADERS = HEADERS.simpleString()  # The type without nullability, because the Kafka sink does not compare nullability.
#: For a row with a null topic, show this many characters of key and value.
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a DataFrame. ``taken``: the written columns, in the order of a record's fields. ``by_row``: the
    column ``topic`` names the topic of each row."""

    taken: tuple[str, ...]
    by_row: bool
    ignored: tuple[str, ...]

    @property
    def note(self) -> str | None:
        """A note for the user about columns that the sink ignores."""
        known = set(RECORD_WITH_HEADERS.fieldNames())
        strange = [name for name in self.ignored if name not in known]
        if not strange:
            return None
        return f"the columns {', '.join(strange)} are not written: a record has value, key, headers, topic, partition"


def check_columns(schema: StructType, topic: str | None) -> SinkColumns:
    """The columns of ``schema`` that are written; ``topic``: the option's value. Raises SinkSchemaError."""
    fields: dict[str, StructField] = {}
    for field in schema.fields:
        if field.name in fields and field.name in ("value", "key", "headers", "topic", "partition"):
            raise SinkSchemaError(f"the frame has two columns named {field.name!r}; drop or rename one")
        fields[field.name] = field
    if topic is None and "topic" not in fields:
        raise SinkSchemaError(
            f"no topic: set the option topic, or give the frame a string column named topic{_near('topic', fields)}"
        )
    if "value" not in fields:
        raise SinkSchemaError(f"the frame has no column value, which is required{_near('value', fields)}")
    if topic is None:
        _check(fields["topic"], isinstance(fields["topic"].dataType, StringType), "string")
    for name in ("key", "value"):
        if name in fields:
            _check(fields[name], isinstance(fields[name].dataType, StringType | BinaryType), _TEXT_OR_BYTES)
    if "headers" in fields:
        _check(fields["headers"], fields["headers"].dataType.simpleString() == _HEADERS, _HEADERS)
    if "partition" in fields:
        _check(fields["partition"], isinstance(fields["partition"].dataType, IntegerType), "int")
    taken = tuple(name for name in ("key", "value", "headers", "partition") if name in fields)
    ignored = tuple(name for name in fields if name not in (*taken, "topic"))
    return SinkColumns(taken, by_row=topic is None, ignored=ignored)


def _check(field: StructField, right: bool, wanted: str) -> None:
    if not right:
        raise SinkSchemaError(
            f"column {field.name!r} is {field.dataType.simpleString()}, but must be {wanted}; cast it, or encode it "
            "(to_json, to_avro)"
        )


def _near(name: str, fields: dict[str, StructField]) -> str:
    near = difflib.get_close_matches(name, [other.lower() for other in fields], n=1, cutoff=0.7)
    if not near:
        return f"; its columns are {', '.join(fields) or 'none'}"
    given = next(other for other in fields if other.lower() == near[0])
    return f"; it has {given!r}, and names are matched exactly"


def rows_by_topic(
    table: pa.Table, columns: SinkColumns, topic: str | None, first_row: int
) -> Iterator[tuple[str, pa.Table]]:
    """(topic, its rows in order, with the columns that are written).

    ``first_row`` is the number of the table's first row within the task. Raises NullTopicError, which names the first
    row without a topic, before it returns any rows.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = table.select(list(columns.taken))
    if topic is not None:
        yield topic, wanted
        return
    topics = table.column("topic")
    if topics.null_count:
        row = pc.index(topics.is_null(), True).as_py()
        raise NullTopicError(_null_topic(wanted.slice(row, 1).to_pylist()[0], first_row + row))
    codes = pa.concat_arrays(topics.dictionary_encode().unify_dictionaries().chunks)
    names = codes.dictionary.to_pylist()
    if len(names) <= 1:
        for name in names:
            yield name, wanted
        return
    order = pc.sort_indices(codes.indices)  # a stable sort: the rows of a topic keep their order
    begin = 0
    counted = {item["values"]: item["counts"] for item in pc.value_counts(codes.indices).to_pylist()}
    for code, name in enumerate(names):
        count = counted.get(code, 0)
        if count:
            yield name, wanted.take(order.slice(begin, count))
        begin += count


def _null_topic(row: dict[str, object], number: int) -> str:
    facts = ", ".join(f"{name}={_shown(row[name])}" for name in ("key", "value", "partition") if name in row)
    return (
        f"the column topic is null in row {number} of this task ({facts}). Give every row a topic, or set the option "
        "topic, which holds for all of them"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
