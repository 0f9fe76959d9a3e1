"""Configuration keys of the controllers: decisions about brokers and partitions, and the metadata quorum.

The keys of the quorum (KIP-595, KIP-630) concern elections and snapshots of the metadata log. Kafka's followers fetch
from the leader. Headrace's leader pushes records on streams that stay open, so heartbeats and broken connections
replace Kafka's timeouts of single fetches.
"""

from __future__ import annotations

from .definition import HEADRACE, LONG_MAX, Kind, Scope, accepted, honoured

_PUSHED = "has no effect: the leader sends new records to the other controllers at once"
_ELECTIONS = (
    "has no effect: after an election without a winner, a controller waits for a random time of one to two election "
    "timeouts"
)
_TRIMMED = (
    "has no effect: regardless of size and age, a controller keeps the metadata records since the second newest "
    "snapshot"
)
_CHUNKS = "has no effect: a controller sends a snapshot in messages of about 1 MiB"
_ONE_LINK = (
    "has no effect: a broker has one connection to the controllers, and finds the active controller automatically"
)

CLUSTER = (
    honoured("num.partitions", 1, "The default number of partitions of a new topic.", low=1),
    honoured(
        "default.replication.factor",
        1,
        "The default number of replicas of a new topic.",
        low=1,
        high=32767,
    ),
    honoured(
        "auto.create.topics.enable", True, "Whether a client's metadata request creates the topics that it names."
    ),
    honoured("delete.topic.enable", True, "Whether clients can delete topics."),
    honoured(
        "broker.session.timeout.ms",
        9_000,
        "How long the controllers wait for a heartbeat of a broker or coordinator before they fence it. A fenced "
        "broker loses its leaderships, a fenced coordinator its shards.",
        low=100,
    ),
    honoured(
        "broker.session.disconnect.grace.ms",
        500,
        "How long the controllers wait for a new heartbeat before they fence a broker whose heartbeat stream broke. If "
        "the stream breaks again within broker.session.timeout.ms, the controllers double the wait, up to "
        "broker.session.timeout.ms. When the broker registers again, the wait returns to "
        "broker.session.disconnect.grace.ms. When a broker's process dies, its connections break at once, so its "
        "partitions get new leaders long before broker.session.timeout.ms.",
        source=HEADRACE,
        low=0,
    ),
    honoured(
        "broker.heartbeat.interval.ms",
        2_000,
        "How often a broker or coordinator sends a heartbeat to the leading controller. A new leading controller "
        "fences nodes that do not reach it within two intervals after the first node did (at least 2 s, at most "
        "broker.session.timeout.ms).",
        low=10,
    ),
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
        "The percentage of a broker's preferred partitions that other brokers may lead. If other brokers lead more of "
        "these partitions, the controllers move leaderships back to this broker.",
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
        "Whether the controllers move replicas to brokers with too few replicas, such as a broker that has just "
        "joined. A broker that was down for a time still has its replicas, so its return causes no moves.",
        scope=Scope.CLUSTER_WIDE,
        source=HEADRACE,
    ),
    honoured(
        "auto.rebalance.delay.ms",
        30_000,
        "How long the set of live brokers must be unchanged before the controllers move replicas to brokers with too "
        "few replicas. One plan of replica moves then covers all brokers that joined during this delay.",
        kind=Kind.LONG,
        source=HEADRACE,
        low=0,
    ),
    honoured(
        "auto.rebalance.threshold.percentage",
        10,
        "By how many percent a broker may have fewer replicas than an even share. The controllers move replicas to a "
        "broker that lacks more than this percentage and more than one replica. The controllers also move replicas to "
        "a broker that has none, if the brokers have at least one replica each on average.",
        source=HEADRACE,
        low=0,
        high=100,
    ),
    honoured(
        "reassignment.partitions.per.broker",
        10,
        "Maximum number of partitions of one broker that reassignments copy at the same time; other partitions wait.",
        source=HEADRACE,
        low=1,
    ),
    honoured(
        "metadata.max.records.per.request",
        10_000,
        "Maximum number of metadata records that one admin request may create. Each partition needs about one record.",
        source=HEADRACE,
        low=1,
    ),
)

