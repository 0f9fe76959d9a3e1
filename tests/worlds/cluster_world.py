"""A small world for tests of the cluster's rules: a ClusterCore, a log in memory, and a clock that the test sets."""

from __future__ import annotations

import random
from typing import Any

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings, Decision
from headrace_controller.cluster.requests import (
    AssignDirectories,
    Bootstrap,
    CreateTopics,
    FenceSilentBrokers,
    Heartbeat,
    NewTopic,
    Placement,
    RegisterBroker,
    Registered,
    Request,
)
from headrace_core.metadata import BrokerEndpoint, MetadataImage, MetadataRecord, PartitionImage, TopicImage
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
