"""Configuration keys of the clients, with Kafka's names. A key is honoured, accepted with a note, or refused with the
reason.

A default that differs from Kafka's is marked at its declaration. ``headrace.settings`` uses the values of the client
keys.
"""

from __future__ import annotations

from .definition import HEADRACE, INT_MAX, LONG_MAX, ConfigDef, Kind, accepted, honoured, refused
from .security_keys import CLIENT_SASL, CLIENT_TLS

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


_METRICS = "has no effect: call the client's method metrics()"
_SOCKETS = "has no effect: gRPC and the operating system set up connections and size their buffers"
_CONNECTING = (
    "has no effect: gRPC opens connections; bootstrap.timeout.ms and request.timeout.ms limit how long a client waits"
)
_PROVIDERS = "Headrace replaces ${...} only in passwords and secrets; write any other value itself into the dict"
_JAVA = "Headrace cannot load Java classes; leave this key out"


_TRACES = honoured(
    "otel.traces.enable",
    False,
    "Whether the client makes OpenTelemetry spans with the application's TracerProvider (extra otel).",
    source=HEADRACE,
)

_COMMON = (
    honoured(
        "bootstrap.servers",
        None,
        "The addresses (host:port) of some nodes, from which the client learns all nodes of the cluster.",
        kind=Kind.LIST,
    ),
    honoured("client.id", "headrace", "The name of this client in logs and metrics."),
    honoured("client.rack", "", "The rack or zone of this client."),
    accepted(
        "client.dns.lookup",
        "use_all_dns_ips",
        "How the client resolves host names.",
        "gRPC resolves names and tries every address of a name, as use_all_dns_ips does",
        choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    ),
    honoured(
        "bootstrap.timeout.ms",
        10_000,
        "How long the client retries the bootstrap servers before it raises BootstrapError.",
        low=0,
        source=HEADRACE,
    ),
    honoured("request.timeout.ms", 30_000, "How long the client waits for the answer to one request.", low=1),
    honoured(
        "default.api.timeout.ms", 60_000, "How long one call of a client's method may take, with all retries.", low=1
    ),
    honoured(
        "close.timeout.ms",
        20_000,
        "How long the close of a client may take in all: close() without timeout, the end of a with block, and the end "
        "of the process. A producer still sends its records in this time; it warns of those that it could not send.",
        low=0,
        source=HEADRACE,
    ),
    honoured(
        "retry.backoff.ms", 100, "How long the client waits before the first retry of a request.", kind=Kind.LONG, low=0
    ),
    honoured(
        "retry.backoff.max.ms",
        1_000,
        "The longest time that the client waits between two retries; the time doubles with each retry, from "
        "retry.backoff.ms.",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "reconnect.backoff.ms",
        50,
        "How long the client waits before it reconnects.",
        "gRPC reconnects automatically, at first after 50 ms",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "reconnect.backoff.max.ms",
        1_000,
        "The longest time that the client waits before it reconnects.",
        "gRPC reconnects automatically, after at most 1 s",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "connections.max.idle.ms",
        540_000,
        "How long a connection may be idle before the client closes it.",
        "connections stay open, because each connection carries a stream",
        kind=Kind.LONG,
    ),
    honoured(
        "metadata.max.age.ms",
        300_000,
        "The age at which the client replaces its copy of the metadata.",
        kind=Kind.LONG,
        low=1,
    ),
    honoured(
        "security.protocol",
        "PLAINTEXT",
        "The security protocol of connections to the servers. With SSL and SASL_SSL connections are encrypted.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    honoured(
        "allow.auto.create.topics",
        True,
        "Whether a request that names an unknown topic creates the topic (the brokers must also have "
        "auto.create.topics.enable=true).",
    ),
    honoured("metrics.sample.window.ms", 30_000, "The length of one window of a rate metric.", kind=Kind.LONG, low=100),
    honoured("metrics.num.samples", 2, "The number of windows over which a rate metric is measured.", low=1),
    accepted("metrics.recording.level", "INFO", "The level of detail of metrics.", _METRICS),
    accepted("metric.reporters", [], "Java classes that report metrics.", _METRICS),
    accepted("auto.include.jmx.reporter", True, "Whether the client reports metrics by JMX (until Kafka 4).", _METRICS),
    accepted(
        "enable.metrics.push",
        True,
        "Whether the client sends metrics to the brokers.",
        "has no effect: a client sends no metrics",
        source="KIP-714",
    ),
    accepted(
        "metadata.recovery.strategy",
        "rebootstrap",
        "What the client does when no known broker answers.",
        "the client always connects to the bootstrap servers again",
        source="KIP-899",
    ),
    accepted(
        "metadata.recovery.rebootstrap.trigger.ms",
        300_000,
        "After how long without an answer from any known broker the client connects to the bootstrap servers again.",
        "the client connects to the bootstrap servers as soon as no known broker answers",
        kind=Kind.LONG,
        low=0,
        source="KIP-1102",
    ),
    accepted(
        "receive.buffer.bytes",
        -1,
        "The size of a socket's receive buffer (SO_RCVBUF); -1 means the operating system's default.",
        _SOCKETS,
        low=-1,
    ),
    accepted(
        "send.buffer.bytes",
        -1,
        "The size of a socket's send buffer (SO_SNDBUF); -1 means the operating system's default.",
        _SOCKETS,
        low=-1,
    ),
    accepted(
        "socket.connection.setup.timeout.ms",
        10_000,
        "How long opening a connection may take.",
        _CONNECTING,
        kind=Kind.LONG,
    ),
    accepted(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        "How long opening a connection may take at most, after failed attempts have raised the limit.",
        _CONNECTING,
        kind=Kind.LONG,
    ),
    refused(
        "config.providers",
        [],
        "The Java classes that replace references of the form ${...} in values.",
        _PROVIDERS,
        source="KIP-297",
    ),
    refused("config.providers.*", None, "Settings of a class in config.providers.", _PROVIDERS, kind=Kind.PASSWORD),
    refused("security.providers", None, "Java classes with security algorithms.", _JAVA),
    *CLIENT_TLS,
    *CLIENT_SASL,
)

