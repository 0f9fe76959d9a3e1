"""The benchmark of 100,000 partitions, small: every case finishes, and every bar is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_benchmark_of_the_metadata_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "metadata.py"), "--smoke", "--work", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    document = json.loads(done.stdout)
    assert document["failures"] == [], done.stderr
    assert len(document["bars"]) == 2 * 6
    assert all(bar["measured"] > 0 for bar in document["bars"])
    assert list(tmp_path.iterdir()) == [], "something was left behind"
