"""The statements that change the catalog: CREATE, and continuous INSERT."""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace_core.errors import HeadraceError

from .catalog import BAD_RECORDS, FORMATS, ContinuousQuery, Table
from .cycles import check_acyclic
from .dropping import check_unused
from .faults import Source, SqlError
from .keeping import Shape, key_fault, partition_fault
from .made_topics import create_topic
from .naming import column_fault, quoted, spelled, whole_number
from .results import Message, Result
from .session import Session
from .spark_faults import message_of, pointing
from .statements import (
    Column,
    CreateFunction,
    CreateTable,
    CreateTableAs,
    CreateView,
    InsertSelect,
    Option,
    Query,
)
from .tokens import Token
from .uses import uses_of, uses_of_function, with_uses

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
        declared = tuple(_checked(each, source) for each in statement.columns)
        primary = tuple(each.name.value for each in statement.columns if each.is_key)
        table = Table(
            name, topic, options.get("format", "json"), declared, primary or _names(options.get("key", "")),
            bool(primary), options.get("subject", f"{topic}-value"), options.get("bad_records", "fail"),
        )  # fmt: skip
        table = self._with_key(table, statement, source)
        made = self._topic_of(table, statement, options, source)
        self._catalog.tables[name] = table
        self._catalog.save()
        return Message(f"{table.kind} {name} reads the topic {topic}{made}")

    def _with_key(self, table: Table, statement: CreateTable, source: Source) -> Table:
        """The table, with the key columns spelled as in its schema. Raises SqlError for columns that do not fit."""

        def fault(what: str, token: Token = statement.name) -> SqlError:
            return SqlError(what, source, token.at, token.end)

        if table.format == "avro" and table.columns:
            raise fault(
                "a table of the format avro has the columns of its registered schema; leave out the list of columns",
                statement.columns[0].name,
            )
        if table.format == "json" and not table.columns:
            raise fault("format json needs columns: CREATE TABLE name (column TYPE, ...) WITH (...)")
        try:
            schema = self._session.frames.schema(table)
            self._session.frames.check(table)
        except HeadraceError as error:
            raise fault(error.message, _named_in(error.message, statement)) from None
        what = text_fault(table.format, schema) or column_fault(schema.fieldNames())
        if what is not None:
            raise fault(what)
        key = spelled(table.key, schema.fieldNames())
        missing = [name for name in key if name not in schema.fieldNames()]
        if missing:
            what = f"there is no column {missing[0]}; the columns are {', '.join(schema.fieldNames())}"
            raise fault(what, statement.options["key"].value if "key" in statement.options else statement.name)
        return replace(table, key=tuple(key))

    def _topic_of(self, table: Table, statement: CreateTable, options: Mapping[str, str], source: Source) -> str:
        """Create the table's topic if it does not exist and WITH has ``partitions``; return a text for the statement's
        message."""
        if table.topic in self._session.admin.list_topics():
            return ""
        if "partitions" not in options:
            token = statement.options["topic"].value if "topic" in statement.options else statement.name
            what = f"there is no topic {table.topic}; WITH (partitions = 3) creates it, SHOW TOPICS lists the topics"
            raise SqlError(what, source, token.at, token.end)
        create_topic(self._session.admin, table, options, statement, source)
        return ", which is new"

    def create_table_as(self, statement: CreateTableAs, source: Source) -> Result:
        if (there := self._there(statement.name, source, statement.if_not_exists)) is not None:
            return there
        options = _values(statement.options, source)
        name = statement.name.value.lower()
        topic = options.get("topic", name)
        if topic in self._session.admin.list_topics():
            token = statement.options["topic"].value if "topic" in statement.options else statement.name
            what = (
                f"topic {topic} already exists; name another topic WITH (topic = '...'), or declare a table for it "
                "and INSERT"
            )
            raise SqlError(what, source, token.at, token.end)
        with pointing(statement.query):
            frame, shape = self._session.streaming(statement.query, name)
        table = self._table_of(frame, shape, name, topic, options, statement, source)
        self._catalog.tables[name] = table
        self._catalog.save()  # saved before the topic is created, so that DROP TABLE finds the topic after a crash
        is_created = False
        try:
            create_topic(self._session.admin, table, options, statement, source)
            is_created = True
            query = self._start(table, statement.query, statement.name, source)
        except BaseException:
            if is_created:
                self._session.delete_topic(topic)
            del self._catalog.tables[name]
            self._catalog.save()
            raise
        return Message(f"{table.kind} {name} is written by the query {query.id}, to the topic {topic}")

    def _table_of(
        self,
        frame: DataFrame,
        shape: Shape,
        name: str,
        topic: str,
        options: Mapping[str, str],
        statement: CreateTableAs,
        source: Source,
    ) -> Table:
        """The table that a SELECT fills. Raises SqlError for columns that do not match, and for a wrong key."""
        form = options.get("format", "json")
        given = statement.options["key"].value if "key" in options else statement.name
        key = _names(options["key"]) if "key" in options else tuple(filter(None, shape.groups))
        if (fault := key_fault(key, frame.columns, shape)) is not None:
            raise SqlError(fault, source, given.at, given.end)
        fault = text_fault(form, frame.schema) or column_fault(frame.columns)
        if fault is not None:
            raise _fault_of_select(fault, statement.query)
        table = Table(
            name, topic, form, () if form == "avro" else _declared(frame.schema), tuple(spelled(key, frame.columns)),
            shape.is_aggregate, options.get("subject", f"{topic}-value"), options.get("bad_records", "fail"),
        )  # fmt: skip
        with pointing(statement.query):
            self._session.frames.check(table)
            wanted = self._session.frames.schema(table)
        _check_names(frame, wanted, table, statement.query)
        return replace(table, key=tuple(spelled(key, wanted.fieldNames())))

    def insert_select(self, statement: InsertSelect, source: Source) -> Result:
        table = self._session.table(statement.table, source)
        with pointing(statement.query):
            frame, shape = self._session.streaming(statement.query, table.name)
        wanted = self._session.frames.schema(table)
        _check_names(frame, wanted, table, statement.query)
        _check_types(frame, wanted, statement.query)
        if (fault := self._fault_of_target(table, shape)) is not None:
            raise SqlError(fault, source, statement.table.at, statement.table.end)
        query = self._start(table, statement.query, statement.table, source)
        return Message(f"query {query.id} writes to {table.name}")

    def _fault_of_target(self, table: Table, shape: Shape) -> str | None:
        """The reason why a SELECT cannot fill a table that exists; None if it can."""
        if not any(self._catalog.tables[name].is_latest for name in self._catalog.tables_on(table.topic)):
            if shape.is_aggregate:
                return (
                    f"{table.name} is a stream, which keeps each row, and the rows of an aggregate change; write to a "
                    "table with a primary key, such as CREATE TABLE ... AS SELECT"
                )
            return None
        if (writer := self._catalog.writer_of(table.topic)) is not None:
            return (
                f"the query {writer.id} writes {table.name}, and rows of two queries would overwrite each other; write "
                f"to another table, or TERMINATE {writer.id} and start with a new topic"
            )
        if shape.is_mixed and not shape.is_aggregate:
            return (
                f"{table.name} keeps the newest row of each key, and the rows of this SELECT have no order; use "
                "GROUP BY with max_by(column, time), or write to a stream"
            )
        if not shape.is_aggregate and (read := self._catalog.tables.get(shape.table.lower())) is not None:
            partitions = len(self._session.ends_of(read.topic).ends)
            if partitions > 1 and (fault := partition_fault(table.key, shape, read.key)) is not None:
                return fault
        columns = self._session.frames.schema(table).fieldNames()
        if (fault := key_fault(table.key, columns, shape)) is not None:
            return fault
        ends = self._session.ends_of(table.topic)
        if any(end > ends.begins[number] for number, end in ends.ends.items()):
            return (
                f"the topic {table.topic} has records that the SELECT did not write, and their rows would stay; "
                f"DROP TABLE {table.name} DELETE TOPIC, and create the table again"
            )
        return None

    def _start(self, table: Table, select: Query, target: Token, source: Source) -> ContinuousQuery:
        """Start a continuous query, and keep it in the catalog. ``target``: the name of the table in ``source``."""
        name = self._catalog.new_id(table.name)
        settings = self._session.settings_of_queries()
        new = ContinuousQuery(name, table.name, select.text, f"sql.{name}.{secrets.token_hex(8)}", settings=settings)
        query = with_uses(new, self._catalog)
        check_acyclic(query, self._catalog, source, target.at, target.end)
        self._session.continuous.forget(name)
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
        if is_replaced:
            check_unused(self._catalog, "view", statement.name, source)
        if name in uses_of(statement.query, self._catalog).views:
            what = f"the view {name} would read itself"
            raise SqlError(what, source, statement.name.at, statement.name.end)
        self._session.bounded(statement.query)  # raises an error if the SELECT is wrong
        self._catalog.views[name] = statement.query.text
        self._catalog.save()
        return Message(f"created view {name}, which is computed when it is read")

    def create_function(self, statement: CreateFunction, source: Source) -> Result:
        name = statement.name.value.lower()
        if name in self._catalog.functions and not statement.replaces:
            if statement.if_not_exists:
                return Message(f"function {name} already exists")
            raise _is_there("function", statement.name, source)
        check_unused(self._catalog, "function", statement.name, source)
        if name in uses_of_function(statement.text, self._catalog):
            what = f"the function {name} would call itself"
            raise SqlError(what, source, statement.name.at, statement.name.end)
        rest = Query(statement.piece, statement.piece.tokens.index(statement.name), len(statement.piece.tokens))
        with pointing(rest):
            self._session.spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {statement.text}")
        self._catalog.functions[name] = statement.text
        self._catalog.save()
        return Message(f"created function {name}")

    def _there(self, name: Token, source: Source, if_not_exists: bool) -> Message | None:
        found = name.value.lower()
        if found not in self._catalog.names:
            return None
        kind = "view" if found in self._catalog.views else "table"
        if if_not_exists:
            return Message(f"{kind} {found} already exists")
        raise _is_there(kind, name, source)