PRODUCER = ConfigDef(
    (
        *_COMMON,
        honoured(
            "acks",
            "all",
            "Which replicas must have a record before the leader acknowledges it: all in-sync replicas (all or -1), "
            "only the leader (1), or none (0).",
            choices=("all", "-1", "1", "0"),
        ),
        honoured(
            "linger.ms",
            0,
            "How long a record waits so that more records join its batch (the default in Kafka 4 is 5). With 0 "
            "the producer sends at once if no request to the broker is in flight. While a request is in flight, "
            "records gather until the response arrives, a batch is full, or 5 ms are over.",
            kind=Kind.DOUBLE,
            low=0,
            high=LONG_MAX,
        ),
        honoured(
            "batch.size",
            1_048_576,
            "Maximum number of uncompressed bytes in a batch (the default in Kafka is 16384). The producer allocates "
            "a batch's memory as records arrive, so a large limit costs no memory while the producer is idle.",
            low=0,
        ),
        honoured(
            "buffer.memory",
            33_554_432,
            "Maximum number of bytes of all records that the producer holds, until brokers have acknowledged them.",
            kind=Kind.LONG,
            low=1,
        ),
        honoured(
            "max.block.ms", 60_000, "How long a send may wait for buffer space or metadata.", kind=Kind.LONG, low=0
        ),
        honoured(
            "max.request.size",
            1_048_576,
            "Maximum number of bytes in one request of the producer; a record cannot be larger than this either.",
            low=1,
        ),
        honoured(
            "max.in.flight.requests.per.connection",
            5,
            "How many requests to one broker may wait for their responses at the same time.",
            low=1,
        ),
        honoured(
            "delivery.timeout.ms",
            120_000,
            "The longest time from a record's send to its acknowledgement or error, with all retries.",
            low=1,
        ),
        honoured("retries", INT_MAX, "How many times the producer retries a batch within delivery.timeout.ms.", low=0),
        honoured(
            "compression.type", "none", "The codec with which the producer compresses batches.", choices=_COMPRESSIONS
        ),
        honoured("compression.gzip.level", -1, "The level of gzip compression; -1 is gzip's default.", low=-1, high=9),
        honoured("compression.lz4.level", 9, "The level of lz4 compression.", low=1, high=17),
        honoured("compression.zstd.level", 3, "The level of zstd compression.", low=-131072, high=22),
        honoured(
            "enable.idempotence",
            True,
            "Whether the producer is idempotent: its retries then neither duplicate nor reorder records. Idempotence "
            "needs acks=all, retries above 0 and at most 5 requests in flight. If you leave out enable.idempotence, a "
            "conflicting value of acks, retries or max.in.flight.requests.per.connection switches idempotence off.",
            source="KIP-98",
        ),
        honoured(
            "transactional.id",
            None,
            "The name of a transactional producer. A new producer with the same name fences the older one. Needs "
            "idempotence.",
            source="KIP-98",
        ),
        honoured(
            "transaction.timeout.ms",
            60_000,
            "How long a transaction may stay open before the coordinator aborts it; at most the brokers' "
            "transaction.max.timeout.ms. A prepared transaction has no timeout.",
            low=1,
        ),
        honoured(
            "key.serializer",
            None,
            "The serializer of keys: a callable (topic, key) -> bytes, or an object with serialize().",
            kind=Kind.CLASS,
        ),
        honoured(
            "value.serializer",
            None,
            "The serializer of values: a callable (topic, value) -> bytes, or an object with serialize().",
            kind=Kind.CLASS,
        ),
        honoured(
            "partitioner.class",
            None,
            "The partitioner: a class, object or callable (topic, key, value, count) -> partition.",
            kind=Kind.CLASS,
        ),
        honoured(
            "partitioner.ignore.keys",
            False,
            "Whether the producer ignores keys when it chooses partitions, and distributes all records as if they had "
            "no key.",
            source="KIP-794",
        ),
        honoured(
            "partitioner.adaptive.partitioning.enable",
            True,
            "Whether the producer sends more of the records without a key to partitions whose queue of unsent batches "
            "is short.",
            source="KIP-794",
        ),
        accepted(
            "partitioner.availability.timeout.ms",
            0,
            "The time without an acknowledgement after which a partition counts as unavailable.",
            "the producer never sends records without a key to a partition without a leader, and seldom to a partition "
            "with a long queue",
            kind=Kind.LONG,
            low=0,
            source="KIP-794",
        ),
        _TRACES,
        honoured(
            "otel.traces.ratio",
            1.0,
            "With otel.traces.enable, the share of records (0 to 1) for which the producer asks the application's "
            "sampler whether to make a span. The producer makes no span for the other records.",
            source=HEADRACE,
            low=0,
            high=1,
        ),
        honoured(
            "otel.traces.per.second.max",
            10,
            "With an otel.traces.ratio below 1, the producer traces at most about this number of records per second. "
            "Making a span takes as much time as sending a hundred records.",
            source=HEADRACE,
            low=1,
        ),
        refused(
            "interceptor.classes",
            [],
            "Classes that process each record before it is sent.",
            "interceptors are not supported; use the serializers, or on_delivery",
        ),
        refused(
            "transaction.two.phase.commit.enable",
            False,
            "Whether the producer takes part in two-phase commit, in which another system decides the outcome of a "
            "prepared transaction.",
            "leave this key out: the method prepare() works without it, and no timeout ends a prepared transaction",
            source="KIP-939",
        ),
        accepted(
            "metadata.max.idle.ms",
            300_000,
            "How long the producer keeps the metadata of a topic without writes.",
            "a topic's metadata is kept until the producer is closed",
            kind=Kind.LONG,
            low=5_000,
        ),
    ),
    where="producer",
)

