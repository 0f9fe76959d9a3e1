"""Kafka's server keys of groups, offsets and transactions: accepted until the coordinator is built. (What a partition
remembers of idempotent producers is.)"""

from __future__ import annotations

from typing import Any

from ..config import INT_MAX, ConfigKey, CrossCheck, Kind, Scope, at_most
from .declaring import accepted, honoured

_GROUPS = "has no effect yet: it comes with the coordinator, which is not built"
_TRANSACTIONS = "has no effect yet: transactions are not built"
_SHARE = "has no effect: share groups (queues) are not built"
_STREAMS = "has no effect: groups of Kafka Streams are a Java library's own, and not built"


def _consumer(name: str, default: int, doc: str, *, low: int = 1, scope: Scope = Scope.READ_ONLY) -> ConfigKey:
    return accepted(f"group.consumer.{name}", default, doc, _GROUPS, low=low, scope=scope, source="KIP-848")


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
        "Replicas of __consumer_offsets, when it is made; as many as brokers live, where these are fewer.",
        low=1,
    ),
    honoured("offsets.topic.segment.bytes", 104_857_600, "Segment size of __consumer_offsets, when it is made.", low=1),
    accepted(
        "offsets.topic.compression.codec",
        0,
        "Compression of __consumer_offsets, as a number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
        _GROUPS,
        low=0,
        high=4,
    ),
    accepted(
        "offsets.retention.minutes",
        10_080,
        "How long the offsets of an empty group are kept.",
        _GROUPS,
        low=1,
        source="KIP-211",
    ),
    accepted(
        "offsets.retention.check.interval.ms",
        600_000,
        "How often offsets that may go are looked for.",
        _GROUPS,
        kind=Kind.LONG,
        low=1,
    ),
    accepted("offset.metadata.max.bytes", 4_096, "Size of the text beside a committed offset.", _GROUPS),
    accepted(
        "offsets.load.buffer.size", 5_242_880, "Bytes that are read at once when offsets are loaded.", _GROUPS, low=1
    ),
    accepted("offsets.commit.timeout.ms", 5_000, "How long a commit may wait for the replicas.", _GROUPS, low=1),
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
        _GROUPS,
        choices=("classic", "consumer", "share", "streams"),
        source="KIP-848",
    ),
    accepted("group.coordinator.threads", 4, "Threads of the coordinator.", _GROUPS, low=1, source="KIP-848"),
    accepted("group.coordinator.background.threads", 2, "Its threads for slow work.", _GROUPS, low=1),
    accepted(
        "group.coordinator.append.linger.ms",
        -1,
        "How long the coordinator lets records gather; -1: as it sees fit.",
        _GROUPS,
        low=-1,
        source="KIP-848",
    ),
    accepted(
        "group.coordinator.cached.buffer.max.bytes",
        1_048_588,
        "How large a buffer may be that the coordinator keeps for the next write.",
        _GROUPS,
        low=524_288,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted(
        "group.initial.rebalance.delay.ms", 3_000, "A new classic group waits so long.", _GROUPS, source="KIP-134"
    ),
    accepted("group.min.session.timeout.ms", 6_000, "The shortest session of a classic member.", _GROUPS, low=1),
    accepted("group.max.session.timeout.ms", 1_800_000, "The longest session of a classic member.", _GROUPS, low=1),
    accepted("group.max.size", INT_MAX, "Members of a classic group at most.", _GROUPS, low=1, source="KIP-389"),
    _consumer("session.timeout.ms", 45_000, "When a silent member of a group is gone."),
    _consumer("min.session.timeout.ms", 45_000, "The smallest value of it that a group may set."),
    _consumer("max.session.timeout.ms", 60_000, "The largest value of it that a group may set."),
    _consumer("heartbeat.interval.ms", 5_000, "How often a member reports."),
    _consumer("min.heartbeat.interval.ms", 5_000, "The smallest value of it that a group may set."),
    _consumer("max.heartbeat.interval.ms", 15_000, "The largest value of it that a group may set."),
    _consumer(
        "assignment.interval.ms",
        1_000,
        "The shortest time between two assignments of a group.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    _consumer("min.assignment.interval.ms", 0, "The smallest value of it that a group may set.", low=0),
    _consumer("max.assignment.interval.ms", 15_000, "The largest value of it that a group may set.", low=0),
    _consumer(
        "regex.refresh.interval.ms", 600_000, "How often topics that match a pattern are looked for.", low=10_000
    ),
    _consumer("max.size", INT_MAX, "Members of a group at most."),
    accepted(
        "group.consumer.assignors",
        ["uniform", "range"],
        "The assignors that groups may use; the first one is the default.",
        _GROUPS,
        source="KIP-848",
    ),
    accepted(
        "group.consumer.migration.policy",
        "bidirectional",
        "May a classic group become a new one, and the other way round?",
        _GROUPS,
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
        "Replicas of __transaction_state, when it is made; as many as brokers live, where these are fewer.",
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
        "How often transactional ids are forgotten that nobody used.",
    ),
    _transaction("transactional.id.expiration.ms", 604_800_000, "How long an unused transactional id is remembered."),
    honoured(
        "producer.id.expiration.ms",
        86_400_000,
        "How long a partition remembers an idempotent producer that does not write. One that resends after that may "
        "write a duplicate: keep it well above the producers' delivery.timeout.ms.",
        low=1,
        source="KIP-854",
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often such producers are looked for.",
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
        "Does a leader ask the coordinator whether a partition is in its transaction?",
        _TRANSACTIONS,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-890",
    ),
    accepted(
        "transaction.two.phase.commit.enable",
        False,
        "May somebody else decide about a prepared transaction?",
        _TRANSACTIONS,
        source="KIP-939",
    ),
)


def _within(name: str) -> tuple[CrossCheck, CrossCheck]:
    """group.consumer.<name> lies between its own min and max."""
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
        "a member would be gone before it reports",
        strictly=True,
    ),
)
