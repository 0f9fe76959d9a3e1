"""A schedule as data: nodes, faults and times. The schedule is drawn from a seed before the simulation starts.

    |-- noisy --|-- quiet --|-- noisy --|-- noisy --|-- quiet --| ... |-- heal, then prove that all is well --|

A quarter of the periods are quiet. At the beginning of a quiet period all damage is repaired. After a leader is
elected, no node may stand for election until the period ends. The noisy periods have 5 to 40 faults together, of kinds
and rates that each schedule draws for itself (swarm testing; Groce and others, 2012). Because of the drawn rates, some
schedules have only losses, some only crashes, some only changes of the voters.

Each fault draws its numbers from its own seed, so that all other faults stay unchanged when one fault is left out.
Failing schedules are shrunk by leaving faults out.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from headrace_controller.storage import SEGMENT_BYTES
from headrace_core.testing.network import GOOD, Quality

#: The kinds of faults that a run must count (the last line of ``make sim``), and their weights.
REQUIRED: dict[str, float] = {
    "drop": 1.0,
    "duplicate": 1.0,
    "reorder": 1.0,
    "delay": 1.0,
    "partition": 2.0,
    "crash": 2.0,
    "pause": 1.0,
    "clock_jump": 0.6,
    "clock_drift": 0.6,
    "torn_block": 1.2,
    "flipped_block": 0.8,
    "full_disk": 0.8,
    "wipe": 0.8,
    "membership": 2.5,
    "stale_replay": 1.5,
}
#: Additional kinds of faults: accidents, and stories that random faults would seldom reproduce completely.
OTHERS: dict[str, float] = {
    "transfer": 1.5,
    "slow_disk": 0.6,
    "failed_flush": 1.5,
    "peer_lost": 0.8,
    "broker_crash": 1.0,
    "broker_cut": 0.8,
    "broker_shutdown": 0.6,
    "broker_wipe": 0.5,
    "directory_failed": 0.6,
    "figure_8": 0.9,
    "vote_then_crash": 0.9,
    "deposed_unaware": 0.9,
    "cut_voters": 0.8,
    "transfer_lost": 0.5,
    "removed_and_gone": 0.5,
    "unwritten": 0.5,
    "deaf_leader": 0.5,
    "restart_all": 0.4,
}
#: Kinds that are drawn from a random source of their own, so that they do not change the rest of a seed's plan; each
#: with the probability that a schedule has them.
APART: dict[str, float] = {"old_copy": 0.4}
KINDS: dict[str, float] = {**REQUIRED, **OTHERS, **APART}

#: The smallest and the largest number of faults in a schedule.
FAULTS_MIN, FAULTS_MAX = 5, 40


class Fault(NamedTuple):
    """Something goes wrong. ``for_ms``: duration of the fault, if it has one; ``amount``: its severity, from 0 to 1;
    ``seed``: seed of everything else that the fault draws."""

    number: int
    at_ms: float
    kind: str
    for_ms: float
    amount: float
    seed: int


class Period(NamedTuple):
    from_ms: float
    to_ms: float
    is_quiet: bool


class Schedule:
    """The common part of all plans, with which a plan can be shrunk. Each subclass is a frozen dataclass with these
    fields."""

    __slots__ = ()
    periods: tuple[Period, ...]
    faults: tuple[Fault, ...]

    @property
    def length_ms(self) -> float:
        return self.periods[-1].to_ms

    def keeping(self, numbers: Collection[int]) -> Self:
        """Only these faults."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.number in numbers))

    def until(self, length_ms: float) -> Self:
        """A plan that ends earlier; faults that come later are left out."""
        periods = tuple(
            Period(period.from_ms, min(period.to_ms, length_ms), period.is_quiet)
            for period in self.periods
            if period.from_ms < length_ms
        )
        return replace(self, periods=periods, faults=tuple(each for each in self.faults if each.at_ms < length_ms))


@dataclass(frozen=True, slots=True)
class Plan(Schedule):
    """See the module."""

    seed: int
    voters: int
    brokers: int
    clients: int
    #: How long a client rests between two requests, on average.
    rest_ms: float
    periods: tuple[Period, ...]
    faults: tuple[Fault, ...]
    #: The quality of the network without a fault.
    quality: Quality
    disk_ms: tuple[float, float]
    #: Delay from an event to the turn that it causes: events that come during the delay belong to the same turn.
    loop_ms: tuple[float, float]
    #: Bytes of log after which a snapshot is made.
    snapshot_bytes: int
    snapshot_chunk_bytes: int
    message_bytes_max: int
    in_flight_messages_max: int
    #: The spread of election timeouts. The product has a spread of 1.0. With a spread of 0.0 all timeouts are equal, so
    #: votes are split all the time.
    spread: float
    #: Size of the segments of the metadata log. An entry has 100 to 700 bytes, and a schedule writes about 80 KiB, so
    #: that the log rolls many times; with the default SEGMENT_BYTES the log never rolls.
    segment_bytes: int


