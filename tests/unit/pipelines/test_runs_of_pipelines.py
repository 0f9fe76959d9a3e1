"""Runs of pipelines in their directories: status, stop, and what a signal reaches."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines import cli, runs
from headrace_pipelines.checkpoints import checkpoints
from headrace_pipelines.errors import AlreadyRunningError, PipelineFailedError
from headrace_pipelines.places import Places
from headrace_pipelines.runs import _write, find, prepared, recorded, serving
from headrace_pipelines.show import Show

#: A run of ``clickstream`` whose job waits for SIGTERM, without Spark.
WAITING = """
import sys, types
from headrace_pipelines import cli, registry
from headrace_pipelines.errors import StoppedError

def run(arguments, out, show, stop):
    with stop.after_batch():
        print("running", flush=True)
        assert stop.wait(60)
        raise StoppedError({"sent": 3})

job = types.ModuleType("waiting_job")
job.SOURCES, job.add_arguments, job.run = (), lambda parser: None, run
sys.modules["waiting_job"] = job
cli.pipelines = lambda: {"clickstream": registry.Pipeline("clickstream", "waits", "waiting_job")}
sys.exit(cli.main(["run", "clickstream", "--out", sys.argv[1]]))
"""


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """The exit code, the JSON on stdout (None: there is none), and stderr."""
    code = cli.main([*words, "-o", "json"])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_stop_ends_a_run_and_status_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    where = ("clickstream", "--out", str(out))
    assert command(capsys, "status", *where)[1]["state"] is None
    with subprocess.Popen([sys.executable, "-c", WAITING, str(out)], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "running\n"
        code, seen, _ = command(capsys, "status", *where)
        assert (code, seen["state"], seen["pid"]) == (0, "running", running.pid)
        with (
            pytest.raises(AlreadyRunningError, match=f"headrace-pipelines stop clickstream --out {out}"),
            recorded(out, "clickstream"),
        ):
            pass
        code, seen, _ = command(capsys, "stop", *where, "--timeout", "60")
        assert (code, seen["state"], seen["pid"]) == (0, "stopped", None)
        assert json.loads(running.stdout.read().splitlines()[-1])["stopped"]
    assert running.returncode == 143
    code, seen, said = command(capsys, "stop", *where)
    assert (code, seen) == (1, None)
    assert f"no pipeline runs in {out}" in said


@pytest.mark.parametrize(
    ("flags", "asked"), [({"--bootstrap-servers": "127.0.0.1:1"}, "127.0.0.1:1"), ({}, None)], ids=["given", "own"]
)
def test_after_a_run_status_asks_only_a_cluster_that_did_not_end_with_it(
    flags: dict[str, str], asked: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP_SERVERS", raising=False)
    with recorded(tmp_path, "clickstream", flags) as ends:
        serving(tmp_path, "127.0.0.1:1")
        ends("stopped")
    clusters = []

    def lags(access: Any, *_: object) -> dict[str, object]:
        clusters.append(None if access is None else access.servers)
        return {}

    monkeypatch.setattr("headrace_pipelines.commands._lags", lags)
    assert command(capsys, "status", "clickstream", "--out", str(tmp_path))[1]["state"] == "stopped"
    assert clusters == [asked]


def test_a_process_that_has_the_pid_of_a_dead_run_gets_no_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(tmp_path, "clickstream"):
        run = find(tmp_path)
    assert run is not None
    assert run.process.pid == os.getpid()
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        earlier = dataclasses.replace(run.process, started=run.process.started + "0")
        _write(tmp_path, dataclasses.replace(run, process=earlier, end=None, ended_ms=None))
        assert command(capsys, "status", "clickstream", "--out", str(tmp_path))[1]["state"] == "died"
        assert command(capsys, "stop", "clickstream", "--out", str(tmp_path))[0] == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == []


def test_a_run_is_recorded_with_its_cluster_and_its_end(tmp_path: Path) -> None:
    with recorded(tmp_path, "clickstream") as ends:
        serving(tmp_path, "127.0.0.1:1")
        run = find(tmp_path)
        assert run is not None
        assert (run.state, run.bootstrap_servers) == ("running", "127.0.0.1:1")
        ends("done")
    run = find(tmp_path)
    assert run is not None
    assert (run.state, run.bootstrap_servers) == ("done", "127.0.0.1:1")
    with pytest.raises(RuntimeError, match="broken"), recorded(tmp_path, "clickstream"):
        raise RuntimeError("broken")
    run = find(tmp_path)
    assert run is not None
    assert run.state == "failed"


@pytest.mark.parametrize(("signalled", "end"), [(KeyboardInterrupt, "interrupted"), (SystemExit, "stopped")])
def test_a_signal_is_the_end_of_a_run_from_its_first_record_on(
    signalled: type[BaseException], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_write(directory: Path, run: runs.Run) -> None:
        monkeypatch.setattr(runs, "_write", _write)
        _write(directory, run)
        raise signalled

    monkeypatch.setattr(runs, "_write", first_write)
    with pytest.raises(signalled), recorded(tmp_path, "clickstream"):
        pytest.fail("the block runs")
    run = find(tmp_path)
    assert run is not None
    assert (run.state, run.ended_ms is None) == (end, False)


def test_a_second_signal_in_the_last_moment_of_a_run_does_not_hide_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users press Ctrl-C twice."""

    def interrupted() -> None:
        with recorded(tmp_path, "clickstream"):
            monkeypatch.setattr(runs, "_write", last_write)
            raise KeyboardInterrupt

    def last_write(directory: Path, run: runs.Run) -> None:
        signal.raise_signal(signal.SIGINT)
        _write(directory, run)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    run = find(tmp_path)
    assert run is not None
    assert run.state == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_before_the_first_record_of_a_run_keeps_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorded(tmp_path, "clickstream") as ends:
        ends("done")
    before = find(tmp_path)

    def first_write(directory: Path, run: runs.Run) -> None:
        monkeypatch.setattr(runs, "_write", _write)
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_write", first_write)
    monkeypatch.setattr(runs, "_now_ms", lambda: 1)
    with pytest.raises(KeyboardInterrupt), recorded(tmp_path, "clickstream"):
        pytest.fail("the block runs")
    assert find(tmp_path) == before


