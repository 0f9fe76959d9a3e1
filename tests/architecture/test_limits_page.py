"""docs/reference/limits.md has the same limits as the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_page_holds_the_declared_limits() -> None:
    done = subprocess.run(
        [sys.executable, "tools/limits_docs.py", "check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
