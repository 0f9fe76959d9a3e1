"""The reasons why a broker's replicas cannot move to other brokers. All functions of the module are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

if TYPE_CHECKING:
    from headrace.cluster_models import PartitionDescription, PartitionReassignment, TopicDescription
    from headrace.models import BrokerInfo

#: Maximum number of partitions that an error message names; for further partitions it gives only their number.
NAMED_MAX = 5


def obstacles(
    drained: Iterable[int],
    brokers: Iterable[BrokerInfo],
    topics: Iterable[TopicDescription],
    moves: Mapping[TopicPartition, PartitionReassignment],
) -> dict[TopicPartition, str]:
    """For each partition with a replica on ``drained``, the reason why the replica cannot move. The dictionary is empty
    if at least one of the replicas can move."""
    leaving = set(drained)
    live = {each.broker_id for each in brokers if not each.fenced}
    takers = live - leaving - {each.broker_id for each in brokers if each.draining}
    found: dict[TopicPartition, str] = {}
    for topic in topics:
        for part in topic.partitions:
            if leaving.isdisjoint(part.replicas):
                continue
            partition = TopicPartition(topic.name, part.partition)
            why = _why_it_stays(part, moves.get(partition), live, takers)
            if why is None:
                return {}
            found[partition] = why
    return found


def _why_it_stays(
    part: PartitionDescription, move: PartitionReassignment | None, live: set[int], takers: set[int]
) -> str | None:
    if part.leader < 0:
        return "it has no leader to copy from"
    if move is not None and move.adding_replicas:
        dead = [each for each in move.adding_replicas if each not in live]
        return f"it moves to broker {_listed(dead)}, which is dead" if dead else None
    if takers <= set(part.replicas):
        return f"replicas {_listed(part.replicas)}; every live broker that takes replicas has one"
    return None


def words(drained: Iterable[int], found: Mapping[TopicPartition, str]) -> str:
    """The error message: which partitions cannot move, why, and what to do."""
    named = [f"{each.topic}-{each.partition} ({why})" for each, why in list(found.items())[:NAMED_MAX]]
    if len(found) > NAMED_MAX:
        named.append(f"and {len(found) - NAMED_MAX} more")
    return (
        f"cannot drain broker {_listed(drained)}: {counted(len(found), 'partition')} cannot move: {', '.join(named)}; "
        "start another broker, restart the dead ones, or lower the number of replicas (`headrace partitions reassign "
        "--topic NAME -r N`); the drain then continues, or pass --cancel to end it"
    )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
