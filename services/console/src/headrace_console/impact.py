"""The impact of a broker's loss. For each partition with a replica on the broker: which broker still serves the
partition, and what is at risk. Pure.

For a dead broker, the impact follows from the present state of its partitions. For a live broker, the same rules show
what its loss would mean: the broker's replicas leave the ISR, and another in-sync replica leads.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.cluster_models import PartitionDescription, TopicDescription


class Risk(enum.StrEnum):
    """The effects of a broker's loss that a client notices, worst first."""

    OFFLINE = "offline"
    READ_ONLY = "read-only"
    LAST_COPY = "last copy"
    FEWER_COPIES = "fewer copies"


#: The text for each risk.
MEANING = {
    Risk.OFFLINE: "No replica leads: clients can neither read nor write, until a replica that has all records returns.",
    Risk.READ_ONLY: (
        "Fewer in-sync copies than min.insync.replicas: reads continue, and writes with acks=all are refused."
    ),
    Risk.LAST_COPY: "One in-sync copy is left: reads and writes continue, and the loss of that broker stops both.",
    Risk.FEWER_COPIES: "Reads and writes continue, with one copy less.",
}


@dataclass(frozen=True, slots=True)
class Endangered:
    """``in_sync``: the brokers with an in-sync replica, except the lost broker."""

    topic: str
    partition: int
    leader: int
    in_sync: tuple[int, ...]
    min_insync: int | None
    risk: Risk


@dataclass(frozen=True, slots=True)
class Impact:
    """``partitions``: all partitions with a replica on the broker, the worst first. ``is_supposed``: the broker is
    alive, and the Impact describes its supposed loss."""

    broker_id: int
    is_supposed: bool
    partitions: tuple[Endangered, ...]

    def counts(self) -> dict[Risk, int]:
        return {risk: sum(each.risk is risk for each in self.partitions) for risk in Risk}

    @property
    def sentence(self) -> str:
        """The worst consequence in one sentence."""
        counts = self.counts()
        name, is_, are = f"broker {self.broker_id}", *(("would be",) * 2 if self.is_supposed else ("is", "are"))
        if not self.partitions:
            return f"Nothing depends on {name}: it stores no partition."
        if count := counts[Risk.OFFLINE]:
            return f"{_partitions(count)} {is_ if count == 1 else are} without a leader: no reads and no writes."
        if count := counts[Risk.READ_ONLY]:
            return f"Writes with acks=all {are} refused in {_partitions(count)}."
        if count := counts[Risk.LAST_COPY]:
            return f"All partitions {are} served; {_partitions(count)} on one last in-sync copy."
        return f"All partitions {are} served, {_partitions(len(self.partitions))} with one copy less."


def impact_of(
    broker_id: int, topics: Iterable[TopicDescription], *, is_alive: bool, min_insync: Mapping[str, int]
) -> Impact:
    """The impact of a dead broker, or of the supposed loss of a live broker. ``min_insync``: min.insync.replicas by
    topic, as far as known."""
    found = [
        _judged(broker_id, topic.name, part, min_insync.get(topic.name))
        for topic in topics
        for part in topic.partitions
        if broker_id in part.replicas
    ]
    worst_first = list(Risk)
    found.sort(key=lambda each: (worst_first.index(each.risk), each.topic, each.partition))
    return Impact(broker_id, is_alive, tuple(found))


def _judged(broker_id: int, topic: str, part: PartitionDescription, minimum: int | None) -> Endangered:
    in_sync = tuple(replica for replica in part.isr if replica != broker_id)
    leads_elsewhere = part.leader >= 0 and part.leader != broker_id
    if not leads_elsewhere and (not in_sync or part.leader < 0):
        risk = Risk.OFFLINE
    elif minimum is not None and len(in_sync) < min(minimum, len(part.replicas)):
        risk = Risk.READ_ONLY
    elif len(in_sync) == 1:
        risk = Risk.LAST_COPY
    else:
        risk = Risk.FEWER_COPIES
    return Endangered(topic, part.partition, part.leader, in_sync, minimum, risk)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count:,} partitions"
