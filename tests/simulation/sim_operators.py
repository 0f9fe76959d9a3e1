"""The operator of the quorum: adds and removes voters, transfers the leadership, replaces disks. Retries refused
changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from headrace_controller.quorum_controller import Answer, QuorumController
from headrace_controller.raft import ReplicaKey, VoterSet
from headrace_core.errors import HeadraceError

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

EVERY_MS = 150.0
VOTERS_MAX = 5
OPERATOR_ADDRESS = 90


class Operator:
    """``wanted``: the nodes that should be voters. Voters whose disks are lost are removed before any other change."""

    def __init__(self, world: ControllersWorld) -> None:
        self.world = world
        self.rng = random.Random(f"{world.plan.seed} operator")
        self.wanted = set(world.hosts)
        self._busy_until_ms = 0.0
        #: Requests that may still be executed: the controllers that received them, and the number of each controller's
        #: start.
        self._given: dict[int, tuple[ControllerHost, int]] = {}
        self._orders = 0

    def __str__(self) -> str:
        return "operator"

    def begin(self) -> None:
        self.world.scheduler.after(EVERY_MS, self._look)

    def leader_came(self, host: ControllerHost) -> None:
        self._busy_until_ms = 0.0

    # -- faults ask for these -----------------------------------------------------------------------------------------

    def change_membership(self) -> str:
        """Change the wanted voters by one more or one less."""
        world, rng = self.world, self.rng
        spare = [node_id for node_id in world.hosts if node_id not in self.wanted]
        if len(self.wanted) >= VOTERS_MAX or (len(self.wanted) > 1 and rng.random() < 0.5):
            node_id = rng.choice(sorted(self.wanted))
            self.wanted.discard(node_id)
            return f"controller {node_id} shall vote no more"
        if spare and rng.random() < 0.7:
            node_id = rng.choice(spare)
        else:
            if len(world.hosts) >= VOTERS_MAX + 2:
                return ""
            node_id = world.add_host().node_id
        self.wanted.add(node_id)
        return f"controller {node_id} shall vote"

    def transfer(self) -> str:
        leader = self.world.leader()
        if leader is None or leader.controller is None:
            return ""
        key = self.rng.choice(leader.controller.voters.keys)
        self._ask(leader, lambda controller, done: controller.transfer(key, done), f"hands the lead to {key.node_id}")
        return f"the lead shall go from {leader.node_id} to {key.node_id}"

    def change_now(self, host: ControllerHost, rng: random.Random) -> None:
        """Let a leader change the voters at once."""
        controller, hosts = host.controller, self.world.hosts
        if controller is None:
            return
        voters = controller.voters
        spare = [each.key for each in hosts.values() if voters.find(each.node_id) is None and each.is_sound]
        if spare and (len(voters) <= 3 or rng.random() < 0.5):
            key = rng.choice(spare)
            self._ask(
                host, lambda controller, done: controller.add_voter(key, f"c{key.node_id}:1", done), f"adds voter {key}"
            )
        elif len(voters) > 1 and self._all_alive(voters):
            key = host.key if rng.random() < 0.4 else rng.choice(voters.keys)
            self.wanted.discard(key.node_id)
            self._ask(host, lambda controller, done: controller.remove_voter(key, done), f"removes voter {key}")

    def may_remove(self, host: ControllerHost) -> bool:
        return host.controller is not None and self._all_alive(host.controller.voters)

    def remove_now(self, host: ControllerHost, key: ReplicaKey) -> None:
        """Let a leader remove a voter at once."""
        self.wanted.discard(key.node_id)
        self._ask(host, lambda controller, done: controller.remove_voter(key, done), f"removes voter {key}")

    @property
    def is_waiting(self) -> bool:
        """Whether a request that is in flight may change the voters."""
        self._given = {number: (host, life) for number, (host, life) in self._given.items() if host.life == life}
        return bool(self._given)

    def _all_alive(self, voters: VoterSet) -> bool:
        """Whether every voter has its disk. If a voter lacks its disk, no voter that has its disk may be removed,
        because too few might remain."""
        hosts = self.world.hosts
        return all(hosts[key.node_id].key == key and not hosts[key.node_id].record.is_damaged for key in voters)

    # -- what it does all the time ------------------------------------------------------------------------------------

    @property
    def is_content(self) -> bool:
        leader = self.world.leader()
        return leader is not None and leader.controller is not None and self._next(leader.controller.voters) is None

    def _look(self) -> None:
        self.world.scheduler.after(EVERY_MS * (0.8 + 0.4 * self.rng.random()), self._look)
        leader = self.world.leader()
        if leader is None or leader.controller is None or self.world.now_ms < self._busy_until_ms:
            return
        if self.world.is_quiet:
            return
        step = self._next(leader.controller.voters)
        if step is not None:
            self._busy_until_ms = self.world.now_ms + 600.0
            what, key = step
            if what == "remove":
                self._ask(leader, lambda controller, done: controller.remove_voter(key, done), f"removes voter {key}")
            else:
                address = f"c{key.node_id}:1"
                self._ask(
                    leader, lambda controller, done: controller.add_voter(key, address, done), f"adds voter {key}"
                )

    def _next(self, voters: VoterSet) -> tuple[str, ReplicaKey] | None:
        hosts = self.world.hosts
        for key in voters:
            if hosts[key.node_id].key != key:
                if len(voters) > 1:
                    return "remove", key
                return None
        for key in voters:
            if key.node_id not in self.wanted and len(voters) > 1 and self._all_alive(voters):
                return "remove", key
        for node_id in sorted(self.wanted):
            host = hosts[node_id]
            if voters.find(node_id) is None and host.is_sound:
                return "add", host.key
        return None

    def _ask(self, host: ControllerHost, act: Any, what: str) -> None:
        world = self.world
        self._orders += 1
        number = self._orders
        self._given[number] = (host, host.life)

        def done(result: Any) -> None:
            self._given.pop(number, None)
            self._busy_until_ms = 0.0
            if isinstance(result, HeadraceError):
                world.count("voters", f"{what.split()[0]}: {result.code}")
            elif isinstance(result, Answer):
                world.count("voters", f"{what.split()[0]}: done")
                world.tell(self, f"{what}: done")

        world.tell(self, f"asks controller {host.node_id}: {what}")
        world.calls.send(OPERATOR_ADDRESS, host.node_id, _Order(host, lambda controller: act(controller, done)))


class _Order:
    """A request to the controller itself, which does not change the cluster's state."""

    def __init__(self, host: ControllerHost, give: Any) -> None:
        self.host, self.give = host, give
        self.answered: Any = lambda result: None

    def act(self, host: ControllerHost, controller: QuorumController) -> None:
        host.guarded(lambda: self.give(controller))
