"""A partition that moves between two directories of a real broker: under load, and with kill -9 in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_core.log.moving import MARKER
from headrace_protos.v1 import admin_pb2
from tests.worlds.broker_world import Cluster, Load, Topic, check_nothing_lost, directory_of
from tests.worlds.waiting import until

MIB = 1024 * 1024


class TwoDirectoriesWorld:
    """A broker with the directories one and two, and a topic of one partition."""

    def __init__(self, make_cluster: Callable[..., Cluster], home: Path) -> None:
        self.roots = {name: home / name for name in ("one", "two")}
        self.cluster = make_cluster(**{"log.dirs": ",".join(map(str, self.roots.values()))})
        self.topic: Topic = self.cluster.topic("orders", segment_bytes=str(MIB))

    def move(self, name: str) -> None:
        directory = admin_pb2.AlterReplicaLogDir(
            path=str(self.roots[name]), topics=[admin_pb2.LogDirTopic(topic="orders", partitions=[0])]
        )
        request = admin_pb2.AlterReplicaLogDirsRequest(directories=[directory])
        (result,) = self.cluster.admin.AlterReplicaLogDirs(request, timeout=20).results
        assert not result.error.code, result.error

    def where(self) -> str | None:
        return directory_of(self.cluster, self.topic).get(0)

    def found(self) -> dict[str, list[str]]:
        """{directory: its files of the partition}, read from the file system."""
        return {
            name: sorted(
                path.name for path in root.glob("orders-0*") if path.is_dir() and not path.name.endswith("-delete")
            )
            for name, root in self.roots.items()
        }


@pytest.fixture
def world(make_cluster: Callable[..., Cluster], tmp_path: Path) -> TwoDirectoriesWorld:
    return TwoDirectoriesWorld(make_cluster, tmp_path)


def _copied_bytes(root: Path) -> int:
    total = 0
    for path in root.glob("orders-0.*-future/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # it has just got its final name
            return MIB * 1024
    return total


def test_back_and_forth_under_load(world: TwoDirectoriesWorld) -> None:
    load = Load(world.topic, 0, value_bytes=16 * 1024)
    until(lambda: len(load.acknowledged) > 200, "some segments to be there")
    home = world.where()
    assert home is not None
    for _ in range(4):
        home = "two" if home == "one" else "one"
        world.move(home)
        until(lambda home=home: world.where() == home, "the partition to arrive")
        before = len(load.acknowledged)
        until(lambda before=before: len(load.acknowledged) > before + 20, "appends to go on there")
    load.stop()
    assert load.failure is None
    assert not load.errors, "appends wait, they are not refused"
    check_nothing_lost(world.topic, 0, load.acknowledged)
    assert world.cluster.broker.terminate() == 0
    assert world.found() == {name: ["orders-0"] if name == home else [] for name in world.roots}
    world.cluster.restart()
    check_nothing_lost(world.topic, 0, load.acknowledged)


def test_kill_9_at_any_moment_of_a_move_loses_nothing_and_leaves_one_log(world: TwoDirectoriesWorld) -> None:
    def moments(source: Path, target: Path) -> list[tuple[str, Callable[[], Any]]]:
        final = target / "orders-0"
        return [
            ("the copy has begun", lambda: final.exists() or _copied_bytes(target) > 0),
            ("half of it is copied", lambda: final.exists() or _copied_bytes(target) > 4 * MIB),
            ("the marker is there", lambda: final.exists() or (source / "orders-0" / MARKER).exists()),
            ("it has taken over", final.exists),
            ("the source is gone", lambda: final.exists() and not (source / "orders-0").exists()),
        ]

    acknowledged: list[int] = []
    number = 0
    for moment in range(5):
        load = Load(world.topic, 0, value_bytes=16 * 1024, first=number)
        until(lambda load=load: len(load.acknowledged) > 120, "appends")
        home = world.where()
        assert home is not None
        other = "two" if home == "one" else "one"
        what, condition = moments(world.roots[home], world.roots[other])[moment]
        world.move(other)
        until(condition, what)
        world.cluster.broker.kill()
        load.stop()
        acknowledged += load.acknowledged
        number = load.next_number
        world.cluster.restart()
        found = world.found()
        assert sorted(map(len, found.values())) == [0, 1], f"killed when {what}: {found}"
        (home,) = [name for name, names in found.items() if names == ["orders-0"]]
        assert not (world.roots[home] / "orders-0" / MARKER).exists()
        check_nothing_lost(world.topic, 0, acknowledged)
