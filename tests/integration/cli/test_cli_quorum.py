"""The quorum with real processes: several controllers, a quorum that grows from one to three voters and back, a voter
that lost its disk. Every recipe of docs/operations/controllers.md is run here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, NewTopic
from headrace.errors import HeadraceError
from headrace_core.log.files import RealFileSystem
from headrace_core.shell.state import load
from tests.worlds.waiting import until

Cli = Callable[..., Any]
#: The maximum time of every wait in this file.
TIMEOUT_S = 60.0


class Cluster:
    """A cluster at the command line."""

    def __init__(self, cli: Cli, data: Path) -> None:
        self._cli, self.data = cli, data
        self.bootstrap = ""

    def __call__(self, *arguments: str | Path, code: int = 0) -> Any:
        return self._cli(*arguments, bootstrap=self.bootstrap, code=code)

    def up(self, controllers: int) -> None:
        size = ("--brokers", "1", "--controllers", str(controllers), "--coordinators", "0")
        started = self("up", "--data", self.data, *size, "--port", "0", "--kafka-port", "0", "-d", "-o", "json")
        self.bootstrap = started.json()["bootstrap_servers"]

    def pid(self, role: str, node_id: int) -> int | None:
        rows = self("ps", "--data", self.data, "-o", "json").json()
        found: int | None = next(row["pid"] for row in rows if (row["role"], row["id"]) == (role, node_id))
        return found

    def kill(self, role: str, node_id: int) -> None:
        pid = self.pid(role, node_id)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.pid(role, node_id) is None, f"{role} {node_id} is gone")

    def restart(self, role: str, node_id: int, *, code: int = 0) -> Any:
        return self("restart", "--data", self.data, role, str(node_id), code=code)

    def quorum(self) -> dict[str, Any]:
        found: dict[str, Any] = self("quorum", "status", "-o", "json").json()
        return found

    def voters(self) -> list[int]:
        return [each["id"] for each in self.quorum()["voters"]]

    def key(self, node_id: int) -> str:
        (voter,) = (each for each in self.quorum()["voters"] if each["id"] == node_id)
        return f"{voter['id']}@{voter['directory_id']}"

    def config(self, node_id: int) -> Path:
        return self.data / "config" / f"controller-{node_id}.properties"


@pytest.fixture
def cluster(tmp_path: Path, bare_cli: Cli) -> Iterator[Cluster]:
    found = Cluster(bare_cli, tmp_path / "cluster")
    yield found
    bare_cli("down", "--data", found.data, code=None)


class Writes:
    """Topics created without a pause, by one thread; every acknowledged topic must exist at the end."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.refused: list[HeadraceError] = []

    def __enter__(self) -> Writes:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)

    def goes_on(self) -> None:
        """Wait until a write that began after this call is acknowledged."""
        soon = len(self.acknowledged) + 2
        until(lambda: len(self.acknowledged) >= soon, f"a write is acknowledged; refused: {self.refused[-3:]}")

    def check(self) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            there = set(admin.list_topics())
        assert not [name for name in self.acknowledged if name not in there]

    def _run(self) -> None:
        with Admin(bootstrap_servers=self._bootstrap) as admin:
            number = 0
            while not self._stop.is_set():
                number += 1
                try:
                    admin.create_topics([NewTopic(f"t{number}", partitions=1)], timeout=TIMEOUT_S)
                except HeadraceError as error:  # its outcome may be unknown, so the next attempt uses another name
                    self.refused.append(error)
                else:
                    self.acknowledged.append(f"t{number}")


