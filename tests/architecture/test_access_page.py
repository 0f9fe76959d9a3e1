"""docs/security-acls.md has the access rules of the protos."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_page_holds_the_rules_of_every_call() -> None:
    done = subprocess.run(
        [sys.executable, "tools/access_docs.py", "check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
