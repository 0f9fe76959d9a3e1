"""The exit codes of docs/cli/README.md, on which scripts may rely, each with the text on stderr. (The codes 130, 141
and 143 need a separate process. The tests of these codes are in tests/integration/cli: kcat, local, doctor.)"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_tools.cli.app import run


@pytest.fixture
def closed_address() -> Iterator[str]:
    """An address without a listener. The test holds the port, so that no other process listens there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_0_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["random-uuid"]) == 0
    output = capsys.readouterr()
    assert len(output.out.strip()) == 22
    assert output.err == ""


def test_1_is_failed_with_one_line_that_ends_with_the_errors_stable_code(
    closed_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topics", "list", "-b", closed_address]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line.startswith("headrace: ")
    assert line.endswith(" [BOOTSTRAP_FAILED]")


def test_1_is_what_a_doctor_says_who_found_something(
    closed_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", "-b", closed_address, "--data", str(tmp_path), "--timeout", "1"]) == 1
    assert capsys.readouterr().out.startswith("error: no node of the cluster answers [no-cluster]")


def test_1_is_what_a_doctor_says_of_a_directory_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output must not describe the faults of another cluster."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    assert run(["doctor", "--data", str(tmp_path / "nothing")]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert f"there is no cluster in {tmp_path / 'nothing'}" in output.err
    assert output.err.strip().endswith("[INVALID_ARGUMENT]")


@pytest.mark.parametrize(
    "arguments",
    [["tpoics"], ["topics", "create"], ["top", "--interval", "x"], ["doctor", "--wrong"], ["top", "-n", "0"]],
)
def test_2_is_a_wrong_command_line_and_writes_nothing_on_stdout(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Usage: headrace" in output.err
