"""Delta Lake tables, on deltalake (delta-rs). The batch of a write is stored as Delta's application transaction
(``txn``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.exceptions import TableNotFoundError as NoDeltaTableError

from ..errors import TableNotFoundError
from .columns import aligned, normal_schema
from .table import Batch, Compacted, Conflict, How, LakeTable, Version


class DeltaLakeTable(LakeTable):
    """A Delta table at ``location``: a directory, or a URL with ``storage_options`` as deltalake reads them."""

    def __init__(
        self, location: str | Path, *, name: str | None = None, storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.location = str(location)
        self.name = name or self.location.rstrip("/").rpartition("/")[2]
        self._storage_options = dict(storage_options) if storage_options else None
        self._loaded: DeltaTable

    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of the table now, or at a version of the table. Raises TableNotFoundError."""
        table = self._open(version)
        rows = table.to_pyarrow_table(columns=None if columns is None else list(columns))
        return rows.cast(normal_schema(rows.schema))

    def versions(self) -> list[Version]:
        """The versions of the table, oldest first. Raises TableNotFoundError."""
        return [
            Version(each["version"], datetime.fromtimestamp(each["timestamp"] / 1000, UTC), each["operation"].lower())
            for each in reversed(self._open().history())
        ]

    def files(self) -> int:
        """The number of data files of the table. Raises TableNotFoundError."""
        return len(self._open().file_uris())

    def columns(self) -> pa.Schema | None:
        """The columns of the table now; None if there is no table at the location."""
        return normal_schema(_columns(self._open())) if self.exists() else None

    def exists(self) -> bool:
        """Whether there is a Delta table at the location."""
        return DeltaTable.is_deltatable(self.location, self._storage_options)

    def _open(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.location, version=version, storage_options=self._storage_options)
        except (NoDeltaTableError, DeltaError) as error:
            if version is None and self.exists():
                raise
            what = "there is no Delta table" if version is None else f"there is no version {version} of the Delta table"
            raise TableNotFoundError(f"{what} at {self.location}; a first append creates it: {error}") from error

    def _load(self, columns: pa.Schema) -> pa.Schema:
        if not self.exists():
            with _conflicts():
                DeltaTable.create(
                    self.location,
                    DeltaSchema.from_arrow(columns),
                    mode="ignore",
                    name=self.name,
                    storage_options=self._storage_options,
                )
        self._loaded = self._open()
        return _columns(self._loaded)

    def _last_batch(self, query: str) -> int | None:
        return self._loaded.transaction_version(query)

    def _commit(
        self,
        rows: pa.Table,
        new: list[pa.Field],
        how: How,
        keys: tuple[str, ...],
        batch: Batch | None,
        deleted: pa.Table | None,
    ) -> None:
        written = None if batch is None else [Transaction(batch.query, batch.number)]
        # Allow no retries: in a retry, delta-rs would write to a newer state of the table, which _last_batch has not
        # checked.
        properties = CommitProperties(app_transactions=written, max_commit_retries=0)
        with _conflicts():
            if any(_has_local_time(field.type) for field in new):
                self._loaded.alter.add_feature(
                    TableFeatures.TimestampWithoutTimezone,
                    allow_protocol_versions_increase=True,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            if how != "merge":
                write_deltalake(
                    self._loaded,
                    rows,
                    mode="append" if how == "append" else "overwrite",
                    schema_mode="merge" if new else None,
                    commit_properties=properties,
                )
                return
            if deleted is not None and new:
                # The rows of a merge with deletes also have the column _KEPT, which must not become a column of the
                # table. Add the new columns before the merge.
                self._loaded.alter.add_columns(
                    DeltaSchema.from_arrow(pa.schema(new)).fields,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            self._merge(rows, bool(new), keys, deleted, properties)

    def _merge(
        self,
        rows: pa.Table,
        is_wider: bool,
        keys: tuple[str, ...],
        deleted: pa.Table | None,
        properties: CommitProperties,
    ) -> None:
        names = rows.column_names
        source = rows
        if deleted is not None:
            source = pa.concat_tables([rows.append_column(_KEPT, _flags(rows, True)), _padded(deleted, rows.schema)])
        merge = self._loaded.merge(
            source,
            " AND ".join(f"target.{_quoted(key)} = source.{_quoted(key)}" for key in keys),
            source_alias="source",
            target_alias="target",
            merge_schema=is_wider and deleted is None,
            commit_properties=properties,
        )
        if deleted is None:
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
            return
        values = {_quoted(name): f"source.{_quoted(name)}" for name in names}
        kept = f"source.{_quoted(_KEPT)}"
        merge.when_matched_update(values, predicate=kept).when_matched_delete().when_not_matched_insert(
            values, predicate=kept
        ).execute()

    def _compact(self, target_bytes: int) -> Compacted:
        table = self._open()
        before = len(table.file_uris())
        with _conflicts():
            table.optimize.compact(target_size=target_bytes, commit_properties=CommitProperties(max_commit_retries=0))
        return Compacted(before, len(table.file_uris()))


#: Temporary column of the rows in a merge with deletes: False deletes the row from the table.
_KEPT = "__headrace_kept"


def _flags(rows: pa.Table, value: bool) -> pa.Array:
    return pa.array([value] * rows.num_rows, pa.bool_())


def _padded(deleted: pa.Table, columns: pa.Schema) -> pa.Table:
    """The keys of deleted rows, with null in all other columns."""
    return aligned(deleted, columns).append_column(_KEPT, _flags(deleted, False))


def _columns(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _has_local_time(kind: pa.DataType) -> bool:
    """Whether the type has a timestamp without a zone, which Delta supports only in tables with a special feature."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_has_local_time(kind.field(index).type) for index in range(kind.num_fields))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise Conflict(str(error)) from error
