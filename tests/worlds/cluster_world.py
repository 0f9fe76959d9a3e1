"""The cluster's rules without a network: a ClusterCore with a log in memory and a clock that the test sets; brokers
that follow their leaders; metadata images made by records, for reassignments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings, Decision
from headrace_controller.cluster.reassignment import listed
from headrace_controller.cluster.rebalance import Move
from headrace_controller.cluster.requests import (
    AlteredPartition,
    AlterPartition,
    AlterPartitionReassignments,
    AssignDirectories,
    Bootstrap,
    CreateTopics,
    FenceSilentBrokers,
    Heartbeat,
    HeartbeatsEnded,
    NewTopic,
    Placement,
    Reassignment,
    RegisterBroker,
    Registered,
    Request,
)
from headrace_core.errors import HeadraceError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerChangeRecord,
    BrokerDrainRecord,
    BrokerEndpoint,
    ClusterRecord,
    ConfigResourceType,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionImage,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicImage,
    TopicRecord,
)
from headrace_core.metadata.shards import INTERNAL_TOPICS

CLUSTER = "cluster-one"


def id16(number: int) -> bytes:
    return (1_000_000 + number).to_bytes(16, "big")  # the smallest ids are reserved


class ClusterWorld:
    """``ask`` decides a request, and (unless ``in_flight``) commits the decision at once; it raises the error of a
    refused request."""

    def __init__(self, seed: int = 0, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_000.0
        self.core = ClusterCore(ClusterSettings(**settings), new_id=lambda: self.rng.randbytes(16))
        self.log: list[MetadataRecord] = []
        self.core.lead(self.now_ms)
        self.ask(Bootstrap(CLUSTER))

    @property
    def image(self) -> MetadataImage:
        return self.core.committed

    def decide(self, request: Request) -> Decision:
        """Decide a request and accept the decision, without committing it."""
        decision = self.core.decide(request, self.now_ms)
        self.log += decision.records
        self.core.accept(decision, len(self.log), epoch=1)
        return decision

    def commit(self) -> None:
        self.core.commit(len(self.log))

    def ask(self, request: Request, *, in_flight: bool = False) -> Any:
        decision = self.decide(request)
        if not in_flight:
            self.commit()
        if decision.failure is not None:
            raise decision.failure
        return decision.reply

    # -- brokers ------------------------------------------------------------------------------------------------------

    def register(
        self,
        number: int,
        *,
        life: int = 0,
        rack: str | None = None,
        wanted: int = -1,
        directories: tuple[bytes, ...] = (),
    ) -> Registered:
        """Register the broker with directory id ``number`` (or with several directories), in its incarnation number
        ``life``."""
        reply = self.ask(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=id16(1_000 * number + life),
                directory_ids=directories or (id16(number),),
                endpoints=(BrokerEndpoint("client", "127.0.0.1", 9_000 + number),),
                rack=rack,
                wanted_broker_id=wanted,
            )
        )
        assert isinstance(reply, Registered)
        return reply

    def beat(self, broker: Registered, *, applied: int | None = None, **wants: Any) -> Any:
        """Send a heartbeat of a broker; by default the broker has applied all metadata."""
        return self.ask(
            Heartbeat(
                broker_id=broker.broker_id,
                broker_epoch=broker.broker_epoch,
                metadata_offset=self.image.next_offset if applied is None else applied,
                **wants,
            )
        )

    def live_broker(self, number: int, **more: Any) -> Registered:
        broker = self.register(number, **more)
        assert not self.beat(broker).fenced
        return broker

    def tick(self) -> None:
        while self.decide(FenceSilentBrokers()).records:
            pass
        self.commit()

    def assign(self, broker: Registered, topic: TopicImage, directory: bytes, *partitions: int) -> Any:
        """Report that these replicas of the broker are in ``directory``; return the refused replicas."""
        placements = tuple(Placement(topic.topic_id, number, directory) for number in partitions)
        return self.ask(
            AssignDirectories(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, placements=placements)
        )

    # -- topics -------------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **more: Any) -> TopicImage:
        topics = (NewTopic(name=name, partitions=partitions, **more),)
        (result,) = self.ask(CreateTopics(topics, internal=name in INTERNAL_TOPICS))
        if result.error is not None:
            raise result.error
        topic = self.image.topic(name)
        assert topic is not None
        return topic

    def partition(self, name: str, number: int = 0) -> PartitionImage:
        topic = self.image.topic(name)
        assert topic is not None
        return topic.partitions[number]


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


def applied(image: MetadataImage, records: Sequence[MetadataRecord]) -> MetadataImage:
    return image.apply(records, image.next_offset + len(records))


def cluster(
    racks: Sequence[str | None], *, fenced: Collection[int] = (), draining: Collection[int] = ()
) -> MetadataImage:
    """Records that register brokers 1, 2, ... in these racks."""
    records: list[MetadataRecord] = [ClusterRecord(CLUSTER, 2)]
    for number, rack in enumerate(racks, start=1):
        endpoints = (BrokerEndpoint("client", "h", number),)
        records.append(RegisterBrokerRecord(number, number, id16(number), (id16(number),), endpoints, rack))
        records.append(BrokerChangeRecord(number, number, fenced=number in fenced))
        if number in draining:
            records.append(BrokerDrainRecord(number, True))
    return applied(EMPTY_IMAGE, records)


def with_topic(image: MetadataImage, name: str, replicas: Iterable[tuple[int, ...]]) -> MetadataImage:
    """Records of a topic whose partitions have these replicas: all are in sync, and the first replica leads."""
    topic_id = id16(10_000 + len(image.topics))
    records: list[MetadataRecord] = [TopicRecord(name, topic_id)]
    records += [PartitionRecord(topic_id, number, each, each, each[0], 0, 0) for number, each in enumerate(replicas)]
    return applied(image, records)


def random_cluster(rng: random.Random) -> MetadataImage:
    """Make a random cluster: 2 to 9 brokers in up to 4 racks, some fenced, some draining, and topics with random
    replicas."""
    count = rng.randint(2, 9)
    numbers = range(1, count + 1)
    names: list[str | None] = rng.choice([[None], ["a", "b"], ["a", "b", "c", "d"], ["a", "b", None]])
    fenced = [each for each in numbers if rng.random() < 0.1]
    draining = [each for each in numbers if rng.random() < 0.15]
    image = cluster([rng.choice(names) for _ in numbers], fenced=fenced, draining=draining)
    holders = rng.sample(list(numbers), rng.randint(1, count))
    for topic in range(rng.randint(1, 5)):
        factor = rng.randint(1, min(3, len(holders)))
        image = with_topic(image, f"t{topic}", [tuple(rng.sample(holders, factor)) for _ in range(rng.randint(1, 12))])
    return image


def after_moves(image: MetadataImage, moves: Sequence[Move]) -> MetadataImage:
    """The image after all these reassignments are completed."""
    records = []
    for move in moves:
        partition = image.topics[move.topic_id].partitions[move.partition]
        leader = partition.leader if partition.leader in move.targets else move.targets[0]
        records.append(
            PartitionChangeRecord(
                move.topic_id,
                move.partition,
                partition.partition_epoch + 1,
                leader=leader,
                leader_epoch=partition.leader_epoch + 1,
                isr=move.targets,
                replicas=move.targets,
                adding=(),
                removing=(),
            )
        )
    return applied(image, records)


def rack_count(image: MetadataImage, replicas: Iterable[int]) -> int:
    return len({image.brokers[each].rack or each for each in replicas})


def replica_counts(image: MetadataImage) -> Counter[int]:
    return Counter(
        replica for topic in image.topics.values() for partition in topic.partitions for replica in partition.replicas
    )


def leader_counts(image: MetadataImage) -> Counter[int]:
    return Counter(partition.replicas[0] for topic in image.topics.values() for partition in topic.partitions)
