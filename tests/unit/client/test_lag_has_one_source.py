"""``groups describe`` and ``doctor`` show the same lag, by the current log ends, also right after a reset."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace import Admin
from headrace_protos.v1 import groups_pb2
from headrace_tools.cli.app import run
from headrace_tools.doctor.data_rules import group_lag
from headrace_tools.doctor.facts import Facts
from headrace_tools.doctor.gathering import Gathering
from tests.worlds.coordinators_standin import StandinGroupsWorld, member, serving


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandinGroupsWorld]:
    """Group berry reads orders-0, which has the offsets 5 to 99."""
    with serving() as found:
        found.members = {"berry": [member("m1", "c1", ("orders", 0))]}
        monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", found.coordinators[0].address)
        yield found


def coordinator_says(world: StandinGroupsWorld, *, committed: int, status: str, sampled_end: int | None) -> None:
    """A coordinator's view of the log end is up to two seconds old."""
    lag = groups_pb2.LagOfGroup(group_id="berry", status="ERR" if status == "REWIND" else status)
    part = lag.partitions.add(topic="orders", partition=0, committed_offset=committed, status=status, complete=1.0)
    if sampled_end is not None:
        part.high_watermark, part.lag = sampled_end, max(0, sampled_end - committed)
        lag.total_lag = part.lag
    world.committed["berry"] = {("orders", 0): (committed, "")}
    world.lags["berry"] = lag


def seen_by_both(world: StandinGroupsWorld, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], Facts]:
    assert run(["groups", "describe", "berry", "-o", "json"]) == 0
    (described,) = json.loads(capsys.readouterr().out)
    with Admin(bootstrap_servers=world.coordinators[0].address) as admin:
        groups = Gathering(admin)._groups(admin.describe_cluster(), {})
    return described, Facts(now_ms=0, bootstrap=(), groups=groups)


@pytest.mark.parametrize("sampled_end", [None, 50, 100])
def test_right_after_a_reset_both_tell_the_same_lag_and_judgement(
    world: StandinGroupsWorld, capsys: pytest.CaptureFixture[str], sampled_end: int | None
) -> None:
    coordinator_says(world, committed=10, status="REWIND", sampled_end=sampled_end)
    described, facts = seen_by_both(world, capsys)
    (group,) = facts.groups
    assert group.lag is not None
    assert (described["total_lag"], described["status"]) == (90, "ERR") == (group.lag.total_lag, group.lag.status)
    (finding,) = group_lag(facts)
    assert "90 records behind" in finding.what


def test_who_was_reset_to_the_end_is_well_for_both_whatever_the_last_sample_was(
    world: StandinGroupsWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator_says(world, committed=100, status="REWIND", sampled_end=120)
    described, facts = seen_by_both(world, capsys)
    (group,) = facts.groups
    assert group.lag is not None
    assert (described["total_lag"], described["status"]) == (0, "OK") == (group.lag.total_lag, group.lag.status)
    assert not list(group_lag(facts))


def test_an_empty_group_that_an_operator_has_reset_is_well_for_both(
    world: StandinGroupsWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    world.members = {}
    coordinator_says(world, committed=10, status="REWIND", sampled_end=100)
    described, facts = seen_by_both(world, capsys)
    (group,) = facts.groups
    assert group.lag is not None
    assert described["state"] == group.described.state == "empty"
    assert (described["total_lag"], described["status"]) == (90, "OK") == (group.lag.total_lag, group.lag.status)
    assert not list(group_lag(facts))
