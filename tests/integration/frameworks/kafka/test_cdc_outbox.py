"""The example of the outbox pattern gives each committed event once, and no event that was rolled back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_pipelines.cdc.connect import fetch_jars
from tests.integration.interop.kafka_peer import jars

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).resolve().parents[4]


def test_the_example_sends_each_committed_event_once(tmp_path: Path) -> None:
    (tmp_path / "jars").symlink_to(fetch_jars(jars().parent / "cdc"))
    command = [sys.executable, str(ROOT / "examples" / "outbox.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["orders"] == list(range(20)), "each order once, and none of those that were rolled back"
    assert found["first"]["type"] == "OrderPlaced"
    assert found["first"]["key"] == str(found["first"]["payload"]["order"])
    assert found["rows_in_outbox"] == 0
