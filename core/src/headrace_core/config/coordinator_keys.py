"""Kafka's server keys for groups, offsets and transactions, used by coordinators. The keys of the internal topics
belong to the controllers."""

from __future__ import annotations

from .definition import HEADRACE, INT_MAX, ConfigKey, CrossCheck, Kind, Scope, accepted, at_most, honoured

_NOT_REPEATED = (
    "has no effect: the coordinator delays the broker's request until all markers of the former transaction are written"
)
_THREADS = "has no effect: a coordinator is one process with one event loop; start more coordinators"
_PER_GROUP = "has no effect yet: all groups use the coordinator's value, and a group cannot set its own"
_SHARE = "has no effect: share groups (queues) are not built"
_STREAMS = "has no effect: groups of Kafka Streams (a Java library) are not built"


#: Assignors that Headrace's coordinators have; members may always request "sticky".
ASSIGNORS = ("uniform", "range", "sticky")


def _consumer(name: str, default: int, doc: str, *, low: int = 1) -> ConfigKey:
    return honoured(f"group.consumer.{name}", default, doc, low=low, source="KIP-848")


def _of_groups(name: str, default: int, doc: str, *, low: int = 1) -> ConfigKey:
    return accepted(f"group.consumer.{name}", default, doc, _PER_GROUP, low=low, source="KIP-848")


def _transaction(name: str, default: int, doc: str, *, low: int = 1) -> ConfigKey:
    return honoured(name, default, doc, low=low, source="KIP-98")


OFFSETS = (
    honoured(
        "offsets.topic.num.partitions",
        50,
        "Number of partitions of __consumer_offsets. The controllers read the number when they create "
        "__consumer_offsets; later changes of the number have no effect.",
        low=1,
    ),
    honoured(
        "offsets.topic.replication.factor",
        3,
        "Number of replicas of __consumer_offsets. If too few brokers are alive when the topic is created, the "
        "topic gets one replica on each live broker. When more brokers join, the controllers add the missing "
        "replicas (auto.rebalance.enable).",
        low=1,
    ),
    honoured(
        "offsets.topic.segment.bytes",
        104_857_600,
        "segment.bytes of __consumer_offsets when the topic is created.",
        low=1,
    ),
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
        "How long the coordinator keeps the committed offsets of a group without members, and of topics to which no "
        "member of its group subscribes.",
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
    honoured(
        "offset.metadata.max.bytes",
        4_096,
        "The largest number of characters (UTF-16, as in Java) of the metadata text that a consumer may commit with an "
        "offset.",
    ),
    honoured(
        "offsets.load.buffer.size",
        5_242_880,
        "How many bytes a coordinator reads at once when it loads a shard's offsets.",
        low=1,
    ),
    honoured(
        "offsets.commit.timeout.ms",
        5_000,
        "How long a coordinator retries a write to __consumer_offsets before the waiting requests fail with a "
        "retriable error.",
        low=1,
    ),
    accepted(
        "offsets.commit.required.acks",
        -1,
        "How many replicas must store an offset commit before it is acknowledged (until Kafka 4).",
        "the coordinator acknowledges a commit when all in-sync replicas have stored the offsets",
    ),
)

