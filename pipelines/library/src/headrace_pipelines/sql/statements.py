"""One dataclass for each kind of statement. Names and values keep their tokens, so that later errors point at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .tokens import Piece, Token


@dataclass(frozen=True, slots=True)
class Query:
    """A SELECT: the tokens ``first`` to ``last`` (exclusive) of a statement."""

    piece: Piece
    first: int
    last: int

    @property
    def at(self) -> int:
        return self.piece.tokens[self.first].at

    @property
    def text(self) -> str:
        return self.piece.source.text[self.at : self.piece.tokens[self.last - 1].end]


@dataclass(frozen=True, slots=True)
class Column:
    """A declared column. ``type``: Spark's type, as text; ``type_at`` and ``type_end``: its position."""

    name: Token
    type: str
    type_at: int
    type_end: int
    not_null: bool = False
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """A value of WITH, and the token of its name."""

    name: Token
    value: Token


@dataclass(frozen=True, slots=True)
class CreateTable:
    """CREATE TABLE name (columns) WITH (options). ``columns`` is empty if the registry has the schema. ``is_stream``:
    CREATE STREAM, which has no primary key."""

    name: Token
    columns: tuple[Column, ...]
    options: Mapping[str, Option]
    if_not_exists: bool = False
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class CreateTableAs:
    """CREATE TABLE name WITH (options) AS SELECT: a topic, and a continuous query that writes it."""

    name: Token
    options: Mapping[str, Option]
    query: Query
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateView:
    name: Token
    query: Query
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class CreateFunction:
    """CREATE FUNCTION name(...) RETURNS type RETURN expression. ``text``: the statement from its name on."""

    name: Token
    text: str
    piece: Piece
    if_not_exists: bool = False
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class InsertValues:
    """INSERT INTO table (columns) VALUES ...; ``query`` is the part from VALUES on."""

    table: Token
    columns: tuple[Token, ...]
    query: Query


@dataclass(frozen=True, slots=True)
class InsertSelect:
    """INSERT INTO table SELECT: a continuous query."""

    table: Token
    query: Query


@dataclass(frozen=True, slots=True)
class Select:
    """A query over the current records; with ``emits`` (EMIT CHANGES) a query over the records that arrive, up to
    ``limit`` rows."""

    query: Query
    emits: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    query: Query


@dataclass(frozen=True, slots=True)
class Drop:
    """``kind``: TABLE, VIEW or FUNCTION. ``with_topic``: DELETE TOPIC."""

    kind: str
    name: Token
    if_exists: bool = False
    with_topic: bool = False


@dataclass(frozen=True, slots=True)
class Show:
    """``what``: TABLES, TOPICS, QUERIES or FUNCTIONS."""

    what: str


@dataclass(frozen=True, slots=True)
class Describe:
    name: Token


@dataclass(frozen=True, slots=True)
class Terminate:
    query: Token


@dataclass(frozen=True, slots=True)
class Set:
    """SET name = value. SET without a name shows all settings."""

    name: Token | None = None
    value: str = ""
    value_at: Token | None = field(default=None)


Statement = (
    CreateTable
    | CreateTableAs
    | CreateView
    | CreateFunction
    | InsertValues
    | InsertSelect
    | Select
    | Explain
    | Drop
    | Show
    | Describe
    | Terminate
    | Set
)
