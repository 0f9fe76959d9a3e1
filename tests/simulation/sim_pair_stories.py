"""Stories of a new leading controller and its brokers: a broker dies together with the old leader, and a new leader is
slow. They belong to no random schedule; test_simulated_pairs.py and mutants run them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from headrace_core.testing.crashing_fs import Loss
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_stories import Story, _wait_for

if TYPE_CHECKING:
    from tests.simulation.sim_brokers import SimulatedBroker
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

#: Time that the surviving brokers need to find a new leader, and a leader's tick.
_FOUND_MS = 700.0


def _window_ms(world: ControllersWorld) -> float:
    """The time that brokers have to reach a new leader."""
    settings = world.cluster_settings
    return max(2.0 * settings.broker_heartbeat_interval_ms, settings.broker_session_timeout_ms / 2.0)


def _is_fenced(host: ControllerHost, broker: SimulatedBroker) -> bool:
    known = None if host.controller is None else host.controller.image.brokers.get(broker.broker_id)
    return known is not None and known.broker_epoch == broker.epoch and known.fenced


def _active(world: ControllersWorld) -> ControllerHost | None:
    """The active leader, if all controllers and brokers work."""
    host = world.leader()
    if host is None or host.controller is None or not host.controller.is_active or len(world.up()) < 3:
        return None
    works = all(
        (known := host.controller.image.brokers.get(each.broker_id)) is not None
        and each.is_up
        and known.broker_epoch == each.epoch
        and not known.fenced
        for each in world.brokers
    )
    return host if works else None


def _new_leader(world: ControllersWorld, *victims: SimulatedBroker) -> Generator[float, None, ControllerHost | None]:
    """Crash the leader, and ``victims`` with it, when all work; return the active leader that follows it."""
    yield from _wait_for(lambda: _active(world) is not None, 2_000.0)
    old = _active(world)
    if old is None:
        return None
    world.crash_now(old, Loss.NONE, down_ms=2_500.0)
    for each in victims:
        each.crash()

    def found() -> ControllerHost | None:
        host = world.leader()
        return host if host is not None and host.controller is not None and host.controller.is_active else None

    yield from _wait_for(lambda: found() is not None, 3_000.0, 1.0)
    return found()


def _still_leads(host: ControllerHost, term: int) -> bool:
    return host.controller is not None and host.controller.is_active and host.controller.term == term


@contextlib.contextmanager
def _late_calls(world: ControllersWorld, but: SimulatedBroker | None = None) -> Iterator[None]:
    """The controllers take calls (except those of ``but``) only when the ``with`` block ends, because they are slow."""
    late: list[tuple[int, int, object]] = []
    arrives, spared = world.calls._deliver, None if but is None else but.address

    def gate(sender: int, node: int, message: object) -> None:
        if sender != spared and not callable(message):
            late.append((sender, node, message))
        else:
            arrives(sender, node, message)

    world.calls._deliver = gate
    try:
        yield
    finally:
        world.calls._deliver = arrives
        for each in late:
            arrives(*each)


def pair_dies(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A broker dies in the same moment as the leader: the new leader fences it within two heartbeat intervals, and
    nobody else."""
    victim = rng.choice(world.brokers)
    heir = yield from _new_leader(world, victim)
    if heir is None or heir.controller is None:
        return
    term, window_ms = heir.controller.term, _window_ms(world)
    others = [(each, each.epoch) for each in world.brokers if each is not victim]
    yield from _watch(heir, others, window_ms + _FOUND_MS)
    if _still_leads(heir, term):
        world.count("state", "a broker died with the leader")
        if not _is_fenced(heir, victim):
            raise Violation("silence", f"{victim} died with the leader, and {heir} has not fenced it in time")
    victim.start()


def deaf_leader_at_first(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A new leader is active, and for a while nobody reaches it: it fences nobody."""
    yield from _wait_for(lambda: _active(world) is not None, 2_000.0)
    with _late_calls(world):
        brokers = [(each, each.epoch) for each in world.brokers]
        heir = yield from _new_leader(world)
        if heir is None or heir.controller is None:
            return
        term = heir.controller.term
        yield from _watch(heir, brokers, _window_ms(world) + 300.0)
    yield from _watch(heir, brokers, _FOUND_MS)
    if _still_leads(heir, term):
        world.count("state", "a new leader was deaf at first")


def leader_that_stops_after_its_first_contact(
    world: ControllersWorld, rng: random.Random
) -> Generator[float, None, None]:
    """One broker has reached the new leader, which is then suspended; the others come after the pause."""
    yield from _wait_for(lambda: _active(world) is not None, 2_000.0)
    with _late_calls(world, world.brokers[0]):
        brokers = [(each, each.epoch) for each in world.brokers]
        heir = yield from _new_leader(world)
        if heir is None or heir.controller is None:
            return
        term = heir.controller.term
        yield from _watch(heir, brokers, _window_ms(world) - 300.0)
        heir.pause()
        yield world.quorum_settings.heartbeat_ms + 3 * world.quorum_settings.tick_ms
        heir.resume()
        yield from _watch(heir, brokers, 100.0)
    yield from _watch(heir, brokers, _FOUND_MS)
    if _still_leads(heir, term):
        world.count("state", "a new leader stopped after its first contact")


def _watch(
    host: ControllerHost, brokers: list[tuple[SimulatedBroker, int]], for_ms: float
) -> Generator[float, None, None]:
    """Let time pass. Raises Violation when the controller fences a broker that lives (its next heartbeat ends that)."""
    for _ in range(int(for_ms / 5.0)):
        for broker, epoch in brokers:
            if broker.is_up and broker.epoch == epoch and _is_fenced(host, broker):
                raise Violation("fenced alive", f"{host} fenced {broker}, which lives")
        yield 5.0


PAIR_STORIES: dict[str, Story] = {
    "pair_dies": pair_dies,
    "deaf_leader_at_first": deaf_leader_at_first,
    "leader_that_stops_after_its_first_contact": leader_that_stops_after_its_first_contact,
}
