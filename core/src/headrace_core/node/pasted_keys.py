"""Kafka's server keys that an operator pastes in and that something else stands in for here.

Each is accepted, with Kafka's range and default, and a node that is given one logs the note; those that nothing can
stand in for are refused with the reason (``refused_keys``). What is honoured is declared in ``keys``; what belongs to
groups and transactions, in ``group_keys``.
"""

from __future__ import annotations

from typing import Any

from ..config import INT_MAX, LONG_MAX, Kind, Scope
from .declaring import accepted

_LISTENERS = "nodes call each other, and the controllers, at the listener called internal"
_ONE_LOOP = "has no effect: a broker is one event loop, with a thread for each log directory; run more brokers instead"
_SOCKETS = "has no effect: gRPC and the operating system size the buffers of connections"
_CONNECTIONS = "has no effect yet: connections are not counted; a stream is held back by the bytes it has under way"
_REPLICATION = (
    "has no effect: a leader pushes what it has at once, on one stream to each follower, and on a second one to those "
    "that are far behind"
)
_CHECKPOINTS = (
    "has no effect: recovery points, high watermarks and log starts are written every 5 s, and at a clean stop"
)
_PURGATORY = "has no effect: a request that waits is one timer, and leaves nothing behind to purge"
_METRICS = "has no effect: a node counts in its own process; exporting metrics is not built yet"
_TIERED = "has no effect: tiered storage is not built"
_QUOTAS = "has no effect: quotas are not built"
_PACED = "has no effect: a throttle fills by the clock, and measures no windows"
_ACTIONS = "has no effect: nodes of one release talk to each other; there is no format or protocol to choose"
_ONE_LINK = "has no effect: a broker has one connection to the controller, and finds the active one by itself"


def _encrypted_listener(value: Any) -> str | None:
    """Kafka's default map names each protocol as a listener (SSL:SSL): no listener of ours is called so."""
    wrong = []
    for item in value:
        name, _, protocol = (part.strip().upper() for part in item.rpartition(":"))
        if protocol not in ("PLAINTEXT", name):
            wrong.append(item)
    return f"{', '.join(wrong)}: only PLAINTEXT is built so far (TLS and SASL come later)" if wrong else None


