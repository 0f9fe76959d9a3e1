"""CI runs a timed-out test a second time, and its report names the test. A test that failed by an assertion gets no
second run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace_core.testing import verdicts

ROOT = Path(__file__).resolve().parents[2]


def again(project: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run tools/test_again.py on a project with the given tests. pytest stands in for ``make test``."""
    (project / "test_it.py").write_text(textwrap.dedent(tests))
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "conftest.py").write_text(
        textwrap.dedent(f"""
            import importlib.util
            spec = importlib.util.spec_from_file_location("ours", {str(ROOT / "tests" / "conftest.py")!r})
            ours = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(ours)
            pytest_runtest_makereport = ours.pytest_runtest_makereport
            pytest_runtest_call = ours.pytest_runtest_call
        """)
    )
    program = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(ROOT / "tools")!r})
        import test_again
        pytest = [sys.executable, "-m", "pytest", "-p", "no:xdist"]
        sys.exit(test_again.run(pytest, [*pytest, "--last-failed"], root=Path({str(project)!r})))
    """)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)


def test_all_is_well_the_first_time(tmp_path: Path) -> None:
    done = again(tmp_path, "def test_fine():\n    pass\n")
    assert done.returncode == 0
    assert "1 passed" in done.stdout.splitlines()[-1]
    assert "FLAKY" not in done.stdout


def test_a_flaky_test_passes_and_is_named(tmp_path: Path) -> None:
    done = again(
        tmp_path,
        """
        from pathlib import Path
        def test_fine():
            pass
        def test_sometimes():
            seen = Path(__file__).with_name("seen")
            is_second = seen.exists()
            seen.write_text("")
            if not is_second:
                raise TimeoutError
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "FLAKY: test_it.py::test_sometimes" in done.stdout
    assert "2 passed (1 of them flaky" in done.stdout.splitlines()[-1]
    assert "failed" not in done.stdout.splitlines()[-1]


def test_a_broken_test_fails_twice_and_the_last_line_is_pytest_s(tmp_path: Path) -> None:
    done = again(tmp_path, "def test_broken():\n    raise TimeoutError\n")
    assert done.returncode != 0
    assert "again, alone: test_it.py::test_broken" in done.stdout
    assert "1 failed" in done.stdout.splitlines()[-1]


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    done = again(
        tmp_path,
        """
        import pytest
        @pytest.mark.parametrize("number", range(11))
        def test_broken(number):
            raise TimeoutError
        """,
    )
    assert done.returncode != 0
    assert "again, alone" not in done.stdout


TIME_OUTS = {
    "a wait that was not met": "raise NotInTimeError('never')",
    "asyncio's": "asyncio.run(asyncio.wait_for(asyncio.Event().wait(), 0.01))",
    "a process's": "subprocess.run(['sleep', '9'], timeout=0.1)",
    "pytest's own": "time.sleep(60)",
    "pytest's own, in an example that Hypothesis then tries to repeat": """
    slept = []
    @hypothesis.given(hypothesis.strategies.data())
    def example(data):
        if not slept:
            slept.append(True)
            data.draw(hypothesis.strategies.integers())
            time.sleep(60)
    example()""",
    "a node that does not serve in time": "raise ClusterStartError('controller 3') from TimeoutError()",
    "what was raised from one": "raise RuntimeError('the cluster does not start') from TimeoutError()",
}
VERDICTS = {
    "an assertion": "assert 'lost' == 'found'",
    "an error": "{}['lost']",
    "a verdict about safety": "raise SafetyViolation('1 lost')",
    "a verdict that a wait ended in": "raise SafetyViolation('skipped') from NotInTimeError('never')",
    "a verdict in the midst of a clean-up that timed out": """
    try:
        raise SafetyViolation('1 lost')
    finally:
        raise TimeoutError""",
    "the product's own time-out": "raise DeliveryTimeoutError('no acknowledgement')",
    "a node that ended": "raise ClusterStartError('controller 3')",
    "an outcome that is not known": "raise UnknownOutcomeError('no acknowledgement')",
    "an assertion that was raised from a time-out": "raise AssertionError('lost') from TimeoutError()",
    "an assertion while a time-out was handled": """
    try:
        raise TimeoutError
    except TimeoutError:
        assert False, 'the record is there twice'""",
}


