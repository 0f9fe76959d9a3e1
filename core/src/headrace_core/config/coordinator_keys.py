"""Kafka's server keys for groups, offsets and transactions, used by coordinators. The keys of the internal topics
belong to the controllers. Keys of transactions are accepted without effect until transactions are built; only the keys
for a partition's producer state have an effect."""

from __future__ import annotations

from typing import Any

from .definition import HEADRACE, INT_MAX, ConfigKey, CrossCheck, Kind, Scope, accepted, at_most, honoured

_CLASSIC = "has no effect: groups of the classic protocol are not served, only those of KIP-848"
_THREADS = "has no effect: a coordinator is one process with one event loop; start more of them"
_PER_GROUP = "has no effect yet: a group cannot be given a value of its own"
_TRANSACTIONS = "has no effect yet: transactions are not built"
_SHARE = "has no effect: share groups (queues) are not built"
_STREAMS = "has no effect: groups of Kafka Streams are a Java library's own, and not built"


#: Assignors that Headrace's coordinators have; members may always request "sticky".
ASSIGNORS = ("uniform", "range", "sticky")


def _consumer(name: str, default: int, doc: str, *, low: int = 1) -> ConfigKey:
    return honoured(f"group.consumer.{name}", default, doc, low=low, source="KIP-848")


def _of_groups(name: str, default: int, doc: str, *, low: int = 1) -> ConfigKey:
    return accepted(f"group.consumer.{name}", default, doc, _PER_GROUP, low=low, source="KIP-848")


def _transaction(name: str, default: int, doc: str, *, low: int = 1, source: str = "KIP-98", **more: Any) -> ConfigKey:
    return accepted(name, default, doc, _TRANSACTIONS, low=low, source=source, **more)


