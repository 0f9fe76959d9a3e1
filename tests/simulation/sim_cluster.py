"""The committed state of the cluster, step by step: its invariants, and counts of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_core.metadata import (
    BrokerChangeRecord,
    MetadataDelta,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tests.simulation.cluster_invariants import check_step
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.sim_world import ControllersWorld


class ClusterWatch:
    """Checks each new reference image."""

    def __init__(self, world: ControllersWorld) -> None:
        self.world = world
        world.checks.on_image.append(self.look)

    def look(
        self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta, records: Sequence[MetadataRecord]
    ) -> None:
        if not records:
            return
        came = {each.broker_id for each in records if isinstance(each, RegisterBrokerRecord)}
        problems = check_step(before, after, delta, suspects=came)
        if problems:
            raise Violation(problems[0].partition(":")[0], f"{'; '.join(problems)} (after {records[0]!r} ...)")
        for record in records:
            if isinstance(record, PartitionChangeRecord):
                self._count_partition(before, after, record)
            elif isinstance(record, BrokerChangeRecord):
                self._count_broker(before, record)
            elif isinstance(record, RegisterBrokerRecord):
                again = record.broker_id in before.brokers
                self.world.count("brokers", "registered anew" if again else "registered first")

    def _count_broker(self, before: MetadataImage, record: BrokerChangeRecord) -> None:
        known, count = before.brokers.get(record.broker_id), self.world.count
        if known is None:
            return
        if record.fenced is not None and record.fenced != known.fenced:
            count("brokers", "active -> fenced" if record.fenced else "fenced -> active")
        if record.in_controlled_shutdown:
            count("brokers", "active -> shutting down")
        if record.offline_directories:
            count("brokers", "directory failed")

    def _count_partition(self, before: MetadataImage, after: MetadataImage, record: PartitionChangeRecord) -> None:
        old = before.partition(record.topic_id, record.partition)
        new = after.partition(record.topic_id, record.partition)
        if old is None or new is None:
            return
        count = self.world.count
        if new.leader != old.leader:
            if new.leader < 0:
                count("partitions", "led -> leaderless")
            elif old.leader < 0:
                count("partitions", "leaderless -> led")
            else:
                count("partitions", "led by another")
        if len(new.isr) < len(old.isr):
            count("partitions", "in-sync set shrinks")
        elif len(new.isr) > len(old.isr):
            count("partitions", "in-sync set grows")
        if new.elr and not old.elr:
            count("partitions", "has eligible replicas")
        if new.adding and not old.adding:
            count("partitions", "a move begins")
        if old.adding and not new.adding:
            count("partitions", "a move ends")
