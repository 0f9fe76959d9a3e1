"""Groups of real consumers while coordinators, brokers and members die, freeze and are cut off. See docs/faults.md.

HEADRACE_FAULTS      the scenarios that run
(not set)            the everyday scenarios, one round each (a part of ``make test``)
rotate               one scenario of half a minute, chosen by HEADRACE_TEST_SEED (a part of CI)
full                 all scenarios, with 10 groups of 10 members and 30 kills of coordinators (``make verify``)
name,name...         these scenarios, half a minute each
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import TopicPartition
from headrace_core.metadata.shards import OFFSETS_TOPIC, shard_of
from headrace_core.testing import verdicts
from tests.system import small_disk
from tests.system.faulty_cluster import FaultyCluster, check_silence, eventually
from tests.system.groups_load import GroupsLoad, longest_silence_s
from tests.system.scenarios import FULL_DISK_S
from tests.system.small_disk import SmallDisks
from tests.worlds.readers import new_name

WHICH = os.environ.get("HEADRACE_FAULTS", "")
FULL = WHICH == "full"
KEPT = Path(__file__).resolve().parents[2] / "build" / "kept"
SECONDS = float(os.environ.get("HEADRACE_FAULTS_SECONDS", "30" if WHICH else "0"))
#: How long groups may be without a commit after their coordinator died (docs/faults.md).
COORDINATOR_KILL_S = 5.0
SHARDS = 8
KILLS_MIN = 30 if FULL else 1
GROUPS, MEMBERS = (10, 10) if FULL else (2, 3)

CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "broker.session.timeout.ms": "6000",
    "broker.session.disconnect.grace.ms": "1000",
    "offsets.topic.num.partitions": str(SHARDS),
    "log.dir.reserve.bytes": str(4 << 20),
    # A member that returns after a short break must reconnect within the grace period, also on a slow machine.
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
    """Members continue to read beyond the grace period (4 s in these tests) with their current assignment; during this
    time they cannot commit."""
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
            cluster.resume(victim)  # during commits, which it must not answer
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


# ------------------------------------------------------------------------------------------------------ disks


@scenario
def the_disk_of_one_groups_shard_leader_and_of_anothers_follower_is_full(
    cluster: FaultyCluster, rng: random.Random
) -> None:
    name = small_disk.broker_of(cluster)
    full, *others = sorted(cluster.broker_ids, key=lambda broker: broker != cluster.node(name).id)
    with GroupsLoad(cluster, groups=[name_in_shard(0), name_in_shard(1)], members=3) as load:
        led, followed = (TopicPartition(OFFSETS_TOPIC, load.shard_of(group)) for group in load.groups)
        wanted = {led: [full, *others], followed: [*others, full]}
        cluster.begin_reassignment(wanted)
        cluster.until_reassigned(wanted)

        def leads_and_follows() -> None:
            assert cluster.preferred_leader(OFFSETS_TOPIC, led.partition) == name
            assert cluster.preferred_leader(OFFSETS_TOPIC, followed.partition) != name

        def is_out() -> bool:
            shards = cluster.describe(OFFSETS_TOPIC)
            those = [shards[each.partition] for each in (led, followed)]
            return all(full != each.leader and full not in each.isr for each in those)

        for number in rounds():
            leads_and_follows()
            load.goes_on("before")
            since = time.monotonic()
            with small_disk.full(cluster):
                eventually(is_out, lambda: f"{name} leads, or is in sync: {cluster.describe(OFFSETS_TOPIC)}")
                load.goes_on(f"with the disk of {name} full")
                load.reads_on(for_s=2.0)
                assert cluster.node(name).alive()
            cluster.until_in_sync(OFFSETS_TOPIC)
            cluster.until_in_sync(load.topic)
            leads_and_follows()
            load.goes_on("after healing")
            until = time.monotonic()
            for group, role in zip(load.groups, ("leader", "follower"), strict=True):
                silence_s = longest_silence_s(group, since, until)
                print(f"round {number}: no commit for {silence_s:.2f} s, the disk of the shard's {role} was full")
                check_silence("a group committed nothing", silence_s, FULL_DISK_S)
        load.judge()
        assert load.changes() == [], "no member need move when a broker's disk is full"


def name_in_shard(shard: int) -> str:
    """A new name for a group whose coordinator is that of the given shard."""
    return next(name for _ in itertools.count() if shard_of(name := new_name("g"), SHARDS) == shard)


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
            # (One commit may have been in transit when the network began to refuse the member's connections.)
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
        load.judge()  # the reader had also stopped before the other members began


@pytest.fixture(scope="module")
def disks() -> Iterator[SmallDisks]:
    made = SmallDisks()
    yield made
    made.unmount()


@pytest.fixture(scope="module")
def clusters(disks: SmallDisks) -> Iterator[list[FaultyCluster]]:
    """The running cluster, if there is one: after a failure the next scenario gets another cluster."""
    running: list[FaultyCluster] = []
    yield running
    for cluster in running:
        cluster.__exit__(None, None, None)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", chosen())
def test_groups_skip_nothing_and_repeat_only_what_was_not_committed(
    name: str, clusters: list[FaultyCluster], disks: SmallDisks, tmp_path: Path, rng: random.Random
) -> None:
    if not clusters:
        small = disks.mount(tmp_path / "cluster")
        made = FaultyCluster(
            tmp_path / "cluster", controllers=1, coordinators=2, config=CONFIG, rng=rng, small_disk=small
        )
        clusters.append(made.__enter__())
    cluster = clusters[0]
    try:
        SCENARIOS[name](cluster, rng)
        if dead := cluster.dead():
            cluster.start(*dead)
    except pytest.skip.Exception:
        raise
    except BaseException as error:
        print(cluster.tails())
        clusters.clear()
        cluster.__exit__(AssertionError, None, None)
        if verdicts.is_safety(error):
            kept = verdicts.keep(cluster.directory, KEPT, f"{name}-{os.environ['HEADRACE_TEST_SEED']}")
            print(f"the cluster's data and logs are kept in {kept}")
        disks.unmount()
        raise
