"""Random histories of a cluster whose brokers hold records: the controllers' decisions are checked by their effect on
records.

A *machine* is a broker with its disk. A machine registers, sends heartbeats, follows the metadata (or lags), crashes,
stops cleanly, loses its disk, and starts again. The leader, according to its own applied image, accepts records, and
copies its log to the followers that their images show. A record is *committed* when every member of the leader's
maximal ISR has it (KIP-497), while the ISR has min.insync.replicas members (KIP-966). A cleanly elected leader must
have all committed records: all epochs, ELRs and markers exist for this promise. Requests to alter an ISR are delayed,
repeated and lost.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from headrace_controller.cluster.decision import Decision
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlteredPartition,
    AlterPartition,
    AlterPartitionReassignments,
    AlterResource,
    AssignDirectories,
    ConfigOp,
    CreateTopics,
    ElectionType,
    ElectLeaders,
    Heartbeat,
    HeartbeatsEnded,
    NewTopic,
    OpKind,
    Placement,
    Reassignment,
    RegisterBroker,
    Request,
)
from headrace_core.errors import HeadraceError, PolicyViolationError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    BrokerEndpoint,
    BrokerImage,
    ConfigResourceType,
    FoundEpochs,
    MetadataImage,
    PartitionImage,
)
from headrace_core.metadata.codec import decode_batches, encode_decision
from headrace_core.metadata.configs import min_insync_replicas, topic_value
from headrace_core.testing.verdicts import SafetyViolation
from tests.simulation.cluster_invariants import check_image, check_step
from tests.worlds.cluster_world import CLUSTER, ClusterWorld, id16

Key = tuple[bytes, int]


class Broken(SafetyViolation):
    """A promise was broken; ``rule`` is its name."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


