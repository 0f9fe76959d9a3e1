"""Runs of the library's pipelines on a secured cluster: each job hands the client keys on, and no file has them."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace_pipelines
from headrace.settings import BOOTSTRAP_VARIABLE
from headrace_core.errors import HeadraceError, InvalidConfigError
from headrace_pipelines import cli
from headrace_pipelines.access import CONFIG_VARIABLE, Access, add_arguments, given_access
from headrace_pipelines.commands import _access
from headrace_pipelines.members import Member
from headrace_pipelines.registry import LIBRARY, Pipeline
from headrace_pipelines.runs import find, recorded, serving
from headrace_pipelines.sites import Site
from tests.worlds.waiting import until

SECRET = "pl4nted-secret"
FILE = f"""bootstrap.servers=file:1
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="{SECRET}";
"""
#: cdc always starts a cluster of its own.
RUN = [pipeline.name for pipeline in LIBRARY if pipeline.name != "cdc"]
FEW = {
    "clickstream": [], "fraud": ["--rate", "10", "--seconds", "1"], "lake": [], "logs": [],
    "orders": ["--orders", "10"], "scaling": ["--scenes", "members", "--rate", "10"],
    "telemetry": ["--devices", "5", "--minutes", "1"],
}  # fmt: skip
PACKAGE = Path(headrace_pipelines.__file__).parent


class Reached(HeadraceError):
    """The run has come to its queries or processes."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(BOOTSTRAP_VARIABLE, raising=False)
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(FILE)
    return path


def accesses(values: Any) -> list[Access]:
    """How the arguments of a call reach the cluster."""
    found = []
    for value in values:
        if isinstance(value, Access):
            found.append(value)
        elif isinstance(value, Site):
            found.append(value.access)
        elif isinstance(getattr(value, "_access", None), Access):  # the thread that sends
            found.append(value._access)
    return found


