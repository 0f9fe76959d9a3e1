"""After the faults: repair everything, and check that the cluster recovers by itself within a bounded time.

A quiet period is a small recovery: all damage is repaired, and when the cluster is calm, no node may stand for election
until the period ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace_controller.raft import Role
from headrace_core.testing.crashing_fs import Loss
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.sim_world import ControllersWorld

#: Longest recovery after the faults, until the cluster is healthy.
RECOVERY_MS_MAX = 30_000.0
#: A quiet period counts as calm after this time without a change.
CALM_MS = 400.0
_LOOK_MS = 100.0


class Recovery:
    """See the module."""

    def __init__(self, world: ControllersWorld) -> None:
        self.world = world
        self._calm_looks = 0

    # -- quiet periods ------------------------------------------------------------------------------------------------

    def begin_quiet(self) -> None:
        self.world.is_quiet = True
        self.world.tell("fault", "a quiet period begins: what is broken is mended")
        self._calm_looks = 0
        self.mend()
        self.world.scheduler.after(_LOOK_MS, self._look)

    def end_quiet(self) -> None:
        if self.world.calm_since_ms is not None:
            self.world.count("state", "quiet period calm to its end")
        self.world.is_quiet = False
        self.world.calm_since_ms = None

    def _look(self) -> None:
        world = self.world
        if not world.is_quiet or world.calm_since_ms is not None:
            return
        self._calm_looks = self._calm_looks + 1 if self._is_calm() else 0
        if self._calm_looks * _LOOK_MS >= CALM_MS:
            world.calm_since_ms = world.now_ms
            world.has_flapped = False
            if world.rng.random() < 0.6:
                world.scheduler.after(world.rng.uniform(50.0, 500.0), self._flap)
        world.scheduler.after(_LOOK_MS, self._look)

    def _flap(self) -> None:
        """Break a connection and replace it at once: a follower that loses its leader in this way must not depose the
        leader (9.6)."""
        world = self.world
        leader = world.leader()
        followers = [host for host in world.up() if host is not leader]
        if world.calm_since_ms is None or leader is None or not followers:
            return
        follower = world.rng.choice(followers)
        world.has_flapped = True
        world.count("state", "connection flapped in a calm time")
        world.tell("fault", f"the connection between {leader.node_id} and {follower.node_id} breaks for a moment")
        for one, other in ((leader, follower), (follower, leader)):
            world.net.reset(one.node_id, other.node_id)
            world.lose(one, other.key)
        world.scheduler.after(1.0 + 30.0 * world.rng.random(), world.connect, leader, follower)

    def _is_calm(self) -> bool:
        """Whether there is one leader that all voters follow."""
        leader = self.world.leader()
        if leader is None or leader.controller is None or not leader.controller.is_active:
            return False
        controller = leader.controller
        if controller.raft.transferring_to is not None or controller.raft.log.voters_offset > controller.raft.committed:
            return False
        return all(
            host.controller.role in (Role.FOLLOWER, Role.LEADER)
            and host.controller.term == controller.term
            and host.controller.leader_id == leader.node_id
            for host in self.world.up()
            if host.controller is not None
        )

    # -- mending ------------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Repair everything: network, disk space and speed, clocks, processes."""
        world = self.world
        world.story_teller.stop()
        world.traps.clear()
        world.spread = 1.0
        world.net.mend()
        world.calls.mend()
        for mend in world.mend_all:
            mend()
        for host in list(world.hosts.values()):
            host.fs.capacity_bytes = None
            host.disarm()
            host.is_slow = False
            host.clock.drift(1.0)
            host.replan()
            if host.is_paused:
                host.resume()
            host.down_until_ms = 0.0
            world.restart(host)
        hosts = list(world.hosts.values())
        for number, one in enumerate(hosts):
            for other in hosts[:number]:
                world.scheduler.after(1.0 + 20.0 * world.rng.random(), world.connect, one, other)
        for broker in world.brokers:
            broker.mend()

    def _replace_broken_disks(self) -> None:
        world = self.world
        leader = world.leader()
        voters = () if leader is None or leader.controller is None else leader.controller.voters.keys
        for host in list(world.hosts.values()):
            if host.record.is_damaged and leader is not None and host.key not in voters and host is not leader:
                # the damage was not noticed before, and the vote of this controller is needed
                host.power_loss(Loss.ALL)
                host.is_broken = True
            if host.is_broken and host.controller is None:
                world.tell("operator", f"gives {host} a new disk")
                host.format(None)
                host.start()

    # -- the proof ----------------------------------------------------------------------------------------------------

    def prove(self) -> None:
        """Raises Violation when the cluster does not recover in time, or when a node's state differs from the state of
        the other nodes."""
        world = self.world
        world.is_quiet = False
        world.calm_since_ms = None
        world.is_healing = True
        world.tell("fault", "the faults are over: everything is mended, and has to be well soon")
        self.mend()
        self._replace_broken_disks()
        for client in world.clients:
            client.is_resting = True
        began_ms, wrong = world.now_ms, "nothing was looked at"
        while world.now_ms - began_ms < RECOVERY_MS_MAX:
            world.pass_until(world.now_ms + 100.0)
            self._replace_broken_disks()
            wrong = next(self._wrong(), "")
            if not wrong:
                break
        else:
            raise Violation("liveness", f"{RECOVERY_MS_MAX / 1_000:.0f} s after the faults: {wrong}")
        acknowledged = world.checks.writes.acknowledged
        while world.checks.writes.acknowledged == acknowledged:
            if world.now_ms - began_ms > RECOVERY_MS_MAX:
                raise Violation("liveness", "a write is not acknowledged, though all seems well")
            world.clients[0].write_one()
            world.pass_until(world.now_ms + 100.0)
        while wrong := next(self._wrong(), ""):
            if world.now_ms - began_ms > RECOVERY_MS_MAX:
                raise Violation("liveness", f"after the last write: {wrong}")
            world.pass_until(world.now_ms + 50.0)
        world.tell("fault", f"all is well, {world.now_ms - began_ms:.0f} ms after the last fault")
        self._compare_everything()

    def _wrong(self) -> Iterator[str]:
        """The conditions of a healthy cluster that do not hold yet."""
        world = self.world
        leader = world.leader()
        if leader is None or leader.controller is None:
            yield "nobody leads; " + ", ".join(map(_stands, world.hosts.values()))
            return
        controller = leader.controller
        if not controller.is_active:
            yield f"{leader} leads and is not active: {_stands(leader)}"
        if not world.operator.is_content:
            yield f"the voters are {controller.voters}, and should be {sorted(world.operator.wanted)}"
        end = controller.raft.log_end_offset
        if controller.image.next_offset != end or world.checks.committed != end:
            yield f"{leader}'s log ends at {end}, of which {world.checks.committed} is committed"
        for host in world.hosts.values():
            if host.controller is None:
                yield f"{host} is down"
            elif host.controller.image.next_offset != end or host.controller.term != controller.term:
                yield f"{host} is behind: {_stands(host)}; {_stands(leader)}"
        image = controller.image
        for broker in world.brokers:
            known = image.brokers.get(broker.broker_id)
            if known is None or known.broker_epoch != broker.epoch or not known.active:
                yield f"{broker} is not active: {known}"
            elif broker.image.next_offset != end:
                yield f"{broker} has the metadata up to {broker.image.next_offset}, and it ends at {end}"
        for topic in image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader < 0 and any(image.is_available(partition, each) for each in partition.isr):
                    yield f"{topic.name}-{number} has no leader: {partition}"

    def _compare_everything(self) -> None:
        world = self.world
        for who in (*world.up(), *world.brokers):
            image = who.image if who in world.brokers else who.controller.image
            world.checks.image(str(who), image, None)
        world.checks.finish()


def _stands(host: object) -> str:
    controller = host.controller
    if controller is None:
        return f"{host.node_id} down"
    raft = controller.raft
    return (
        f"{host.key} {raft.role.value}, term {raft.term}, leader {raft.leader}, voters {raft.voters}, log "
        f"{raft.log.start}..{raft.log.end}, committed {raft.committed}, applied {controller.image.next_offset}"
    )
