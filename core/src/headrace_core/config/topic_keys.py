"""Configuration keys of a topic, and the server keys that set their defaults (Kafka's ServerTopicConfigSynonyms).

The controller validates topic configurations with ``TOPIC``, and the SDK shows the keys of ``TOPIC``;
``log.config.LogConfig`` has the settings that apply to a log. Names, defaults and ranges are those of Kafka 4.x,
except for keys with ``source=HEADRACE``. A key that is not implemented is accepted, stored and described, with a note
that says so.

``server_key``: the broker's key that sets a topic key's default, such as ``log.retention.ms`` for ``retention.ms``.
"""

from __future__ import annotations

import dataclasses
import re

from ..types import FlushPolicy
from .definition import (
    CONFLUENT,
    HEADRACE,
    LONG_MAX,
    ConfigDef,
    ConfigKey,
    Kind,
    Scope,
    accepted,
    at_most,
    honoured,
    refused,
)

_NOT_YET = "accepted and kept, not in force yet"
_COMPRESSION = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _check_cleanup_policy(policies: list[str]) -> str | None:
    return "must name at least one of delete, compact" if not policies else None


def _check_throttled(replicas: list[str]) -> str | None:
    if replicas == ["*"] or all(_REPLICA.fullmatch(replica) for replica in replicas):
        return None
    return "write partition:broker,partition:broker,..., or * for all"


_REPLICA = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_NO_TIERS = "tiered storage is not built"
#: Names of the subject name strategies; a key accepts the name of Confluent's Java class too, package included.
SUBJECT_NAME_STRATEGIES = ("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")


def _check_strategy(name: str | None) -> str | None:
    if name is None or name.rpartition(".")[2] in SUBJECT_NAME_STRATEGIES:
        return None
    return f"must be one of {', '.join(SUBJECT_NAME_STRATEGIES)}"


def _schema_keys(side: str, null: str) -> tuple[ConfigKey, ...]:
    """The configuration keys of schema validation for one ``side`` of a topic's records: "key" or "value"."""
    return (
        honoured(
            f"{side}.schema.validation",
            False,
            f"Whether brokers check the schema of each record's {side}, and refuse the record if the check fails. The "
            f"{side} must begin with a byte 0 and a schema id, and the registry must have this schema in a "
            f"subject of {side}.subject.name.strategy. {null} The brokers need confluent.schema.registry.url.",
            source=CONFLUENT,
        ),
        honoured(
            f"{side}.subject.name.strategy",
            "TopicNameStrategy",
            f"The subjects of the registry in which {side}.schema.validation looks for a record's schema. "
            f"TopicNameStrategy means the subject TOPIC-{side}. TopicRecordNameStrategy means every subject whose name "
            "begins with TOPIC-, RecordNameStrategy means every subject.",
            check=_check_strategy,
            source=CONFLUENT,
        ),
        honoured(
            f"confluent.{side}.schema.validation",
            False,
            f"Confluent Server's name for {side}.schema.validation. Brokers check the schema of each record's {side} "
            "if either of the two settings is true.",
            source=CONFLUENT,
        ),
        honoured(
            f"confluent.{side}.subject.name.strategy",
            "",
            f"Confluent Server's name for {side}.subject.name.strategy. A value of "
            f"confluent.{side}.subject.name.strategy has priority.",
            check=lambda value: None if value == "" else _check_strategy(value),
            source=CONFLUENT,
        ),
    )


