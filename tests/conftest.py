"""Code that all tests share: one seed for the random choices of a run, and hooks by which a failure never ends the run.

`HEADRACE_TEST_SEED=N` repeats a run's random choices; without the variable each run has a new seed. The header of the
run shows the seed. A failed test that used the seed prints the test's own seed.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import sys
import zlib
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.errors import HypothesisException

from headrace_core.testing import verdicts

# No time limit per example: on a machine with two busy cores a limit would measure other processes. The parent profile
# is named explicitly, because with CI=true the default parent is Hypothesis's profile "ci", which ignores the seed of
# the day.
settings.register_profile(
    "headrace",
    settings.get_profile("default"),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "headrace"))

_SEED = "HEADRACE_TEST_SEED"
#: "1/2": only every second test, from the first on. CI sets this variable when it is late (tools/ci_steps.sh).
_PART = "HEADRACE_TEST_PART"
_FAILED_EXAMPLE = pytest.StashKey[AssertionError]()

# A shell starts background jobs (`make test &`, nohup) with SIGINT ignored, and child processes inherit this setting.
# Restore Python's handler of SIGINT: otherwise Ctrl-C has no effect in processes that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Tests with Spark share one worker, because two Spark drivers at once leave no processor for other tests.
_SPARK = ("tests/integration/spark/", "tests/docs/test_documented_spark")
#: Three lists: tests that wait for processes more than they compute, tests that only compute, and the longest tests of
#: both kinds.
_WAIT = ("tests/docs/", "tests/integration/", "tests/system/", "tests/scenarios/cli/", "tests/scenarios/controller/")
_COMPUTE = ("tests/property/", "tests/simulation/", "tests/scenarios/log/", "tests/scenarios/broker/", "tests/fuzz/")
_LONG = (
    *_SPARK,
    "tests/docs/test_documented_runs",
    "tests/integration/cli/test_cli_quorum",
    "tests/system/",
    "tests/property/log_compaction/",
    "tests/property/log/",
)


def pytest_configure(config: pytest.Config) -> None:
    # The process that starts the workers of pytest-xdist sets the seed, and the workers inherit it.
    seed = int(os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(2**31))))
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = seed
    # a test of a benchmark does not need to wait until the disk is idle
    os.environ.setdefault("HEADRACE_BENCH_SETTLE", "0")
    # The tests start a dozen Spark drivers, which live for seconds. The JVM's second compiler would take half of the
    # drivers' CPU time, and the compiled code would pay off only in longer runs. With one compiler the code cache has
    # 48 MB by default, which an hour fills; then nothing is compiled any more. So it has the size of both compilers.
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, give all tests that start Spark to one worker."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneForSpark(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "spark" if nodeid.startswith(_SPARK) else str(super()._split_scope(nodeid))

    return OneForSpark(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch garbage collection off while pytest collects the tests, and exempt the collected tests from later garbage
    collections. Ten thousand tests and their modules stay in memory until the end of the run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # run after `-m` and `-k` have selected tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the part of the tests that ``HEADRACE_TEST_PART`` names. Then order the tests so that some workers wait
    for clusters while others compute. Long tests begin early."""
    if part := os.environ.get(_PART):
        number, of = map(int, part.split("/"))
        config.hook.pytest_deselected(items=[item for at, item in enumerate(items) if at % of != number - 1])
        items[:] = items[number - 1 :: of]
    if not hasattr(config, "workerinput"):
        return
    root = config.rootpath

    def place(item: pytest.Item) -> tuple[int, str]:
        file = item.path.relative_to(root).as_posix()
        return next((at for at, start in enumerate(_LONG) if file.startswith(start)), len(_LONG)), file

    files: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=place):
        files.setdefault(place(item)[1], []).append(item)
    waiting = [file for file in files if file.startswith(_WAIT)]
    computing = [file for file in files if file.startswith(_COMPUTE)]
    ranks = {file: (at + 0.5) / len(kind) for kind in (waiting, computing) for at, file in enumerate(kind)}
    # The short tests, which no list names, run last, so that the workers end at nearly the same time.
    items[:] = [item for file in sorted(files, key=lambda file: ranks.get(file, 1.0)) for item in files[file]]


