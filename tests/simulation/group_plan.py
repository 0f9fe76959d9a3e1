"""A schedule of the groups' part as data, drawn from a seed before the simulation starts (its form is that of
``sim_plan``).

A quarter of the periods are quiet: broken parts are repaired, and nothing else breaks. The noisy periods have 5 to 40
faults together, of kinds that each schedule draws for itself.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

from headrace_coordinator.runtime.shard import GATHERED_BYTES_MAX
from headrace_core.testing.network import GOOD, Quality
from tests.simulation.sim_plan import FAULTS_MAX, FAULTS_MIN, Fault, Period, Schedule, draw_periods

#: Factor for the weight of the faults that are likely to expose a mutant, in the schedules of that mutant.
HARDEST = 8.0
#: Kind of fault -> its weight.
KINDS: dict[str, float] = {
    "coordinator_crash": 1.6,
    "coordinator_pause": 1.6,
    "coordinator_apart": 1.2,  # its stream to the controllers breaks, and does not come back for a while
    "coordinator_unheard": 1.2,  # cut off from the controllers, silently
    "coordinator_cut": 1.0,  # cut off from some members
    "silent_owner": 0.7,  # it continues to answer members without commits, long after its shards have moved
    "coordinator_drains": 0.8,
    "restart_all": 0.4,
    "coordinators_gone": 1.0,  # no coordinator at all, for a session or longer
    "takeover_unreached": 0.8,  # a member continues to read, and reaches no later owner for longer than a session
    "gone_after_the_grace": 0.7,  # a coordinator removes a member, and then no coordinator is left
    # the only live coordinator is deposed, does not know it, and continues with some of the members
    "owner_alone": 1.0,
    "shards_move": 0.8,
    "controllers_change": 0.5,
    "controllers_gone": 0.8,  # no quorum: the controllers are unreachable for longer than a coordinator's session
    "metadata_late": 1.0,
    "broker_behind": 0.8,  # a broker that receives nothing from the controllers; some members ask only this broker
    "old_news": 0.7,  # a broker behind the coordinator that a member has lost: it reports no owner
    "leader_change": 2.0,
    "leader_slow": 1.0,
    "append_answer_lost": 1.2,
    "append_late": 1.2,
    "log_cut": 0.8,
    "compaction": 0.8,
    "member_killed": 1.6,
    "member_paused": 1.0,
    "member_leaves": 1.0,
    "member_joins": 1.2,
    "static_restart": 1.0,
    "static_double": 0.8,
    "connection_broken": 1.4,
    "connection_flaps": 0.8,
    "connection_lost_on_one_side": 0.8,
    "connection_half_open": 0.7,  # the coordinator sees the connection end before the member does
    "static_cut_off": 0.8,  # meanwhile another member joins, reads, commits and leaves
    "offsets_late": 0.7,  # a member's committed offsets are late; meanwhile it loses partitions and gets them back
    "slow_to_revoke": 1.0,
    "revoked_unheard": 0.8,  # a member must release partitions, and does not learn this for nearly a session
    "slow_and_cut_off": 0.7,  # a member releases partitions slowly, and is then cut off
    # a member is removed for a late release, and its coordinator dies before it sends the removal
    "removed_untold": 0.5,
    "subscription_changed": 1.0,
    "partitions_added": 0.8,
    "pressed_topics": 0.8,  # a shard refuses requests, and meanwhile partitions are added
    "topic_deleted": 0.7,
    "clock_jump": 0.8,
    "delay": 1.0,
    "admin": 0.8,
}


@dataclass(frozen=True, slots=True)
class GroupPlan(Schedule):
    """See the module. Times are in ms. ``members``: number of members of each group; ``static``: groups with static
    members; ``rebalance_timeout_ms``: longer than the session, as max.poll.interval.ms usually is, or shorter."""

    seed: int
    coordinators: int
    shards: int
    members: tuple[int, ...]
    static: tuple[bool, ...]
    assignors: tuple[str, ...]
    partitions: tuple[int, ...]
    committers: int
    assignment_interval_ms: int
    rebalance_timeout_ms: int
    retention_ms: int
    #: Decisions that are larger than this many bytes are split, and so are the batches of an append.
    atomic_bytes: int
    batch_bytes: int
    periods: tuple[Period, ...]
    faults: tuple[Fault, ...]
    quality: Quality
    loop_ms: tuple[float, float]
    replication_ms: tuple[float, float]
    metadata_ms: tuple[float, float]
    #: How long a member's connection may be broken. If the grace period is shorter than the time that the controllers
    #: need to remove a coordinator, no member reads without a coordinator.
    grace_ms: int
    #: A member's session.
    session_ms: int
    #: A shard refuses requests of clients when this many bytes wait for its append in flight.
    gathered_bytes: int


def make_group_plan(seed: int, *, hard_on: Collection[str] = ()) -> GroupPlan:
    """Draw the schedule of a seed. ``hard_on``: kinds of faults that get more weight than the seed draws."""
    rng = random.Random(f"group plan {seed}")
    periods = draw_periods(rng, (500.0, 900.0), (4_000.0, 7_000.0))
    groups = rng.choice([1, 2, 2])
    return GroupPlan(
        seed=seed,
        coordinators=rng.choice([1, 2, 2, 3]),
        shards=rng.choice([1, 2, 3]),
        members=tuple(rng.choice([2, 3, 3, 4]) for _ in range(groups)),
        static=tuple(rng.random() < 0.4 for _ in range(groups)),
        assignors=tuple(rng.choice(["uniform", "uniform", "range", "sticky"]) for _ in range(groups)),
        partitions=tuple(rng.choice([1, 2, 3, 5]) for _ in range(2)),
        committers=rng.choice([1, 2]),
        assignment_interval_ms=rng.choice([0, 0, 120, 400]),
        rebalance_timeout_ms=rng.choice([700, 700, 2_800, 4_000, 6_000]),
        retention_ms=rng.choice([900, 4_000, 60_000]),
        atomic_bytes=rng.choice([256 * 1024, 300]),
        batch_bytes=rng.choice([512 * 1024, 350]),
        periods=periods,
        faults=_faults(rng, [period for period in periods if not period.is_quiet], hard_on),
        quality=rng.choice([GOOD, GOOD, Quality(0.5, 6.0), Quality(1.0, 25.0)]),
        loop_ms=rng.choice([(0.02, 0.1), (0.05, 0.5), (0.2, 2.0)]),
        replication_ms=rng.choice([(0.3, 1.5), (1.0, 6.0), (3.0, 40.0)]),
        metadata_ms=rng.choice([(0.5, 3.0), (1.0, 20.0), (5.0, 60.0)]),
        grace_ms=rng.choice([160, 450, 600]),
        session_ms=rng.choice([1_300, 1_300, 2_400]),
        gathered_bytes=random.Random(f"pressure {seed}").choice([1, 400, 4_000, GATHERED_BYTES_MAX]),
    )


def _faults(rng: random.Random, noisy: list[Period], hard_on: Collection[str]) -> tuple[Fault, ...]:
    count = min(FAULTS_MAX, FAULTS_MIN + int(rng.expovariate(1 / 10.0)))
    kinds = list(KINDS)
    weights = [KINDS[kind] * rng.choice([0.0, 0.3, 1.0, 1.0, 4.0]) for kind in kinds]
    if not any(weights):
        weights = list(KINDS.values())
    weights = [
        HARDEST * max(weight, KINDS[kind]) if kind in hard_on else weight
        for kind, weight in zip(kinds, weights, strict=True)
    ]
    found = []
    for period in rng.choices(noisy, [each.to_ms - each.from_ms for each in noisy], k=count):
        at_ms = rng.uniform(period.from_ms, period.to_ms)
        kind = rng.choices(kinds, weights)[0]
        for_ms = rng.choice([30.0, 150.0, 500.0, 1_500.0, 3_500.0]) * rng.uniform(0.5, 1.5)
        found.append((at_ms, kind, for_ms, rng.random(), rng.randrange(1 << 32)))
    return tuple(Fault(number, *each) for number, each in enumerate(sorted(found)))
