"""Names that other clients have chosen: a terminal shows their control characters, and does not obey them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from headrace_core.visible import escaped, one_line
from headrace_tools.cli import top
from headrace_tools.cli.output import OutputFormat, note, print_table, say, say_data, show
from headrace_tools.top.frames import Frame, GroupRow

NAME = "g\x1b]0;renamed\x07\x1b[31m\nheadrace: all is well\r\u202e\x9b2J"
SHOWN = "g\\x1b]0;renamed\\x07\\x1b[31m\\nheadrace: all is well\\x0d\\u202e\\x9b2J"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_name_becomes_one_line_of_visible_characters() -> None:
    assert one_line(NAME) == SHOWN
    assert one_line("a\tb") == "a\\tb"
    assert escaped("two\nlines\t\x1b") == "two\nlines\t\\x1b"
    assert one_line("größe 漢字 😀 [red]") == "größe 漢字 😀 [red]"


@pytest.mark.parametrize("stream", [io.StringIO, _Terminal])
def test_a_table_shows_the_name_in_its_row(stream: Callable[[], io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    to = stream()
    monkeypatch.setattr(sys, "stdout", to)
    monkeypatch.setenv("COLUMNS", "200")
    print_table(("GROUP", "LAG"), [(NAME, 1)])
    assert SHOWN in to.getvalue()
    assert "\nheadrace" not in to.getvalue()


def test_messages_show_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"group {NAME}: STALL")
    say(NAME)
    show(OutputFormat.TEXT, {}, NAME)
    found = capsys.readouterr()
    assert found.err == f"group {SHOWN}: STALL\n"
    assert "\x1b" not in found.out
    assert "\x9b" not in found.out


def test_top_shows_the_name(capsys: pytest.CaptureFixture[str]) -> None:
    row = GroupRow(group=NAME, state="stable", members=1, lag=1, lag_ms=None, records_per_s=None, status="OK")
    frame = Frame(
        timestamp_ms=0, interval_s=1.0, cluster_id="c", controller_id=1, partitions=0, under_replicated=0, offline=0,
        records_per_s=0.0, bytes_per_s=0.0, total_lag=1, brokers=(), topics=(), groups=(row,), errors=(NAME,),
    )  # fmt: skip
    top._print(frame, 10, is_first=True)
    found = capsys.readouterr()
    assert SHOWN in found.out
    assert found.err == f"not known: {SHOWN}\n"


@pytest.mark.parametrize(("stream", "expected"), [(io.StringIO, NAME), (_Terminal, SHOWN)])
def test_a_program_gets_data_as_it_is_and_a_terminal_does_not(
    stream: Callable[[], io.StringIO], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = stream()
    monkeypatch.setattr(sys, "stdout", to)
    say_data(NAME)
    assert to.getvalue().replace("\nheadrace", "\\nheadrace") == expected.replace("\nheadrace", "\\nheadrace") + "\n"
