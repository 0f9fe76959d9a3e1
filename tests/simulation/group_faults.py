"""Faults of coordinators, members, logs and topics (their kinds are in ``group_plan``), and their repair."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_controller.cluster.requests import CreatePartitions, CreateTopics, DeleteTopics, MorePartitions, NewTopic
from headrace_core.errors import HeadraceError
from headrace_protos.v1 import groups_pb2
from tests.simulation.coordinator_faults import CoordinatorFaults
from tests.simulation.coordinators_side import CONTROLLERS
from tests.simulation.group_hosts import APPEND_TIMEOUT_S, GRACE_MS, SESSION_MS
from tests.simulation.group_members import Attempt, Caller, SimMember
from tests.simulation.sim_plan import Fault

if TYPE_CHECKING:
    from tests.simulation.group_sim_world import GroupWorld

PARTITIONS_MAX, MEMBERS_MAX = 8, 6
#: Largest rebalance timeout (ms) of schedules with late members, because these must release their partitions before the
#: schedule ends.
LATE_MS_MAX = 3_000


class GroupFaults(CoordinatorFaults):
    """``strike`` causes a fault; ``mend`` ends all current faults."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self._times_mended = 0
        self._unreached_until_ms = 0.0

    def strike(self, fault: Fault) -> None:
        act: Callable[[Fault, random.Random], str] = getattr(self, f"_{fault.kind}")
        what = act(fault, random.Random(fault.seed))
        if what:
            self.world.fault_happened(fault, what)

    def mend(self) -> None:
        """Repair everything: network, processes, leaders of logs."""
        world = self.world
        self._times_mended += 1
        world.tell("fault", "all is mended")
        world.quality = world.plan.quality
        world.cuts.clear()
        world.behind.clear()
        world.late_metadata_until_ms = world.lost_appends_until_ms = world.late_appends_until_ms = 0.0
        world.no_commits_until_ms = world.no_quorum_until_ms = 0.0
        for log in world.logs:
            log.stuck_until_ms = 0.0
            log.unaware.clear()
            log._led(log.leader)
        for host in world.hosts:
            host.resume()
            if not host.is_up:
                host.start()
        for member in world.members:
            member.is_slow_until_ms = 0.0
            member.resume()
            if member.is_needed:
                member.start()
            else:
                member.kill()

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _alive(self, rng: random.Random, *, with_connection: bool = False) -> SimMember | None:
        members = [
            member
            for member in self.world.members
            if member.is_alive and not member.is_paused and (not with_connection or member.connection is not None)
        ]
        return rng.choice(members) if members else None

    def _cut_unless_mended(self, links: list[tuple[str, str]], for_ms: float) -> None:
        """Cut the links after the other side has seen the broken connection."""
        times = self._times_mended
        self._later(2.0, lambda: None if times != self._times_mended else self._cut(links, for_ms))

    # -- coordinators ------------------------------------------------------------------------------------------------

    def _coordinator_cut(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None:
            return ""
        members = [member for member in self.world.members if rng.random() < 0.3 + 0.6 * fault.amount]
        up = [(member.name, host.name) for member in members]
        down = [(host.name, member.name) for member in members]
        self._cut(rng.choice([up + down, up + down, up, down]), fault.for_ms)
        return f"{host} and {', '.join(map(str, members))} are cut off from each other for {fault.for_ms:.0f} ms"

    def _silent_owner(self, fault: Fault, rng: random.Random) -> str:
        """A coordinator is cut off from the controllers and gets no request that needs an append. The coordinator must
        therefore notice without an append that it has lost the shard."""
        world = self.world
        members = [each for each in world.members if each.is_alive and each.connection is not None]
        if not members or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        member = rng.choice(members)
        assert member.connection is not None
        host = member.connection.process.host
        if not host.is_up or host.process is not member.connection.process or host.is_paused:
            return ""
        for_ms = SESSION_MS + world.plan.session_ms + rng.uniform(600.0, 1_500.0)
        world.no_commits_until_ms = world.scheduler.now_ms + for_ms
        # The next owner does not hear of members that this coordinator still answers (docs/simulation-brokers.md, the
        # limit of two readers).
        self._unreached_until_ms = world.scheduler.now_ms + SESSION_MS
        world.stream_left(member.connection.process)
        links = [(host.name, CONTROLLERS), (CONTROLLERS, host.name)]
        if rng.random() < 0.6:
            links.append((member.name, host.name))
        self._cut(links, for_ms)
        self._later(GRACE_MS + 150.0, lambda: member.connection.breaks() if member.connection else None)
        return f"{host} is taken for gone, and answers; only {member} goes to the next owner"

    def _restart_all(self, fault: Fault, rng: random.Random) -> str:
        for host in self.world.hosts:
            if host.is_up:
                host.kill()
            self._later(rng.uniform(50.0, 400.0), self._restart(host))
        return "all coordinators are killed"

    def _coordinators_gone(self, fault: Fault, rng: random.Random) -> str:
        """All coordinators are down; one may return for a moment: members that reach it get new sessions at that
        coordinator."""
        for_ms = rng.choice([300.0, 600.0, 1_800.0, 3_200.0]) * rng.uniform(0.7, 1.3)
        away, also = self._alive(rng, with_connection=True), ""
        if away is not None and rng.random() < 0.7:  # continues to read, and does not reach the next coordinator
            away_ms = for_ms + rng.choice([600.0, 1.7 * self.world.plan.session_ms])
            self._cut([(away.name, host.name) for host in self.world.hosts], away_ms)
            also = f", and {away} reaches none for {away_ms:.0f} ms"
            if rng.random() < 0.7:
                self.world.late_metadata_until_ms = self.world.scheduler.now_ms + away_ms
        for host in self.world.hosts:
            host.kill()
            self._later(for_ms * rng.uniform(1.0, 1.2), self._restart(host))
        if rng.random() < 0.5:
            brief = rng.choice(self.world.hosts)
            at_ms = for_ms * rng.uniform(0.1, 0.6)
            self._later(at_ms, self._restart(brief))
            times = self._times_mended
            self._later(at_ms + rng.uniform(100.0, 700.0), lambda: times == self._times_mended and brief.kill())
        if rng.random() < 0.4:  # while some members still learn that no coordinator exists
            since = self._times_mended
            self._later(for_ms * 1.2 + rng.uniform(300.0, 900.0), lambda: self._leaves_by_old_news(rng, since))
        return f"there is no coordinator for {for_ms:.0f} ms{also}"

    def _takeover_unreached(self, fault: Fault, rng: random.Random) -> str:
        """A member continues to read, but cannot reach the new coordinator for longer than a session, although other
        members reach it. Often the member does not even learn that a new coordinator exists."""
        world, away = self.world, self._alive(rng, with_connection=True)
        if away is None or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        gone_ms = GRACE_MS + rng.uniform(100.0, 500.0)  # (by then the metadata show no owner)
        until_ms = gone_ms + world.plan.session_ms + rng.uniform(500.0, 1_000.0)
        self._unreached_until_ms = world.scheduler.now_ms + until_ms
        self._cut([(away.name, host.name) for host in world.hosts], until_ms)
        for host in world.hosts:
            host.kill()
            self._later(gone_ms + rng.uniform(0.0, 20.0), self._restart(host))
        times = self._times_mended
        if loses_answers := rng.random() < 0.6:
            behind = functools.partial(world.falls_behind, away, until_ms - gone_ms)
            self._later(gone_ms, lambda: behind() if times == self._times_mended else None)
        how = "hear of" if loses_answers else "reach"
        return f"there is no coordinator for {gone_ms:.0f} ms; {away} does not {how} the next for {until_ms:.0f} ms"

    def _gone_after_the_grace(self, fault: Fault, rng: random.Random) -> str:
        """A member is cut off, and its coordinator considers it dead; then there is no coordinator. The member then
        learns that its coordinator was deposed."""
        world, member = self.world, self._alive(rng, with_connection=True)
        if member is None or member.connection is None or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        alone_ms = world.plan.grace_ms + rng.uniform(60.0, 300.0)
        for_ms = alone_ms + rng.uniform(400.0, 900.0)
        self._unreached_until_ms = world.scheduler.now_ms + for_ms
        member.connection.breaks(coordinator_sees_ms=1.0)
        self._cut_unless_mended([(member.name, host.name) for host in world.hosts], for_ms)
        times = self._times_mended

        def go() -> None:
            if times != self._times_mended:
                return
            for host in world.hosts:
                host.kill()
                self._later(for_ms - alone_ms, self._restart(host))

        self._later(alone_ms, go)
        return f"{member} is cut off for {for_ms:.0f} ms; from {alone_ms:.0f} ms on there is no coordinator"

    def _leaves_by_old_news(self, rng: random.Random, since: int) -> None:
        """A member is cut off from a live coordinator, notices the cut, and gets old metadata."""
        world, member = self.world, self._alive(rng, with_connection=True)
        if since != self._times_mended or member is None or member.connection is None:
            return
        for_ms = 3.0 * world.plan.grace_ms
        world.late_metadata_until_ms = world.scheduler.now_ms + for_ms
        member.connection.breaks(coordinator_sees_ms=1.0)
        self._cut_unless_mended([(member.name, host.name) for host in world.hosts], for_ms)

    def _owner_alone(self, fault: Fault, rng: random.Random) -> str:
        """Some members stay connected to the coordinator; the others are cut off, notice the cut, and find out that the
        coordinator is deposed."""
        world = self.world
        connected = [each for each in world.members if each.is_alive and not each.is_paused and each.connection]
        processes = {each.connection.process: None for each in connected if each.connection}
        hosts = [each.host for each in processes if each.host.process is each and not each.host.is_paused]
        if not hosts:
            return ""
        host = rng.choice(hosts)
        process = host.process
        assert process is not None
        for_ms = rng.choice([700.0, 1_200.0, 2_500.0]) * rng.uniform(0.8, 1.2)
        for other in world.hosts:
            if other is not host:
                other.kill()
                self._later(for_ms, self._restart(other))
        world.stream_left(process)
        self._cut([(host.name, CONTROLLERS), (CONTROLLERS, host.name)], for_ms)
        there = [each for each in connected if each.connection and each.connection.process is process]
        away = rng.sample(there, rng.randrange(1, max(len(there), 2)))
        at_ms = rng.choice([0.0, GRACE_MS * 0.5, GRACE_MS + 60.0])

        times = self._times_mended

        def leave(member: SimMember) -> None:
            if member.connection is not None and times == self._times_mended:
                member.connection.breaks(coordinator_sees_ms=1.0)
                self._cut_unless_mended([(member.name, host.name)], for_ms)

        for each in away:
            self._later(at_ms * rng.uniform(0.8, 1.2), functools.partial(leave, each))
        return f"{host} is taken for gone, the others are; {', '.join(map(str, away))} leave it"

    def _controllers_change(self, fault: Fault, rng: random.Random) -> str:
        self.world.core.lead(self.world.scheduler.now_ms)
        return "another controller leads"

    def _controllers_gone(self, fault: Fault, rng: random.Random) -> str:
        """There is no controller quorum. Members continue to read: their coordinators answer as long as no other
        coordinator has claimed the shard."""
        world, for_ms = self.world, SESSION_MS + rng.uniform(600.0, 1_800.0)
        world.no_quorum_until_ms = max(world.no_quorum_until_ms, world.scheduler.now_ms + for_ms)
        self._cut(
            [link for host in world.hosts for link in ((host.name, CONTROLLERS), (CONTROLLERS, host.name))], for_ms
        )
        times = self._times_mended

        def look() -> None:
            if times != self._times_mended:
                return
            for member in world.members:
                if member.is_alive and member.connection is not None and member.reading:
                    how = "paused" if member.member.is_suspended else "reads on"
                    world.count("member", f"{how} without the controllers")

        self._later(for_ms - 1.0, look)
        self._later(for_ms, lambda: world.core.lead(world.scheduler.now_ms))
        return f"there is no quorum for {for_ms:.0f} ms"

    def _metadata_late(self, fault: Fault, rng: random.Random) -> str:
        self.world.late_metadata_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"the metadata is late for {fault.for_ms:.0f} ms"

    def _broker_behind(self, fault: Fault, rng: random.Random) -> str:
        """Some members ask only a broker with old metadata, which names a deposed coordinator or none."""
        members = [member for member in self.world.members if rng.random() < 0.2 + 0.4 * fault.amount]
        for member in members:
            self.world.falls_behind(member, fault.for_ms)
        asking = ", ".join(map(str, members))
        return f"a broker hears nothing for {fault.for_ms:.0f} ms, and {asking} ask no other" if members else ""

    def _old_news(self, fault: Fault, rng: random.Random) -> str:
        """A member is cut off from a live coordinator, notices the cut, and asks a broker with very old metadata."""
        world, member = self.world, self._alive(rng, with_connection=True)
        steps = None if member is None else world.last_vacant(member.group_id)
        if member is None or member.connection is None or steps is None:
            return ""
        for_ms = world.plan.grace_ms + rng.choice([300.0, 0.8 * world.plan.session_ms])
        world.falls_behind(member, for_ms, steps)
        member.connection.breaks(coordinator_sees_ms=1.0)
        self._cut_unless_mended([(member.name, host.name) for host in world.hosts], for_ms)
        return f"{member} is cut off for {for_ms:.0f} ms, and hears that there is no coordinator, which is long over"

    # -- logs --------------------------------------------------------------------------------------------------------

    # -- members -----------------------------------------------------------------------------------------------------

    def _member_killed(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng)
        if member is None:
            return ""
        member.kill()
        self._later(min(fault.for_ms, 2_000.0), lambda: member.start() if member.is_needed else None)
        return f"{member} is killed"

    def _member_paused(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng)
        if member is None:
            return ""
        life = member.life
        member.pause()
        self._later(fault.for_ms, lambda: member.resume() if member.life == life else None)
        return f"{member} stands still for {fault.for_ms:.0f} ms"

    def _member_leaves(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng)
        if member is None:
            return ""
        member.leave(is_coming_back=False)
        self._later(200.0 + min(fault.for_ms, 2_000.0), lambda: member.start() if member.is_needed else None)
        return f"{member} leaves"

    def _member_joins(self, fault: Fault, rng: random.Random) -> str:
        return self._joins(rng.randrange(len(self.world.group_ids)))

    def _joins(self, group: int) -> str:
        world = self.world
        count = sum(member.group == group for member in world.members)
        if count >= MEMBERS_MAX:
            return ""
        instance_id = f"host-{count}" if world.plan.static[group] else None
        member = SimMember(world, f"{world.group_ids[group]}{'abcdefgh'[count]}", group, instance_id)
        world.members.append(member)
        member.start()
        return f"{member} joins"

    def _static_restart(self, fault: Fault, rng: random.Random) -> str:
        members = [each for each in self.world.members if each.is_alive and each.instance_id and not each.is_paused]
        if not members:
            return ""
        member = rng.choice(members)
        says_goodbye = rng.random() < 0.7
        if says_goodbye:
            member.leave(is_coming_back=True)
        else:
            member.kill()
        self._later(rng.uniform(120.0, 600.0), lambda: member.start() if member.is_needed else None)
        return f"{member} is started anew" + ("" if says_goodbye else ", killed before")

    def _static_double(self, fault: Fault, rng: random.Random) -> str:
        """Two processes use the same instance id: the second waits, or takes over from a first process that seems to be
        dead."""
        world = self.world
        members = [each for each in world.members if each.is_alive and each.instance_id and each.is_needed]
        if not members:
            return ""
        one = rng.choice(members)
        double = SimMember(world, f"{one.name}x{len(world.members)}", one.group, one.instance_id)
        double.is_needed = False
        world.members.append(double)
        double.start()
        self._later(fault.for_ms, double.kill)
        if rng.random() < 0.5 and one.connection is not None:
            one.connection.breaks()
        return f"{double} has the instance id of {one}"

    def _connection_broken(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng, with_connection=True)
        if member is None or member.connection is None:
            return ""
        member.connection.breaks()
        for_ms = rng.choice([0.0, 60.0, 140.0, 300.0, fault.for_ms])
        if for_ms:
            links = [(member.name, host.name) for host in self.world.hosts]
            self._cut(links, for_ms)
        return f"{member}'s connection breaks, and does not come back for {for_ms:.0f} ms"

    def _connection_flaps(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng, with_connection=True)
        if member is None:
            return ""

        def again() -> None:
            if member.connection is not None:
                member.connection.breaks()

        for number in range(rng.randrange(3, 9)):
            self._later(number * rng.uniform(30.0, 200.0), again)
        return f"{member}'s connections break one after the other"

    def _connection_lost_on_one_side(self, fault: Fault, rng: random.Random) -> str:
        """The member opens another stream long before the coordinator sees the end of the first stream."""
        member = self._alive(rng, with_connection=True)
        if member is None or member.connection is None:
            return ""
        member.connection.breaks(coordinator_sees_ms=rng.uniform(30.0, 600.0))
        return f"{member} sees its connection break, and the coordinator does not"

    def _connection_half_open(self, fault: Fault, rng: random.Random) -> str:
        """The coordinator sees the connection end, and the member sees it later; half of the time there is no
        coordinator at that moment."""
        world, member = self.world, self._alive(rng, with_connection=True)
        if member is None or member.connection is None or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        late_ms = rng.choice([60.0, world.plan.grace_ms, 2.0 * world.plan.grace_ms]) * rng.uniform(0.8, 1.2)
        member.connection.breaks(member_sees_ms=late_ms)
        if rng.random() < 0.5:
            return f"{member}'s connection breaks, which it sees {late_ms:.0f} ms after its coordinator"
        gone_ms, for_ms, times = late_ms + rng.uniform(0.0, 200.0), rng.uniform(400.0, 900.0), self._times_mended
        self._unreached_until_ms = world.scheduler.now_ms + gone_ms + for_ms

        def go() -> None:
            for host in world.hosts if times == self._times_mended else ():
                host.kill()
                self._later(for_ms, self._restart(host))

        self._later(gone_ms, go)
        return f"{member} sees {late_ms:.0f} ms after its coordinator that it is cut off; then there is no coordinator"

    def _guest(self, group: int, rng: random.Random) -> SimMember:
        """A dynamic member that joins now, and does not come back when it has left."""
        world = self.world
        guest = SimMember(world, f"{world.group_ids[group]}guest{len(world.members)}", group, None)
        guest.is_needed = False
        world.members.append(guest)
        guest.start()
        return guest

    def _leaves_again(self, guest: SimMember) -> None:
        if guest.is_alive:
            self.world.count("member", "guest committed and left" if guest.held else "guest got nothing and left")
            guest.leave(is_coming_back=False)

    def _static_cut_off(self, fault: Fault, rng: random.Random) -> str:
        """A static member is cut off, notices it, and is back before its session ends. Meanwhile another member joins,
        reads, commits and leaves, so that the static member gets back partitions that it does not know to have lost.
        Sometimes it is back first, and its caller is slow."""
        world = self.world
        members = [
            each
            for each in world.members
            if each.is_alive and each.instance_id and each.connection and each.is_needed and not each.is_paused
        ]
        # (the session began with the last heartbeat, and the member needs some time to connect)
        for_ms = world.plan.session_ms - 450.0
        room_ms = for_ms - world.plan.grace_ms
        if not members or room_ms < 250.0 or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        member = rng.choice(members)
        assert member.connection is not None
        self._unreached_until_ms = world.scheduler.now_ms + for_ms
        member.connection.breaks(coordinator_sees_ms=1.0)
        self._cut_unless_mended([(member.name, host.name) for host in world.hosts], for_ms)
        if is_slow := rng.random() < 0.3:
            member.is_slow_until_ms = world.scheduler.now_ms + for_ms + 800.0
        times = self._times_mended

        def joins() -> None:
            if times == self._times_mended:
                guest = self._guest(member.group, rng)
                leaves_ms = room_ms - rng.uniform(40.0, 100.0) + (rng.uniform(100.0, 600.0) if is_slow else 0.0)
                self._later(leaves_ms, lambda: self._leaves_again(guest))

        self._later(world.plan.grace_ms + 10.0, joins)
        return f"{member} is cut off for {for_ms:.0f} ms; meanwhile another member joins and leaves"

    def _offsets_late(self, fault: Fault, rng: random.Random) -> str:
        """A member's committed offsets are on their way for long, and those messages come in time that take partitions
        from the member and give them back. Meanwhile other members read and commit."""
        world, member = self.world, self._alive(rng)
        if member is None:
            return ""
        names, life, times = world.topic_names, member.life, self._times_mended
        step_ms = rng.uniform(100.0, 300.0)
        # (what is asked after the second step comes after the fourth)
        member.offsets_late_until_ms = world.scheduler.now_ms + 2.0 * step_ms
        member.offsets_late_ms = step_ms * rng.uniform(2.0, 3.0)

        def subscribes(to: tuple[str, ...]) -> Callable[[], None]:
            def act() -> None:
                if member.life == life and times == self._times_mended:
                    member.subscribe(to)

            return act

        for number, topics in enumerate((names[1:], names, names[1:], names)):
            self._later(number * step_ms, subscribes(topics))
        return f"{member} subscribes, subscribes less, and again, and gets its committed offsets late"

    def _slow_to_revoke(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng)
        if member is None:
            return ""
        member.is_slow_until_ms = self.world.scheduler.now_ms + max(fault.for_ms, 500.0)
        return f"{member} is slow to let go"

    def _revoked_unheard(self, fault: Fault, rng: random.Random) -> str:
        """A member is cut off silently, or reads without a coordinator and does not reach the next coordinator. While
        the member is cut off, another member joins."""
        world, away = self.world, self._alive(rng, with_connection=True)
        if away is None or away.connection is None or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        is_orphan = rng.random() < 0.5
        gone_ms = GRACE_MS + rng.uniform(100.0, 300.0) if is_orphan else 0.0
        for_ms = gone_ms + world.plan.session_ms * rng.uniform(0.7, 1.2)
        self._unreached_until_ms = world.scheduler.now_ms + for_ms
        for host in world.hosts if is_orphan else ():
            host.kill()
            self._later(gone_ms, self._restart(host))
        links = [(away.name, host.name) for host in world.hosts]
        self._cut(links + [(to, of) for of, to in links], for_ms)
        self._later(gone_ms + rng.uniform(0.0, 60.0), lambda: self._joins(away.group) and None)
        return f"{away} hears nothing of a coordinator for {for_ms:.0f} ms, and somebody joins"

    def _slow_and_cut_off(self, fault: Fault, rng: random.Random) -> str:
        """A member joins; another member must revoke partitions, is slow, and is then cut off silently."""
        world, away = self.world, self._alive(rng, with_connection=True)
        if away is None or world.scheduler.now_ms < self._unreached_until_ms:
            return ""
        at_ms = rng.uniform(100.0, 0.8 * world.plan.rebalance_timeout_ms)
        for_ms = world.plan.session_ms * rng.uniform(0.8, 1.2)
        self._unreached_until_ms = world.scheduler.now_ms + at_ms + for_ms
        away.is_slow_until_ms = world.scheduler.now_ms + at_ms + for_ms
        links = [(away.name, host.name) for host in world.hosts]
        links += [(to, of) for of, to in links]
        times = self._times_mended
        self._later(at_ms, lambda: self._cut(links, for_ms) if times == self._times_mended else None)
        joins = self._joins(away.group)
        return f"{joins or 'nobody joins'}; {away} is slow, and in {at_ms:.0f} ms cut off for {for_ms:.0f} ms"

    def _removed_untold(self, fault: Fault, rng: random.Random) -> str:
        """A member joins; each member that must revoke partitions takes longer than the rebalance timeout. When the log
        contains the removal of one late member, the coordinator is killed, so the removed member gets no message."""
        world, some = self.world, self._alive(rng, with_connection=True)
        if some is None or world.plan.rebalance_timeout_ms > LATE_MS_MAX:
            return ""
        until_ms = world.scheduler.now_ms + world.plan.rebalance_timeout_ms + 2_000.0
        late = [each for each in world.members if each.group == some.group and each.is_alive]
        for each in late:
            each.is_late_until_ms = until_ms
        restart_ms = rng.uniform(50.0, 300.0)
        members: set[str] = set()

        def look() -> None:
            if world.scheduler.now_ms > until_ms:
                return
            for each in late:
                if world.checks.is_member(each):
                    members.add(each.member_id)
                elif each.is_alive and each.member_id in members and each.connection is not None:
                    self._dies_now(each, restart_ms)
                    return
            self._later(3.0, look)

        look()
        joins = self._joins(some.group) or "no member joins"
        return f"{joins}; releases of {some.group_id} are late, and the coordinator dies that removes a member"

    def _dies_now(self, removed: SimMember, restart_ms: float) -> None:
        owner = self.world.owner(removed.group_id)
        if owner is not None:
            host = self.world.hosts[owner[0] - 1]
            host.kill()
            self._later(restart_ms, self._restart(host))
            self.world.count("member", "removed and not told")

    def _subscription_changed(self, fault: Fault, rng: random.Random) -> str:
        member = self._alive(rng)
        if member is None:
            return ""
        names = self.world.topic_names
        member.subscribe(rng.choice([names, names[:1], names[1:]]))
        return f"{member} subscribes to {member.subscribes}"

    # -- topics, clocks, and the rest ----------------------------------------------------------------------------------

    def _partitions_added(self, fault: Fault, rng: random.Random) -> str:
        world = self.world
        topic = world.image.topic(rng.choice(world.topic_names))
        if topic is None or len(topic.partitions) >= PARTITIONS_MAX:
            return ""
        total = len(topic.partitions) + rng.choice([1, 1, 2])
        world.decide(CreatePartitions((MorePartitions(topic=topic.name, total=total),)))
        return f"{topic.name} has {total} partitions"

    def _pressed_topics(self, fault: Fault, rng: random.Random) -> str:
        """Nothing is committed to any shard, for less than the append timeout. Requests therefore accumulate, and more
        of them are refused if ``plan.gathered_bytes`` is small. While nothing is committed, the partition count of a
        topic grows."""
        for_ms = rng.uniform(0.4, 0.7) * APPEND_TIMEOUT_S * 1_000
        for log in self.world.logs:
            log.stuck_until_ms = max(log.stuck_until_ms, self.world.scheduler.now_ms + for_ms)
        times = self._times_mended
        at_ms = rng.uniform(0.5, 0.9) * for_ms
        self._later(at_ms, lambda: self._partitions_added(fault, rng) if times == self._times_mended else None)
        return f"nothing is committed for {for_ms:.0f} ms, and after {at_ms:.0f} ms a topic grows"

    def _topic_deleted(self, fault: Fault, rng: random.Random) -> str:
        world = self.world
        name = rng.choice(world.topic_names)
        if world.image.topic(name) is None:
            return ""
        world.decide(DeleteTopics((name,)))
        count = rng.choice([1, 2, 4])

        def again() -> None:
            if world.image.topic(name) is None:
                world.decide(CreateTopics((NewTopic(name=name, partitions=count, replication_factor=1),)))

        self._later(rng.choice([1.0, 100.0, 600.0]), again)
        return f"{name} is deleted, and comes back with {count} partitions"

    def _clock_jump(self, fault: Fault, rng: random.Random) -> str:
        host = rng.choice(self.world.hosts)
        ms = rng.choice([-1, 1]) * rng.choice([700.0, 5_000.0, 3_600_000.0]) * rng.uniform(0.5, 1.5)
        host.clock.jump(ms)
        return f"{host}'s clock is set by {ms:.0f} ms"

    def _delay(self, fault: Fault, rng: random.Random) -> str:
        world = self.world
        world.quality = replace(world.quality, slowness=0.1 + 0.4 * fault.amount, slow_ms=20.0 + 200.0 * fault.amount)
        times = self._times_mended

        def over() -> None:
            if times == self._times_mended:
                world.quality = world.plan.quality

        self._later(fault.for_ms, over)
        return f"messages are late for {fault.for_ms:.0f} ms"

    def _admin(self, fault: Fault, rng: random.Random) -> str:
        """An operator describes groups, deletes empty groups, and sets offsets of groups without members."""
        world = self.world
        what = rng.choice(["look", "delete", "reset", "reset"])
        # (clients do not check this first)
        plain = [] if what == "reset" else [each.group_id for each in world.committers]
        group_id = rng.choice([*world.group_ids, *plain])
        admin = Caller(world, "admin", group_id)
        if what == "look":
            admin.call("DescribeGroups", lambda: groups_pb2.DescribeGroupsRequest(group_ids=[group_id]), lambda _: None)
            admin.call("ExplainGroup", lambda: groups_pb2.ExplainGroupRequest(group_id=group_id), lambda _: None)
        elif what == "delete":
            admin.call("DeleteGroups", lambda: groups_pb2.DeleteGroupsRequest(group_ids=[group_id]), lambda _: None)
        else:
            self._reset(admin, rng)
        return f"an operator: {what} {group_id}"

    def _reset(self, admin: Caller, rng: random.Random) -> None:
        world = self.world
        topic = world.image.topic(rng.choice(world.topic_names))
        if topic is None:
            return
        tags: list[str] = []
        offset = rng.randrange(50)

        def make() -> groups_pb2.CommitOffsetsRequest:
            request = groups_pb2.CommitOffsetsRequest(group_id=admin.group_id, member_epoch=-1)
            tags.append(world.checks.attempted(Attempt(admin.group_id, topic.name, 0, offset, "", -1, True)))
            request.offsets.add(topic=topic.name, partition=0, offset=offset, metadata=tags[-1])
            return request

        def refused(error: HeadraceError, is_whole: bool) -> bool:
            if is_whole and tags:
                world.checks.refused(tags[-1], error)
            return False

        admin.call("CommitOffsets", make, lambda _: None, refused=refused)
