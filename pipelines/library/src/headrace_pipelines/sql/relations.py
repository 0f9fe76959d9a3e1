"""Find the names of tables in a SELECT: names where a table must stand, except the names of common table expressions.
Pure.

    WITH recent AS (SELECT * FROM orders WHERE orders.at > '2026-11-21')
    SELECT extract(hour FROM at) FROM recent JOIN (customers, items) ON true

In the example, ``orders``, ``customers`` and ``items`` are tables. Columns, aliases and functions are not found, even
if they have the name of a table. This parser is simpler than Spark's: it looks only at the words around FROM, JOIN,
commas and parentheses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .tokens import Kind, Token

#: Words that end the list of tables after FROM.
_ENDS = frozenset(
    ("SELECT", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "UNION", "INTERSECT", "EXCEPT", "MINUS",
     "WINDOW", "SORT", "CLUSTER", "DISTRIBUTE")
)  # fmt: skip

_NONE = Token(Kind.SIGN, "", 0, 0)


@dataclass(slots=True)
class _Level:
    """The state of the parser within a pair of parentheses, or in the whole query. ``in_tables``: a comma is followed
    by a table. ``expects``: a table may come next. ``is_query``: the parentheses contain SELECT or WITH. ``defines``:
    names of WITH may follow."""

    expects: bool = False
    in_tables: bool = False
    is_query: bool = False
    is_empty: bool = True
    defines: bool = False
    is_recursive: bool = False
    body_of: str | None = None
    names: set[str] = field(default_factory=set)


def relations(tokens: Sequence[Token]) -> set[int]:
    """The numbers of the tokens that name tables or views."""
    return _Reader(tokens).found()


class _Reader:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._levels = [_Level()]
        self._defined: str | None = None  # the name of WITH whose body comes next
        self._found: set[int] = set()

    def found(self) -> set[int]:
        for at, token in enumerate(self._tokens):
            self._take(at, token)
            if not token.is_sign(")"):
                self._levels[-1].is_empty = token.is_sign("(")
        return self._found

    def _take(self, at: int, token: Token) -> None:
        level = self._levels[-1]
        expects, level.expects = level.expects, False
        if token.is_sign("("):
            self._open(at, expects)
        elif token.is_sign(")"):
            self._close()
        elif token.is_sign(","):
            level.expects = level.in_tables
        elif token.is_sign(">") and self._before(at).is_sign("|"):
            level.in_tables = False
        elif token.word and self._keyword(at, token.word, level, expects):
            return
        elif token.is_name:
            self._name(at, token, level, expects)

    def _open(self, at: int, expects: bool) -> None:
        opened = _Level(expects=expects or self._before(at).word == "TABLE", in_tables=expects)
        if self._defined is not None and self._before(at).word == "AS":
            opened.body_of, self._defined = self._defined, None
            if self._levels[-1].is_recursive:
                self._levels[-1].names.add(opened.body_of)
        self._levels.append(opened)

    def _close(self) -> None:
        if len(self._levels) > 1:
            closed = self._levels.pop()
            if closed.body_of is not None:
                self._levels[-1].names.add(closed.body_of)

    def _keyword(self, at: int, word: str, level: _Level, expects: bool) -> bool:
        """Handle a word that begins another clause; return False for other words."""
        if word == "WITH" and level.is_empty:
            level.is_query = level.defines = True
        elif word == "RECURSIVE" and level.defines and self._before(at).word == "WITH":
            level.is_recursive = True
        elif word == "FROM":
            is_clause = (level.is_query or level.is_empty) and self._before(at).word != "DISTINCT"
            level.expects = level.in_tables = is_clause
            level.defines = False
        elif word == "JOIN":
            level.expects = level.in_tables = True
        elif word == "TABLE":
            level.expects = True
        elif word == "LATERAL":
            level.expects = expects
            level.in_tables = level.in_tables and not self._follows(at, "VIEW")
        elif word in _ENDS and (word == "SELECT" or not expects):
            level.in_tables = level.defines = False
            level.is_query = level.is_query or word == "SELECT"
        else:
            return False
        return True

    def _name(self, at: int, token: Token, level: _Level, expects: bool) -> None:
        name = token.value.lower()
        if level.defines and (self._before(at).word in ("WITH", "RECURSIVE") or self._before(at).is_sign(",")):
            self._defined = name
        elif expects and not self._is_part(at) and not any(name in each.names for each in self._levels):
            self._found.add(at)

    def _is_part(self, at: int) -> bool:
        """Whether the name is a function, or part of a longer name."""
        after = self._tokens[at + 1] if at + 1 < len(self._tokens) else None
        return after is not None and (after.is_sign("(") or after.is_sign("."))

    def _before(self, at: int) -> Token:
        return self._tokens[at - 1] if at > 0 else _NONE

    def _follows(self, at: int, word: str) -> bool:
        return at + 1 < len(self._tokens) and self._tokens[at + 1].word == word
