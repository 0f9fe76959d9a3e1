"""Configuration keys of a broker: serving clients, maintenance of logs, replication, log files.

A Kafka key that Headrace has replaced is accepted, with Kafka's range and default; a broker whose configuration sets
such a key logs a note. A broker's default for a topic key is declared with the topic key (``topic_keys``).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from .definition import CONFLUENT, HEADRACE, INT_MAX, LONG_MAX, Kind, Scope, accepted, honoured

#: Maximum number of threads that a key may set. A broker with too many threads does not start, so without a maximum one
#: typing mistake could stop all brokers. (Kafka has no maximum for the number of threads; it limits a dynamic change of
#: a number of threads to twice the present number.)
THREADS_MAX = 256
#: Values of ``replica.selector.class`` for reads from a replica in the consumer's rack: Kafka's class and short names.
RACK_AWARE_SELECTORS = (
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "RackAwareReplicaSelector",
    "rack-aware",
)
#: Values of ``replica.selector.class`` for reads from the leader, the default.
LEADER_SELECTORS = ("org.apache.kafka.common.replica.LeaderSelector", "LeaderSelector", "leader")

_REPLICATION = (
    "has no effect: a leader pushes new records at once on one stream to each follower; followers far behind"
    " have a second stream"
)
_CHECKPOINTS = (
    "has no effect: a broker writes recovery points, high watermarks and log start offsets every 5 s, and at"
    " a clean stop"
)
_TIERED = "has no effect: tiered storage is not built"
_QUOTAS = "has no effect: quota.window.num and quota.window.size.seconds set the burst of controller mutations"
_PACED = "has no effect: a throttle is a token bucket, which has no windows"
_ACTIONS = "has no effect: nodes of a release use one protocol and one format"


def _check_selector(name: str) -> str | None:
    selectors = (*RACK_AWARE_SELECTORS, *LEADER_SELECTORS)
    return None if name in selectors else f"no other class can be loaded: write one of {', '.join(selectors)}"


def check_registry_urls(urls: list[str]) -> str | None:
    """Return the first fault in the addresses of the schema registry; None if all addresses are valid."""
    for url in urls:
        if "@" in url:
            return "an address must not contain a password: set confluent.basic.auth.user.info"
        try:
            parts = urlsplit(url)
            is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_sound = False
        if not is_sound or parts.query or parts.fragment or not url.isascii() or not url.isprintable() or " " in url:
            return f"{url[:100]!r} is not the address of a registry: write http://host:port or https://host:port"
    return None


BROKER = (
    honoured(
        "broker.rack",
        None,
        "The rack or zone of the broker or the coordinator. The controllers spread replicas over racks, and consumers "
        "with client.rack read from a replica in their rack.",
    ),
    honoured("controlled.shutdown.enable", True, "Whether a broker hands over its leaderships before it stops."),
    honoured("request.timeout.ms", 30_000, "The timeout of a request whose client has set no timeout.", low=1),
    honoured(
        "socket.request.max.bytes",
        16_777_216,
        "The maximum number of bytes of records in a request. The broker refuses a gRPC message that is more than 1 "
        "MiB larger before it reads the message. With Kafka's default of 100 MiB, every connection could use 100 MiB "
        "of the broker's memory.",
        low=1_024,
        high=104_857_600,
    ),
    honoured(
        "confluent.schema.registry.url",
        [],
        "The addresses of the schema registry, as http://host:port or https://host:port, for topics with "
        "value.schema.validation or key.schema.validation. A broker uses the first address that answers.",
        source=CONFLUENT,
        scope=Scope.CLUSTER_WIDE,
        check=check_registry_urls,
    ),
    honoured(
        "confluent.basic.auth.user.info",
        None,
        "The credentials, as user:password, with which a broker authenticates to the schema registry. By default the "
        "broker does not authenticate.",
        source=CONFLUENT,
        kind=Kind.PASSWORD,
    ),
    honoured(
        "confluent.schema.registry.max.cache.size",
        10_000,
        "Maximum number of schema ids in a broker's cache, which stores whether the schema registry has each id.",
        source=CONFLUENT,
        scope=Scope.CLUSTER_WIDE,
        low=1,
        high=1_000_000,
    ),
    honoured(
        "confluent.missing.id.cache.ttl.sec",
        5,
        "How many seconds a broker remembers that the schema registry does not have a schema id. Confluent's default "
        "is 60.",
        source=CONFLUENT,
        scope=Scope.CLUSTER_WIDE,
        low=0,
        high=86_400,
    ),
    honoured(
        "max.connections",
        10_000,
        "Maximum number of connections of each listener; a broker closes further connections at once. The limit is "
        "lower if the operating system lets the broker's process open too few files (docs/reference/limits.md).",
        low=1,
        source="KIP-402",
    ),
    honoured(
        "max.connections.per.ip",
        INT_MAX,
        "Maximum number of connections of one IP address to each registry and console, to a broker's listeners for "
        "Kafka's clients, and to the client and external listeners of each node, where connections with a call in "
        "progress count. 0 is allowed only together with max.connections.per.ip.overrides.",
        low=0,
        source="KIP-308",
    ),
    honoured(
        "max.connections.per.ip.overrides",
        "",
        "Limits on connections for single addresses, as host:count, separated by commas, in place of "
        "max.connections.per.ip. A node looks host names up once, when it starts.",
    ),
    honoured(
        "fetch.max.bytes",
        57_671_680,
        "Maximum number of bytes in the response to one Fetch request.",
        low=1_024,
        high=104_857_600,
    ),
)

UPKEEP = (
    honoured(
        "log.retention.check.interval.ms",
        300_000,
        "How often the broker looks for segments that retention deletes. (In Kafka, a change of this key needs a "
        "restart.)",
        kind=Kind.LONG,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.initial.task.delay.ms",
        30_000,
        "How long the broker waits after its start before it begins retention and compaction.",
        kind=Kind.LONG,
        low=0,
    ),
    honoured(
        "num.recovery.threads.per.data.dir",
        2,
        "For each log directory, the number of threads that recover logs when the broker starts.",
        low=1,
        high=THREADS_MAX,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.enable",
        True,
        "Whether this broker compacts logs. Without compaction, topics with cleanup.policy=compact grow without limit.",
    ),
    honoured(
        "log.cleaner.threads",
        1,
        "Number of cleaner threads, which compact logs. All partitions share the cleaner threads.",
        low=0,
        high=THREADS_MAX,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "The memory in which all cleaner threads together store the keys of the logs that they compact; each key "
        "needs 24 bytes. If the keys of a log do not fit, the cleaner compacts the log in several passes.",
        kind=Kind.LONG,
        low=1_024,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.io.buffer.size",
        524_288,
        "The memory of the buffers with which all cleaner threads together read and write logs.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        "The fraction of log.cleaner.dedupe.buffer.size that cleaner threads fill with keys. With a larger "
        "fraction more keys fit, and compaction is slower.",
        low=0.01,
        high=0.99,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.io.max.bytes.per.second",
        float("inf"),
        "Maximum number of bytes that all cleaner threads together read and write per second.",
        kind=Kind.DOUBLE,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.backoff.ms",
        15_000,
        "How long a cleaner thread waits when no log needs compaction; at least 100 ms.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG_MAX,
        "Maximum number of bytes per second at which the broker copies a replica between log directories "
        "(headrace log-dirs move).",
        kind=Kind.LONG,
        low=1,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-113",
    ),
    honoured(
        "log.dir.reserve.bytes",
        67_108_864,
        "The number of free bytes that the broker reserves in each log directory for deletes, checkpoints and "
        "compaction. When a directory has less free space than its reserve, the broker refuses appends to the "
        "directory's logs. The reserve is at most 5 % of the disk; 0 switches the reserve off.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    honoured(
        "log.scrub.bytes.per.second",
        4_194_304,
        "Maximum number of bytes per second that the scrubber reads in each log directory to find damage; 0 "
        "switches the scrubber off.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    honoured(
        "log.open.files.max",
        1_000,
        "How many segment files a broker keeps open. The broker closes the least recently used segment files, and"
        " opens a closed file again on demand.",
        low=16,
        high=INT_MAX,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
)

REPLICATION = (
    honoured(
        "replica.lag.time.max.ms",
        30_000,
        "How long a follower may fail to catch up before it leaves the in-sync set. A follower has caught up when its "
        "disk has all records that the leader had at the follower's previous acknowledgement. A follower leaves the "
        "in-sync set earlier when its connection to the leader breaks, or when its log cannot append records.",
        kind=Kind.LONG,
        low=1,
        source="KIP-16",
    ),
    honoured(
        "replica.selector.class",
        None,
        "The class that selects the replica from which consumers read. RackAwareReplicaSelector selects a "
        "replica in the consumer's rack (client.rack, broker.rack); otherwise consumers read from the leader.",
        check=_check_selector,
        source="KIP-392",
    ),
    honoured(
        "leader.replication.throttled.rate",
        LONG_MAX,
        "Maximum number of bytes per second that a broker sends to throttled replicas that are far behind and not"
        " in sync. The topic's leader.replication.throttled.replicas names the throttled replicas.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-73",
    ),
    accepted(
        "num.replica.fetchers",
        1,
        "The number of fetcher threads for each broker that leads partitions.",
        _REPLICATION,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    accepted(
        "replica.fetch.max.bytes",
        1_048_576,
        "Maximum number of bytes of one partition in the response to a follower's fetch.",
        _REPLICATION,
        low=0,
    ),
    accepted(
        "replica.fetch.min.bytes",
        1,
        "The minimum number of bytes in a leader's answer to a follower's fetch.",
        _REPLICATION,
    ),
    accepted(
        "replica.fetch.response.max.bytes",
        10_485_760,
        "Maximum number of bytes in the response to a follower's fetch.",
        _REPLICATION,
        low=0,
    ),
    accepted(
        "replica.fetch.wait.max.ms",
        500,
        "How long a leader waits for records before it answers a follower's fetch.",
        _REPLICATION,
    ),
    accepted(
        "replica.fetch.backoff.ms",
        1_000,
        "How long a follower waits after an error before its next fetch.",
        _REPLICATION,
        low=0,
    ),
    accepted(
        "replica.socket.timeout.ms",
        30_000,
        "How long a follower waits for a silent leader before it reconnects.",
        _REPLICATION,
        low=1,
    ),
    accepted(
        "replica.socket.receive.buffer.bytes",
        65_536,
        "The receive buffer of a follower's socket (SO_RCVBUF).",
        _REPLICATION,
    ),
    accepted(
        "eligible.leader.replicas.enable",
        False,
        "Whether the controllers elect an eligible leader replica when the ISR is empty.",
        "has no effect: the controllers always use eligible leader replicas (Kafka 4.1 does so in new clusters)",
        source="KIP-966",
    ),
    accepted(
        "follower.replication.throttled.rate",
        LONG_MAX,
        "Maximum number of bytes per second that a broker receives as the follower of throttled replicas.",
        "has no effect: the leader throttles replication (leader.replication.throttled.rate)",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-73",
    ),
    *(
        accepted(f"{kind}.window.{what}", default, doc, note, low=1)
        for kind, note in (
            ("controller.quota", _QUOTAS),
            ("replication.quota", _PACED),
            ("alter.log.dirs.replication.quota", _PACED),
        )
        for what, default, doc in (
            ("num", 11, "The number of windows over which Kafka measures the rate of a quota."),
            ("size.seconds", 1, "The length of one of the windows over which Kafka measures the rate of a quota."),
        )
    ),
)

LOGS = (
    accepted(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        "How often a broker writes the recovery points of its logs.",
        _CHECKPOINTS,
        low=0,
    ),
    accepted(
        "log.flush.start.offset.checkpoint.interval.ms",
        60_000,
        "How often a broker writes the log start offsets.",
        _CHECKPOINTS,
        low=0,
    ),
    accepted(
        "replica.high.watermark.checkpoint.interval.ms",
        5_000,
        "How often a broker writes high watermarks.",
        _CHECKPOINTS,
        kind=Kind.LONG,
    ),
    accepted(
        "log.flush.scheduler.interval.ms",
        LONG_MAX,
        "How often the broker looks for logs to flush.",
        "has no effect: each log schedules its next flush (log.flush.interval.ms)",
        kind=Kind.LONG,
    ),
    accepted(
        "log.dir.failure.timeout.ms",
        30_000,
        "How long a broker tries to report a failed log directory to the controllers before the broker's process ends.",
        "has no effect: the controllers fence a broker that cannot report to them, because its heartbeats stop",
        kind=Kind.LONG,
        low=1,
        source="KIP-858",
    ),
    accepted(
        "num.replica.alter.log.dirs.threads",
        None,
        "Number of threads that move replicas between log directories.",
        "has no effect: the thread of each log directory moves replicas",
        kind=Kind.STRING,
    ),
    accepted(
        "log.message.format.version",
        None,
        "The format of records on disk (until Kafka 4).",
        "has no effect: batches always have format version 2",
    ),
    accepted(
        "log.message.downconversion.enable",
        True,
        "Whether brokers convert batches for old clients (until Kafka 4).",
        "has no effect: all clients of Headrace read the present format",
    ),
    accepted(
        "log.message.timestamp.difference.max.ms",
        LONG_MAX,
        "How far a record's CreateTime may differ from the broker's clock (until Kafka 4).",
        "has no effect: log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms limit the "
        "difference",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "inter.broker.protocol.version", None, "The version of the protocol between brokers (until Kafka 4).", _ACTIONS
    ),
    accepted(
        "unstable.api.versions.enable",
        False,
        "Whether a broker serves versions of requests that are not stable yet.",
        _ACTIONS,
    ),
    accepted(
        "unstable.feature.versions.enable",
        False,
        "Whether the cluster may use versions of features that are not stable yet.",
        _ACTIONS,
    ),
)

TIERED = (
    accepted(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "Whether a follower without records begins to copy after the last offset in tiered storage.",
        _TIERED,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-1023",
    ),
    *(
        accepted(f"{family}.*", None, doc, _TIERED, source="KIP-405")
        for family, doc in (
            ("remote.log", "Settings of tiered storage: classes, threads, caches, limits."),
            ("remote.fetch", "How long reads wait for tiered storage."),
            ("remote.list.offsets", "How long requests for offsets wait for tiered storage."),
            ("rsm.config", "Settings of the class that stores segments in tiered storage."),
            ("rlmm.config", "Settings of the class that stores the locations of segments in tiered storage."),
        )
    ),
)
