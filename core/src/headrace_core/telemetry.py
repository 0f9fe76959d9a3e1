"""Telemetry: immutable events, counters, and an emitter to which logs, metrics and traces subscribe.

An event is an immutable value that is emitted once, where it happens; ``severity`` is the event's log level.
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

#: Attribute of a ``logging.LogRecord`` with the event that the record is about.
EVENT_ATTRIBUTE = "headrace_event"


class Emitter:
    """Passes each event to every subscriber, in the order of subscription, immediately and in the caller's thread.

    An exception of a subscriber is logged, and the subscriber stays subscribed: telemetry must never stop the observed
    work.
    """

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each event that is emitted from now on; returns a function that ends the
        subscription."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.exception("a telemetry subscriber failed on event %r; it gets further events", event)


def log_events(logger: logging.Logger) -> Subscriber:
    """Return a subscriber that writes each event to ``logger`` at the event's severity: the event's name, then its
    fields as key=value."""

    def log(event: Event) -> None:
        if logger.isEnabledFor(event.severity):
            shown = (f"{field.name}={_shown(getattr(event, field.name))}" for field in dataclasses.fields(event))
            logger.log(event.severity, "%s %s", type(event).__name__, " ".join(shown), extra={EVENT_ATTRIBUTE: event})

    return log


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text


class Counter:
    """A number that only grows. A counter is cheap enough for the data path: the one thread that owns the counter
    executes ``value += n``."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Metrics:
    """Counters and gauges by name; a counter is created on first use. Names of counters and gauges are Kafka's names
    with dashes."""

    __slots__ = ("_counters", "_gauges")

    def __init__(self) -> None:
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Callable[[], int]] = {}

    def gauge(self, name: str, read: Callable[[], int]) -> None:
        """Add a gauge, a number that grows and shrinks; ``read`` returns its present value."""
        self._gauges[name] = read

    def counter(self, name: str) -> Counter:
        found = self._counters.get(name)
        if found is None:
            found = self._counters[name] = Counter()
        return found

    def snapshot(self) -> dict[str, int]:
        """Return the present values of all counters and gauges."""
        counters = {name: counter.value for name, counter in self._counters.items()}
        return counters | {name: read() for name, read in self._gauges.items()}


