"""Brokers as the controllers see them: they register, send heartbeats, follow the metadata log, and report what happens
to their replicas. The brokers of this module store no records; each has its own image of the cluster, which
FollowMetadata updates.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.requests import (
    AssignDirectories,
    Heartbeat,
    HeartbeatReply,
    HeartbeatsEnded,
    Placement,
    RegisterBroker,
    Registered,
    Request,
)
from headrace_controller.quorum_controller import Answer, QuorumController
from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    CorruptLogError,
    DuplicateBrokerRegistrationError,
    HeadraceError,
    InvalidRequestError,
    NotControllerError,
    StaleBrokerEpochError,
)
from headrace_core.metadata import (
    EMPTY_IMAGE,
    UNASSIGNED_DIRECTORY,
    BrokerEndpoint,
    ImageBuilder,
    MetadataDelta,
    MetadataImage,
)
from tests.simulation.sim_checks import decoded

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

HEARTBEAT_MS = 400.0
FOLLOW_MS = 300.0
CALL_MS = 1_000.0


class SimulatedBroker:
    """See the module. A *life* begins with a registration. Requests of an earlier life may still arrive during a later
    one."""

    def __init__(self, world: ControllersWorld, number: int) -> None:
        from tests.simulation.sim_world import BROKER_ADDRESS

        self.world = world
        self.number = number
        self.address = BROKER_ADDRESS + number
        self.rng = random.Random(f"{world.plan.seed} broker {number}")
        self.rack = f"rack-{number % 2}"
        self.target = self.rng.randrange(world.plan.voters) + 1
        self.follows = self.rng.randrange(world.plan.voters) + 1
        self.directories: tuple[bytes, ...] = ()
        self.failed: tuple[bytes, ...] = ()
        self.life = 0
        self.is_up = False
        self.wants_shutdown = False
        self.broker_id = -1
        self.epoch = -1
        self.fenced = True
        self.image: MetadataImage = EMPTY_IMAGE
        self._waits = False
        self._disks = 0
        self._stream: ControllerHost | None = None
        self.new_disks()

    def __str__(self) -> str:
        return f"broker {self.broker_id if self.broker_id >= 0 else f'#{self.number + 1}'}"

    def new_disks(self) -> None:
        """Lose all data of the broker; the controllers then treat it as a new broker, unless it asks for its old id."""
        self._disks += 1
        self.directories = tuple(
            bytes([2, self.number, self._disks, each]) * 4 for each in range(self.rng.choice((1, 2)))
        )
        self.failed = ()

    # -- lives --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.world.scheduler.after(self.rng.random() * 50.0, self.start)

    def start(self) -> None:
        if self.is_up:
            return
        self.life += 1
        self.is_up = True
        self.wants_shutdown = False
        self.epoch = -1
        self.fenced = True
        self.failed = ()
        self.image = EMPTY_IMAGE
        self.incarnation = self.rng.randbytes(16)
        self._waits = False
        self.world.tell(self, "starts")
        self._register(self.life)
        self.world.scheduler.after(self.rng.random() * FOLLOW_MS, self._follow, self.life)

    def crash(self) -> None:
        """End the broker's process; its connections break."""
        if not self.is_up:
            return
        self.is_up = False
        self.life += 1
        self._break_stream()
        self.world.tell(self, "is gone")

    def restart(self) -> None:
        self.crash()
        self.start()

    def mend(self) -> None:
        """Let the broker's directories work again from its next start on. The broker is up."""
        if self.failed or self.wants_shutdown or not self.is_up:
            self.restart()

    def _break_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and self.epoch >= 0:
            self.world.scheduler.after(
                0.5 + 3.0 * self.rng.random(), self._stream_broke, stream, HeartbeatsEnded(self.broker_id, self.epoch)
            )

    def _stream_broke(self, host: ControllerHost, request: Request) -> None:
        controller = host.controller
        if controller is not None and not host.is_paused:
            host.guarded(lambda: controller.submit(request, None))
            host.wake()

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, request: Request, answered: Callable[[Any], None]) -> None:
        """Call ``answered`` with the reply, or with None if no reply arrives in time. ``answered`` is not called in a
        later life."""
        world, life, is_done = self.world, self.life, False

        def once(result: Any) -> None:
            nonlocal is_done
            if is_done or life != self.life:
                return
            is_done = True
            too_late.cancel()
            if result is None or isinstance(result, NotControllerError):
                self._look_for_the_leader(result)
            answered(result)

        world.past_calls.append((self.target, request))
        world.call(self.address, self.target, request, once)
        too_late = world.scheduler.after(CALL_MS, once, None)

    def _look_for_the_leader(self, result: Any) -> None:
        leader = getattr(result, "leader", None)
        if leader and leader[0] in self.world.hosts:
            self.target = leader[0]
        else:
            self.target = self.rng.choice(list(self.world.hosts))
        if self._stream is not None and self._stream.node_id != self.target:
            self._break_stream()

    def _register(self, life: int) -> None:
        if life != self.life:
            return
        request = RegisterBroker(
            cluster_id=self.world.cluster_id,
            incarnation_id=self.incarnation,
            directory_ids=tuple(each for each in self.directories if each not in self.failed),
            endpoints=(BrokerEndpoint("internal", f"b{self.number}", 9095),),
            rack=self.rack,
            wanted_broker_id=self.broker_id,
        )

        def answered(result: Any) -> None:
            if isinstance(result, Answer) and isinstance(result.reply, Registered):
                self.broker_id, self.epoch = result.reply.broker_id, result.reply.broker_epoch
                self.world.tell(self, f"is registered with epoch {self.epoch}")
                self._heartbeat(life)
            else:
                is_refused = isinstance(result, DuplicateBrokerRegistrationError | InvalidRequestError)
                if is_refused and self._has_lost_its_id():
                    self.world.tell(self, "was unregistered, and its id, or its disks, are another's: it begins anew")
                    self.broker_id = -1
                    self.new_disks()
                self.world.scheduler.after(50.0 + 200.0 * self.rng.random(), self._register, life)

        self._ask(request, answered)

    def _has_lost_its_id(self) -> bool:
        """The id of an unregistered broker may be assigned to another broker. A registration request that the earlier
        broker sent before it had an id may arrive after its id was given away. The earlier broker's disks then belong
        to another id."""
        others = (each for each in self.world.brokers if each is not self)
        if any(each.broker_id == self.broker_id and each.epoch >= 0 for each in others):
            return True
        registered = self.world.checks.latest.brokers
        return self.broker_id not in registered and any(
            set(self.directories) & set(each.directory_ids) for each in registered.values()
        )

    def _heartbeat(self, life: int) -> None:
        if life != self.life:
            return
        request = Heartbeat(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            metadata_offset=self.image.next_offset,
            want_shutdown=self.wants_shutdown,
            offline_directories=self.failed,
        )

        def answered(result: Any) -> None:
            delay_ms = HEARTBEAT_MS
            if isinstance(result, Answer) and isinstance(result.reply, HeartbeatReply):
                self._stream = self.world.hosts[self.target]
                if self.fenced and not result.reply.fenced:
                    self.world.tell(self, "is unfenced")
                self.fenced = result.reply.fenced
                if result.reply.should_shutdown and self.wants_shutdown:
                    self.world.count("state", "controlled shutdown done")
                    self.crash()
                    return
                delay_ms = 60.0 if self.fenced or self.wants_shutdown else HEARTBEAT_MS
            elif isinstance(result, StaleBrokerEpochError | BrokerIdNotRegisteredError):
                self.world.tell(self, "learns that it is not registered, or another life of it is")
                self.epoch = -1
                self._register(life)
                return
            elif result is None or isinstance(result, HeadraceError):
                delay_ms = 40.0 + 60.0 * self.rng.random()
            self.world.scheduler.after(delay_ms * (0.9 + 0.2 * self.rng.random()), self._heartbeat, life)

        self._ask(request, answered)

    # -- following the metadata log -----------------------------------------------------------------------------------

    def _follow(self, life: int) -> None:
        """Ask any controller for the next part of the metadata: a snapshot, or batches."""
        if life != self.life:
            return
        self.world.calls.send(self.address, self.follows, Follow(self, life, self.image.next_offset))
        pause_ms = FOLLOW_MS * (0.8 + 0.4 * self.rng.random())
        self.world.scheduler.after(pause_ms / 3 if self.world.is_healing else pause_ms, self._follow, life)
        if self.rng.random() < 0.03:
            self.follows = self.rng.choice(list(self.world.hosts))

    def no_feed(self) -> None:
        self.follows = self.rng.choice(list(self.world.hosts))

    def fed(self, life: int, base: int, snapshot: MetadataImage | None, data: bytes) -> None:
        """Handle what a controller has sent for the offset ``base``."""
        if life != self.life or base != self.image.next_offset:
            return
        world = self.world
        if snapshot is not None:
            if snapshot.next_offset <= self.image.next_offset:
                return
            delta = MetadataDelta.between(self.image, snapshot)
            self.image = snapshot
            world.count("state", "observer got a snapshot")
            world.checks.image(str(self), self.image, None)
            self._applied(delta)
        elif data:
            builder, batch = ImageBuilder(self.image), None
            for batch in decoded(data):
                for record in batch.records:
                    builder.replay(record)
            assert batch is not None
            self.image, delta = builder.finish(batch.next_offset, batch.epoch)
            world.checks.image(str(self), self.image, delta)
            self._applied(delta)

    def _applied(self, delta: MetadataDelta) -> None:
        """Report the directories of new replicas."""
        if self.epoch < 0 or len(self.directories) < 2:
            return
        placements = []
        for topic_id, numbers in delta.partitions.items():
            topic = self.image.topics.get(topic_id)
            for number in sorted(numbers) if topic is not None else ():
                partition = topic.partitions[number]
                if (
                    self.broker_id in partition.replicas
                    and partition.directory_of(self.broker_id) == UNASSIGNED_DIRECTORY
                ):
                    online = [each for each in self.directories if each not in self.failed]
                    if online:
                        placements.append(Placement(topic_id, number, self.rng.choice(online)))
        if placements:
            request = AssignDirectories(broker_id=self.broker_id, broker_epoch=self.epoch, placements=tuple(placements))
            self._ask(request, lambda result: None)


class Follow:
    """A request for the metadata from ``offset`` on; any controller answers it from its applied metadata."""

    def __init__(self, broker: SimulatedBroker, life: int, offset: int) -> None:
        self.broker, self.life, self.offset = broker, life, offset
        self.answered: Callable[[Any], None] = lambda result: broker.no_feed()

    def act(self, host: ControllerHost, controller: QuorumController) -> None:
        broker, offset, life = self.broker, self.offset, self.life
        image, start = controller.image, host.log_start
        if image.next_offset <= offset:
            return
        snapshot, data = None, b""
        if offset < start:
            snapshot = host.snapshot_for_observers()
        else:
            try:
                data, _ = host.storage.read(offset, image.next_offset)
            except CorruptLogError:
                if not host.record.is_damaged:
                    raise
                host.world.count("state", "damage refused to an observer")
                broker.no_feed()
                return
        host.world.calls.send(host.node_id, broker.address, lambda: broker.fed(life, offset, snapshot, data))
