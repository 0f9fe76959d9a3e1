"""``format``, ``random-uuid`` and the metadata shell at the command line, without and beside a running cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from headrace_tools.cli.app import run

Cli = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "controller.properties"
    file.write_text(
        f"process.roles=controller\nnode.id=1\nlisteners=internal://127.0.0.1:19094\nlog.dirs={tmp_path}/controller\n"
    )
    return file


def test_an_id_is_made_for_a_cluster_or_a_directory(bare_cli: Cli) -> None:
    (line,) = bare_cli("random-uuid").lines
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", line)
    assert bare_cli("random-uuid", "-o", "json").json()["id"] != line


def test_controllers_that_begin_together_are_notified_of_each_other(
    bare_cli: Cli, config: Path, tmp_path: Path
) -> None:
    voters = "1@127.0.0.1:19094:JEXY6aqzQY-32P5TStzaFg,2@127.0.0.1:19095:MvDxzVmcRsaTz33bUuRU6A"
    line = ("format", "--config", config, "--cluster-id", "S1L7bB9RQ0qq9d0RkX7UDQ", "--initial-controllers", voters)
    done = bare_cli(*line, "-o", "json").json()
    assert done["cluster_id"] == "S1L7bB9RQ0qq9d0RkX7UDQ"
    assert done["voters"] == voters.split(",")
    (row,) = done["directories"]
    assert (row["path"], row["directory_id"], row["created"]) == (
        f"{tmp_path}/controller",
        "JEXY6aqzQY-32P5TStzaFg",
        True,
    )
    shown = bare_cli("metadata", "cat", tmp_path / "controller", "/local/quorum", "-o", "json").json()
    assert [f"{each['id']}@{each['address']}:{each['directory_id']}" for each in shown["voters"]] == voters.split(",")
    assert "already formatted" in bare_cli(*line, code=1).err
    assert "already formatted" in bare_cli(*line, "--ignore-formatted").text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "--log-dirs"),
        (("--config", "CONFIG", "--log-dirs", "/tmp/x"), 2, "--log-dirs"),
        (("--config", "CONFIG", "--node-id", "3"), 2, "cannot be combined with --config"),
        (("--config", "CONFIG", "--standalone", "--no-initial-controllers"), 2, "contradict each other"),
        (("--config", "CONFIG", "--initial-controllers", "1@127.0.0.1:19094"), 2, "write ID@HOST:PORT:DIRECTORY_ID"),
        (("--config", "CONFIG", "--initial-controllers", "2@h:1:JEXY6aqzQY-32P5TStzaFg"), 2, "is not in the list (2)"),
        (("--log-dirs", "DIR", "--standalone"), 2, "needs the controller's id"),
        (("--log-dirs", "DIR", "--standalone", "--node-id", "1"), 2, "--address"),
        (("--config", "/nowhere/x.properties"), 1, "cannot read configuration file"),
        (("--config", "CONFIG", "--standalone", "--cluster-id", "two words"), 1, "cluster id"),
    ],
)
def test_a_wrong_format_is_refused_and_leaves_nothing(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    there = {"CONFIG": str(config), "DIR": f"{tmp_path}/controller"}
    assert run(["format", *(there.get(each, each) for each in arguments)]) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / "controller").exists()


def test_the_metadata_of_a_running_cluster_is_read_from_its_files(cli: Cli, headrace: LocalCluster) -> None:
    """The controller continues to run, because the command takes no lock."""
    cli("topics", "create", "looked-at", "-p", "2", "-c", "retention.ms=60000", "-c", "cleanup.policy=compact")
    (directory,) = next(row["data_dirs"] for row in headrace.ps() if row["role"] == "controller")
    assert cli("metadata", "ls", directory).lines == ["image", "local"]
    assert "looked-at" in cli("metadata", "ls", directory, "/topics/byName", "-o", "json").json()
    assert cli("metadata", "ls", directory, "/topics/looked-at").lines == ["name", "id", "0", "1"]
    partition = cli("metadata", "cat", directory, "/topics/looked-at/1", "-o", "json").json()
    assert partition["replicas"] == [1]
    assert cli("metadata", "cat", directory, "/configs/TOPIC:looked-at/retention.ms").lines == ["60000"]
    described = cli("topics", "describe", "looked-at", "-o", "json").json()
    assert cli("metadata", "cat", directory, "/topics/looked-at/id").lines == [described["topic_id"]]
    rows = [json.loads(line) for line in cli("metadata", "dump", directory).lines]
    assert {"LeaderChange", "ClusterRecord", "RegisterBrokerRecord", "TopicRecord"} <= {row["type"] for row in rows}
    document = cli("metadata", "dump", directory, "-o", "json").json()
    assert document["sound"] is True
    assert document["records"][: len(rows)] == rows[: len(document["records"])]
    cli("topics", "delete", "looked-at")

    missing = cli("metadata", "cat", directory, "/topics/nope/0", code=1).err
    assert "no nope in this directory" in missing
    assert "name one of" in cli("metadata", "ls", headrace.directory, code=1).err
    assert "is a directory" in cli("metadata", "cat", directory, "/topics", code=1).err


def test_damage_in_a_metadata_log_is_named_with_its_place(cli: Cli, headrace: LocalCluster, tmp_path: Path) -> None:
    (directory,) = next(row["data_dirs"] for row in headrace.ps() if row["role"] == "controller")
    segment = Path(directory, "__cluster_metadata-0", "00000000000000000000.log").read_bytes()
    copy = tmp_path / "__cluster_metadata-0"
    copy.mkdir()
    position = 12 + int.from_bytes(segment[8:12], "big")  # of the second batch
    copy.joinpath("00000000000000000000.log").write_bytes(segment[: position + 90] + b"\xff" + segment[position + 91 :])
    for arguments in (("dump", copy), ("ls", copy), ("dump", copy / "00000000000000000000.log")):
        done = cli("metadata", *arguments, code=1)
        assert f"00000000000000000000.log, position {position}, offset 1:" in done.err
        assert "[CORRUPT_LOG]" in done.err
        assert done.out