def test_three_controllers_lose_their_leader_and_go_on(cluster: Cluster) -> None:
    cluster.up(3)
    quorum = cluster.quorum()
    assert [each["id"] for each in quorum["voters"]] == [1, 2, 3]
    assert quorum["observers"] == []
    leader = quorum["leader_id"]
    shown = cluster("quorum", "status").text
    assert "high watermark:" in shown
    assert sum(line.endswith("follower") for line in shown.splitlines()) == 2
    with Writes(cluster.bootstrap) as writes:
        writes.goes_on()
        cluster.kill("controller", leader)
        writes.goes_on()
        after = cluster.quorum()
        assert after["leader_id"] not in (leader, -1)
        assert after["leader_epoch"] > quorum["leader_epoch"]
        cluster.restart("controller", leader)
        handed = cluster("quorum", "transfer", str(leader), "-o", "json").json()
        assert handed == {"leader_id": leader}
        writes.goes_on()
    writes.check()
    assert cluster.quorum()["leader_id"] == leader
    done = cluster("quorum", "transfer", "9", code=1)
    assert "VOTER_NOT_FOUND" in done.err
    assert f"the voters are {cluster.key(1)}" in done.err
    assert "stopped 4 nodes" in cluster("down", "--data", cluster.data).text
    logs = [(cluster.data / "logs" / f"controller-{number}.log").read_text() for number in (1, 2, 3)]
    assert not any("no answer within" in log for log in logs), "who stops last waits for nobody"
    images = [load(RealFileSystem(), str(cluster.data / f"controller-{number}")) for number in (1, 2, 3)]
    assert not [problem for image in images for problem in image.problems]
    assert all(name in image.image.topic_ids for image in images[:1] for name in writes.acknowledged)


def test_one_voter_grows_to_three_and_back_while_writes_go_on(cluster: Cluster) -> None:
    cluster.up(1)
    with Writes(cluster.bootstrap) as writes:
        writes.goes_on()
        cluster("up", "--data", cluster.data, "--controllers", "3", "-d")
        assert cluster.voters() == [1, 2, 3]
        writes.goes_on()
        cluster("quorum", "transfer", "3")
        writes.goes_on()
        # the leader removes itself from the voters, and hands its leadership over
        cluster("quorum", "remove", cluster.key(3))
        cluster("quorum", "remove", cluster.key(2))
        quorum = cluster.quorum()
        assert [each["id"] for each in quorum["voters"]] == [1]
        assert {each["id"] for each in quorum["observers"]} <= {2, 3}
        for node_id in (2, 3):
            cluster.kill("controller", node_id)  # no longer needed
        writes.goes_on()
        last = cluster("quorum", "remove", cluster.key(1), code=1)
        assert "INVALID_REQUEST" in last.err
    writes.check()
    assert not writes.refused


@pytest.mark.long
def test_a_voter_that_lost_its_disk_is_refused_as_itself_and_taken_back_as_a_new_one(cluster: Cluster) -> None:
    cluster.up(3)
    cluster_id = json.loads((cluster.data / "cluster.json").read_text())["cluster_id"]
    old = cluster.key(2)
    with Writes(cluster.bootstrap) as writes:
        cluster.kill("controller", 2)
        shutil.rmtree(cluster.data / "controller-2")
        refused = cluster.restart("controller", 2, code=1).err
        assert "not formatted" in refused
        assert "--no-initial-controllers" in refused

        line = ("format", "--config", cluster.config(2), "--cluster-id", cluster_id)
        assert "pass --initial-controllers" in cluster(*line, code=2).err
        cluster(*line, "--no-initial-controllers")
        cluster.restart("controller", 2)
        until(lambda: [each["id"] for each in cluster.quorum()["observers"]] == [2], "it follows as a stranger")
        assert cluster.key(2) == old

        down = cluster.quorum()
        assert down["max_follower_lag"] is None, "nobody knows how far the missing one is"
        assert down["max_follower_lag_time_ms"] != 0

        early = cluster("quorum", "add", "--config", cluster.config(2), code=1).err
        assert "DUPLICATE_VOTER" in early
        assert f"headrace quorum remove {old}" in early
        cluster("quorum", "remove", old)
        cluster("quorum", "add", "--config", cluster.config(2))
        assert cluster.voters() == [1, 2, 3]
        new = cluster.key(2)
        assert new != old
        cluster("quorum", "transfer", "2")
        writes.goes_on()
        gone = cluster("quorum", "remove", old, code=1).err
        assert "VOTER_NOT_FOUND" in gone
        assert new in gone
    writes.check()


