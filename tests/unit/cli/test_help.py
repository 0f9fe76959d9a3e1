"""The command tree, in process: help with examples, exit codes, and what a command imports."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer

from headrace_tools.cli.app import run
from headrace_tools.cli.root import build


def commands() -> list[str]:
    """All commands, from the command tree itself, so these tests also cover new commands."""
    found: list[str] = []

    def walk(command: Any, words: list[str]) -> None:
        if command.hidden:
            return
        for name, child in getattr(command, "commands", {}).items():
            walk(child, [*words, name])
        if not hasattr(command, "commands"):
            found.append(" ".join(words))

    walk(ROOT, [])
    return found


ROOT: Any = typer.main.get_command(build(()))
COMMANDS = commands()
#: Commands that are no clients of a cluster: they work without one, or ask another service by its own URL.
LOCAL = (
    "up",
    "ps",
    "down",
    "restart",
    "format",
    "random-uuid",
    "log",
    "metadata",
    "profile",
    "certs",
    "version",
    "cluster roll",
    "schemas",
    "connectors",
)


def test_the_tree_is_walked_to_its_leaves() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) >= 45
    assert {"up", "doctor", "top", "topics offsets", "groups explain", "log dump", "bench latency"} <= set(COMMANDS)
    assert not {"topics", "groups", "log"} & set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    assert f"    headrace {command} " in capsys.readouterr().out + " "


@pytest.mark.parametrize("command", [c for c in COMMANDS if not {c, c.split()[0]} & set(LOCAL)])
def test_every_client_command_takes_bootstrap_from_flag_and_environment(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*command.split(), "--help"])
    shown = capsys.readouterr().out
    assert "-b, --bootstrap" in shown
    assert "HEADRACE_BOOTSTRAP_SERVERS" in shown
    assert "--profile" in shown
    assert "--command-config" in shown


def examples() -> list[str]:
    """Every line of a command's help that begins with a command."""
    found = []
    for command in COMMANDS:
        text = (leaf(command.split())[0].help or "").replace("\\\n", " ")
        found += [line.strip() for line in text[text.index("Examples:") :].splitlines() if "headrace " in line]
    return found


def leaf(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that ``words`` name, and its remaining arguments."""
    command, rest = ROOT, list(words)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    return command, rest


def called(line: str) -> list[list[str]]:
    """The ``headrace`` commands of a shell line, without a remark that follows several spaces."""
    lexer = shlex.shlex(re.split(r"\s{2,}", re.sub(r"\\\s+", "", line))[0], posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&<>"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [words[1:] for words in commands if words[:1] == ["headrace"]]


@pytest.mark.parametrize("line", examples())
def test_every_example_is_a_command_line_that_is_understood(line: str) -> None:
    calls = called(line)
    assert calls
    for words in calls:
        command, rest = leaf(words)
        command.make_context(command.name, rest)


def test_an_example_with_a_wrong_flag_would_be_found() -> None:
    command, rest = leaf(called("headrace topics create orders --partitoins 3   a remark")[0])
    with pytest.raises(Exception, match="partitoins"):
        command.make_context(command.name, rest)
    assert called("echo 'a | b' | headrace produce -t x > y") == [["produce", "-t", "x"]]


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
    """`up -d` must be quick, because starting a cluster already takes long."""
    probe = (
        "import sys; from headrace_tools.cli.app import run; run(['ps', '--data', '/nowhere'])\n"
        "print([name for name in ('grpc', 'google.protobuf', 'pyarrow', 'rich', 'asyncio', 'headrace.engine',"
        " 'headrace_core.log', 'headrace_core.records') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
    assert "headrace up --data /nowhere" in done.stderr


def test_the_pytest_plugin_imports_nothing_until_a_fixture_is_used() -> None:
    probe = (
        "import sys; import headrace_tools.pytest_plugin\n"
        "print([name for name in ('grpc', 'headrace_tools.local', 'headrace_core') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        ("headrace to", {"top", "topics"}, {"up"}),
        ("headrace topics de", {"describe", "delete"}, {"list"}),
        ("headrace doctor --ti", {"--timeout"}, {"--data"}),
    ],
)
def test_the_shell_completes_commands_and_flags(words: str, offered: set[str], not_offered: set[str]) -> None:
    asked = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    probe = "import sys; from headrace_tools.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, env=os.environ | asked, check=False
    )
    found = set(done.stdout.split())
    assert offered <= found, done.stderr
    assert not not_offered & found
