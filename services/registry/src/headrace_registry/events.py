"""Events of a registry's replica; ``app.py`` subscribes the log to them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.telemetry import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasRead(Event):
    """The replica has applied the topic up to its end. ``seconds``: time since the replica began to read."""

    topic: str
    records: int
    next_offset: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterElected(Event):
    """This replica is the writer: its announcement at ``offset`` is committed and applied."""

    url: str
    offset: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSteppedDown(Event):
    """This replica is no longer the writer, or an election of this replica failed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterAnnounced(Event):
    """The topic names another replica as the writer."""

    url: str
    offset: int
