"""A ClusterWorld with brokers that follow their leaders, and with a clock that advances: for tests of reassignments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_controller.cluster.reassignment import listed
from headrace_controller.cluster.requests import (
    AlteredPartition,
    AlterPartition,
    AlterPartitionReassignments,
    HeartbeatsEnded,
    Reassignment,
    Registered,
)
from headrace_core.errors import HeadraceError
from headrace_core.metadata import ConfigResourceType, MetadataRecord, PartitionImage
from tests.worlds.cluster_world import ClusterWorld


class MovesWorld(ClusterWorld):
    """Brokers 1 to ``count``, all live, in ``racks`` if given."""

    def __init__(self, count: int, *, racks: Iterable[str | None] = (), seed: int = 0, **settings: Any) -> None:
        super().__init__(seed, **settings)
        given = list(racks) or [None] * count
        self.brokers: dict[int, Registered] = {}
        for number in range(1, count + 1):
            self.add_broker(number, rack=given[number - 1])

    def add_broker(self, number: int, *, life: int = 0, rack: str | None = None) -> Registered:
        if number in self.brokers:  # the broker's former process has ended
            former = self.brokers[number]
            self.ask(HeartbeatsEnded(former.broker_id, former.broker_epoch))
        self.brokers[number] = self.live_broker(number, life=life, rack=rack)
        return self.brokers[number]

    def topic(self, name: str, replicas: list[tuple[int, ...]], **configs: str) -> None:
        assignments = dict(enumerate(replicas))
        self.create(name, partitions=-1, assignments=assignments, configs=configs)

    # -- time ---------------------------------------------------------------------------------------------------------

    def upkeep(self, *, steps_max: int = 1_000) -> list[MetadataRecord]:
        """Apply all decisions that are due by time; return their records."""
        begin = len(self.log)
        for _ in range(steps_max):
            decision = self.core.upkeep(self.now_ms)
            if not decision.records:
                self.commit()
                return self.log[begin:]
            self.log += decision.records
            self.core.accept(decision, len(self.log), epoch=1)
        raise AssertionError(f"upkeep does not end: {self.log[-3:]}")

    def pass_time(self, ms: float, *, but: Iterable[int] = ()) -> None:
        """Advance the time: all brokers except those in ``but`` send heartbeats, and decisions that become due are
        applied."""
        silent = set(but)
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 1_000, end_ms)
            for number, broker in self.brokers.items():
                known = self.image.brokers.get(number)
                if number not in silent and known is not None and known.broker_epoch == broker.broker_epoch:
                    self.beat(broker)
            self.upkeep()

    # -- replication --------------------------------------------------------------------------------------------------

    def catch_up(self, *, at_most: int = 1_000_000, but: Iterable[int] = ()) -> int:
        """Let leaders add live replicas to the ISR, in ``at_most`` partitions; return the number of partitions."""
        away, taken = set(but), 0
        for topic in self.image.topics.values():
            for number in range(len(topic.partitions)):
                partition = self.image.topics[topic.topic_id].partitions[number]
                new = [
                    each
                    for each in partition.replicas
                    if each not in partition.isr and each not in away and self.image.is_available(partition, each)
                ]
                if taken < at_most and new and partition.leader >= 0:
                    self.alter_isr(topic.topic_id, number, [*partition.isr, *new])
                    taken += 1
        return taken

    def alter_isr(self, topic_id: bytes, number: int, isr: list[int]) -> None:
        partition = self.image.topics[topic_id].partitions[number]
        leader = self.image.brokers[partition.leader]
        item = AlteredPartition(
            topic_id=topic_id,
            partition=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple((each, self.image.brokers[each].broker_epoch) for each in isr),
        )
        request = AlterPartition(
            broker_id=leader.broker_id,
            broker_epoch=leader.broker_epoch,
            metadata_offset=self.image.next_offset,
            partitions=(item,),
        )
        (result,) = self.ask(request)
        if result.error is not None:
            raise result.error

    def settle(self, *, rounds_max: int = 200, but: Iterable[int] = ()) -> int:
        """Alternate upkeep and catching up until no reassignment remains; return the number of rounds."""
        for rounds in range(rounds_max):
            self.upkeep()
            if not (self.image.ledger.reassigning or self.image.ledger.queued):
                return rounds
            self.catch_up(but=but)
        raise AssertionError(f"still moving: {list(listed(self.image))}")

    # -- reassignments ------------------------------------------------------------------------------------------------

    def reassign(
        self, wanted: dict[tuple[str, int], tuple[int, ...] | None], **options: Any
    ) -> list[HeadraceError | None]:
        items = tuple(Reassignment(topic, number, targets) for (topic, number), targets in wanted.items())
        reply = self.ask(AlterPartitionReassignments(items, **options))
        assert [(each.topic, each.partition) for each in reply] == list(wanted)
        return [each.error for each in reply]

    def move(self, topic: str, number: int, targets: tuple[int, ...] | None, **options: Any) -> None:
        """Request one reassignment; raise the error if it is refused."""
        (error,) = self.reassign({(topic, number): targets}, **options)
        if error is not None:
            raise error

    def state(self, topic: str, number: int = 0) -> tuple[tuple[int, ...], ...]:
        """Return (replicas, adding, removing, isr) of a partition."""
        partition: PartitionImage = self.partition(topic, number)
        return partition.replicas, partition.adding, partition.removing, partition.isr

    def topic_config(self, name: str) -> dict[str, str]:
        return dict(self.image.config(ConfigResourceType.TOPIC, name))

    def broker_config(self, broker_id: int) -> dict[str, str]:
        return dict(self.image.config(ConfigResourceType.BROKER, str(broker_id)))


def with_replicas(count: int, *replicas: tuple[int, ...], **settings: Any) -> MovesWorld:
    """Make brokers, and a topic t with these replicas."""
    world = MovesWorld(count, **settings)
    world.topic("t", list(replicas))
    return world
