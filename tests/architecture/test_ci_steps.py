"""CI's steps: no step hides another's failure or exceeds its limit, and the end of each failed log is printed last."""

from __future__ import annotations

import re
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


def folders_of(tier: str) -> list[str]:
    """The files and folders that ``tools/test.sh TIER`` gives to pytest."""
    found = re.search(rf"^  {tier}\) .*?folders=\((.*?)\)(?: ;;|$)", (ROOT / "tools/test.sh").read_text(), re.M | re.S)
    assert found is not None
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(found[1].split())}"], capture_output=True, check=True
    )
    return done.stdout.decode().split()


def test_ci_runs_a_guard_of_every_area_of_the_invariants() -> None:
    runs = (*folders_of("test"), *folders_of("slice"))
    assert [path for path in runs if not (ROOT / path).exists()] == []
    areas: dict[str, bool] = {}
    for page in sorted((ROOT / "docs").glob("invariants*.md")):
        for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
            if guards := re.findall(r"`(tests/[^`:]+\.py)", section):
                areas[f"{page.name}: {section.splitlines()[0]}"] = any(guard.startswith(runs) for guard in guards)
    assert len(areas) >= 10
    assert [area for area, runs_in_ci in areas.items() if not runs_in_ci] == []