# -- the events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Event):
    """A process began to serve clients. ``seconds``: time since the process started."""

    role: str
    node_id: int
    address: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStopped(Event):
    """A process has stopped; ``clean``: whether all logs were flushed and the clean shutdown marker was written."""

    role: str
    node_id: int
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered(Event):
    """The controller accepted this broker's registration, with ``broker_epoch``."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFenced(Event):
    """The controller has fenced this broker (or cannot be reached): the broker serves no partition until it is
    unfenced."""

    severity: ClassVar[int] = logging.WARNING
    broker_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDirectoriesOffline(Event):
    """Log directories of a broker are offline (ids as Kafka writes them); replicas in the offline directories cannot
    lead."""

    severity: ClassVar[int] = logging.ERROR
    broker_id: int
    directory_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDirectoriesOutdated(Event):
    """A broker has returned with log directories that are older copies (ids as Kafka writes them), such as a restored
    backup. Their replicas are not elected, except where a partition has no other replica: there, the records since the
    copy are lost."""

    severity: ClassVar[int] = logging.WARNING
    broker_id: int
    directory_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnfenced(Event):
    """The controller has unfenced this broker, which serves clients again."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDraining(Event):
    """This broker is being drained: it gets no new replicas, and its ``replicas`` replicas move to other brokers."""

    broker_id: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDrained(Event):
    """This broker has no replicas any more, so it may be stopped and unregistered."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUnregistered(Event):
    """This broker was unregistered from the cluster."""

    broker_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanLeaderElected(Event):
    """The controllers have elected a leader that may lack acknowledged records, because no in-sync or eligible replica
    works."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    leader_id: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelChanged(Event):
    """The level of a feature of the cluster was changed (KIP-584)."""

    feature: str
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettingsChanged(Event):
    """Configuration keys of this running broker were altered. ``changed``: {key: "old -> new"}."""

    changed: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImageLoaded(Event):
    """This node loaded the metadata up to ``next_offset`` from a snapshot. ``source``: the file of the node's local
    snapshot, or the address of the controller that sent the snapshot. Later records of the metadata are read from the
    metadata log."""

    source: str
    next_offset: int
    epoch: int
    topics: int
    partitions: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImageSaved(Event):
    """This node wrote a local snapshot of the metadata to its disk; the node's next start begins with this snapshot."""

    path: str
    next_offset: int
    epoch: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAutoCreated(Event):
    """A topic that did not exist was created because a metadata request named it (auto.create.topics.enable)."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOpened(Event):
    """This broker has opened a partition's log and leads the partition."""

    severity: ClassVar[int] = logging.DEBUG
    partition: TopicPartition
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFollowed(Event):
    """This broker follows the partition's leader (-1: no leader) in ``leader_epoch``."""

    severity: ClassVar[int] = logging.DEBUG
    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTruncated(Event):
    """A follower truncated its log from ``from_offset`` to ``to_offset``, because the removed records differed from the
    leader's log."""

    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationRefused(Event):
    """A follower keeps committed records that its leader lacks, and has told the controllers. They elect an eligible
    replica; if there is none, the follower stays out of sync until an operator decides."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    leader_id: int
    leader_epoch: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBeginsAnew(Event):
    """A lost or damaged replica starts again with an empty log, and copies the log of ``leader_id`` (-1: once there is
    a leader)."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    leader_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRefused(Event):
    """A follower refused a leader's push, because the push was damaged or does not continue the follower's log; the
    follower requests the records again."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    leader_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrShrunk(Event):
    """The controllers have removed replicas from a partition's in-sync set, as the leader on this broker proposed."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    removed: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrExpanded(Event):
    """The controllers have added replicas that caught up to a partition's in-sync set, as the leader on this broker
    proposed."""

    partition: TopicPartition
    added: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionClosed(Event):
    """This broker has closed a partition; ``deleted``: whether the partition's topic was deleted."""

    severity: ClassVar[int] = logging.DEBUG
    partition: TopicPartition
    deleted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSetAside(Event):
    """At its start, this broker found the log of a partition that the metadata does not assign to it and, as far as the
    broker knows, never did. The log is at ``path`` now, and not served. It stays there until the operator acts."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailed(Event):
    """A partition is offline on this broker: its log could not be opened, or its directory failed."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryOpening(Event):
    """Progress of opening a log directory, emitted every few seconds: the number of open logs after ``seconds``, and
    the bytes that recovery has read so far."""

    path: str
    logs_opened: int
    logs: int
    scanned_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryOpened(Event):
    """A log directory is locked and its logs are open. ``clean`` is False if logs were scanned beyond their recovery
    points."""

    path: str
    logs: int
    damaged: int
    clean: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryFailed(Event):
    """A write or fsync failed, so the log directory is offline until the broker restarts; the write is never
    retried."""

    severity: ClassVar[int] = logging.CRITICAL
    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorsShort(Event):
    """The process has nearly used up its ``limit`` of file descriptors; if ``short`` is false, it has enough free
    descriptors again. During a shortage of descriptors, a broker gives up the leadership of every partition that
    another in-sync replica can lead."""

    severity: ClassVar[int] = logging.WARNING
    short: bool
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirectoryFull(Event):
    """A log directory refuses appends for lack of space; if ``full`` is false, it accepts appends again."""

    severity: ClassVar[int] = logging.WARNING
    path: str
    full: bool
    free_bytes: int
    reserve_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionFound(Event):
    """Damage was found in a log, and its partition is quarantined on this broker. ``position``: byte in the file;
    ``offset``: the record offset expected at that position; -1: unknown."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    path: str
    position: int
    offset: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRebuilt(Event):
    """A segment's index was damaged, and was rebuilt from the segment's .log file, which is undamaged."""

    severity: ClassVar[int] = logging.WARNING
    partition: TopicPartition
    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubEnded(Event):
    """The scrubber has checked every segment of this broker for damage; each damage found has a separate event."""

    segments: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMoved(Event):
    """A partition's log was moved to another log directory of this broker (KIP-113)."""

    partition: TopicPartition
    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDeleted(Event):
    """A client deleted records, which advanced a log's start."""

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
    """A log was compacted up to ``clean_offset``. ``partial``: the offset map was full, so compaction continues
    later."""

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
    """A log cannot be compacted. Compaction skips the log until the topic's or the cleaner's settings change, or until
    a restart."""

    severity: ClassVar[int] = logging.ERROR
    partition: TopicPartition
    reason: str
