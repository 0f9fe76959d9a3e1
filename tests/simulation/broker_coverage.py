"""The events that a run of the broker schedules must have seen to prove anything."""

from __future__ import annotations

from collections import Counter

from tests.simulation.broker_plan import KINDS, STORIES

#: (category, name), as they are counted in the world.
BROKERS_LISTED: tuple[tuple[str, str], ...] = (
    *(("fault", kind) for kind in KINDS),
    ("clocks", "brokers are days off"),
    *(("story", kind) for kind in (*STORIES, "old_copy")),  # a story that ran to its end
    ("copy", "older"),
    ("copy", "of the present epoch"),
    ("copy", "led until a follower refused"),
    ("state", "leader elected"),
    ("state", "in-sync set grew"),
    ("state", "in-sync set shrank"),
    ("state", "answer of the controllers lost"),
    ("state", "asymmetric partition"),
    ("state", "batch sent again"),
    ("state", "duplicate answered"),
    ("state", "stopped cleanly"),
    ("state", "disk full while all else is well"),
    ("state", "flush failed"),
    ("state", "power lost after a failed flush"),
    ("state", "unclean election"),
    ("state", "reader was told of a truncation"),
    ("refusal", "NOT_ENOUGH_REPLICAS"),
    ("refusal", "NOT_LEADER_OR_FOLLOWER"),
    ("refusal", "OUT_OF_ORDER_SEQUENCE_NUMBER"),
    ("event", "CorruptionFound"),
    ("event", "IsrExpanded"),
    ("event", "IsrShrunk"),
    ("event", "LogDirectoryFull"),
    ("event", "PartitionFollowed"),
    ("event", "ReplicaBeginsAnew"),
    ("event", "ReplicaTruncated"),
)


def brokers_missing(seen: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """The required events that never happened."""
    return [each for each in BROKERS_LISTED if not seen[each]]