def _values(options: Mapping[str, Option], source: Source) -> dict[str, str]:
    """The values of WITH. Raises SqlError for an unknown option or a wrong value."""
    for name, option in options.items():
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(OPTIONS)}"
            raise SqlError(f"there is no option {name}; {hint}", source, option.name.at, option.name.end)
        allowed = {"format": FORMATS, "bad_records": BAD_RECORDS}.get(name)
        value = option.value
        if allowed is not None and value.value not in allowed:
            what = f"{name} must be one of {', '.join(allowed)}, not {value.value}"
            raise SqlError(what, source, value.at, value.end)
        if name in ("partitions", "replication"):
            whole_number(value, source, name, least=1)
    return {name: option.value.value for name, option in options.items()}


def _named_in(message: str, statement: CreateTable) -> Token:
    """The token that an error points at: the column with which the message begins (``field x: ...``), the subject, or
    the name of the table."""
    for column in statement.columns:
        name = column.name.value
        if any(message.startswith(f"field {shown}{mark}") for shown in (name, repr(name)) for mark in (":", ".", "[")):
            return column.name
    return statement.options["subject"].value if "subject" in statement.options else statement.name


def _is_there(kind: str, name: Token, source: Source) -> SqlError:
    what = f"a {kind} {name.value} already exists; DROP {kind.upper()} {name.value} removes it"
    return SqlError(what, source, name.at, name.end)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _checked(column: Column, source: Source) -> str:
    """The declaration of a column for Spark. Raises SqlError for a type that Spark does not know."""
    text = f"{quoted(column.name.value)} {column.type}{' NOT NULL' if column.not_null else ''}"
    try:
        StructType.fromDDL(text)
    except PySparkException as error:
        raise SqlError(message_of(error), source, column.type_at, column.type_end) from None
    return text


