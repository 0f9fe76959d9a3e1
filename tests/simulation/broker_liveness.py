"""Progress *during* a fault, not only after its repair; the fault is a full disk.

The cluster must be healthy when this check begins. The disk of a broker that leads a producer's partition fills up.
Another in-sync replica must become leader, and writes must succeed, long before the disk has room again (``FULL_MS``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.broker_node import BrokerHost
    from tests.simulation.broker_sim_world import BrokerWorld

#: Writes must succeed again within this virtual time: a heartbeat (150 ms) and an election, with time to spare.
FULL_MS = 1_500.0
#: Required acknowledgements of each producer: more than the batches in flight to the old leader.
ACKNOWLEDGED = 12
#: This check runs in one of this number of schedules.
ONE_IN = 3


def prove_while_a_disk_is_full(world: BrokerWorld) -> None:
    """Raises Violation when a write has to wait until the disk has room."""
    producer = next((each for each in world.producers if each.kind == "idempotent"), None)
    if producer is None or world.plan.seed // 2 % ONE_IN:
        return
    topic = world.image.topic("orders")
    assert topic is not None
    host = world.host_of(topic.partitions[producer.partition].leader)
    assert host is not None
    fill(host)
    world.tell("fault", f"{host}: its disk is full, and nothing else is wrong")
    world.count("state", "disk full while all else is well")
    wanted, until_ms = producer.acknowledged + ACKNOWLEDGED, world.scheduler.now_ms + FULL_MS
    try:
        while producer.acknowledged < wanted:
            world.pass_until(world.scheduler.now_ms + 25.0)
            if world.scheduler.now_ms > until_ms:
                state = world.image.topic("orders").partitions[producer.partition]  # type: ignore[union-attr]
                raise Violation(
                    "liveness",
                    f"{FULL_MS:.0f} ms after the disk of {host} was full, {producer} lacks "
                    f"{wanted - producer.acknowledged} acknowledgements; broker {state.leader} leads, in sync are "
                    f"{list(state.isr)}",
                )
    finally:
        host.fs.capacity_bytes = None


def fill(host: BrokerHost) -> None:
    """Fill a broker's disk completely."""
    host.fs.capacity_bytes = host.fs._used_bytes
