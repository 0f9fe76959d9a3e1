"""Text -> tokens with their positions, and statements, which end with semicolons. Pure.

The rules are Spark's: ``'text'`` and ``"text"`` are strings, with a backslash or a doubled quote for a quote; names may
be in backticks; ``--`` begins a comment that ends with its line, and ``/* */`` encloses one.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .faults import Source, SqlError


class Kind(enum.Enum):
    """Kinds of tokens."""

    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SIGN = "sign"


@dataclass(frozen=True, slots=True)
class Token:
    """A token. ``value`` is its meaning: a string without quotes, a word in its own case."""

    kind: Kind
    value: str
    at: int
    end: int

    @property
    def word(self) -> str:
        """The word in capitals; empty for other tokens, and for a quoted name."""
        return self.value.upper() if self.kind is Kind.WORD else ""

    @property
    def is_name(self) -> bool:
        return self.kind in (Kind.WORD, Kind.QUOTED)

    def is_sign(self, sign: str) -> bool:
        return self.kind is Kind.SIGN and self.value == sign


_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![A-Za-z_0-9]))
    |(?P<word>[A-Za-z_0-9]*[A-Za-z_][A-Za-z_0-9]*)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<sign>[(){}\[\],;.<>=!+*/%|&^~:?@$#-])""",
    re.VERBOSE | re.DOTALL,
)
_OPENED = {"'": "a string", '"': "a string", "`": "a name", "/": "a comment"}


def tokens(source: Source) -> Iterator[Token]:
    """The tokens of ``source`` without comments. Raises SqlError for a string, name or comment that does not end, and
    for a character that no token has."""
    text, at = source.text, 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or (text.startswith("/*", at) and found.lastgroup != "blank"):
            what = _OPENED.get(text[at])
            if what is not None:
                raise SqlError(f"{what} begins here and does not end", source, at)
            raise SqlError(f"unexpected character {text[at]!r}", source, at)
        if found.lastgroup != "blank":
            yield _token(Kind[str(found.lastgroup).upper()], found[0], at)
        at = found.end()


def _token(kind: Kind, text: str, at: int) -> Token:
    value = text
    if kind is Kind.QUOTED:
        value = text[1:-1].replace("``", "`")
    elif kind is Kind.STRING:
        value = re.sub(r"\\(.)", _escaped, text[1:-1].replace(text[0] * 2, text[0]), flags=re.DOTALL)
    return Token(kind, value, at, at + len(text))


def _escaped(found: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}.get(found[1], found[1])


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens of one statement, without its semicolon. ``is_ended``: a semicolon ends it."""

    source: Source
    tokens: Sequence[Token]
    is_ended: bool

    @property
    def at(self) -> int:
        return self.tokens[0].at

    @property
    def end(self) -> int:
        return self.tokens[-1].end


def pieces(source: Source) -> Iterator[Piece]:
    """The statements of ``source``; empty ones are left out. Raises SqlError."""
    found: list[Token] = []
    for token in tokens(source):
        if not token.is_sign(";"):
            found.append(token)
        elif found:
            yield Piece(source, found, is_ended=True)
            found = []
    if found:
        yield Piece(source, found, is_ended=False)


def is_complete(text: str) -> bool:
    """Whether the text of a prompt ends with a statement's semicolon, or has no statement; a fault counts as complete,
    so that it is reported, but an open string, name or comment waits for its next line."""
    source = Source(text)
    try:
        return all(piece.is_ended for piece in pieces(source))
    except SqlError as error:
        return text[error.at] not in _OPENED
