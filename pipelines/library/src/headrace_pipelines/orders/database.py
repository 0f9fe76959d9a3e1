"""The database of the tables: SQLite (``sqlite:///DIR/orders.db``) or PostgreSQL (``postgresql://user@host/name``).

Readers use the views ``orders``, ``customers`` and ``days``. Each row of the tables behind the views has a generation
number. The views show the rows of the present generation, whose number is in the table ``generation``. A rebuild writes
rows of the next generation, and then writes the number of this generation into the table ``generation``. The switch
changes only one row, so in every isolation level a reader sees either the old rows or the new rows. (A switch cannot
replace views or tables: PostgreSQL looks up names in its newest catalog, even for a transaction that reads an old
snapshot.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from headrace_core.errors import InvalidArgumentError, MissingDependencyError

#: Seconds that a statement waits for another process's transaction.
WAIT_S = 30.0
#: Maximum number of old rows that one transaction deletes.
SWEEP_ROWS = 5_000

#: Maps each view to the columns of its rows; the first column is the key.
VIEWS = {
    "orders": (
        "order_id TEXT", "customer TEXT", "state TEXT", "pieces BIGINT", "total_cents BIGINT", "paid_cents BIGINT",
        "rejected BIGINT", "version BIGINT", "updated_ms BIGINT", "document TEXT",
    ),
    "customers": ("customer TEXT", "orders BIGINT", "spent_cents BIGINT"),
    "days": ("day TEXT", "paid_orders BIGINT", "paid_cents BIGINT", "returned_cents BIGINT"),
    "positions": ("part BIGINT", "next_offset BIGINT"),
}  # fmt: skip

Row = tuple[Any, ...]


class Connection(Protocol):
    """The common interface of both drivers (DB-API, PEP 249)."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Database:
    """One connection. Each access is in a ``transaction``; transactions that write exclude each other."""

    def __init__(self, url: str) -> None:
        """Connect, and create the tables and views if they do not exist. Raises InvalidArgumentError,
        MissingDependencyError, and the driver's errors."""
        self.url = url
        self._is_sqlite = url.startswith("sqlite:///")
        self._connection = _sqlite(url) if self._is_sqlite else _postgres(url)
        with self.writing():
            if not self._is_made():
                self.run("CREATE TABLE generation (present BIGINT NOT NULL, rebuild TEXT)")
                for view, columns in VIEWS.items():
                    self._make(view, columns)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # -- statements

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that excludes other writers, even in other processes."""
        if self._is_sqlite:
            self.run("BEGIN IMMEDIATE")
        else:
            self.run(f"SET LOCAL lock_timeout = {int(WAIT_S * 1_000)}")
            self.run("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
        with self._ended():
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A transaction that sees one state of all tables."""
        self.run("BEGIN" if self._is_sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with self._ended():
            yield

    @contextmanager
    def _ended(self) -> Iterator[None]:
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise

    def _is_made(self) -> bool:
        if self._is_sqlite:
            return bool(self.rows("SELECT name FROM sqlite_master WHERE name = 'generation'"))
        return self.rows("SELECT to_regclass('generation') IS NOT NULL") == [(True,)]

    def _make(self, view: str, columns: Sequence[str]) -> None:
        names = [column.split()[0] for column in columns]
        typed = ", ".join(f"{column} NOT NULL" for column in columns)
        self.run(
            f"CREATE TABLE {view}_rows (generation BIGINT NOT NULL, {typed}, PRIMARY KEY (generation, {names[0]}))"
        )
        if view != "positions":
            self.run(
                f"CREATE VIEW {view} AS SELECT {', '.join(names)} FROM {view}_rows "
                "WHERE generation = (SELECT present FROM generation)"
            )

    def run(self, statement: str, values: Sequence[Any] = ()) -> None:
        self._cursor(statement, values).close()

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        if rows:
            cursor = self._connection.cursor()
            cursor.executemany(self._own(statement), rows)
            cursor.close()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        cursor = self._cursor(statement, values)
        found: list[Row] = cursor.fetchall()
        cursor.close()
        return found

    def _cursor(self, statement: str, values: Sequence[Any]) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(self._own(statement), tuple(values))
        return cursor

    def _own(self, statement: str) -> str:
        """The statement with the driver's placeholders (``?`` or ``%s``). The statements of this module use ``?`` only
        as a placeholder, and have no ``%``."""
        return statement if self._is_sqlite else statement.replace("?", "%s")

    def put(self, view: str, generation: int, rows: Sequence[Row], *, adds: Sequence[str] = ()) -> None:
        """Insert rows of a generation, or replace the rows with the same keys. In the columns ``adds``, a replacement
        adds the new value to the value of the old row."""
        names = [column.split()[0] for column in VIEWS[view]]
        key, others = names[0], names[1:]
        changes = [f"{name} = {f'old.{name} + ' if name in adds else ''}excluded.{name}" for name in others]
        places = ", ".join("?" * (len(names) + 1))
        self.many(
            f"INSERT INTO {view}_rows AS old VALUES ({places}) ON CONFLICT (generation, {key}) DO UPDATE SET "
            + ", ".join(changes),
            [(generation, *row) for row in rows],
        )

    # -- generations; call all methods except sweep and clear within a transaction

    def generation(self) -> int | None:
        """The present generation; None before the first generation exists."""
        found = self.rows("SELECT present FROM generation")
        return int(found[0][0]) if found else None

    def rebuild(self) -> str | None:
        """The name of the present rebuild, whose rows are the next generation; None if no rebuild is running."""
        found = self.rows("SELECT rebuild FROM generation")
        return found[0][0] if found else None

    def name_rebuild(self, name: str) -> int:
        """Allow only the rebuild ``name`` to write rows of the next generation; return the number of the present
        generation."""
        present = self.generation()
        assert present is not None
        self.run("UPDATE generation SET rebuild = ?", (name,))
        return present

    def show(self, generation: int) -> None:
        """Make ``generation`` the present generation. Call ``sweep`` afterwards."""
        self.run("DELETE FROM generation")
        self.run("INSERT INTO generation VALUES (?, NULL)", (generation,))

    def sweep(self, keep: int, *, later: bool = False) -> None:
        """Delete the rows of generations before ``keep``; with ``later``, also of generations after ``keep``. Each
        transaction deletes at most SWEEP_ROWS rows, so that other writers do not wait long."""
        old = "<>" if later else "<"
        row = "rowid" if self._is_sqlite else "ctid"
        for view in VIEWS:
            some = f"SELECT {row} FROM {view}_rows WHERE generation {old} ? LIMIT {SWEEP_ROWS}"
            statement = f"DELETE FROM {view}_rows WHERE {row} IN ({some})"
            deleted = SWEEP_ROWS
            while deleted == SWEEP_ROWS:
                with self.writing():
                    cursor = self._cursor(statement, (keep,))
                    deleted = cursor.rowcount
                    cursor.close()

    def clear(self) -> None:
        """Remove all generations and their rows."""
        with self.writing():
            self.run("DELETE FROM generation")
        self.sweep(0, later=True)

    def positions(self, generation: int) -> dict[int, int]:
        """The next offset of each partition of the events."""
        found = self.rows("SELECT part, next_offset FROM positions_rows WHERE generation = ?", (generation,))
        return {int(part): int(offset) for part, offset in found}


#: The number of PostgreSQL's advisory lock for the writers of this pipeline.
_LOCK = 0x68656164


def driver_errors() -> tuple[type[Exception], ...]:
    """The errors of both drivers."""
    try:
        import psycopg
    except ImportError:
        return (sqlite3.Error,)
    return (sqlite3.Error, psycopg.Error)


def _sqlite(url: str) -> Connection:
    path = Path(url.removeprefix("sqlite:///"))
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{url}: there is no directory {path.parent}; create it")
    connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for writers
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _postgres(url: str) -> Connection:
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidArgumentError(f"{url}: the database must be sqlite:///PATH or postgresql://...")
    try:
        import psycopg
    except ImportError:
        raise MissingDependencyError(
            "PostgreSQL needs psycopg, which is not installed: pip install 'headrace-pipelines[postgres]'"
        ) from None
    if psycopg.conninfo.conninfo_to_dict(url).get("password"):
        raise InvalidArgumentError(
            "the URL has a password, which `ps` and the files of a run show; put it in ~/.pgpass or in PGPASSWORD"
        )
    opened = psycopg.connect(url, connect_timeout=int(WAIT_S))
    # READ COMMITTED lets a transaction that waited for the lock see the rows that the previous holder wrote.
    opened.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection: Connection = opened
    return connection
