"""How long a partition had no acknowledgement, or a group no commit, and the bounds of docs/faults.md for these
silences."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.system import (
    faulty_cluster,
    flush_scenarios,  # noqa: F401 (it registers its scenario)
    scenarios,
    small_disk,
    test_groups_fail,
    test_pairs_fail,
)
from tests.system.groups_load import Commit, longest_silence_s
from tests.system.workload import Silences

ROOT = Path(__file__).parents[2]
#: Scenarios without a bound: they stop a majority, slow or damage the disk that acknowledgements wait for, or move
#: partitions.
UNBOUNDED = {
    "a_follower_with_a_slow_disk_is_left_behind_and_comes_back",
    "a_follower_whose_disk_takes_longer_than_the_lag_that_is_allowed_leaves_and_comes_back",
    "a_byte_of_the_leaders_log_flips_below_the_high_watermark",
    "bytes_of_indexes_checkpoints_and_snapshots_flip_while_a_broker_is_down",
    "partitions_are_reassigned_under_load",
    "three_replicas_of_which_one_must_be_in_sync_survive_two_failures",
    "three_replicas_of_which_two_must_be_in_sync_refuse_writes_after_the_second_failure",
    "with_acks_1_only_what_a_dying_leader_had_not_copied_may_be_lost",
    "with_acks_0_only_what_was_on_its_way_to_a_dying_leader_may_be_lost",
    "an_unclean_leader_is_elected_only_when_asked_for",
    "a_flush_fails_the_broker_is_restarted_and_then_the_power_fails",
}
BOUNDED = [each.name for each in scenarios.SCENARIOS.values() if each.silence_s is not None]


@pytest.fixture(params=[1, 3], ids=["any machine", "CI"])
def factor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The factor by which the bounds are longer on a slow machine."""
    monkeypatch.setattr(faulty_cluster, "SLOW_MACHINE", request.param)
    found: int = request.param
    return found


def test_it_is_the_longest_of_any_one_partition() -> None:
    silences = Silences(2)
    for now in range(10):
        silences.acknowledged(0, float(now))  # acknowledgements of another partition do not end the silence
        if now in (1, 8):
            silences.acknowledged(1, float(now))
    assert silences.longest_s(9.0) == 7.0


def test_one_that_lasts_still_counts() -> None:
    silences = Silences(2)
    silences.acknowledged(0, 1.0)
    assert silences.longest_s(4.0) == 3.0
    silences.end(5.0)
    assert silences.longest_s(100.0) == 4.0


def test_the_time_without_nodes_does_not_count_and_the_silences_around_it_do() -> None:
    silences = Silences(2)
    silences.acknowledged(0, 1.0)
    silences.skip(4.0, 50.0)
    assert silences.longest_s(52.0) == 3.0  # from 1.0 to 4.0
    silences.acknowledged(1, 53.0)
    silences.acknowledged(0, 54.0)
    assert silences.longest_s(55.0) == 4.0  # from 50.0 to 54.0


def test_nothing_counts_before_the_first_record_or_after_the_last_one() -> None:
    silences = Silences(1)
    assert silences.longest_s(100.0) == 0.0
    silences.acknowledged(0, 100.0)
    silences.end(101.0)
    silences.acknowledged(0, 200.0)
    silences.end(300.0)
    assert silences.longest_s(300.0) == 1.0


def judge(monkeypatch: pytest.MonkeyPatch, name: str, silence_s: float) -> None:
    """Judge a run that is correct, except for a silence of a partition."""
    monkeypatch.setattr(scenarios, "verdict", MagicMock())
    load = MagicMock(longest_silence_s=silence_s)
    bound_s = scenarios.SCENARIOS[name].silence_s
    scenarios.Run(MagicMock(), "t", 3, load, random.Random(0), 0.0, silence_s=bound_s).judge()


@pytest.mark.parametrize("name", BOUNDED)
def test_a_partitions_silence_above_the_bound_of_its_fault_fails(
    monkeypatch: pytest.MonkeyPatch, factor: int, name: str
) -> None:
    bound_s = scenarios.SCENARIOS[name].silence_s
    assert bound_s is not None
    judge(monkeypatch, name, factor * bound_s - 0.1)
    with pytest.raises(AssertionError, match="a partition had no acknowledgement for"):
        judge(monkeypatch, name, factor * bound_s + 0.1)


def kill_coordinators(monkeypatch: pytest.MonkeyPatch, silence_s: float) -> None:
    """Groups that are correct, but need the given time to commit again."""
    load: Any = MagicMock()
    load.__enter__.return_value = load
    load.goes_on.return_value = silence_s
    load.changes.return_value = []
    monkeypatch.setattr(test_groups_fail, "GroupsLoad", MagicMock(return_value=load))
    monkeypatch.setattr(test_groups_fail, "rounds", lambda at_least: iter([0]))
    test_groups_fail.coordinators_are_killed_again_and_again(MagicMock(), random.Random(0))


def test_a_groups_silence_above_the_bound_of_a_dead_coordinator_fails(
    monkeypatch: pytest.MonkeyPatch, factor: int
) -> None:
    bound_s = factor * test_groups_fail.COORDINATOR_KILL_S
    kill_coordinators(monkeypatch, bound_s - 0.1)
    with pytest.raises(AssertionError, match="a group committed nothing for"):
        kill_coordinators(monkeypatch, bound_s + 0.1)


