"""Run the programs in examples/ about delivery guarantees, while the test kills their worker. Count lost and duplicated
receipts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
LIMIT_S = 280.0
#: Fewer kills than the twenty of a user's run, so that the test is short.
KILLS = 5

pytestmark = pytest.mark.timeout(LIMIT_S + 20)


def output(headrace: Any, example: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{example}.py"), headrace.bootstrap_servers, *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("example", "loses", "doubles"),
    [
        pytest.param("at_most_once", True, False, marks=pytest.mark.long),
        pytest.param("at_least_once", False, True, marks=pytest.mark.long),
        ("exactly_once", False, False),
    ],
)
def test_the_examples_do_what_they_say(headrace: Any, example: str, loses: bool, doubles: bool) -> None:
    last = output(headrace, example, "--kills", str(KILLS))[-1]
    found = re.fullmatch(r"lost: (\d+) doubled: (\d+)", last)
    assert found is not None, last
    lost, doubled = map(int, found.groups())
    assert (lost > 0, doubled > 0) == (loses, doubles), last
    assert lost + doubled <= 10 * KILLS, "at most one batch for each kill"


def test_payments_are_in_order_and_exactly_once(headrace: Any) -> None:
    users, counts = output(headrace, "payments")
    assert users == "20 users, 1000 payments"
    assert counts == "users out of order: 0 lost: 0 doubled: 0"