def run_to_its_job(name: str, monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[Access]:
    """Run a pipeline up to its queries, without Spark and without a cluster."""
    job = importlib.import_module(f"headrace_pipelines.{name}.job")
    found: list[Access] = []

    def reached(*values: Any, **more: Any) -> None:
        found.extend(accesses([*values, *more.values()]))
        raise Reached("far enough")

    if hasattr(job, "local_spark"):
        monkeypatch.setattr(job, "local_spark", lambda *_, **__: contextlib.nullcontext(object()))
    for made in ("replace_topics", "_create_topics"):
        if hasattr(job, made):
            monkeypatch.setattr(job, made, lambda access, *_, **__: found.extend(accesses([access])))
    if name == "scaling":
        monkeypatch.setattr(job, "Admin", lambda keys: contextlib.nullcontext(keys))
        monkeypatch.setattr(job.Player, "play", lambda self, *_: reached(self.access))
    elif name == "lake":
        monkeypatch.setattr(job.Job, "run", lambda self: reached(self._site))
    else:
        whole = job.Job.__init__

        def made_of(self: Any, *values: Any, **more: Any) -> None:
            whole(self, *values, **more)
            found.extend(accesses([*values, *more.values()]))

        monkeypatch.setattr(job.Job, "__init__", made_of)
        monkeypatch.setattr(job.Job, "stream", lambda self, *values, **_: reached(*values))
    monkeypatch.chdir(Path(flags[-1]))
    assert cli.main(["run", name, *FEW[name], *flags[:-1], "--out", str(Path(flags[-1]) / "out")]) == 1
    return found


@pytest.mark.parametrize("name", RUN)
def test_a_job_hands_the_keys_on_and_no_file_of_the_run_has_them(
    name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_to_its_job(name, monkeypatch, "--command-config", str(file), "-X", "linger.ms=7ms", str(tmp_path))
    said = capsys.readouterr()
    assert "failed: " in said.err
    assert "far enough" in said.err
    assert len(found) >= 2, "the topics, and the queries or processes"
    for access in found:
        assert access.servers == "file:1"
        assert SECRET in access.keys["sasl.jaas.config"]
        assert access.keys["linger.ms"] == "7"
    run = find(tmp_path / "out")
    assert run is not None
    assert (run.bootstrap_servers, run.flags["--bootstrap-servers"]) == ("file:1", "file:1")
    assert SECRET not in said.out + said.err
    assert not [
        path for path in (tmp_path / "out").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("name", RUN)
def test_without_a_flag_a_run_starts_a_cluster_without_keys(
    name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment names no cluster, because a run replaces topics."""

    class Started:
        bootstrap_servers = "own:1"

        def __init__(self, **_: Any) -> None: ...

        def __enter__(self) -> Started:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "environment:1")
    monkeypatch.setattr("headrace_pipelines.places.LocalCluster", Started)
    found = run_to_its_job(name, monkeypatch, str(tmp_path))
    assert found
    assert {(access.servers, len(access.keys)) for access in found} == {("own:1", 0)}


def test_the_command_line_names_the_cluster_of_a_run(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "environment:1")
    access = given_access(parser.parse_args(["--command-config", str(file)]))
    assert access is not None
    assert access.servers == "file:1", "not the variable's, whose topics it would replace"
    with pytest.raises(InvalidConfigError, match="so name its cluster"):
        given_access(parser.parse_args(["-X", "linger.ms=5"]))


def test_a_run_is_not_continued_on_another_cluster(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--command-config", str(file), str(tmp_path))
    run_to_its_job("fraud", monkeypatch, *flags)
    file.write_text(FILE.replace("file:1", "other:1"))
    capsys.readouterr()
    run_to_its_job("fraud", monkeypatch, *flags)
    assert "other flags: --bootstrap-servers file:1 (now other:1)" in capsys.readouterr().err


def test_status_and_replay_take_no_keys_of_the_environment_to_the_runs_own_cluster(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    fraud, own = next(each for each in LIBRARY if each.name == "fraud"), Pipeline("own", "of a user", "own.job")

    def keys(pipeline: Pipeline, flags: dict[str, str], *words: str) -> tuple[str, bool] | None:
        with recorded(tmp_path, pipeline.name, flags, restart=True):
            serving(tmp_path, "run:1")
            access = _access(pipeline, find(tmp_path), parser.parse_args(words))
        return access and (access.servers, bool(access.keys))

    assert keys(fraud, {"--bootstrap-servers": "None"}) == ("run:1", False)
    assert keys(fraud, {"--bootstrap-servers": "run:1"}) == ("run:1", True)
    assert keys(own, {"--bootstrap-servers": "None"}) == ("run:1", True)
    assert keys(fraud, {}, "-b", "flag:1") == ("flag:1", True)
    assert keys(fraud, {}, "-X", "bootstrap.servers=typed:1") == ("typed:1", True)
    assert keys(fraud, {}, "--command-config", str(file)) == ("file:1", True)
    assert _access(fraud, None, parser.parse_args([])) is None


MEMBER = """
from headrace_pipelines.members import owner_access, owner_ended
access = owner_access()
ended = owner_ended()
print(access.servers, dict(access.keys), flush=True)
ended.wait()
"""


def is_member(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # also of a zombie that another test has left to this worker
        return MEMBER in process.cmdline()
    return False


def test_a_member_gets_the_keys_and_no_list_of_processes_shows_them(tmp_path: Path) -> None:
    access, log = Access("h:1", {"sasl.password": SECRET, "ssl.truststore.certificates": "x" * 100_000}), tmp_path / "m"
    member = Member("member", [sys.executable, "-c", MEMBER], log, access)
    try:
        until(lambda: log.read_text().count(SECRET) == 1, "the member has the keys")
        (process,) = filter(is_member, psutil.Process().children())
        assert SECRET not in str(process.cmdline())
        assert SECRET not in str(process.environ())
        process.kill()

        def is_started_again() -> bool:
            member.look()
            return member.deaths == 1 and log.read_text().count(SECRET) == 2

        until(is_started_again, "it is started again")
    finally:
        member.stop()
    assert member.exit_code == 0
    assert os.listdir(tmp_path) == ["m"]


CLIENTS = {"Admin": "admin", "Producer": "producer", "Consumer": "consumer"}


def calls(package: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((PACKAGE / package).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield f"{package}/{path.name}:{node.lineno}", node


@pytest.mark.parametrize("package", [*RUN, "cdc"])
def test_each_client_and_each_source_of_a_pipeline_is_made_from_its_access(package: str) -> None:
    """A client that a job makes by the address alone would fail on a secured cluster."""
    seen = 0
    names: dict[str, str] = {}
    for path in sorted((PACKAGE / package).glob("*.py")):  # consuming = access.consumer() | {...}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = ast.unparse(node.value)
    for where, call in calls(package):
        text = ast.unparse(call.func)
        if text in CLIENTS:
            seen += 1
            given = ast.unparse(call.args[0]) if call.args else ""
            assert f"access.{CLIENTS[text]}()" in names.get(given, given), where
        assert "bootstrap.servers" not in ast.unparse(call), where
        assert not any(word.arg == "bootstrap_servers" for word in call.keywords), where
    assert seen
