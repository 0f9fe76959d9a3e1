"""CI's steps: no step hides another's failure or exceeds its limit, and the end of each failed log is printed last."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from tests.worlds.waiting import check_in_time

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "ci_steps.sh", tmp_path / "tools")
    return tmp_path


def ci(checkout: Path, steps: str) -> subprocess.CompletedProcess[str]:
    script = f"set -uo pipefail\nsource tools/ci_steps.sh\n{textwrap.dedent(steps)}\nsummary"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_all_steps_pass_and_the_end_says_so(checkout: Path) -> None:
    done = ci(checkout, "step one 100 echo hello\nstep two 100 bash -c 'echo 7 passed in 1s; echo warning >&2'")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == ["7 passed in 1s", "warning"]
    assert done.stderr.splitlines()[-1] == "ci: ok"
    assert (checkout / "build/ci/one.log").read_text() == "hello\n"
    assert "one" in (checkout / "build/ci/timings.txt").read_text()


def test_a_failed_step_keeps_none_from_running_and_is_reported_after_all_of_them(checkout: Path) -> None:
    done = ci(
        checkout,
        """
        step build 100 true
        step sim 100 bash -c 'seq 1000 1030; exit 2'
        so_far
        step test 100 bash -c 'seq 1 500; echo "== 3 passed in 1.00s =="'
        """,
    )
    assert done.returncode == 1
    assert "ci: failed so far: sim" in done.stdout
    assert done.stdout.splitlines()[-1] == "== 3 passed in 1.00s =="
    output = done.stderr.splitlines()
    begins = output.index("ci: --- the end of build/ci/sim.log:") + 1
    assert output[begins:][:30] == [str(number) for number in range(1001, 1031)]
    assert output[begins + 30].endswith("s in all")
    assert output[-1] == "ci: FAILED: sim"
    assert [line.split()[1] for line in output if "FAILED (" in line] == ["sim"]
    assert not any("500" in line for line in output), "a step that did not fail"
    assert (checkout / "build/ci/timings.txt").read_text() == done.stderr


def test_a_step_beyond_its_limit_is_ended_and_called_so(checkout: Path) -> None:
    done = ci(checkout, "step slow 3 bash -c 'echo begun; exec tail -f /dev/null'\nstep next 100 echo on")
    assert done.returncode == 1
    assert "TIMED OUT" in done.stderr
    assert "\nbegun\n" in done.stderr
    assert done.stdout.splitlines()[-1] == "on"


def test_what_a_step_leaves_running_does_not_hold_up_the_next(checkout: Path) -> None:
    began = time.monotonic()
    done = ci(checkout, "step leaves 100 bash -c '(exec tail -f /dev/null) & echo $!'\nstep next 100 echo on")
    subprocess.run(["kill", (checkout / "build/ci/leaves.log").read_text().strip()], check=True)
    check_in_time(began, 90)
    assert done.returncode == 0
    assert "ci: leaves left something running" in done.stdout
    assert done.stdout.splitlines()[-1] == "on"