GROUPS = (
    accepted(
        "group.coordinator.rebalance.protocols",
        ["classic", "consumer", "streams"],
        "The group protocols that coordinators serve.",
        "has no effect: coordinators serve the classic protocol and the protocol of KIP-848",
        choices=("classic", "consumer", "share", "streams"),
        source="KIP-848",
    ),
    accepted(
        "group.coordinator.threads",
        4,
        "Number of threads of the coordinator that process requests.",
        _THREADS,
        low=1,
        source="KIP-848",
    ),
    accepted(
        "group.coordinator.background.threads",
        2,
        "Number of threads of the coordinator for slow work.",
        _THREADS,
        low=1,
    ),
    accepted(
        "group.coordinator.append.linger.ms",
        -1,
        "How long the coordinator collects records before it writes them; -1 means that the coordinator adapts this "
        "time.",
        "during a write the coordinator collects the records of all new requests, and writes them at once afterwards",
        low=-1,
        source="KIP-848",
    ),
    accepted(
        "group.coordinator.cached.buffer.max.bytes",
        1_048_588,
        "The largest write buffer that the coordinator keeps for later writes.",
        "has no effect: the coordinator keeps no write buffer",
        low=524_288,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "group.initial.rebalance.delay.ms",
        3_000,
        "How long a new group of the classic protocol waits for members before its first rebalance.",
        low=0,
        source="KIP-134",
    ),
    honoured(
        "group.min.session.timeout.ms",
        6_000,
        "The shortest session timeout of a member in the classic protocol.",
        low=1,
    ),
    honoured(
        "group.max.session.timeout.ms",
        1_800_000,
        "The longest session timeout of a member in the classic protocol.",
        low=1,
    ),
    honoured(
        "group.max.size",
        INT_MAX,
        "The largest number of members in a classic group.",
        low=1,
        source="KIP-389",
    ),
    _consumer(
        "session.timeout.ms", 45_000, "How long the coordinator waits for a heartbeat before it removes a member."
    ),
    _of_groups(
        "min.session.timeout.ms", 45_000, "The smallest group.consumer.session.timeout.ms that a group may set."
    ),
    _of_groups("max.session.timeout.ms", 60_000, "The largest group.consumer.session.timeout.ms that a group may set."),
    _consumer("heartbeat.interval.ms", 5_000, "How often a group member sends a heartbeat."),
    _of_groups(
        "min.heartbeat.interval.ms", 5_000, "The smallest group.consumer.heartbeat.interval.ms that a group may set."
    ),
    _of_groups(
        "max.heartbeat.interval.ms", 15_000, "The largest group.consumer.heartbeat.interval.ms that a group may set."
    ),
    accepted(
        "group.consumer.assignment.interval.ms",
        1_000,
        "The shortest time between two assignments of a group.",
        "only the coordinator's properties file sets this key; the value does not change while the coordinator runs",
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-1263",
    ),
    _of_groups(
        "min.assignment.interval.ms",
        0,
        "The smallest group.consumer.assignment.interval.ms that a group may set.",
        low=0,
    ),
    _of_groups(
        "max.assignment.interval.ms",
        15_000,
        "The largest group.consumer.assignment.interval.ms that a group may set.",
        low=0,
    ),
    accepted(
        "group.consumer.regex.refresh.interval.ms",
        600_000,
        "How often the coordinator looks for topics that match a pattern.",
        "coordinators notice new topics that match a pattern at once",
        low=10_000,
        source="KIP-848",
    ),
    _consumer("max.size", INT_MAX, "The largest number of members in a group."),
    honoured(
        "group.consumer.assignors",
        ["uniform", "range"],
        "The assignors that groups may use; the first assignor is the default. Headrace has uniform, range and "
        "sticky; a member may always request sticky.",
        choices=ASSIGNORS,
        source="KIP-848",
    ),
    honoured(
        "group.consumer.connection.grace.ms",
        1_500,
        "How long a member whose stream broke may take to reconnect before the coordinator removes it. Other members "
        "thus get the partitions of a dead member without waiting for its session timeout. A static member that "
        "disconnects stays in the group until its session timeout.",
        low=0,
        source=HEADRACE,
    ),
    honoured(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which changes of its protocol a group with members may make. With upgrade, the group may change from the "
        "classic protocol to the protocol of KIP-848; with downgrade, from the protocol of KIP-848 to the classic "
        "protocol. With bidirectional, the group may make both changes; with disabled, neither. A group without "
        "members may always change its protocol.",
        check=lambda policy: (
            None
            if policy.lower() in ("bidirectional", "upgrade", "downgrade", "disabled")
            else "must be one of bidirectional, upgrade, downgrade, disabled"
        ),
        source="KIP-848",
    ),
    accepted("group.share.*", None, "Settings of share groups: sessions, locks and limits.", _SHARE, source="KIP-932"),
    accepted("share.*", None, "Settings of the share coordinator and of its internal topic.", _SHARE, source="KIP-932"),
    accepted("group.streams.*", None, "Settings of groups of Kafka Streams.", _STREAMS, source="KIP-1071"),
)