@pytest.mark.parametrize("whose", ["follower", "leader"])
def test_a_voter_with_an_older_copy_of_its_directory_is_stopped_and_added_anew(cluster: Cluster, whose: str) -> None:
    """Its own disk is sound: what the other controllers remember stops it (docs/operations/controllers.md)."""
    cluster.up(3)
    cluster_id = json.loads((cluster.data / "cluster.json").read_text())["cluster_id"]
    leader = cluster.quorum()["leader_id"]
    number = leader if whose == "leader" else next(each for each in (1, 2, 3) if each != leader)
    directory, log = cluster.data / f"controller-{number}", cluster.data / "logs" / f"controller-{number}.log"
    with Writes(cluster.bootstrap) as writes:
        writes.goes_on()
        cluster.kill("controller", number)
        shutil.copytree(directory, cluster.data / "copy")
        cluster.restart("controller", number)
        if whose == "leader":
            cluster("quorum", "transfer", str(number))
        writes.goes_on()
        key = cluster.key(number)
        cluster.kill("controller", number)
        shutil.rmtree(directory)
        shutil.move(cluster.data / "copy", directory)
        cluster.restart("controller", number, code=None)
        until(lambda: cluster.pid("controller", number) is None, "the copy has stopped")
        assert f"controller {key} has an older copy of its directory" in log.read_text()
        assert f"`headrace quorum remove {key}`" in log.read_text()
        again = cluster.restart("controller", number, code=1).err
        assert "has an older copy of its directory" in again, "also when nobody remembers it any more"
        shown = {each["id"]: each["is_outdated"] for each in cluster.quorum()["voters"]}
        assert shown == {each: each == number for each in (1, 2, 3)}
        assert "older copy" in cluster("quorum", "status").text
        assert f"controller {number} has an older copy of its directory" in cluster("doctor", code=None).text
        writes.goes_on()

        shutil.move(directory, cluster.data / "set-aside")
        format_ = ("format", "--config", cluster.config(number), "--cluster-id", cluster_id)
        cluster(*format_, "--no-initial-controllers")
        cluster.restart("controller", number)
        until(lambda: [each["id"] for each in cluster.quorum()["observers"]] == [number], "it follows")
        cluster("quorum", "remove", key)
        cluster("quorum", "add", "--config", cluster.config(number))
        assert cluster.voters() == [1, 2, 3]
        assert not any(each["is_outdated"] for each in cluster.quorum()["voters"])
        cluster("quorum", "transfer", str(number))
        writes.goes_on()
    writes.check()


@pytest.mark.long
def test_without_a_majority_status_says_so_soon_and_controllers_come_back_one_by_one(cluster: Cluster) -> None:
    cluster.up(3)
    for node_id in (1, 2, 3):
        cluster.kill("controller", node_id)
    cluster.restart("controller", 1)  # it waits for other voters, so the test checks only that it started
    done = cluster("quorum", "status", "--timeout", "1", code=1)
    assert "no controller leads: a majority of the voters must run" in done.err
    assert "REQUEST_TIMED_OUT" in done.err
    for change in (("transfer", "2"), ("add", "--node-id", "4")):
        asked = cluster("quorum", *change, "--timeout", "0.5", code=1)
        assert "no controller leads: a majority of the voters must run" in asked.err
    remembered = cluster("metadata", "cat", cluster.data / "controller-1", "/local/quorum", "-o", "json").json()
    assert [each["id"] for each in remembered["voters"]] == [1, 2, 3]
    cluster.restart("controller", 2)
    assert cluster.quorum()["leader_id"] in (1, 2)
    cluster.restart("controller", 3)
    with Writes(cluster.bootstrap) as writes:
        writes.goes_on()
    writes.check()


def test_a_controller_is_added_by_hand(cluster: Cluster, tmp_path: Path) -> None:
    """The command waits for an unknown controller only for its timeout; errors name the mistake."""
    cluster.up(1)
    stranger = ("quorum", "add", "--node-id", "7", "--directory-id", "JEXY6aqzQY-32P5TStzaFg")
    done = cluster(*stranger, "--address", "127.0.0.1:1", "--timeout", "1", code=1)
    assert "no controller 7 follows the quorum: start it with" in done.err
    assert "ID@DIRECTORY_ID" in cluster("quorum", "remove", "two", code=2).err
    assert "--node-id" in cluster("quorum", "add", code=2).err
    free = tmp_path / "free.properties"
    free.write_text(f"node.id=7\nlisteners=internal://127.0.0.1:0\nlog.dirs={tmp_path}/7\n")
    twice = cluster("quorum", "add", "--node-id", "1", code=1).err
    assert f"controller 1 is already a voter: {cluster.key(1)}" in twice
    assert "set a fixed port" in cluster("quorum", "add", "--config", free, code=1).err
    free.write_text(f"node.id=7\nlisteners=internal://127.0.0.1:1\nlog.dirs={tmp_path}/7\n")
    assert "--no-initial-controllers" in cluster("quorum", "add", "--config", free, code=1).err
    assert cluster.voters() == [1]
