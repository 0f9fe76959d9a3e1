"""Kafka's server keys that an operator pastes in and that something else stands in for here.

Each is accepted, with Kafka's range and default, and a node that is given one logs the note; those that nothing can
stand in for are refused with the reason. What is honoured is declared in ``keys``.
"""

from __future__ import annotations

from typing import Any

from ..config import INT_MAX, LONG_MAX, ConfigKey, Kind

_LISTENERS = "nodes call each other, and the controllers, at the listener called internal"
_ONE_LOOP = "has no effect: a broker is one event loop, with a thread for each log directory; run more brokers instead"
_SOCKETS = "has no effect: gRPC and the operating system size the buffers of connections"
_REPLICATION = "has no effect yet: replication is not built"
_GROUPS = "has no effect yet: it comes with the coordinator, which is not built"
_TRANSACTIONS = "has no effect yet: transactions are not built"


def _number(name: str, default: int, note: str, doc: str, *, low: int = 1, kind: Kind = Kind.INT) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, low=low, note=note)


def _plaintext(value: Any) -> str | None:
    others = [item for item in value if item.rpartition(":")[2].strip().upper() != "PLAINTEXT"]
    return f"{', '.join(others)}: only PLAINTEXT is built so far (TLS and SASL come later)" if others else None


def _no_quota(value: Any) -> str | None:
    return None if value == LONG_MAX else "quotas are not built yet; leave it out"


def _quota(name: str) -> ConfigKey:
    doc = "Bytes per second of one client id."
    return ConfigKey(name=name, kind=Kind.LONG, default=LONG_MAX, doc=doc, low=1, check=_no_quota)


PASTED = (
    ConfigKey(
        name="inter.broker.listener.name",
        kind=Kind.STRING,
        default=None,
        doc="The listener at which brokers call each other.",
        note=_LISTENERS,
    ),
    ConfigKey(
        name="controller.listener.names",
        kind=Kind.LIST,
        default=[],
        doc="The listeners of controllers.",
        note=_LISTENERS,
    ),
    ConfigKey(
        name="listener.security.protocol.map",
        kind=Kind.LIST,
        default=[],
        doc="The security protocol of each listener: name:PLAINTEXT.",
        check=_plaintext,
        note="every listener is PLAINTEXT",
    ),
    _number("num.network.threads", 3, _ONE_LOOP, "Threads that read requests and write answers."),
    _number("num.io.threads", 8, _ONE_LOOP, "Threads that carry requests out."),
    _number("background.threads", 10, _ONE_LOOP, "Threads for work in the background."),
    _number("socket.send.buffer.bytes", 102_400, _SOCKETS, "SO_SNDBUF; -1: the system's.", low=-1),
    _number("socket.receive.buffer.bytes", 102_400, _SOCKETS, "SO_RCVBUF; -1: the system's.", low=-1),
    _number("socket.listen.backlog.size", 50, _SOCKETS, "Connections that may wait to be accepted."),
    _number("num.replica.fetchers", 1, _REPLICATION, "Streams to each leader broker."),
    _number("replica.fetch.max.bytes", 1_048_576, _REPLICATION, "Bytes of one partition in one fetch.", low=0),
    _number("replica.socket.timeout.ms", 30_000, _REPLICATION, "When a silent leader counts as gone."),
    _number(
        "replica.lag.time.max.ms",
        30_000,
        _REPLICATION,
        "A follower that has not caught up for so long leaves the ISR.",
        kind=Kind.LONG,
    ),
    _quota("quota.producer.default"),
    _quota("quota.consumer.default"),
    _number("offsets.topic.num.partitions", 50, _GROUPS, "Partitions of __consumer_offsets."),
    _number("offsets.topic.replication.factor", 3, _GROUPS, "Replicas of __consumer_offsets."),
    _number("offsets.topic.segment.bytes", 104_857_600, _GROUPS, "Segment size of __consumer_offsets."),
    _number("offsets.topic.compression.codec", 0, _GROUPS, "Compression of __consumer_offsets.", low=0),
    _number("offsets.retention.minutes", 10_080, _GROUPS, "How long the offsets of an empty group are kept."),
    _number("transaction.state.log.num.partitions", 50, _TRANSACTIONS, "Partitions of __transaction_state."),
    _number("transaction.state.log.replication.factor", 3, _TRANSACTIONS, "Replicas of __transaction_state."),
    _number("transaction.state.log.min.isr", 2, _TRANSACTIONS, "min.insync.replicas of __transaction_state."),
    _number("transaction.state.log.segment.bytes", 104_857_600, _TRANSACTIONS, "Segment size of __transaction_state."),
    _number("group.initial.rebalance.delay.ms", 3_000, _GROUPS, "A new classic group waits so long.", low=0),
    _number("group.min.session.timeout.ms", 6_000, _GROUPS, "The shortest session of a classic member."),
    _number("group.max.session.timeout.ms", 1_800_000, _GROUPS, "The longest session of a classic member."),
    _number("group.max.size", INT_MAX, _GROUPS, "Members of a classic group at most."),
    _number("group.coordinator.threads", 4, _GROUPS, "Threads of the coordinator."),
    ConfigKey(
        name="group.coordinator.rebalance.protocols",
        kind=Kind.LIST,
        default=["classic", "consumer"],
        doc="The group protocols that are served.",
        note=_GROUPS,
    ),
    _number("group.consumer.session.timeout.ms", 45_000, _GROUPS, "When a silent member is gone."),
    _number("group.consumer.min.session.timeout.ms", 45_000, _GROUPS, "Its smallest value for a group."),
    _number("group.consumer.max.session.timeout.ms", 60_000, _GROUPS, "Its largest value for a group."),
    _number("group.consumer.heartbeat.interval.ms", 5_000, _GROUPS, "How often a member reports."),
    _number("group.consumer.min.heartbeat.interval.ms", 5_000, _GROUPS, "Its smallest value for a group."),
    _number("group.consumer.max.heartbeat.interval.ms", 15_000, _GROUPS, "Its largest value for a group."),
    _number("group.consumer.max.size", INT_MAX, _GROUPS, "Members of a group at most."),
    ConfigKey(
        name="group.consumer.assignors",
        kind=Kind.LIST,
        default=["uniform", "range"],
        doc="The assignors that groups may use.",
        note=_GROUPS,
    ),
    ConfigKey(
        name="group.consumer.migration.policy",
        kind=Kind.STRING,
        default="bidirectional",
        doc="How classic groups become new ones.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        note=_GROUPS,
    ),
)
