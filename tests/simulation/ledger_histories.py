"""The histories of cluster_histories.py, with additional events. Replicas move, brokers are drained and removed,
feature levels change, and coordinators and producers register. The invariants of cluster_invariants.py and
ledger_invariants.py check every step. No leader may lack a committed record, wherever its replica came from."""

from __future__ import annotations

from typing import Any

from headrace_controller.cluster.decision import Decision
from headrace_controller.cluster.requests import (
    AllocateProducerIds,
    AlterPartitionReassignments,
    CoordinatorHeartbeat,
    CoordinatorHeartbeatsEnded,
    CoordinatorRegistered,
    CreateTopics,
    DrainBroker,
    FeatureUpdate,
    NewTopic,
    ProducerIdBlock,
    Reassignment,
    RegisterBroker,
    RegisterController,
    RegisterCoordinator,
    Request,
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from headrace_core.errors import HeadraceError
from headrace_core.metadata import (
    METADATA_VERSION_FEATURE,
    BrokerEndpoint,
    ClusterRecord,
    ConfigResourceType,
    FeatureRange,
    MetadataImage,
    QueuedReassignmentRecord,
)
from tests.simulation.cluster_histories import Broken, Histories, Machine
from tests.simulation.ledger_invariants import Promises, check_ledger_end, check_ledger_step
from tests.worlds.cluster_world import CLUSTER, id16

COPIES_MAX = 1
RATE = 1_000_000
#: Number of rounds of two seconds at the end of a history in which leaders still drop followers and miss messages
#: sometimes.
FITFUL_ROUNDS = 60
#: Maximum number of further rounds, in which leaders drop no follower and miss no message. Each of the (at most) 34
#: partitions gets two rounds, and two more for moves that are planned only after the first moves.
CALM_ROUNDS = 140


class LedgerHistories(Histories):
    """``run(steps)`` raises Broken. ``level``: the metadata.version at which the log begins."""

    def __init__(self, seed: int, *, level: int = 2, **settings: Any) -> None:
        self.promises = Promises()
        self.processes: dict[int, CoordinatorRegistered] = {}  # coordinators' processes, by number; former lives too
        self.silent: set[int] = set()
        #: The time and the stream of the last heartbeat of each coordinator (id, epoch) whose stream did not end since.
        self.beats: dict[tuple[int, int], tuple[float, int]] = {}
        self.begun = 0
        self._began_at_level = level
        settings.setdefault("reassignment_partitions_per_broker", COPIES_MAX)
        settings.setdefault("auto_rebalance_delay_ms", 0)
        super().__init__(seed, machines=5, **settings)
        if level == 1:
            self._begin_at_level_1()

    def _begin_at_level_1(self) -> None:
        """Let all nodes join again, with a metadata log that an old version has begun."""
        world = self.world
        self.has_eligible_replicas = False  # the rules for ELRs hold from the first record on, or not at all
        world.log[:] = [ClusterRecord(CLUSTER, 1)]
        world.core.resign()
        world.core.committed = world.core.speculative = MetadataImage().apply(world.log, 1)
        world.core.lead(world.now_ms)
        for machine in self.machines:
            self._gone(machine)
            machine.broker_id, machine.flush = -1, "commit"
            self._start(machine)
            self._beat(machine)

    # -- the controllers ----------------------------------------------------------------------------------------------

    def _accept(self, decision: Decision, request: Request | None) -> None:
        world = self.world
        before = world.image
        super()._accept(decision, request)
        if request is None:
            self._check_swept(before)
        problems = check_ledger_step(before, world.image, decision.records, copies_max=COPIES_MAX)
        if isinstance(decision.reply, ProducerIdBlock):
            problems += self.promises.gave_block(decision.reply.first, decision.reply.length)
        if isinstance(request, CoordinatorHeartbeat) and decision.failure is None:
            problems += self.promises.answered(before, request.coordinator_id, request.coordinator_epoch)
        if problems:
            raise Broken(problems[0].partition(":")[0], f"{problems} after {request}")
        for record in decision.records:
            if isinstance(record, QueuedReassignmentRecord) and record.automatic:
                self._count("planned")
        self._count_moves(before, world.image)

    def _check_swept(self, before: MetadataImage) -> None:
        """Check that time removes no coordinator that sends heartbeats, and has reached the leader."""
        for coordinator_id in before.ledger.coordinators.keys() - self.world.image.ledger.coordinators.keys():
            identity = coordinator_id, before.ledger.coordinators[coordinator_id].coordinator_epoch
            if identity in self.beats:
                until_ms = self.beats[identity][0] + self.world.core.sessions.timeout_ms
                until_ms = until_ms if identity in self.reached else min(until_ms, self._window_ends_ms())
                if self.world.now_ms <= until_ms:
                    raise Broken("sweep", f"coordinator {identity} was removed, although its heartbeats arrived")
                self._count("swept")

    def _check_silence(self) -> None:
        super()._check_silence()
        for each in self.world.image.ledger.coordinators.values():
            identity = each.coordinator_id, each.coordinator_epoch
            if identity not in self.reached and self.world.now_ms > self._window_ends_ms():
                raise Broken("silence", f"coordinator {identity} has not reached the leader in time, and is there")

    def _count_moves(self, before: MetadataImage, after: MetadataImage) -> None:
        was, now = before.ledger.reassigning, after.ledger.reassigning
        if was is not now:
            self.counts["begun"] = self.counts.get("begun", 0) + sum(key not in was for key in now)
            self.counts["ended"] = self.counts.get("ended", 0) + sum(key not in now for key in was)

    # -- chance -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.8:
            super().step()
            return
        match rng.choices(range(7), weights=(5, 2, 1, 4, 3, 2, 1))[0]:
            case 0:
                self._reassign_some()
            case 1:
                number = rng.choice(sorted(self.world.image.brokers))
                self._ask_about("drain", DrainBroker(number, draining=rng.random() < 0.5))
            case 2:
                self._unregister(rng.choice(sorted(self.world.image.brokers)))
            case 3:
                self._coordinate()
            case 4:
                machine = rng.choice(self.machines)
                self._ask_about("producer ids", AllocateProducerIds(machine.broker_id, machine.epoch))
            case 5:
                planned = any(queued.automatic for queued in self.world.image.ledger.queued.values())
                value = "false" if planned else rng.choice(["true", "true", "false"])
                self._set(ConfigResourceType.BROKER, "", "auto.rebalance.enable", value)
                self.upkeep()
            case 6:
                self._change_level()

    def _ask_about(self, what: str, request: Any) -> Any:
        reply = self.ask(request)
        is_refused = isinstance(reply, HeadraceError)
        self._count(f"{what} refused" if is_refused else what)
        if not is_refused and isinstance(request, CoordinatorHeartbeat):
            self._coordinator_reached(request.coordinator_id, request.coordinator_epoch)
            self.beats[request.coordinator_id, request.coordinator_epoch] = self.world.now_ms, request.stream
        elif isinstance(reply, CoordinatorRegistered):
            self._coordinator_reached(reply.coordinator_id, reply.coordinator_epoch)
        return reply

    def _coordinator_reached(self, coordinator_id: int, coordinator_epoch: int) -> None:
        self.reached.add((coordinator_id, coordinator_epoch))  # epochs are offsets, so no broker has the same identity
        self._serves()

    def _coordinator_stream_ended(self, coordinator_id: int, coordinator_epoch: int, stream: int) -> None:
        self.ask(CoordinatorHeartbeatsEnded(coordinator_id, coordinator_epoch, stream))
        _, last = self.beats.get((coordinator_id, coordinator_epoch), (0.0, 0))
        if stream >= last:
            self.beats.pop((coordinator_id, coordinator_epoch), None)

    def _unregister(self, broker_id: int) -> None:
        if not isinstance(self._ask_about("unregister", UnregisterBroker(broker_id)), HeadraceError):
            for machine in self.machines:
                if machine.broker_id == broker_id and machine.is_up:
                    self._gone(machine)  # its next heartbeat is refused, and it ends

    def _reassign_some(self) -> None:
        rng, image = self.rng, self.world.image
        brokers = sorted({machine.broker_id for machine in self.machines} & image.brokers.keys())
        items = []
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if rng.random() < 0.4:
                    targets: tuple[int, ...] | None = tuple(
                        rng.sample(brokers, min(len(brokers), rng.choice([1, 2, 3, len(partition.replicas)])))
                    )
                    items.append(Reassignment(topic.name, number, None if rng.random() < 0.15 else targets))
        throttle = rng.choice([None, None, RATE, 0])
        self._ask_about("reassign", AlterPartitionReassignments(tuple(items), throttle_bytes_per_s=throttle))

    def _coordinate(self) -> None:
        rng = self.rng
        act = rng.random()
        if act < 0.1:
            name = rng.choice(["__consumer_offsets", "__transaction_state"])
            topic = NewTopic(name=name, partitions=rng.choice([3, 5]), replication_factor=1)
            self.ask(CreateTopics((topic,), internal=True))
        if act < 0.3:
            process = len(self.processes) + 1
            wanted = rng.choice([-1, 7, 7])
            former = self.world.image.ledger.coordinators.get(wanted)
            if former is not None and rng.random() < 0.7:  # its process has ended, whichever of them it is
                for stream in self.processes:
                    self._coordinator_stream_ended(wanted, former.coordinator_epoch, stream)
            reply = self._ask_about(
                "coordinator",
                RegisterCoordinator(
                    cluster_id=CLUSTER,
                    incarnation_id=id16(500_000 + process),
                    endpoints=(BrokerEndpoint("internal", "h", 1),),
                    wanted_id=wanted,
                ),
            )
            if isinstance(reply, CoordinatorRegistered):
                self.processes[process] = reply
            return
        if not self.processes:
            return
        process = rng.choice(list(self.processes)[-6:])
        if act < 0.4:
            self.silent.add(process)
        elif act < 0.5:
            self._coordinator_stream_ended(*self._identity(process), process)
        else:
            self._coordinator_beats(process, want_shutdown=rng.random() < 0.15)

    def _coordinator_beats(self, process: int, *, want_shutdown: bool = False) -> None:
        request = CoordinatorHeartbeat(*self._identity(process), want_shutdown=want_shutdown, stream=process)
        self._ask_about("coordinator beats", request)

    def _identity(self, process: int) -> tuple[int, int]:
        return self.processes[process].coordinator_id, self.processes[process].coordinator_epoch

    def _change_level(self) -> None:
        """Let controllers and brokers of another version try to join, and raise or lower the feature level."""
        rng = self.rng
        low = rng.choice([1, 2])
        ranges = (FeatureRange(METADATA_VERSION_FEATURE, low, rng.choice([low, 2])),)
        if rng.random() < 0.5:
            number = rng.choice([101, 102])
            self._ask_about("controller", RegisterController(number, id16(number), ranges))
        elif self.world.image.metadata_version == 1:
            self._register_old_broker()
        target = 2 if self.world.image.metadata_version == 1 and rng.random() < 0.3 else 1
        update = FeatureUpdate(METADATA_VERSION_FEATURE, target, UpgradeType.UPGRADE)
        self._ask_about("level", UpdateFeatures((update,)))

    def _register_old_broker(self) -> None:
        """Register a broker that knows level 1 only, and never starts."""
        request = RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(900_000),
            directory_ids=(id16(900_000),),
            endpoints=(BrokerEndpoint("internal", "h", 1),),
            wanted_broker_id=90,
            features=(FeatureRange(METADATA_VERSION_FEATURE, 1, 1),),
        )
        self._ask_about("old broker", request)

    def _reassign(self, name: str) -> None:
        if self._began_at_level == 2:  # else it is refused as a whole
            super()._reassign(name)

    def _lose_disk(self, machine: Machine) -> None:
        if self._began_at_level == 2:
            super()._lose_disk(machine)

    def _set(self, kind: ConfigResourceType, name: str, key: str, value: str) -> None:
        if key == "log.flush" and self._began_at_level == 1:
            return  # without eligible leader replicas a weak flush may lose records
        super()._set(kind, name, key, value)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        super()._heal()
        self.delayed.clear()  # lost requests are never delivered, so leaders may stop waiting for them
        living = [process for process in self.processes if process not in self.silent][-3:]
        for _ in range(FITFUL_ROUNDS):
            self._live_together(living)
        # The duration of moves is random in these rounds, and with two copies at a time a long queue may still be
        # waiting. In the calm rounds, which follow, each move takes two rounds, so a move that is not completed by the
        # end never will be.
        self.is_calm = True
        for _ in range(CALM_ROUNDS):
            if not self._problems_of_end(living):
                return
            self._live_together(living)
        problems = self._problems_of_end(living)
        if problems:
            raise Broken(problems[0].partition(":")[0], f"{problems} after all nodes have returned")

    def _problems_of_end(self, living: list[int]) -> list[str]:
        owners = [self.processes[process].coordinator_id for process in living]
        return check_ledger_end(self.world.image, living_coordinators=owners)

    def _live_together(self, living: list[int]) -> None:
        """Let all nodes work for two seconds. ``living``: the live coordinator processes."""
        for machine in self.machines:
            self._live(machine)
        for process in living:
            known = self.world.image.ledger.coordinators.get(self.processes[process].coordinator_id)
            if known is not None and known.coordinator_epoch == self.processes[process].coordinator_epoch:
                self._coordinator_beats(process)
        self.world.now_ms += 2_000
        self.upkeep()

    def _live(self, machine: Machine) -> None:
        """Let a broker send heartbeats, copy its logs to its followers, and add followers that have all records to the
        ISR."""
        self._start(machine)
        self._follow(machine)
        self._beat(machine)
        for key in self._led_by(machine):
            self._write(machine, key)
            for other in self.machines:
                if (
                    other is not machine
                    and other.broker_id in self.world.image.topics[key[0]].partitions[key[1]].replicas
                ):
                    self._copy(machine, other, key)
            machine.pending.pop(key, None)
            self._propose(machine, key)
