"""The lists that order the suite and group files for one worker name only existing files, and every test still runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _starts(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_name_in_the_order_is_that_of_some_file(request: pytest.FixtureRequest) -> None:
    order: Any = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    files = [_starts(path) for path in (ROOT / "tests").rglob("test_*.py")]
    starts_spark = [
        name for name in files if "pytest.mark.spark" in (ROOT / name).read_text() and "test_order_of" not in name
    ]
    assert [name for name in starts_spark if not name.startswith(order._SPARK)] == [], "one worker has all of Spark"
    named = (*order._SPARK, *order._WAIT, *order._COMPUTE, *order._LONG)
    assert [name for name in named if not any(file.startswith(name) for file in files)] == []


def test_files_that_wait_and_files_that_compute_take_turns_and_each_test_runs_once(tmp_path: Path) -> None:
    """Collect the tests of a project with the same folders and with Headrace's conftest.py."""
    tests = tmp_path / "tests"
    waiting = [f"docs/test_waits{number}.py" for number in range(4)]
    computing = [f"property/test_computes{number}.py" for number in range(2)]
    for name in (*waiting, *computing, "unit/test_small.py"):
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).write_text("def test_one():\n    pass\n\n\ndef test_two():\n    pass\n")
    (tests / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "14 passed" in done.stdout, done.stdout + done.stderr
    ran = [line.split("::")[0].split("tests/")[1] for line in done.stdout.splitlines() if "] PASSED tests/" in line]
    assert list(dict.fromkeys(ran)) == [
        waiting[0],
        computing[0],
        waiting[1],
        waiting[2],
        computing[1],
        waiting[3],
        "unit/test_small.py",
    ]