def make_plan(seed: int, *, hard_on: Collection[str] = ()) -> Plan:
    """Draw the schedule of a seed. ``hard_on``: kinds of faults that the schedule has instead of the drawn ones."""
    rng = random.Random(f"plan {seed}")
    periods = draw_periods(rng, (1_100.0, 1_400.0), (3_200.0, 5_000.0))
    noisy = [period for period in periods if not period.is_quiet]
    plan = Plan(
        seed=seed,
        voters=rng.choice([1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 5, 5]),
        brokers=3,
        clients=rng.choice([2, 3, 4]),
        rest_ms=rng.choice([230.0, 290.0, 350.0]),
        periods=periods,
        faults=_faults(rng, noisy),
        quality=rng.choice([GOOD, GOOD, Quality(0.5, 8.0), Quality(1.0, 30.0)]),
        disk_ms=rng.choice([(0.05, 0.3), (0.05, 0.3), (0.2, 3.0), (1.0, 20.0)]),
        loop_ms=rng.choice([(0.05, 0.3), (0.5, 3.0), (1.0, 8.0)]),
        snapshot_bytes=rng.choice([6_000, 12_000, 25_000, 80_000]),
        snapshot_chunk_bytes=rng.choice([1_000, 4_000, 1 << 20]),
        message_bytes_max=rng.choice([400, 2_000, 1 << 20]),
        in_flight_messages_max=rng.choice([1, 4, 64]),
        spread=rng.choice([1.0, 1.0, 1.0, 0.3, 0.0]),
        # (The choice has a separate random source, so that it does not change the rest of a seed's plan.)
        segment_bytes=random.Random(f"segments {seed}").choice(
            [700, 1_500, 1_500, 4_000, 4_000, 10_000, SEGMENT_BYTES]
        ),
    )
    if hard_on:
        return _scenes(plan, hard_on)
    return replace(plan, faults=plan.faults + _apart(seed, noisy, len(plan.faults)))


def draw_periods(
    rng: random.Random, quiet_ms: tuple[float, float], noisy_ms: tuple[float, float]
) -> tuple[Period, ...]:
    """Draw four or eight periods, a quarter of them quiet, but never the first: a quiet period needs damage to recover
    from. ``quiet_ms``: duration of a quiet period; ``noisy_ms``: duration of all periods together if all were noisy."""
    count = rng.choice([4, 4, 8])
    quiet = set(rng.sample(range(1, count), count // 4))
    periods: list[Period] = []
    at_ms = 0.0
    for number in range(count):
        length_ms = rng.uniform(*quiet_ms) if number in quiet else rng.uniform(*noisy_ms) / count
        periods.append(Period(at_ms, at_ms + length_ms, number in quiet))
        at_ms += length_ms
    return tuple(periods)


def _scenes(plan: Plan, kinds: Collection[str]) -> Plan:
    """A schedule with faults of the ``kinds`` only, several of each, and a log that rolls often."""
    at_ms = (900.0, 3_000.0, 5_100.0)
    found = [(at, kind) for at in at_ms for kind in kinds]
    return replace(
        plan,
        voters=3,
        rest_ms=100.0,
        spread=1.0,
        segment_bytes=min(plan.segment_bytes, 4_000),
        periods=(Period(0.0, 7_500.0, False),),
        faults=tuple(Fault(n, at, kind, 600.0, 0.5, 10 * plan.seed + n) for n, (at, kind) in enumerate(found)),
    )


def _faults(rng: random.Random, noisy: list[Period]) -> tuple[Fault, ...]:
    count = min(FAULTS_MAX, FAULTS_MIN + int(rng.expovariate(1 / 9.0)))
    kinds = {**REQUIRED, **OTHERS}
    weights = [weight * rng.choice([0.0, 0.0, 0.3, 1.0, 1.0, 4.0]) for weight in kinds.values()]
    if not any(weights):
        weights = list(kinds.values())
    found = []
    for _ in range(count):
        (period,) = rng.choices(noisy, [each.to_ms - each.from_ms for each in noisy])
        (kind,) = rng.choices(list(kinds), weights)
        at_ms = rng.uniform(period.from_ms, period.to_ms)
        for_ms = min(rng.choice([40.0, 200.0, 600.0, 1_200.0, 2_000.0]) * rng.uniform(0.5, 1.5), period.to_ms - at_ms)
        found.append((at_ms, kind, for_ms, rng.random(), rng.randrange(1 << 32)))
    return tuple(Fault(number, *each) for number, each in enumerate(sorted(found)))


def _apart(seed: int, noisy: list[Period], first: int) -> tuple[Fault, ...]:
    rng, found = random.Random(f"apart {seed}"), []
    for kind, probability in APART.items():
        for _ in range(rng.choice([1, 2, 3]) if rng.random() < probability else 0):
            (period,) = rng.choices(noisy, [each.to_ms - each.from_ms for each in noisy])
            at_ms = rng.uniform(period.from_ms, period.to_ms)
            for_ms = min(rng.choice([200.0, 600.0, 1_200.0]) * rng.uniform(0.5, 1.5), period.to_ms - at_ms)
            found.append(Fault(first + len(found), at_ms, kind, for_ms, rng.random(), rng.randrange(1 << 32)))
    return tuple(found[: max(0, FAULTS_MAX - first)])
