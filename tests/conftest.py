"""What all tests share. The gate is deterministic: fixed seeds, a fixed choice of tests, nothing run twice.

`HEADRACE_TEST_SEED=N` gives a run other random choices (`make search` does); a failed test prints its own seed.

A folder named like one of ``NEEDS`` holds tests that need it, and is only collected when the command line names a
folder or file of that name: `tools/test.sh tests/integration/kafka_protocol/kafka`.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.worlds.this_process import examples

_SEED = "HEADRACE_TEST_SEED"
#: What tests may need beyond Python and Java, or `long`: minutes.
NEEDS = frozenset({"kafka", "kerberos", "browser", "long"})

# No time limit per example: it would judge the machine. The gate derives Hypothesis's examples from each test's code;
# a run with a seed of its own draws others.
for _profile, _derandomize in (("gate", True), ("search", False)):
    settings.register_profile(
        _profile,
        settings.get_profile("default"),
        deadline=None,
        database=None,
        derandomize=_derandomize,
        max_examples=examples(100),
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("gate" if os.environ.setdefault(_SEED, "1") == "1" else "search")

# A shell starts background jobs (`make test &`, nohup) with SIGINT ignored, and child processes inherit this setting.
# Restore Python's handler of SIGINT: otherwise Ctrl-C has no effect in processes that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Tests with Spark share one worker, because two Spark drivers at once leave no processor for other tests.
_SPARK = ("tests/integration/spark/", "tests/docs/long/test_documented_spark", "tests/journeys/test_spark")
#: Three lists: tests that wait for processes more than they compute, tests that only compute, and the longest tests of
#: both kinds.
_WAIT = ("tests/docs/", "tests/integration/", "tests/system/", "tests/journeys/")
_COMPUTE = ("tests/property/", "tests/exhaustive/", "tests/simulation/", "tests/scenarios/", "tests/fuzz/")
_LONG = (
    *_SPARK,
    "tests/docs/test_documented_runs",
    "tests/integration/cli/test_cli_quorum",
    "tests/system/",
    "tests/journeys/",
    "tests/property/log_compaction/",
    "tests/property/log/",
)


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = int(os.environ[_SEED])
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
    """Order the tests so that some workers wait for clusters while others compute. Long tests begin early."""
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
    return f"random choices: {_SEED}={os.environ[_SEED]}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Protect the report of a failed test from exceptions, because an exception there would end the run. pytest parses
    the failing file for its traceback. A garbage collection during the report can find a task with an unread exception.
    asyncio logs the exception with a traceback, which parses a file too. CPython before 3.13 has one counter for all
    parsers, and fails if one parser runs inside another ("SystemError: AST constructor recursion depth mismatch", issue
    106905 of CPython). Garbage collection is therefore off during the report. pytest-timeout cancels the alarm of a
    test only after the report, so the alarm is cancelled here first."""
    if call.excinfo is None:
        return (yield)
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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    needed = collection_path.name in NEEDS and collection_path.is_dir()
    return True if needed and not any(collection_path.name in Path(each).parts for each in config.args) else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(_seed_of(item.nodeid))  # for a test that uses the module's functions


def _seed_of(nodeid: str) -> int:
    return zlib.crc32(f"{os.environ[_SEED]}:{nodeid}".encode())


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
    own = _seed_of(request.node.nodeid)
    print(f"seed of this test: {own} ({_SEED}={os.environ[_SEED]})")
    return own


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Random numbers from this test's seed."""
    return random.Random(seed)
