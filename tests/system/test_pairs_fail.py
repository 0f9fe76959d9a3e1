"""Two nodes, or a machine with three roles, fail in the same moment while clients write, read and commit.

The cluster has the shipped timeouts. HEADRACE_FAULTS=full (``make verify``): each pair three times; otherwise once. See
docs/faults.md.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.faulty_cluster import SLOW_MACHINE, FaultyCluster, eventually
from tests.system.groups_load import GroupsLoad, longest_silence_s
from tests.system.scenarios import CONTROLLER_KILL_S, LEADER_KILL_S
from tests.system.workload import Load, verdict
from tests.worlds.waiting import check_took

ROUNDS = 3 if os.environ.get("HEADRACE_FAULTS") == "full" else 1
#: The longest time without an acknowledgement, or commit, after the leading controller failed together with another
#: node: the sum of the bounds of both.
PAIR_S = LEADER_KILL_S + CONTROLLER_KILL_S
#: The longest time without a commit while a coordinator is suspended: its session, and what the clients need to move.
SUSPENDED_COORDINATOR_S = 9.0 + 3.0
PARTITIONS = 3
CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    "auto.create.topics.enable": "false",
}


@dataclass(frozen=True, slots=True)
class World:
    cluster: FaultyCluster
    topic: str
    groups: GroupsLoad

    def leader(self) -> str:
        return self.cluster.leader(self.topic, 0)

    def controller(self) -> str:
        return self.cluster.controller_leader()

    def coordinator(self) -> str:
        return self.groups.coordinator_of(self.groups.groups[0])


Victims = Callable[[World], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Pair:
    """``within_s``: bound on the silence of a partition and of a group; ``is_suspended``: SIGSTOP instead of
    SIGKILL."""

    victims: Victims
    within_s: float = PAIR_S
    is_suspended: bool = False
    min_insync: int = 2


PAIRS = {
    "broker and leading controller": Pair(lambda world: (world.leader(), world.controller())),
    "broker and coordinator": Pair(lambda world: (world.leader(), world.coordinator())),
    "leading controller and coordinator": Pair(lambda world: (world.controller(), world.coordinator())),
    "two brokers": Pair(
        lambda world: (world.leader(), world.cluster.followers(world.topic)[0]), LEADER_KILL_S, min_insync=1
    ),
    "a machine with three roles": Pair(lambda world: (world.leader(), world.controller(), world.coordinator())),
    "broker and leading controller, suspended": Pair(
        lambda world: (world.leader(), world.controller()), is_suspended=True
    ),
    "leading controller and coordinator, suspended": Pair(
        lambda world: (world.controller(), world.coordinator()), is_suspended=True
    ),
    "coordinator alone, suspended": Pair(
        lambda world: (world.coordinator(),), SUSPENDED_COORDINATOR_S, is_suspended=True
    ),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    seed = int(os.environ["HEADRACE_TEST_SEED"])
    directory: Path = tmp_path_factory.mktemp("pairs")
    with FaultyCluster(directory / "cluster", coordinators=2, config=CONFIG, rng=random.Random(seed)) as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PAIRS)
def test_the_cluster_goes_on_when_nodes_fail_together(name: str, cluster: FaultyCluster, rng: random.Random) -> None:
    pair, topic = PAIRS[name], "t-" + name.translate({ord(" "): "-", ord(","): None})
    try:
        cluster.make_topic(topic, PARTITIONS, **{"min.insync.replicas": str(pair.min_insync)})
        with (
            Load(cluster, topic, PARTITIONS, seed=rng.randrange(2**31)) as load,
            GroupsLoad(cluster, groups=1, members=2) as groups,
        ):
            for number in range(ROUNDS):
                load.until_more(100, what="before anything breaks")
                began_s = time.monotonic()
                names = fail(World(cluster, topic, groups), pair)
                load.until_more(100, what=f"without {' and '.join(names)}")
                if pair.min_insync == 2:  # (commits need two replicas, too)
                    groups.goes_on(f"without {' and '.join(names)}")
                revive(cluster, names, pair)
                for each in (topic, groups.topic, "__consumer_offsets"):
                    cluster.until_in_sync(each)
                groups.goes_on("after healing")
                silence_s = longest_silence_s(groups.groups[0], began_s, time.monotonic())
                print(f"{name}, round {number + 1} ({', '.join(names)}): no commit for {silence_s:.2f} s")
                if pair.min_insync == 2:
                    check_took(silence_s, pair.within_s * SLOW_MACHINE, f"no commit after the failure of {name}")
            groups.judge()
            load.end_producing()
            cluster.until_identical(topic, range(PARTITIONS))
            load.read_the_log()
            print(f"{name}: the longest silence of a partition: {load.longest_silence_s:.2f} s")
            check_took(load.longest_silence_s, pair.within_s * SLOW_MACHINE, f"no acknowledgement, {name}")
            verdict(load)
    except BaseException:
        print(cluster.tails())
        cluster.network.heal()
        raise


def fail(world: World, pair: Pair) -> Sequence[str]:
    """Let the nodes of the pair fail together; return their names."""
    world.groups.until_all_coordinate()
    names = pair.victims(world)
    if pair.is_suspended:
        for each in names:
            world.cluster.pause(each)
    else:
        world.cluster.kill(*names)
    return names


def revive(cluster: FaultyCluster, names: Sequence[str], pair: Pair) -> None:
    for each in names:
        if pair.is_suspended:
            cluster.resume(each)
        else:
            cluster.start(each)
    eventually(lambda: not cluster.dead(), "not every node lives again")
