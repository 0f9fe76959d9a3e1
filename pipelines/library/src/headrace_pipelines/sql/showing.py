"""SHOW and DESCRIBE."""

from __future__ import annotations

from ..checkpoints import checkpoints
from ..lags import lags
from .faults import Source
from .results import Message, Result, Rows
from .session import NAME, Session
from .statements import Describe, Show


class Showing:
    """Shows the catalog of a session, and the cluster's topics."""

    def __init__(self, session: Session) -> None:
        self._session, self._catalog = session, session.catalog

    def show(self, statement: Show) -> Result:
        match statement.what:
            case "TABLES":
                tables = [
                    (each.name, each.kind, each.topic, each.format, ", ".join(each.key))
                    for each in self._catalog.tables.values()
                ]
                views = [(name, "view", "", "", "") for name in self._catalog.views]
                return Rows(("name", "kind", "topic", "format", "key"), sorted([*tables, *views]))
            case "TOPICS":
                described = self._session.admin.describe_topics(self._session.admin.list_topics())
                tables_by = [(each.topic, each.name) for each in self._catalog.tables.values()]
                rows = [
                    (
                        each.name,
                        len(each.partitions),
                        ", ".join(name for topic, name in tables_by if topic == each.name),
                    )
                    for each in described
                ]
                return Rows(("topic", "partitions", "tables"), rows)
            case "FUNCTIONS":
                return Rows(("function", "definition"), list(self._catalog.functions.items()))
            case _:
                return self._queries()

    def _queries(self) -> Rows:
        known = {each.query: each for each in checkpoints(self._session.site.directory / "checkpoints")}
        behind = lags(self._session.admin, NAME, self._catalog.queries)
        rows = []
        for name, query in self._catalog.queries.items():
            checkpoint, lag = known.get(name), behind.get(name)
            batch = None if checkpoint is None else checkpoint.batch
            records = None if lag is None else lag.records
            running = self._session.continuous
            state, late, select = running.state(name), running.late(name), " ".join(query.text.split())
            rows.append((name, query.target, ", ".join(query.reads), state, batch, records, late, select))
        return Rows(("query", "writes", "reads", "state", "batch", "behind", "late", "select"), rows)

    def describe(self, statement: Describe, source: Source) -> Result:
        name = statement.name.value.lower()
        if name in self._catalog.views:
            return Message(f"view {name}: {self._catalog.views[name]}")
        if name in self._catalog.queries and name not in self._catalog.tables:
            return Message(
                f"query {name} writes {self._catalog.queries[name].target}: {self._catalog.queries[name].text}"
            )
        table = self._session.table(statement.name, source)
        key = [each.lower() for each in table.key]
        role = "primary key" if table.is_latest else "key"
        rows = [
            (each.name, each.dataType.simpleString(), "yes" if each.nullable else "no",
             role if each.name.lower() in key else "")
            for each in self._session.frames.schema(table).fields
        ]  # fmt: skip
        return Rows(("column", "type", "nullable", "key"), rows)
