"""The keys of a broker's upkeep of its logs: retention, compaction, recovery, scrubbing, room on the disk.

Names, defaults and ranges are Kafka's (4.x); those of our own say so.
"""

from __future__ import annotations

from ..config import HEADRACE, INT_MAX, LONG_MAX, ConfigKey, Kind, Scope

#: A broker that cannot start its threads does not start: a slip of the finger (Kafka has no bound, and takes a dynamic
#: value of no more than twice the present one) must not become a cluster's setting.
THREADS_MAX = 256

UPKEEP = (
    ConfigKey(
        name="log.retention.check.interval.ms",
        kind=Kind.LONG,
        default=300_000,
        doc="How often the broker looks for segments that retention lets go. (Kafka: only by a restart.)",
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.initial.task.delay.ms",
        kind=Kind.LONG,
        default=30_000,
        doc="How long after its start the broker begins retention and compaction.",
        low=0,
    ),
    ConfigKey(
        name="num.recovery.threads.per.data.dir",
        kind=Kind.INT,
        default=2,
        doc="Threads of each log directory that recover logs at the start.",
        low=1,
        high=THREADS_MAX,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.cleaner.enable",
        kind=Kind.BOOLEAN,
        default=True,
        doc="Does this broker compact? Without it the topics with cleanup.policy=compact grow without end.",
    ),
    ConfigKey(
        name="log.cleaner.threads",
        kind=Kind.INT,
        default=1,
        doc="Threads that compact. All partitions share them.",
        low=0,
        high=THREADS_MAX,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.cleaner.dedupe.buffer.size",
        kind=Kind.LONG,
        default=134_217_728,
        doc="Bytes that all cleaner threads together use to remember keys: 24 for each key. A log with more keys "
        "than fit is compacted in several passes.",
        low=1_024,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.cleaner.io.buffer.size",
        kind=Kind.INT,
        default=524_288,
        doc="Bytes of all cleaner threads' buffers for reading and writing.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.cleaner.io.buffer.load.factor",
        kind=Kind.DOUBLE,
        default=0.9,
        doc="How full the memory for keys may get, as a share of it. Fuller holds more keys and is slower.",
        low=0.01,
        high=0.99,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.cleaner.io.max.bytes.per.second",
        kind=Kind.DOUBLE,
        default=float("inf"),
        doc="All cleaner threads together read and write no more bytes in a second than this.",
        low=1,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="log.cleaner.backoff.ms",
        kind=Kind.LONG,
        default=15_000,
        doc="How long a cleaner thread rests when there is nothing to compact; 100 ms at the least.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
    ),
    ConfigKey(
        name="replica.alter.log.dirs.io.max.bytes.per.second",
        kind=Kind.LONG,
        default=LONG_MAX,
        doc="How fast a replica is copied when it is moved between log directories (headrace log-dirs move).",
        low=1,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-113",
    ),
    ConfigKey(
        name="log.dir.reserve.bytes",
        kind=Kind.LONG,
        default=67_108_864,
        doc="Free bytes that a log directory keeps for deletes, checkpoints and compaction: with less, it refuses "
        "appends. Never more than 5 % of the disk. 0 keeps none.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    ConfigKey(
        name="log.scrub.bytes.per.second",
        kind=Kind.LONG,
        default=4_194_304,
        doc="How fast each log directory is read through for damage, in the background; 0 turns that off.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    ConfigKey(
        name="log.open.files.max",
        kind=Kind.INT,
        default=1_000,
        doc="How many files of segments a broker keeps open; those used longest ago are closed and opened anew "
        "when needed.",
        low=16,
        high=INT_MAX,
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
)
