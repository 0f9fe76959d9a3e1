"""The statements that change the catalog: CREATE, DROP, TERMINATE, and continuous INSERT."""

from __future__ import annotations

import difflib
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace import NewTopic
from headrace_core.errors import HeadraceError

from .catalog import BAD_RECORDS, FORMATS, ContinuousQuery, Table
from .continuous import group_keys, is_aggregate
from .faults import Source, SqlError
from .results import Message, Result
from .session import Session
from .spark_faults import message_of, pointing
from .statements import (
    CreateFunction,
    CreateTable,
    CreateTableAs,
    CreateView,
    Drop,
    InsertSelect,
    Option,
    Query,
    Terminate,
)
from .tokens import Kind, Token

#: Options of WITH.
OPTIONS = ("topic", "format", "key", "subject", "partitions", "replication", "bad_records")


class Definitions:
    """Runs the statements on a session."""

    def __init__(self, session: Session) -> None:
        self._session, self._catalog = session, session.catalog

    # -- CREATE

    def create_table(self, statement: CreateTable, source: Source) -> Result:
        if (there := self._there(statement.name, source, statement.if_not_exists)) is not None:
            return there
        options = _values(statement.options, source)
        name = statement.name.value.lower()
        topic = options.get("topic", name)
        for column in statement.columns:
            try:
                StructType.fromDDL(f"`{column.name.value}` {column.type}")
            except PySparkException as error:
                raise SqlError(message_of(error), source, column.type_at, column.type_end) from None
        declared = tuple(
            f"`{each.name.value}` {each.type}{' NOT NULL' if each.not_null else ''}" for each in statement.columns
        )
        primary = tuple(each.name.value for each in statement.columns if each.is_key)
        table = Table(
            name, topic, options.get("format", "json"), declared, primary or _names(options.get("key", "")),
            bool(primary), options.get("subject", f"{topic}-value"), options.get("bad_records", "fail"),
        )  # fmt: skip
        self._check_columns(table, statement, source)
        made = self._topic_of(table, statement, options, source)
        self._catalog.tables[name] = table
        self._catalog.save()
        return Message(f"{table.kind} {name} reads the topic {topic}{made}")

    def _check_columns(self, table: Table, statement: CreateTable, source: Source) -> None:
        def fault(what: str, token: Token = statement.name) -> SqlError:
            return SqlError(what, source, token.at, token.end)

        if table.format == "avro" and table.columns:
            raise fault(
                "format avro takes the columns of the registry; leave the columns out", statement.columns[0].name
            )
        if table.format == "json" and not table.columns:
            raise fault("format json needs columns: CREATE TABLE name (column TYPE, ...) WITH (...)")
        if table.format == "text" and len(table.columns) != 1:
            raise fault("format text needs one column, such as (line STRING)")
        try:
            schema = self._session.frames.schema(table)
            self._session.frames.check(table)
        except HeadraceError as error:
            raise fault(error.message, statement.options["subject"].value if "subject" in statement.options
                        else statement.name) from None  # fmt: skip
        missing = [name for name in table.key if name.lower() not in [each.lower() for each in schema.fieldNames()]]
        if missing:
            what = f"there is no column {missing[0]}; the columns are {', '.join(schema.fieldNames())}"
            raise fault(what, statement.options["key"].value if "key" in statement.options else statement.name)

    def _topic_of(self, table: Table, statement: CreateTable, options: Mapping[str, str], source: Source) -> str:
        """Create the topic if WITH has ``partitions`` and there is none; returns a text for the message."""
        if table.topic in self._session.admin.list_topics():
            return ""
        if "partitions" not in options:
            token = statement.options["topic"].value if "topic" in statement.options else statement.name
            what = f"there is no topic {table.topic}; WITH (partitions = 3) creates it, SHOW TOPICS lists the topics"
            raise SqlError(what, source, token.at, token.end)
        self._create_topic(table, options)
        return ", which is new"

    def _create_topic(self, table: Table, options: Mapping[str, str]) -> None:
        config = {"cleanup.policy": "compact"} if table.is_latest else {}
        replicas = int(options["replication"]) if "replication" in options else None
        new = NewTopic(
            table.topic, partitions=int(options.get("partitions", "1")), replication_factor=replicas, config=config
        )
        self._session.admin.create_topics([new])

    def create_table_as(self, statement: CreateTableAs, source: Source) -> Result:
        if (there := self._there(statement.name, source, statement.if_not_exists)) is not None:
            return there
        options = _values(statement.options, source)
        name = statement.name.value.lower()
        topic = options.get("topic", name)
        if topic in self._session.admin.list_topics():
            token = statement.options["topic"].value if "topic" in statement.options else statement.name
            what = f"there is a topic {topic} already; name another one WITH (topic = '...'), or declare it and INSERT"
            raise SqlError(what, source, token.at, token.end)
        with pointing(statement.query):
            frame, _ = self._session.streaming(statement.query, name)
        columns = () if options.get("format") == "avro" else _declared(frame.schema)
        changes = is_aggregate(frame)
        key = _names(options["key"]) if "key" in options else tuple(group_keys(frame) or ()) if changes else ()
        if changes and not key:
            what = (
                "the SELECT aggregates, so the table needs a key: WITH (key = 'column'), or GROUP BY columns that the "
            )
            raise SqlError(what + "SELECT has", source, statement.name.at, statement.name.end)
        table = Table(
            name, topic, options.get("format", "json"), columns, key, changes,
            options.get("subject", f"{topic}-value"), options.get("bad_records", "fail"),
        )  # fmt: skip
        with pointing(statement.query):
            self._session.frames.check(table)
        self._create_topic(table, options)
        self._catalog.tables[name] = table
        try:
            query = self._start(table, statement.query)
        except BaseException:
            del self._catalog.tables[name]
            self._session.admin.delete_topics([topic])
            raise
        return Message(f"{table.kind} {name} is written by the query {query.id}, to the topic {topic}")

    def insert_select(self, statement: InsertSelect, source: Source) -> Result:
        table = self._session.table(statement.table, source)
        with pointing(statement.query):
            frame, _ = self._session.streaming(statement.query, table.name)
        wanted = self._session.frames.schema(table)
        if [each.lower() for each in frame.schema.fieldNames()] != [each.lower() for each in wanted.fieldNames()]:
            what = (
                f"the columns are {', '.join(frame.schema.fieldNames())}, and those of {table.name} are "
                + ", ".join(wanted.fieldNames())
            )
            at = statement.query.piece.tokens[statement.query.first]
            raise SqlError(what, source, at.at, at.end)
        _check_types(frame, wanted, statement.query)
        query = self._start(table, statement.query)
        return Message(f"query {query.id} writes to {table.name}")

    def _start(self, table: Table, select: Query) -> ContinuousQuery:
        """Start a continuous query, and keep it in the catalog."""
        reads = tuple(sorted(self._session.tables_in(select)))
        name = self._catalog.new_id(table.name)
        query = ContinuousQuery(name, table.name, select.text, f"sql.{name}.{secrets.token_hex(8)}", reads)
        shutil.rmtree(self._session.continuous.checkpoint(name), ignore_errors=True)
        self._catalog.queries[name] = query
        self._catalog.save()
        try:
            self._session.run(query, select)
        except BaseException:
            self._session.continuous.stop([name])
            del self._catalog.queries[name]
            self._catalog.save()
            raise
        return query

    def create_view(self, statement: CreateView, source: Source) -> Result:
        name = statement.name.value.lower()
        is_replaced = statement.replaces and name in self._catalog.views
        if not is_replaced and (there := self._there(statement.name, source, statement.if_not_exists)) is not None:
            return there
        self._session.bounded(statement.query)  # finds the faults of the SELECT
        self._catalog.views[name] = statement.query.text
        self._catalog.save()
        return Message(f"view {name} is calculated when it is read")

    def create_function(self, statement: CreateFunction, source: Source) -> Result:
        name = statement.name.value.lower()
        if name in self._catalog.functions and not statement.replaces:
            if statement.if_not_exists:
                return Message(f"function {name} is there already")
            raise _is_there("function", statement.name, source)
        rest = Query(statement.piece, statement.piece.tokens.index(statement.name), len(statement.piece.tokens))
        with pointing(rest):
            self._session.spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {statement.text}")
        self._catalog.functions[name] = statement.text
        self._catalog.save()
        return Message(f"function {name} is there")

    def _there(self, name: Token, source: Source, if_not_exists: bool) -> Message | None:
        found = name.value.lower()
        if found not in self._catalog.names:
            return None
        kind = "view" if found in self._catalog.views else "table"
        if if_not_exists:
            return Message(f"{kind} {found} is there already")
        raise _is_there(kind, name, source)

    # -- DROP and TERMINATE

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
            raise SqlError(f"there is no {kind} {name}", source, statement.name.at, statement.name.end)
        if users := self._catalog.users_of(name):
            what = f"the query {users[0]} uses {name}; TERMINATE {users[0]} first"
            raise SqlError(what, source, statement.name.at, statement.name.end)
        text = f"{kind} {name} is dropped"
        if kind == "table":
            topic = self._catalog.tables.pop(name).topic
            if statement.with_topic:
                self._session.admin.delete_topics([topic])
            text += f", with the topic {topic}" if statement.with_topic else f"; the topic {topic} stays"
        elif kind == "view":
            del self._catalog.views[name]
        else:
            del self._catalog.functions[name]
            self._session.spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS `{name}`")
        self._session.spark.catalog.dropTempView(name)
        self._catalog.save()
        return Message(text)

    def terminate(self, statement: Terminate, source: Source) -> Result:
        name = statement.query.value.lower()
        if name not in self._catalog.queries:
            known = ", ".join(self._catalog.queries) or "none"
            raise SqlError(f"there is no query {name}; the queries are: {known}", source, statement.query.at,
                           statement.query.end)  # fmt: skip
        self._session.continuous.stop([name])
        query = self._catalog.queries.pop(name)
        self._catalog.save()
        shutil.rmtree(self._session.continuous.checkpoint(name), ignore_errors=True)
        return Message(f"query {name} has ended after its batch; the table {query.target} stays")


