"""One schedule of faults, drawn from a seed. See test_raft_schedules.py."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import NoReturn

from headrace_controller.raft import Entry, RaftNode, RaftSettings, ReplicaKey, Role
from headrace_core.errors import HeadraceError, NotControllerError
from tests.worlds.raft_world import RaftWorld, Replica, key, voters

#: The events, with their possible weights. Each schedule draws its own weights (swarm testing; Groce and others, 2012).
#: Because of the random weights, some schedules have mainly elections, some mainly losses, and some few events. An
#: event with weight 0 does not happen in its schedule.
EVENTS: dict[str, tuple[float, ...]] = {
    "deliver": (20, 40, 60),
    "tick_all": (5, 10, 20),
    "tick_one": (0, 1, 5),
    "propose": (10, 20),
    "crash": (0, 0.2, 1, 3),
    "restart": (0.2, 1, 3),
    "cut": (0, 0.2, 1),
    "heal": (0.2, 1),
    "change": (0, 0.3, 2),
    "transfer": (0, 0.2, 1),
    "compact": (0, 0.3, 1),
    "read": (0, 1, 5),
    "wipe": (0, 0.2),
    "lose_all": (0, 0, 0.3),
    "peer_lost": (0, 0.3, 2),
}
#: The probabilities that a crash interrupts a disk operation, and that a message is lost, duplicated or overtaken.
INTERRUPTED = (0.0, 0.004, 0.03)
LOST = (0.0, 0.02, 0.1, 0.3)
DOUBLED = (0.0, 0.03, 0.15)
OVERTAKEN = (0.0, 0.3, 0.7)


class Schedule:
    """``recall_ticks``: replicas that start or reconnect ask the others what they remember."""

    def __init__(self, seed: int, node_class: type[RaftNode] = RaftNode, *, recall_ticks: int = 0) -> None:
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        rng = self.rng
        size = rng.choice([1, 2, 3, 3, 3, 3, 4, 5])
        settings = RaftSettings(
            election_ticks=rng.choice([2, 5]),
            message_bytes_max=rng.choice([150, 400, 5000]),
            in_flight_messages_max=rng.choice([1, 4]),
            snapshot_chunk_bytes=rng.choice([7, 100, 10_000]),
            learner_lag_max=50,
            recall_ticks=recall_ticks,
        )
        self.world = RaftWorld(voters(*range(1, size + 1)), settings=settings, seed=seed + 1, node_class=node_class)
        self.next_node = size + 1
        self.weights = [rng.choice(weights) for weights in EVENTS.values()]
        self.loss, self.doubled, self.overtaken = rng.choice(LOST), rng.choice(DOUBLED), rng.choice(OVERTAKEN)
        self.interrupted = rng.choice(INTERRUPTED)
        self.number = 0
        self.reads: dict[int, int] = {}
        self.cuts: set[tuple[ReplicaKey, ReplicaKey]] = set()
        self.world.is_cut = lambda sender, to: (sender, to) in self.cuts

    # -- one step

    def up(self) -> list[Replica]:
        return [replica for replica in self.world.replicas.values() if replica.is_up]

    def leaders(self) -> list[Replica]:
        return [replica for replica in self.up() if replica.node.role is Role.LEADER]

    def step(self) -> None:
        (event,) = self.rng.choices(list(EVENTS), self.weights)
        getattr(self, event)()

    def work(self, replica: Replica) -> None:
        crash_after = self.rng.choice([0, 1]) if self.rng.random() < self.interrupted else None
        self.world.work(replica, crash_after=crash_after)
        if not replica.is_up:
            self.counts["crashed between two steps"] += 1

    def tick_all(self) -> None:
        for replica in self.up():
            if self.rng.random() < 0.9:
                replica.node.tick()
                self.work(replica)

    def tick_one(self) -> None:
        """Clocks that drift apart."""
        if self.up():
            replica = self.rng.choice(self.up())
            for _ in range(self.rng.randrange(1, 6)):
                if replica.is_up:
                    replica.node.tick()
                    self.work(replica)

    def lose_all(self) -> None:
        self.world.network.clear()

    def deliver(self) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            if self.world.network:
                self.deliver_one()

    def deliver_one(self) -> None:
        rng, network = self.rng, self.world.network
        at = rng.randrange(len(network)) if rng.random() < self.overtaken else 0
        message = network[at] if rng.random() < self.doubled else network.pop(at)
        if len(network) > 400:
            del network[: len(network) // 2]
            self.counts["many lost"] += 1
        if rng.random() < self.loss:
            self.counts["lost"] += 1
            return
        replica = self.world.at(message.to)
        if replica is not None and replica.is_up and (message.sender, message.to) not in self.cuts:
            replica.node.step(message)
            self.work(replica)
            self.check_reads(replica)

    def propose(self) -> None:
        for replica in self.leaders():
            self.number += 1
            try:
                replica.node.propose(b"%d," % self.number, self.rng.choice([1, 1, 3]))
            except HeadraceError:
                return
            self.counts["proposed"] += 1
            self.work(replica)

    # -- faults

    def crash(self) -> None:
        """A crash of the machine, or of the process only. After a crash of the process only, the other nodes see their
        connections break."""
        if self.up():
            end = self.rng.choice([self.world.crash, self.world.kill])
            end(self.rng.choice(self.up()))
            self.counts[end.__name__] += 1

    def peer_lost(self) -> None:
        """A connection breaks between two nodes that may both be healthy."""
        if self.up():
            replica = self.rng.choice(self.up())
            peer = self.rng.choice(list(self.world.replicas))
            replica.node.peer_lost(peer)
            self.work(replica)
            self.counts["lost the leader" if peer == replica.node._leader else "lost a peer"] += 1

    def restart(self) -> None:
        for replica in self.world.replicas.values():
            if not replica.is_up and self.rng.random() < 0.7:
                self.world.restart(replica)
                self.connect(replica)

    def connect(self, replica: Replica) -> None:
        if self.world.settings.recall_ticks:
            for other in self.up():
                for one, another in ((replica, other), (other, replica)):
                    one.node.observe(another.key)
                    self.work(one)

    def cut(self) -> None:
        keys = list(self.world.replicas)
        some = {each for each in keys if self.rng.random() < 0.5}
        both = self.rng.random() < 0.6
        self.cuts = {
            (a, b) for a in keys for b in keys if a != b and ((a in some) != (b in some)) and (both or a in some)
        }
        self.counts["cut" if both else "cut one way"] += 1

    def heal(self) -> None:
        self.cuts = set()

    def change(self) -> None:
        for replica in self.leaders():
            node = replica.node
            dead = [own for own in node.voters if own not in self.world.replicas]
            if dead or self.rng.random() < 0.5 or len(node.voters) >= 5:
                target = self.rng.choice(dead or node.voters.keys)  # permanently lost ones go first
                act = node.remove_voter
            else:
                observers = [own for own in self.world.replicas if node.voters.find(own.node_id) is None]
                if not observers:
                    observers = [self.world.add(key(self.next_node)).key]
                    self.next_node += 1
                target = self.rng.choice(observers)
                node.observe(target)
                act = node.add_voter
            try:
                act(target)
                self.counts[act.__name__] += 1
            except HeadraceError as error:
                self.counts[f"{act.__name__}: {error.code}"] += 1
            self.work(replica)

    def transfer(self) -> None:
        for replica in self.leaders():
            replica.node.transfer(self.rng.choice(replica.node.voters.keys))
            self.counts["transfer"] += 1
            self.work(replica)

    def compact(self) -> None:
        replica = self.rng.choice(list(self.world.replicas.values()))
        if replica.is_up and replica.applied > replica.node.log.start.offset:
            entries = [at for at in self.world.history if replica.node.log.start.offset < at <= replica.applied]
            ends = [at for at in entries if at <= replica.node.log.durable_offset]
            if ends:
                self.world.compact(replica, self.rng.choice(ends))
                self.counts["compact"] += 1

    def read(self) -> None:
        for replica in self.leaders():
            token = len(self.reads)
            # the read must include all entries that any replica knows as committed at the time of its request (6.4)
            self.reads[token] = max(each.node.committed for each in self.world.replicas.values())
            replica.node.read(token)
            self.work(replica)
            self.check_reads(replica)

    def wipe(self) -> None:
        """A disk is lost, once in a schedule: the node returns as another replica, which may be added as a new voter.
        The disk is never one that is needed for a majority, because that loss could not be repaired."""
        replicas = self.world.replicas
        known = [voters for each in replicas.values() for voters in each.node.log.voters_since(0)]
        lost = [
            own
            for own, replica in replicas.items()
            if not replica.is_up and all(own not in voters or len(voters) >= 3 for voters in known)
        ]
        if lost and not self.counts["wiped"]:
            own = self.rng.choice(lost)
            del replicas[own]
            self.world.add(ReplicaKey(own.node_id, bytes([9]) * 16))
            self.counts["wiped"] += 1

    def check_reads(self, replica: Replica) -> None:
        for token, offset in replica.reads:
            assert offset >= self.reads[token], f"read {token} sees {offset}, {self.reads[token]} was committed before"
            self.counts["read served"] += 1
        replica.reads.clear()

    # -- the end

    def converge(self) -> None:
        """The faults are over. Within a bounded time there must be a leader, and all new proposals must be
        committed."""
        world = self.world
        self.heal()
        self.loss = self.interrupted = 0.0
        for replica in world.replicas.values():
            if not replica.is_up:
                world.restart(replica)
                self.connect(replica)
        for _ in range(200):
            for replica in self.up():
                replica.node.tick()
                world.work(replica)
            world.settle()
            entry = self._try("last")
            if entry is not None:
                break
        else:
            self.explain()
        leader = max(self.leaders(), key=lambda replica: replica.node.term)
        for _ in range(30):
            world.settle()
            voting = [world.replicas[own] for own in leader.node.voters if own in world.replicas]
            if all(replica.applied >= entry.next_offset for replica in voting):
                return
            for replica in self.up():
                replica.node.tick()
                world.work(replica)
        self.explain()

    def _try(self, data: str) -> Entry | None:
        """The newest leader accepts an entry, unless it transfers its leadership or does not yet know the committed
        offset."""
        for replica in sorted(self.leaders(), key=lambda each: -each.node.term)[:1]:
            if replica.node.has_committed_in_term:
                with contextlib.suppress(NotControllerError):
                    entry = replica.node.propose(data.encode(), 1)
                    self.world.work(replica)
                    return entry
        return None

    def explain(self) -> NoReturn:
        lines = [
            f"{own}: {replica.node.role.value}, term {replica.node.term}, leader {replica.node.leader}, voters "
            f"{replica.node.voters}, log {replica.node.log.start}..{replica.node.log.end}, committed "
            f"{replica.node.committed}"
            for own, replica in self.world.replicas.items()
        ]
        raise AssertionError("no progress after the faults were over:\n" + "\n".join(lines))

    def run(self, steps: int = 900) -> None:
        for _ in range(steps):
            self.step()
        self.converge()