TRANSACTIONS = (
    honoured(
        "transaction.state.log.num.partitions",
        50,
        "Number of partitions of __transaction_state. The controllers read the number when they create "
        "__transaction_state; later changes of the number have no effect.",
        low=1,
        source="KIP-98",
    ),
    honoured(
        "transaction.state.log.replication.factor",
        3,
        "Number of replicas of __transaction_state. If too few brokers are alive when the topic is created, the "
        "topic gets one replica on each live broker. When more brokers join, the controllers add the missing "
        "replicas (auto.rebalance.enable).",
        low=1,
        source="KIP-98",
    ),
    honoured(
        "transaction.state.log.min.isr",
        2,
        "min.insync.replicas of __transaction_state when the topic is created; at most its number of replicas.",
        low=1,
        source="KIP-98",
    ),
    honoured(
        "transaction.state.log.segment.bytes",
        104_857_600,
        "segment.bytes of __transaction_state when the topic is created.",
        low=1,
        source="KIP-98",
    ),
    _transaction(
        "transaction.state.log.load.buffer.size",
        5_242_880,
        "How many bytes a coordinator reads at once when it loads transactions.",
    ),
    _transaction("transaction.max.timeout.ms", 900_000, "The longest transaction timeout that a producer may request."),
    accepted(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "How often the coordinator aborts transactions that exceed their timeout.",
        "has no effect: the coordinator aborts a transaction when its timeout is over",
        low=1,
        source="KIP-98",
    ),
    _transaction(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "How often the coordinator removes transactional ids that have been unused for transactional.id.expiration.ms.",
    ),
    _transaction(
        "transactional.id.expiration.ms",
        604_800_000,
        "How long the coordinator keeps a transactional id that no producer uses.",
    ),
    honoured(
        "transaction.sink.timeout.ms",
        3_600_000,
        "How long a prepared transaction of an exactly-once sink (Spark) may wait for the decision of its query "
        "before the coordinator aborts the transaction. After use, the coordinator keeps the transactional ids of "
        "exactly-once sinks for the same time.",
        low=1,
        source=HEADRACE,
    ),
    honoured(
        "producer.id.expiration.ms",
        86_400_000,
        "How long a partition keeps the state of an idempotent producer that does not write. The broker measures "
        "the time by its own clock, from the producer's last write or the broker's start. A producer that "
        "resends a batch after its state has expired may write a duplicate, so keep the value well above the "
        "producers' delivery.timeout.ms.",
        low=1,
        source="KIP-854",
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "producer.id.expiration.check.interval.ms",
        600_000,
        "How often the broker removes the state of idle producers (producer.id.expiration.ms).",
        low=1,
        source="KIP-854",
    ),
    accepted(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "The pause before a broker retries to add a partition to a transaction.",
        _NOT_REPEATED,
        low=1,
        source="KIP-890",
    ),
    accepted(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "How long a broker retries to add a partition to a transaction.",
        _NOT_REPEATED,
        low=0,
        source="KIP-890",
    ),
    accepted(
        "transaction.partition.verification.enable",
        True,
        "Whether a leader asks the coordinator if a partition belongs to the transaction.",
        "has no effect: a leader always asks the coordinator",
        scope=Scope.CLUSTER_WIDE,
        source="KIP-890",
    ),
    honoured(
        "transaction.two.phase.commit.enable",
        False,
        "Whether a producer may have transactions without a timeout (InitProducer with enable_two_phase_commit). "
        "A producer can prepare a transaction without transaction.two.phase.commit.enable.",
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
