"""A schedule of transactions as data, which is drawn from a seed before the simulation starts (as in ``sim_plan``).

A quarter of the periods are quiet: broken parts are repaired, and nothing else breaks. The noisy periods have 5 to 40
faults together, of kinds that each schedule draws for itself.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from headrace_coordinator.runtime.shard import GATHERED_BYTES_MAX
from headrace_core.testing.network import GOOD, Quality
from tests.simulation.broker_plan import BrokerPlan
from tests.simulation.sim_plan import FAULTS_MAX, FAULTS_MIN, Fault, Period, draw_periods

#: In the schedules of a mutant, the weight of the faults that are likely to expose it is multiplied by this factor.
HARDEST = 8.0
#: Faults of brokers (``broker_faults``), with their weights.
OF_BROKERS: dict[str, float] = {
    "duplicate": 0.6,
    "reorder": 0.6,
    "delay": 1.0,
    "partition": 0.8,
    "crash": 2.0,
    "pause": 1.0,
    "torn_block": 0.8,
    "failed_flush": 0.5,
    "wipe": 0.6,
    "clock_jump": 0.4,
    "slow_disk": 0.6,
    "membership": 0.5,
    "metadata_late": 1.0,
    "stream_broken": 0.6,
    "controlled_shutdown": 0.8,
    "leader_moved": 2.0,
    "fast_failovers": 0.8,
    "restart_all": 0.4,
}
#: Faults of coordinators and of their shards' logs (``coordinator_faults``).
OF_COORDINATORS: dict[str, float] = {
    "coordinator_crash": 2.0,
    "coordinator_pause": 1.2,
    "coordinator_apart": 1.2,
    "coordinator_unheard": 0.8,
    "coordinator_drains": 0.8,
    "shards_move": 1.0,
    "leader_change": 1.2,
    "leader_slow": 0.8,
    "append_answer_lost": 1.0,
    "append_late": 1.0,
    "log_cut": 0.6,
    "compaction": 0.8,
}
#: Faults of producers, and of messages of transactions (``txn_faults``).
OF_TRANSACTIONS: dict[str, float] = {
    "producer_killed": 1.6,
    "producer_paused": 1.6,  # longer than the transaction timeout, half of the time
    "zombie": 2.0,  # a producer is paused, another one takes its transactional id, and the first one resumes
    "producer_doubled": 1.0,  # a second producer takes the id while the first one runs
    "ends_late": 2.0,  # a copy of EndTransaction arrives during the next transaction (KAFKA-17754)
    "produce_late": 1.6,  # a copy of a batch arrives during the next transaction
    "markers_late": 1.6,
    "markers_doubled": 1.0,
    "markers_lost": 1.0,
    "markers_held": 1.0,  # no marker arrives for a while
    "verifications_late": 1.6,
    "verifications_lost": 1.0,
    "hand_over_prepared": 1.2,  # a producer prepares and ends; another client completes its transaction
    "coordinator_clock": 0.6,
    "operator_aborts": 0.6,
    "marker_and_failover": 1.2,  # a leader is deposed as soon as it has appended a marker
    "hand_over_in_prepare": 1.2,  # a coordinator dies while markers are held
}
KINDS: dict[str, float] = {**OF_BROKERS, **OF_COORDINATORS, **OF_TRANSACTIONS}


@dataclass(frozen=True, slots=True)
class TxnPlan(BrokerPlan):
    """See the module. All times are in ms. ``versions``: the transaction version of each transactional id."""

    coordinators: int = 2
    shards: int = 2
    versions: tuple[int, ...] = (2, 2, 1)
    readers: int = 1
    timeout_ms: int = 800
    epoch_max: int = 6
    #: The shares of transactions that the producer aborts, and that it prepares first.
    aborts: float = 0.2
    prepares: float = 0.1
    expiration_ms: int = 60_000
    replication_ms: tuple[float, float] = (0.3, 1.5)
    gathered_bytes: int = GATHERED_BYTES_MAX


def make_txn_plan(seed: int, *, hard_on: Collection[str] = ()) -> TxnPlan:
    """Draw the schedule of a seed. ``hard_on``: kinds of faults that get more weight than the seed draws."""
    rng = random.Random(f"transaction plan {seed}")
    periods = draw_periods(rng, (300.0, 500.0), (1_800.0, 3_000.0))
    versions = rng.choice([(2, 2), (2, 2, 1), (2, 2, 2), (2, 1), (1, 2, 2)])
    return TxnPlan(
        seed=seed,
        brokers=3,
        partitions=rng.choice([2, 2, 3]),
        min_insync=2,
        unclean=False,
        producers=0,
        consumers=0,
        rest_ms=rng.choice([2.0, 10.0, 30.0]),
        periods=periods,
        faults=_faults(rng, [period for period in periods if not period.is_quiet], hard_on),
        quality=rng.choice([GOOD, GOOD, Quality(0.5, 6.0), Quality(1.0, 20.0)]),
        disk_ms=rng.choice([(0.1, 0.6), (0.2, 3.0), (1.0, 8.0)]),
        loop_ms=rng.choice([(0.05, 0.3), (0.1, 0.8), (0.3, 2.0)]),
        metadata_ms=rng.choice([(0.5, 3.0), (1.0, 20.0), (5.0, 60.0)]),
        lag_ms=rng.choice([250, 400, 800]),
        segment_bytes=rng.choice([700, 2_000, 20_000]),
        coordinators=rng.choice([1, 2, 2, 3]),
        shards=rng.choice([1, 2]),
        versions=versions,
        timeout_ms=rng.choice([400, 800, 1_500]),
        aborts=rng.choice([0.1, 0.3]),
        prepares=rng.choice([0.0, 0.1, 0.3]),
        expiration_ms=rng.choice([60_000, 60_000, 900]),
        replication_ms=rng.choice([(0.3, 1.5), (1.0, 6.0), (3.0, 30.0)]),
        gathered_bytes=rng.choice([400, GATHERED_BYTES_MAX, GATHERED_BYTES_MAX]),
    )


def _faults(rng: random.Random, noisy: list[Period], hard_on: Collection[str]) -> tuple[Fault, ...]:
    count = min(FAULTS_MAX, FAULTS_MIN + int(rng.expovariate(1 / 9.0)))
    weights = {kind: weight * rng.choice([0.0, 0.3, 1.0, 1.0, 4.0]) for kind, weight in KINDS.items()}
    for kind in hard_on:
        weights[kind] = HARDEST * max(weights[kind], KINDS[kind])
    found = []
    for period in rng.choices(noisy, [each.to_ms - each.from_ms for each in noisy], k=count):
        at_ms = rng.uniform(period.from_ms, period.to_ms)
        (kind,) = rng.choices(list(weights), list(weights.values()))
        for_ms = min(rng.choice([30.0, 150.0, 500.0, 1_200.0]) * rng.uniform(0.5, 1.5), period.to_ms - at_ms)
        found.append((at_ms, kind, for_ms, rng.random(), rng.randrange(1 << 32)))
    return tuple(Fault(number, *each) for number, each in enumerate(sorted(found)))