def _values(options: Mapping[str, Option], source: Source) -> dict[str, str]:
    """The values of WITH. Raises SqlError at an unknown option, and at a wrong value."""
    for name, option in options.items():
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(OPTIONS)}"
            raise SqlError(f"there is no option {name}; {hint}", source, option.name.at, option.name.end)
        allowed = {"format": FORMATS, "bad_records": BAD_RECORDS}.get(name)
        value = option.value
        if allowed is not None and value.value not in allowed:
            what = f"{name} is one of {', '.join(allowed)}, not {value.value}"
            raise SqlError(what, source, value.at, value.end)
        if name in ("partitions", "replication") and not (value.kind is Kind.NUMBER and value.value.isdecimal()):
            raise SqlError(f"{name} is a whole number", source, value.at, value.end)
    return {name: option.value.value for name, option in options.items()}


def _is_there(kind: str, name: Token, source: Source) -> SqlError:
    what = f"there is a {kind} {name.value} already; DROP {kind.upper()} {name.value} removes it"
    return SqlError(what, source, name.at, name.end)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _declared(schema: StructType) -> tuple[str, ...]:
    """The columns of a SELECT as declarations; all may be null."""
    return tuple(f"`{each.name}` {each.dataType.simpleString()}" for each in schema.fields)


def _check_types(frame: DataFrame, wanted: StructType, query: Query) -> None:
    names: Sequence[str] = wanted.fieldNames()
    for name, given, field in zip(names, frame.schema.fields, wanted.fields, strict=True):
        if given.dataType.simpleString() != field.dataType.simpleString():
            at = query.piece.tokens[query.first]
            what = (
                f"column {name} is {given.dataType.simpleString()}, and the table has {field.dataType.simpleString()}"
            )
            raise SqlError(f"{what}; CAST it", query.piece.source, at.at, at.end)
