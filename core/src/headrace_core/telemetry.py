"""Frozen events, counters, and an emitter that logs, metrics and traces subscribe to.

An event is a frozen value, emitted once at its source; its ``severity`` is its level in a log.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from .types import TopicPartition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    severity: ClassVar[int] = logging.INFO


Subscriber = Callable[[Event], None]


class Emitter:
    """Passes each event to every subscriber, in the order of subscription, at once and in the caller's thread.

    A subscriber that raises is logged and kept: telemetry must never stop the work that it watches.
    """

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each event from now on; returns a function that ends this."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.exception("a subscriber failed on %r", event)


def log_events(logger: logging.Logger) -> Subscriber:
    """A subscriber that writes each event to ``logger`` at its severity: its name, then its fields as key=value."""

    def log(event: Event) -> None:
        if logger.isEnabledFor(event.severity):
            shown = (f"{field.name}={_shown(getattr(event, field.name))}" for field in dataclasses.fields(event))
            logger.log(event.severity, "%s %s", type(event).__name__, " ".join(shown))

    return log


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text


class Counter:
    """A number that only grows, cheap enough for the data path: ``value += n`` from the one thread that owns it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Metrics:
    """Counters by name, created on first use, and gauges; Kafka's names with dashes."""

    __slots__ = ("_counters", "_gauges")

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, read: Callable[[], int]) -> None:
        """A number that grows and shrinks; ``read`` returns its present value."""
        self._gauges[name] = read

    def counter(self, name: str) -> Counter:
        found = self._counters.get(name)
        if found is None:
            found = self._counters[name] = Counter()
        return found

    def snapshot(self) -> dict[str, int]:
        """Every counter's and every gauge's value at this moment."""
        counters = {name: counter.value for name, counter in self._counters.items()}
        return counters | {name: read() for name, read in self._gauges.items()}


# -- the events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Event):
    """A process serves. ``seconds``: since its start."""

    role: str
    node_id: int
    address: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped(Event):
    """A process has stopped; ``clean`` when everything was flushed and marked so."""

    role: str
    node_id: int
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered(Event):
    """The controller accepted this broker under ``broker_epoch``."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFenced(Event):
    """The controller has fenced this broker (or cannot be reached): it serves no partition until it is unfenced."""

    severity: ClassVar[int] = logging.WARNING
    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDirectoriesOffline(Event):
    """A broker has lost these log directories (ids as Kafka writes them): replicas in them lead nothing."""

    severity: ClassVar[int] = logging.ERROR
    broker_id: int
    directory_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnfenced(Event):
    """This broker serves again."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDraining(Event):
    """This broker is being drained: it gets no new replicas, and its ``replicas`` move to others."""

    broker_id: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDrained(Event):
    """This broker has no replicas any more: it may be stopped and unregistered."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregistered(Event):
    """This broker is unregistered."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelChanged(Event):
    """A feature of the cluster has another level from here on (KIP-584)."""

    feature: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettingsChanged(Event):
    """Broker keys were altered while the broker runs. ``changed``: {key: "old -> new"}."""

    changed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImageLoaded(Event):
    """The metadata up to ``next_offset`` came from a snapshot: this node's own (``source``: its file), or a
    controller's (``source``: its address). Later records are read from the log."""

    source: str
    next_offset: int
    epoch: int
    topics: int
    partitions: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImageSaved(Event):
    """This node's own snapshot of the metadata is on its disk; its next start begins there."""

    path: str
    next_offset: int
    epoch: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAutoCreated(Event):
    """A metadata request named a topic that did not exist, and it was created (auto.create.topics.enable)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOpened(Event):
    """A partition's log is open and led by this broker."""

    severity: ClassVar[int] = logging.DEBUG
    partition: TopicPartition
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFollowed(Event):
    """This broker follows the partition's leader (-1: none) under ``leader_epoch``."""

    severity: ClassVar[int] = logging.DEBUG
    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTruncated(Event):
    """A follower's log ended at ``from_offset`` and ends at ``to_offset`` now: the rest differed from its leader's."""

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBeginsAnew(Event):
    """A lost or damaged replica starts over, empty, and is copied from ``leader_id`` (-1: once there is a leader)."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    leader_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRefused(Event):
    """A leader's push was damaged on its way, or cannot follow the log: it is requested again."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    leader_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrShrunk(Event):
    """The controllers have removed replicas from a partition's in-sync set, as its leader here proposed."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    removed: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrExpanded(Event):
    """Replicas have caught up; the controllers added them to the in-sync set, as their leader here proposed."""

    partition: TopicPartition
    added: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClosed(Event):
    """This broker has closed a partition; ``deleted`` when its topic is gone."""

    severity: ClassVar[int] = logging.DEBUG
    partition: TopicPartition
    deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailed(Event):
    """A partition is offline on this broker: its log could not be opened, or its directory failed."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryOpening(Event):
    """A log directory is still being opened: how many of its logs are open after ``seconds``, and how many bytes
    recovery has read so far. Every few seconds."""

    path: str
    logs_opened: int
    logs: int
    scanned_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryOpened(Event):
    """A log directory is locked, its logs are open; not ``clean``: logs were scanned beyond their recovery points."""

    path: str
    logs: int
    damaged: int
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryFailed(Event):
    """A write or fsync failed: the directory is offline until the broker restarts (never retried)."""

    severity: ClassVar[int] = logging.CRITICAL
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorsShort(Event):
    """The process has nearly no file descriptor left, of ``limit``; or, not ``short``, has enough again. While it is
    short a broker leads nothing that another in-sync replica can lead."""

    severity: ClassVar[int] = logging.WARNING
    short: bool
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryFull(Event):
    """A log directory refuses appends for lack of space; or, not ``full``, accepts them again."""

    severity: ClassVar[int] = logging.WARNING
    path: str
    full: bool
    free_bytes: int
    reserve_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionFound(Event):
    """Bytes of a log differ from what was written: its partition is quarantined on this broker. ``position``: byte in
    the file; ``offset``: the record offset that should lie there; -1: unknown."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    path: str
    position: int
    offset: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRebuilt(Event):
    """A segment's index was damaged, and was rebuilt from its log, which is sound."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubEnded(Event):
    """Every segment of this broker was read through for damage; findings have events of their own."""

    segments: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMoved(Event):
    """A partition's log is in another directory of this broker now (KIP-113)."""

    partition: TopicPartition
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDeleted(Event):
    """A client advanced a log's start."""

    partition: TopicPartition
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDeleted(Event):
    """Retention removed the oldest segments of a log. ``why``: the rule (retention.ms, retention.bytes, log start)."""

    partition: TopicPartition
    count: int
    bytes: int
    why: str
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCleaned(Event):
    """A log was compacted up to ``clean_offset``; ``partial``: the map was full, and compaction continues."""

    partition: TopicPartition
    clean_offset: int
    segments_before: int
    segments_after: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    seconds: float
    partial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUncleanable(Event):
    """A log cannot be compacted, and is skipped until its topic's or the cleaner's settings change, or a restart."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    reason: str
