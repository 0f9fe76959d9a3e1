"""Faults of coordinators and of their shards' logs, for the simulations with coordinators (groups, transactions)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.coordinators_side import CONTROLLERS
from tests.simulation.group_hosts import CoordinatorHost
from tests.simulation.group_log import LOGS
from tests.simulation.sim_plan import Fault


class CoordinatorFaults:
    """A method ``_kind`` causes a fault of this kind, and returns its description for the transcript, or "" if no fault
    was possible."""

    world: Any

    def _up(self, rng: random.Random, *, owners: float = 0.6) -> CoordinatorHost | None:
        hosts = [host for host in self.world.coordinators if host.is_up and not host.is_paused]
        busy = [
            host for host in hosts if host.process is not None and host.process.shards and list(host.process.shards)
        ]
        if busy and rng.random() < owners:
            return rng.choice(busy)
        return rng.choice(hosts) if hosts else None

    def _cut(self, links: Iterable[tuple[str, str]], for_ms: float) -> None:
        cut = set(links) - self.world.cuts
        self.world.cuts |= cut
        self.world.scheduler.after(for_ms, self.world.cuts.difference_update, cut)

    def _later(self, after_ms: float, act: Callable[[], None]) -> None:
        self.world.scheduler.after(after_ms, act)

    def _restart(self, host: CoordinatorHost) -> Callable[[], None]:
        return lambda: None if host.is_up else host.start()

    def _coordinator_crash(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None:
            return ""
        host.kill()
        self._later(min(fault.for_ms, 1_500.0), self._restart(host))
        return f"{host} is killed"

    def _coordinator_pause(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None:
            return ""
        host.pause()
        self._later(fault.for_ms, host.resume)
        return f"{host} stands still for {fault.for_ms:.0f} ms"

    def _coordinator_apart(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None or host.process is None:
            return ""
        self.world.stream_left(host.process)
        self._cut([(host.name, CONTROLLERS), (CONTROLLERS, host.name)], fault.for_ms)
        return f"the controllers see {host}'s stream break, and do not hear of it for {fault.for_ms:.0f} ms"

    def _coordinator_unheard(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None:
            return ""
        links = [(host.name, CONTROLLERS), (CONTROLLERS, host.name)]
        self._cut(rng.choice([links, links, links[:1], links[1:]]), fault.for_ms)
        return f"{host} and the controllers do not hear of each other for {fault.for_ms:.0f} ms"

    def _coordinator_drains(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None or host.process is None:
            return ""
        host.process.wants_shutdown = True
        process = host.process

        def over() -> None:
            if host.process is process:
                host.kill()
            if not host.is_up:
                host.start()

        self._later(600.0 + fault.for_ms, over)
        return f"{host} is asked to stop"

    def _shards_move(self, fault: Fault, rng: random.Random) -> str:
        """The controllers consider a live coordinator dead; it registers again with a new epoch."""
        host = self._up(rng)
        if host is None or host.process is None or host.process.registered is None:
            return ""
        self.world.stream_left(host.process)
        self._cut([(host.name, CONTROLLERS), (CONTROLLERS, host.name)], rng.uniform(250.0, 500.0))
        return f"{host} is taken for gone"

    def _leader_change(self, fault: Fault, rng: random.Random) -> str:
        """A shard's log gets a new leader. In half of the cases, the old leader could not commit anything for a while
        before the change."""
        log = rng.choice(self.world.logs)

        def change() -> None:
            gone = log.change_leader(
                rng.random(),
                without_ms=rng.choice([0.5, 20.0, 300.0]),
                answers=rng.choice(["refused", "broken", "none"]),
                unaware_ms=rng.choice([0.0, fault.for_ms]),
            )
            self.world.tell("fault", f"{log.partition} has another leader; {gone} records are gone")
            if gone:
                self.world.count("log", "uncommitted records lost")

        stuck_ms = rng.choice([0.0, 0.0, 40.0, 120.0])
        log.stuck_until_ms = max(log.stuck_until_ms, self.world.scheduler.now_ms + stuck_ms)
        self._later(stuck_ms, change)
        return f"{log.partition} commits nothing for {stuck_ms:.0f} ms, and has another leader then"

    def _leader_slow(self, fault: Fault, rng: random.Random) -> str:
        log = rng.choice(self.world.logs)
        for_ms = min(fault.for_ms, 1_500.0)
        log.stuck_until_ms = self.world.scheduler.now_ms + for_ms
        return f"nothing is committed to {log.partition} for {for_ms:.0f} ms"

    def _append_answer_lost(self, fault: Fault, rng: random.Random) -> str:
        self.world.lost_appends_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"answers of appends are lost for {fault.for_ms:.0f} ms"

    def _append_late(self, fault: Fault, rng: random.Random) -> str:
        self.world.late_appends_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"appends are late for {fault.for_ms:.0f} ms"

    def _log_cut(self, fault: Fault, rng: random.Random) -> str:
        host = self._up(rng)
        if host is None:
            return ""
        links = [(host.name, LOGS), (LOGS, host.name)]
        self._cut(rng.choice([links, links[:1], links[1:]]), fault.for_ms)
        return f"{host} does not reach the logs for {fault.for_ms:.0f} ms"

    def _compaction(self, fault: Fault, rng: random.Random) -> str:
        log = rng.choice(self.world.logs)
        gone = log.compact()
        return f"{log.partition} is compacted: {gone} records go" if gone else ""
