"""What a statement gives: rows with their columns, rows that arrive, or a message."""

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
    """What a statement has done, in a line or more."""

    text: str


Result = Rows | Arriving | Message
