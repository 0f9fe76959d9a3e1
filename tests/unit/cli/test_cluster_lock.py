"""The lock beside cluster.json: it allows one command at a time, and a failed creation of a cluster leaves no files."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from headrace.errors import ClusterStartError
from headrace_tools.local.directory import ClusterDirectory, Topology
from headrace_tools.local.state import StateFile


def small(port: int | None = None) -> Topology:
    return Topology(brokers=1, controllers=1, coordinators=0, port=port)


def is_held(path: Path) -> bool:
    with path.open("a") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_who_waited_for_a_lock_that_was_removed_holds_the_one_that_is_there_now(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait_and_hold() -> None:
        with StateFile(tmp_path).locked():
            entered.set()
            leave.wait(60)

    waiter = threading.Thread(target=wait_and_hold, daemon=True)
    file = StateFile(tmp_path)
    with file.locked():
        waiter.start()
        while not _has_open(tmp_path / ".lock", times=2):
            assert waiter.is_alive()
        file.remove_lock()
    assert entered.wait(60)
    assert is_held(tmp_path / ".lock"), "a third command would not wait for it"
    leave.set()
    waiter.join(60)
    assert not is_held(tmp_path / ".lock")


def _has_open(path: Path, *, times: int) -> bool:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}") == str(path)
        except FileNotFoundError:
            continue
    return found >= times


def test_a_first_up_that_finds_its_port_taken_leaves_no_trace(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ClusterStartError, match="is taken"):
            ClusterDirectory(directory).up(small(taken.getsockname()[1]))
        assert not directory.exists()
        directory.mkdir()
        with pytest.raises(ClusterStartError, match="is taken"):
            ClusterDirectory(directory).up(small(taken.getsockname()[1]))
        assert list(directory.iterdir()) == [], "what the user made stays, and empty"


def test_a_first_up_whose_nodes_end_leaves_their_logs_and_nothing_that_looks_like_a_cluster(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    cluster = ClusterDirectory(directory, command=lambda *_: [sys.executable, "-c", "raise SystemExit('no, thanks')"])
    with pytest.raises(ClusterStartError, match="no, thanks"):
        cluster.up(small())
    assert sorted(each.name for each in directory.iterdir()) == ["config", "logs"]


def test_data_of_nodes_without_a_cluster_file_are_never_removed(tmp_path: Path) -> None:
    """cluster.json is lost, and `up` must not take the data for those of its own failed start."""
    directory = tmp_path / "cluster"
    for name in ("broker-1", "controller-1"):
        (directory / name).mkdir(parents=True)
        (directory / name / "meta.properties").write_text("cluster.id=another\n")
    (directory / "broker-2").mkdir()  # an empty directory, such as the place of a disk, is none of them
    with pytest.raises(ClusterStartError, match=r"cluster.json is missing.* data of nodes in broker-1, controller-1;"):
        ClusterDirectory(directory).up(small())
    assert sorted(each.name for each in directory.iterdir()) == ["broker-1", "broker-2", "controller-1"]
    assert (directory / "broker-1" / "meta.properties").read_text() == "cluster.id=another\n"