def _declared(schema: StructType) -> tuple[str, ...]:
    """The columns of a SELECT as declarations; all may be null."""
    return tuple(f"{quoted(each.name)} {each.dataType.simpleString()}" for each in schema.fields)


def text_fault(form: str, schema: StructType) -> str | None:
    """The reason why records of the format ``text`` cannot hold the given columns. None if the records can, or for
    another format."""
    if form == "text" and [each.dataType.simpleString() for each in schema.fields] != ["string"]:
        return "format text needs one column of type STRING, such as (line STRING)"
    return None


def _fault_of_select(what: str, query: Query) -> SqlError:
    at = query.piece.tokens[query.first]
    return SqlError(what, query.piece.source, at.at, at.end)


def _check_names(frame: DataFrame, wanted: StructType, table: Table, query: Query) -> None:
    if [each.lower() for each in frame.columns] != [each.lower() for each in wanted.fieldNames()]:
        what = f"the columns of the SELECT are {', '.join(frame.columns)}, but the columns of {table.name} are "
        raise _fault_of_select(what + ", ".join(wanted.fieldNames()), query)


def _check_types(frame: DataFrame, wanted: StructType, query: Query) -> None:
    names: Sequence[str] = wanted.fieldNames()
    for name, given, field in zip(names, frame.schema.fields, wanted.fields, strict=True):
        if given.dataType.simpleString() != field.dataType.simpleString():
            there = field.dataType.simpleString()
            what = f"column {name} is {given.dataType.simpleString()}, but in the table it is {there}"
            raise _fault_of_select(f"{what}; CAST it", query)
