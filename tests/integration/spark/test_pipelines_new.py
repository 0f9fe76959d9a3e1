"""``headrace-pipelines new``: the skeleton is a pipeline that runs, with a test that passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, NewTopic, Producer
from headrace_pipelines import cli

pytestmark = pytest.mark.timeout(500)


@pytest.fixture
def skeleton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new pipeline ``parcels`` in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", "parcels"]) == 0
    return tmp_path / "parcels"


def test_a_new_pipeline_is_listed_and_has_no_trace_of_the_skeleton(
    skeleton: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert cli.main(["list", "-o", "json"]) == 0
    (about,) = [each["about"] for each in json.loads(capsys.readouterr().out) if each["name"] == "parcels"]
    assert "topic parcels" in about
    made = {path.name: path.read_text() for path in skeleton.iterdir() if path.is_file()}
    assert set(made) == {"README.md", "__init__.py", "job.py", "rows.py", "test_parcels.py"}
    assert [name for name, text in made.items() if "skeleton" in text] == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("my-pipeline", "is not a valid name"),
        ("class", "is not a valid name"),
        ("json", "exists"),
        ("clickstream", "exists"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["new", name]) == 1
    assert why in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_exists_is_left_alone(skeleton: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (skeleton / "rows.py").write_text("mine")
    assert cli.main(["new", "parcels"]) == 1
    assert "exists" in capsys.readouterr().err
    assert (skeleton / "rows.py").read_text() == "mine"


@pytest.mark.long
def test_the_test_of_a_new_pipeline_passes(skeleton: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "parcels"],
        cwd=skeleton.parent, env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "2 passed" in done.stdout


@pytest.fixture
def status(headrace: Any, capsys: pytest.CaptureFixture[str]) -> Callable[[], dict[str, Any]]:
    """``status()``: the document of ``headrace-pipelines status parcels``."""

    def reading() -> dict[str, Any]:
        capsys.readouterr()
        assert cli.main(["status", "parcels", "--bootstrap-servers", headrace.bootstrap_servers, "-o", "json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return reading


@pytest.fixture
def run(headrace: Any, skeleton: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """``run(flag, ...)``: the command that runs ``parcels``, whose topic has three records."""
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        names = ["parcels", "parcels.dead-letters", "parcels-clean"]
        admin.delete_topics([name for name in names if name in admin.list_topics()])
        admin.create_topics([NewTopic("parcels", partitions=1)])
    with Producer(bootstrap_servers=headrace.bootstrap_servers) as producer:
        for value in (b'{"user":"ann","amount":1}', b"no JSON", b'{"user":"bob","amount":2}'):
            producer.send("parcels", value).result(60)
    begun = []

    def running(*flags: str) -> subprocess.Popen[str]:
        where = ["--bootstrap-servers", headrace.bootstrap_servers, "-o", "json"]
        begun.append(
            subprocess.Popen(
                [sys.executable, "-m", "headrace_pipelines", "run", "parcels", *where, *flags],
                cwd=skeleton.parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield running
    for each in begun:
        each.kill()
        each.communicate()


@pytest.mark.long
def test_a_new_pipeline_runs_to_the_end_of_its_topics(run: Any, status: Callable[[], dict[str, Any]]) -> None:
    running = run("--once")
    out, err = running.communicate(timeout=400)
    assert running.returncode == 0, out[-3000:] + err[-3000:]
    assert json.loads(out) == {"clean": {"batches": 1, "rows": 3}}
    seen = status()
    assert (seen["state"], seen["pid"]) == ("done", None)
    (query,) = seen["queries"]
    assert (query["query"], query["batch"], query["offsets"]) == ("clean", 0, {"parcels": {"0": 3}})


@pytest.mark.long
def test_a_pipeline_that_was_killed_before_its_first_batch_begins_again(
    run: Any, skeleton: Path, status: Callable[[], dict[str, Any]]
) -> None:
    checkpoint = skeleton.parent / "build/pipelines/parcels/checkpoints/clean"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"7b9e5b0c-6d0c-4c52-8f5e-0a4b1f0f5a11"}')
    (checkpoint / "offsets/.0.5e0c.tmp").write_text("v1")  # Spark refuses a directory with this file
    running = run("--once")
    out, err = running.communicate(timeout=400)
    assert running.returncode == 0, out[-3000:] + err[-3000:]
    assert status()["queries"][0]["offsets"] == {"parcels": {"0": 3}}


@pytest.mark.long
def test_a_new_pipeline_runs_until_it_is_stopped(run: Any, status: Callable[[], dict[str, Any]]) -> None:
    running = run()
    lags: list[int | None] = []
    while lags != [0]:
        assert running.poll() is None, running.communicate()
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(1)
        lags = [query["lag_records"] for query in status()["queries"]]
    assert cli.main(["stop", "parcels"]) == 0
    out, err = running.communicate(timeout=60)
    assert running.returncode == 143
    assert json.loads(out) == {
        "pipeline": "parcels", "stopped": True, "queries": {"clean": {"batches": 1, "rows": 3}},
    }  # fmt: skip
    assert "3 rows, lag 0.0 s (0 records), 0 s left, watermark none, state 0 rows" in err
    assert status()["state"] == "stopped"