def test_a_signal_after_the_end_of_a_run_does_not_change_the_end(tmp_path: Path) -> None:
    def done_then_interrupted() -> None:
        with recorded(tmp_path, "clickstream") as ends:
            ends("done")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done_then_interrupted()
    run = find(tmp_path)
    assert run is not None
    assert run.state == "done"


FLAGS = {"--seed": "21"}


def run_once(directory: Path, end: str, *, restart: bool = False, flags: dict[str, str] = FLAGS) -> int:
    """A run of fraud with a checkpoint and a table; returns how many times it was continued."""
    with recorded(directory, "fraud", flags, restart=restart) as ends:
        continued = Places(directory).begin(Show(on_stderr=True), "table")
        if not continued:
            assert not (directory / "checkpoints").exists()
            assert not (directory / "table").exists()
            (directory / "checkpoints").mkdir()
            (directory / "table").touch()
            prepared(directory)
        assert (directory / "checkpoints").exists()
        ends(end)
    return continued


@pytest.mark.parametrize("end", ["stopped", "interrupted", "failed"])
def test_a_run_that_is_not_done_is_continued_until_it_is_done(tmp_path: Path, end: str) -> None:
    assert [run_once(tmp_path, each) for each in (end, end, "done", "done")] == [0, 1, 2, 0]


def test_a_run_that_died_is_continued_and_restart_begins_again(tmp_path: Path) -> None:
    run_once(tmp_path, "stopped")
    run = find(tmp_path)
    assert run is not None
    dead = dataclasses.replace(run.process, started=run.process.started + "0")
    _write(tmp_path, dataclasses.replace(run, process=dead, end=None, ended_ms=None))
    assert run_once(tmp_path, "stopped") == 1
    assert run_once(tmp_path, "stopped", restart=True) == 0


def test_a_run_without_topics_is_not_continued(tmp_path: Path) -> None:
    with recorded(tmp_path, "fraud", FLAGS):
        pass
    assert run_once(tmp_path, "done") == 0


def test_a_run_is_continued_with_the_same_flags_only(tmp_path: Path) -> None:
    run_once(tmp_path, "stopped")
    with pytest.raises(InvalidArgumentError, match=r"other flags: --seed 21 \(now 22\); .* --restart"):
        run_once(tmp_path, "stopped", flags={"--seed": "22"})
    assert run_once(tmp_path, "done") == 1