def planted(tmp_path: Path, bodies: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Tests with the given bodies, which fail at the first run and would pass at a second run."""
    tests = "".join(
        f"@pytest.mark.timeout(2)\n"
        f"def test_{number}():\n"
        f"    seen = Path(__file__).with_name('seen-{number}')\n"
        f"    if seen.exists():\n        return\n"
        f"    seen.write_text('')\n    {body.strip()}\n"
        for number, body in enumerate(bodies.values())
    )
    heading = (
        "import asyncio, subprocess, time\nfrom pathlib import Path\nimport hypothesis, hypothesis.strategies, pytest\n"
        "from headrace_core.errors import ClusterStartError, DeliveryTimeoutError, UnknownOutcomeError\n"
        "from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation\n"
    )
    return again(tmp_path, heading + tests)


def test_time_outs_have_a_second_chance(tmp_path: Path) -> None:
    done = planted(tmp_path, TIME_OUTS)
    assert done.returncode == 0, done.stdout
    for number, what in enumerate(TIME_OUTS):
        assert f"FLAKY: test_it.py::test_{number}" in done.stdout, what


def test_verdicts_have_none(tmp_path: Path) -> None:
    done = planted(tmp_path, VERDICTS)
    assert done.returncode != 0, done.stdout
    for number, what in enumerate(VERDICTS):
        assert f"NOT RUN AGAIN: test_it.py::test_{number}" in done.stdout, what
    assert done.stdout.count("test session starts") == 1


def test_an_example_that_fails_is_a_verdict_even_if_the_search_for_a_smaller_one_takes_too_long(tmp_path: Path) -> None:
    done = again(
        tmp_path,
        """
        import time
        import hypothesis, pytest
        from hypothesis import strategies
        @pytest.mark.timeout(2)
        @hypothesis.given(strategies.integers())
        @hypothesis.settings(deadline=None)
        def test_loses(number):
            if number > 100:
                time.sleep(0.5)
                assert False, "a record is lost"
        """,
    )
    assert done.returncode != 0
    assert "NOT RUN AGAIN: test_it.py::test_loses" in done.stdout
    assert "an example has failed: AssertionError: a record is lost" in done.stdout


def test_one_verdict_among_time_outs_fails_the_run_at_once(tmp_path: Path) -> None:
    done = again(tmp_path, "def test_late():\n    raise TimeoutError\ndef test_lost():\n    assert False\n")
    assert done.returncode != 0
    assert "NOT RUN AGAIN: test_it.py::test_lost" in done.stdout
    assert done.stdout.count("test session starts") == 1


def test_a_time_out_whose_teardown_finds_a_broken_promise_is_a_verdict(tmp_path: Path) -> None:
    done = again(
        tmp_path,
        """
        import pytest
        from headrace_core.testing.verdicts import SafetyViolation
        @pytest.fixture
        def cluster():
            yield
            raise SafetyViolation("1 lost")
        def test_late(cluster):
            raise TimeoutError
        """,
    )
    assert done.returncode != 0
    assert "1 lost" in done.stdout
    assert "NOT RUN AGAIN" in done.stdout


def test_the_data_of_a_verdict_is_kept_and_not_without_bound(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "orders-0").mkdir(parents=True)
    (data / "orders-0" / "0.log").write_bytes(b"what is left")
    os.mkfifo(data / "pipe")
    for number in range(verdicts.KEPT_MAX + 2):
        kept = verdicts.keep(data, tmp_path / "kept", f"run-{number}")
        os.utime(kept, (number, number))
    assert (kept / "orders-0" / "0.log").read_bytes() == b"what is left"
    assert len(list((tmp_path / "kept").iterdir())) == verdicts.KEPT_MAX


def test_a_file_that_cannot_be_imported_has_no_second_chance_by_another_name(tmp_path: Path) -> None:
    done = again(tmp_path, "import a_module_that_is_not_there\n")
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("summary", "wanted"),
    [
        (
            "2 failed, 8 passed, 1 skipped in 3.10s",
            "10 passed (2 of them flaky: passed only when run again, alone), 1 ",
        ),
        ("1 failed, 1 error in 3s", "2 passed (2 of them flaky: passed only when run again, alone), in 3s"),
    ],
)
def test_the_last_line_counts_what_passed(summary: str, wanted: str) -> None:
    import test_again

    assert test_again._with_flaky(summary, 2).startswith(wanted)


def test_tests_of_unittest_and_machines_of_hypothesis_have_a_recorded_cause_too(tmp_path: Path) -> None:
    """pytest finds the failure of a unittest.TestCase later than the failure of a function."""
    done = again(
        tmp_path,
        """
        import unittest
        from pathlib import Path
        class TestMachine(unittest.TestCase):
            def runTest(self):
                seen = Path(__file__).with_name("seen")
                if not seen.exists():
                    seen.write_text("")
                    raise TimeoutError
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "FLAKY: test_it.py::TestMachine::runTest" in done.stdout
