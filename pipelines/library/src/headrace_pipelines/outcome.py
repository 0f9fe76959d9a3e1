"""The result of a run of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run. ``summary`` is the last line of the output and summary.json; ``details`` is details.json."""

    summary: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)
