"""Faults for the simulation of transactions (the kinds are in ``txn_plan``), in addition to faults of brokers and
coordinators."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from headrace_core.errors import HeadraceError
from headrace_core.types import NO_LEADER
from headrace_protos.v1 import transactions_pb2
from tests.simulation.broker_faults import BrokerFaults
from tests.simulation.coordinator_faults import CoordinatorFaults
from tests.simulation.sim_plan import Fault
from tests.simulation.txn_clients import Process, Producer

if TYPE_CHECKING:
    from tests.simulation.txn_sim_world import TxnWorld


class TxnFaults(CoordinatorFaults, BrokerFaults):
    """``strike`` causes a fault; ``mend`` ends all current faults."""

    world: TxnWorld  # type: ignore[assignment]

    def mend(self) -> None:
        super().mend()
        world = self.world
        world.link_faults.off()
        world.lost_appends_until_ms = world.late_appends_until_ms = 0.0
        for log in world.logs:
            log.stuck_until_ms = 0.0
            log.unaware.clear()
            log._led(log.leader)
        for host in world.coordinators:
            host.resume()
            if not host.is_up:
                host.start()
        for process in world.processes:
            process.resume()

    # -- producers ---------------------------------------------------------------------------------------------------

    def _writer(self, rng: random.Random) -> Producer | None:
        alive = [each for each in self.world.current.values() if each.is_alive and not each.loop.is_paused]
        return rng.choice(alive) if alive else None

    def _producer_killed(self, fault: Fault, rng: random.Random) -> str:
        producer = self._writer(rng)
        if producer is None:
            return ""
        producer.kill()
        self.world.next_producer(producer, min(fault.for_ms, 800.0))
        return f"{producer} is killed"

    def _producer_paused(self, fault: Fault, rng: random.Random) -> str:
        producer = self._writer(rng)
        if producer is None:
            return ""
        for_ms = rng.choice([fault.for_ms, self.world.plan.timeout_ms * rng.uniform(1.0, 1.6)])
        producer.pause()
        self._later(for_ms, producer.resume)
        return f"{producer} stands still for {for_ms:.0f} ms"

    def _zombie(self, fault: Fault, rng: random.Random) -> str:
        producer = self._writer(rng)
        if producer is None:
            return ""
        producer.pause()
        self.world.next_producer(producer, rng.uniform(0.0, 100.0))
        self._later(100.0 + fault.for_ms, producer.resume)
        return f"{producer} stands still, another takes its id, and it wakes after {100.0 + fault.for_ms:.0f} ms"

    def _producer_doubled(self, fault: Fault, rng: random.Random) -> str:
        producer = self._writer(rng)
        if producer is None:
            return ""
        self.world.next_producer(producer, 0.0)
        return f"{producer} gets a double"

    def _hand_over_prepared(self, fault: Fault, rng: random.Random) -> str:
        self.world.link_faults.on("hand_over_prepared", fault.for_ms + 300.0)
        for producer in self.world.current.values():
            if producer.version > 1:
                producer.prepares_next = True
        return "producers prepare, and others complete"

    def _operator_aborts(self, fault: Fault, rng: random.Random) -> str:
        producer = self._writer(rng)
        if producer is None:
            return ""
        operator = Process(self.world, f"operator {next(self.world.numbers)}")
        request = transactions_pb2.AbortTransactionRequest(transactional_id=producer.transactional_id)

        async def abort() -> None:
            try:
                await operator._within(
                    1.0, lambda answered: self.world.call_coordinator(operator, "AbortTransaction", request, answered)
                )
            except HeadraceError as error:
                self.world.count("refusal", error.code)
            else:
                self.world.count("transaction", "aborted by an operator")
            operator.kill()

        operator.loop.run(lambda: operator.loop.create_task(abort()))
        return f"an operator aborts the transaction of {producer.transactional_id}"

    # -- messages ----------------------------------------------------------------------------------------------------

    def _switch(self, fault: Fault, what: str) -> str:
        self.world.link_faults.on(fault.kind, fault.for_ms)
        return f"{what} for {fault.for_ms:.0f} ms"

    def _ends_late(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "copies of EndTransaction arrive late")

    def _produce_late(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "copies of batches arrive late")

    def _markers_late(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "markers are late")

    def _markers_doubled(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "markers arrive twice")

    def _markers_lost(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "markers are lost")

    def _markers_held(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "no marker arrives")

    def _verifications_late(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "verifications are late")

    def _verifications_lost(self, fault: Fault, rng: random.Random) -> str:
        return self._switch(fault, "verifications are lost")

    # -- scenarios ---------------------------------------------------------------------------------------------------

    def _coordinator_clock(self, fault: Fault, rng: random.Random) -> str:
        host = rng.choice(list(self.world.coordinators))
        ms = rng.choice([-1, 1]) * rng.choice([300.0, 5_000.0, 3_600_000.0]) * rng.uniform(0.5, 1.5)
        host.clock.jump(ms)
        self.world.are_clocks_wrong = True
        return f"{host}'s clock is set by {ms:.0f} ms"

    def _hand_over_in_prepare(self, fault: Fault, rng: random.Random) -> str:
        """Markers are held back until a transaction is decided; then its coordinator dies."""
        self.world.link_faults.on("markers_held", 150.0)

        def die() -> None:
            host = self._up(rng)
            if host is not None:
                host.kill()
                self._later(fault.for_ms, self._restart(host))

        self._later(rng.uniform(40.0, 140.0), die)
        return "markers are held back, and a coordinator dies"

    def _marker_and_failover(self, fault: Fault, rng: random.Random) -> str:
        """A leader receives a marker, and loses the leadership before the marker is committed."""
        world = self.world
        topic = world.image.topic("orders")
        if topic is None:
            return ""
        number = rng.randrange(len(topic.partitions))
        leader = topic.partitions[number].leader
        host = world.host_of(leader) if leader != NO_LEADER else None
        if host is None or not host.is_up:
            return ""
        until_ms = world.scheduler.now_ms + 400.0
        how = rng.choice(["killed", "cut"])

        def seen(broker_number: int, marked: set[int]) -> bool:
            if broker_number != leader or number not in marked or world.scheduler.now_ms > until_ms:
                return False
            world.scheduler.after(rng.choice([0.5, 2.0, 5.0]), depose)
            return True

        def depose() -> None:
            if not host.is_up:
                return
            if how == "killed":
                host.kill()
                self.down(host, 300.0)
            else:
                links = {(host.number, other.number) for other in world.hosts if other is not host}
                links |= {(to, sender) for sender, to in links} | {(host.number, -1), (-1, host.number)}
                world.cuts.update(links)
                self._later(900.0, lambda: world.cuts.difference_update(links))

        world.marker_traps.append(seen)
        return f"{host} is {how} when it gets the next marker of partition {number}"
