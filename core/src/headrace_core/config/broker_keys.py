"""Configuration keys of a broker: serving clients, maintenance of logs, replication, log files.

A Kafka key that Headrace has replaced is accepted, with Kafka's range and default; a broker that gets such a key logs a
note. A broker's default for a topic key is declared with the topic key (``topic_keys``).
"""

from __future__ import annotations

from .definition import HEADRACE, INT_MAX, LONG_MAX, Kind, Scope, accepted, honoured

#: Upper bound of thread counts, because a broker that cannot start its threads does not start: a typing mistake must
#: not stop all brokers. (Kafka has no bound, but a dynamic value may be at most twice the present value.)
THREADS_MAX = 256
#: Values of ``replica.selector.class`` for reads from a replica in the consumer's rack: Kafka's class and short names.
RACK_AWARE_SELECTORS = (
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "RackAwareReplicaSelector",
    "rack-aware",
)
#: ... and that have them read from leaders, the default.
LEADER_SELECTORS = ("org.apache.kafka.common.replica.LeaderSelector", "LeaderSelector", "leader")

_REPLICATION = (
    "has no effect: a leader pushes what it has at once, on one stream to each follower, and on a second one to those "
    "that are far behind"
)
_CHECKPOINTS = (
    "has no effect: recovery points, high watermarks and log starts are written every 5 s, and at a clean stop"
)
_TIERED = "has no effect: tiered storage is not built"
_QUOTAS = "has no effect: quotas are not built"
_PACED = "has no effect: a throttle fills by the clock, and measures no windows"
_ACTIONS = "has no effect: nodes of one release talk to each other; there is no format or protocol to choose"


def _check_selector(name: str) -> str | None:
    selectors = (*RACK_AWARE_SELECTORS, *LEADER_SELECTORS)
    return None if name in selectors else f"no other class can be loaded: write one of {', '.join(selectors)}"


BROKER = (
    honoured("broker.rack", None, "The rack or zone of the broker; replicas are spread over racks."),
    honoured("controlled.shutdown.enable", True, "Hand leaderships over before stopping."),
    honoured("request.timeout.ms", 30_000, "How long a request may take when it does not say so itself.", low=1),
    honoured(
        "socket.request.max.bytes",
        16_777_216,
        "The largest request that clients may send, in bytes of records. A message with 1 MiB more is refused "
        "unread. Kafka's default is 100 MiB, which every connection can hold in the broker's memory.",
        low=1_024,
        high=104_857_600,
    ),
    honoured(
        "max.connections",
        10_000,
        "The most connections of each listener; further ones are closed as soon as they are accepted. Lower when "
        "the process may open fewer files (docs/reference/limits.md).",
        low=1,
        source="KIP-402",
    ),
    honoured("fetch.max.bytes", 57_671_680, "The largest answer to one fetch.", low=1_024, high=104_857_600),
)

UPKEEP = (
    honoured(
        "log.retention.check.interval.ms",
        300_000,
        "How often the broker looks for segments that retention deletes. (Kafka: only by a restart.)",
        kind=Kind.LONG,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.initial.task.delay.ms",
        30_000,
        "How long after its start the broker begins retention and compaction.",
        kind=Kind.LONG,
        low=0,
    ),
    honoured(
        "num.recovery.threads.per.data.dir",
        2,
        "Threads of each log directory that recover logs at the start.",
        low=1,
        high=THREADS_MAX,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.enable",
        True,
        "Whether this broker compacts logs. If false, topics with cleanup.policy=compact grow without limit.",
    ),
    honoured(
        "log.cleaner.threads",
        1,
        "Threads that compact. All partitions share them.",
        low=0,
        high=THREADS_MAX,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.dedupe.buffer.size",
        134_217_728,
        "Bytes that all cleaner threads together use to remember keys: 24 for each key. A log with more keys "
        "than fit is compacted in several passes.",
        kind=Kind.LONG,
        low=1_024,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.io.buffer.size",
        524_288,
        "Bytes of all cleaner threads' buffers for reading and writing.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.io.buffer.load.factor",
        0.9,
        "How full the memory for keys may get, as a share of it. Fuller holds more keys and is slower.",
        low=0.01,
        high=0.99,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.io.max.bytes.per.second",
        float("inf"),
        "All cleaner threads together read and write no more bytes in a second than this.",
        kind=Kind.DOUBLE,
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "log.cleaner.backoff.ms",
        15_000,
        "How long a cleaner thread rests when there is nothing to compact; 100 ms at the least.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    honoured(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG_MAX,
        "How fast a replica is copied when it is moved between log directories (headrace log-dirs move).",
        kind=Kind.LONG,
        low=1,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-113",
    ),
    honoured(
        "log.dir.reserve.bytes",
        67_108_864,
        "Free bytes that a log directory keeps for deletes, checkpoints and compaction: with less, it refuses "
        "appends. Never more than 5 % of the disk. 0 keeps none.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    honoured(
        "log.scrub.bytes.per.second",
        4_194_304,
        "How fast each log directory is read through for damage, in the background; 0 turns that off.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    honoured(
        "log.open.files.max",
        1_000,
        "How many segment files a broker keeps open. It closes the least recently used file and opens it again "
        "when needed.",
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
        "A follower leaves the in-sync set when its disk has not caught up with the leader for this time; earlier "
        "when its link to the leader is broken, or its log takes no appends.",
        kind=Kind.LONG,
        low=1,
        source="KIP-16",
    ),
    honoured(
        "replica.selector.class",
        None,
        "Which replica consumers read from: with the rack-aware one (RackAwareReplicaSelector) one in their rack "
        "(client.rack, broker.rack), else the leader.",
        check=_check_selector,
        source="KIP-392",
    ),
    honoured(
        "leader.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that a broker sends to throttled replicas (leader.replication.throttled.replicas of the "
        "topic) that are far behind and not in sync.",
        kind=Kind.LONG,
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-73",
    ),
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
        "replica.fetch.min.bytes",
        1,
        "The least bytes in an answer to a follower's fetch; the leader waits for them.",
        _REPLICATION,
    ),
    accepted(
        "replica.fetch.response.max.bytes",
        10_485_760,
        "The most bytes of one answer to a follower.",
        _REPLICATION,
        low=0,
    ),
    accepted("replica.fetch.wait.max.ms", 500, "How long a follower's fetch waits for records.", _REPLICATION),
    accepted("replica.fetch.backoff.ms", 1_000, "How long a follower rests after an error.", _REPLICATION, low=0),
    accepted(
        "replica.socket.timeout.ms",
        30_000,
        "How long a follower waits for a silent leader before it reconnects.",
        _REPLICATION,
        low=1,
    ),
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
        "How often the broker looks for logs to flush.",
        "has no effect: each log knows when it is due (log.flush.interval.ms)",
        kind=Kind.LONG,
    ),
    accepted(
        "log.dir.failure.timeout.ms",
        30_000,
        "A broker stops if it cannot report a failed directory to the controller for this time.",
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

TIERED = (
    accepted(
        "follower.fetch.last.tiered.offset.enable",
        False,
        "Whether an empty follower starts after the offsets in tiered storage.",
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
