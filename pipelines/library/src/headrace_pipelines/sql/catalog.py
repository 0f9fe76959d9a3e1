"""The tables, views, functions and continuous queries that a directory keeps, in DIR/catalog.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace_core.errors import InvalidArgumentError

#: Formats of values.
FORMATS = ("json", "avro", "text")
#: What a query does with a record that cannot be parsed.
BAD_RECORDS = ("fail", "skip")
_FILE = "catalog.json"


@dataclass(frozen=True, slots=True)
class Table:
    """A topic as a table. ``columns``: names and Spark types (``latitude DOUBLE``), empty if the registry has the
    schema. ``key``: the columns of the record's key. ``is_latest``: the table has the newest row of each key (a primary
    key), otherwise each record is a row."""

    name: str
    topic: str
    format: str = "json"
    columns: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    is_latest: bool = False
    subject: str = ""
    bad_records: str = "fail"

    @property
    def ddl(self) -> str:
        return ", ".join(self.columns)

    @property
    def kind(self) -> str:
        return "table" if self.is_latest else "stream"


@dataclass(frozen=True, slots=True)
class ContinuousQuery:
    """A continuous query. ``target``: the table that it writes. ``application``: the id under which the sink knows the
    query's batches; a new query has a new one. ``reads``: tables in its text."""

    id: str
    target: str
    text: str
    application: str
    reads: tuple[str, ...] = ()


@dataclass(slots=True)
class Catalog:
    """``save`` writes the catalog; an earlier process's catalog is read by ``open``. Names are in small letters."""

    directory: Path
    tables: dict[str, Table] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    queries: dict[str, ContinuousQuery] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path) -> Catalog:
        """The catalog in ``directory``; empty if there is none. Raises InvalidArgumentError for a damaged file."""
        path = directory / _FILE
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return cls(directory)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{path} is damaged: {error}; move it away, and declare the tables again"
            ) from None
        return cls(
            directory,
            {name: Table(**_tuples(each)) for name, each in found["tables"].items()},
            found["views"],
            found["functions"],
            {name: ContinuousQuery(**_tuples(each)) for name, each in found["queries"].items()},
        )

    def save(self) -> None:
        """Write the file; a crash leaves the old one or the new one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        document = {
            "tables": {name: dataclasses.asdict(each) for name, each in self.tables.items()},
            "views": self.views,
            "functions": self.functions,
            "queries": {name: dataclasses.asdict(each) for name, each in self.queries.items()},
        }
        new = self.directory / f".{_FILE}.new"
        new.write_text(json.dumps(document, indent=2) + "\n")
        new.replace(self.directory / _FILE)

    @property
    def names(self) -> set[str]:
        """The names of tables and views."""
        return {*self.tables, *self.views}

    def users_of(self, name: str) -> list[str]:
        """Queries that read or write a table, directly or through a view."""
        return [query.id for query in self.queries.values() if name == query.target or name in query.reads]

    def writer_of(self, name: str) -> list[ContinuousQuery]:
        return [query for query in self.queries.values() if query.target == name]

    def new_id(self, target: str) -> str:
        """An id for a query that writes ``target``: its name, and a number if the name is taken."""
        number, found = 1, target
        while found in self.queries:
            number += 1
            found = f"{target}_{number}"
        return found


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
