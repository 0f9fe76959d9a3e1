"""The fetcher's state of one partition, and the protocols between fetcher, fetch sessions and position lookup."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from ..engine.client import Engine
from ..metrics import Metrics
from .inbox import Assigned, Inbox, Slice
from .read_epochs import ReadEpochs

#: Looks up the group's committed (offset, leader epoch) of each partition, within a timeout in seconds; None for a
#: partition without a committed offset.
Committed = Callable[[list[TopicPartition], float], Awaitable[dict[TopicPartition, tuple[int, int] | None]]]


class Session(Protocol):
    """The methods that a fetch session offers to its partitions."""

    def add(self, tracked: Tracked) -> None: ...

    def note_news(self, tracked: Tracked) -> None: ...

    def remove(self, tracked: Tracked) -> None: ...


class Tracked:
    """The fetcher's state of one assigned partition."""

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
        "reported",
        "reset",
        "retry_at",
        "valid_from",
    )

    def __init__(self, assigned: Assigned, fetch_at: int | None, reset: str | None) -> None:
        self.assigned = assigned
        self.generation = assigned.generation
        self.fetch_at = fetch_at
        self.reset = reset
        #: Whether the consumer must look up the group's committed offset of this partition before any other position.
        self.asks_group = assigned.from_group and fetch_at is None and reset is None
        self.link: Session | None = None
        self.paused = False
        self.placing = False
        self.epochs = assigned.epochs = ReadEpochs()  # leader epochs of the records before fetch_at (KIP-320)
        self.known_epoch = -1  # the largest leader epoch in the metadata
        self.has_news = False  # whether the metadata changed since the partition got its last link
        self.may_be_truncated = False  # a broker reported that the log changed before fetch_at
        self.near = -1  # a follower in our rack to read from until near_until, in time.monotonic() (KIP-392)
        self.near_until = 0.0
        self.far_until = 0.0  # a follower was unreachable: read from the leader until this time
        self.valid_from = 0  # responses to requests before this number are for an old position
        self.attempts = 0
        self.retry_at = 0.0
        self.reported: Slice | None = None  # the Slice with the partition's last retriable error

    def learn_epoch(self, leader_epoch: int) -> None:
        """Note the partition's leader epoch in the metadata. A newer leader epoch ends the partition's pause after a
        failure."""
        if leader_epoch > self.known_epoch:
            self.known_epoch, self.has_news = leader_epoch, True
            self.retry_at, self.attempts = 0.0, 0


class SessionOwner(Protocol):
    """The methods of the fetcher that fetch sessions and position lookup use."""

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
