"""The part of a topic's configuration that applies to its log. The keys are declared in ``config.topic_keys``."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config import INT_MAX, LONG_MAX, fields_from, from_key
from ..config.topic_keys import TOPIC
from ..types import FlushPolicy, TimestampType

#: Default flush interval in milliseconds for ``log.flush=interval``: used when the topic sets no flush.ms and the
#: broker sets no log.flush.interval.ms.
DEFAULT_FLUSH_INTERVAL_MS = 1_000


def _timestamp_type(name: str) -> TimestampType:
    return TimestampType.LOG_APPEND_TIME if name == "LogAppendTime" else TimestampType.CREATE_TIME


def _unless_negative(limit: int) -> int | None:
    return None if limit < 0 else limit


def _unless_endless(ms: int) -> int | None:
    return None if ms == LONG_MAX else ms


class SubjectStrategy(enum.Enum):
    """A subject name strategy (Confluent's): determines the subjects under which a topic's schemas are registered."""

    TOPIC = "TopicNameStrategy"
    RECORD = "RecordNameStrategy"
    TOPIC_RECORD = "TopicRecordNameStrategy"


def _schemas(is_validated: bool, strategy: str) -> SubjectStrategy | None:
    return SubjectStrategy(strategy.rpartition(".")[2]) if is_validated else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one partition's log, derived by ``from_topic``."""

    segment_bytes: int = from_key(TOPIC, "segment.bytes")
    segment_ms: int = from_key(TOPIC, "segment.ms")
    segment_jitter_ms: int = from_key(TOPIC, "segment.jitter.ms")
    segment_index_bytes: int = from_key(TOPIC, "segment.index.bytes")
    index_interval_bytes: int = from_key(TOPIC, "index.interval.bytes")
    preallocate: bool = from_key(TOPIC, "preallocate")
    timestamp_type: TimestampType = from_key(TOPIC, "message.timestamp.type", _timestamp_type)
    timestamp_before_max_ms: int = from_key(TOPIC, "message.timestamp.before.max.ms")
    timestamp_after_max_ms: int = from_key(TOPIC, "message.timestamp.after.max.ms")
    message_bytes_max: int = from_key(TOPIC, "max.message.bytes")
    #: Name of the topic's codec, "uncompressed", or "producer" (keep the producer's codec).
    compression_type: str = from_key(TOPIC, "compression.type")
    compression_level: int | None = None
    flush: FlushPolicy = from_key(TOPIC, "log.flush", FlushPolicy)
    flush_messages: int = from_key(TOPIC, "flush.messages")
    #: Longest time in milliseconds that written records stay unflushed; None if there is no limit.
    flush_ms: int | None = from_key(TOPIC, "flush.ms", _unless_endless)
    retention_ms: int | None = from_key(TOPIC, "retention.ms", _unless_negative)
    retention_bytes: int | None = from_key(TOPIC, "retention.bytes", _unless_negative)
    cleanup_delete: bool = from_key(TOPIC, "cleanup.policy", lambda policies: "delete" in policies)
    cleanup_compact: bool = from_key(TOPIC, "cleanup.policy", lambda policies: "compact" in policies)
    #: Milliseconds that a deleted file stays on the disk, under a name that ends in .deleted.
    file_delete_delay_ms: int = from_key(TOPIC, "file.delete.delay.ms")
    min_dirty_ratio: float = from_key(TOPIC, "min.cleanable.dirty.ratio")
    min_compaction_lag_ms: int = from_key(TOPIC, "min.compaction.lag.ms")
    max_compaction_lag_ms: int = from_key(TOPIC, "max.compaction.lag.ms")
    #: Milliseconds that tombstones stay in a compacted log.
    delete_retention_ms: int = from_key(TOPIC, "delete.retention.ms")
    #: Whether recovery treats a complete last batch with a wrong CRC as damage, not as a torn tail.
    #: ``refuse_whole_tail`` is True for the metadata log, because a voter must not lose records that it acknowledged.
    refuse_whole_tail: bool = False
    #: Strategies for the subjects under which the schema ids of keys and of values must be registered; None: brokers do
    #: not check the ids.
    key_schemas: SubjectStrategy | None = None
    value_schemas: SubjectStrategy | None = None

    def __post_init__(self) -> None:
        if self.segment_bytes > INT_MAX or self.segment_index_bytes < 12:
            raise ValueError(f"segment.bytes or segment.index.bytes is out of range in {self}")

    @property
    def roll_after_ms(self) -> int:
        """Longest time that a segment may span. max.compaction.lag.ms bounds this time, because only sealed segments
        are compacted (KIP-354)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.cleanup_compact else self.segment_ms

    def for_coordinators(self) -> LogConfig:
        """The settings of an internal topic's log: its leader neither checks nor replaces the timestamps.

        The coordinator's clock made them, and the coordinator compares them with its clock again (expiry). If the
        leader compared them with its own clock, one wrong clock of the two would stop groups and transactions."""
        return replace(
            self,
            timestamp_type=TimestampType.CREATE_TIME,
            timestamp_before_max_ms=LONG_MAX,
            timestamp_after_max_ms=LONG_MAX,
        )

    @classmethod
    def from_topic(
        cls,
        given: Mapping[str, Any],
        *,
        broker_defaults: Mapping[str, Any] | None = None,
        flush_interval_ms: int = DEFAULT_FLUSH_INTERVAL_MS,
    ) -> LogConfig:
        """Derive a log's settings from its topic's configuration.

        ``given``: the keys that the topic sets. ``broker_defaults``: the broker's defaults for other topic keys (its
        ``log.segment.bytes`` as ``segment.bytes``, ...). ``flush_interval_ms``: the broker's ``log.flush.interval.ms``,
        for topics with ``log.flush=interval``. Raises InvalidConfigError.
        """
        values = TOPIC.parse(broker_defaults or {}) | TOPIC.parse(given, defaults=False)
        fields = fields_from(cls, values)
        if fields["flush"] is FlushPolicy.INTERVAL and fields["flush_ms"] is None:
            fields["flush_ms"] = flush_interval_ms
        return cls(
            **fields,
            compression_level=values.get(f"compression.{fields['compression_type']}.level"),
            key_schemas=_schemas(
                values["key.schema.validation"] or values["confluent.key.schema.validation"],
                values["confluent.key.subject.name.strategy"] or values["key.subject.name.strategy"],
            ),
            value_schemas=_schemas(
                values["value.schema.validation"] or values["confluent.value.schema.validation"],
                values["confluent.value.subject.name.strategy"] or values["value.subject.name.strategy"],
            ),
        )
