"""The command ``headrace-pipelines``: its lists, its refusals, and what it prints at the end."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql.types import TimestampType

from headrace.errors import HeadraceError
from headrace_pipelines import cli
from headrace_pipelines.errors import StoppedError
from headrace_pipelines.local_spark import local_spark, settings_of
from headrace_pipelines.outcome import Outcome
from headrace_pipelines.places import local_master
from headrace_pipelines.registry import LIBRARY, Pipeline
from headrace_pipelines.scaling.scenes import NAMES
from headrace_pipelines.stopping import Stop
from headrace_spark.java import find_java
from headrace_spark.session import JVM_WARNINGS_TO_STDERR


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pipeline ``small`` whose run a test sets."""
    module: Any = types.ModuleType("small_job")
    module.SOURCES = ()
    module.add_arguments = lambda parser: parser.add_argument("--rows", type=int, default=1)
    module.run = lambda arguments, out, show, stop: Outcome({"rows": arguments.rows}, {"seconds": 1})
    monkeypatch.setitem(sys.modules, "small_job", module)
    monkeypatch.setattr(cli, "pipelines", lambda: {"small": Pipeline("small", "a small one", "small_job")})
    return module


def test_list_names_the_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out.startswith("clickstream  ")
    assert cli.main(["list", "-o", "json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [each.name for each in LIBRARY]


@pytest.mark.parametrize("pipeline", LIBRARY, ids=lambda each: each.name)
def test_each_pipeline_names_its_source_topics(pipeline: Pipeline) -> None:
    """``replay`` needs them."""
    assert all(isinstance(topic, str) for topic in pipeline.job().SOURCES)


def test_a_pipeline_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "clickstraem"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "there is no pipeline 'clickstraem'; the pipelines are clickstream, " in said
    assert "headrace-pipelines new NAME" in said


def test_a_directory_that_is_no_pipeline_gets_another_message_than_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package without a docstring is left out of the list; the error says so."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parcels").mkdir()
    for name in ("__init__.py", "job.py"):
        (tmp_path / "parcels" / name).write_text("")
    with pytest.raises(SystemExit):
        cli.main(["status", "parcels"])
    assert "it needs job.py, and __init__.py with a docstring" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "status", "stop", "replay"])
def test_the_help_of_a_command_says_where_the_flags_are(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert f"headrace-pipelines {command} NAME --help" in capsys.readouterr().out


def test_the_help_of_scaling_breaks_no_name_of_a_scene(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["run", "scaling", "--help"])
    assert set(NAMES) <= set(re.findall(r"\w+", capsys.readouterr().out))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "orders", "--rate", "fast"], "--rate: fast: must be a number above 0"),
        (["run", "orders", "--seed", "1.5"], "--seed: 1.5: must be a whole number, 0 or more"),
    ],
)
def test_a_flag_that_is_no_number_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(words)
    assert message in capsys.readouterr().err


def test_a_run_ends_with_its_summary_and_writes_the_same(
    job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("out").mkdir()
    assert cli.main(["run", "small", "--out", str(tmp_path / "out"), "--rows", "7"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"rows": 7}
    assert (tmp_path / "out" / "summary.json").read_text() == last + "\n"
    assert json.loads((tmp_path / "out" / "details.json").read_text()) == {"seconds": 1}


def test_with_json_only_the_summary_is_on_stdout(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: Any, out: Path, show: Any, stop: Any) -> Outcome:
        show.step("working")
        return Outcome({"rows": 1})

    job.run = run
    assert cli.main(["run", "small", "--out", str(tmp_path), "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"rows": 1}
    assert "working" in shown.err


def test_a_failed_run_says_why_and_writes_no_summary(
    job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: Any) -> Outcome:
        raise HeadraceError("the topic is gone")

    job.run = run
    assert cli.main(["run", "small", "--out", str(tmp_path)]) == 1
    assert "small failed: " in capsys.readouterr().err
    assert not (tmp_path / "summary.json").exists()


def test_a_stopped_run_says_how_far_it_came(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(arguments: Any, out: Path, show: Any, stop: Stop) -> Outcome:
        with stop.after_batch():
            signal.raise_signal(signal.SIGTERM)
            assert stop.is_asked
            raise StoppedError({"sent": 3})

    job.run = run
    assert cli.main(["run", "small", "--out", str(tmp_path)]) == 143
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last) == {"pipeline": "small", "stopped": True, "sent": 3}
    assert (tmp_path / "summary.json").read_text() == last + "\n", "not the summary of an earlier run"


def test_sigterm_before_the_streams_ends_the_command_at_once(job: Any, tmp_path: Path) -> None:
    job.run = lambda *arguments: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "small", "--out", str(tmp_path)])
    assert ended.value.code == 143


def test_warnings_of_the_jvm_do_not_go_to_stdout() -> None:
    """`headrace-pipelines run -o json` prints one JSON document; a JVM writes its own warnings to stdout by default."""
    assert " ".join(JVM_WARNINGS_TO_STDERR) in settings_of("local[2]")["spark.driver.extraJavaOptions"]
    java = str(find_java() / "bin" / "java")
    said = [
        subprocess.run([java, *options, "-version"], capture_output=True, text=True, timeout=60, check=True)
        for options in (["-Xlog:all=info"], [each.replace("warning", "info") for each in JVM_WARNINGS_TO_STDERR])
    ]
    assert "[info]" in said[0].stdout
    assert said[1].stdout == ""
    assert "[info]" in said[1].stderr
    code_cache = [java, "-XX:+PrintCodeCache", "-version"]  # as in the warning of a full code cache
    plain = subprocess.run(code_cache, capture_output=True, text=True, timeout=60, check=True)
    code_cache[1:1] = JVM_WARNINGS_TO_STDERR
    quiet = subprocess.run(code_cache, capture_output=True, text=True, timeout=60, check=True)
    assert ("max_used" in plain.stdout, quiet.stdout, "max_used" in quiet.stderr) == (True, "", True)


def test_executors_on_this_machine_are_quiet_and_listen_on_the_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert "spark.executor.extraJavaOptions" not in settings_of("local[2]")
    assert "SPARK_LOCAL_IP" not in os.environ
    settings = settings_of("local-cluster[2,1,1024]")
    assert settings["spark.executor.extraJavaOptions"] == settings["spark.driver.extraJavaOptions"]
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.fixture
def _own_zone() -> Iterator[None]:
    """Later tests of this process have the machine's zone again."""
    before = os.environ.get("TZ")
    yield
    os.environ.pop("TZ", None)
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("zone", [None, "America/New_York"])
@pytest.mark.usefixtures("_own_zone")
def test_times_of_a_run_do_not_depend_on_the_zone_of_the_machine(
    zone: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``collect`` makes timestamps in the zone of the process, without naming it."""
    if zone is None:
        monkeypatch.delenv("TZ", raising=False)
    else:
        monkeypatch.setenv("TZ", zone)
    time.tzset()
    before = TimestampType().fromInternal(0)
    with local_spark("zone", MagicMock()):
        assert TimestampType().fromInternal(0) == datetime(1970, 1, 1)
        assert os.environ["TZ"] == "UTC", "of the workers"
    assert TimestampType().fromInternal(0) == before
    assert os.environ.get("TZ") == zone


@pytest.mark.parametrize("text", ["local", "local[1]", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"])
def test_masters_on_this_machine(text: str) -> None:
    assert local_master(text) == text


@pytest.mark.parametrize(
    "text", ["", "local[0]", "local[x]", "local[2", "local[2] ", "localhost", "local-cluster[2,1]", "yarn"]
)
def test_other_masters_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give local"):
        local_master(text)
