"""Configuration keys of every node, in any role: identity, listeners, logging, and keys that a node refuses.

``NETWORK`` and ``METRICS``: keys of Kafka that Headrace has replaced; a node that gets such a key logs a note.
``REFUSED``: keys for security, Java classes, ZooKeeper and quotas. Each refused key asks for a protection or a limit
that Headrace does not have, so the key is an error that says why.
"""

from __future__ import annotations

from typing import Any

from .definition import HEADRACE, INT_MAX, LONG_MAX, Kind, Scope, accepted, honoured, refused

ROLES = ("controller", "broker", "coordinator")

_LISTENERS = "nodes call each other, and the controllers, at the listener called internal"
_ONE_LOOP = "has no effect: a broker is one event loop, with a thread for each log directory; run more brokers instead"
_SOCKETS = "has no effect: gRPC and the operating system size the buffers of connections"
_CONNECTIONS = "has no effect yet: connections are not counted; a stream is held back by the bytes it has under way"
_PURGATORY = "has no effect: a request that waits is one timer, and leaves nothing behind to purge"
_METRICS = "has no effect: a node counts in its own process; exporting metrics is not built yet"
_TLS = "TLS is not built yet: keep the listeners on loopback or behind a tunnel, and leave this key out"
_SASL = "authentication is not built yet: any client that can connect is served; leave this key out"
_ACLS = "authorization is not built yet: any client that can connect may do everything; leave this key out"
_JAVA = "a class of Java's cannot be loaded here; leave this key out"
_ZOOKEEPER = "there is no ZooKeeper: the controllers keep the metadata (controller.quorum.voters)"
_ADDRESSES = "it was an early name in Kafka; write listeners=client://host:port,internal://host:port"
_PROVIDERS = "values are taken as they stand, ${...} is not replaced; write the value, or -o key=value at the start"
_NO_TIERS = "tiered storage is not built; leave it out"

NODE = (
    honoured(
        "process.roles",
        [],
        "The role of this node: controller, broker or coordinator. By default the role of the program.",
        choices=ROLES,
    ),
    honoured(
        "node.id",
        -1,
        "The node's id among those of its role. A broker may leave it out (-1): it gets one with its directories.",
        low=-1,
    ),
    honoured("broker.id", -1, "Kafka's older name of node.id for a broker.", low=-1),
    honoured(
        "listeners",
        ["client://127.0.0.1:9095", "internal://127.0.0.1:19095"],
        "The addresses that the node binds: client://host:port for clients, internal://host:port for other nodes, "
        "external://host:port for clients that reach the nodes by other addresses (advertised.listeners says "
        "which). Port 0 takes a free one; an empty host means all addresses.",
    ),
    honoured(
        "advertised.listeners", [], "How others reach the listeners, where that differs from where they are bound."
    ),
    honoured(
        "log.dirs",
        [],
        "The directories with this node's data, formatted before the first start. A controller uses the first one.",
    ),
    honoured("log.dir", None, "A single directory; log.dirs goes before it."),
    honoured(
        "slots.dir",
        None,
        "A directory that nodes of one role share, in place of node.id and log.dirs: a node takes slot-N in it, "
        "which no other process holds, with N as its id, and formats it if it is new. {slot} in a value stands for N.",
        source=HEADRACE,
    ),
    honoured(
        "slots.host",
        None,
        "With slots.dir: a host name with {slot} in it, such as broker-{slot}. The node takes the slot whose name "
        "leads to itself, instead of the lowest one that is free.",
        source=HEADRACE,
    ),
    honoured("slots.max", 9, "With slots.dir: the highest slot that a node takes.", source=HEADRACE, low=1, high=1_000),
    honoured(
        "metadata.log.dir",
        None,
        "The directory of a controller's metadata log, instead of the first one of log.dirs. A broker keeps none.",
        source="KIP-631",
    ),
    honoured("controller.quorum.voters", [], "The controllers: id@host:port of their internal listeners."),
    honoured(
        "controller.quorum.bootstrap.servers",
        [],
        "host:port of some controllers' internal listeners; the voters' addresses by default.",
    ),
    honoured(
        "runtime.state.file",
        None,
        "A JSON file that the node writes when it serves, with its pid and real addresses, and removes when it "
        "stops cleanly; node.json in the first log directory by default.",
        source=HEADRACE,
    ),
    honoured(
        "log.level",
        "info",
        "The lowest level of log lines on stderr.",
        source=HEADRACE,
        choices=("debug", "info", "warning", "error"),
    ),
)