def pytest_report_header() -> str:
    part = f", part {os.environ[_PART]} of the tests" if os.environ.get(_PART) else ""
    return f"random choices: {_SEED}={os.environ[_SEED]}{part}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Note an example of a Hypothesis test that fails. Hypothesis then looks for a smaller example, for up to five
    minutes, so the time limit may end the test before Hypothesis reports the failure."""
    hypothesis_test = getattr(getattr(item, "obj", None), "hypothesis", None)
    if hypothesis_test is None:
        return (yield)
    of_examples = hypothesis_test.inner_test

    @functools.wraps(of_examples)
    def noting(*arguments: Any, **keywords: Any) -> Any:
        try:
            return of_examples(*arguments, **keywords)
        except HypothesisException:  # such as a failed assume()
            raise
        except Exception as error:
            kind = verdicts.kind_of(error)
            if kind != verdicts.TIME_OUT and _FAILED_EXAMPLE not in item.stash:
                text = f"an example has failed: {type(error).__name__}: {error}"
                is_of_safety = kind == verdicts.SAFETY
                item.stash[_FAILED_EXAMPLE] = (verdicts.SafetyViolation if is_of_safety else AssertionError)(text)
            raise

    hypothesis_test.inner_test = noting
    try:
        return (yield)
    finally:
        hypothesis_test.inner_test = of_examples


def _record(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return
    mark = item.get_closest_marker("timeout")
    limit_s = float(mark.args[0] if mark is not None and mark.args else item.config.getini("timeout") or "inf")
    error, cut_short = call.excinfo.value, call.duration >= limit_s
    if cut_short and (example := item.stash.get(_FAILED_EXAMPLE, None)) is not None:
        item.add_report_section(call.when, "example", str(example))
        error = example
    verdicts.record(item.nodeid, error, cut_short=cut_short)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Protect the report of a failed test from exceptions, because an exception there would end the run. pytest parses
    the failing file for its traceback. A garbage collection during the report can find a task with an unread exception.
    asyncio logs the exception with a traceback, which parses a file too. CPython before 3.13 has one counter for all
    parsers, and fails if one parser runs inside another ("SystemError: AST constructor recursion depth mismatch", issue
    106905 of CPython). Garbage collection is therefore off during the report. pytest-timeout cancels the alarm of a
    test only after the report, so the alarm is cancelled here first.

    The cause of the failure is recorded for tools/test_again.py: only timed-out tests may run again.
    """
    if call.excinfo is None:
        report = yield
        _record(item, call)  # only now does pytest collect the failures of unittest.TestCase tests
        return report
    _record(item, call)
    hooks: Any = item.config.hook
    if hasattr(hooks, "pytest_timeout_cancel_timer"):
        hooks.pytest_timeout_cancel_timer(item=item)
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    except Exception as error:  # noqa: BLE001 - whatever it is
        said = f"{call.excinfo.exconly()}\n(pytest could not make its report: {error!r})"
        return pytest.TestReport(
            item.nodeid,
            item.location,
            dict.fromkeys(item.keywords, 1),
            "failed",
            said,
            call.when,  # type: ignore[arg-type]  # "collect" is for reports of another kind
            [(f"Captured {key}", content) for _, key, content in item._report_sections],
            call.duration,
            call.start,
            call.stop,
        )
    finally:
        if was_collecting:
            gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Stop an in-process cluster at the end of its file. A cluster that continues to run would use classes that the
    next file patches."""
    yield
    if nextitem is None or nextitem.path != item.path:
        running = _clusters_in_here()
        assert not running, f"{item.path.name} leaves a cluster running within this process: {running}"


def _clusters_in_here() -> list[object]:
    """The running clusters of mode "inprocess". Clusters without a reference are garbage-collected first."""
    io_thread = sys.modules.get("headrace.engine.io_thread")
    if io_thread is None or not io_thread._last_to_leave:
        return []
    gc.collect()
    return list(io_thread._last_to_leave)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed for this test, derived from the run's seed. The seed is printed, so that the report of a failure shows
    it."""
    own = zlib.crc32(f"{os.environ[_SEED]}:{request.node.nodeid}".encode())
    print(f"seed of this test: {own} ({_SEED}={os.environ[_SEED]})")
    return own


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers from this test's seed."""
    return random.Random(seed)