NETWORK = (
    accepted("inter.broker.listener.name", None, "The listener at which brokers call each other.", _LISTENERS),
    accepted("controller.listener.names", [], "The listeners at which controllers are called.", _LISTENERS),
    accepted(
        "control.plane.listener.name", None, "A listener for the controller's calls alone (until Kafka 3).", _LISTENERS
    ),
    accepted("early.start.listeners", [], "Listeners that serve before the authorizer is ready.", _LISTENERS),
    accepted(
        "listener.security.protocol.map",
        [],
        "The security protocol of each listener, as name:PLAINTEXT.",
        "every listener is PLAINTEXT",
        check=_encrypted_listener,
    ),
    accepted(
        "num.network.threads",
        3,
        "Threads that read requests and write answers.",
        _ONE_LOOP,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted("num.io.threads", 8, "Threads that carry requests out.", _ONE_LOOP, low=1, scope=Scope.CLUSTER_WIDE),
    accepted(
        "background.threads", 10, "Threads for work in the background.", _ONE_LOOP, low=1, scope=Scope.CLUSTER_WIDE
    ),
    accepted("socket.send.buffer.bytes", 102_400, "SO_SNDBUF; -1: the system's.", _SOCKETS, low=-1),
    accepted("socket.receive.buffer.bytes", 102_400, "SO_RCVBUF; -1: the system's.", _SOCKETS, low=-1),
    accepted("socket.listen.backlog.size", 50, "Connections that may wait to be accepted.", _SOCKETS, low=1),
    accepted("socket.connection.setup.timeout.ms", 10_000, "How long connecting may take.", _SOCKETS, kind=Kind.LONG),
    accepted(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        "How long connecting may take after several failures.",
        _SOCKETS,
        kind=Kind.LONG,
    ),
    accepted(
        "queued.max.requests",
        500,
        "How many requests may wait before clients are held back.",
        "streams are held back by the bytes they have under way",
        low=1,
    ),
    accepted(
        "queued.max.request.bytes",
        -1,
        "How many bytes of requests may wait before clients are held back; -1: any number.",
        "streams are held back at 16 MiB each and 64 MiB in all",
        kind=Kind.LONG,
    ),
    accepted(
        "max.request.partition.size.limit",
        2_000,
        "How many partitions one answer of DescribeTopicPartitions holds (KIP-966).",
        "there is no such request; docs/limits.md says how many partitions the others may name",
        low=1,
    ),
    accepted(
        "max.connections.per.ip",
        INT_MAX,
        "How many connections a broker takes from one address.",
        _CONNECTIONS,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-308",
    ),
    accepted(
        "max.connections.per.ip.overrides",
        "",
        "Other limits for some addresses, as host:count.",
        _CONNECTIONS,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted(
        "max.connection.creation.rate",
        INT_MAX,
        "How many new connections a broker takes in a second.",
        _CONNECTIONS,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-612",
    ),
    accepted(
        "connections.max.idle.ms",
        600_000,
        "When an idle connection is closed.",
        "has no effect: gRPC keeps an idle connection, which costs no more than its socket",
        kind=Kind.LONG,
    ),
    accepted(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        "How many incremental fetch sessions are kept.",
        "a session is a stream, and lives as long",
        low=0,
        source="KIP-227",
    ),
    accepted("fetch.purgatory.purge.interval.requests", 1_000, "How often waiting fetches are purged.", _PURGATORY),
    accepted(
        "producer.purgatory.purge.interval.requests",
        1_000,
        "How often waiting produce requests are purged.",
        _PURGATORY,
    ),
    accepted(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "How often waiting deletions of records are purged.",
        _PURGATORY,
        source="KIP-107",
    ),
)

REPLICATION = (
    accepted(
        "num.replica.fetchers",
        1,
        "Streams to each leader broker.",
        _REPLICATION,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted("replica.fetch.max.bytes", 1_048_576, "Bytes of one partition in one fetch.", _REPLICATION, low=0),
    accepted(
        "replica.fetch.min.bytes", 1, "A follower's fetch is answered when so many bytes are there.", _REPLICATION
    ),
    accepted("replica.fetch.response.max.bytes", 10_485_760, "Bytes of one answer to a follower.", _REPLICATION, low=0),
    accepted("replica.fetch.wait.max.ms", 500, "How long a follower's fetch waits for records.", _REPLICATION),
    accepted("replica.fetch.backoff.ms", 1_000, "How long a follower rests after an error.", _REPLICATION, low=0),
    accepted("replica.socket.timeout.ms", 30_000, "When a silent leader counts as gone.", _REPLICATION, low=1),
    accepted("replica.socket.receive.buffer.bytes", 65_536, "SO_RCVBUF of a follower.", _REPLICATION),
    accepted(
        "eligible.leader.replicas.enable",
        False,
        "Elect from the eligible leader replicas when the ISR is empty.",
        "has no effect: leaders are always elected so (Kafka 4.1 does it in new clusters)",
        source="KIP-966",
    ),
    accepted(
        "follower.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second of throttled replicas' catching up, on the follower's side.",
        "has no effect: catching up is throttled where it is sent from (leader.replication.throttled.rate)",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-73",
    ),
    *(
        accepted(f"{kind}.window.{what}", default, doc, note, low=1)
        for kind, note in (
            ("quota", _QUOTAS),
            ("controller.quota", _QUOTAS),
            ("replication.quota", _PACED),
            ("alter.log.dirs.replication.quota", _PACED),
        )
        for what, default, doc in (
            ("num", 11, "How many windows a rate is measured over."),
            ("size.seconds", 1, "The length of one window of a rate."),
        )
    ),
)

QUORUM = (
    accepted("controller.socket.timeout.ms", 30_000, "How long a call to the controller may take.", _ONE_LINK),
    accepted(
        "metadata.max.idle.interval.ms",
        500,
        "How often an idle controller writes a record to show that it lives.",
        "has no effect: heartbeats show that; an idle controller writes nothing",
        low=0,
        source="KIP-835",
    ),
    accepted(
        "initial.broker.registration.timeout.ms",
        60_000,
        "How long a broker tries to register before it stops.",
        "has no effect: a broker waits for its controllers as long as it takes",
        source="KIP-631",
    ),
    accepted(
        "server.max.startup.time.ms",
        LONG_MAX,
        "How long a start may take.",
        "has no effect: a start takes as long as recovery does",
        kind=Kind.LONG,
        low=0,
    ),
    accepted("controlled.shutdown.max.retries", 3, "Tries of a controlled shutdown (until Kafka 4).", _ONE_LINK),
    accepted(
        "controlled.shutdown.retry.backoff.ms",
        5_000,
        "The pause between tries of a controlled shutdown (until Kafka 4).",
        _ONE_LINK,
        kind=Kind.LONG,
    ),
    accepted(
        "broker.id.generation.enable",
        True,
        "May the controller give out ids (until Kafka 4)?",
        "a broker without an id always gets one, with its directories",
    ),
    accepted(
        "reserved.broker.max.id",
        1_000,
        "Ids above it are given out (until Kafka 4).",
        "has no effect: the controller gives out the smallest id that is free",
    ),
)

LOGS = (
    accepted(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often recovery points are written.",
        _CHECKPOINTS,
        low=0,
    ),
    accepted(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        "How often the starts of logs are written.",
        _CHECKPOINTS,
        low=0,
    ),
    accepted(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How often high watermarks are written.",
        _CHECKPOINTS,
        kind=Kind.LONG,
    ),
    accepted(
        "log.flush.scheduler.interval.ms",
        LONG_MAX,
        "How often logs are looked for that have to be forced to disk.",
        "has no effect: each log knows when it is due (log.flush.interval.ms)",
        kind=Kind.LONG,
    ),
    accepted(
        "log.dir.failure.timeout.ms",
        30_000,
        "A broker stops that cannot tell the controller about a failed directory for so long.",
        "has no effect: such a broker is fenced by its missing heartbeats",
        kind=Kind.LONG,
        low=1,
        source="KIP-858",
    ),
    accepted(
        "num.replica.alter.log.dirs.threads",
        None,
        "Threads that move replicas between directories.",
        "has no effect: each directory's own thread does it",
        kind=Kind.STRING,
    ),
    accepted(
        "log.message.format.version",
        None,
        "The format of records on disk (until Kafka 4).",
        "has no effect: batches are always of version 2",
    ),
    accepted(
        "log.message.downconversion.enable",
        True,
        "Convert batches for old clients (until Kafka 4).",
        "has no effect: there are no clients that need it",
    ),
    accepted(
        "log.message.timestamp.difference.max.ms",
        LONG_MAX,
        "How far a CreateTime may lie from the broker's clock (until Kafka 4).",
        "has no effect: log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms bound it",
        kind=Kind.LONG,
        low=0,
    ),
    accepted("inter.broker.protocol.version", None, "The protocol between brokers (until Kafka 4).", _ACTIONS),
    accepted("unstable.api.versions.enable", False, "Serve calls that are not stable yet.", _ACTIONS),
    accepted("unstable.feature.versions.enable", False, "Allow features that are not stable yet.", _ACTIONS),
)

METRICS = (
    accepted("metric.reporters", [], "Java classes that report metrics.", _METRICS, scope=Scope.CLUSTER_WIDE),
    accepted("auto.include.jmx.reporter", True, "Report by JMX (until Kafka 4).", _METRICS),
    accepted("metrics.num.samples", 2, "How many windows a rate looks at.", _METRICS, low=1),
    accepted(
        "metrics.sample.window.ms", 30_000, "The length of one window of a rate.", _METRICS, kind=Kind.LONG, low=1
    ),
    accepted("metrics.recording.level", "INFO", "How much is measured.", _METRICS),
    accepted("kafka.metrics.reporters", [], "Java classes that report the older metrics.", _METRICS),
    accepted("kafka.metrics.polling.interval.secs", 10, "How often they are asked.", _METRICS, low=1),
    accepted(
        "telemetry.max.bytes", 1_048_576, "Size of the metrics that a client pushes.", _METRICS, low=1, source="KIP-714"
    ),
    accepted(
        "confluent.*",
        None,
        "Keys of Confluent's own products.",
        "has no effect: it belongs to Confluent Platform",
    ),
)

TIERED = (
    accepted(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "Does an empty follower begin after what is in tiered storage?",
        _TIERED,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-1023",
    ),
    *(
        accepted(f"{family}.*", None, doc, _TIERED, source="KIP-405")
        for family, doc in (
            ("remote.log", "Tiered storage: its classes, threads, caches, limits."),
            ("remote.fetch", "Tiered storage: how long reads wait for it."),
            ("remote.list.offsets", "Tiered storage: how long looking for offsets waits for it."),
            ("rsm.config", "Settings of the class that stores segments."),
            ("rlmm.config", "Settings of the class that knows where segments are."),
        )
    ),
)
