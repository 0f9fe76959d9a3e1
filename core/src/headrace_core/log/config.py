"""Topic configuration: every key of a Kafka topic, declared once, and the frozen slice of it that the log obeys.

``TOPIC`` is what the controller validates topic configurations with and what the SDK shows. Names, defaults and ranges
are Kafka's (4.x); ``log.flush`` is ours. A key whose machinery is not built yet is accepted, kept and described, and
carries a note that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import HEADRACE, INT_MAX, LONG_MAX, ConfigDef, ConfigKey, Kind, Scope, at_most
from ..types import FlushPolicy, TimestampType
from .broker_defaults import topic_hints

#: How often an ``interval`` topic is flushed when neither ``flush.ms`` nor the broker's log.flush.interval.ms says.
DEFAULT_FLUSH_INTERVAL_MS = 1_000

_NOT_YET = "accepted and kept, not in force yet"
_COMPRESSION = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _key(name: str, kind: Kind, default: Any, doc: str, **more: Any) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, scope=Scope.PER_TOPIC, **more)


def _check_cleanup_policy(policies: list[str]) -> str | None:
    return "must name at least one of delete, compact" if not policies else None


def _check_throttled(replicas: list[str]) -> str | None:
    if replicas == ["*"] or all(_REPLICA.fullmatch(replica) for replica in replicas):
        return None
    return "write partition:broker,partition:broker,..., or * for all"


_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_NO_TIERS = "tiered storage is not built"

TOPIC = ConfigDef(
    [
        _key(
            "cleanup.policy",
            Kind.LIST,
            ["delete"],
            "What becomes of old segments: delete (by time and size), compact (keep the last record of each key), "
            "or both.",
            choices=("delete", "compact"),
            check=_check_cleanup_policy,
        ),
        _key(
            "compression.type",
            Kind.STRING,
            "producer",
            "How batches are compressed in the log. producer keeps them as they were sent; anything else compresses "
            "anew.",
            choices=_COMPRESSION,
        ),
        _key(
            "compression.gzip.level",
            Kind.INT,
            -1,
            "Level of compression.type=gzip: 1 to 9; -1 is zlib's own.",
            low=-1,
            high=9,
            check=lambda level: None if level else "must be -1, or 1 to 9",
            source="KIP-390",
        ),
        _key("compression.lz4.level", Kind.INT, 9, "Level of compression.type=lz4.", low=1, high=17, source="KIP-390"),
        _key(
            "compression.zstd.level",
            Kind.INT,
            3,
            "Level of compression.type=zstd.",
            low=-131072,
            high=22,
            source="KIP-390",
        ),
        _key(
            "delete.retention.ms",
            Kind.LONG,
            86_400_000,
            "How long a compacted topic keeps tombstones.",
            low=0,
        ),
        _key(
            "file.delete.delay.ms",
            Kind.LONG,
            60_000,
            "How long a removed file stays on the disk (a full disk empties it at once).",
            low=0,
        ),
        _key(
            "flush.messages",
            Kind.LONG,
            LONG_MAX,
            "With log.flush=interval or os: force the log to disk after this many records, at the latest.",
            low=1,
        ),
        _key(
            "flush.ms",
            Kind.LONG,
            LONG_MAX,
            "With log.flush=interval or os: force the log to disk after this time, at the latest.",
            low=0,
        ),
        _key(
            "index.interval.bytes",
            Kind.INT,
            4096,
            "Bytes of log between two entries of the offset index, about.",
            low=0,
        ),
        _key(
            "log.flush",
            Kind.STRING,
            FlushPolicy.COMMIT.value,
            "When written records are forced to disk: commit (before they are acknowledged), interval (every flush.ms, "
            "one second if unset), os (when the operating system likes; Kafka's way).",
            choices=tuple(policy.value for policy in FlushPolicy),
            source=HEADRACE,
        ),
        _key(
            "max.compaction.lag.ms",
            Kind.LONG,
            LONG_MAX,
            "The longest time that a record stays uncompacted.",
            low=1,
            source="KIP-354",
        ),
        _key(
            "max.message.bytes",
            Kind.INT,
            1_048_588,
            "The largest record batch that is accepted, after compression.",
            low=0,
        ),
        _key(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            3_600_000,
            "How far a CreateTime may lie ahead of the broker's clock.",
            low=0,
            source="KIP-937",
        ),
        _key(
            "message.timestamp.before.max.ms",
            Kind.LONG,
            LONG_MAX,
            "How far a CreateTime may lie behind the broker's clock.",
            low=0,
            source="KIP-937",
        ),
        _key(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            "Whose time a record carries: the producer's (CreateTime) or the broker's at the append (LogAppendTime).",
            choices=("CreateTime", "LogAppendTime"),
        ),
        _key(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            0.5,
            "Share of uncompacted bytes at which compaction starts.",
            low=0,
            high=1,
        ),
        _key(
            "min.compaction.lag.ms",
            Kind.LONG,
            0,
            "The shortest time that a record stays uncompacted.",
            low=0,
        ),
        _key(
            "min.insync.replicas",
            Kind.INT,
            1,
            "How many replicas must be in sync for a write with acks=all.",
            low=1,
        ),
        _key("preallocate", Kind.BOOLEAN, False, "Reserve a segment's whole space on disk when it is created."),
        _key(
            "retention.bytes",
            Kind.LONG,
            -1,
            "The oldest segments go as long as those after them hold this many bytes; -1 is no limit.",
            low=-1,
        ),
        _key(
            "retention.ms",
            Kind.LONG,
            604_800_000,
            "Segments go when all of their records are older than this; -1 is no limit.",
            low=-1,
        ),
        _key("segment.bytes", Kind.INT, 1_073_741_824, "Size at which a new segment file is begun.", low=14),
        _key(
            "segment.index.bytes",
            Kind.INT,
            10_485_760,
            "Largest size of an index file; a full index begins a new segment.",
            low=12,
        ),
        _key(
            "segment.jitter.ms",
            Kind.LONG,
            0,
            "segment.ms is shortened by a random time up to this, so that segments do not all roll at once.",
            low=0,
        ),
        _key(
            "segment.ms",
            Kind.LONG,
            604_800_000,
            "A new segment is begun when the records of the old one span this much time, even if it is not full.",
            low=1,
        ),
        _key(
            "unclean.leader.election.enable",
            Kind.BOOLEAN,
            False,
            "May a replica that is not in sync become leader, losing records, when no other is left?",
            source="KIP-106",
        ),
        _key(
            "follower.replication.throttled.replicas",
            Kind.LIST,
            [],
            "Replicas whose catching up is throttled on the follower's side: partition:broker,..., or *.",
            check=_check_throttled,
            note="has no effect: catching up is throttled where it is sent (leader.replication.throttled.replicas)",
            source="KIP-73",
        ),
        _key(
            "leader.replication.throttled.replicas",
            Kind.LIST,
            [],
            "Replicas whose catching up is throttled on the leader's side: partition:broker,..., or *.",
            check=_check_throttled,
            source="KIP-73",
        ),
        _key(
            "local.retention.bytes",
            Kind.LONG,
            -2,
            "With tiered storage: bytes kept on local disk; -2 is retention.bytes.",
            low=-2,
            note="has no effect: tiered storage is not built",
            source="KIP-405",
        ),
        _key(
            "local.retention.ms",
            Kind.LONG,
            -2,
            "With tiered storage: time kept on local disk; -2 is retention.ms.",
            low=-2,
            note="has no effect: tiered storage is not built",
            source="KIP-405",
        ),
        _key(
            "remote.storage.enable",
            Kind.BOOLEAN,
            False,
            "Tiered storage for this topic.",
            refusal=_NO_TIERS,
            source="KIP-405",
        ),
        _key(
            "remote.log.copy.disable",
            Kind.BOOLEAN,
            False,
            "With tiered storage: copy nothing more there.",
            refusal=_NO_TIERS,
            source="KIP-950",
        ),
        _key(
            "remote.log.delete.on.disable",
            Kind.BOOLEAN,
            False,
            "With tiered storage: delete what is there when it is disabled.",
            refusal=_NO_TIERS,
            source="KIP-950",
        ),
        _key(
            "message.format.version",
            Kind.STRING,
            None,
            "The format of records on disk (until Kafka 4).",
            refusal="batches are always of version 2; leave it out",
        ),
        _key(
            "message.downconversion.enable",
            Kind.BOOLEAN,
            True,
            "Convert batches for old clients (until Kafka 4).",
            refusal="there are no clients that need it; leave it out",
        ),
        _key(
            "message.timestamp.difference.max.ms",
            Kind.LONG,
            LONG_MAX,
            "How far a CreateTime may lie from the broker's clock (until Kafka 4).",
            refusal="message.timestamp.before.max.ms and message.timestamp.after.max.ms have taken its place",
        ),
    ],
    where="topic",
    hints=topic_hints(),
    checks=(
        at_most(
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
            "a record would have to stay and to go at the same time",
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What one partition's log obeys. Derived, never set field by field: see ``from_topic``."""

    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    preallocate: bool = False
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = LONG_MAX
    timestamp_after_max_ms: int = 3_600_000
    message_bytes_max: int = 1_048_588
    #: A codec's name, "uncompressed", or "producer" (as sent).
    compression_type: str = "producer"
    compression_level: int | None = None
    flush: FlushPolicy = FlushPolicy.COMMIT
    flush_messages: int = LONG_MAX
    #: Longest time that written records stay unforced; None: no bound.
    flush_ms: int | None = None
    retention_ms: int | None = 604_800_000
    retention_bytes: int | None = None
    cleanup_delete: bool = True
    cleanup_compact: bool = False
    #: How long a removed file stays on the disk, under a name that ends in .deleted.
    file_delete_delay_ms: int = 60_000
    min_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    #: Of tombstones in a compacted log.
    delete_retention_ms: int = 86_400_000
    #: A last batch that is whole and wrong is damage, no torn tail (the metadata log: a voter must not forget what it
    #: acknowledged).
    refuse_whole_tail: bool = False

    def __post_init__(self) -> None:
        if self.segment_bytes > INT_MAX or self.segment_index_bytes < 12:
            raise ValueError(f"no log can be kept with {self}")

    @property
    def roll_after_ms(self) -> int:
        """How much time a segment may span. Only sealed segments are compacted, so the lag bounds it too (KIP-354)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.cleanup_compact else self.segment_ms

    @classmethod
    def from_topic(
        cls,
        given: Mapping[str, Any],
        *,
        broker_defaults: Mapping[str, Any] | None = None,
        flush_interval_ms: int = DEFAULT_FLUSH_INTERVAL_MS,
    ) -> LogConfig:
        """The log's settings of a topic.

        ``given``: the topic's own keys; ``broker_defaults``: topic keys that the broker sets for topics that do not
        (its ``log.segment.bytes`` as ``segment.bytes``, ...); ``flush_interval_ms``: the broker's
        ``log.flush.interval.ms``, for topics with ``log.flush=interval``. Raises InvalidConfigError.
        """
        values = TOPIC.parse(broker_defaults or {}) | TOPIC.parse(given, defaults=False)
        flush = FlushPolicy(values["log.flush"])
        flush_ms = None if values["flush.ms"] == LONG_MAX else values["flush.ms"]
        if flush is FlushPolicy.INTERVAL and flush_ms is None:
            flush_ms = flush_interval_ms
        compression = values["compression.type"]
        log_append_time = values["message.timestamp.type"] == "LogAppendTime"
        return cls(
            segment_bytes=values["segment.bytes"],
            segment_ms=values["segment.ms"],
            segment_jitter_ms=values["segment.jitter.ms"],
            segment_index_bytes=values["segment.index.bytes"],
            index_interval_bytes=values["index.interval.bytes"],
            preallocate=values["preallocate"],
            timestamp_type=TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME,
            timestamp_before_max_ms=values["message.timestamp.before.max.ms"],
            timestamp_after_max_ms=values["message.timestamp.after.max.ms"],
            message_bytes_max=values["max.message.bytes"],
            compression_type=compression,
            compression_level=values.get(f"compression.{compression}.level"),
            flush=flush,
            flush_messages=values["flush.messages"],
            flush_ms=flush_ms,
            retention_ms=None if values["retention.ms"] < 0 else values["retention.ms"],
            retention_bytes=None if values["retention.bytes"] < 0 else values["retention.bytes"],
            cleanup_delete="delete" in values["cleanup.policy"],
            cleanup_compact="compact" in values["cleanup.policy"],
            file_delete_delay_ms=values["file.delete.delay.ms"],
            min_dirty_ratio=values["min.cleanable.dirty.ratio"],
            min_compaction_lag_ms=values["min.compaction.lag.ms"],
            max_compaction_lag_ms=values["max.compaction.lag.ms"],
            delete_retention_ms=values["delete.retention.ms"],
        )
