"""docs/reference/limits.md has the same limits as the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace_core.rpc.channel import CHANNELS_PER_CONNECTION
from headrace_core.rpc.server import STREAMS_PER_CLIENT_CONNECTION_MAX, STREAMS_PER_CONNECTION_MAX

ROOT = Path(__file__).parent.parent.parent


def test_page_holds_the_declared_limits() -> None:
    done = subprocess.run(
        [sys.executable, "tools/limits_docs.py", "check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("calls of one connection to a broker's or a coordinator's client", STREAMS_PER_CLIENT_CONNECTION_MAX),
        ("calls of one connection to any other listener", STREAMS_PER_CONNECTION_MAX),
        ("channels of one process that share a connection", CHANNELS_PER_CONNECTION),
    ],
)
def test_page_holds_the_limits_of_a_connection(what: str, limit: int) -> None:
    """These rows of the page are not generated."""
    page = (ROOT / "docs" / "reference" / "limits.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith(f"| {what}")]
    assert [row[2].strip() for row in rows] == [f"{limit:,}"]
