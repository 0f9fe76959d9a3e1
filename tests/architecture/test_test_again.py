"""CI's second chance for a test that failed once: flaky tests pass, and are named; broken ones fail."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def again(project: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """The tool on a project with these tests, with pytest itself in place of ``make test``."""
    (project / "test_it.py").write_text(textwrap.dedent(tests))
    (project / "pytest.ini").write_text("[pytest]\n")
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
            assert is_second
        """,
    )
    assert done.returncode == 0, done.stdout
    assert "FLAKY: test_it.py::test_sometimes" in done.stdout
    assert "2 passed (1 of them flaky" in done.stdout.splitlines()[-1]
    assert "failed" not in done.stdout.splitlines()[-1]


def test_a_broken_test_fails_twice_and_the_last_line_is_pytest_s(tmp_path: Path) -> None:
    done = again(tmp_path, "def test_broken():\n    assert False\n")
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
            assert False
        """,
    )
    assert done.returncode != 0
    assert "again, alone" not in done.stdout


def test_a_file_that_cannot_be_imported_has_no_second_chance_by_another_name(tmp_path: Path) -> None:
    done = again(tmp_path, "import a_module_that_is_not_there\n")
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("summary", "wanted"),
    [
        (
            "2 failed, 8 passed, 1 skipped in 3.10s",
            "10 passed (2 of them flaky: only when run again, alone), 1 ",
        ),
        ("1 failed, 1 error in 3s", "2 passed (2 of them flaky: only when run again, alone), in 3s"),
    ],
)
def test_the_last_line_counts_what_passed(summary: str, wanted: str) -> None:
    import test_again

    assert test_again._with_flaky(summary, 2).startswith(wanted)
