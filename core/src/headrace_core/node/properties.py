"""Properties files as Kafka's operators write them, and ``-o key=value`` on top.

The supported part of Java's format: ``key=value``, ``key: value`` or ``key value``. ``#`` and ``!`` begin a comment
line. A backslash at the end of a line joins the next line. White space at the beginning of a line is ignored. White
space after a value is removed; Java keeps it, which is a common source of mistakes. A key that is given twice is an
error; Java would silently take the last value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import InvalidConfigError

_SEPARATOR = re.compile(r"\s*[=:]\s*|\s+")


class Properties(dict[str, str]):
    """Keys and values, with the place where each key was set: ``set_in["num.partitions"] == "f.properties, line
    3"``."""

    def __init__(self, values: Mapping[str, str] | None = None, *, set_in: Mapping[str, str] | None = None) -> None:
        super().__init__(values or {})
        self.set_in = dict(set_in or {})

    def overridden_by(self, others: Properties) -> Properties:
        """Return the properties of ``self``, overridden by ``others``."""
        return Properties(self | others, set_in=self.set_in | others.set_in)


def parse_properties(text: str, *, where: str) -> Properties:
    """Parse the keys and values in ``text``. ``where`` (a file's name) appears in errors. Raises InvalidConfigError."""
    values = Properties()
    for number, line in _logical_lines(text):
        key, value = _split(line)
        if not key:
            raise InvalidConfigError(f"{where}, line {number}: {line!r} has no key; write key=value")
        if key in values:
            raise InvalidConfigError(f"{where}, line {number}: {key} is given twice ({values.set_in[key]})")
        values[key] = value
        values.set_in[key] = f"{where}, line {number}"
    return values


def read_properties(path: Path) -> Properties:
    """Read the keys and values of a properties file; raises InvalidConfigError when the file cannot be read."""
    try:
        return parse_properties(path.read_text(encoding="utf-8"), where=str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidConfigError(f"cannot read configuration file {path}: {reason}") from None


def parse_overrides(overrides: Iterable[str]) -> Properties:
    """Parse ``["key=value", ...]`` of a command line; the last value of a key applies."""
    values = Properties()
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise InvalidConfigError(f"-o {override}: write -o key=value")
        values[key.strip()] = value.strip()
        values.set_in[key.strip()] = "-o on the command line"
    return values


def format_properties(values: dict[str, str], *, comment: str = "") -> str:
    """Format properties as text that parse_properties can read."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{key}={value}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Iterate over (number of its first line, text) of each line with content; continuation lines are joined."""
    joined, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not joined and (not line or line[0] in "#!"):
            continue
        first = first or number
        if line.endswith("\\") and not line.endswith("\\\\"):
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _split(line: str) -> tuple[str, str]:
    parts = _SEPARATOR.split(line, maxsplit=1)
    return parts[0], (parts[1].strip().replace("\\\\", "\\") if len(parts) > 1 else "")
