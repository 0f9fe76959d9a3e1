"""The tables, views, functions and continuous queries that a directory keeps, in DIR/catalog.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headrace_core.errors import InvalidArgumentError

from ..durable import replace_file

#: Formats of values.
FORMATS = ("json", "avro", "text")
#: The ways in which a query handles a record that cannot be parsed.
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
    """A continuous query. ``target``: the table that the query writes. ``application``: the id under which the sink
    stores the query's batches; each new query gets a new id. ``reads``, ``views`` and ``functions``: the tables, views
    and functions that the query's text uses, directly or through views and functions. ``settings``: settings of Spark
    under which the query was created, as ``NAME=VALUE``, such as its time zone."""

    id: str
    target: str
    text: str
    application: str
    reads: tuple[str, ...] = ()
    views: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(slots=True)
class Catalog:
    """``save`` writes the catalog to its file; ``open`` reads the file, for instance in a later process. Names are in
    lower case."""

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
            made = cls(
                directory,
                {_text(name): _made(Table, each) for name, each in found["tables"].items()},
                {_text(name): _text(each) for name, each in found["views"].items()},
                {_text(name): _text(each) for name, each in found["functions"].items()},
                {_text(name): _made(ContinuousQuery, each) for name, each in found["queries"].items()},
            )
            if lost := [query for query in made.queries.values() if query.target not in made.tables]:
                raise ValueError(f"query {lost[0].id} writes the table {lost[0].target}, which is missing")
        except FileNotFoundError:
            return cls(directory)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"no field {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidArgumentError(
                f"{path} is damaged: {what}; move it away, and declare the tables again"
            ) from None
        return made

    def save(self) -> None:
        """Write the file. A crash of the process or of the machine leaves either the old file or the new file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        document = {
            "tables": {name: dataclasses.asdict(each) for name, each in self.tables.items()},
            "views": self.views,
            "functions": self.functions,
            "queries": {name: dataclasses.asdict(each) for name, each in self.queries.items()},
        }
        replace_file(self.directory / _FILE, json.dumps(document, indent=2) + "\n")

    @property
    def names(self) -> set[str]:
        """The names of tables and views."""
        return {*self.tables, *self.views}

    def users_of(self, kind: str, name: str) -> list[str]:
        """Queries that use a ``table`` (read or write it), a ``view`` or a ``function``, directly or through views and
        functions."""
        return [query.id for query in self.queries.values() if name in _used(query, kind)]

    def tables_on(self, topic: str) -> list[str]:
        """The tables that are declared for a topic."""
        return [table.name for table in self.tables.values() if table.topic == topic]

    def writers_of(self, name: str) -> list[ContinuousQuery]:
        """The queries on which a table depends, each once. Queries that write the table's sources come first; the query
        that writes the table itself is last."""
        found: dict[str, ContinuousQuery] = {}
        self._add_writers(name, found, set())
        return list(found.values())

    def _add_writers(self, name: str, found: dict[str, ContinuousQuery], seen: set[str]) -> None:
        seen.add(name)
        for query in self.queries.values():
            if query.target == name:
                for source in query.reads:
                    if source not in seen:
                        self._add_writers(source, found, seen)
                found[query.id] = query

    def writer_of(self, topic: str) -> ContinuousQuery | None:
        """A query that writes a topic on which there is a table with a primary key. The rows of such a table are the
        rows of the query's SELECT, so the topic has no other writer."""
        if not any(self.tables[name].is_latest for name in self.tables_on(topic)):
            return None
        return next((each for each in self.queries.values() if self.tables[each.target].topic == topic), None)

    def new_id(self, target: str) -> str:
        """An id for a query that writes ``target``: the name of the target, with a number if the name is taken."""
        number, found = 1, target
        while found in self.queries:
            number += 1
            found = f"{target}_{number}"
        return found


def _used(query: ContinuousQuery, kind: str) -> tuple[str, ...]:
    return {"table": (query.target, *query.reads), "view": query.views, "function": query.functions}[kind]


_Kept = TypeVar("_Kept", Table, ContinuousQuery)


def _made(kind: type[_Kept], fields: dict[str, Any]) -> _Kept:
    """A value of the file. Raises TypeError or ValueError for a missing or unknown field, and for a wrong value."""
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    made = kind(**given)
    for field_ in dataclasses.fields(made):
        value: Any = getattr(made, field_.name)
        if field_.type in ("str", "bool"):
            is_right = isinstance(value, str if field_.type == "str" else bool)
        else:
            is_right = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
        if not is_right:
            raise ValueError(f"{field_.name} is {value!r}")
    return made


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the value {value!r} is not a string")
    return value
