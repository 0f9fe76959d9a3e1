"""The database of the tables: SQLite (``sqlite:///DIR/orders.db``) or PostgreSQL (``postgresql://user@host/name``).

The tables exist in generations: ``orders_1``, ``customers_1``, ``days_1``, ``positions_1``, then ``orders_2`` after a
rebuild. The views ``orders``, ``customers`` and ``days`` show the present generation. The table ``generation`` names
the present generation, and the rebuild that makes the next one. A switch replaces the views in one transaction, so a
reader sees the old tables or the new ones, whole.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from headrace_core.errors import InvalidArgumentError, MissingDependencyError

VIEWS = ("orders", "customers", "days")
#: Seconds that a statement waits for another process's transaction.
WAIT_S = 30.0

_TABLES = {
    "orders": "order_id TEXT PRIMARY KEY, customer TEXT NOT NULL, state TEXT NOT NULL, pieces BIGINT NOT NULL, "
    "total_cents BIGINT NOT NULL, paid_cents BIGINT NOT NULL, rejected BIGINT NOT NULL, version BIGINT NOT NULL, "
    "updated_ms BIGINT NOT NULL, document TEXT NOT NULL",
    "customers": "customer TEXT PRIMARY KEY, orders BIGINT NOT NULL, spent_cents BIGINT NOT NULL",
    "days": "day TEXT PRIMARY KEY, paid_orders BIGINT NOT NULL, paid_cents BIGINT NOT NULL, "
    "returned_cents BIGINT NOT NULL",
    "positions": "part BIGINT PRIMARY KEY, next_offset BIGINT NOT NULL",
}

Row = tuple[Any, ...]


class Connection(Protocol):
    """What both drivers have (DB-API, PEP 249)."""

    def cursor(self) -> Any: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


class Database:
    """One connection. Each access is in a ``transaction``; transactions that write exclude each other."""

    def __init__(self, url: str) -> None:
        """Connects, and makes the table ``generation``. Raises InvalidArgumentError, MissingDependencyError, and the
        driver's errors."""
        self.url = url
        self._is_sqlite = url.startswith("sqlite:///")
        self._connection = _sqlite(url) if self._is_sqlite else _postgres(url)
        with self.writing():
            self.run("CREATE TABLE IF NOT EXISTS generation (present BIGINT NOT NULL, rebuild TEXT)")

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    # -- statements

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that excludes other writers, also of other processes."""
        if self._is_sqlite:
            self.run("BEGIN IMMEDIATE")
        else:
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
        """The statement with the driver's placeholders; no statement here has a ? or % of its own."""
        return statement if self._is_sqlite else statement.replace("?", "%s")

    # -- generations

    def generation(self) -> int | None:
        """The present generation; None before the first. Call it, and the methods below, in a transaction."""
        found = self.rows("SELECT present FROM generation")
        return int(found[0][0]) if found else None

    def rebuild(self) -> str | None:
        """The name of the present rebuild, whose tables are the next generation; None without one."""
        found = self.rows("SELECT rebuild FROM generation")
        return found[0][0] if found else None

    def begin_rebuild(self, name: str) -> int:
        """Make the next generation, in place of an unfinished rebuild's; returns its number."""
        present = self.generation()
        assert present is not None
        self.make(present + 1)
        self.run("UPDATE generation SET rebuild = ?", (name,))
        return present + 1

    def clear(self) -> None:
        """Drop all views and tables but ``generation``, which is then empty."""
        for name in VIEWS:
            self.run(f"DROP VIEW IF EXISTS {name}")
        if (present := self.generation()) is not None:
            self.drop(present)
            self.drop(present + 1)
        self.run("DELETE FROM generation")

    def make(self, generation: int) -> None:
        """Make the empty tables of a generation."""
        self.drop(generation)
        for name, columns in _TABLES.items():
            self.run(f"CREATE TABLE {name}_{generation} ({columns})")

    def drop(self, generation: int) -> None:
        for name in _TABLES:
            self.run(f"DROP TABLE IF EXISTS {name}_{generation}")

    def show(self, generation: int) -> None:
        """Make the views show a generation, and drop the one before."""
        before = self.generation()
        for name in VIEWS:
            self.run(f"DROP VIEW IF EXISTS {name}")
            self.run(f"CREATE VIEW {name} AS SELECT * FROM {name}_{generation}")
        self.run("DELETE FROM generation")
        self.run("INSERT INTO generation VALUES (?, NULL)", (generation,))
        if before is not None:
            self.drop(before)

    def positions(self, generation: int) -> dict[int, int]:
        """The next offset of each partition of the events."""
        return {int(part): int(offset) for part, offset in self.rows(f"SELECT * FROM positions_{generation}")}


#: PostgreSQL's lock of this pipeline's writers.
_LOCK = 0x68656164


def _sqlite(url: str) -> Connection:
    path = Path(url.removeprefix("sqlite:///"))
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"{url}: there is no directory {path.parent}")
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
    connection: Connection = psycopg.connect(url, connect_timeout=int(WAIT_S))
    return connection
