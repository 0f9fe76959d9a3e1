"""The rows of docs/reference/limits.md that are not generated have the limits of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_core.rpc.channel import CHANNELS_PER_CONNECTION
from headrace_core.rpc.server import STREAMS_PER_CLIENT_CONNECTION_MAX, STREAMS_PER_CONNECTION_MAX

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("calls of one connection to a broker's or a coordinator's client", STREAMS_PER_CLIENT_CONNECTION_MAX),
        ("calls of one connection to any other listener", STREAMS_PER_CONNECTION_MAX),
        ("channels of one process that share a connection", CHANNELS_PER_CONNECTION),
    ],
)
def test_page_holds_the_limits_of_a_connection(what: str, limit: int) -> None:
    page = (ROOT / "docs" / "reference" / "limits.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith(f"| {what}")]
    assert [row[2].strip() for row in rows] == [f"{limit:,}"]
