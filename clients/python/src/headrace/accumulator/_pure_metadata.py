"""The twin of ``_metadata.pyx`` in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where an acknowledged record went. ``offset`` is -1 with acks=0, where nobody says."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def __iter__(self) -> Iterator[str | int]:
        return iter((self.topic, self.partition, self.offset, self.timestamp_ms))
