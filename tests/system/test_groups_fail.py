"""Groups of real consumers while coordinators, brokers and members die, freeze and are cut off. See docs/faults.md.

HEADRACE_FAULTS      what runs
(not set)            the everyday ones, a round each: a part of ``make test``
rotate               one of half a minute, chosen by HEADRACE_TEST_SEED: a part of CI
full                 all of them, with 10 groups of 10 members and 30 kills of coordinators (``make verify``)
name,name...         these, half a minute each
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_core.testing import verdicts
from tests.system.faulty_cluster import FaultyCluster, check_silence, eventually
from tests.system.groups_load import GroupsLoad

WHICH = os.environ.get("HEADRACE_FAULTS", "")
FULL = WHICH == "full"
KEPT = Path(__file__).resolve().parents[2] / "build" / "kept"
SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "30" if WHICH else "0"))
#: How long groups may be without a commit after their coordinator died (docs/faults.md).
COORDINATOR_KILL_S = 5.0
KILLS_MIN = 30 if FULL else 1
GROUPS, MEMBERS = (10, 10) if FULL else (2, 3)

CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "broker.session.timeout.ms": "6000",
    "broker.session.disconnect.grace.ms": "1000",
    "offsets.topic.num.partitions": "8",
    # For a slow machine: a member that returns after a moment must be in time.
    "group.consumer.connection.grace.ms": "4000",
}

Scenario = Callable[[FaultyCluster, random.Random], None]
SCENARIOS: dict[str, Scenario] = {}
EVERYDAY = (
    "coordinators_are_killed_again_and_again",
    "all_coordinators_are_dead_and_reading_goes_on",
    "a_member_is_cut_off_until_others_have_its_partitions",
)


def scenario(tell: Scenario) -> Scenario:
    SCENARIOS[tell.__name__] = tell
    return tell


def chosen() -> list[str]:
    if not WHICH:
        return list(EVERYDAY)
    if WHICH == "full":
        return list(SCENARIOS)
    if WHICH == "rotate":
        return [random.Random(int(os.environ["HEADRACE_TEST_SEED"])).choice(list(SCENARIOS))]
    return [name for name in WHICH.split(",") if name in SCENARIOS]  # (others are those of test_faults.py)


def rounds(at_least: int = 1) -> Iterator[int]:
    begun, number = time.monotonic(), 0
    while number < at_least or time.monotonic() - begun < SECONDS:
        yield number
        number += 1


# ------------------------------------------------------------------------------------------------------ coordinators


@scenario
def coordinators_are_killed_again_and_again(cluster: FaultyCluster, rng: random.Random) -> None:
    with GroupsLoad(cluster, groups=GROUPS, members=MEMBERS) as load:
        for number in rounds(KILLS_MIN):
            load.until_all_coordinate()
            victim = load.coordinator_of(load.groups[number % GROUPS])
            cluster.kill(victim)
            took = load.goes_on(f"with {victim} dead")
            print(f"round {number}: all groups commit again {took:.2f} s after {victim} was killed")
            check_silence("a group committed nothing", took, COORDINATOR_KILL_S)
            cluster.start(victim)
        load.judge()
        assert load.changes() == [], "nobody need move when a coordinator dies"


@scenario
def all_coordinators_are_dead_and_reading_goes_on(cluster: FaultyCluster, rng: random.Random) -> None:
    """Members continue to read beyond the grace period (4 s here) with their current assignment; commits are not
    possible meanwhile."""
    with GroupsLoad(cluster, groups=2, members=3) as load:
        for _ in rounds():
            load.until_all_coordinate()
            load.goes_on("before")
            victims = [f"coordinator-{each}" for each in cluster.coordinator_ids]
            cluster.kill(*victims)
            load.reads_on(for_s=10.0)
            cluster.start(*victims)
            load.goes_on("after all coordinators were dead")
        load.judge()
        assert load.changes() == [], "nobody need move when all coordinators die"


@scenario
def a_coordinator_is_frozen_until_its_shards_are_gone_and_thaws(cluster: FaultyCluster, rng: random.Random) -> None:
    with GroupsLoad(cluster, groups=2, members=3) as load:
        for number in rounds():
            load.until_all_coordinate()
            group = load.groups[number % 2]
            victim = load.coordinator_of(group)
            cluster.pause(victim)
            eventually(
                lambda group=group, victim=victim: load.coordinator_of(group) != victim, f"{victim} keeps its shards"
            )
            cluster.resume(victim)  # in the midst of commits, which it must not answer
            load.goes_on(f"after {victim} was frozen")
        load.judge()
        assert load.changes() == [], "nobody need move when a coordinator is frozen"


@scenario
def a_coordinator_and_the_leader_of_its_shard_are_killed_together(cluster: FaultyCluster, rng: random.Random) -> None:
    with GroupsLoad(cluster, groups=2, members=3) as load:
        for number in rounds():
            load.until_all_coordinate()
            group = load.groups[number % 2]
            victims = load.coordinator_of(group), cluster.leader("__consumer_offsets", load.shard_of(group))
            cluster.kill(*victims)
            load.goes_on(f"with {' and '.join(victims)} dead")
            cluster.start(*victims)
            cluster.until_in_sync("__consumer_offsets")
            cluster.until_in_sync(load.topic)
        load.judge()
        assert load.changes() == [], "nobody need move when a coordinator dies"


# ------------------------------------------------------------------------------------------------------ members


@scenario
def a_member_is_killed_again_and_again(cluster: FaultyCluster, rng: random.Random) -> None:
    with GroupsLoad(cluster, groups=1, members=3, partitions=6, processes=1) as load:
        (group,) = load.groups
        for _ in rounds():
            victim = next(each for each in group.living if hasattr(each, "kill"))
            victim.kill()
            group.living.remove(victim)
            load.until_shared()
            load.goes_on("with a member dead")
            load.add_process(group)
            load.until_shared()
        load.judge()


@scenario
def members_whose_connections_break_and_come_back_lose_nothing(cluster: FaultyCluster, rng: random.Random) -> None:
    with GroupsLoad(cluster, groups=2, members=3, partitions=6) as load:
        for number in rounds(3):
            name = load.coordinator_of(load.groups[number % 2])
            assert cluster.network.reset(target=name) > 0, f"nobody is connected to {name}"
            load.goes_on(f"after all connections to {name} broke")
        load.judge()
        assert load.changes() == [], "nobody need move when connections break for a moment"


@scenario
def a_member_is_cut_off_until_others_have_its_partitions(cluster: FaultyCluster, rng: random.Random) -> None:
    with GroupsLoad(cluster, groups=1, members=3, partitions=6, processes=1) as load:
        (group,) = load.groups
        lonely = next(each for each in group.living if hasattr(each, "kill"))
        for _ in rounds():
            owned = lonely.partitions
            for number in (1, 2):
                cluster.network.refuse("member", f"coordinator-{number}")
            # (One may have been on its way through when it was refused.)
            eventually(lambda: not cluster.network.reset("member"), "the member's connections do not break")
            others = [each for each in group.living if each is not lonely]
            eventually(
                lambda owned=owned, others=others: owned <= frozenset().union(*(each.partitions for each in others)),
                "the others do not take over",
            )
            load.goes_on("with a member cut off")
            cluster.network.heal()
            load.until_shared()
            load.goes_on("with all of them")
        load.judge()  # also: it had stopped before the others began


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[FaultyCluster]]:
    """The running cluster, if there is one: after a failure the next scenario gets another."""
    running: list[FaultyCluster] = []
    yield running
    for cluster in running:
        cluster.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", chosen())
def test_groups_skip_nothing_and_repeat_only_what_was_not_committed(
    name: str, clusters: list[FaultyCluster], tmp_path: Path, rng: random.Random
) -> None:
    if not clusters:
        made = FaultyCluster(tmp_path / "cluster", brokers=3, controllers=1, coordinators=2, config=CONFIG, rng=rng)
        clusters.append(made.__enter__())
    cluster = clusters[0]
    try:
        SCENARIOS[name](cluster, rng)
        if dead := cluster.dead():
            cluster.start(*dead)
    except BaseException as error:
        print(cluster.tails())
        clusters.clear()
        cluster.__exit__(AssertionError, None, None)
        if verdicts.kind_of(error) == verdicts.SAFETY:
            kept = verdicts.keep(cluster.directory, KEPT, f"{name}-{os.environ['HEADRACE_TEST_SEED']}")
            print(f"the cluster's data and logs are kept in {kept}")
        raise
