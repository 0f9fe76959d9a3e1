"""What the fetcher, its sessions and the search for positions know of one partition, and of each other."""

from __future__ import annotations

from typing import Any, Protocol

from headrace_core.errors import HeadraceError

from ..engine.client import Engine
from ..metrics import Metrics
from .inbox import Assigned, Inbox


class Session(Protocol):
    """A fetch session at one broker, as a partition that is in it sees it."""

    def add(self, tracked: Tracked) -> None: ...

    def remove(self, tracked: Tracked) -> None: ...


class Tracked:
    """The fetcher's notes on one assigned partition."""

    __slots__ = (
        "assigned",
        "attempts",
        "fetch_at",
        "generation",
        "link",
        "paused",
        "placing",
        "reset",
        "retry_at",
        "valid_from",
    )

    def __init__(self, assigned: Assigned, fetch_at: int | None, reset: str | None) -> None:
        self.assigned = assigned
        self.generation = assigned.generation
        self.fetch_at = fetch_at
        self.reset = reset
        self.link: Session | None = None
        self.paused = False
        self.placing = False
        self.valid_from = 0  # answers to requests before this one are about an older position
        self.attempts = 0
        self.retry_at = 0.0


class SessionOwner(Protocol):
    """What a fetch session, and the search for positions, need of the fetcher."""

    engine: Engine
    inbox: Inbox
    metrics: Metrics
    config: dict[str, Any]
    isolation: Any
    max_wait_ms: int
    min_bytes: int
    partition_bytes: int
    answer_bytes: int

    def send_home(self, tracked: Tracked, error: HeadraceError | None = None) -> None: ...

    def tell(self, tracked: Tracked, error: HeadraceError) -> None: ...