_KEYS = (
    honoured(
        "cleanup.policy",
        ["delete"],
        "What to do with old segments: delete (by time and size), compact (keep the last record of each key), or both.",
        server_key="log.cleanup.policy",
        choices=("delete", "compact"),
        check=_check_cleanup_policy,
    ),
    honoured(
        "compression.type",
        "producer",
        'The codec of batches in the log. The value "producer" keeps each batch as the producer sent it. With any '
        "other value, the broker compresses each batch again with this codec.",
        server_key="compression.type",
        choices=_COMPRESSION,
    ),
    honoured(
        "compression.gzip.level",
        -1,
        "The compression level for compression.type=gzip: 1 to 9, or -1 for zlib's default.",
        server_key="compression.gzip.level",
        low=-1,
        high=9,
        check=lambda level: None if level else "must be -1, or 1 to 9",
        source="KIP-390",
    ),
    honoured(
        "compression.lz4.level",
        9,
        "The compression level for compression.type=lz4.",
        server_key="compression.lz4.level",
        low=1,
        high=17,
        source="KIP-390",
    ),
    honoured(
        "compression.zstd.level",
        3,
        "The compression level for compression.type=zstd.",
        server_key="compression.zstd.level",
        low=-131072,
        high=22,
        source="KIP-390",
    ),
    honoured(
        "delete.retention.ms",
        86_400_000,
        "How long a compacted topic keeps a tombstone after compaction has removed the older records of its key.",
        kind=Kind.LONG,
        server_key="log.cleaner.delete.retention.ms",
        low=0,
    ),
    honoured(
        "file.delete.delay.ms",
        60_000,
        "How long a deleted segment's file stays on the disk. When a log directory is full, the broker removes the "
        "files of deleted segments at once.",
        kind=Kind.LONG,
        server_key="log.segment.delete.delay.ms",
        low=0,
    ),
    honoured(
        "flush.messages",
        LONG_MAX,
        "With log.flush=interval or os, the number of unflushed records at which the broker flushes a log.",
        kind=Kind.LONG,
        server_key="log.flush.interval.messages",
        low=1,
    ),
    honoured(
        "flush.ms",
        LONG_MAX,
        "With log.flush=interval or os, how long the broker waits after a log's first unflushed record before it "
        "flushes the log.",
        kind=Kind.LONG,
        server_key="log.flush.interval.ms",
        low=0,
    ),
    honoured(
        "index.interval.bytes",
        4096,
        "About how many bytes the broker appends to the log before it adds the next entry to the offset index.",
        server_key="log.index.interval.bytes",
        low=0,
    ),
    honoured(
        "log.flush",
        FlushPolicy.COMMIT.value,
        "When the broker flushes records to the disk. With commit, the broker flushes records before it acknowledges "
        "them. With interval, the broker flushes every flush.ms, or every second if flush.ms is not set. With os, the "
        "operating system decides, as in Kafka.",
        kind=Kind.STRING,
        server_key="log.flush",
        choices=tuple(policy.value for policy in FlushPolicy),
        source=HEADRACE,
    ),
    honoured(
        "max.compaction.lag.ms",
        LONG_MAX,
        "The longest time that a record stays in the log before compaction processes it.",
        kind=Kind.LONG,
        server_key="log.cleaner.max.compaction.lag.ms",
        low=1,
        source="KIP-354",
    ),
    honoured(
        "max.message.bytes",
        1_048_588,
        "The largest record batch that the broker accepts, in bytes of the compressed batch.",
        server_key="message.max.bytes",
        low=0,
    ),
    honoured(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's CreateTime may be ahead of the broker's clock.",
        kind=Kind.LONG,
        server_key="log.message.timestamp.after.max.ms",
        low=0,
        source="KIP-937",
    ),
    honoured(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's CreateTime may be behind the broker's clock.",
        kind=Kind.LONG,
        server_key="log.message.timestamp.before.max.ms",
        low=0,
        source="KIP-937",
    ),
    honoured(
        "message.timestamp.type",
        "CreateTime",
        "The source of record timestamps: the producer (CreateTime), or the broker's clock at the append "
        "(LogAppendTime).",
        server_key="log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    ),
    honoured(
        "min.cleanable.dirty.ratio",
        0.5,
        "The share of bytes in a log that compaction has not processed yet, above which compaction starts.",
        server_key="log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    ),
    honoured(
        "min.compaction.lag.ms",
        0,
        "The shortest time that a record stays in the log before compaction processes it.",
        kind=Kind.LONG,
        server_key="log.cleaner.min.compaction.lag.ms",
        low=0,
    ),
    honoured(
        "min.insync.replicas",
        1,
        "How many replicas must be in sync so that the leader accepts a write with acks=all.",
        server_key="min.insync.replicas",
        low=1,
    ),
    honoured(
        "preallocate",
        False,
        "Whether the broker reserves the whole disk space of a segment when it creates the segment.",
        server_key="log.preallocate",
    ),
    honoured(
        "retention.bytes",
        -1,
        "Retention deletes the oldest segment of a log as long as the remaining segments together have at least "
        "retention.bytes; -1 means no limit.",
        kind=Kind.LONG,
        server_key="log.retention.bytes",
        low=-1,
    ),
    honoured(
        "retention.ms",
        604_800_000,
        "Retention deletes a segment when all records of the segment are older than retention.ms; -1 means no limit.",
        kind=Kind.LONG,
        server_key="log.retention.ms",
        low=-1,
    ),
    honoured(
        "segment.bytes",
        1_073_741_824,
        "The size at which the broker begins a new segment file.",
        server_key="log.segment.bytes",
        low=14,
    ),
    honoured(
        "segment.index.bytes",
        10_485_760,
        "The largest size of an index file; when the index is full, the broker begins a new segment.",
        server_key="log.index.size.max.bytes",
        low=12,
    ),
    honoured(
        "segment.jitter.ms",
        0,
        "The broker shortens segment.ms of each segment by a random time up to segment.jitter.ms, so that not all "
        "logs begin a new segment at the same time.",
        kind=Kind.LONG,
        server_key="log.roll.jitter.ms",
        low=0,
    ),
    honoured(
        "segment.ms",
        604_800_000,
        "The broker begins a new segment when the records of the active segment span segment.ms, even if the "
        "segment is not full.",
        kind=Kind.LONG,
        server_key="log.roll.ms",
        low=1,
    ),
    honoured(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is not in sync may become leader when no in-sync replica is left. Unclean elections "
        "lose records.",
        server_key="unclean.leader.election.enable",
        source="KIP-106",
    ),
    accepted(
        "follower.replication.throttled.replicas",
        [],
        "The replicas whose catching up the follower throttles, as partition:broker,partition:broker,..., or * for "
        "all replicas.",
        "has no effect: the leader throttles replication (leader.replication.throttled.replicas)",
        check=_check_throttled,
        source="KIP-73",
    ),
    honoured(
        "leader.replication.throttled.replicas",
        [],
        "The replicas whose catching up the leader throttles, as partition:broker,partition:broker,..., or * for all "
        "replicas.",
        check=_check_throttled,
        source="KIP-73",
    ),
    accepted(
        "local.retention.bytes",
        -2,
        "With tiered storage, how many bytes of each partition stay on the local disk; -2 means the value of "
        "retention.bytes.",
        "has no effect: tiered storage is not built",
        kind=Kind.LONG,
        server_key="log.local.retention.bytes",
        low=-2,
        source="KIP-405",
    ),
    accepted(
        "local.retention.ms",
        -2,
        "With tiered storage, how long records stay on the local disk; -2 means the value of retention.ms.",
        "has no effect: tiered storage is not built",
        kind=Kind.LONG,
        server_key="log.local.retention.ms",
        low=-2,
        source="KIP-405",
    ),
    refused("remote.storage.enable", False, "Whether the topic uses tiered storage.", _NO_TIERS, source="KIP-405"),
    refused(
        "remote.log.copy.disable",
        False,
        "Whether to stop copying segments to tiered storage.",
        _NO_TIERS,
        source="KIP-950",
    ),
    refused(
        "remote.log.delete.on.disable",
        False,
        "Whether to delete the topic's segments in tiered storage when tiered storage is disabled.",
        _NO_TIERS,
        source="KIP-950",
    ),
    refused(
        "message.format.version",
        None,
        "The format of records on disk (until Kafka 4).",
        "batches always have format version 2; leave this key out",
    ),
    refused(
        "message.downconversion.enable",
        True,
        "Whether brokers convert batches for old clients (until Kafka 4).",
        "all clients of Headrace read the present format; leave this key out",
    ),
    refused(
        "message.timestamp.difference.max.ms",
        LONG_MAX,
        "How far a record's CreateTime may differ from the broker's clock (until Kafka 4).",
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms replace this key",
        kind=Kind.LONG,
    ),
    *_schema_keys("value", "Tombstones (records with a null value) are accepted without a check."),
    *_schema_keys("key", "Records with a null key are accepted without a check."),
)

#: Topic settings with which only DeleteRecords removes records of the topic. A new retention rule must add its key to
#: KEEPS_EVERYTHING.
KEEPS_EVERYTHING = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}

#: For each topic key: the server key that sets its default.
TOPIC_DEFAULT_KEYS = {key.name: key.server_key for key in _KEYS if key.server_key is not None}

#: Maps a server key in hours or minutes to (its key in milliseconds, factor), finest unit first. If several
#: keys for the same setting are given, the key with the finest unit applies.
COARSE_DEFAULT_KEYS: dict[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}


def _topic_hints() -> dict[str, str]:
    """For each server key that has another name on a topic, return the hint that names the topic key to use."""
    topic_keys = {server: topic for topic, server in TOPIC_DEFAULT_KEYS.items()}
    named = topic_keys | {coarse: topic_keys[fine] for coarse, (fine, _) in COARSE_DEFAULT_KEYS.items()}
    return {
        server: f"for a topic it is called {topic!r} ({server} is the brokers' default of it)"
        for server, topic in named.items()
        if server != topic
    }


def server_hints() -> dict[str, str]:
    """For each topic key that has another name on a server, return the hint that names the server key to use."""
    return {
        topic: f"for a server it is called {server!r} (the default of topics that do not set {topic})"
        for topic, server in TOPIC_DEFAULT_KEYS.items()
        if server != topic
    }


TOPIC = ConfigDef(
    (dataclasses.replace(key, scope=Scope.PER_TOPIC) for key in _KEYS),
    where="topic",
    hints=_topic_hints(),
    checks=(
        at_most(
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
            "a record would have to be kept and deleted at the same time",
        ),
    ),
)
