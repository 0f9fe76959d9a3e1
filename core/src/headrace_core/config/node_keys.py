"""Configuration keys of every node, in any role: identity, listeners, logging, and keys that a node refuses.

``NETWORK`` and ``METRICS``: keys of Kafka that Headrace has replaced; a node that gets such a key logs a note.
``REFUSED``: keys for Java classes and ZooKeeper. Each refused key asks for something that Headrace does not have, so
the key is an error that says why. The keys of security are in security_keys.py.
"""

from __future__ import annotations

from .definition import HEADRACE, INT_MAX, Kind, Scope, accepted, honoured, refused

ROLES = ("controller", "broker", "coordinator", "registry", "console")

_LISTENERS = "nodes call each other and the controllers at the listener named internal"
_ONE_LOOP = "has no effect: a broker has one event loop and a thread for each log directory; run more brokers instead"
_SOCKETS = "has no effect: gRPC and the operating system set up connections and size their buffers"
_CONNECTIONS = "has no effect yet: a broker limits only the number of connections of a listener (max.connections)"
_PURGATORY = "has no effect: a broker keeps one timer for each waiting request, so it has nothing to purge"
_METRICS = "has no effect: a node serves its metrics for Prometheus (metrics.listener)"
_JAVA = "Headrace cannot load Java classes; leave this key out"
_ZOOKEEPER = "there is no ZooKeeper: the controllers keep the metadata (controller.quorum.voters)"
_ADDRESSES = "Kafka removed this key; write listeners=client://host:port,internal://host:port"
_PROVIDERS = (
    "Headrace replaces ${...} only in passwords and secrets; write any other value itself, or pass -o key=value at the "
    "start"
)
_NO_TIERS = "tiered storage is not built; leave this key out"

NODE = (
    honoured(
        "process.roles",
        [],
        "The role of this node: controller, broker, coordinator, registry or console. By default the started "
        "program determines the role.",
        choices=ROLES,
    ),
    honoured(
        "node.id",
        -1,
        "The id of the node; nodes of one role need different ids. With -1, a broker gets an id from the controllers "
        "when it registers.",
        low=-1,
    ),
    honoured("broker.id", -1, "Kafka's older name for node.id, for brokers.", low=-1),
    honoured(
        "listeners",
        ["client://127.0.0.1:9095", "internal://127.0.0.1:19095"],
        "The addresses at which the node listens, as NAME://host:port. The listener named client is for clients, the "
        "listener named internal is for other nodes. The listener named external is for clients that need another "
        "address (advertised.listeners). Further listeners whose names begin with client or external, such as "
        "clientsasl://host:port, are for clients too. Port 0 selects a free port; an empty host means all addresses.",
    ),
    honoured(
        "advertised.listeners",
        [],
        "The addresses at which clients and other nodes reach the listeners, if they differ from the bound addresses.",
    ),
    honoured(
        "log.dirs",
        [],
        "The directories of this node's data, formatted before the first start. A controller uses only the first"
        " directory.",
    ),
    honoured("log.dir", None, "The directory of this node's data, if there is only one; log.dirs has priority."),
    honoured(
        "slots.dir",
        None,
        "A directory that nodes of one role share, instead of node.id and log.dirs. When a node starts, it locks a "
        "free subdirectory slot-N, formats this subdirectory if it is new, and uses N as its node id. In the values of "
        "other keys, {slot} stands for the node's slot number N.",
        source=HEADRACE,
    ),
    honoured(
        "slots.host",
        None,
        "With slots.dir: a host name that contains {slot}, such as broker-{slot}. The node uses the slot N for which "
        "this host name resolves to the node's own address, instead of the lowest free slot.",
        source=HEADRACE,
    ),
    honoured(
        "slots.max",
        9,
        "With slots.dir: the largest N of a subdirectory slot-N.",
        source=HEADRACE,
        low=1,
        high=1_000,
    ),
    honoured(
        "metadata.log.dir",
        None,
        "The directory of a controller's metadata log; the default is the first directory of log.dirs. Brokers "
        "do not use metadata.log.dir.",
        source="KIP-631",
    ),
    honoured(
        "controller.quorum.voters",
        [],
        "The controllers, as id@host:port with the address of each controller's internal listener.",
    ),
    honoured(
        "controller.quorum.bootstrap.servers",
        [],
        "The addresses (host:port) of the internal listeners of some controllers. The default is the addresses in "
        "controller.quorum.voters.",
    ),
    honoured(
        "runtime.state.file",
        None,
        "The JSON file in which a serving node writes its pid and the addresses at which it listens. A clean stop "
        "removes the file. The default is node.json in the first log directory.",
        source=HEADRACE,
    ),
    honoured(
        "log.level",
        "info",
        "The lowest level at which the node writes log lines to stderr.",
        source=HEADRACE,
        choices=("debug", "info", "warning", "error"),
    ),
    honoured(
        "log.format",
        "text",
        "The form of log lines on stderr: text, or json with one object per line.",
        source=HEADRACE,
        choices=("text", "json"),
    ),
)


