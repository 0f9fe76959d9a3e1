"""The keys of a server's properties file, for every role, declared once.

As with Kafka, one file may configure a controller as well as a broker: each role reads its slice of ``SERVER`` and
ignores the other's, but nobody ignores a key that does not exist. Names, defaults and ranges are Kafka's (4.x); keys of
our own say so. A key marked dynamic can be changed while brokers run (``headrace configs alter``).
"""

from __future__ import annotations

import dataclasses

from ..config import INT_MAX, ConfigDef, ConfigKey, Kind, Scope
from ..log.config import TOPIC
from .pasted_keys import PASTED
from .upkeep_keys import UPKEEP

ROLES = ("controller", "broker", "coordinator")

#: A topic's key -> the server's key that gives its default for topics that do not set it.
TOPIC_DEFAULT_KEYS: dict[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "log.flush": "log.flush",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}

#: Coarser spellings of a topic default: key -> (the key in milliseconds, factor). The finest one that is given wins.
COARSE_DEFAULT_KEYS: dict[str, tuple[str, int]] = {
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}


def _topic_default(topic_key: str, name: str) -> ConfigKey:
    key = TOPIC.keys[topic_key]
    doc = f"Default of {topic_key} for topics that do not set it. {key.doc}"
    return dataclasses.replace(key, name=name, scope=Scope.CLUSTER_WIDE, doc=doc)


_NODE = [
    ConfigKey(
        name="process.roles",
        kind=Kind.LIST,
        default=[],
        doc="What this node is: controller or broker. May be left out: the program that is started says it.",
        choices=ROLES,
    ),
    ConfigKey(
        name="node.id",
        kind=Kind.INT,
        default=-1,
        doc="The node's id among those of its role. A broker may leave it out (-1): it gets one with its directories.",
        low=-1,
    ),
    ConfigKey(name="broker.id", kind=Kind.INT, default=-1, doc="Kafka's older name of node.id for a broker.", low=-1),
    ConfigKey(
        name="listeners",
        kind=Kind.LIST,
        default=["client://127.0.0.1:9095", "internal://127.0.0.1:19095"],
        doc="Where the node listens: client://host:port for clients, internal://host:port for other nodes. "
        "Port 0 takes a free one; an empty host means all addresses.",
    ),
    ConfigKey(
        name="advertised.listeners",
        kind=Kind.LIST,
        default=[],
        doc="How others reach the listeners, where that differs from where they are bound.",
    ),
    ConfigKey(
        name="log.dirs",
        kind=Kind.LIST,
        default=[],
        doc="The directories with this node's data, formatted before the first start. A controller uses the first one.",
    ),
    ConfigKey(name="log.dir", kind=Kind.STRING, default=None, doc="A single directory; log.dirs goes before it."),
    ConfigKey(
        name="controller.quorum.voters",
        kind=Kind.LIST,
        default=[],
        doc="The controllers: id@host:port of their internal listeners.",
    ),
    ConfigKey(
        name="controller.quorum.bootstrap.servers",
        kind=Kind.LIST,
        default=[],
        doc="host:port of some controllers' internal listeners; the voters' addresses by default.",
    ),
    ConfigKey(
        name="runtime.state.file",
        kind=Kind.STRING,
        default=None,
        doc="A JSON file that the node writes when it serves, with its pid and real addresses, and removes when it "
        "stops cleanly; node.json in the first log directory by default. Headrace's own key.",
    ),
    ConfigKey(
        name="log.level",
        kind=Kind.STRING,
        default="info",
        doc="How much the node says on stderr. Headrace's own key.",
        choices=("debug", "info", "warning", "error"),
    ),
]

_CLUSTER = [
    ConfigKey(
        name="num.partitions",
        kind=Kind.INT,
        default=1,
        doc="Partitions of a topic that is created without saying how many.",
        low=1,
    ),
    ConfigKey(
        name="default.replication.factor",
        kind=Kind.INT,
        default=1,
        doc="Replicas of a topic that is created without saying how many.",
        low=1,
        high=32767,
    ),
    ConfigKey(
        name="auto.create.topics.enable",
        kind=Kind.BOOLEAN,
        default=True,
        doc="May a client's metadata request create the topics that it names?",
    ),
    ConfigKey(name="delete.topic.enable", kind=Kind.BOOLEAN, default=True, doc="May topics be deleted?"),
    ConfigKey(
        name="broker.session.timeout.ms",
        kind=Kind.INT,
        default=9_000,
        doc="A broker that is silent for so long is fenced: it loses its leaderships.",
        low=100,
    ),
    ConfigKey(
        name="broker.heartbeat.interval.ms",
        kind=Kind.INT,
        default=2_000,
        doc="How often a broker tells the controller that it lives.",
        low=10,
    ),
    ConfigKey(
        name="metadata.max.records.per.request",
        kind=Kind.INT,
        default=10_000,
        doc="One admin request may not make more metadata records than this, about one for each partition. "
        "Headrace's own key.",
        low=1,
    ),
]

_BROKER = [
    ConfigKey(
        name="broker.rack",
        kind=Kind.STRING,
        default=None,
        doc="Where the broker stands; replicas are spread over racks.",
    ),
    ConfigKey(
        name="controlled.shutdown.enable",
        kind=Kind.BOOLEAN,
        default=True,
        doc="Hand leaderships over before stopping.",
    ),
    ConfigKey(
        name="request.timeout.ms",
        kind=Kind.INT,
        default=30_000,
        doc="How long a request may take when it does not say so itself.",
        low=1,
    ),
    ConfigKey(
        name="socket.request.max.bytes",
        kind=Kind.INT,
        default=104_857_600,
        doc="The largest request that is accepted.",
        low=1_024,
        high=104_857_600,
    ),
    ConfigKey(
        name="fetch.max.bytes",
        kind=Kind.INT,
        default=57_671_680,
        doc="The largest answer to one fetch.",
        low=1_024,
        high=104_857_600,
    ),
    ConfigKey(
        name="queued.max.requests",
        kind=Kind.INT,
        default=500,
        doc="How many requests may wait before clients are held back.",
        low=1,
        note="streams are held back by the bytes they have under way",
    ),
    ConfigKey(
        name="max.incremental.fetch.session.cache.slots",
        kind=Kind.INT,
        default=1_000,
        doc="How many incremental fetch sessions are kept.",
        low=0,
        note="a session is a stream, and lives as long",
    ),
]

_COARSE = [
    ConfigKey(name=name, kind=Kind.INT, default=None, doc=f"{target}, in units of {factor} ms.", low=-1, high=INT_MAX)
    for name, (target, factor) in COARSE_DEFAULT_KEYS.items()
]

_TOPIC_DEFAULTS = [_topic_default(topic_key, name) for topic_key, name in TOPIC_DEFAULT_KEYS.items()]

#: Every key of a server's properties file.
SERVER = ConfigDef([*_NODE, *_CLUSTER, *_BROKER, *UPKEEP, *_COARSE, *_TOPIC_DEFAULTS, *PASTED], where="server")


def topic_defaults(given: dict[str, object]) -> dict[str, object]:
    """The topic keys that a server's own settings (typed, only those given, not the defaults) set for its topics.

    ``{"log.retention.hours": 1}`` -> ``{"retention.ms": 3600000}``.
    """
    named = dict(given)
    for coarse, (fine, factor) in COARSE_DEFAULT_KEYS.items():  # finer spellings come first
        value = given.get(coarse)
        if isinstance(value, int) and fine not in named:
            named[fine] = value * factor if value >= 0 else value
    return {topic_key: named[name] for topic_key, name in TOPIC_DEFAULT_KEYS.items() if name in named}
