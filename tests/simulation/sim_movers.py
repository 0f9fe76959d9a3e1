"""The actors that move replicas and coordinators: an operator that reassigns and drains, partition leaders that add
followers to in-sync sets, producers that need ids, coordinators that start, send heartbeats and stop.

These actors see the reference image, which no node of the cluster has, so their requests are often outdated on arrival.
The invariants of ledger_invariants.py are checked with each new reference image.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.requests import (
    AllocateProducerIds,
    AlteredPartition,
    AlterPartition,
    AlterPartitionReassignments,
    CoordinatorHeartbeat,
    CoordinatorHeartbeatReply,
    CoordinatorRegistered,
    CreateTopics,
    DrainBroker,
    ElectionType,
    ElectLeaders,
    NewTopic,
    ProducerIdBlock,
    Reassignment,
    RegisterController,
    RegisterCoordinator,
    Request,
    UnregisterBroker,
)
from headrace_controller.quorum_controller import Answer, QuorumController
from headrace_core.errors import HeadraceError
from headrace_core.metadata import (
    METADATA_VERSION_FEATURE,
    BrokerEndpoint,
    FeatureRange,
    MetadataDelta,
    MetadataImage,
    MetadataRecord,
)
from tests.simulation.ledger_invariants import Promises, check_ledger_step
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

EVERY_MS = 180.0
HEARTBEAT_MS = 400.0
MOVERS_ADDRESS = 95
COORDINATORS = 3
_LIFE_IS_OVER = ("BROKER_ID_NOT_REGISTERED", "STALE_BROKER_EPOCH")
SHARD_TOPICS = ("__consumer_offsets", "__transaction_state")


class Movers:
    """See the module. The actors may also work in a quiet period, because their requests are no faults."""

    def __init__(self, world: ControllersWorld) -> None:
        self.world = world
        self.rng = random.Random(f"{world.plan.seed} movers")
        self.promises = Promises()
        self.coordinators = [SimulatedCoordinator(self, number) for number in range(COORDINATORS)]
        self._draining = -1

    def __str__(self) -> str:
        return "movers"

    def begin(self) -> None:
        self.world.checks.on_image.append(self._check)
        self.world.scheduler.after(EVERY_MS, self._act)
        for coordinator in self.coordinators:
            coordinator.begin()

    def _check(
        self, before: MetadataImage, after: MetadataImage, delta: MetadataDelta, records: Sequence[MetadataRecord]
    ) -> None:
        problems = check_ledger_step(
            before, after, records, copies_max=self.world.cluster_settings.reassignment_partitions_per_broker
        )
        if problems:
            raise Violation(problems[0].partition(":")[0], "; ".join(problems))

    @property
    def image(self) -> MetadataImage:
        return self.world.checks.latest

    def ask(self, request: Request, given: Callable[[MetadataImage, Any], None] | None = None) -> None:
        """``given`` receives the reference image on which the request was decided, and the controller's answer."""
        host = self.world.leader() if self.rng.random() < 0.8 else None
        target = host.node_id if host is not None else self.rng.choice(list(self.world.hosts))
        self.world.calls.send(MOVERS_ADDRESS, target, _Question(self, request, given))

    # -- what it does all the time ------------------------------------------------------------------------------------

    def _act(self) -> None:
        self.world.scheduler.after(EVERY_MS * (0.5 + self.rng.random()), self._act)
        if self.world.is_healing:  # started moves must finish
            if self._draining >= 0:
                self.ask(DrainBroker(self._draining, draining=False))
                self._draining = -1
            for _ in range(4 if self.image.ledger.reassigning else 0):
                self._alter_isr()
            return
        act = self.rng.choices(
            (
                self._reassign,
                self._alter_isr,
                self._drain,
                self._want_ids,
                self._make_shards,
                self._stranger,
                self._elect,
            ),
            weights=(3, 6, 1, 3, 1, 1, 2),
        )[0]
        act()

    def _reassign(self) -> None:
        image, rng = self.image, self.rng
        brokers = sorted(image.brokers)
        names = [name for name in image.topic_ids if name.startswith("topic-")]
        if not (brokers and names):
            return
        items = []
        for name in rng.sample(names, min(2, len(names))):
            topic = image.topic(name)
            assert topic is not None
            for number, partition in enumerate(topic.partitions):
                count = min(len(brokers), len(partition.replicas) - len(partition.removing))
                targets = None if rng.random() < 0.15 else tuple(rng.sample(brokers, count))
                items.append(Reassignment(name, number, targets))
        self.ask(AlterPartitionReassignments(tuple(items)))

    def _alter_isr(self) -> None:
        """The leader of a partition adds a live follower to the ISR; the simulation assumes that the follower has
        caught up."""
        image = self.image
        keys = [*image.ledger.reassigning] or [
            (topic.topic_id, number) for topic in image.topics.values() for number in range(len(topic.partitions))
        ]
        if not keys:
            return
        topic_id, number = self.rng.choice(keys)
        partition = image.topics[topic_id].partitions[number]
        leader = image.brokers.get(partition.leader)
        new = [each for each in partition.replicas if each not in partition.isr and image.is_available(partition, each)]
        if leader is None or not new or partition.recovering:
            return
        members = (*partition.isr, self.rng.choice(new))
        item = AlteredPartition(
            topic_id=topic_id,
            partition=number,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple((each, image.brokers[each].broker_epoch) for each in members),
        )
        self.ask(
            AlterPartition(
                broker_id=leader.broker_id,
                broker_epoch=leader.broker_epoch,
                metadata_offset=image.next_offset,
                partitions=(item,),
            )
        )

    def _drain(self) -> None:
        """Drain one broker at a time, and not for long: the other brokers must hold all replicas."""
        if self._draining >= 0:
            broker_id, self._draining = self._draining, -1
            if self.rng.random() < 0.3:
                self.ask(UnregisterBroker(broker_id))
            self.ask(DrainBroker(broker_id, draining=False))
        elif self.image.brokers:
            self._draining = self.rng.choice(sorted(self.image.brokers))
            self.ask(DrainBroker(self._draining, draining=True))

    def _want_ids(self) -> None:
        brokers = list(self.image.brokers.values())
        if not brokers:
            return
        broker = self.rng.choice(brokers)

        def given(image: MetadataImage, result: Any) -> None:
            if isinstance(result, ProducerIdBlock):
                _blame(self.promises.gave_block(result.first, result.length))
                self.world.count("state", "producer ids given out")

        self.ask(AllocateProducerIds(broker.broker_id, broker.broker_epoch), given)

    def _make_shards(self) -> None:
        missing = [name for name in SHARD_TOPICS if name not in self.image.topic_ids]
        if missing:
            topic = NewTopic(name=missing[0], partitions=5, replication_factor=1)
            self.ask(CreateTopics((topic,), internal=True))

    def _elect(self) -> None:
        """Elect the preferred leaders of all partitions where that is possible."""
        self.ask(ElectLeaders(ElectionType.PREFERRED))

    def _stranger(self) -> None:
        """Let a controller of an older version try to register."""
        old = (FeatureRange(METADATA_VERSION_FEATURE, 1, 1),)
        self.ask(RegisterController(90, bytes(15) + b"\x07", old))


