"""Compact 1 GiB with ten million keys in bounded memory. The test takes a minute and 3 GiB of disk, so the test
compacts 1 GiB only with HEADRACE_FULL_COMPACTION=1. By default the test compacts a fiftieth of the data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

IS_FULL = os.environ.get("HEADRACE_FULL_COMPACTION", "0") not in ("", "0")
SCRIPT = Path(__file__).parent / "gigabyte.py"


@pytest.mark.timeout(900 if IS_FULL else 120)
def test_a_log_with_more_keys_than_the_map_holds_is_cleaned_in_bounded_memory(tmp_path: Path) -> None:
    records, keys, map_bytes = (10_050_000, 10_000_000, 128 << 20) if IS_FULL else (206_000, 200_000, 2_500_000)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "data"), str(records), str(map_bytes), str(keys)],
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found = json.loads(done.stdout)
    assert found["records_kept"] == keys
    assert found["rounds"] >= 2
    assert found["rss_mib_max"] < 300
    if IS_FULL:
        assert found["log_mib"] >= 1024
        assert found["mib_per_s"] > 60
