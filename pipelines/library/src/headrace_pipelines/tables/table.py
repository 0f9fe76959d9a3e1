"""The operations of a lake table, for both Delta Lake and Iceberg.

Each write is one transaction of the table: readers see either all rows of the write or none. A write with a Batch
stores the batch in the same transaction. A batch that the table has is not written again:

    load the table ---> has it the batch, or a later one of this query? ---> yes: write nothing
          ^                                                            `--> no: write files, commit rows and batch
          `---------- another writer committed first: no row is visible, begin again <----'

The commit of a write fails if any other commit came after the load. If two drivers write the same batch at the same
time, the table therefore gets it once.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeVar

import pyarrow as pa

from ..errors import InvalidColumnsError, TableConflictError
from .columns import aligned, check_keys, new_fields, normal_schema, normalized

#: Maximum number of times that a write begins again because another writer committed first.
ATTEMPTS = 12
_PAUSE_S, _PAUSE_MAX_S = 0.02, 1.0
#: Approximate size, in bytes, of the files that compaction writes. Compaction rewrites smaller files.
TARGET_BYTES = 128 * 1024 * 1024


Result = TypeVar("Result")
How = Literal["append", "merge", "replace"]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query. ``query`` is the same when the batch is repeated, and ``number`` grows with each batch."""

    query: str
    number: int


@dataclass(frozen=True, slots=True)
class Version:
    """A state of a table that ``read`` can return: ``number`` is Delta's version, or Iceberg's snapshot id."""

    number: int
    at: datetime
    operation: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """The number of data files before and after a compaction."""

    files_before: int
    files_after: int


class Conflict(Exception):
    """Another writer committed after the table was loaded; the rows of the failed attempt are not visible."""


class LakeTable(ABC):
    """A table in a lake. The first write creates the table."""

    #: The name of the table in errors.
    name: str

    def append(self, rows: pa.Table, batch: Batch | None = None) -> bool:
        """Add ``rows`` and their new columns. Returns False, and writes nothing, if the table already has ``batch``.

        Write a batch to a table only once: a second write of the same batch counts as a repetition. If ``rows`` has no
        rows, nothing happens. Raises InvalidColumnsError, SchemaChangeError and TableConflictError.
        """
        return self._write(rows, "append", (), batch)

    def merge(
        self, rows: pa.Table, keys: Sequence[str], batch: Batch | None = None, *, deleted: pa.Table | None = None
    ) -> bool:
        """Replace the rows of the table that have the ``keys`` of ``rows``, and add all other rows of ``rows``.

        ``deleted``: keys whose rows are removed in the same transaction. A key without a row in the table changes
        nothing. A column that ``rows`` lack becomes null. Returns the same value as ``append``. Raises
        InvalidColumnsError, also if a key is null or occurs twice in ``rows`` and ``deleted``, SchemaChangeError and
        TableConflictError.
        """
        if not keys or isinstance(keys, str):
            raise InvalidColumnsError(
                f"cannot merge into table {self.name} by keys={keys!r}: give a list of column names"
            )
        return self._write(rows, "merge", tuple(keys), batch, deleted)

    def replace(self, rows: pa.Table, batch: Batch | None = None) -> bool:
        """Replace all rows of the table by ``rows``, which may be empty; a column that ``rows`` lack becomes null.

        Earlier versions keep their rows. Returns the same value as ``append``. Raises InvalidColumnsError,
        SchemaChangeError and TableConflictError.
        """
        return self._write(rows, "replace", (), batch)

    def compact(self, target_bytes: int = TARGET_BYTES) -> Compacted:
        """Rewrite small files into larger ones. No row changes, and earlier versions stay readable. Raises
        TableNotFoundError and TableConflictError."""
        return self._until_committed(lambda: self._compact(target_bytes))

    @abstractmethod
    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of the table now, or at a version of ``versions``. Raises TableNotFoundError."""

    @abstractmethod
    def versions(self) -> list[Version]:
        """The versions of the table that can be read, oldest first. Raises TableNotFoundError."""

    @abstractmethod
    def files(self) -> int:
        """The number of data files of the table. Raises TableNotFoundError."""

    @abstractmethod
    def columns(self) -> pa.Schema | None:
        """The columns of the table now; None if no write has created the table."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether a write has created the table."""

    # -- methods that each format implements

    @abstractmethod
    def _load(self, columns: pa.Schema) -> pa.Schema:
        """Load the newest state of the table, and return the table's columns. Create a missing table with
        ``columns``."""

    @abstractmethod
    def _last_batch(self, query: str) -> int | None:
        """The last batch of the query in the loaded state."""

    @abstractmethod
    def _commit(
        self,
        rows: pa.Table,
        new: list[pa.Field],
        how: How,
        keys: tuple[str, ...],
        batch: Batch | None,
        deleted: pa.Table | None,
    ) -> None:
        """Write ``rows`` as a change of the loaded state. ``new``: the fields that the table lacks. ``deleted``: in a
        merge, the keys of rows to remove. Raises Conflict if the table has changed since it was loaded."""

    @abstractmethod
    def _compact(self, target_bytes: int) -> Compacted:
        """Merge the small files of the table's newest version. Raises Conflict."""

    # -- the loop

    def _write(
        self,
        rows: pa.Table,
        how: How,
        keys: tuple[str, ...],
        batch: Batch | None,
        deleted: pa.Table | None = None,
    ) -> bool:
        rows = normalized(rows, self.name)
        if keys:
            check_keys(rows, keys, self.name)
        if deleted is not None and deleted.num_rows:
            deleted = aligned(deleted, pa.schema([rows.schema.field(key) for key in keys]))
            check_keys(pa.concat_tables([rows.select(keys), deleted]), keys, self.name)
        else:
            deleted = None
        if not rows.num_rows and deleted is None and how != "replace":
            return False
        return self._until_committed(lambda: self._attempt(rows, how, keys, batch, deleted))

    def _attempt(
        self, rows: pa.Table, how: How, keys: tuple[str, ...], batch: Batch | None, deleted: pa.Table | None
    ) -> bool:
        columns = normal_schema(self._load(rows.schema))
        if batch is not None:
            last = self._last_batch(batch.query)
            if last is not None and last >= batch.number:
                return False
        new = new_fields(rows.schema, columns, self.name)
        if any(field.name in keys for field in new):
            how = "append"  # the key column is new, so no row of the table has the key of a new row
        every = pa.schema([*columns, *new])
        if deleted is not None:
            deleted = aligned(deleted, pa.schema([every.field(key) for key in keys]))
        self._commit(aligned(rows, every), new, how, keys, batch, deleted)
        return True

    def _until_committed(self, attempt: Callable[[], Result]) -> Result:
        pause_s = _PAUSE_S
        for _ in range(ATTEMPTS - 1):
            try:
                return attempt()
            except Conflict:
                time.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        try:
            return attempt()
        except Conflict as conflict:
            raise TableConflictError(
                f"cannot write to table {self.name}: other writers committed first {ATTEMPTS} times, so no row was "
                f"written ({conflict}); write again, or use fewer writers"
            ) from conflict