NETWORK = (
    accepted(
        "inter.broker.listener.name", None, "The name of the listener at which brokers call each other.", _LISTENERS
    ),
    accepted(
        "controller.listener.names", [], "The names of the listeners at which controllers accept calls.", _LISTENERS
    ),
    accepted(
        "control.plane.listener.name",
        None,
        "The name of a listener that only the controller calls (until Kafka 3).",
        _LISTENERS,
    ),
    accepted("early.start.listeners", [], "Listeners that serve before the authorizer is ready.", _LISTENERS),
    accepted(
        "num.network.threads",
        3,
        "Number of threads that read requests and write responses.",
        _ONE_LOOP,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted(
        "num.io.threads", 8, "Number of threads that process requests.", _ONE_LOOP, low=1, scope=Scope.CLUSTER_WIDE
    ),
    accepted(
        "background.threads",
        10,
        "Number of threads for background work of the broker.",
        _ONE_LOOP,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted(
        "socket.send.buffer.bytes",
        102_400,
        "The size of a socket's send buffer (SO_SNDBUF); -1 means the operating system's default.",
        _SOCKETS,
        low=-1,
    ),
    accepted(
        "socket.receive.buffer.bytes",
        102_400,
        "The size of a socket's receive buffer (SO_RCVBUF); -1 means the operating system's default.",
        _SOCKETS,
        low=-1,
    ),
    accepted(
        "socket.listen.backlog.size",
        50,
        "Maximum number of connections that wait until the server accepts them.",
        _SOCKETS,
        low=1,
    ),
    accepted(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long opening a connection may take.",
        _SOCKETS,
        kind=Kind.LONG,
    ),
    accepted(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        "How long opening a connection may take at most, after failed attempts have raised the limit.",
        _SOCKETS,
        kind=Kind.LONG,
    ),
    accepted(
        "queued.max.requests",
        500,
        "Number of waiting requests at which the broker reads no further requests.",
        "a broker limits the bytes in flight of each stream, not the number of requests",
        low=1,
    ),
    accepted(
        "max.connection.creation.rate",
        INT_MAX,
        "Maximum number of new connections that a broker accepts in a second.",
        _CONNECTIONS,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-612",
    ),
    accepted(
        "fetch.purgatory.purge.interval.requests",
        1_000,
        "How often a broker purges waiting fetch requests.",
        _PURGATORY,
    ),
    accepted(
        "producer.purgatory.purge.interval.requests",
        1_000,
        "How often a broker purges waiting produce requests.",
        _PURGATORY,
    ),
    accepted(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "How often a broker purges waiting DeleteRecords requests.",
        _PURGATORY,
        source="KIP-107",
    ),
)

METRICS = (
    accepted("metric.reporters", [], "Java classes that report metrics.", _METRICS, scope=Scope.CLUSTER_WIDE),
    accepted("auto.include.jmx.reporter", True, "Whether the node reports metrics by JMX (until Kafka 4).", _METRICS),
    accepted("metrics.num.samples", 2, "The number of windows over which a rate metric is measured.", _METRICS, low=1),
    accepted(
        "metrics.sample.window.ms",
        30_000,
        "The length of one window of a rate metric.",
        _METRICS,
        kind=Kind.LONG,
        low=1,
    ),
    accepted("metrics.recording.level", "INFO", "The level of detail of metrics.", _METRICS),
    accepted(
        "kafka.metrics.reporters",
        [],
        "Java classes that report the metrics of Kafka's older (Yammer) library.",
        _METRICS,
    ),
    accepted(
        "kafka.metrics.polling.interval.secs",
        10,
        "How often the node calls the classes in kafka.metrics.reporters.",
        _METRICS,
        low=1,
    ),
    accepted(
        "telemetry.max.bytes",
        1_048_576,
        "The largest metrics message that a client may push.",
        _METRICS,
        low=1,
        source="KIP-714",
    ),
    accepted(
        "confluent.*",
        None,
        "Keys of Confluent's own products.",
        "has no effect: this key belongs to Confluent Platform",
    ),
)

REFUSED = (
    refused("security.providers", None, "Java classes with security algorithms.", _JAVA),
    refused("principal.builder.class", None, "The Java class that names the user of a connection.", _JAVA),
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
    refused(
        "client.quota.callback.class",
        None,
        "The Java class that determines the quota of a client.",
        _JAVA,
        source="KIP-257",
    ),
    refused(
        "config.providers",
        [],
        "The Java classes that replace references of the form ${...} in values.",
        _PROVIDERS,
        source="KIP-297",
    ),
    refused("config.providers.*", None, "Settings of a class in config.providers.", _PROVIDERS, kind=Kind.PASSWORD),
    refused(
        "password.encoder.*",
        None,
        "Settings of the encryption of passwords in ZooKeeper.",
        _ZOOKEEPER,
        kind=Kind.PASSWORD,
    ),
    refused("zookeeper.*", None, "The address of ZooKeeper, and its connection settings (until Kafka 4).", _ZOOKEEPER),
    *(
        refused(name, None, "An address of a listener (until Kafka 3).", _ADDRESSES)
        for name in ("host.name", "port", "advertised.host.name", "advertised.port")
    ),
    refused(
        "remote.log.storage.system.enable",
        False,
        "Whether the cluster uses tiered storage.",
        _NO_TIERS,
        source="KIP-405",
    ),
    refused(
        "cordoned.log.dirs",
        [],
        "Log directories that get no new partitions.",
        "Headrace cannot exclude a directory from new partitions; leave this key out",
        scope=Scope.PER_BROKER,
        source="KIP-1066",
    ),
)
