"""What a run of a pipeline found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found. ``summary`` is the last line of the output and summary.json; ``details`` is details.json."""

    summary: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)
