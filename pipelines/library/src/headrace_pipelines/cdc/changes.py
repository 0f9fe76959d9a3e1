"""The changes that one batch makes to one lake table, from the typed rows of the batch. All functions of the module are
pure functions of Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidColumnsError, SchemaChangeError
from ..expectations import REASON
from ..tables.columns import aligned, check_keys, new_fields, normal_schema, normalized
from .columns import Column

#: Two columns that only the lake table has: the position of the row's last change in PostgreSQL's log, and the time of
#: the change's commit.
LSN, CHANGED_AT = "__lsn", "__changed_at"
#: The columns of a refused event: its position in its topic, and the reason why the event cannot be applied.
REFUSED = pa.schema({"partition": pa.int32(), "offset": pa.int64(), REASON: pa.string()})
_POSITION = pa.schema({"__partition": pa.int32(), "__offset": pa.int64()})
_ROW = "__row"


@dataclass(frozen=True, slots=True)
class Version:
    """The events of a batch whose rows have the columns ``row`` and the primary key ``key``. ``events``: typed rows
    (rows.py) that Spark has collected."""

    key: tuple[Column, ...]
    row: tuple[Column, ...]
    events: pa.Table


@dataclass(frozen=True, slots=True)
class Changes:
    """``rows``: rows that exist after the batch. ``deleted``: the keys of rows that do not exist any more. ``refused``:
    the events that cannot be applied."""

    keys: tuple[str, ...]
    rows: pa.Table
    deleted: pa.Table
    refused: pa.Table


def changes(versions: Sequence[Version], columns: pa.Schema | None, table: str) -> Changes:
    """The changes of a batch to ``table``, which has ``columns`` (None: there is no table yet).

    ``versions`` are in the order in which their first events arrived. Only the last event of a key is applied: all
    events of a key are in one partition, in the order of PostgreSQL's log. A version whose columns do not fit the table
    is refused as a whole.
    """
    known = pa.schema([]) if columns is None else normal_schema(columns)
    keys: tuple[str, ...] = ()
    rows, deleted = [], []
    refused = [REFUSED.empty_table()]
    for version in versions:
        good = version.events.filter(pc.is_null(version.events[REASON]))
        refused.append(_refused(version.events.filter(pc.is_valid(version.events[REASON]))))
        names = tuple(column.name for column in version.key)
        try:
            _check_keys(names, keys or names, version, table)
            upserts = _with_position(normalized(_upserts(good, version), table), good, deletes=False)
            new = new_fields(_without_position(upserts.schema), known, table)
            check_keys(upserts.slice(0, 0), names, table)
            deletes = _with_position(normalized(_deletes(good, version), table), good, deletes=True)
            new_fields(_without_position(deletes.schema), pa.schema([*known, *new]), table)
        except (InvalidColumnsError, SchemaChangeError) as error:
            refused.append(_refused(good, str(error)))
            continue
        known, keys = pa.schema([*known, *new]), names
        rows.append(upserts)
        deleted.append(deletes)
    kept, gone = _last_of_each_key(rows, deleted, known, keys)
    return Changes(keys, kept, gone, pa.concat_tables(refused))


def _check_keys(names: tuple[str, ...], before: tuple[str, ...], version: Version, table: str) -> None:
    if names != before:
        raise SchemaChangeError(
            f"table {table} has the primary key ({', '.join(before)}), but the event's key is ({', '.join(names)}); "
            "replicate the table again, under a new name"
        )
    missing = [name for name in names if name not in {column.name for column in version.row}]
    if missing:
        raise InvalidColumnsError(
            f"table {table}: the key column {missing[0]!r} is not a column of the row; "
            "do not exclude it in the connector"
        )


def _upserts(events: pa.Table, version: Version) -> pa.Table:
    """The new rows of all events except deletes."""
    changed = events.filter(pc.not_equal(events["op"], "d"))
    rows = _cast(pa.Table.from_struct_array(changed["data"]), version.row)
    return rows.append_column(LSN, changed["lsn"]).append_column(CHANGED_AT, changed["changed_at"])


def _deletes(events: pa.Table, version: Version) -> pa.Table:
    """The keys of the deletes."""
    return _cast(pa.Table.from_struct_array(events.filter(pc.equal(events["op"], "d"))["key"]), version.key)


def _cast(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """``rows`` with dates and times in place of the numbers that represent them."""
    for index, column in enumerate(columns):
        if column.cast is not None:
            rows = rows.set_column(index, column.name, rows[column.name].cast(column.cast))
    return rows


def _with_position(rows: pa.Table, events: pa.Table, *, deletes: bool) -> pa.Table:
    same = pc.equal(events["op"], "d") if deletes else pc.not_equal(events["op"], "d")
    positions = events.filter(same).select(["partition", "offset"]).cast(pa.schema(REFUSED.remove(2)))
    for name, column in zip(_POSITION.names, positions.columns, strict=True):
        rows = rows.append_column(name, column)
    return rows


def _without_position(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in _POSITION.names])


def _last_of_each_key(
    rows: Sequence[pa.Table], deleted: Sequence[pa.Table], columns: pa.Schema, keys: tuple[str, ...]
) -> tuple[pa.Table, pa.Table]:
    """The rows whose last event is not a delete, and the keys whose last event is a delete."""
    if not rows:
        return columns.empty_table(), pa.table({})
    of_keys = pa.schema([columns.field(name) for name in keys])
    every = pa.concat_tables(aligned(each, pa.schema([*columns, *_POSITION])) for each in rows)
    gone = pa.concat_tables(aligned(each, pa.schema([*of_keys, *_POSITION])) for each in deleted)
    both = pa.concat_tables([every.select([*keys, *_POSITION.names]), gone])
    both = both.append_column(_ROW, pa.array(range(both.num_rows), pa.int64()))
    both = both.sort_by([(name, "ascending") for name in _POSITION.names])
    both = both.append_column("__order", pa.array(range(both.num_rows), pa.int64()))
    last = both.take(both.group_by(list(keys)).aggregate([("__order", "max")])["__order_max"].sort())[_ROW]
    is_row = pc.less(last, every.num_rows)
    kept = every.take(last.filter(is_row)).select(columns.names)
    without = gone.take(pc.subtract(last.filter(pc.invert(is_row)), every.num_rows)).select(list(keys))
    return kept, without


def _refused(events: pa.Table, reason: str | None = None) -> pa.Table:
    reasons = events[REASON] if reason is None else pa.array([reason] * events.num_rows, pa.string())
    table = pa.table({"partition": events["partition"], "offset": events["offset"], REASON: reasons})
    return table.cast(REFUSED)