def test_a_replay_without_a_cluster_names_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = command(capsys, "replay", "clickstream", "--out", str(tmp_path), "--from", "-2h")
    assert code == 1
    assert "give --bootstrap-servers" in said
    with pytest.raises(SystemExit):
        cli.main(["replay", "clickstream", "--from", "yesterday"])
    assert "must be a time such as" in capsys.readouterr().err


def test_a_pipeline_without_dead_letters_has_nothing_to_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = command(capsys, "replay", "orders", "--out", str(tmp_path), "--from", "-2h")
    assert code == 1
    assert "orders has no dead-letter topics" in said


def test_a_second_shell_of_a_directory_is_not_sent_to_the_command_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`headrace-pipelines stop` knows no pipeline `sql`."""
    with recorded(tmp_path, "sql"):
        assert cli.main(["sql", "--out", str(tmp_path), "-e", "SHOW TOPICS"]) == 1
    said = capsys.readouterr().err
    assert "ALREADY_RUNNING" in said
    assert "end that shell" in said
    assert "headrace-pipelines stop" not in said


def written(directory: Path, commits: dict[int, dict[str, int]], offsets: dict[int, list[str]]) -> None:
    for folder in ("commits", "offsets", "state/0/0"):
        (directory / folder).mkdir(parents=True)
    (directory / "metadata").write_text('{"id":"x"}')
    (directory / "state/0/0/1.delta").write_bytes(b"x" * 7)
    for number, commit in commits.items():
        (directory / "commits" / str(number)).write_text(f"v1\n{json.dumps(commit)}")
        (directory / "commits" / f".{number}.crc").write_text("")
    for number, sources in offsets.items():
        (directory / "offsets" / str(number)).write_text("\n".join(["v1", "{}", *sources]))


def test_checkpoints_say_how_far_their_queries_are(tmp_path: Path) -> None:
    assert checkpoints(tmp_path / "none") == []
    end = ['{"clicks": {"0": 9, "1": 5}}', '{"clicks": {"0": 8, "1": 6}, "$start": {"clicks": {"0": 1}}}', "-"]
    written(tmp_path / "joined", {9: {}, 10: {"nextBatchWatermarkMs": 77}}, {10: end, 11: end})
    written(tmp_path / "new", {}, {0: ['{"clicks": {"0": 1}}']})
    (tmp_path / "no checkpoint").mkdir()
    joined, new = checkpoints(tmp_path)
    assert (joined.query, joined.batch, joined.next_batch, joined.watermark_ms) == ("joined", 10, 11, 77)
    assert (joined.offsets, joined.position, joined.state_bytes) == ({"clicks": {"0": 8, "1": 5}}, 13, 7)
    assert (new.batch, new.next_batch, new.offsets, new.watermark_ms) == (None, 0, {}, None)
    (tmp_path / "new/offsets/0").write_text("v2\n{}")
    (tmp_path / "new/commits/0").write_text("v2\n{}")
    with pytest.raises(PipelineFailedError, match="version of Spark's log is 'v2'"):
        checkpoints(tmp_path)


def test_a_run_of_another_pipeline_gets_no_signal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with recorded(tmp_path, "fraud"):
        for words in (("stop",), ("status",), ("replay",)):
            code, _, said = command(capsys, *words, "clickstream", "--out", str(tmp_path))
            assert code == 1
            assert "has a run of fraud, not of clickstream" in said


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pipeline": "clickstream"}', '{"process": 1}'])
def test_a_damaged_file_of_a_run_is_named_with_the_cure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    for words in ("status", "run"):
        code, _, said = command(capsys, words, "clickstream", "--out", str(tmp_path))
        assert code != 0
        assert f"{file} is damaged" in said
        assert "Traceback" not in said


def test_the_file_of_a_run_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure, a file that was renamed before it was flushed may be empty."""
    done: list[str] = []
    fsync, rename = os.fsync, os.replace

    def flushed(fd: int) -> None:
        done.append(f"flush {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        fsync(fd)

    def renamed(self: Path, target: Path) -> None:
        done.append(f"rename {target.name}")
        rename(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    with recorded(tmp_path, "clickstream"):
        assert done == ["flush .run.json.new", "rename run.json", f"flush {tmp_path.name}"]
