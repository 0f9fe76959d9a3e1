"""Iceberg tables, on pyiceberg. The batch of a write is stored in a property of the table, which is set in the commit
of the rows.

The property with the batch stays when snapshots expire. The snapshot of the write names its query and batch, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, Transaction

from ..errors import TableNotFoundError
from .columns import aligned, normal_schema, rows_without
from .table import Batch, Compacted, Conflict, How, LakeTable, Version

#: Prefix of the table property that stores the last batch of a query.
BATCH_PROPERTY = "headrace.batch."
_RETRIES = "commit.retry.num-retries"


def local_catalog(directory: str | Path) -> Catalog:
    """A catalog in a directory of this machine: SQLite for the names, files for the tables."""
    path = Path(directory).resolve()
    path.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("headrace", uri=f"sqlite:///{path / 'catalog.db'}", warehouse=path.as_uri())


class IcebergTable(LakeTable):
    """The Iceberg table ``name`` (``namespace.table``) of a catalog of pyiceberg."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.name = name
        self._catalog = catalog
        self._loaded: Table

    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of the table now, or at a snapshot of the table. Raises TableNotFoundError."""
        table = self._open()
        if version is not None and table.snapshot_by_id(version) is None:
            raise TableNotFoundError(
                f"there is no snapshot {version} of the Iceberg table {self.name}; versions() lists the snapshots"
            )
        fields = ("*",) if columns is None else tuple(columns)
        rows = table.scan(snapshot_id=version, selected_fields=fields).to_arrow()
        return rows.cast(normal_schema(rows.schema))

    def versions(self) -> list[Version]:
        """The snapshots of the table, oldest first. Raises TableNotFoundError."""
        return [
            Version(
                each.snapshot_id,
                datetime.fromtimestamp(each.timestamp_ms / 1000, UTC),
                "" if each.summary is None else each.summary.operation.value,
            )
            for each in self._open().snapshots()
        ]

    def files(self) -> int:
        """The number of data files of the table. Raises TableNotFoundError."""
        return len(list(self._open().scan().plan_files()))

    def columns(self) -> pa.Schema | None:
        """The columns of the table now; None if the catalog has no such table."""
        return normal_schema(self._open().schema().as_arrow()) if self.exists() else None

    def exists(self) -> bool:
        """Whether the catalog has the table."""
        return self._catalog.table_exists(self.name)

    def _open(self) -> Table:
        try:
            return self._catalog.load_table(self.name)
        except NoSuchTableError as error:
            raise TableNotFoundError(
                f"the catalog has no Iceberg table {self.name}; a first append creates it"
            ) from error

    def _load(self, columns: pa.Schema) -> pa.Schema:
        if not self.exists():
            try:
                self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
                self._catalog.create_table(self.name, columns)
            except (NamespaceAlreadyExistsError, TableAlreadyExistsError) as error:
                raise Conflict(str(error)) from error
        self._loaded = self._newest()
        return self._loaded.schema().as_arrow()

    def _newest(self) -> Table:
        """Load the table, and set a property that makes a commit fail if the table has changed since the load. Without
        the property pyiceberg repeats the commit on a newer state of the table, which ``_last_batch`` has not seen."""
        table = self._open()
        if table.properties.get(_RETRIES) != "0":
            with _conflicts(), table.transaction() as transaction:
                transaction.set_properties({_RETRIES: "0"})
        return table

    def _last_batch(self, query: str) -> int | None:
        last = self._loaded.properties.get(BATCH_PROPERTY + query)
        return None if last is None else int(last)

    def _commit(
        self,
        rows: pa.Table,
        new: list[pa.Field],
        how: How,
        keys: tuple[str, ...],
        batch: Batch | None,
        deleted: pa.Table | None,
    ) -> None:
        summary = {}
        with _conflicts(), self._loaded.transaction() as transaction:
            if batch is not None:
                transaction.set_properties({BATCH_PROPERTY + batch.query: str(batch.number)})
                summary = {"headrace.query": batch.query, "headrace.batch": str(batch.number)}
            if new:
                with transaction.update_schema() as update:
                    update.union_by_name(pa.schema(new))
            if how == "append":
                transaction.append(rows, snapshot_properties=summary)
            elif how == "merge":
                self._merge_rows(transaction, rows, keys, deleted, summary)
            else:
                every = [task.file for task in self._loaded.scan().plan_files()]
                _swap(transaction, every, _written(transaction, rows) if rows.num_rows else [], summary)

    def _merge_rows(
        self,
        transaction: Transaction,
        rows: pa.Table,
        keys: tuple[str, ...],
        deleted: pa.Table | None,
        summary: dict[str, str],
    ) -> None:
        """Rewrite the files that have rows with the keys of ``rows`` and ``deleted``, and add ``rows``."""
        changed = rows.select(keys) if deleted is None else pa.concat_tables([rows.select(keys), deleted])
        touched, kept = [], []
        for task in self._loaded.scan(row_filter=_between(changed, keys)).plan_files():
            before = self._read(transaction, [task])
            after = rows_without(before, keys, changed)
            if after.num_rows < before.num_rows:
                touched.append(task.file)
                kept.append(after)
        written = pa.concat_tables([*kept, rows])
        _swap(transaction, touched, _written(transaction, written) if written.num_rows else [], summary)

    def _compact(self, target_bytes: int) -> Compacted:
        table = self._newest()
        tasks = list(table.scan().plan_files())
        groups = _groups([task for task in tasks if task.file.file_size_in_bytes < target_bytes], target_bytes)
        if not groups:
            return Compacted(len(tasks), len(tasks))
        with _conflicts(), table.transaction() as transaction:
            old, added = [], []
            for group in groups:
                rows = self._read(transaction, group)
                added += _written(transaction, rows)
                old += [task.file for task in group]
            _swap(transaction, old, added, {"headrace.compaction": str(len(old))})
        return Compacted(len(tasks), len(tasks) - len(old) + len(added))

    def _read(self, transaction: Transaction, tasks: list[FileScanTask]) -> pa.Table:
        """The rows of data files, with the columns of the table now."""
        metadata = transaction.table_metadata
        schema = metadata.schema()
        rows = ArrowScan(metadata, transaction._table.io, schema, AlwaysTrue()).to_table(tasks)
        return aligned(rows, normal_schema(schema.as_arrow()))


def _between(rows: pa.Table, keys: tuple[str, ...]) -> BooleanExpression:
    """A filter for files that may have a key of ``rows``. Each key column that is not boolean or binary must have a
    value between the least and the largest key."""
    every: BooleanExpression = AlwaysTrue()
    for key in keys:
        if pa.types.is_boolean(rows[key].type) or pa.types.is_binary(rows[key].type):
            continue
        ends = pc.min_max(rows[key]).as_py()
        least = GreaterThanOrEqual(term=Reference(key), value=literal(ends["min"]))
        largest = LessThanOrEqual(term=Reference(key), value=literal(ends["max"]))
        every = And(every, And(least, largest))
    return every


def _groups(tasks: list[FileScanTask], target_bytes: int) -> list[list[FileScanTask]]:
    """Groups of files, each of which becomes one file: as many files as fit the target size. A group of a single file
    is not rewritten."""
    groups: list[list[FileScanTask]] = [[]]
    size = 0
    for task in tasks:
        if groups[-1] and size + task.file.file_size_in_bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(task)
        size += task.file.file_size_in_bytes
    return [group for group in groups if len(group) > 1]


def _written(transaction: Transaction, rows: pa.Table) -> list[DataFile]:
    """Write ``rows`` into new data files, which do not belong to a snapshot yet."""
    return list(_dataframe_to_data_files(transaction.table_metadata, rows, transaction._table.io))


def _swap(transaction: Transaction, old: Iterable[DataFile], new: Iterable[DataFile], summary: dict[str, str]) -> None:
    """Replace data files by others in one snapshot."""
    with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
        for file in old:
            snapshot.delete_data_file(file)
        for file in new:
            snapshot.append_data_file(file)


@contextmanager
def _conflicts() -> Iterator[None]:
    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise Conflict(str(error)) from error