CONSUMER = ConfigDef(
    (
        *_COMMON,
        honoured("group.id", None, "The id of the consumer group: its members share partitions and commit offsets."),
        honoured(
            "group.instance.id",
            None,
            "The name of a static member. If the member restarts within its session timeout, the coordinator "
            "reassigns no partitions.",
            source="KIP-345",
        ),
        accepted(
            "group.protocol",
            "consumer",
            "The protocol of consumer groups.",
            "Headrace's consumer has one group protocol, that of KIP-848; both values select this protocol",
            choices=("consumer", "classic"),
        ),
        honoured(
            "group.remote.assignor",
            None,
            "The server-side assignor that the member prefers: uniform, range or sticky. The group uses the "
            "assignor that most members prefer; if no member prefers an assignor, the group uses the "
            "coordinator's default assignor.",
        ),
        accepted(
            "partition.assignment.strategy",
            [],
            "The client-side assignors of the classic protocol.",
            "the coordinator assigns partitions (group.remote.assignor)",
        ),
        honoured(
            "auto.offset.reset",
            "latest",
            "Where a consumer begins to read if it has no committed offset, or if its offset is out of range. With "
            "earliest the consumer begins at the first record, with latest at the log end; with none it raises an "
            "error.",
            choices=("earliest", "latest", "none"),
        ),
        honoured(
            "enable.auto.commit",
            True,
            "Whether a subscribed consumer automatically commits the offsets of records that the program has handled. "
            "A record counts as handled when the program asks for the next records.",
        ),
        honoured(
            "auto.commit.interval.ms",
            5_000,
            "How often a consumer with enable.auto.commit commits offsets. With enable.auto.commit the consumer also "
            "commits before its partitions are revoked, and when it closes.",
            low=0,
        ),
        honoured(
            "isolation.level",
            "read_uncommitted",
            "With read_uncommitted the consumer returns all records. With read_committed the consumer returns no "
            "records of aborted transactions, and only records below the last stable offset (the start of the "
            "first open transaction).",
            choices=("read_uncommitted", "read_committed"),
        ),
        honoured(
            "max.poll.interval.ms",
            300_000,
            "The longest time that the program may take between two calls of a group's consumer. Each step of an "
            "iteration over the consumer counts as a call. A member that takes longer leaves the group, and other "
            "members get its partitions. The value of max.poll.interval.ms is also the member's rebalance timeout.",
            low=1,
        ),
        honoured("max.poll.records", 500, "Maximum number of records that one poll returns.", low=1),
        accepted(
            "session.timeout.ms",
            45_000,
            "How long the coordinator waits for a heartbeat before it removes the member.",
            "the coordinator's group.consumer.session.timeout.ms decides",
        ),
        accepted(
            "heartbeat.interval.ms",
            3_000,
            "How often a group member sends a heartbeat.",
            "the coordinator's group.consumer.heartbeat.interval.ms decides",
        ),
        honoured(
            "fetch.min.bytes",
            1,
            "The minimum number of bytes in an answer to a fetch. After fetch.max.wait.ms, a broker answers even if "
            "it has fewer bytes.",
            low=0,
        ),
        honoured("fetch.max.wait.ms", 500, "The longest time that a broker waits before it answers a fetch.", low=0),
        honoured(
            "fetch.max.bytes",
            52_428_800,
            "Maximum number of bytes in the response to a fetch, and of the decoded records that one poll returns.",
            low=1,
        ),
        honoured(
            "max.partition.fetch.bytes",
            1_048_576,
            "Maximum number of bytes of one partition in the response to a fetch.",
            low=1,
        ),
        honoured(
            "fetch.queue.max.bytes",
            33_554_432,
            "Maximum number of bytes of records that the consumer keeps in memory before the program polls them. Kafka "
            "does not have this key. A single batch may be larger than this limit.",
            kind=Kind.LONG,
            low=1,
            high=LONG_MAX,
        ),
        honoured("check.crcs", True, "Whether the consumer checks the CRC-32C of every batch."),
        honoured(
            "key.deserializer",
            None,
            "The deserializer of keys: a callable (topic, bytes) -> key, or an object with deserialize().",
            kind=Kind.CLASS,
        ),
        honoured(
            "value.deserializer",
            None,
            "The deserializer of values: a callable (topic, bytes) -> value, or an object with deserialize().",
            kind=Kind.CLASS,
        ),
        accepted(
            "exclude.internal.topics",
            True,
            "Whether subscription patterns skip internal topics.",
            "patterns never match internal topics; subscribe to an internal topic by its name",
        ),
        _TRACES,
        refused(
            "interceptor.classes",
            [],
            "Classes that process each record before the program gets it.",
            "interceptors are not supported; use the deserializers",
        ),
        refused("share.*", None, "Settings of share groups.", "share groups are not built", source="KIP-932"),
    ),
    where="consumer",
)

ADMIN = ConfigDef(
    (
        *_COMMON,
        accepted(
            "bootstrap.controllers",
            [],
            "Controllers through which the client finds the cluster when no broker answers.",
            "has no effect: bootstrap.servers may name controllers as well",
            source="KIP-919",
        ),
        accepted(
            "retries",
            INT_MAX,
            "How many times the client repeats a failed call.",
            "has no effect: the client repeats a failed call until default.api.timeout.ms is over",
            low=0,
        ),
    ),
    where="admin",
)