class SimulatedCoordinator:
    """A coordinator process that registers, sends heartbeats, stops or dies, and starts again as another process, with
    its old id or a new one."""

    def __init__(self, movers: Movers, number: int) -> None:
        self.movers, self.number = movers, number
        self.rng = random.Random(f"{movers.world.plan.seed} coordinator {number}")
        self.life = 0
        self.identity: CoordinatorRegistered | None = None
        self._incarnation = b""

    def begin(self) -> None:
        self._start()

    def _start(self) -> None:
        self.life += 1
        self.identity = None
        self._incarnation = self.rng.randbytes(16)
        self._beat(self.life, wants_shutdown=False)

    def _beat(self, life: int, *, wants_shutdown: bool) -> None:
        """Send heartbeats until this life ends."""
        rng, scheduler = self.rng, self.movers.world.scheduler
        if life != self.life:
            return
        if not self.movers.world.is_healing and rng.random() < 0.02:  # it dies, or pauses for too long
            self.life += 1
            scheduler.after(rng.choice((50.0, 600.0, 4_000.0)), self._start)
            if self.identity is not None:
                for delay_ms in (300.0, 1_500.0, 5_000.0):  # or it only paused, and continues
                    scheduler.after(delay_ms, self._haunt, self.identity)
            return
        if self.identity is None:
            wanted = 7 + self.number if self.number else -1
            endpoints = (BrokerEndpoint("internal", f"k{self.number}", 1),)
            request: Request = RegisterCoordinator(
                cluster_id=self.movers.world.cluster_id,
                incarnation_id=self._incarnation,
                endpoints=endpoints,
                wanted_id=wanted,
            )
        else:
            wants_shutdown = wants_shutdown or (not self.movers.world.is_healing and rng.random() < 0.02)
            who = self.identity
            request = CoordinatorHeartbeat(who.coordinator_id, who.coordinator_epoch, want_shutdown=wants_shutdown)
        asked = self.identity

        def given(image: MetadataImage, result: Any) -> None:
            if asked is not None:
                self._judge(asked, image, result)
            if life != self.life:
                return
            if isinstance(result, CoordinatorRegistered):
                self.identity = result
            elif getattr(result, "should_shutdown", False) or getattr(result, "code", "") in _LIFE_IS_OVER:
                self._start()

        self.movers.ask(request, given)
        delay_ms = HEARTBEAT_MS * (0.8 + 0.4 * rng.random())
        scheduler.after(delay_ms, lambda: self._beat(life, wants_shutdown=wants_shutdown))

    def _haunt(self, who: CoordinatorRegistered) -> None:
        """Send a heartbeat with the id and epoch of an earlier registration of this coordinator."""
        request = CoordinatorHeartbeat(who.coordinator_id, who.coordinator_epoch)
        self.movers.ask(request, lambda image, result: self._judge(who, image, result))

    def _judge(self, who: CoordinatorRegistered, image: MetadataImage, result: Any) -> None:
        if isinstance(result, CoordinatorHeartbeatReply):
            self.movers.world.count("state", "coordinator answered")
            if not result.should_shutdown:
                _blame(self.movers.promises.answered(image, who.coordinator_id, who.coordinator_epoch))


class _Question:
    """A request to any reachable node; the response is checked at the node that gives it."""

    def __init__(self, movers: Movers, request: Request, given: Callable[[MetadataImage, Any], None] | None) -> None:
        self.movers, self.request, self.given = movers, request, given

    def answered(self, result: Any) -> None:
        """The node is down, so no response comes."""

    def act(self, host: ControllerHost, controller: QuorumController) -> None:
        world = self.movers.world

        def done(result: Any) -> None:
            if isinstance(result, HeadraceError) and result.code == "UNKNOWN_SERVER_ERROR":
                raise Violation("answers", f"{self.request}: {result.message}")
            given = self.given
            if given is None:
                return
            if isinstance(result, Answer):  # checked against the image on which it was decided
                reference, at = world.checks.reference, result.metadata_offset
                world.when_checked(lambda: given(reference.get(at, world.checks.latest), result.reply))
            else:
                world.when_checked(lambda: given(world.checks.latest, result))

        host.guarded(lambda: controller.submit(self.request, done))


def _blame(problems: list[str]) -> None:
    if problems:
        raise Violation(problems[0].partition(":")[0], "; ".join(problems))
