"""Tokens -> statements. Pure. The text of a SELECT is not parsed here: Spark parses it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

from .faults import Source, SqlError
from .naming import LONG_MAX, check_name, column_faults, whole_number
from .statements import (
    Column,
    CreateFunction,
    CreateTable,
    CreateTableAs,
    CreateView,
    Describe,
    Drop,
    Explain,
    InsertSelect,
    InsertValues,
    Option,
    Query,
    Select,
    Set,
    Show,
    Statement,
    Terminate,
)
from .tokens import Kind, Piece, Token, pieces

#: The words with which a query begins.
QUERY_WORDS = ("SELECT", "WITH", "VALUES", "FROM")
SHOWN = ("TABLES", "TOPICS", "QUERIES", "FUNCTIONS")
DROPPED = ("TABLE", "STREAM", "VIEW", "FUNCTION")
#: Maps words of ksqlDB and of databases that this SQL does not have to a hint: what to write instead.
ELSEWHERE = {
    "LIST": "write SHOW", "STREAMS": "write SHOW TABLES", "PRINT": "write SELECT * FROM table EMIT CHANGES",
    "UPDATE": "INSERT a row with the same key",
    "DELETE": "the rows of a topic stay; DROP TABLE t DELETE TOPIC removes all",
}  # fmt: skip
_OPENING, _CLOSING = "(<[", ")>]"


def parse(source: Source) -> Iterator[Statement]:
    """The statements of ``source``, each parsed when the iterator reaches it. Raises SqlError."""
    for piece in pieces(source):
        yield _Parser(piece).statement()


def select_of(text: str, name: str) -> Query:
    """Parse a stored query text. Raises SqlError; its message uses ``name`` as the name of the text."""
    (statement,) = parse(Source(text, name))
    if not isinstance(statement, Select):
        raise SqlError("expected SELECT", Source(text, name), 0)
    return statement.query


class _Parser:
    """Reads the tokens of one statement from left to right."""

    def __init__(self, piece: Piece) -> None:
        self._piece, self._at = piece, 0

    # -- tokens

    def _peek(self, ahead: int = 0) -> Token | None:
        at = self._at + ahead
        return self._piece.tokens[at] if at < len(self._piece.tokens) else None

    def _fault(self, what: str, token: Token | None = None) -> SqlError:
        """An error that points at ``token``; without ``token``, at the next token or after the last one."""
        shown = token or self._peek()
        if shown is None:
            return SqlError(f"{what}, found the end of the statement", self._piece.source, self._piece.end)
        found = "" if token is not None else f", found {self._piece.source.text[shown.at : shown.end]}"
        return SqlError(f"{what}{found}", self._piece.source, shown.at, shown.end)

    def _next_is(self, *words: str) -> bool:
        return all((token := self._peek(at)) is not None and token.word == word for at, word in enumerate(words))

    def _accept(self, *words: str) -> bool:
        """Skip the given words if they are next; return whether they were next."""
        if not self._next_is(*words):
            return False
        self._at += len(words)
        return True

    def _accept_sign(self, sign: str) -> bool:
        token = self._peek()
        if token is None or not token.is_sign(sign):
            return False
        self._at += 1
        return True

    def _expect(self, *words: str) -> None:
        for word in words:
            if not self._accept(word):
                raise self._fault(f"expected {word}")

    def _expect_sign(self, sign: str) -> None:
        if not self._accept_sign(sign):
            raise self._fault(f"expected {sign}")

    def _name(self, what: str) -> Token:
        token = self._peek()
        if token is None or not token.is_name:
            raise self._fault(f"expected {what}")
        self._at += 1
        return token

    def _one_of(self, words: Sequence[str]) -> str:
        token = self._peek()
        if token is None or token.word not in words:
            word = token.word if token else ""
            near = difflib.get_close_matches(word, words, n=1)
            hint = f" ({ELSEWHERE[word]})" if word in ELSEWHERE else f" (did you mean {near[0]}?)" if near else ""
            raise self._fault(f"expected {', '.join(words[:-1])} or {words[-1]}{hint}")
        self._at += 1
        return token.word

    def _end(self) -> None:
        if self._peek() is not None:
            raise self._fault("expected the end of the statement")

    # -- statements

    def statement(self) -> Statement:
        if self._next_is_query():
            return self._select()
        known: dict[str, Callable[[], Statement]] = {
            "CREATE": self._create, "INSERT": self._insert, "DROP": self._drop, "SHOW": self._show,
            "DESCRIBE": self._describe, "EXPLAIN": self._explain, "TERMINATE": self._terminate, "SET": self._set,
        }  # fmt: skip
        first = self._one_of(("SELECT", *known))
        found = known[first]()
        self._end()
        return found

    def _next_is_query(self) -> bool:
        token = self._peek()
        return token is not None and (token.word in QUERY_WORDS or token.is_sign("("))

    def _query(self, last: int | None = None) -> Query:
        """The rest of the statement up to the token ``last``."""
        if not self._next_is_query():
            raise self._fault("expected SELECT")
        query = Query(self._piece, self._at, len(self._piece.tokens) if last is None else last)
        self._at = query.last
        return query

    def _continuous_query(self) -> Query:
        """The rest of the statement. As in ksqlDB, EMIT CHANGES at the end of the statement is accepted, and has no
        effect."""
        words = [token.word for token in self._piece.tokens]
        last = len(words) - 2 if words[-2:] == ["EMIT", "CHANGES"] else len(words)
        query = self._query(last)
        self._at = len(words)
        return query

    def _select(self) -> Statement:
        words = [token.word for token in self._piece.tokens]
        for at in range(len(words) - 1, 0, -1):
            if words[at - 1 : at + 1] == ["EMIT", "CHANGES"]:
                break
        else:
            return Select(self._query())
        query = self._query(at - 1)
        self._expect("EMIT", "CHANGES")
        limit = None
        if self._accept("LIMIT"):
            limit = whole_number(self._number("a number of rows"), self._piece.source, "LIMIT", most=LONG_MAX)
        self._end()
        return Select(query, emits=True, limit=limit)

    def _number(self, what: str) -> Token:
        token = self._peek()
        if token is None or not token.value.isdecimal():
            raise self._fault(f"expected {what}")
        self._at += 1
        return token

    def _create(self) -> Statement:
        replaces = self._accept("OR", "REPLACE")
        kind = self._one_of(("VIEW", "FUNCTION") if replaces else ("TABLE", "STREAM", "VIEW", "FUNCTION"))
        if_not_exists = self._accept("IF", "NOT", "EXISTS")
        name = self._name(f"the name of the {kind.lower()}")
        check_name(name, kind.lower(), self._piece.source)
        if kind == "VIEW":
            self._expect("AS")
            return CreateView(name, self._query(), if_not_exists, replaces)
        if kind == "FUNCTION":
            self._at = len(self._piece.tokens)
            text = self._piece.source.text[name.at : self._piece.end]
            return CreateFunction(name, text, self._piece, if_not_exists, replaces)
        columns = self._columns() if self._next_sign("(") else ()
        options = self._options() if self._accept("WITH") else {}
        if self._accept("AS"):
            if columns:
                raise self._fault(
                    "CREATE TABLE AS SELECT has the columns of its SELECT; leave out the list of columns",
                    columns[0].name,
                )
            return CreateTableAs(name, options, self._continuous_query(), if_not_exists)
        is_stream = kind == "STREAM"
        keys = [column for column in columns if column.is_key]
        if is_stream and keys:
            raise self._fault("a stream has no primary key; write CREATE TABLE", keys[0].name)
        if not columns and not options:
            raise self._fault("expected (columns), WITH (options) or AS SELECT after the name")
        return CreateTable(name, columns, options, if_not_exists, is_stream)

    def _next_sign(self, sign: str) -> bool:
        token = self._peek()
        return token is not None and token.is_sign(sign)

    def _columns(self) -> tuple[Column, ...]:
        self._expect_sign("(")
        found = [self._column()]
        while self._accept_sign(","):
            found.append(self._column())
        if not self._accept_sign(")"):
            raise self._fault("expected , or ) after a column")
        for column, what in zip(found, column_faults(column.name.value for column in found), strict=True):
            if what is not None:
                raise self._fault(what, column.name)
        return tuple(found)

    def _column(self) -> Column:
        name = self._name("the name of a column")
        first = self._peek()
        depth = 0
        while (token := self._peek()) is not None:
            ends = token.is_sign(",") or token.is_sign(")") or token.word in ("NOT", "PRIMARY", "KEY")
            if depth == 0 and ends:
                break
            depth += (token.kind is Kind.SIGN and token.value in _OPENING) - (
                token.kind is Kind.SIGN and token.value in _CLOSING
            )
            self._at += 1
        last = self._piece.tokens[self._at - 1]
        if first is None or last.end <= first.at:
            raise self._fault(f"expected the type of column {name.value}")
        not_null = self._accept("NOT", "NULL")
        is_key = self._accept("PRIMARY", "KEY")
        text = self._piece.source.text[first.at : last.end]
        return Column(name, text, first.at, last.end, not_null or is_key or self._accept("NOT", "NULL"), is_key)

    def _options(self) -> dict[str, Option]:
        self._expect_sign("(")
        found: dict[str, Option] = {}
        while True:
            name = self._peek()
            if name is None or not (name.is_name or name.kind is Kind.STRING):
                raise self._fault("expected the name of an option of WITH, such as format")
            self._at += 1
            self._expect_sign("=")
            value = self._peek()
            if value is None or value.kind is Kind.SIGN:
                raise self._fault(f"expected the value of {name.value}")
            self._at += 1
            if name.value.lower() in found:
                raise self._fault(f"the option {name.value} is given twice; leave one out", name)
            found[name.value.lower()] = Option(name, value)
            if self._accept_sign(")"):
                return found
            if not self._accept_sign(","):
                raise self._fault("expected , or ) after an option")

    def _insert(self) -> Statement:
        self._expect("INTO")
        table = self._name("the name of a table")
        columns: list[Token] = []
        if self._next_sign("(") and (after := self._peek(1)) is not None and after.word not in QUERY_WORDS:
            self._at += 1
            columns.append(self._name("the name of a column"))
            while self._accept_sign(","):
                columns.append(self._name("the name of a column"))
            self._expect_sign(")")
            names = [column.value.lower() for column in columns]
            if twice := [column for at, column in enumerate(columns) if names[at] in names[:at]]:
                raise self._fault(f"the column {twice[0].value} is given twice; leave one out", twice[0])
        if self._next_is("VALUES"):
            return InsertValues(table, tuple(columns), self._query())
        if columns:
            raise self._fault(
                "INSERT ... SELECT uses the column names of its SELECT; leave the columns out", columns[0]
            )
        return InsertSelect(table, self._continuous_query())

    def _drop(self) -> Statement:
        kind = self._one_of(DROPPED)
        kind = "TABLE" if kind == "STREAM" else kind
        if_exists = self._accept("IF", "EXISTS")
        name = self._name(f"the name of the {kind.lower()}")
        return Drop(kind, name, if_exists, kind == "TABLE" and self._accept("DELETE", "TOPIC"))

    def _show(self) -> Statement:
        return Show(self._one_of(SHOWN))

    def _describe(self) -> Statement:
        return Describe(self._name("the name of a table, a view or a query"))

    def _explain(self) -> Statement:
        return Explain(self._query())

    def _terminate(self) -> Statement:
        return Terminate(self._name("the name of a query (SHOW QUERIES)"))

    def _set(self) -> Statement:
        if self._peek() is None:
            return Set()
        name = self._peek()
        assert name is not None
        if not (name.is_name or name.kind is Kind.STRING):
            raise self._fault("expected the name of a setting")
        parts = [name]
        self._at += 1
        while self._accept_sign("."):
            parts.append(self._name("the name of a setting"))
        whole = Token(name.kind, ".".join(part.value for part in parts), name.at, parts[-1].end)
        self._expect_sign("=")
        value = self._peek()
        if value is None or value.kind is Kind.SIGN:
            raise self._fault(f"expected the value of {whole.value}")
        self._at += 1
        return Set(whole, value.value, value)
