"""Colours and drawn tables are for terminals; a pipe gets plain text, and NO_COLOR (no-color.org) is obeyed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

ESCAPE = "\x1b"
#: Select Graphic Rendition with a foreground or background colour.
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")
SHOW = (
    "from headrace_tools.cli.output import print_table; print_table(('TOPIC', 'LAG'), [('orders [red]', 12), ('x', 7)])"
)


def on_a_terminal(program: str, **environment: str) -> str:
    """The output of ``program`` on a terminal."""
    ours, theirs = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=theirs, stderr=theirs, env=kept | {"TERM": "xterm"} | environment
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65_536):
            shown += part
    except OSError:  # the last process with the other end has ended
        pass
    finally:
        os.close(ours)
    assert process.wait(60) == 0, shown
    return shown.decode()


def test_a_pipe_gets_columns_without_any_escape() -> None:
    for environment in ({}, {"FORCE_COLOR": "1"}):
        done = subprocess.run(
            [sys.executable, "-c", SHOW], capture_output=True, text=True, check=True, env=os.environ | environment
        )
        assert done.stdout.splitlines() == ["TOPIC         LAG", "orders [red]   12", "x               7"]


def test_a_terminal_gets_a_drawn_table() -> None:
    shown = on_a_terminal(SHOW)
    assert ESCAPE in shown
    assert "orders [red]" in shown  # data is not interpreted as markup


def test_no_color_is_obeyed_and_a_dumb_terminal_gets_no_escapes() -> None:
    coloured = "from rich.console import Console; Console().print('[red]x[/red]')"
    assert COLOUR.search(on_a_terminal(coloured)), "or this test would see no colour anywhere"
    assert not COLOUR.search(on_a_terminal(coloured, NO_COLOR="1"))
    assert not COLOUR.search(on_a_terminal(SHOW, NO_COLOR="1"))
    assert ESCAPE not in on_a_terminal(SHOW, TERM="dumb")
