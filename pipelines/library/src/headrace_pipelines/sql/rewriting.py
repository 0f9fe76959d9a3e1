"""Rewrite the text of a SELECT for Spark, where the tables are temporary views. Pure.

A table with AS OF is another view, because a statement may read a table at several positions:

    SELECT * FROM orders AS OF OFFSET 100 WHERE total > 5
    SELECT * FROM `orders @1` AS orders WHERE total > 5

Spark's errors have positions in its own text; ``Rewritten.source_at`` finds the character of the user's text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from headrace_tools.cli.times import time_ms

from .faults import Source, SqlError
from .naming import LONG_MAX, whole_number
from .relations import relations
from .statements import Query
from .tokens import Kind, Token

#: Words that may follow a table in a query, and therefore are not an alias.
_NOT_ALIASES = frozenset(
    ("WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS",
     "NATURAL", "SEMI", "ANTI", "ON", "USING", "UNION", "INTERSECT", "EXCEPT", "MINUS", "WINDOW", "LATERAL", "SORT",
     "CLUSTER", "DISTRIBUTE", "PIVOT", "UNPIVOT", "TABLESAMPLE", "WATERMARK")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AsOf:
    """A position in a topic. ``offsets`` maps each partition to the first offset that is not read; the key -1 means the
    only partition. ``timestamp_ms``: records of this time and later are not read."""

    offsets: Mapping[int, int] = field(default_factory=dict)
    timestamp_ms: int | None = None
    at: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """A table or view that a query uses; its first name in the text is at the characters ``at`` to ``end``. ``view``:
    the name of Spark's view."""

    name: str
    view: str
    at: int
    end: int
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The text for Spark. ``parts``: pairs of a position in ``text`` and the position in the source, ascending."""

    source: Source
    text: str
    parts: tuple[tuple[int, int], ...]
    uses: tuple[Use, ...]
    words: frozenset[str]

    def source_at(self, at: int) -> int:
        """The position in the source of the character ``at`` of ``text``."""
        begin, original = max((part for part in self.parts if part[0] <= at), default=(0, 0))
        return original + at - begin


def rewrite(query: Query, names: Collection[str]) -> Rewritten:
    """Find the tables ``names`` (in lower case) in ``query``, and remove AS OF. Raises SqlError."""
    return _Rewriter(query, names).rewritten()


class _Rewriter:
    def __init__(self, query: Query, names: Collection[str]) -> None:
        self._source = query.piece.source
        self._tokens = query.piece.tokens[query.first : query.last]
        self._names = names
        self._text, self._parts = "", list[tuple[int, int]]()
        self._uses: dict[str, Use] = {}

    def rewritten(self) -> Rewritten:
        copied = self._tokens[0].at
        tables = relations(self._tokens)
        at = 0
        while at < len(self._tokens):
            token = self._tokens[at]
            follows = at + 1
            if at in tables:
                as_of, follows = self._as_of(at)
                if as_of is not None:
                    self._copy(copied, token.at)
                    self._replace(token, as_of, follows)
                    copied = self._tokens[follows - 1].end
                elif token.value.lower() in self._names:
                    name = token.value.lower()
                    self._uses.setdefault(name, Use(name, token.value, token.at, token.end))
            at = follows
        self._copy(copied, self._tokens[-1].end)
        words = frozenset(token.value.lower() for token in self._tokens if token.is_name)
        return Rewritten(self._source, self._text, tuple(self._parts), tuple(self._uses.values()), words)

    def _copy(self, begin: int, end: int) -> None:
        self._parts.append((len(self._text), begin))
        self._text += self._source.text[begin:end]

    def _replace(self, token: Token, as_of: AsOf, follows: int) -> None:
        name = token.value.lower()
        if name not in self._names:
            what = f"AS OF needs a table, and there is no table {token.value}; SHOW TABLES lists the tables"
            raise SqlError(what, self._source, token.at, token.end)
        view = f"{name} @{len(self._uses) + 1}"
        self._uses[view] = Use(name, view, token.at, token.end, as_of)
        after = self._tokens[follows] if follows < len(self._tokens) else None
        has_alias = after is not None and (
            after.word == "AS" or after.kind is Kind.QUOTED or (after.word != "" and after.word not in _NOT_ALIASES)
        )
        self._parts.append((len(self._text), token.at))
        self._text += f"`{view}`" if has_alias else f"`{view}` AS `{token.value}`"

    def _as_of(self, at: int) -> tuple[AsOf | None, int]:
        """The AS OF after the token ``at``, and the number of the token that follows it."""
        words = [token.word for token in self._tokens[at + 1 : at + 4]]
        if words[:2] != ["AS", "OF"] or len(words) < 3 or words[2] not in ("OFFSET", "TIMESTAMP"):
            return None, at + 1
        begin, next_at = self._tokens[at + 1].at, at + 4
        if words[2] == "TIMESTAMP":
            token = self._token(next_at, "a time such as '2026-11-21T08:00:00'")
            try:
                timestamp_ms = time_ms(token.value)
            except ValueError as error:
                raise SqlError(str(error), self._source, token.at, token.end) from None
            return AsOf(timestamp_ms=timestamp_ms, at=begin, end=token.end), next_at + 1
        if next_at < len(self._tokens) and self._tokens[next_at].is_sign("("):
            offsets, behind = self._offsets(next_at + 1)
            return AsOf(offsets, at=begin, end=self._tokens[behind - 1].end), behind
        number = self._whole(next_at)
        return AsOf({-1: number}, at=begin, end=self._tokens[next_at].end), next_at + 1

    def _offsets(self, at: int) -> tuple[dict[int, int], int]:
        found: dict[int, int] = {}
        while True:
            partition = self._whole(at)
            equals = self._token(at + 1, "=, as in (0 = 100, 1 = 70)")
            if not equals.is_sign("="):
                raise SqlError("expected = as in OFFSET (0 = 100, 1 = 70)", self._source, equals.at, equals.end)
            found[partition] = self._whole(at + 2)
            sign = self._token(at + 3, ")")
            if sign.is_sign(")"):
                return found, at + 4
            if not sign.is_sign(","):
                raise SqlError("expected , or ) after an offset of AS OF", self._source, sign.at, sign.end)
            at += 4

    def _whole(self, at: int) -> int:
        token = self._token(at, "a whole number")
        if not token.value.isdecimal():
            raise SqlError("expected a whole number, or (partition = offset, ...)", self._source, token.at, token.end)
        return whole_number(token, self._source, "an offset or partition", most=LONG_MAX)

    def _token(self, at: int, what: str) -> Token:
        if at >= len(self._tokens):
            raise SqlError(f"expected {what}, found the end of the statement", self._source, self._tokens[-1].end)
        return self._tokens[at]
