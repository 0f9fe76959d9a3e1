"""Errors of SQL that point at the token that is wrong.

quick.sql:3:8: there is no column latitudee
  3 | SELECT latitudee FROM locations
    |        ^^^^^^^^^
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Source:
    """A text with statements. ``name``: what messages call it, such as a path; ``first_line``: the number of its first
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


class SqlError(InvalidArgumentError):
    """A statement cannot be run. ``at`` and ``end`` are the characters of the source that are wrong."""

    code = "INVALID_SQL"

    def __init__(self, what: str, source: Source, at: int, end: int | None = None) -> None:
        self.what, self.at = what, at
        super().__init__(pointed(what, source, at, at + 1 if end is None else end))


def pointed(what: str, source: Source, at: int, end: int) -> str:
    """The message ``what`` with its place, the line of the source, and carets under the characters ``at`` to ``end``.
    Carets end with the line."""
    number, column = source.place(at)
    line = source.line(at)
    indent = "".join("\t" if character == "\t" else " " for character in line[: column - 1])
    carets = "^" * max(1, min(end - at, len(line) - column + 1))
    margin = " " * len(str(number))
    return f"{source.name}:{number}:{column}: {what}\n  {number} | {line}\n  {margin} | {indent}{carets}"