def _encrypted_listener(value: Any) -> str | None:
    """Check ``listener.security.protocol.map``. Kafka's default map has each protocol as a listener name (SSL:SSL);
    Headrace has no such listeners."""
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
        "there is no such request; docs/reference/limits.md says how many partitions the others may name",
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
        "How long a connection may be idle before it is closed.",
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

REFUSED = (
    refused("ssl.*", None, "TLS: certificates, protocols, ciphers.", _TLS, kind=Kind.PASSWORD),
    refused("sasl.*", None, "SASL: mechanisms, logins, tokens.", _SASL, kind=Kind.PASSWORD),
    refused(
        "listener.name.*",
        None,
        "Settings of one listener: its certificates, mechanisms, limits.",
        "a listener has no settings of its own yet (TLS, SASL and limits come later); leave this key out",
        kind=Kind.PASSWORD,
    ),
    refused("security.inter.broker.protocol", "PLAINTEXT", "The security protocol between brokers.", _TLS),
    refused("security.providers", None, "Java classes with security algorithms.", _JAVA),
    refused("principal.builder.class", None, "The Java class that names the user of a connection.", _JAVA),
    refused("connections.max.reauth.ms", 0, "After how long a client must authenticate again.", _SASL, kind=Kind.LONG),
    refused(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a failed authentication waits for its answer.",
        _SASL,
    ),
    refused(
        "delegation.token.*",
        None,
        "Delegation tokens: their secret, their lifetime.",
        _SASL,
        kind=Kind.PASSWORD,
        source="KIP-48",
    ),
    refused("authorizer.class.name", "", "The Java class that checks permissions.", _ACLS, source="KIP-11"),
    refused("super.users", None, "The users with all permissions.", _ACLS, source="KIP-11"),
    refused(
        "allow.everyone.if.no.acl.found",
        None,
        "Whether all users may use resources without an ACL.",
        _ACLS,
        source="KIP-11",
    ),
    refused(
        "create.topic.policy.class.name",
        None,
        "The Java class that may refuse new topics.",
        _JAVA,
        source="KIP-108",
    ),
    refused(
        "alter.config.policy.class.name",
        None,
        "The Java class that may refuse changes of configurations.",
        _JAVA,
        source="KIP-133",
    ),
    refused("client.quota.callback.class", None, "The Java class that decides quotas.", _JAVA, source="KIP-257"),
    refused("config.providers", [], "The classes that resolve ${...} in values.", _PROVIDERS, source="KIP-297"),
    refused("config.providers.*", None, "Settings of such a provider.", _PROVIDERS, kind=Kind.PASSWORD),
    refused("password.encoder.*", None, "How passwords were kept in ZooKeeper.", _ZOOKEEPER, kind=Kind.PASSWORD),
    refused("zookeeper.*", None, "The address of ZooKeeper, and its connection settings (until Kafka 4).", _ZOOKEEPER),
    *(
        refused(name, None, "An address, until Kafka 3.", _ADDRESSES)
        for name in ("host.name", "port", "advertised.host.name", "advertised.port")
    ),
    refused(
        "remote.log.storage.system.enable",
        False,
        "Tiered storage, for the whole cluster.",
        _NO_TIERS,
        source="KIP-405",
    ),
    refused(
        "cordoned.log.dirs",
        [],
        "Log directories that get no new partitions.",
        "keeping a directory free of new partitions is not built; leave it out",
        scope=Scope.PER_BROKER,
        source="KIP-1066",
    ),
    *(
        refused(name, LONG_MAX, doc, "quotas are not built yet; leave it out", kind=Kind.LONG, low=1)
        for name, doc in (
            ("quota.producer.default", "Bytes per second that one client id may produce."),
            ("quota.consumer.default", "Bytes per second that one client id may fetch."),
        )
    ),
)
