"""The disks of real controllers run out of space: the leadership moves to one with space, and doctor says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, NewTopic
from headrace.errors import DiskFullError, HeadraceError, RequestTimedOutError
from headrace_tools.doctor.diagnosis import diagnose
from headrace_tools.doctor.gathering import Gathering
from tests.system.faulty_cluster import FaultyCluster, eventually


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultyCluster]:
    with FaultyCluster(tmp_path / "cluster", brokers=1, controllers=3) as made:
        yield made


def full_disks(admin: Admin, cluster: FaultyCluster) -> list[str]:
    facts = Gathering(admin, look_s=0.1).facts([cluster.bootstrap])
    return [each.where for each in diagnose(facts) if each.rule == "disk-full" and each.where.startswith("controller")]


def new_leader(cluster: FaultyCluster, *but: str) -> str:
    leader: str = eventually(
        lambda: (found := cluster.controller_leader()) not in but and found, f"{' or '.join(but)} keeps the lead"
    )
    return leader


def named(*names: str) -> list[str]:
    return sorted(name.replace("-", " ") for name in names)


@pytest.mark.timeout(300)
def test_a_leader_without_space_hands_over_and_the_last_one_still_deletes(cluster: FaultyCluster) -> None:
    cluster.make_topic("before", copies=1)
    with Admin(cluster.client) as admin:
        first = cluster.controller_leader()
        with cluster.short_of_space(first):
            second = new_leader(cluster, first)
            cluster.make_topic("t1", copies=1)
            eventually(lambda: full_disks(admin, cluster) == named(first), "doctor does not name the full disk")
            log = cluster.log(first)
            assert log.count("is full up to its reserve") == 1
            assert log.count("hands its leadership to") == 1
            with cluster.short_of_space(second):
                third = new_leader(cluster, first, second)
                cluster.make_topic("t2", copies=1)
                with cluster.short_of_space(third):
                    eventually(lambda: len(full_disks(admin, cluster)) == 3, "doctor does not name all full disks")
                    with pytest.raises((DiskFullError, RequestTimedOutError)) as refused:
                        admin.create_topics([NewTopic("t3", partitions=1)], timeout=3)
                    assert "log.dir.reserve.bytes" in str(refused.value)
                    admin.delete_topics(["t1"], timeout=20)
                    assert cluster.controller_leader() == third
        cluster.make_topic("t3", copies=1)

        def is_well() -> bool:
            try:
                return not full_disks(admin, cluster)
            except HeadraceError:
                return False

        eventually(is_well, "doctor still names a full disk")
