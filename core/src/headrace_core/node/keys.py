"""The keys of a server's properties file, for every role, declared once.

As with Kafka, one file may configure a controller as well as a broker: each role reads its slice of ``SERVER`` and
ignores the other's, but nobody ignores a key that does not exist. Names, defaults and ranges are Kafka's (4.x); keys of
our own say so. A key whose scope is not read-only can be changed while brokers run (``headrace configs alter``).

    keys            who a node is, the cluster, the broker, defaults of topics; all of it together: SERVER
    upkeep_keys     what a broker does to its logs in the background
    quorum_keys     the metadata quorum: elections and snapshots
    group_keys      groups and offsets; transactions: accepted until they are built
    pasted_keys     what something else stands in for
    refused_keys    what nothing stands in for
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..config import HEADRACE, INT_MAX, ConfigDef, ConfigKey, Conflict, Kind, Scope, at_most
from ..log.broker_defaults import COARSE_DEFAULT_KEYS, TOPIC_DEFAULT_KEYS, server_hints
from ..log.config import TOPIC
from . import group_keys, pasted_keys, quorum_keys
from .refused_keys import REFUSED
from .replication_keys import REPLICATION
from .upkeep_keys import UPKEEP

ROLES = ("controller", "broker", "coordinator")


def _topic_default(topic_key: str, name: str) -> ConfigKey:
    key = TOPIC.keys[topic_key]
    doc = f"Default of {topic_key} for topics that do not set it. {key.doc}"
    return dataclasses.replace(key, name=name, scope=Scope.CLUSTER_WIDE, doc=doc)


_NODE = [
    ConfigKey(
        name="process.roles",
        kind=Kind.LIST,
        default=[],
        doc="What this node is: controller, broker or coordinator. May be left out: the program that runs says it.",
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
        doc="Where the node listens: client://host:port for clients, internal://host:port for other nodes, "
        "external://host:port for clients that reach the nodes by other addresses (advertised.listeners says which). "
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
        name="slots.dir",
        kind=Kind.STRING,
        default=None,
        doc="A directory that nodes of one role share, in place of node.id and log.dirs: a node takes slot-N in it, "
        "which no other process holds, with N as its id, and formats it if it is new. {slot} in a value stands for N.",
        source=HEADRACE,
    ),
    ConfigKey(
        name="slots.host",
        kind=Kind.STRING,
        default=None,
        doc="With slots.dir: a host name with {slot} in it, such as broker-{slot}. The node takes the slot whose name "
        "leads to itself, instead of the lowest one that is free.",
        source=HEADRACE,
    ),
    ConfigKey(
        name="slots.max",
        kind=Kind.INT,
        default=9,
        doc="With slots.dir: the highest slot that a node takes.",
        source=HEADRACE,
        low=1,
        high=1_000,
    ),
    ConfigKey(
        name="metadata.log.dir",
        kind=Kind.STRING,
        default=None,
        doc="The directory of a controller's metadata log, instead of the first one of log.dirs. A broker keeps none.",
        source="KIP-631",
    ),
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
        "stops cleanly; node.json in the first log directory by default.",
        source=HEADRACE,
    ),
    ConfigKey(
        name="log.level",
        kind=Kind.STRING,
        default="info",
        doc="How much the node says on stderr.",
        source=HEADRACE,
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
        name="broker.session.disconnect.grace.ms",
        kind=Kind.INT,
        default=500,
        doc="A broker whose stream of heartbeats breaks is fenced after this time, unless it heartbeats again before; "
        "twice as long for each further break of the same process in short order, up to broker.session.timeout.ms. A "
        "process that is gone closes its connections, so its partitions need not wait for the whole session.",
        source=HEADRACE,
        low=0,
    ),
    ConfigKey(
        name="broker.heartbeat.interval.ms",
        kind=Kind.INT,
        default=2_000,
        doc="How often a broker tells the controller that it lives.",
        low=10,
    ),
    ConfigKey(
        name="auto.leader.rebalance.enable",
        kind=Kind.BOOLEAN,
        default=True,
        doc="Give leaderships back to the preferred replicas from time to time?",
    ),
    ConfigKey(
        name="leader.imbalance.check.interval.seconds",
        kind=Kind.LONG,
        default=300,
        doc="How often leaderships that are not with the preferred replicas are looked for.",
        low=1,
    ),
    ConfigKey(
        name="leader.imbalance.per.broker.percentage",
        kind=Kind.INT,
        default=10,
        doc="Leaderships are given back to a broker that misses more than this share of those it is preferred for.",
        low=0,
        high=100,
    ),
    ConfigKey(
        name="unclean.leader.election.interval.ms",
        kind=Kind.LONG,
        default=300_000,
        doc="How often partitions without a leader are looked for that may be led uncleanly.",
        low=1,
    ),
    ConfigKey(
        name="auto.rebalance.enable",
        kind=Kind.BOOLEAN,
        default=True,
        doc="Move replicas to a broker that joined, or has too little? A broker that was only away for a while gets "
        "nothing: what it had is still its own.",
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    ConfigKey(
        name="auto.rebalance.delay.ms",
        kind=Kind.LONG,
        default=30_000,
        doc="The brokers that live must have been the same for so long before replicas are moved to those that have "
        "too little, so that several that join together share in one plan.",
        source=HEADRACE,
        low=0,
    ),
    ConfigKey(
        name="auto.rebalance.threshold.percentage",
        kind=Kind.INT,
        default=10,
        doc="A broker has too little when it is short of its share of replicas by more than this part of the share "
        "(and by more than one replica), or has none.",
        source=HEADRACE,
        low=0,
        high=100,
    ),
    ConfigKey(
        name="reassignment.partitions.per.broker",
        kind=Kind.INT,
        default=10,
        doc="No broker takes part in copying more partitions than this at a time when replicas are reassigned; the "
        "others wait their turn.",
        source=HEADRACE,
        low=1,
    ),
    ConfigKey(
        name="metadata.max.records.per.request",
        kind=Kind.INT,
        default=10_000,
        doc="One admin request may not make more metadata records than this, about one for each partition.",
        source=HEADRACE,
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
        default=16_777_216,
        doc="The largest request that clients may send, in bytes of records. A message with 1 MiB more is refused "
        "unread. Kafka's default is 100 MiB, which every connection can hold in the broker's memory.",
        low=1_024,
        high=104_857_600,
    ),
    ConfigKey(
        name="max.connections",
        kind=Kind.INT,
        default=10_000,
        doc="How many connections each listener takes; one more is closed as soon as it is accepted. Fewer where the "
        "process may not open so many files (docs/limits.md).",
        low=1,
        source="KIP-402",
    ),
    ConfigKey(
        name="fetch.max.bytes",
        kind=Kind.INT,
        default=57_671_680,
        doc="The largest answer to one fetch.",
        low=1_024,
        high=104_857_600,
    ),
]

_COARSE = [
    ConfigKey(
        name=name,
        kind=Kind.INT,
        default=None,
        doc=f"{target}, in {name.rpartition('.')[2]}; {target} goes before it.",
        low={"log.roll.hours": 1, "log.roll.jitter.hours": 0}.get(name, -1),
        high=INT_MAX,
    )
    for name, (target, _) in COARSE_DEFAULT_KEYS.items()
]

_TOPIC_DEFAULTS = [_topic_default(topic_key, name) for topic_key, name in TOPIC_DEFAULT_KEYS.items()]

#: Every key of a server's properties file, in the groups of docs/configuration.md.
SERVER_GROUPS: dict[str, tuple[ConfigKey, ...]] = {
    "The node": tuple(_NODE),
    "The cluster": tuple(_CLUSTER),
    "The broker": tuple(_BROKER),
    "Upkeep of the logs": UPKEEP,
    "Defaults of topics": (*_TOPIC_DEFAULTS, *_COARSE),
    "Network and threads": pasted_keys.NETWORK,
    "Replication": (*REPLICATION, *pasted_keys.REPLICATION),
    "The controllers": (*quorum_keys.QUORUM, *pasted_keys.QUORUM),
    "Log files": pasted_keys.LOGS,
    "Offsets": group_keys.OFFSETS,
    "Groups": group_keys.GROUPS,
    "Transactions": group_keys.TRANSACTIONS,
    "Tiered storage": pasted_keys.TIERED,
    "Metrics": pasted_keys.METRICS,
    "Security and what else is refused": REFUSED,
}

#: A cleaner thread needs so much to remember keys (Kafka asks for the same).
CLEANER_BUFFER_BYTES_MIN = 1_048_576


def _room_for_cleaners(values: Mapping[str, Any]) -> Iterator[Conflict]:
    buffer, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    least = values[threads] * CLEANER_BUFFER_BYTES_MIN
    if values[buffer] < least:
        message = (
            f"{buffer}={values[buffer]} is too little for {threads}={values[threads]}: each thread needs 1 MiB, "
            f"{least} in all"
        )
        yield Conflict((buffer, threads), message)


_heartbeat_below_session = at_most(
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "a broker would be fenced between two heartbeats",
    strictly=True,
)


def _heartbeats_in_time(values: Mapping[str, Any]) -> Iterable[Conflict]:
    """A controller needs the session alone, and may be told nothing of heartbeats."""
    return () if values["process.roles"] == ["controller"] else _heartbeat_below_session(values)


SERVER = ConfigDef(
    [key for group in SERVER_GROUPS.values() for key in group],
    where="server",
    hints=server_hints(),
    checks=(
        _heartbeats_in_time,
        at_most("message.max.bytes", "socket.request.max.bytes", "such a batch would never arrive"),
        at_most("replica.fetch.wait.max.ms", "replica.lag.time.max.ms", "followers of idle partitions would lag"),
        at_most("replica.fetch.wait.max.ms", "replica.socket.timeout.ms", "a follower would give its leader up"),
        at_most(
            "log.cleaner.min.compaction.lag.ms",
            "log.cleaner.max.compaction.lag.ms",
            "a record would have to stay and to go at the same time",
        ),
        _room_for_cleaners,
        *group_keys.CHECKS,
    ),
)


def effective(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with the coarser spellings among ``given`` put into the keys in milliseconds that they stand for."""
    settled = dict(values)
    fixed = set(given)
    for coarse, (fine, factor) in COARSE_DEFAULT_KEYS.items():  # finer spellings come first
        value = given.get(coarse)
        if isinstance(value, int) and fine not in fixed:
            settled[fine] = value * factor if value >= 0 else value
            fixed.add(fine)
    return settled


def topic_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The topic keys that a server's own settings (typed, only those given, not the defaults) set for its topics.

    ``{"log.retention.hours": 1}`` -> ``{"retention.ms": 3600000}``.
    """
    named = effective(given, given)
    return {topic_key: named[name] for topic_key, name in TOPIC_DEFAULT_KEYS.items() if name in named}
