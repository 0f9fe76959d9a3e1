"""The statements that remove entries of the catalog: DROP and TERMINATE."""

from __future__ import annotations

from collections.abc import Collection

from .catalog import Catalog
from .faults import Source, SqlError
from .naming import quoted
from .results import Message, Result
from .session import Session
from .statements import Drop, Terminate
from .tokens import Token
from .uses import uses_of_function


class Dropping:
    """Runs the statements on a session."""

    def __init__(self, session: Session) -> None:
        self._session, self._catalog = session, session.catalog

    def drop(self, statement: Drop, source: Source) -> Result:
        name, kind = statement.name.value.lower(), statement.kind.lower()
        known: dict[str, Collection[str]] = {
            "table": self._catalog.tables,
            "view": self._catalog.views,
            "function": self._catalog.functions,
        }
        if name not in known[kind]:
            if statement.if_exists:
                return Message(f"there is no {kind} {name}")
            raise SqlError(f"there is no {kind} {name} to drop", source, statement.name.at, statement.name.end)
        check_unused(self._catalog, kind, statement.name, source)
        text = f"{kind} {name} is dropped"
        if kind == "table":
            topic = self._catalog.tables[name].topic
            if statement.with_topic:
                self._check_topic(topic, statement.name, source)
                self._session.delete_topic(topic)
            del self._catalog.tables[name]
            text += f", with the topic {topic}" if statement.with_topic else f"; the topic {topic} stays"
        elif kind == "view":
            del self._catalog.views[name]
        else:
            self._check_calls(statement.name, source)
            del self._catalog.functions[name]
            self._session.spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {quoted(name)}")
        self._catalog.save()
        return Message(text)

    def _check_calls(self, name: Token, source: Source) -> None:
        """Raise SqlError if another function calls the function ``name``."""
        for other, text in self._catalog.functions.items():
            if other != name.value.lower() and name.value.lower() in uses_of_function(text, self._catalog):
                what = f"the function {other} calls {name.value.lower()}; DROP FUNCTION {other} first"
                raise SqlError(what, source, name.at, name.end)

    def _check_topic(self, topic: str, name: Token, source: Source) -> None:
        """Raise SqlError if another table is declared on the topic."""
        if others := [other for other in self._catalog.tables_on(topic) if other != name.value.lower()]:
            what = f"the table {others[0]} reads the topic {topic}, too; DROP TABLE {others[0]} first"
            raise SqlError(what, source, name.at, name.end)

    def terminate(self, statement: Terminate, source: Source) -> Result:
        name = statement.query.value.lower()
        if name not in self._catalog.queries:
            known = ", ".join(self._catalog.queries) or "none"
            raise SqlError(f"there is no query {name}; the queries are: {known}", source, statement.query.at,
                           statement.query.end)  # fmt: skip
        self._session.continuous.stop([name])
        query = self._catalog.queries.pop(name)
        self._catalog.save()
        self._session.continuous.forget(name)
        return Message(f"query {name} has ended after its batch; the table {query.target} stays")


def check_unused(catalog: Catalog, kind: str, name: Token, source: Source) -> None:
    """Raise SqlError if a continuous query uses a table, view or function."""
    if users := catalog.users_of(kind, name.value.lower()):
        what = f"the query {users[0]} uses {name.value.lower()}; TERMINATE {users[0]} first"
        raise SqlError(what, source, name.at, name.end)
