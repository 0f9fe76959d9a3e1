"""CI's steps: no step hides another step's failure or exceeds its time limit, and CI prints failures again at the
end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import telling_lines

from tests.worlds.waiting import check_in_time, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tools").mkdir()
    for name in ("ci_steps.sh", "telling_lines.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")
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
        step sim 100 bash -c 'echo "SURVIVED: AMutant"; exit 2'
        so_far
        step test 100 bash -c 'seq 1 500; echo "== 3 passed in 1.00s =="'
        """,
    )
    assert done.returncode == 1
    assert "ci: failed so far: sim" in done.stdout
    assert done.stdout.splitlines()[-1] == "== 3 passed in 1.00s =="
    output = done.stderr.splitlines()
    assert "ci: sim | SURVIVED: AMutant" in output
    assert output[-1] == "ci: FAILED: sim"
    assert [line.split()[1] for line in output if "FAILED (" in line] == ["sim"]
    assert not any("500" in line for line in output), "a step that did not fail"
    assert (checkout / "build/ci/timings.txt").read_text() == done.stderr


def test_a_step_beyond_its_limit_is_ended_and_called_so(checkout: Path) -> None:
    done = ci(checkout, "step slow 3 bash -c 'echo begun; exec tail -f /dev/null'\nstep next 100 echo on")
    assert done.returncode == 1
    assert "TIMED OUT" in done.stderr
    assert "ci: slow | begun" in done.stderr
    assert done.stdout.splitlines()[-1] == "on"


def test_what_a_step_leaves_running_does_not_hold_up_the_next(checkout: Path) -> None:
    began = time.monotonic()
    done = ci(checkout, "step leaves 100 bash -c '(exec tail -f /dev/null) & echo $!'\nstep next 100 echo on")
    subprocess.run(["kill", (checkout / "build/ci/leaves.log").read_text().strip()], check=True)
    check_in_time(began, 90)
    assert done.returncode == 0
    assert "ci: leaves left something running" in done.stdout
    assert done.stdout.splitlines()[-1] == "on"


def test_a_late_step_runs_a_part_of_its_tests_and_the_summary_says_so(checkout: Path) -> None:
    show = "bash -c 'echo ${HEADRACE_TEST_PART:-all}'"
    done = ci(
        checkout,
        f"""
        export HEADRACE_TEST_SEED=20261127
        rotating early 3000 100 {show}
        rotating late -1 100 {show}
        rotating later -310 100 {show}
        rotating latest -5000 100 {show}
        rotating fails -1 100 false
        step next 100 {show}
        """,
    )
    of = {
        name: (checkout / f"build/ci/{name}.log").read_text() for name in ("early", "late", "later", "latest", "next")
    }
    assert of == {"early": "all\n", "late": "2/2\n", "later": "2/3\n", "latest": "1/4\n", "next": "all\n"}
    (late,) = [line for line in done.stderr.splitlines() if line.startswith("ci:   late ")]
    assert "ok, part 2/2 of its tests (LATE: began after" in late
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ci: FAILED: fails"


def test_on_days_that_choose_the_same_files_the_parts_change(checkout: Path) -> None:
    """A file of `long` runs every sixth day, so its part must not depend on the seed's remainder by 6."""
    ci(checkout, "for HEADRACE_TEST_SEED in {20261101..20261300..6}; do part_of long 2; part_of long 3; done >parts")
    found = (checkout / "parts").read_text()
    assert set(found[::2]) == {"1", "2"}
    assert set(found[1::2]) == {"1", "2", "3"}


def test_the_parts_of_tests_are_all_tests(tmp_path: Path) -> None:
    every_second = "".join(
        f"@pytest.mark.slow\ndef test_{name}(): pass\ndef test_not_{name}(): pass\n" for name in "abcd"
    )
    (tmp_path / "test_eight.py").write_text(f"import pytest\n{every_second}")
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)

    def run_in(part: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", "-m", "slow", "--rootdir", ".", "."],
            env={**os.environ, "HEADRACE_TEST_PART": part},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        return set(re.findall(r"::test_(\w) PASSED", done.stdout))

    assert (run_in("1/2"), run_in("2/2"), run_in("")) == ({"a", "c"}, {"b", "d"}, set("abcd"))


def test_a_step_beside_others_is_reported_when_it_is_joined(checkout: Path) -> None:
    done = ci(
        checkout,
        """
        beside sim 100 bash -c 'until [ -e go ]; do :; done; echo of sim; echo "SURVIVED: AMutant"; exit 2'
        step one 100 bash -c 'echo of one; touch go'
        joined sim
        step test 100 echo 7 passed in 1s
        """,
    )
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines.index("of one") < lines.index("of sim") < lines.index("7 passed in 1s")
    assert [line.split()[1:2] for line in done.stderr.splitlines() if "FAILED (2)" in line] == [["sim"]]
    assert "ci: sim | SURVIVED: AMutant" in done.stderr
    assert (checkout / "build/ci/sim.log").read_text() == "of sim\nSURVIVED: AMutant\n"


def test_a_step_beside_others_ends_at_its_limit_and_with_the_run(checkout: Path) -> None:
    done = ci(checkout, "beside slow 1 tail -f /dev/null\njoined slow")
    assert (done.returncode, "TIMED OUT" in done.stderr) == (1, True)
    done = ci(checkout, "beside left 100 bash -c 'echo $$ >pid; exec tail -f /dev/null'\nuntil [ -s pid ]; do :; done")
    pid = (checkout / "pid").read_text().strip()
    until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text(), within_s=60)


def test_a_log_s_end_is_reported_without_what_says_nothing() -> None:
    log = [
        "collected 3 items",
        "",
        "...... [ 50%]",
        "........ [100%]",
        "=" * 79,
        "0.53s call     test_a.py::test_b",
        "the reason",
    ]
    assert telling_lines.telling("\n".join(log)) == ["collected 3 items", "the reason"]


def test_an_early_error_is_reported_before_the_end_of_a_long_log() -> None:
    log = ["a.c:3:1: error: expected ';'", *(f"line {number}" for number in range(1000))]
    output = telling_lines.telling("\n".join(log))
    assert output[:2] == ["a.c:3:1: error: expected ';'", "..."]
    assert output[-1] == "line 999"
    assert len(output) == telling_lines.LINES_OF_ONE


def test_many_failed_steps_share_the_lines_and_a_long_line_is_cut(tmp_path: Path) -> None:
    logs = [tmp_path / f"step{number}.log" for number in range(4)]
    for log in logs:
        log.write_text("\n".join(f"{number} {'x' * 1000}" for number in range(500)))
    said = telling_lines.report(logs)
    assert len(said) == telling_lines.LINES_OF_ALL + len(logs)
    assert max(map(len, said)) < telling_lines.COLUMNS + 30
