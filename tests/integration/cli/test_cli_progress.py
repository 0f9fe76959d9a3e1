"""Long commands, with stderr on a terminal and without one: the progress bar is on stderr, never in the data."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import LocalCluster

RECORDS = 200_000


def with_a_terminal(program: str, bootstrap: str, *arguments: str, stdin: Path | None = None) -> tuple[bytes, str]:
    """stdout, and what the terminal at stderr got."""
    ours, theirs = pty.openpty()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_") and key != "NO_COLOR"}
    environment = kept | {"TERM": "xterm", "COLUMNS": "100", "HEADRACE_BOOTSTRAP_SERVERS": bootstrap}
    with open(stdin or os.devnull, "rb") as source:
        process = subprocess.Popen(
            [program, *arguments], stdin=source, stdout=subprocess.PIPE, stderr=theirs, env=environment
        )
    os.close(theirs)
    shown: list[bytes] = []

    def watch() -> None:
        with contextlib.suppress(OSError):  # the end, when the other end has gone
            while part := os.read(ours, 65_536):
                shown.append(part)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    out, _ = process.communicate(timeout=100)
    watching.join(60)
    os.close(ours)
    assert process.returncode == 0, shown
    return out, b"".join(shown).decode()


def test_files_that_are_sent_and_topics_that_are_read_show_a_bar_on_a_terminal(
    headrace: LocalCluster, headrace_topic: str, program: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    lines = tmp_path / "orders.txt"
    lines.write_bytes(b"".join(b"order %d\n" % number for number in range(RECORDS)))
    servers = headrace.bootstrap_servers
    out, shown = with_a_terminal(program, servers, "produce", "-t", headrace_topic, "-l", str(lines))
    assert out == b""
    assert "%" in shown
    assert "records acknowledged" in shown

    out, shown = with_a_terminal(program, servers, "produce", "-t", headrace_topic, stdin=lines)
    assert "records acknowledged" in shown, "stdin is a file whose size is known"

    out, shown = with_a_terminal(program, servers, "consume", "-t", headrace_topic, "-e")
    assert sorted(out.splitlines()) == sorted(lines.read_bytes().splitlines() * 2)
    assert f"of {2 * RECORDS:,} offsets" in shown
    assert "Reached end of topic" in shown

    out, shown = with_a_terminal(program, servers, "consume", "-t", headrace_topic, "-c", "1000", "-q")
    assert out.count(b"\n") == 1_000
    assert shown == "", "-q says nothing"

    piped = cli("consume", "-t", headrace_topic, "-e")
    assert "\x1b" not in piped.err
    assert [line for line in piped.err.splitlines() if not line.startswith("% Reached end")] == []
    assert cli("produce", "-t", headrace_topic, "-l", lines).err == ""
