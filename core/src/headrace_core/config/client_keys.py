"""Configuration keys of the clients, with Kafka's names. A key is honoured, accepted with a note, or refused with the
reason.

A default that differs from Kafka's is marked at its declaration. ``headrace.settings`` uses the values of these keys.
"""

from __future__ import annotations

from .definition import HEADRACE, INT_MAX, LONG_MAX, ConfigDef, Kind, accepted, honoured, refused

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


_METRICS = "has no effect: ask the client itself (metrics())"
_SOCKETS = "has no effect: gRPC and the operating system size the buffers of connections"
_CONNECTING = "has no effect: gRPC connects by itself; bootstrap.timeout.ms and request.timeout.ms bound the waiting"
_PROVIDERS = "values are taken as they stand, ${...} is not replaced; put the value into the dict"
_JAVA = "a class of Java's cannot be loaded here; leave it out"
_TLS = "TLS is not built yet: reach the cluster over loopback or a tunnel, and leave this key out"
_SASL = "authentication is not built yet: the servers accept every client; leave this key out"


_COMMON = (
    honoured("bootstrap.servers", None, "host:port of some nodes, to find the cluster by.", kind=Kind.LIST),
    honoured("client.id", "headrace", "A name for this client, in logs and metrics."),
    honoured("client.rack", "", "The rack or zone of this client."),
    accepted(
        "client.dns.lookup",
        "use_all_dns_ips",
        "How names are resolved.",
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
    honoured("request.timeout.ms", 30_000, "How long one request may go unanswered.", low=1),
    honoured("default.api.timeout.ms", 60_000, "How long one call of the client may take in all.", low=1),
    honoured("retry.backoff.ms", 100, "The pause before the first retry.", kind=Kind.LONG, low=0),
    honoured(
        "retry.backoff.max.ms", 1_000, "The longest pause between retries; it doubles each time.", kind=Kind.LONG, low=0
    ),
    accepted(
        "reconnect.backoff.ms",
        50,
        "The pause before the client reconnects.",
        "gRPC reconnects by itself, after 50 ms at first",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "reconnect.backoff.max.ms",
        1_000,
        "The longest pause before the client reconnects.",
        "gRPC reconnects by itself, after 1 s at most",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "connections.max.idle.ms",
        540_000,
        "How long a connection may be idle before it is closed.",
        "connections stay open: each carries one stream",
        kind=Kind.LONG,
    ),
    honoured(
        "metadata.max.age.ms",
        300_000,
        "How old the metadata may become before it is read again.",
        kind=Kind.LONG,
        low=1,
    ),
    refused(
        "security.protocol",
        "PLAINTEXT",
        "How to talk to the servers.",
        "only PLAINTEXT is built so far (TLS and SASL come later)",
    ),
    refused("sasl.mechanism", None, "How to authenticate.", "SASL is not built yet"),
    honoured(
        "allow.auto.create.topics",
        True,
        "Create a topic that is named and does not exist (the brokers must allow it too).",
    ),
    honoured("metrics.sample.window.ms", 30_000, "The length of one window of a rate.", kind=Kind.LONG, low=100),
    honoured("metrics.num.samples", 2, "How many windows a rate looks at.", low=1),
    accepted("metrics.recording.level", "INFO", "How much is measured.", _METRICS),
    accepted("metric.reporters", [], "Java classes that report metrics.", _METRICS),
    accepted("auto.include.jmx.reporter", True, "Report by JMX (until Kafka 4).", _METRICS),
    accepted(
        "enable.metrics.push",
        True,
        "Send metrics to the brokers.",
        "has no effect: a client sends no metrics",
        source="KIP-714",
    ),
    accepted(
        "metadata.recovery.strategy",
        "rebootstrap",
        "What to do when no known broker answers.",
        "the client connects to the bootstrap servers again",
        source="KIP-899",
    ),
    accepted(
        "metadata.recovery.rebootstrap.trigger.ms",
        300_000,
        "How long no known broker answers before the client does that.",
        "it is done at once",
        kind=Kind.LONG,
        low=0,
        source="KIP-1102",
    ),
    accepted("receive.buffer.bytes", -1, "SO_RCVBUF; -1: the system's.", _SOCKETS, low=-1),
    accepted("send.buffer.bytes", -1, "SO_SNDBUF; -1: the system's.", _SOCKETS, low=-1),
    accepted(
        "socket.connection.setup.timeout.ms", 10_000, "How long connecting may take.", _CONNECTING, kind=Kind.LONG
    ),
    accepted(
        "socket.connection.setup.timeout.max.ms",
        30_000,
        "How long connecting may take after several failures.",
        _CONNECTING,
        kind=Kind.LONG,
    ),
    refused("config.providers", [], "The classes that resolve ${...} in values.", _PROVIDERS, source="KIP-297"),
    refused("config.providers.*", None, "Settings of such a provider.", _PROVIDERS, kind=Kind.PASSWORD),
    refused("security.providers", None, "Java classes with security algorithms.", _JAVA),
    refused("ssl.*", None, "TLS: certificates, protocols, ciphers.", _TLS, kind=Kind.PASSWORD),
    refused("sasl.*", None, "SASL: logins, tokens.", _SASL, kind=Kind.PASSWORD),
)

PRODUCER = ConfigDef(
    (
        *_COMMON,
        honoured(
            "acks",
            "all",
            "Which replicas must have a record before it is acknowledged: all (-1) in-sync ones, the leader (1), "
            "none (0).",
            choices=("all", "-1", "1", "0"),
        ),
        honoured(
            "linger.ms",
            0,
            "How long a record may wait for company. 0 (Kafka 4: 5): at once when nothing is on its way to the broker; "
            "while a request is under way records gather, until its answer comes, a batch is full or 5 ms are over.",
            kind=Kind.DOUBLE,
            low=0,
            high=LONG_MAX,
        ),
        honoured(
            "batch.size",
            1_048_576,
            "The most uncompressed bytes of a batch (Kafka: 16384). The cost of a request does not depend on its "
            "size, and a batch's memory grows with its content, so a large limit costs nothing when it is idle.",
            low=0,
        ),
        honoured("buffer.memory", 33_554_432, "The most bytes of records not yet acknowledged.", kind=Kind.LONG, low=1),
        honoured(
            "max.block.ms", 60_000, "How long a send may wait for buffer space or metadata.", kind=Kind.LONG, low=0
        ),
        honoured("max.request.size", 1_048_576, "The largest request, and so the largest record.", low=1),
        honoured(
            "max.in.flight.requests.per.connection", 5, "How many requests may be unanswered at each broker.", low=1
        ),
        honoured("delivery.timeout.ms", 120_000, "From send to the outcome, retries included.", low=1),
        honoured("retries", INT_MAX, "How many times the producer retries a batch within delivery.timeout.ms.", low=0),
        honoured("compression.type", "none", "How batches are compressed.", choices=_COMPRESSIONS),
        honoured("compression.gzip.level", -1, "Level of gzip; -1 is its default.", low=-1, high=9),
        honoured("compression.lz4.level", 9, "Level of lz4.", low=1, high=17),
        honoured("compression.zstd.level", 3, "Level of zstd.", low=-131072, high=22),
        honoured(
            "enable.idempotence",
            True,
            "No duplicates and no other order by retries. Needs acks=all, retries above 0 and at most 5 requests in "
            "flight; where one of these is set otherwise and this key is not, it is off.",
            source="KIP-98",
        ),
        accepted(
            "transactional.id",
            None,
            "The identity of a transactional producer.",
            "any value is an error until transactions are built",
            source="KIP-98",
        ),
        accepted(
            "transaction.timeout.ms",
            60_000,
            "How long a transaction may stay open.",
            "has no effect: transactions are not built yet",
        ),
        honoured(
            "key.serializer", None, "Callable (topic, key) -> bytes, or an object with serialize().", kind=Kind.CLASS
        ),
        honoured(
            "value.serializer",
            None,
            "Callable (topic, value) -> bytes, or an object with serialize().",
            kind=Kind.CLASS,
        ),
        honoured(
            "partitioner.class",
            None,
            "A class, object or callable (topic, key, value, count) -> number.",
            kind=Kind.CLASS,
        ),
        honoured("partitioner.ignore.keys", False, "Spread records with keys like those without.", source="KIP-794"),
        honoured(
            "partitioner.adaptive.partitioning.enable",
            True,
            "Give records without a key to partitions whose queue is short.",
            source="KIP-794",
        ),
        accepted(
            "partitioner.availability.timeout.ms",
            0,
            "After how long without an acknowledgement a partition counts as unavailable.",
            "a partition without a leader, or with a longer queue, already gets no records without a key",
            kind=Kind.LONG,
            low=0,
            source="KIP-794",
        ),
        refused(
            "interceptor.classes",
            [],
            "Classes that see each record before it is sent.",
            "interceptors are not supported; use the serializers, or on_delivery",
        ),
        refused(
            "transaction.two.phase.commit.enable",
            False,
            "Let another system commit or abort a prepared transaction.",
            "transactions are not built yet; leave it out",
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
            "A static member's name: a restart within the session timeout moves no partitions.",
            source="KIP-345",
        ),
        accepted(
            "group.protocol",
            "consumer",
            "The group protocol.",
            "there is one, KIP-848's; both values mean it",
            choices=("consumer", "classic"),
        ),
        honoured(
            "group.remote.assignor",
            None,
            "The server-side assignor: uniform, range or sticky; the group's, when most members name none.",
        ),
        accepted(
            "partition.assignment.strategy", [], "Client-side assignors.", "the server assigns (group.remote.assignor)"
        ),
        honoured(
            "auto.offset.reset",
            "latest",
            "Where the consumer starts when it has no position, or its position is out of range.",
            choices=("earliest", "latest", "none"),
        ),
        honoured(
            "enable.auto.commit",
            True,
            "A subscribed consumer commits the positions of what was handed out and come back from, by itself.",
        ),
        honoured(
            "auto.commit.interval.ms",
            5_000,
            "How often positions are committed by itself; also when partitions go, and at close.",
            low=0,
        ),
        honoured(
            "isolation.level",
            "read_uncommitted",
            "Which records the consumer returns.",
            choices=("read_uncommitted", "read_committed"),
        ),
        honoured(
            "max.poll.interval.ms",
            300_000,
            "The longest time between two calls of a group's consumer (each step of an iteration counts); after it "
            "the member leaves and others get its partitions. Also the rebalance timeout.",
            low=1,
        ),
        honoured("max.poll.records", 500, "The most records that one poll returns.", low=1),
        accepted(
            "session.timeout.ms",
            45_000,
            "How long the coordinator waits for a heartbeat before it removes the member.",
            "the server's group.consumer.session.timeout.ms decides",
        ),
        accepted(
            "heartbeat.interval.ms",
            3_000,
            "How often a member reports.",
            "the server's group.consumer.heartbeat.interval.ms decides",
        ),
        honoured("fetch.min.bytes", 1, "The least bytes in the answer to a fetch; the broker waits for them.", low=0),
        honoured("fetch.max.wait.ms", 500, "A fetch is answered when this time is over, at the latest.", low=0),
        honoured("fetch.max.bytes", 52_428_800, "The most bytes in the answer to a fetch.", low=1),
        honoured(
            "max.partition.fetch.bytes", 1_048_576, "The most bytes of one partition in the answer to a fetch.", low=1
        ),
        honoured(
            "fetch.queue.max.bytes",
            33_554_432,
            "The most bytes fetched ahead and not yet handed out (not a key of Kafka's). One batch may always pass.",
            kind=Kind.LONG,
            low=1,
            high=LONG_MAX,
        ),
        honoured("check.crcs", True, "Check the CRC-32C of every batch."),
        honoured(
            "key.deserializer",
            None,
            "Callable (topic, bytes) -> key, or an object with deserialize().",
            kind=Kind.CLASS,
        ),
        honoured(
            "value.deserializer",
            None,
            "Callable (topic, bytes) -> value, or an object with deserialize().",
            kind=Kind.CLASS,
        ),
        accepted(
            "exclude.internal.topics",
            True,
            "Patterns do not match internal topics.",
            "patterns never match them; name them to read them",
        ),
        refused(
            "interceptor.classes",
            [],
            "Classes that see each record before it is handed out.",
            "interceptors are not supported; use the deserializers",
        ),
        refused("share.*", None, "Share groups.", "share groups are not built", source="KIP-932"),
    ),
    where="consumer",
)

ADMIN = ConfigDef(
    (
        *_COMMON,
        accepted(
            "bootstrap.controllers",
            [],
            "Controllers to find the cluster by, when no broker answers.",
            "has no effect: bootstrap.servers may name controllers as well",
            source="KIP-919",
        ),
        accepted(
            "retries",
            INT_MAX,
            "How many times the client retries a call.",
            "has no effect: the client retries a call until default.api.timeout.ms is over",
            low=0,
        ),
    ),
    where="admin",
)
