"""The keys of replication between brokers that are honoured; ``pasted_keys`` has those that something stands in for."""

from __future__ import annotations

from ..config import LONG_MAX, ConfigKey, Kind, Scope

#: What ``replica.selector.class`` may name to have consumers read from a replica in their rack: Kafka's class, and
#: shorter names for it.
RACK_AWARE_SELECTORS = (
    "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "RackAwareReplicaSelector",
    "rack-aware",
)
#: ... and to have them read from leaders, which is so without it too.
LEADER_SELECTORS = ("org.apache.kafka.common.replica.LeaderSelector", "LeaderSelector", "leader")


def _check_selector(name: str) -> str | None:
    selectors = (*RACK_AWARE_SELECTORS, *LEADER_SELECTORS)
    return None if name in selectors else f"no other class can be loaded: write one of {', '.join(selectors)}"


REPLICATION = (
    ConfigKey(
        name="replica.lag.time.max.ms",
        kind=Kind.LONG,
        default=30_000,
        doc="A follower whose disk has not had all that the leader has for so long leaves the in-sync set; earlier "
        "when its link to the leader is broken, or its log takes no appends.",
        low=1,
        source="KIP-16",
    ),
    ConfigKey(
        name="replica.selector.class",
        kind=Kind.STRING,
        default=None,
        doc="Which replica consumers read from: with the rack-aware one (RackAwareReplicaSelector) one in their rack "
        "(client.rack, broker.rack), else the leader.",
        check=_check_selector,
        source="KIP-392",
    ),
    ConfigKey(
        name="leader.replication.throttled.rate",
        kind=Kind.LONG,
        default=LONG_MAX,
        doc="Bytes per second that a broker sends to throttled replicas (leader.replication.throttled.replicas of the "
        "topic) that are far behind and not in sync.",
        low=0,
        scope=Scope.CLUSTER_WIDE,
        source="KIP-73",
    ),
)
