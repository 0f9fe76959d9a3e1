"""Progress: a bar on a terminal, lines or nothing elsewhere, and never any output on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

WORK = """
import sys
from headrace_tools.cli.output import note
from headrace_tools.cli.progress import HowFar, progress
with progress(lines_s={lines_s}, draw_s=0, beside_records={beside}, quiet={quiet}) as shown:
    for done in range(1, 4):
        shown.at(lambda: HowFar(done, 4, f"[{{done}}] of 4 crates"))
        if done == 2:
            note("a remark")
print("the result")
"""


def work(*, lines_s: float | None = 0.0, beside: bool = False, quiet: bool = False) -> str:
    return WORK.format(lines_s=lines_s, beside=beside, quiet=quiet)


def run_with_terminal(program: str, *, stdout_too: bool = False, **environment: str) -> tuple[str, str]:
    """Return stdout, and the output on a terminal. stderr is the terminal; with ``stdout_too`` both streams are the
    terminal, and the first result is empty."""
    ours, theirs = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=theirs if stdout_too else subprocess.PIPE,
        stderr=theirs,
        env=kept | {"TERM": "xterm", "COLUMNS": "100"} | environment,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65_536):
            shown += part
    except OSError:  # the other end has gone
        pass
    finally:
        os.close(ours)
    out = b"" if process.stdout is None else process.stdout.read()
    assert process.wait(60) == 0, shown
    return out.decode(), shown.decode()


def test_a_terminal_gets_a_bar_and_stdout_only_the_result() -> None:
    out, shown = run_with_terminal(work())
    assert out == "the result\n"
    assert "25%" in shown
    assert "75%" in shown
    assert "[3] of 4 crates" in shown, "words are no markup"
    assert "a remark" in shown


def test_a_bar_is_gone_when_the_work_is_done() -> None:
    shown = run_with_terminal(work())[1]
    assert shown.rstrip().endswith("\x1b[2K") or "\x1b[2K" in shown.split("[3] of 4 crates")[-1]


@pytest.mark.parametrize("program", [work(quiet=True), work(quiet=True, beside=True)])
def test_quiet_shows_nothing(program: str) -> None:
    assert run_with_terminal(program)[1].split() == ["a", "remark"]


def test_records_and_a_bar_never_share_a_terminal() -> None:
    assert "%" not in run_with_terminal(work(beside=True), stdout_too=True)[1]
    assert "75%" in run_with_terminal(work(beside=True))[1]


def test_a_terminal_that_cannot_draw_gets_lines() -> None:
    shown = run_with_terminal(work(), TERM="dumb")[1]
    assert "\x1b" not in shown
    assert shown.split("\r\n")[0] == "[1] of 4 crates"


def test_no_color_leaves_the_bar_without_colours() -> None:
    coloured = "\x1b[38;5;"
    assert coloured in run_with_terminal(work(), TERM="xterm-256color")[1]
    assert coloured not in run_with_terminal(work(), TERM="xterm-256color", NO_COLOR="1")[1]


@pytest.mark.parametrize(
    ("lines_s", "expected"),
    [(0.0, ["[1] of 4 crates", "[2] of 4 crates", "a remark", "[3] of 4 crates"]), (None, ["a remark"])],
)
def test_a_pipe_gets_lines_where_it_always_has_and_no_escape(lines_s: float | None, expected: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", work(lines_s=lines_s)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"FORCE_COLOR": "1"},
    )
    assert (done.stdout, done.stderr.splitlines()) == ("the result\n", expected)
