"""A failing test never ends the run, even if an error occurs while its report is made."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = f"""
    import importlib.util
    spec = importlib.util.spec_from_file_location("conftest_of_the_suite", {str(ROOT / "tests/conftest.py")!r})
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    pytest_runtest_makereport = suite.pytest_runtest_makereport
"""


def run(project: Path, tests: str, conftest: str = CONFTEST) -> subprocess.CompletedProcess[str]:
    (project / "conftest.py").write_text(textwrap.dedent(conftest))
    (project / "test_it.py").write_text(textwrap.dedent(tests))
    (project / "pytest.ini").write_text("[pytest]\ntimeout = 60\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", "test_it.py"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=100, check=False)


# The source is so long that the garbage collector runs while Python parses it.
GARBAGE = """
import ast, gc
def collected(phase, info):
    "Parses, as asyncio does when it logs the exception of a task that the collector has found."
    ast.parse("one + two")
def test_broken():
    gc.callbacks.append(collected)
    assert False, "for all to see"
def test_fine():
    gc.callbacks.remove(collected)
""" + "\n".join(f"def unused_{number}(a, b):\n    return [a + {number}, b * {number}]" for number in range(1000))


def test_garbage_that_parses_in_the_midst_of_a_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, GARBAGE)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "for all to see" in done.stdout
    assert "could not make its report" not in done.stdout
    assert done.returncode == 1


def test_the_same_garbage_ends_a_run_without_the_hook_before_python_3_13(tmp_path: Path) -> None:
    """Check that the test of failing reports can fail without the hook of conftest.py. If a run without the hook no
    longer fails, the first half of the hook can be removed."""
    done = run(tmp_path, GARBAGE, conftest="")
    if sys.version_info < (3, 13):
        assert "INTERNALERROR" in done.stdout, done.stdout
        assert "recursion depth mismatch" in done.stdout
    else:
        assert "1 failed, 1 passed" in done.stdout, done.stdout


def test_an_exception_while_the_report_is_made(tmp_path: Path) -> None:
    tests = """
        class Odd(Exception):
            def __str__(self):
                return "what happened"
        def test_broken(request):
            def explode(*args, **keywords):
                raise ValueError("no report today")
            request.node.repr_failure = explode
            print("said before")
            raise Odd
        def test_fine():
            pass
    """
    done = run(tmp_path, tests)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    for words in ("Odd: what happened", "no report today", "said before"):
        assert words in done.stdout
    assert done.returncode == 1
