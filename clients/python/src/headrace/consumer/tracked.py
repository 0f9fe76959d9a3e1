"""What the fetcher, its sessions and the search for positions know of one partition, and of each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from ..engine.client import Engine
from ..metrics import Metrics
from .inbox import Assigned, Inbox
from .read_epochs import ReadEpochs

#: What the group has committed of these, within so many seconds; (offset, leader epoch), None: nothing.
Committed = Callable[[list[TopicPartition], float], Awaitable[dict[TopicPartition, tuple[int, int] | None]]]


class Session(Protocol):
    """A fetch session at one broker, as a partition that is in it sees it."""

    def add(self, tracked: Tracked) -> None: ...

    def note_news(self, tracked: Tracked) -> None: ...

    def remove(self, tracked: Tracked) -> None: ...


class Tracked:
    """The fetcher's notes on one assigned partition."""

    __slots__ = (
        "asks_group",
        "assigned",
        "attempts",
        "epochs",
        "far_until",
        "fetch_at",
        "generation",
        "has_news",
        "known_epoch",
        "link",
        "may_be_truncated",
        "near",
        "near_until",
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
        #: Not asked yet where the group has committed.
        self.asks_group = assigned.from_group and fetch_at is None and reset is None
        self.link: Session | None = None
        self.paused = False
        self.placing = False
        self.epochs = assigned.epochs = ReadEpochs()  # of the records before fetch_at (KIP-320)
        self.known_epoch = -1  # the largest leader epoch that the metadata told of
        self.has_news = False  # ... since it got its last link
        self.may_be_truncated = False  # a broker said that the log does not go on at fetch_at as it did before it
        self.near = -1  # a follower in our rack to read from, until time.monotonic() is near_until (KIP-392)
        self.near_until = 0.0
        self.far_until = 0.0  # such a one could not be reached: until then the leader serves, whoever is nearer
        self.valid_from = 0  # answers to requests before this one are about an older position
        self.attempts = 0
        self.retry_at = 0.0

    def heard_of(self, leader_epoch: int) -> None:
        """The metadata tell of this epoch; what failed before a newer one need not wait."""
        if leader_epoch > self.known_epoch:
            self.known_epoch, self.has_news = leader_epoch, True
            self.retry_at, self.attempts = 0.0, 0


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
    committed: Committed | None

    def send_home(self, tracked: Tracked, error: HeadraceError | None = None) -> None: ...

    def tell(self, tracked: Tracked, error: HeadraceError) -> None: ...

    def read_near(self, tracked: Tracked, broker_id: int) -> None: ...
