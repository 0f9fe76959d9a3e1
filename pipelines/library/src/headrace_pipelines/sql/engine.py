"""Run the statements SELECT, EXPLAIN, INSERT VALUES and SET. The modules definitions.py, dropping.py and showing.py run
all other statements."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace import Producer
from headrace_spark.causes import cause

from ..errors import QueryFailedError
from ..queries import started
from .arrivals import Arrivals
from .continuous import is_aggregate
from .definitions import Definitions
from .dropping import Dropping
from .faults import Source, SqlError
from .naming import ROWS_MAX, quoted, whole_number
from .results import Arriving, Message, Result, Rows
from .session import SETTINGS, Session
from .showing import Showing
from .spark_faults import message_of, pointing
from .statements import (
    CreateFunction,
    CreateTable,
    CreateTableAs,
    CreateView,
    Describe,
    Drop,
    Explain,
    InsertSelect,
    InsertValues,
    Select,
    Set,
    Show,
    Statement,
    Terminate,
)
from .writing import key_of, value_of

_CHOICES = {"wait": ("on", "off"), "emit.from": ("latest", "earliest")}


class Engine:
    """Runs statements on a session."""

    def __init__(self, session: Session) -> None:
        self._session, self._showing = session, Showing(session)
        self._definitions, self._dropping = Definitions(session), Dropping(session)

    def run(self, statement: Statement, source: Source) -> Result:
        """Run a statement of ``source``. Raises SqlError, and HeadraceError for a failure of the cluster."""
        define = self._definitions
        match statement:
            case Select():
                return self._arriving(statement) if statement.emits else self._select(statement)
            case InsertValues():
                return self._insert(statement, source)
            case Explain():
                frame, _ = self._session.bounded(statement.query)
                plan = frame._jdf.queryExecution().explainString(_formatted(frame)).rstrip()
                return Message(self._session.access.hidden(plan))
            case Set():
                return self._set(statement, source)
            case CreateTable():
                return define.create_table(statement, source)
            case CreateTableAs():
                return define.create_table_as(statement, source)
            case CreateView():
                return define.create_view(statement, source)
            case CreateFunction():
                return define.create_function(statement, source)
            case InsertSelect():
                return define.insert_select(statement, source)
            case Drop():
                return self._dropping.drop(statement, source)
            case Terminate():
                return self._dropping.terminate(statement, source)
            case Show():
                return self._showing.show(statement)
            case Describe():
                return self._showing.describe(statement, source)

    def _select(self, statement: Select) -> Rows:
        frame, rewritten = self._session.bounded(statement.query)
        limit = int(self._session.settings["rows.max"])
        with pointing(statement.query, rewritten):
            rows = frame.limit(limit + 1).collect()
        return Rows(frame.columns, [tuple(row) for row in rows[:limit]], has_more=len(rows) > limit)

    def _arriving(self, statement: Select) -> Arriving:
        frame, rewritten = self._session.live(statement.query)
        arrived = Arrivals()

        def start() -> StreamingQuery:
            def take(batch: DataFrame, number: int) -> None:
                arrived.put(map(tuple, batch.collect()))

            mode = "update" if is_aggregate(frame) else "append"
            return frame.writeStream.outputMode(mode).foreachBatch(take).start()

        with pointing(statement.query, rewritten):
            (running,) = started(start)
        return Arriving(frame.columns, _rows(running, arrived, statement.limit, self._session.is_cancelled))

    def _insert(self, statement: InsertValues, source: Source) -> Message:
        session = self._session
        table = session.table(statement.table, source)
        if (writer := session.catalog.writer_of(table.topic)) is not None:
            what = (
                f"the query {writer.id} writes {table.name}, whose rows are those of its SELECT; INSERT into a table "
                f"that the query reads, or TERMINATE {writer.id} first"
            )
            raise SqlError(what, source, statement.table.at, statement.table.end)
        schema = session.frames.schema(table)
        known = {field.name.lower(): field for field in schema.fields}
        named = [token.value.lower() for token in statement.columns] or list(known)
        for token in statement.columns:
            if token.value.lower() not in known:
                what = f"{table.name} has no column {token.value}; it has {', '.join(schema.fieldNames())}"
                raise SqlError(what, source, token.at, token.end)
        values, rewritten = session.bounded(statement.query)
        first = statement.query.piece.tokens[statement.query.first]
        if len(values.columns) != len(named):
            what = f"{len(values.columns)} values for {len(named)} columns: {', '.join(named)}"
            raise SqlError(what, source, first.at, first.end)
        given = dict(zip(named, values.columns, strict=True))
        with pointing(statement.query, rewritten):
            rows = values.select(
                *[
                    (F.col(quoted(given[name])) if name in given else F.lit(None))
                    .cast(field.dataType)
                    .alias(field.name)
                    for name, field in known.items()
                ]
            )
            # Collect only the key, the value and the null checks: Python could not represent a date before the year 1
            # in another column. Read the columns by position, because their names may be ambiguous.
            required = [field.name for field in schema.fields if not field.nullable]
            missing = [F.col(quoted(name)).isNull() for name in required]
            found = rows.select(key_of(rows, table), value_of(rows, table, session.registry), *missing).collect()
        for number, (_, _, *is_missing) in enumerate(found, 1):
            if any(is_missing):
                what = f"row {number}: column {required[is_missing.index(True)]} is NOT NULL"
                raise SqlError(what, source, first.at, first.end)
        self._send(table.topic, [(key, value) for key, value, *_ in found])
        return Message(f"{len(found)} row{'s' if len(found) != 1 else ''} sent to {table.topic}")

    def _send(self, topic: str, records: Sequence[tuple[str | None, str | bytes | None]]) -> None:
        """Send the records in one transaction: all of them, or none."""
        settings = self._session.access.producer() | {"transactional.id": f"sql-{secrets.token_hex(8)}"}
        with Producer(settings) as producer, producer.transaction():
            for key, value in records:
                producer.send(topic, value=_bytes(value), key=_bytes(key))

    def _set(self, statement: Set, source: Source) -> Result:
        settings = self._session.settings
        if statement.name is None or statement.value_at is None:
            return Rows(("setting", "value"), list(settings.items()))
        name, value, at = statement.name.value.lower(), statement.value, statement.value_at
        if name in SETTINGS:
            if name in _CHOICES and value.lower() not in _CHOICES[name]:
                raise SqlError(f"{name} must be {' or '.join(_CHOICES[name])}", source, at.at, at.end)
            if name == "rows.max":
                value = str(whole_number(at, source, name, most=ROWS_MAX))
            settings[name] = value.lower()
        elif name.startswith("spark."):
            try:
                self._session.spark.conf.set(statement.name.value, value)
                self._session.spark_settings[statement.name.value] = value
            except PySparkException as error:
                raise SqlError(message_of(error), source, at.at, at.end) from None
        else:
            what = (
                f"there is no setting {name}; the settings are {', '.join(SETTINGS)}, and Spark's own (spark.sql....)"
            )
            raise SqlError(what, source, statement.name.at, statement.name.end)
        return Message(f"{name} = {value}")


def _rows(
    running: StreamingQuery, arrived: Arrivals, limit: int | None, is_cancelled: threading.Event
) -> Iterator[Sequence[Any]]:
    """The rows of a query as they arrive. The query is stopped when the iterator ends or is closed."""
    count = 0
    try:
        while (limit is None or count < limit) and not is_cancelled.is_set():
            row = arrived.get()
            if row is not None:
                yield row
                count += 1
            elif (error := running.exception()) is not None:
                raise QueryFailedError(cause(str(error)))
    finally:
        arrived.close()
        running.stop()


def _bytes(value: str | bytes | bytearray | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else None if value is None else bytes(value)


def _formatted(frame: DataFrame) -> Any:
    """Spark's mode of EXPLAIN FORMATTED."""
    jvm: Any = frame.sparkSession._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