@dataclass(slots=True)
class Machine:
    number: int
    directory: bytes
    flush: str
    disk: dict[Key, list[int]] = field(default_factory=dict)
    marker: int = -1
    started: int = -1
    #: An earlier copy of the disk: its directory, logs, started epoch and marker.
    saved: tuple[bytes, dict[Key, list[int]], int, int] | None = None
    broker_id: int = -1
    epoch: int = -1
    life: int = 0
    is_up: bool = False
    stream: int = 0
    view: MetadataImage = EMPTY_IMAGE
    #: The requested ISRs without a decision, as (partition epoch of the request, ISR). Requests of an outdated
    #: partition epoch are removed.
    pending: dict[Key, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    #: The life (process) in which the leader last saw each follower.
    seen: dict[tuple[Key, int], int] = field(default_factory=dict)
    #: The partition state that the controllers granted to this broker, until its own image shows the same state.
    granted: dict[Key, PartitionImage] = field(default_factory=dict)
    last_beat_ms: float = 0.0

    def sees(self, key: Key) -> PartitionImage | None:
        """The partition as this broker knows it."""
        partition, granted = self.view.partition(*key), self.granted.get(key)
        if partition is None or granted is None or granted.leader_epoch != partition.leader_epoch:
            return partition
        return granted if granted.partition_epoch > partition.partition_epoch else partition


@dataclass(frozen=True, slots=True)
class Profile:
    """How often each event happens: some bugs need many partitions, others the same partition again and again."""

    topics_max: int
    partitions_max: int
    flush: tuple[str, ...]
    operations: tuple[int, ...]
    #: beat, follow, crash, stop, lose the disk, start, write, fetch, propose, deliver, time, operate, new term, flap,
    #: bounce, all follow
    weights: tuple[float, ...]


PROFILES = (
    Profile(
        5,
        2,
        ("commit", "commit", "os"),
        (0, 1, 2, 3, 4, 5, 6, 6),
        (8, 20, 2, 1, 0.4, 8, 24, 16, 24, 12, 5, 2.5, 0.7, 1.5, 3, 6),
    ),
    # One partition, restarts all the time, and requests that arrive late.
    Profile(1, 1, ("os",), (0,), (4, 8, 5, 0.5, 0.3, 10, 8, 12, 16, 16, 4, 1, 0.3, 0.5, 12, 8)),
    # One partition, min.insync.replicas up and down, leaders that lag.
    Profile(1, 1, ("commit",), (0,), (10, 4, 3, 0.5, 0.1, 8, 20, 12, 24, 12, 6, 12, 0.3, 0.5, 1, 2)),
    # Many partitions, on brokers that lose their last records.
    Profile(12, 2, ("os",), (4, 6, 6), (10, 8, 3, 1, 0.3, 10, 20, 8, 10, 5, 3, 6, 0.5, 0.5, 10, 5)),
)


class Histories:
    """``run(steps)`` raises Broken. ``counts``: the events that happened, so that a history without events proves
    nothing."""

    def __init__(self, seed: int, *, machines: int = 4, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.profile = PROFILES[seed % len(PROFILES)]
        self.world = ClusterWorld(seed, **settings)
        flush = self.rng.choice(self.profile.flush)
        self.machines = [Machine(number, id16(number), flush) for number in range(machines)]
        self.committed: dict[Key, set[int]] = {}
        self.checked: dict[Key, int] = {}  # the last leader epoch with activity in each partition
        self.unclean: dict[Key, set[int]] = {}  # the leader epochs of each partition's unclean elections
        self.reverted: set[Key] = set()  # partitions without a leader whose only replica is an older copy
        self.has_eligible_replicas = True  # False: the rules of cluster_invariants.py do not apply
        self.delayed: list[AlterPartition] = []
        self.records = 0
        self.disks = machines
        #: Draws the copies of disks, in every fourth history; the others have none.
        self.copies = random.Random(f"copies {seed}") if seed % 4 == 0 else None
        self.streams = 0
        self.reached: set[tuple[int, int]] = (
            set()
        )  # the (id, epoch) of brokers that had contact with the present leader
        self.serves_since_ms: float | None = None  # since when brokers have time to reach the present leader
        self.pauses = random.Random(f"pauses {seed}")
        self.is_calm = False  # True: leaders add every complete replica, and their requests arrive
        self.counts: dict[str, int] = {}
        for machine in self.machines:
            self._start(machine)
            self._beat(machine)

    # -- the controllers ----------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Any:
        """The reply to a request; raises the error with which it was refused."""
        decision = self.world.core.decide(request, self.world.now_ms)
        self._accept(decision, request)
        return decision.reply if decision.failure is None else decision.failure

    def upkeep(self) -> None:
        for _ in range(16):
            decision = self.world.core.upkeep(self.world.now_ms)
            if not decision.records:
                self._check_silence()
                return
            self._accept(decision, None)

    def _lead(self) -> None:
        """Begin a new leader's term."""
        self.world.core.resign()
        self.world.core.lead(self.world.now_ms)
        self.reached.clear()
        self.serves_since_ms = None

    def _pass_time(self, ms: float) -> None:
        """Let time pass. Sometimes the leader stood still meanwhile, so that no broker could reach it."""
        self.world.now_ms += ms
        if self.pauses.random() < 0.3:
            self.world.core.served_late(self.world.now_ms)
            if self.serves_since_ms is not None:
                self.serves_since_ms = self.world.now_ms

    def _reached(self, machine: Machine) -> None:
        self.reached.add((machine.broker_id, machine.epoch))
        self._serves()

    def _serves(self) -> None:
        """Note that some node, a broker or a coordinator, has reached the present leader."""
        if self.serves_since_ms is None:
            self.serves_since_ms = self.world.now_ms

    def _window_ends_ms(self) -> float:
        """The time at which a broker must have reached the present leader."""
        interval_ms = self.world.core.settings.broker_heartbeat_interval_ms
        return math.inf if self.serves_since_ms is None else self.serves_since_ms + 2 * interval_ms

    def _accept(self, decision: Decision, request: Request | None) -> None:
        world = self.world
        before = world.image
        world.log += decision.records
        world.core.accept(decision, len(world.log), epoch=1)
        for after, delta in world.core.commit(len(world.log)):
            asked = isinstance(request, ElectLeaders) and request.type is ElectionType.UNCLEAN
            self._check_fencing(before, after, request)
            problems = self.has_eligible_replicas and check_step(
                before,
                after,
                delta,
                may_be_unclean=lambda topic, number, after=after, asked=asked: (
                    asked  # type: ignore[misc]
                    or topic_value(after, topic.name, "unclean.leader.election.enable")
                ),
                elections_pending=world.core.agenda.elections_pending,
                lost=self._lost(before, request),
                suspects=self._suspects(before, request),
            )
            if problems:
                raise Broken(problems[0].partition(":")[0], f"{problems} after {request}")
            for topic_id, numbers in delta.partitions.items():
                for number in numbers:
                    self._note_election(before.partition(topic_id, number), after, (topic_id, number))
            before = after

    def _check_fencing(self, before: MetadataImage, after: MetadataImage, request: Request | None) -> None:
        """Check that time fences no broker that sends heartbeats on an unbroken stream, and has reached the leader."""
        for machine in self.machines if request is None else ():
            old, new = before.brokers.get(machine.broker_id), after.brokers.get(machine.broker_id)
            if old is None or new is None or old.fenced or not new.fenced or new.broker_epoch != machine.epoch:
                continue
            until_ms = machine.last_beat_ms + self.world.core.sessions.timeout_ms
            if (machine.broker_id, machine.epoch) not in self.reached:
                until_ms = min(until_ms, self._window_ends_ms())
            if machine.is_up and self.world.now_ms <= until_ms:
                raise Broken(
                    "fencing", f"broker {machine.broker_id} was fenced, although its heartbeats arrived in time"
                )

    def _check_silence(self) -> None:
        """Check that a broker that has not reached the leader in time is fenced."""
        for broker in self.world.image.brokers.values():
            is_unknown = (broker.broker_id, broker.broker_epoch) not in self.reached
            if is_unknown and not broker.fenced and self.world.now_ms > self._window_ends_ms():
                raise Broken(
                    "silence", f"broker {broker.broker_id} has not reached the leader in time, and is not fenced"
                )

    def _lost(self, before: MetadataImage, request: Request | None) -> set[int]:
        """The broker whose registration ends a life that may have lost records."""
        former = self._former(before, request)
        return {former.broker_id} if former is not None and former.default_log_flush != "commit" else set()

    def _suspects(self, before: MetadataImage, request: Request | None) -> set[int]:
        """The brokers that report, by a registration after an unclean stop or by an empty replica, that they have lost
        records."""
        if isinstance(request, AssignDirectories) and any(each.fresh for each in request.placements):
            return {request.broker_id}
        former = self._former(before, request)
        return set() if former is None else {former.broker_id}

    def _former(self, before: MetadataImage, request: Request | None) -> BrokerImage | None:
        """The earlier life of the broker which this request reports as ended uncleanly."""
        former = before.brokers.get(request.wanted_broker_id) if isinstance(request, RegisterBroker) else None
        if former is None or not isinstance(request, RegisterBroker):
            return None
        is_same = former.incarnation_id == request.incarnation_id
        return None if is_same or former.broker_epoch == request.previous_broker_epoch else former

    def _note_election(self, old: PartitionImage | None, after: MetadataImage, key: Key) -> None:
        new = after.partition(*key)
        assert new is not None
        if old is None or new.leader in (old.leader, -1):
            return
        # An older copy that is the only replica leads at once. At level 1 it stays in the ISR.
        if new.leader not in (*old.isr, *old.elr) or key in self.reverted:
            self.reverted.discard(key)
            self.unclean.setdefault(key, set()).add(new.leader_epoch)
            self._count("unclean election")
        else:
            self._count("clean election" if new.leader in old.isr else "election from the ELR")

    # -- machines -----------------------------------------------------------------------------------------------------

    def _start(self, machine: Machine) -> None:
        if machine.is_up:
            return
        self._save_or_restore(machine)
        epochs = FoundEpochs(machine.directory, machine.started, machine.marker)
        reply = self.ask(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=id16(1_000 * (machine.number + 1) + machine.life),
                directory_ids=(machine.directory,),
                endpoints=(BrokerEndpoint("internal", "127.0.0.1", 9_000),),
                wanted_broker_id=machine.broker_id,
                previous_broker_epoch=machine.marker,
                default_log_flush=machine.flush,
                directory_epochs=() if self.copies is None else (epochs,),
            )
        )
        if isinstance(reply, HeadraceError):
            return  # the controllers still count the former process as alive
        machine.broker_id, machine.epoch = reply.broker_id, reply.broker_epoch
        self._note_older_copy(machine)
        machine.marker = -1
        machine.started = machine.epoch
        machine.is_up = True
        machine.last_beat_ms = self.world.now_ms
        self._reached(machine)
        self._new_stream(machine)
        self._follow(machine)

    def _note_older_copy(self, machine: Machine) -> None:
        """Remember what an older copy alone has. By its election the broker may have registered once more, and the
        partition may have got further replicas, which have no records yet."""
        image = self.world.image
        if machine.directory in image.brokers[machine.broker_id].outdated_directories:
            for topic, number, partition in image.partitions_on(machine.broker_id):
                if partition.replicas == (machine.broker_id,):
                    self.reverted.add((topic.topic_id, number))

    def _save_or_restore(self, machine: Machine) -> None:
        """In some histories, copy the disk of a machine that is down, or replace it by an earlier copy. A copy in the
        present epoch is left out: only followers recognize it (broker_stories.py)."""
        if self.copies is None:
            return
        draw = self.copies.random()
        if draw < 0.3:
            disk = {key: list(log) for key, log in machine.disk.items()}
            machine.saved = machine.directory, disk, machine.started, machine.marker
        elif draw < 0.5 and machine.saved is not None and machine.broker_id in self.world.image.brokers:
            directory, disk, started, marker = machine.saved
            known = self.world.image.brokers[machine.broker_id].directory_epochs
            if any(each.directory_id == directory and each.broker_epoch > max(started, marker) for each in known):
                machine.disk = {key: list(log) for key, log in disk.items()}
                machine.started, machine.marker = started, marker
                self._count("older copy")

    def _new_stream(self, machine: Machine) -> None:
        self.streams += 1
        machine.stream = self.streams

    def _follow(self, machine: Machine) -> None:
        """Apply the committed metadata, and drop decided requests.

        A log is created where the metadata place it. If the disk of this directory is lost, the controllers first learn
        that the replica starts empty; only then is the log created. After a crash, a refusal or a loss between these
        two steps, no empty log can therefore be confused with the old log.
        """
        if not machine.is_up:
            return
        view = machine.view = self.world.image
        placements = []
        for topic, number, partition in view.partitions_on(machine.broker_id):
            key = (topic.topic_id, number)
            if partition.directory_of(machine.broker_id) == machine.directory:
                machine.disk.setdefault(key, [])
            else:
                placements.append(Placement(*key, machine.directory, fresh=key not in machine.disk))
        gone = [key for key in machine.disk if not self._is_on(view, key, machine.broker_id)]
        for key in gone:
            del machine.disk[key]
        for key, (epoch, _) in list(machine.pending.items()):
            now = machine.sees(key)
            if now is None or now.partition_epoch > epoch or now.leader != machine.broker_id:
                del machine.pending[key]
        if placements:
            self._tell(machine, tuple(placements))

    def _tell(self, machine: Machine, placements: tuple[Placement, ...]) -> None:
        """Report the directories of replicas. Split too many directories into smaller calls, as the broker does
        (assignments.py)."""
        request = AssignDirectories(broker_id=machine.broker_id, broker_epoch=machine.epoch, placements=placements)
        if isinstance(self.ask(request), PolicyViolationError) and len(placements) > 1:
            half = len(placements) // 2
            self._count("directories told in parts")
            self._tell(machine, placements[:half])
            self._tell(machine, placements[half:])

    @staticmethod
    def _is_on(view: MetadataImage, key: Key, broker_id: int) -> bool:
        partition = view.partition(*key)
        return partition is not None and broker_id in partition.replicas

    def _beat(self, machine: Machine, *, want_shutdown: bool = False) -> Any:
        if not machine.is_up:
            return None
        machine.last_beat_ms = self.world.now_ms
        reply = self.ask(
            Heartbeat(
                broker_id=machine.broker_id,
                broker_epoch=machine.epoch,
                metadata_offset=machine.view.next_offset,
                want_shutdown=want_shutdown,
                stream=machine.stream,
            )
        )
        # (A heartbeat that may stop the broker ends its connection, so it begins no window.)
        if not isinstance(reply, HeadraceError) and not reply.should_shutdown:
            self._reached(machine)
        return reply

    def _crash(self, machine: Machine) -> None:
        """End the process; with a weak flush policy some of the acknowledged records are lost."""
        if not machine.is_up:
            return
        self._gone(machine)
        for key, log in machine.disk.items():
            topic = machine.view.topics.get(key[0])
            weak = machine.flush != "commit" if topic is None else self._is_weak(machine, topic.name)
            if weak and log:
                del log[self.rng.randrange(len(log)) :]
                self._count("lost a tail")
        if self.rng.random() < 0.7:
            self.ask(HeartbeatsEnded(machine.broker_id, machine.epoch, machine.stream))

    def _is_weak(self, machine: Machine, topic: str) -> bool:
        static = {"log.flush": machine.flush}
        value = topic_value(machine.view, topic, "log.flush", broker_id=machine.broker_id, static=static)
        return str(getattr(value, "value", value)) != "commit"

    def _gone(self, machine: Machine) -> None:
        machine.is_up = False
        machine.life += 1
        machine.pending.clear()
        machine.seen.clear()
        machine.granted.clear()

    def _stop(self, machine: Machine) -> None:
        reply = self._beat(machine, want_shutdown=True)
        if getattr(reply, "should_shutdown", False):
            machine.marker = machine.epoch
            self._gone(machine)
            self._count("clean stop")

    def _finish_stop(self, machine: Machine) -> None:
        """A broker whose stop the controllers have delayed asks again, as in broker_session.py."""
        known = self.world.image.brokers.get(machine.broker_id)
        if known is not None and known.broker_epoch == machine.epoch and known.in_controlled_shutdown:
            self._stop(machine)

    def _lose_disk(self, machine: Machine) -> None:
        if machine.is_up:
            return
        self.disks += 1
        machine.directory = id16(self.disks)
        machine.disk.clear()
        machine.marker = machine.started = -1
        machine.saved = None
        self._count("lost a disk")

    def _flap(self, machine: Machine) -> None:
        """Break the broker's connection; sometimes the new connection is open before the controllers notice the end of
        the old connection."""
        if machine.is_up:
            ended = HeartbeatsEnded(machine.broker_id, machine.epoch, machine.stream)
            self._new_stream(machine)
            if self.rng.random() < 0.5:
                self.ask(ended)
                self._beat(machine)
            else:
                self._beat(machine)
                self.ask(ended)

    # -- records ------------------------------------------------------------------------------------------------------

    def _led_by(self, machine: Machine) -> list[Key]:
        if not machine.is_up:
            return []
        own = machine.view.brokers.get(machine.broker_id)
        if own is None or own.broker_epoch != machine.epoch or own.fenced:
            return []
        return [
            (topic.topic_id, number)
            for topic, number, partition in machine.view.partitions_on(machine.broker_id)
            if partition.leader == machine.broker_id
        ]

    def _check_leader(self, machine: Machine, key: Key, partition: PartitionImage) -> None:
        """Check a leader once for each leader epoch, before it does anything."""
        last = self.checked.get(key, -1)
        if partition.leader_epoch <= last:
            return
        self.checked[key] = partition.leader_epoch
        committed = self.committed.setdefault(key, set())
        missing = committed.difference(machine.disk[key])
        if any(last < epoch <= partition.leader_epoch for epoch in self.unclean.get(key, ())):
            committed -= missing
        elif missing:
            raise Broken("durability", f"broker {machine.broker_id} leads {key} by {partition} without {missing}")

    def _copy(self, leader: Machine, follower: Machine, key: Key) -> bool:
        """Let the follower copy the leader's log, if the follower knows this leader; return whether it did."""
        mine, its = leader.sees(key), follower.sees(key)
        if not follower.is_up or mine is None or its is None or key not in follower.disk:
            return False
        if (its.leader, its.leader_epoch) != (mine.leader, mine.leader_epoch):
            return False
        follower.disk[key] = list(leader.disk[key])
        leader.seen[key, follower.broker_id] = follower.epoch
        return True

    def _write(self, leader: Machine, key: Key) -> None:
        view = leader.view
        partition = leader.sees(key)
        assert partition is not None
        self._check_leader(leader, key, partition)
        self.records += 1
        record = self.records
        leader.disk[key].append(record)
        required = {*partition.isr, *leader.pending.get(key, (0, ()))[1]} - {leader.broker_id}
        others = {machine.broker_id: machine for machine in self.machines}
        acknowledged = [self._copy(leader, others[each], key) for each in sorted(required)]
        minimum = min(min_insync_replicas(view, view.topics[key[0]].name), len(partition.replicas))
        given_up = any(epoch > partition.leader_epoch for epoch in self.unclean.get(key, ()))
        if all(acknowledged) and len(partition.isr) >= minimum and not given_up:
            self.committed.setdefault(key, set()).update(leader.disk[key])
            self._count("commit")

    def _fetch(self, leader: Machine, key: Key) -> None:
        partition = leader.sees(key)
        assert partition is not None
        self._check_leader(leader, key, partition)
        follower = self.rng.choice(self.machines)
        if follower is not leader and follower.broker_id in partition.replicas:
            self._copy(leader, follower, key)

    def _propose(self, leader: Machine, key: Key) -> None:
        """The leader requests an ISR without some replicas, or with some that have all records; while it waits, it
        requests the same ISR again."""
        partition = leader.sees(key)
        assert partition is not None
        self._check_leader(leader, key, partition)
        if key in leader.pending:
            isr = leader.pending[key][1]
        else:
            others = {machine.broker_id: machine for machine in self.machines}
            able = [
                each
                for each in partition.replicas
                if each == leader.broker_id
                or ((key, each) in leader.seen and others[each].disk.get(key) == leader.disk[key])
            ]
            isr = tuple(each for each in able if each == leader.broker_id or self.is_calm or self.rng.random() < 0.8)
            if partition.recovering:
                isr = (leader.broker_id,)
            if set(isr) == set(partition.isr) and not partition.recovering:
                return
            leader.pending[key] = (partition.partition_epoch, isr)
        request = AlterPartition(
            broker_id=leader.broker_id,
            broker_epoch=leader.epoch,
            metadata_offset=leader.view.next_offset,
            partitions=(
                AlteredPartition(
                    topic_id=key[0],
                    partition=key[1],
                    leader_epoch=partition.leader_epoch,
                    partition_epoch=partition.partition_epoch,
                    isr=tuple((each, self._life_of(leader, key, each)) for each in isr),
                ),
            ),
        )
        self.delayed.append(request)
        if self.is_calm or self.rng.random() < 0.6:
            self._deliver(request)

    def _life_of(self, leader: Machine, key: Key, broker_id: int) -> int:
        if broker_id == leader.broker_id:
            return leader.epoch
        known = leader.view.brokers.get(broker_id)
        return leader.seen.get((key, broker_id), known.broker_epoch if known is not None else -1)

    def _deliver(self, request: AlterPartition) -> None:
        """Deliver the request to the controllers, perhaps late, perhaps twice. The answer reaches the broker if the
        process that sent the request still lives."""
        reply = self.ask(request)
        if not isinstance(reply, tuple) or reply[0].error is not None:
            self._count("ISR refused")
            return
        self._count("ISR altered")
        leader = next(machine for machine in self.machines if machine.broker_id == request.broker_id)
        key = (request.partitions[0].topic_id, request.partitions[0].partition)
        partition = self.world.image.partition(*key)
        if leader.epoch == request.broker_epoch and leader.is_up and self.rng.random() < 0.8:
            assert partition is not None
            leader.granted[key] = partition
            if key in leader.pending and leader.pending[key][0] < partition.partition_epoch:
                del leader.pending[key]

    def _bounce(self, machine: Machine) -> None:
        """Let a broker crash and return at once: only its registration shows the crash."""
        self._crash(machine)
        self._start(machine)
        self._follow(machine)
        self._beat(machine)

    # -- chance -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        machine = rng.choice(self.machines)
        led = self._led_by(machine)
        match rng.choices(range(16), weights=self.profile.weights)[0]:
            case 0:
                self._beat(machine)
            case 1:
                self._follow(machine)
                self._beat(machine)
            case 2:
                self._crash(machine)
            case 3:
                self._stop(machine)
            case 4:
                self._lose_disk(machine)
            case 5:
                self._start(machine)
            case 6 if led:
                self._write(machine, rng.choice(led))
            case 7 if led:
                self._fetch(machine, rng.choice(led))
            case 8 if led:
                self._propose(machine, rng.choice(led))
            case 9 if self.delayed:
                self._deliver(rng.choice(self.delayed[-8:]))
            case 10:
                self._pass_time(rng.choice([50, 300, 1_000, 4_000, 10_000]))
                self.upkeep()
            case 11:
                self._operate()
            case 12:
                self._lead()
            case 13:
                self._flap(machine)
            case 14:
                self._bounce(machine)
            case 15:
                for each in self.machines:
                    if self.rng.random() < 0.9:
                        self._follow(each)
                        self._beat(each)

    def _operate(self) -> None:
        rng, world = self.rng, self.world
        names = list(world.image.topic_ids)
        most = self.profile.topics_max
        if len(names) < min(2, most) or (len(names) < most and rng.random() < 0.3):
            factor = rng.choice([1, 2, 3, 3])
            configs = {"min.insync.replicas": str(rng.choice([1, 2]))}
            name, partitions = f"t{world.image.next_offset}", rng.randint(1, self.profile.partitions_max)
            topic = NewTopic(name=name, partitions=partitions, replication_factor=factor, configs=configs)
            self.ask(CreateTopics((topic,)))
            return
        name = rng.choice(names)
        match rng.choice(self.profile.operations):
            case 0:
                self._set(ConfigResourceType.TOPIC, name, "min.insync.replicas", str(rng.choice([1, 2, 3])))
            case 1:
                self._set(ConfigResourceType.BROKER, "", "min.insync.replicas", str(rng.choice([1, 2])))
            case 2:
                value = "true" if rng.random() < 0.15 else "false"
                self._set(ConfigResourceType.TOPIC, name, "unclean.leader.election.enable", value)
            case 3:
                self._set(ConfigResourceType.TOPIC, name, "log.flush", rng.choice(["commit", "os", "interval"]))
            case 4:
                self.ask(ElectLeaders(ElectionType.PREFERRED))
            case 6:
                self._reassign(name)
            case 5 if rng.random() < 0.2:
                self.ask(ElectLeaders(ElectionType.UNCLEAN, ((name, 0),)))

    def _reassign(self, name: str) -> None:
        topic = self.world.image.topic(name)
        assert topic is not None
        targets = tuple(self.rng.sample([each.broker_id for each in self.machines], self.rng.choice([1, 2, 3])))
        wanted = Reassignment(
            name, self.rng.randrange(len(topic.partitions)), targets if self.rng.random() < 0.8 else None
        )
        reply = self.ask(AlterPartitionReassignments((wanted,)))
        is_refused = isinstance(reply, HeadraceError) or reply[0].error is not None
        self._count("reassignment refused" if is_refused else "reassignment")

    def _set(self, kind: ConfigResourceType, name: str, key: str, value: str) -> None:
        op = ConfigOp(OpKind.SET, key, value)
        self.ask(AlterConfigs((AlterResource((kind, name), (op,)),)))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self._heal()

    def _heal(self) -> None:
        """Let all machines return; then each partition that waits for a live replica must get a leader (liveness)."""
        for _ in range(6):
            for machine in self.machines:
                self._finish_stop(machine)
                self._start(machine)
                self._follow(machine)
                self._beat(machine)
            self.world.now_ms += 3_000
            self.upkeep()
        image = self.world.image
        problems = check_image(image)  # at level 1 too: a failed ISR member is back
        if problems:
            raise Broken(problems[0].partition(":")[0], f"{problems} after all nodes have returned")
        for machine in self.machines:
            broker = self.world.image.brokers[machine.broker_id]
            if not broker.active:
                raise Broken(
                    "liveness", f"broker {machine.broker_id} has returned, but is fenced or still stopping: {broker}"
                )
            for key in self._led_by(machine):
                self._write(machine, key)
        (batch,) = decode_batches(encode_decision(self.world.log, timestamp_ms=1, base_offset=0, epoch=1))
        if EMPTY_IMAGE.apply(batch.records, len(self.world.log), 1) != self.world.image:
            raise Broken("replay", "the log does not give the image")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1
