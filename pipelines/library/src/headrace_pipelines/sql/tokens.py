"""Split a text into tokens with their positions, and into statements, which end with semicolons. Pure.

The rules for tokens are Spark's. ``'text'`` and ``"text"`` are strings, with a backslash or a doubled quote for a
quote; ``r'text'`` has no escapes. Names may be in backticks. ``--`` begins a comment that ends with its line. ``/* */``
encloses a comment, in which comments may be nested.
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
    """A token. ``value``: the content of a string without its quotes, or a word as the user wrote it."""

    kind: Kind
    value: str
    at: int
    end: int

    @property
    def word(self) -> str:
        """The word in upper case; empty for other tokens, and for a quoted name."""
        return self.value.upper() if self.kind is Kind.WORD else ""

    @property
    def is_name(self) -> bool:
        return self.kind in (Kind.WORD, Kind.QUOTED)

    def is_sign(self, sign: str) -> bool:
        return self.kind is Kind.SIGN and self.value == sign


_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*)
    |(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![A-Za-z_0-9]))
    |(?P<word>[A-Za-z_0-9]*[A-Za-z_][A-Za-z_0-9]*)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<sign>[(){}\[\],;.<>=!+*/%|&^~:?@$#-])""",
    re.VERBOSE | re.DOTALL,
)
#: Python replaces bytes that are not UTF-8 by these characters, in the arguments of a command and in terminal input.
_BROKEN = re.compile("[\ud800-\udfff]")
_COMMENT = re.compile(r"/\*|\*/")
_RAW = re.compile("[rR]['\"]")
_OPENED = {"'": "a string", '"': "a string", "`": "a name"}


class OpenError(SqlError):
    """A string, a name or a comment has no end. ``closing``: the characters that would end it."""

    def __init__(self, what: str, source: Source, at: int, closing: str) -> None:
        self.closing = closing
        super().__init__(f"{what} begins here and does not end", source, at)


def tokens(source: Source) -> Iterator[Token]:
    """The tokens of ``source`` without comments. Raises OpenError for a string, name or comment that does not end.
    Raises SqlError for a character that no token has, and for text that is not UTF-8."""
    text, at = source.text, 0
    if (broken := _BROKEN.search(text)) is not None:
        raise SqlError("the text is not UTF-8 here; write it in UTF-8", source, broken.start())
    while at < len(text):
        if text.startswith("/*", at):
            at = _comment_end(source, at)
            continue
        found = _TOKEN.match(text, at)
        opening = text[at + 1] if _RAW.match(text, at) else text[at]
        if found is None or (opening != text[at] and found.lastgroup != "raw"):
            if opening in _OPENED:
                raise OpenError(_OPENED[opening], source, at, opening)
            raise SqlError(f"unexpected character {text[at]!r}", source, at)
        if found.lastgroup == "raw":
            yield Token(Kind.STRING, found[0][2:-1], at, found.end())
        elif found.lastgroup != "blank":
            yield _token(Kind[str(found.lastgroup).upper()], found[0], at)
        at = found.end()


def _comment_end(source: Source, begin: int) -> int:
    depth = 0
    for found in _COMMENT.finditer(source.text, begin):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    raise OpenError("a comment", source, begin, "*/")


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


class Typed:
    """The lines of a prompt, and whether they are complete: they end with a semicolon, or have no statement. Text with
    a fault counts as complete, so that the fault is reported; an open string, name or comment waits for its next line.

    Each line is tokenized once: ``add`` tokenizes only an open string, name or comment again, when it may end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._rest: list[str] = []
        self._closing = ""
        self._is_ended = True

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def add(self, line: str) -> bool:
        """Add a line; returns whether the lines are complete."""
        self.lines.append(line)
        self._rest.append(line)
        if self._closing not in line:
            return False
        source = Source("\n".join(self._rest))
        try:
            for token in tokens(source):
                self._is_ended = token.is_sign(";")
        except OpenError as error:
            self._rest, self._closing = [source.text[error.at :]], error.closing
            return False
        except SqlError:
            return True
        self._rest, self._closing = [], ""
        return self._is_ended


def is_complete(text: str) -> bool:
    """Whether a text of a prompt is complete (see Typed)."""
    return Typed().add(text)