def fill_a_disk(monkeypatch: pytest.MonkeyPatch, role: str, silence_s: float) -> None:
    """Groups without anomalies. Only the group whose shard has its leader or a follower on the full disk has a
    silence."""
    cluster, load = MagicMock(small_disk="broker-3", broker_ids=[1, 2, 3]), MagicMock(groups=["leader", "follower"])
    cluster.node.return_value.id = 3
    cluster.preferred_leader.side_effect = lambda _, shard: ("broker-3", "broker-1")[shard]
    cluster.describe.return_value = [MagicMock(leader=1, isr=[1, 2])] * 2
    load.__enter__.return_value = load
    load.shard_of.side_effect = [0, 1]
    load.changes.return_value = []
    monkeypatch.setattr(test_groups_fail, "GroupsLoad", MagicMock(return_value=load))
    monkeypatch.setattr(test_groups_fail, "rounds", lambda: iter([0]))
    monkeypatch.setattr(test_groups_fail, "longest_silence_s", lambda group, *_: silence_s if group == role else 0.0)
    monkeypatch.setattr(small_disk, "full", MagicMock())
    scenario = test_groups_fail.the_disk_of_one_groups_shard_leader_and_of_anothers_follower_is_full
    scenario(cluster, random.Random(0))


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_groups_silence_above_the_bound_of_a_full_disk_fails(
    monkeypatch: pytest.MonkeyPatch, factor: int, role: str
) -> None:
    bound_s = factor * scenarios.FULL_DISK_S
    fill_a_disk(monkeypatch, role, bound_s - 0.1)
    with pytest.raises(AssertionError, match="a group committed nothing for"):
        fill_a_disk(monkeypatch, role, bound_s + 0.1)


def test_a_groups_silence_is_the_longest_time_without_a_commit_of_any_member() -> None:
    commits = [[Commit(0, 1, at, at) for at in (1.0, 3.0, 9.0)], [Commit(1, 1, at, at) for at in (2.0, 8.5)]]
    group: Any = MagicMock(every=[MagicMock(commits=each) for each in commits])
    assert longest_silence_s(group, 0.0, 10.0) == 5.5  # from 3.0 to 8.5
    assert longest_silence_s(group, 8.0, 10.0) == 1.0  # from 9.0 to the end
    assert longest_silence_s(group, 4.0, 8.0) == 4.0  # all of it


def test_bounds_are_those_of_the_documentation() -> None:
    """Each of the bounds must belong to a scenario."""
    page = (ROOT / "docs" / "faults.md").read_text()
    session_s = f"its session ({scenarios.SESSION_S:g} s here, 9 s shipped) + {scenarios.ELECTION_S:g} s"
    cut_off_s = scenarios.SESSION_S + scenarios.ELECTION_S + scenarios.MOVED_S
    power_loss_s = scenarios.SESSION_S + scenarios.ELECTION_S
    documented = {
        f"| a broker is killed (leader, follower) | {scenarios.LEADER_KILL_S:g} s |",
        "| a broker loses power and its log gets a torn tail, or it returns with an empty disk "
        f"| {scenarios.LEADER_KILL_S:g} s |",
        f"| brokers are stopped and started one after the other | {scenarios.LEADER_KILL_S:g} s |",
        f"| connections between brokers and controllers are reset | {scenarios.GRACE_S + scenarios.ELECTION_S:g} s |",
        f"| a leader is cut off from all nodes, but not from clients | {cut_off_s:g} s |",
        f"| the network between brokers is slow, then one link stops | {scenarios.BROKEN_LINK_S:g} s |",
        f"| all brokers and controllers lose power | {power_loss_s:g} s after they serve again |",
        f"| the controllers' leader is killed | {scenarios.CONTROLLER_KILL_S:g} s |",
        f"| a coordinator is killed (commits of groups) | {test_groups_fail.COORDINATOR_KILL_S:g} s |",
        "| the controllers' leader and a broker, or a coordinator, or both (a machine with three roles) are killed or "
        f"suspended together | {test_pairs_fail.PAIR_S:g} s |",
        f"| a coordinator is suspended (commits of groups) | {test_pairs_fail.SUSPENDED_COORDINATOR_S:g} s |",
        "| two brokers of three are killed together (`min.insync.replicas=1`) "
        f"| {test_pairs_fail.PAIRS['two brokers'].within_s:g} s |",
        f"| a disk is full | {scenarios.FULL_DISK_S:g} s |",
        f"| a disk is full (commits of groups) | {scenarios.FULL_DISK_S:g} s |",
        f"| a broker is suspended | {session_s} |",
        "| a link between two brokers is cut without a message, in one direction or both "
        f"| {scenarios.BROKEN_LINK_S:g} s |",
    }
    assert {row for row in documented if row not in page} == set()
    used = {each.silence_s for each in scenarios.SCENARIOS.values()}
    assert used >= {
        scenarios.LEADER_KILL_S,
        scenarios.CONTROLLER_KILL_S,
        scenarios.FULL_DISK_S,
        scenarios.SESSION_S + scenarios.ELECTION_S,
        scenarios.BROKEN_LINK_S,
        scenarios.GRACE_S + scenarios.ELECTION_S,
        cut_off_s,
    }


def test_a_new_scenario_needs_a_bound_or_a_reason() -> None:
    assert {name for name, each in scenarios.SCENARIOS.items() if each.silence_s is None} == UNBOUNDED


@pytest.mark.parametrize(("environment", "expected"), [({}, 1), ({"CI": "true"}, 3)])
def test_ci_names_itself_and_its_bounds_are_three_times_as_long(environment: dict[str, str], expected: int) -> None:
    assert " CI=true\n" in (ROOT / ".ci" / "run").read_text()
    code = "from tests.system.faulty_cluster import SLOW_MACHINE; print(SLOW_MACHINE)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert int(done.stdout) == expected
