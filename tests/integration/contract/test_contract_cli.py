"""The contract of the command line with scripts and terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_core.testing.verdicts import NotInTimeError

Cli = Callable[..., Any]

#: The cheapest cluster.
SMALL = ("--brokers", "1", "--controllers", "1", "--coordinators", "0")


# --- a cluster in the foreground -------------------------------------------------------------------------------------


class Terminal:
    """A program in its own terminal, as a user runs it."""

    def __init__(self, *command: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGHUP):  # ignored where the tests run in the background, or by nohup
                signal.signal(number, signal.SIG_DFL)
            # The output is buffered, as usual: when Python ends, it tries again to write the bytes that a dead terminal
            # refused.
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
            os.execve(command[0], list(command), environment)
        self.shown = b""
        self.code: int | None = None

    def wait_for(self, text: bytes, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.shown:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotInTimeError(f"{text!r}: {self.shown!r}")
            if select.select([self.fd], [], [], left)[0]:
                self.shown += os.read(self.fd, 4096)

    def wait(self) -> int:
        """The exit code."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def rest(self) -> None:
        try:
            while data := os.read(self.fd, 4096):
                self.shown += data
        except OSError:  # Linux's error after the last writer has closed
            pass


@pytest.fixture
def foreground(tmp_path: Path, program: str) -> Iterator[tuple[Terminal, Path]]:
    """`headrace up` without -d, when it serves."""
    directory = tmp_path / "cluster"
    terminal = Terminal(program, "up", "--data", str(directory), *SMALL, "--port", "0", "--kafka-port", "0")
    try:
        terminal.wait_for(b"Ctrl-C stops the cluster.")
        yield terminal, directory
    finally:
        if terminal.code is None:
            os.kill(terminal.pid, signal.SIGTERM)
            terminal.wait()
        subprocess.run([program, "down", "--data", directory, "--delete"], capture_output=True, check=False)


def pids(bare_cli: Cli, directory: Path) -> list[int | None]:
    return [node["pid"] for node in bare_cli("ps", "--data", directory, "-o", "json").json()]


def test_ctrl_c_stops_the_cluster_and_keeps_the_data(foreground: tuple[Terminal, Path], bare_cli: Cli) -> None:
    terminal, directory = foreground
    assert all(pids(bare_cli, directory))
    os.write(terminal.fd, b"\x03\x03")  # and an impatient second one
    terminal.rest()
    assert terminal.wait() == 130
    assert b"stopped; the data is kept" in terminal.shown
    assert pids(bare_cli, directory) == [None, None]


def test_closing_the_terminal_stops_the_cluster(foreground: tuple[Terminal, Path], bare_cli: Cli) -> None:
    terminal, directory = foreground
    os.close(terminal.fd)  # from now on no output can be written
    assert terminal.wait() == 0
    assert pids(bare_cli, directory) == [None, None]


# --- documents -------------------------------------------------------------------------------------------------------


def test_a_document_has_no_notes_beside_it(cli: Cli, topic: str) -> None:
    assert cli("produce", "-t", topic, "-p", "1", stdin="é ☃\n\nlast\n").code == 0
    found = cli("consume", "-t", topic, "-e", "-o", "json")
    assert (found.code, found.err) == (0, "")
    assert [record["value"] for record in found.json()] == ["é ☃", "", "last"]
    assert "Reached end" in cli("consume", "-t", topic, "-e").err


def test_an_offset_whose_record_is_gone_leaves_nothing_out(cli: Cli, topic: str) -> None:
    assert cli("produce", "-t", topic, "-p", "0", stdin="one\ntwo\nthree\n").code == 0
    assert cli("records", "delete", "-t", topic, "-p", "0", "--before", "1").code == 0
    assert cli("consume", "-t", topic, "-p", "0", "-o", "0", "-e").out == "two\nthree\n"


def test_bench_prints_exactly_the_fields_of_the_contract(cli: Cli, topic: str) -> None:
    wanted = {"workload", "api", "records", "seconds", "records_per_s", "mib_per_s", "latency_ms", "verified"}
    for workload, more in (("produce", ["--api", "many"]), ("consume", ["--api", "arrow"]), ("latency", [])):
        found = cli("bench", workload, "--topic", topic, "--records", "500", "--no-warm", "-o", "json", *more)
        document = found.json()
        assert set(document) == wanted, found
        assert set(document["latency_ms"]) == {"p50", "p99", "p999", "max"}
        assert (found.code, document["verified"], document["records"]) == (0, True, 500)


