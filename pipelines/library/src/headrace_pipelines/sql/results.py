"""The results of statements: rows with their columns, rows that arrive over time, or a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows. ``has_more``: there are more rows than the limit of the shell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class Arriving:
    """Rows that arrive while they are read."""

    columns: Sequence[str]
    rows: Iterator[Sequence[Any]] = field(default_factory=lambda: iter(()))


@dataclass(frozen=True, slots=True)
class Message:
    """A message about the effect of a statement, in one or more lines."""

    text: str


Result = Rows | Arriving | Message
