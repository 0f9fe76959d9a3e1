"""A schedule of the brokers' half as data, drawn from a seed before the simulation starts (its form is that of
``sim_plan``).

A quarter of the periods are quiet: broken parts are repaired, and nothing else breaks. The noisy periods have 5 to 40
faults together, of kinds that each schedule draws for itself. Half of the schedules run stories (faults of several
steps), with few other faults.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from headrace_core.testing.network import GOOD, Quality
from tests.simulation.sim_plan import FAULTS_MAX, FAULTS_MIN, Fault, Period, Schedule, draw_periods

#: The stories of ``broker_stories``, with their weights.
STORIES: dict[str, float] = {
    "page_cache": 1.0,
    "new_disk_back": 0.8,
    "rotten_follower": 1.2,
    "handed_over_twice": 0.8,
    "lonely_leader": 0.8,
    "cut_and_back": 0.8,
    "asked_and_gone": 2.0,
    "refused_then_granted": 1.5,
    "behind_the_mark": 0.7,
    "behind_the_epoch": 1.0,
    "reader_overtaken": 1.0,
}
#: Stories that run only in separate schedules (``failed_flushes``, or directed ones of tests). Each of these stories
#: must reach its end.
ON_DEMAND = frozenset({"flush_then_power", "behind_the_start"})
#: The others. Scripts read these names in the last line of ``make sim``.
ACCIDENTS: dict[str, float] = {
    "drop": 1.0,
    "duplicate": 1.0,
    "reorder": 1.0,
    "delay": 1.0,
    "partition": 2.0,
    "crash": 2.5,
    "pause": 1.2,
    "clock_jump": 0.5,
    "clock_drift": 0.5,
    "torn_block": 1.2,
    "flipped_block": 1.0,
    "full_disk": 0.9,
    "failed_flush": 1.5,
    "wipe": 1.0,
    "membership": 1.0,
    "stale_replay": 1.2,
    "slow_disk": 1.0,
    "isr_answer_lost": 1.5,
    "isr_request_late": 1.0,
    "metadata_late": 1.2,
    "stream_broken": 1.2,
    "controlled_shutdown": 1.0,
    "leader_moved": 1.2,
    "fast_failovers": 1.2,
    "restart_all": 0.6,
    "min_insync": 0.4,
    "unclean_election": 0.6,
}
#: The share of the schedules in which a broker returns with an earlier copy of its disk (the story ``old_copy``).
COPIES = 0.1
KINDS: dict[str, float] = {**ACCIDENTS, **STORIES, "old_copy": COPIES}
#: Faults that occur only where unclean elections are allowed.
UNCLEAN = frozenset({"unclean_election", "reader_overtaken"})


#: A fault without its number: (time, kind, duration, severity, seed).
_Drawn = tuple[float, str, float, float, int]


@dataclass(frozen=True, slots=True)
class BrokerPlan(Schedule):
    """See the module."""

    seed: int
    brokers: int
    partitions: int
    min_insync: int
    #: unclean.leader.election.enable, with faults that cause unclean elections. Where unclean elections are allowed,
    #: the checks expect the consequences of these elections.
    unclean: bool
    producers: int
    consumers: int
    rest_ms: float
    periods: tuple[Period, ...]
    faults: tuple[Fault, ...]
    quality: Quality
    disk_ms: tuple[float, float]
    loop_ms: tuple[float, float]
    metadata_ms: tuple[float, float]
    lag_ms: int
    segment_bytes: int
    #: How records are deleted: by retention.bytes, by an operator's DeleteRecords, or by compaction with this number of
    #: keys.
    retention_bytes: int | None = None
    deletes: bool = False
    compacts: bool = False
    keys: int = 0


#: How the records of a schedule are deleted, and how often each kind is drawn.
UPKEEP = {"nothing": 4.0, "retention": 1.0, "deletes": 1.0, "both": 1.0, "compaction": 2.0}


def make_broker_plan(seed: int, hard_on: Collection[str] = ()) -> BrokerPlan:
    """Draw the schedule of a seed. ``hard_on``: kinds of upkeep (of ``UPKEEP``) that every schedule must have."""
    plan = _with_copy(_plan(seed))
    if plan.unclean:  # other records may have been deleted because of records that an unclean election truncates
        return plan
    rng = random.Random(f"broker upkeep {seed}")
    drawn = rng.choices(list(UPKEEP), list(UPKEEP.values()))[0]
    kind = next((kind for kind in UPKEEP if kind in hard_on), drawn)
    segment_bytes = plan.segment_bytes if kind == "nothing" else rng.choice([400, 700, 1_500])
    return replace(
        plan,
        segment_bytes=segment_bytes,
        retention_bytes=rng.choice([600, 1_500, 4_000]) if kind in ("retention", "both") else None,
        deletes=kind in ("deletes", "both"),
        compacts=kind == "compaction",
        keys=rng.choice([2, 5, 12]),
    )


def _with_copy(plan: BrokerPlan) -> BrokerPlan:
    """Add a copied disk to some plans, in a period without other faults. The other plans stay as they were."""
    rng = random.Random(f"broker copies {plan.seed}")
    noisy = [period for period in plan.periods if not period.is_quiet]
    if plan.unclean or plan.min_insync < 2 or rng.random() >= COPIES:
        return plan
    period = rng.choice(noisy)
    kept = [each for each in plan.faults if not period.from_ms <= each.at_ms <= period.to_ms]
    drawn = [(each.at_ms, each.kind, each.for_ms, each.amount, each.seed) for each in kept]
    copy = _drawn(rng, "old_copy", period.from_ms + rng.uniform(0.0, 250.0), period)
    if len(drawn) + 1 < FAULTS_MIN:
        return plan
    return replace(plan, faults=_numbered([*drawn, copy]))


def _plan(seed: int) -> BrokerPlan:
    rng = random.Random(f"broker plan {seed}")
    periods = draw_periods(rng, (500.0, 800.0), (2_400.0, 4_000.0))
    noisy = [period for period in periods if not period.is_quiet]
    unclean = rng.random() < 0.14
    return BrokerPlan(
        seed=seed,
        brokers=rng.choice([3, 3, 3, 4]),
        partitions=rng.choice([1, 1, 2]),
        min_insync=rng.choice([2, 2, 2, 1]),
        unclean=unclean,
        producers=2,
        consumers=1,
        rest_ms=rng.choice([11.0, 14.0, 17.0]),
        periods=periods,
        faults=_faults(rng, noisy, unclean),
        quality=rng.choice([GOOD, GOOD, Quality(0.5, 6.0), Quality(1.0, 20.0)]),
        disk_ms=rng.choice([(0.1, 0.6), (0.2, 3.0), (1.0, 12.0)]),
        loop_ms=rng.choice([(0.02, 0.1), (0.05, 0.5), (0.2, 2.0)]),
        metadata_ms=rng.choice([(0.5, 3.0), (1.0, 20.0), (5.0, 60.0)]),
        lag_ms=rng.choice([250, 400, 800]),
        segment_bytes=rng.choice([1_500, 4_000, 20_000]),
    )


def _faults(rng: random.Random, noisy: list[Period], unclean: bool) -> tuple[Fault, ...]:
    if rng.random() < (0.8 if unclean else 0.5):
        return _with_stories(rng, noisy, unclean)
    return _numbered(_accidents(rng, noisy, unclean, min(FAULTS_MAX, FAULTS_MIN + int(rng.expovariate(1 / 9.0)))))


def _accidents(rng: random.Random, noisy: list[Period], unclean: bool, count: int) -> list[_Drawn]:
    kinds = [kind for kind in ACCIDENTS if unclean or kind not in UNCLEAN]
    weights = [ACCIDENTS[kind] * rng.choice([0.0, 0.3, 1.0, 1.0, 4.0]) for kind in kinds]
    if not any(weights):
        weights = [ACCIDENTS[kind] for kind in kinds]
    return [
        _drawn(rng, rng.choices(kinds, weights)[0], rng.uniform(period.from_ms, period.to_ms), period)
        for period in rng.choices(noisy, [each.to_ms - each.from_ms for each in noisy], k=count)
    ]


def _with_stories(rng: random.Random, noisy: list[Period], unclean: bool) -> tuple[Fault, ...]:
    """Draw one or two stories, with few other faults: with many faults, no story would reach its end."""
    found = _accidents(rng, noisy, unclean, rng.randrange(FAULTS_MIN - 1, FAULTS_MIN + 3))
    kinds = [kind for kind in STORIES if kind not in UNCLEAN]
    chosen = rng.choices(kinds, [STORIES[kind] for kind in kinds], k=rng.choice([1, 2, 2]))
    if unclean:
        chosen[0] = rng.choice(sorted(UNCLEAN & set(STORIES)))
    begins = [period for period in noisy if all(before.to_ms != period.from_ms for before in noisy)]
    for period, kind in zip(rng.sample(begins, min(len(chosen), len(begins))), chosen, strict=False):
        # The fault comes early in the period: a fault that is repaired before its effect shows nothing.
        found.append(_drawn(rng, kind, period.from_ms + rng.uniform(0.0, 250.0), period))
    return _numbered(found)


def _drawn(rng: random.Random, kind: str, at_ms: float, period: Period) -> _Drawn:
    for_ms = min(rng.choice([30.0, 120.0, 400.0, 900.0]) * rng.uniform(0.5, 1.5), period.to_ms - at_ms)
    return at_ms, kind, for_ms, rng.random(), rng.randrange(1 << 32)


def _numbered(found: list[_Drawn]) -> tuple[Fault, ...]:
    return tuple(Fault(number, *each) for number, each in enumerate(sorted(found)))
