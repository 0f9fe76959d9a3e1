"""The command tree, in process: help with examples, exit codes, and what a command imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.cli.app import run

COMMANDS = [
    "up", "ps", "down", "restart", "format", "random-uuid", "produce", "consume", "log dump", "log verify",
    "metadata dump", "metadata ls", "metadata cat",
    "quorum status", "quorum add", "quorum remove", "quorum transfer",
    "features describe", "features upgrade", "features downgrade",
    "cluster describe", "brokers list", "brokers drain", "brokers unregister",
    "partitions reassign", "partitions list-reassignments", "partitions elect",
    "topics create", "topics list", "topics describe", "topics alter", "topics delete",
    "configs describe", "configs alter", "records delete", "log-dirs describe", "log-dirs move",
    "groups list", "groups describe", "groups members", "groups explain", "groups reset-offsets", "groups delete",
    "groups delete-offsets", "groups remove-members",
    "bench produce", "bench consume", "bench latency",
]  # fmt: skip
#: These need no cluster to talk to.
LOCAL = ("up", "ps", "down", "restart", "format", "random-uuid", "log", "metadata")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"    headrace {command} " in capsys.readouterr().out + " "


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.split()[0] not in LOCAL])
def test_every_client_command_takes_bootstrap_from_flag_and_environment(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert "-b, --bootstrap" in shown
    assert "HEADRACE_BOOTSTRAP_SERVERS" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_json_output(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([*command.split(), "--help"])
    assert "--output" in capsys.readouterr().out


def test_the_root_offers_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {command.split()[0]} " in shown for command in COMMANDS)
    assert run(["--version"]) == 0
    assert run(["tpoics"]) == 2
    assert "Did you mean 'topics'" in capsys.readouterr().err


def test_the_supervisors_commands_import_neither_grpc_nor_the_client() -> None:
    """`up -d` must be quick: what a cluster costs to start is not to be paid twice."""
    probe = (
        "import sys; from headrace.cli.app import run; run(['ps', '--data', '/nowhere'])\n"
        "print([name for name in ('grpc', 'google.protobuf', 'pyarrow', 'rich', 'asyncio', 'headrace.engine',"
        " 'headrace_core.log', 'headrace_core.records') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
    assert "headrace up --data /nowhere" in done.stderr


def test_the_pytest_plugin_imports_nothing_until_a_fixture_is_used() -> None:
    probe = (
        "import sys; import headrace.pytest_plugin\n"
        "print([name for name in ('grpc', 'headrace.local', 'headrace_core') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
