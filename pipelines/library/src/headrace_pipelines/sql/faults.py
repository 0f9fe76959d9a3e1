"""Errors of SQL that point at the wrong token.

quick.sql:3:8: there is no column latitudee
  3 | SELECT latitudee FROM locations
    |        ^^^^^^^^^
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.errors import InvalidArgumentError

#: Maximum number of characters of a line that a message shows.
_WIDTH = 240


@dataclass(frozen=True, slots=True)
class Source:
    """A text with statements. ``name``: its name in messages, such as a path; ``first_line``: the number of its first
    line, from 1."""

    text: str
    name: str = "sql"
    first_line: int = 1

    def place(self, at: int) -> tuple[int, int]:
        """Line and column, both from 1, of the character ``at``."""
        before = self.text[:at]
        return self.first_line + before.count("\n"), at - (before.rfind("\n") + 1) + 1

    def line(self, at: int) -> str:
        """The line of the character ``at``."""
        begin = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        return self.text[begin:] if end < 0 else self.text[begin:end]


def _shown(line: str, at: int) -> tuple[str, int]:
    """The part of a long line around the character ``at``, and the position of this character in that part."""
    if len(line) <= _WIDTH:
        return line, at
    begin = max(0, at - _WIDTH // 2)
    left, right = "... " if begin else "", " ..." if begin + _WIDTH < len(line) else ""
    return left + line[begin : begin + _WIDTH] + right, len(left) + at - begin


class SqlError(InvalidArgumentError):
    """A statement cannot be run. ``at`` and ``end`` are the characters of the source that are wrong."""

    code = "INVALID_SQL"

    def __init__(self, what: str, source: Source, at: int, end: int | None = None) -> None:
        self.what, self.at = what, at
        super().__init__(pointed(what, source, at, at + 1 if end is None else end))


def pointed(what: str, source: Source, at: int, end: int) -> str:
    """The message ``what`` with its place, the line of the source, and carets under the characters ``at`` to ``end``.
    No caret stands after the end of the line. If a line is long, only its part around ``at`` is shown."""
    number, column = source.place(at)
    line, before = _shown(source.line(at), column - 1)
    indent = "".join("\t" if character == "\t" else " " for character in line[:before])
    carets = "^" * max(1, min(end - at, len(line) - before))
    margin = " " * len(str(number))
    return f"{source.name}:{number}:{column}: {what}\n  {number} | {line}\n  {margin} | {indent}{carets}"