def test_up_ps_kill_restart_down_as_a_script_sees_them(bare_cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    up = bare_cli(
        "up", "--data", data, *SMALL[:4], "-d", "--port", "0", "--kafka-port", "0", "--coordinators", "2", "-o", "json"
    )
    try:
        assert up.code == 0
        nodes = bare_cli("ps", "--data", data, "-o", "json").json()
        every = {"role", "id", "pid", "address", "data_dirs", "metrics"}
        assert [set(node) - {"kafka"} for node in nodes] == [every] * 4
        assert [node["role"] for node in nodes if "kafka" in node] == ["broker"]
        assert up.json()["bootstrap_servers"] == next(n["address"] for n in nodes if n["role"] == "broker")
        os.kill(next(n["pid"] for n in nodes if n["role"] == "broker"), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while None not in (
            after := {n["role"]: n["pid"] for n in bare_cli("ps", "--data", data, "-o", "json").json()}.values()
        ):
            if time.monotonic() >= deadline:
                raise NotInTimeError(after)
        assert bare_cli("restart", "--data", data, "broker", "1").code == 0
        address = up.json()["bootstrap_servers"]
        assert bare_cli("topics", "list", "-b", address, "-o", "json").json() == []
    finally:
        assert bare_cli("down", "--data", data, "--delete").code == 0
    assert not data.exists()


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["topics", "create", "{topic}-0", "-p", "0"], 1, r"partitions=0: must be at least 1.*\[INVALID_PARTITIONS\]"),
        (["topics", "create", "{topic}"], 1, r"already exists.*\[TOPIC_ALREADY_EXISTS\]"),
        (["topics", "create", "no/good"], 1, r"not legal.*\[INVALID_TOPIC_EXCEPTION\]"),
        (["topics", "create", "{topic}-c", "-c", "retention.mss=1"], 1, r"did you mean 'retention.ms'.*\[INVALID_C"),
        (["topics", "create", "{topic}-r", "-r", "3"], 1, r"needs 3 brokers.*\[INVALID_REPLICATION"),
        (["topics", "alter", "{topic}", "-p", "1"], 1, r"partitions can only be added.*\[INVALID_PARTITIONS\]"),
        (["topics", "describe", "nobody"], 1, r"does not exist \[UNKNOWN_TOPIC_OR_PARTITION\]"),
        (["topics", "list", "-b", "127.0.0.1:1"], 1, r"127.0.0.1:1: connection refused.*is the cluster up"),
        (["consume", "-t", "nobody", "-e"], 1, r"create it first.*\[UNKNOWN_TOPIC_OR_PARTITION\]"),
        (["groups", "describe", "{topic}-g", "-o", "json"], 1, r"{topic}-g.*\[GROUP_ID_NOT_FOUND\]"),
        (["groups", "reset-offsets", "{topic}-g", "--to-earliest"], 2, r"--all-topics"),
        (["configs", "alter", "--broker", "1", "--set", "num.io.thread=5"], 1, r": broker 1: .*did you mean 'num.io"),
        (["configs", "alter", "--topic", "{topic}", "--set", "retention.ms=soon"], 1, r"must be a whole number"),
        (["partitions", "reassign", "{topic}-0=1,7"], 1, r"broker 7 is not registered \[INVALID_REPLICA_ASSIGNMENT\]"),
        (["partitions", "reassign"], 2, r"nothing to do: pass moves"),
        (["ps", "--data", "/nowhere"], 1, r"headrace up --data /nowhere"),
        (["log", "dump", "/nowhere"], 1, r"/nowhere: no such file or directory"),
        (["topics", "create"], 2, r"Missing argument"),
        (["nonsense"], 2, r"No such command"),
    ],
)  # fmt: skip
def test_refusals_are_one_line_with_a_code(cli: Cli, topic: str, arguments: list[str], code: int, text: str) -> None:
    ended = cli(*(argument.format(topic=topic) for argument in arguments))
    assert ended.code == code, ended
    assert ended.out == ""
    assert re.search(text.replace("{topic}", topic), ended.err), ended.err
    if code == 1:
        assert ended.err.count("\n") == 1


def test_log_dump_tells_a_wrong_directory_from_a_damaged_log(
    cli: Cli, headrace: Any, topic: str, tmp_path: Path, bare_cli: Cli
) -> None:
    cli("produce", "-t", topic, "-p", "0", stdin="one\ntwo\n")
    broker = headrace.directory / "broker-1"
    above = bare_cli("log", "dump", broker)  # every log that is in it
    assert above.code == 0, above.err
    assert f"{topic}-0/00000000000000000000.log" in above.out
    nothing = bare_cli("log", "dump", tmp_path)
    assert nothing.code == 1
    assert "CORRUPT" not in nothing.err
    assert str(tmp_path) in nothing.err
    copy = tmp_path / f"{topic}-0"
    copy.mkdir()
    for path in (broker / f"{topic}-0").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert bare_cli("log", "dump", copy, "--deep").code == 0
    log = copy / "00000000000000000000.log"
    raw = bytearray(log.read_bytes())
    raw[70] ^= 1
    log.write_bytes(raw)
    damaged = bare_cli("log", "dump", copy, "-o", "json")
    assert damaged.code == 1
    assert re.search(rf"{re.escape(str(log))}, position \d+, offset \d+: .*\[CORRUPT_LOG\]", damaged.err), damaged.err
    assert json.loads(damaged.out)["sound"] is False