QUORUM = (
    honoured(
        "controller.quorum.election.timeout.ms",
        1_000,
        "The election timeout: a controller that receives no message from a leader for one to two election timeouts "
        "requests votes. A leader that receives no answers from a majority for one election timeout resigns. The "
        "leader sends a heartbeat every 0.3 election timeouts. When a leader's process ends, its connections break, "
        "and the other controllers start an election within 0.3 election timeouts. If the leader's process was "
        "suspended for more than half of both the election timeout and broker.session.timeout.ms, the session timeout "
        "of each broker starts again. With an election timeout above 2000 ms, the leader sends a separate round of "
        "heartbeats for each request for the metadata's age.",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.fetch.timeout.ms",
        2_000,
        "How long a controller waits for its leader before it starts an election.",
        "has no effect: a controller starts an election after one to two times "
        "controller.quorum.election.timeout.ms without a heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.election.backoff.max.ms",
        1_000,
        "The longest time that a controller waits after an election without a winner.",
        _ELECTIONS,
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.request.timeout.ms",
        2_000,
        "How long a call between controllers may take.",
        "has no effect: a controller repeats a lost message after the next heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.retry.backoff.ms",
        20,
        "The pause before a controller repeats a failed call to another controller.",
        "has no effect: a controller repeats a lost message after the next heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.append.linger.ms",
        25,
        "How long the leading controller gathers records before it writes them.",
        "has no effect: the controller writes the records of all requests that have arrived, and waits for no further "
        "requests",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.fetch.max.bytes",
        1_048_576,
        "Maximum number of bytes in one fetch of the metadata log.",
        _PUSHED,
        low=1,
    ),
    accepted(
        "controller.quorum.fetch.snapshot.max.bytes",
        1_048_576,
        "Maximum number of bytes in one fetch of a metadata snapshot.",
        _CHUNKS,
        low=1,
    ),
    accepted(
        "controller.quorum.auto.join.enable",
        False,
        "Whether a controller joins the voters automatically.",
        "controllers never become voters automatically; `headrace format` names the first voters, `headrace "
        "quorum add` adds voters",
        source="KIP-853",
    ),
    honoured(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "By how many bytes the metadata log grows before a controller writes the next snapshot of the metadata.",
        kind=Kind.LONG,
        low=1,
        source="KIP-630",
    ),
    honoured(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "How long after the last snapshot of the metadata a controller writes the next snapshot, if the metadata "
        "log has new records. With 0, only the growth of the log causes snapshots "
        "(metadata.log.max.record.bytes.between.snapshots).",
        kind=Kind.LONG,
        low=0,
        source="KIP-876",
    ),
    accepted(
        "metadata.log.segment.bytes", 1_073_741_824, "The size of segments of the metadata log.", _TRIMMED, low=12
    ),
    accepted(
        "metadata.log.segment.ms",
        604_800_000,
        "The age of a segment of the metadata log at which the controller begins a new segment.",
        _TRIMMED,
        kind=Kind.LONG,
    ),
    accepted(
        "metadata.max.retention.bytes", 104_857_600, "The largest size of the metadata log.", _TRIMMED, kind=Kind.LONG
    ),
    accepted(
        "metadata.max.retention.ms", 604_800_000, "How long the metadata log keeps records.", _TRIMMED, kind=Kind.LONG
    ),
    accepted("controller.socket.timeout.ms", 30_000, "How long a call to the controller may take.", _ONE_LINK),
    accepted(
        "metadata.max.idle.interval.ms",
        500,
        "How often an idle controller writes a no-op record.",
        "has no effect: heartbeats show that a controller is alive; an idle controller writes no records",
        low=0,
        source="KIP-835",
    ),
    accepted(
        "initial.broker.registration.timeout.ms",
        60_000,
        "How long a broker tries to register with the controllers before it stops.",
        "has no effect: a broker waits for the controllers without a limit",
        source="KIP-631",
    ),
    accepted(
        "server.max.startup.time.ms",
        LONG_MAX,
        "How long the start of a node may take.",
        "has no effect: a node may take as long as the recovery of its logs needs",
        kind=Kind.LONG,
        low=0,
    ),
    accepted(
        "controlled.shutdown.max.retries",
        3,
        "The number of attempts of a controlled shutdown (until Kafka 4).",
        _ONE_LINK,
    ),
    accepted(
        "controlled.shutdown.retry.backoff.ms",
        5_000,
        "The pause between attempts of a controlled shutdown (until Kafka 4).",
        _ONE_LINK,
        kind=Kind.LONG,
    ),
    accepted(
        "broker.id.generation.enable",
        True,
        "Whether the controller assigns broker ids (until Kafka 4).",
        "a broker without an id gets an id from the controllers when it registers",
    ),
    accepted(
        "reserved.broker.max.id",
        1_000,
        "The number above which the ids begin that the controller assigns to brokers (until Kafka 4).",
        "has no effect: the controller assigns the smallest free id",
    ),
)
