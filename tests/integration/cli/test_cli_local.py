"""``up``, ``ps``, ``down``, ``restart``: a cluster is started, stopped and restarted at the command line, with real
nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_tools.local import ports
from tests.worlds.waiting import until

Cli = Callable[..., Any]


#: The smallest cluster, because these tests are about processes and files, not about replication.
SMALL = ("--brokers", "1", "--controllers", "1", "--coordinators", "0")


@pytest.fixture
def data(tmp_path: Path, bare_cli: Cli) -> Iterator[Path]:
    """A directory for a cluster, which is always stopped at the end."""
    directory = tmp_path / "a cluster"
    yield directory
    bare_cli("down", "--data", directory, code=None)


def _open_descriptors(pid: int) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


def test_a_clusters_life(bare_cli: Cli, data: Path) -> None:
    (port,) = ports.pick(1)
    up = bare_cli("up", "--data", data, *SMALL[:4], "--port", str(port), "--kafka-port", "0", "-d", "-o", "json")
    started = up.json()
    assert started["bootstrap_servers"] == f"127.0.0.1:{port}"
    assert started["already_running"] is False
    bootstrap = started["bootstrap_servers"]

    rows = bare_cli("ps", "--data", data, "-o", "json").json()
    columns = {"role", "id", "pid", "address", "data_dirs", "metrics"}
    assert [set(row) - {"kafka"} for row in rows] == [columns] * 3
    assert [row["role"] for row in rows if "kafka" in row] == ["broker"]
    assert [(row["role"], row["id"]) for row in rows] == [("controller", 1), ("broker", 1), ("coordinator", 1)]
    assert rows == started["nodes"]
    assert rows[1]["address"] == f"127.0.0.1:{port}"
    bare_cli("topics", "create", "t", "-p", "1", bootstrap=bootstrap)
    bare_cli("produce", "-t", "t", stdin=b"before\n", bootstrap=bootstrap)

    again = bare_cli("up", "--data", data, "-d")
    assert "already running" in again.text
    nodes = [line for line in again.lines if " pid " in line]
    assert len(nodes) == 3
    assert len({(line.index("127.0.0.1"), line.index("pid")) for line in nodes}) == 1, "the columns line up"
    assert bare_cli("ps", "--data", data, "-o", "json").json() == rows

    os.kill(rows[1]["pid"], signal.SIGKILL)  # as a chaos script would
    until(lambda: bare_cli("ps", "--data", data, "-o", "json").json()[1]["pid"] is None)
    assert "dead" in bare_cli("ps", "--data", data).text
    back = bare_cli("restart", "--data", data, "broker", "1", "-o", "json").json()
    assert set(back) - {"kafka"} == columns
    assert back["pid"] not in (None, rows[1]["pid"])
    assert back["address"] == rows[1]["address"]
    assert bare_cli("consume", "-t", "t", "-e", "-q", bootstrap=bootstrap).lines == ["before"]

    assert "stopped 3 nodes" in bare_cli("down", "--data", data).text
    stopped = bare_cli("ps", "--data", data).text
    assert (stopped.count(" stopped "), stopped.count(" dead ")) == (3, 0), "whoever was stopped did not die"
    assert [row["pid"] for row in bare_cli("ps", "--data", data, "-o", "json").json()] == [None, None, None]
    assert "no node was running" in bare_cli("down", "--data", data).text

    restarted = bare_cli("up", "--data", data, "-d", "-o", "json").json()
    assert restarted["bootstrap_servers"] == bootstrap
    assert bare_cli("consume", "-t", "t", "-e", "-q", bootstrap=bootstrap).lines == ["before"]
    assert bare_cli("down", "--data", data, "--delete", "-o", "json").json()["deleted"] is True
    assert not data.exists()


def test_overrides_of_a_running_cluster(bare_cli: Cli, data: Path) -> None:
    """Wrong keys are refused and change nothing. Correct keys are stored, and the output says when they take effect."""
    bare_cli("up", "--data", data, *SMALL, "--port", "0", "--kafka-port", "0", "-d")
    stored = (data / "cluster.json").read_text()
    wrong = bare_cli("up", "--data", data, "-d", "-c", "wrong.key=1", code=1)
    assert "unknown server configuration key 'wrong.key' [INVALID_CONFIG]" in wrong.err
    disks = bare_cli("up", "--data", data, "-d", "-c", "log.dirs=a,b", code=1)
    assert "A broker with several disks" in disks.err
    assert (data / "cluster.json").read_text() == stored

    kept = bare_cli("up", "--data", data, "-d", "-c", "num.partitions=4", "-o", "json")
    assert kept.json()["already_running"] is True
    assert "kept -c for the next start" in kept.err
    assert "`headrace restart --data" in kept.err
    assert "controller 1, broker 1" in kept.err
    bare_cli("restart", "--data", data, "broker", "1")
    assert "num.partitions=4" in (data / "config" / "broker-1.properties").read_text()
    bare_cli("up", "--data", data, "-d", "-c", "num.partitions=")
    assert (data / "cluster.json").read_text().count("num.partitions") == 0


def test_nodes_keep_none_of_the_callers_descriptors(program: str, bare_cli: Cli, data: Path) -> None:
    """`headrace up -d` in a script must not keep the script's pipe open, and must not keep a lock that the script
    holds."""
    held = data.parent / "held-by-the-caller"
    with held.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done = subprocess.run(  # returns only when the pipe is closed, so never if a node keeps the pipe
            [program, "up", "--data", str(data), *SMALL, "--port", "0", "--kafka-port", "0", "-d"],
            capture_output=True, timeout=60, check=True, close_fds=False,
        )  # fmt: skip
    assert done.stdout
    for row in bare_cli("ps", "--data", data, "-o", "json").json():
        descriptors = _open_descriptors(row["pid"])
        assert descriptors
        logs = str(data / "logs" / f"{row['role']}-{row['id']}.log")
        assert logs in descriptors
        assert str(held) not in descriptors
        allowed = (os.devnull, logs, *row["data_dirs"], "socket:", "anon_inode:", "pipe:", str(data / "config"))
        until(  # a node opens files of its own for moments
            lambda: not [each for each in _open_descriptors(row["pid"]) if not each.startswith(allowed)],  # noqa: B023
            lambda: f"no strange descriptor: {_open_descriptors(row['pid'])}",  # noqa: B023
        )
        assert os.getsid(row["pid"]) == row["pid"]
        ours = set(_open_descriptors(os.getpid()))
        assert not [each for each in descriptors if each.startswith("pipe:") and each in ours]


def test_up_in_the_foreground_stays_until_ctrl_c_and_stops_the_cluster(program: str, bare_cli: Cli, data: Path) -> None:
    process = subprocess.Popen(
        [program, "up", "--data", str(data), *SMALL, "--port", "0", "--kafka-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert process.stdout is not None
        shown = [process.stdout.readline().decode()]
        while "Ctrl-C" not in shown[-1]:
            shown.append(process.stdout.readline().decode())
            assert shown[-1], "it ended early"
        assert any("headrace produce -t orders -b 127.0.0.1:" in line for line in shown)
        assert all(row["pid"] for row in bare_cli("ps", "--data", data, "-o", "json").json())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert [row["pid"] for row in bare_cli("ps", "--data", data, "-o", "json").json()] == [None, None]
    assert "clean=True" in (data / "logs" / "broker-1.log").read_text()


def test_up_in_the_foreground_ends_when_another_command_stops_the_cluster(
    program: str, bare_cli: Cli, data: Path
) -> None:
    process = subprocess.Popen(
        [program, "up", "--data", str(data), *SMALL, "--port", "0", "--kafka-port", "0", "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["nodes"]
        bare_cli("down", "--data", data)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"stopped by another command" in err


def test_several_brokers_spread_a_topics_partitions(bare_cli: Cli, data: Path) -> None:
    started = bare_cli(
        "up",
        "--data",
        data,
        "--brokers",
        "2",
        "--controllers",
        "1",
        "--port",
        "0",
        "--kafka-port",
        "0",
        "-d",
        "-o",
        "json",
    ).json()
    bootstrap = started["bootstrap_servers"]
    assert len(bootstrap.split(",")) == 2
    bare_cli("topics", "create", "spread", "-p", "4", bootstrap=bootstrap)
    topic = bare_cli("topics", "describe", "spread", "-o", "json", bootstrap=bootstrap).json()
    assert {part["leader"] for part in topic["partitions"]} == {1, 2}
    lines = [f"k{number}:{number}" for number in range(100)]
    bare_cli("produce", "-t", "spread", "-K", ":", stdin="\n".join(lines).encode(), bootstrap=bootstrap)
    read = bare_cli("consume", "-t", "spread", "-e", "-q", "-K", ":", bootstrap=bootstrap).lines
    assert sorted(read) == sorted(lines)


def test_a_node_that_cannot_start_is_explained_by_its_own_log(bare_cli: Cli, data: Path) -> None:
    bare_cli("up", "--data", data, *SMALL, "--port", "0", "--kafka-port", "0", "-d")
    bare_cli("down", "--data", data)
    (data / "broker-1" / "meta.properties").write_text("scribbled over\n")
    failed = bare_cli("up", "--data", data, "-d", code=1)
    assert "CLUSTER_START_FAILED" in failed.err
    assert "broker 1" in failed.err
    assert "  | " in failed.err
    assert str(data / "broker-1" / "meta.properties") in failed.err.partition("  | ")[2]
    assert not failed.out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("ps", "--data", "/nowhere"), 1, "headrace up --data /nowhere"),
        (("up", "--controllers", "0", "--data", "/nowhere"), 2, "--controllers"),
        (("restart", "--data", "/nowhere", "broker", "1"), 1, "INVALID_ARGUMENT"),
        (("restart", "--data", "/nowhere", "mixer", "1"), 2, "ROLE"),
        (("up", "--brokers", "many"), 2, "--brokers"),
        (("up", "-c", "novalue"), 2, "KEY=VALUE"),
        (("frobnicate",), 2, "No such command"),
        (("groups", "describe"), 2, "--all-groups"),
        (("partitions", "reassign", "--cancel", "orders"), 2, "orders-0"),
        (("topics", "list", "-b", "127.0.0.1:1"), 1, "127.0.0.1:1"),
    ],
)
def test_mistakes_are_answered_on_stderr_with_the_right_code(
    bare_cli: Cli, arguments: tuple[str, ...], code: int, says: str
) -> None:
    done = bare_cli(*arguments, code=code)
    assert says in done.err
    assert not done.out
    if code == 1:
        assert len(done.err.strip().splitlines()) == 1


def test_format_prepares_directories_once(bare_cli: Cli, tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    done = bare_cli("format", "--log-dirs", f"{first},{second}", "-o", "json").json()
    assert [row["created"] for row in done["directories"]] == [True, True]
    assert f"cluster.id={done['cluster_id']}" in (second / "meta.properties").read_text()
    assert "already formatted" in bare_cli("format", "--log-dirs", first, code=1).err
    again = bare_cli(
        "format", "--log-dirs", first, "--cluster-id", done["cluster_id"], "--ignore-formatted", "-o", "json"
    ).json()
    assert [row["created"] for row in again["directories"]] == [False]
