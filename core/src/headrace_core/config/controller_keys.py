"""Configuration keys of the controllers: decisions about brokers and partitions, and the metadata quorum.

The keys of the quorum (KIP-595, KIP-630) concern elections and snapshots of the metadata log. Kafka's followers fetch
from the leader. Headrace's leader pushes on streams that stay open, so heartbeats and broken connections replace
timeouts of single calls.
"""

from __future__ import annotations

from .definition import HEADRACE, LONG_MAX, Kind, Scope, accepted, honoured

_PUSHED = "has no effect: the leader sends to the others as soon as it has something"
_ELECTIONS = "has no effect: each election waits for a random time of once to twice the election timeout"
_TRIMMED = "has no effect: the log begins after the last snapshot but one, regardless of its size and age"
_CHUNKS = "has no effect: messages between controllers hold about 1 MiB"
_ONE_LINK = "has no effect: a broker has one connection to the controller, and finds the active one by itself"

CLUSTER = (
    honoured("num.partitions", 1, "Partitions of a topic that is created without saying how many.", low=1),
    honoured(
        "default.replication.factor",
        1,
        "Replicas of a topic that is created without saying how many.",
        low=1,
        high=32767,
    ),
    honoured(
        "auto.create.topics.enable", True, "Whether a client's metadata request creates the topics that it names."
    ),
    honoured("delete.topic.enable", True, "Whether topics can be deleted."),
    honoured(
        "broker.session.timeout.ms",
        9_000,
        "A broker or coordinator without a heartbeat for this time is fenced: it loses its leaderships or shards.",
        low=100,
    ),
    honoured(
        "broker.session.disconnect.grace.ms",
        500,
        "A broker whose stream of heartbeats breaks is fenced after this time, unless it heartbeats again before; "
        "twice as long for each further break of the same process in short order, up to broker.session.timeout.ms. "
        "A process that dies closes its connections, so its partitions do not wait for the whole session.",
        source=HEADRACE,
        low=0,
    ),
    honoured("broker.heartbeat.interval.ms", 2_000, "How often a broker sends a heartbeat to the controller.", low=10),
    honoured(
        "auto.leader.rebalance.enable", True, "Whether the controller moves leaderships back to the preferred replicas."
    ),
    honoured(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often the controller looks for leaders that are not the preferred replicas.",
        kind=Kind.LONG,
        low=1,
    ),
    honoured(
        "leader.imbalance.per.broker.percentage",
        10,
        "Leaderships are given back to a broker that misses more than this share of those it is preferred for.",
        low=0,
        high=100,
    ),
    honoured(
        "unclean.leader.election.interval.ms",
        300_000,
        "How often the controller looks for partitions that need an unclean election.",
        kind=Kind.LONG,
        low=1,
    ),
    honoured(
        "auto.rebalance.enable",
        True,
        "Whether the controller moves replicas to a broker that joined or has too few. A broker that was only down "
        "keeps its replicas and gets no others.",
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    honoured(
        "auto.rebalance.delay.ms",
        30_000,
        "The set of live brokers must be unchanged for this time before replicas are moved to those that have too "
        "little, so that several that join together share in one plan.",
        kind=Kind.LONG,
        source=HEADRACE,
        low=0,
    ),
    honoured(
        "auto.rebalance.threshold.percentage",
        10,
        "A broker has too little when it is short of its share of replicas by more than this part of the share "
        "(and by more than one replica), or has none.",
        source=HEADRACE,
        low=0,
        high=100,
    ),
    honoured(
        "reassignment.partitions.per.broker",
        10,
        "No broker takes part in copying more partitions than this at a time when replicas are reassigned; the "
        "others wait their turn.",
        source=HEADRACE,
        low=1,
    ),
    honoured(
        "metadata.max.records.per.request",
        10_000,
        "One admin request may not make more metadata records than this, about one for each partition.",
        source=HEADRACE,
        low=1,
    ),
)

QUORUM = (
    honoured(
        "controller.quorum.election.timeout.ms",
        1_000,
        "A controller that hears of no leader for once to twice this time asks for votes; a leader without answers "
        "from a majority for this time resigns. Heartbeats come every 0.3 of this time. That a leader's process "
        "ended is noticed by its broken connections, within 0.3 of this time. That it stood still is not held "
        "against brokers when that was half of this time or more, and half of their session. Above 2000 each "
        "question how old the metadata are has a round of its own, instead of waiting for heartbeats.",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.fetch.timeout.ms",
        2_000,
        "How long a controller waits for its leader before it starts an election.",
        "has no effect: it does after once to twice controller.quorum.election.timeout.ms without a heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.election.backoff.max.ms",
        1_000,
        "The longest pause after an election without a winner.",
        _ELECTIONS,
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.request.timeout.ms",
        2_000,
        "How long a call between controllers may take.",
        "has no effect: what is lost is sent again after the next heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.retry.backoff.ms",
        20,
        "The pause before such a call is repeated.",
        "has no effect: what is lost is sent again after the next heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.append.linger.ms",
        25,
        "How long the leader lets records gather before it writes them.",
        "has no effect: a turn takes all that has arrived, and waits for nothing",
        low=0,
        source="KIP-595",
    ),
    accepted("controller.quorum.fetch.max.bytes", 1_048_576, "Bytes of one fetch.", _PUSHED, low=1),
    accepted(
        "controller.quorum.fetch.snapshot.max.bytes", 1_048_576, "Bytes of one fetch of a snapshot.", _CHUNKS, low=1
    ),
    accepted(
        "controller.quorum.auto.join.enable",
        False,
        "Whether a controller joins the voters automatically.",
        "voters never join by themselves; `headrace format` names the first, `headrace quorum add` the others",
        source="KIP-853",
    ),
    honoured(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "A controller writes a snapshot of the metadata when its log has grown by this many bytes since the last one.",
        kind=Kind.LONG,
        low=1,
        source="KIP-630",
    ),
    honoured(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "A controller makes a snapshot after this time, if there is anything new; 0: only by size.",
        kind=Kind.LONG,
        low=0,
        source="KIP-876",
    ),
    accepted("metadata.log.segment.bytes", 1_073_741_824, "Size of the metadata log's segments.", _TRIMMED, low=12),
    accepted("metadata.log.segment.ms", 604_800_000, "Age of the metadata log's segments.", _TRIMMED, kind=Kind.LONG),
    accepted(
        "metadata.max.retention.bytes", 104_857_600, "Size that the metadata log may have.", _TRIMMED, kind=Kind.LONG
    ),
    accepted("metadata.max.retention.ms", 604_800_000, "How long metadata records are kept.", _TRIMMED, kind=Kind.LONG),
    accepted("controller.socket.timeout.ms", 30_000, "How long a call to the controller may take.", _ONE_LINK),
    accepted(
        "metadata.max.idle.interval.ms",
        500,
        "How often an idle controller writes a no-op record.",
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
        "Whether the controller assigns broker ids (until Kafka 4).",
        "a broker without an id always gets one, with its directories",
    ),
    accepted(
        "reserved.broker.max.id",
        1_000,
        "Ids above it are given out (until Kafka 4).",
        "has no effect: the controller gives out the smallest id that is free",
    ),
)