OFFSETS = (
    honoured(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets, when it is made (the controllers' value). It cannot be changed afterwards.",
        low=1,
    ),
    honoured(
        "offsets.topic.replication.factor",
        3,
        "Replicas of __consumer_offsets; as many as brokers live, where these are fewer when it is made. The others "
        "are added when more brokers have come (auto.rebalance.enable).",
        low=1,
    ),
    honoured("offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets, when it is made.", low=1),
    honoured(
        "offsets.topic.compression.codec",
        0,
        "Compression of __consumer_offsets, as a number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        low=0,
        high=4,
    ),
    honoured(
        "offsets.retention.minutes",
        10_080,
        "How long the offsets of an empty group are kept.",
        low=1,
        source="KIP-211",
    ),
    honoured(
        "offsets.retention.check.interval.ms",
        600_000,
        "How often the coordinator looks for expired offsets.",
        kind=Kind.LONG,
        low=1,
    ),
    honoured("offset.metadata.max.bytes", 4_096, "Size of the text beside a committed offset."),
    honoured(
        "offsets.load.buffer.size", 5_242_880, "Bytes that are read at once when a shard's offsets are loaded.", low=1
    ),
    honoured(
        "offsets.commit.timeout.ms",
        5_000,
        "How long a write to __consumer_offsets is retried before the waiting requests fail with a retriable error.",
        low=1,
    ),
    accepted(
        "offsets.commit.required.acks",
        -1,
        "Replicas that must have a commit (until Kafka 4).",
        "a commit is always acknowledged by all in-sync replicas",
    ),
)

GROUPS = (
    accepted(
        "group.coordinator.rebalance.protocols",
        ["classic", "consumer", "streams"],
        "The group protocols that are served.",
        _CLASSIC,
        choices=("classic", "consumer", "share", "streams"),
        source="KIP-848",
    ),
    accepted("group.coordinator.threads", 4, "Threads of the coordinator.", _THREADS, low=1, source="KIP-848"),
    accepted("group.coordinator.background.threads", 2, "Its threads for slow work.", _THREADS, low=1),
    accepted(
        "group.coordinator.append.linger.ms",
        -1,
        "How long the coordinator lets records gather; -1: as it sees fit.",
        "requests that arrive during a write are gathered into the next one; no request waits longer",
        low=-1,
        source="KIP-848",
    ),
    accepted(
        "group.coordinator.cached.buffer.max.bytes",
        1_048_588,
        "How large a buffer may be that the coordinator keeps for the next write.",
        "has no effect: no buffer is kept",
        low=524_288,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted(
        "group.initial.rebalance.delay.ms",
        3_000,
        "How long a new classic group waits for members before its first rebalance.",
        _CLASSIC,
        source="KIP-134",
    ),
    accepted("group.min.session.timeout.ms", 6_000, "The shortest session of a classic member.", _CLASSIC, low=1),
    accepted("group.max.session.timeout.ms", 1_800_000, "The longest session of a classic member.", _CLASSIC, low=1),
    accepted("group.max.size", INT_MAX, "Members of a classic group at most.", _CLASSIC, low=1, source="KIP-389"),
    _consumer(
        "session.timeout.ms", 45_000, "How long the coordinator waits for a heartbeat before it removes a member."
    ),
    _of_groups("min.session.timeout.ms", 45_000, "The smallest value of it that a group may set."),
    _of_groups("max.session.timeout.ms", 60_000, "The largest value of it that a group may set."),
    _consumer("heartbeat.interval.ms", 5_000, "How often a member reports."),
    _of_groups("min.heartbeat.interval.ms", 5_000, "The smallest value of it that a group may set."),
    _of_groups("max.heartbeat.interval.ms", 15_000, "The largest value of it that a group may set."),
    accepted(
        "group.consumer.assignment.interval.ms",
        1_000,
        "The shortest time between two assignments of a group.",
        "only the coordinator's properties file sets it; it does not change while the coordinator runs",
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-1263",
    ),
    _of_groups("min.assignment.interval.ms", 0, "The smallest value of it that a group may set.", low=0),
    _of_groups("max.assignment.interval.ms", 15_000, "The largest value of it that a group may set.", low=0),
    accepted(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        "How often the coordinator looks for topics that match a pattern.",
        "topics that match are seen as soon as they are there",
        low=10_000,
        source="KIP-848",
    ),
    _consumer("max.size", INT_MAX, "Members of a group at most."),
    honoured(
        "group.consumer.assignors",
        ["uniform", "range"],
        "The assignors that groups may use; the first one is the default. There are uniform, range and sticky, and "
        "sticky may always be asked for.",
        choices=ASSIGNORS,
        source="KIP-848",
    ),
    honoured(
        "group.consumer.connection.grace.ms",
        1_500,
        "A member whose stream breaks and that does not reconnect within this time is removed (a static member "
        "keeps its session), so its partitions do not wait for the whole session.",
        low=0,
        source=HEADRACE,
    ),
    accepted(
        "group.consumer.migration.policy",
        "bidirectional",
        "Whether a classic group may change to the new protocol, and back.",
        _CLASSIC,
        check=lambda policy: (
            None
            if policy.lower() in ("bidirectional", "upgrade", "downgrade", "disabled")
            else "must be one of bidirectional, upgrade, downgrade, disabled"
        ),
        source="KIP-848",
    ),
    accepted("group.share.*", None, "Share groups: their sessions, locks and limits.", _SHARE, source="KIP-932"),
    accepted("share.*", None, "The coordinator of share groups, and its topic.", _SHARE, source="KIP-932"),
    accepted("group.streams.*", None, "Groups of Kafka Streams.", _STREAMS, source="KIP-1071"),
)

TRANSACTIONS = (
    honoured(
        "transaction.state.log.num.partitions",
        50,
        "Partitions of __transaction_state, when it is made (the controllers' value). It cannot be changed afterwards.",
        low=1,
        source="KIP-98",
    ),
    honoured(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state; as many as brokers live, where these are fewer when it is made. The others "
        "are added when more brokers have come (auto.rebalance.enable).",
        low=1,
        source="KIP-98",
    ),
    honoured(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of __transaction_state, when it is made; not more than its replicas.",
        low=1,
        source="KIP-98",
    ),
    honoured(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "Segment size of __transaction_state, when it is made.",
        low=1,
        source="KIP-98",
    ),
    _transaction(
        "transaction.state.log.load.buffer.size", 5_242_880, "Bytes that are read at once when transactions are loaded."
    ),
    _transaction("transaction.max.timeout.ms", 900_000, "The longest transaction that a producer may ask for."),
    _transaction(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often transactions are aborted that took too long.",
    ),
    _transaction(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often unused transactional ids are removed.",
    ),
    _transaction("transactional.id.expiration.ms", 604_800_000, "How long an unused transactional id is remembered."),
    honoured(
        "producer.id.expiration.ms",
        86_400_000,
        "How long a partition remembers an idempotent producer that does not write, counted by the broker's clock "
        "from its last write or the broker's start, regardless of the records' timestamps. One that resends after "
        "that may write a duplicate: keep it well above the producers' delivery.timeout.ms.",
        low=1,
        source="KIP-854",
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often the broker looks for idle producers.",
        low=1,
        source="KIP-854",
    ),
    _transaction(
        "add.partitions.to.txn.retry.backoff.ms", 20, "The pause before a partition is added again.", source="KIP-890"
    ),
    _transaction("add.partitions.to.txn.retry.backoff.max.ms", 100, "How long that is tried.", low=0, source="KIP-890"),
    accepted(
        "transaction.partition.verification.enable",
        True,
        "Whether a leader checks with the coordinator that a partition is in the transaction.",
        _TRANSACTIONS,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-890",
    ),
    accepted(
        "transaction.two.phase.commit.enable",
        False,
        "Whether another system may commit or abort a prepared transaction.",
        _TRANSACTIONS,
        source="KIP-939",
    ),
)


def _within(name: str) -> tuple[CrossCheck, CrossCheck]:
    """group.consumer.<name> must lie between its own min and max."""
    value, low, high = f"group.consumer.{name}", f"group.consumer.min.{name}", f"group.consumer.max.{name}"
    return at_most(low, value, "it is the smallest value allowed"), at_most(value, high, "it is the largest allowed")


CHECKS: tuple[CrossCheck, ...] = (
    at_most("group.min.session.timeout.ms", "group.max.session.timeout.ms", "no session would fit"),
    *_within("session.timeout.ms"),
    *_within("heartbeat.interval.ms"),
    *_within("assignment.interval.ms"),
    at_most(
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.session.timeout.ms",
        "members would be removed before they send a heartbeat",
        strictly=True,
    ),
)
