"""The scripts behind the make targets: they do no work twice, and report every failure."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.machinery import ModuleSpec
from pathlib import Path

import install
import pytest
import verify

ROOT = Path(__file__).resolve().parents[2]


def _shard(name: str, tmp_path: Path, code: int = 0, seconds_max: int = 30) -> verify.Shard:
    """Appends a line to a file each time it runs, then exits with ``code``."""
    script = f"open({str(tmp_path / name)!r}, 'a').write('x'); raise SystemExit({code})"
    return verify.Shard(name, (sys.executable, "-c", script), seconds_max)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(verify, "STATE", tmp_path / "state")
    monkeypatch.setattr(verify, "fingerprint", lambda: "one")
    return tmp_path


def test_verify_goes_on_with_the_shards_that_have_not_passed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SHARDS", (_shard("good", runs), _shard("bad", runs, code=3)))
    assert verify.main([]) == 1
    assert verify.main([]) == 1
    assert ((runs / "good").read_text(), (runs / "bad").read_text()) == ("x", "xx")
    assert verify.main(["--again"]) == 1
    assert (runs / "good").read_text() == "xx"


def test_verify_trusts_no_result_of_other_files(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SHARDS", (_shard("good", runs),))
    assert verify.main([]) == 0
    monkeypatch.setattr(verify, "fingerprint", lambda: "two")
    assert verify.main([]) == 0
    assert (runs / "good").read_text() == "xx"


def test_verify_stops_a_shard_that_hangs_and_counts_it_as_failed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = verify.Shard("hanging", (sys.executable, "-c", "import threading; threading.Event().wait()"), 1)
    monkeypatch.setattr(verify, "SHARDS", (hanging,))
    assert verify.main([]) == 1


def test_verify_refuses_a_shard_that_does_not_exist(runs: Path) -> None:
    assert verify.main(["no-such-shard"]) == 2


def test_setup_compiles_anew_what_changed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "ROOT", tmp_path)
    source = tmp_path / "core" / "src" / "fast.pyx"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1")
    before = install.what_is_compiled_from("core")
    assert install.what_is_compiled_from("core") == before
    source.write_text("x = 2")
    changed = install.what_is_compiled_from("core")
    assert changed != before
    assert not install.is_compiled("core")
    declared = install.declarations()
    source.with_suffix(".pxd").write_text("")
    assert install.declarations() != declared


def test_setup_installs_anew_what_changed_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "STAMP", tmp_path / "stamp.json")
    monkeypatch.setattr(install, "DISTRIBUTIONS", {"core": "", "clients/tools": ""})
    monkeypatch.setattr(install, "write_bytecode", lambda: None)
    monkeypatch.setattr(install, "add_bytecode_to_spark", lambda: None)
    installed: list[list[str]] = []
    monkeypatch.setattr(install, "install", installed.append)
    for directory in install.DISTRIBUTIONS:
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "pyproject.toml").write_text("one")
    (tmp_path / "constraints.txt").write_text("typer==1.0")
    root = tmp_path / "pyproject.toml"
    root.write_text('[dependency-groups]\ndev = ["pytest"]\n')
    install.main()
    root.write_text(root.read_text() + "[tool.ruff]\nline-length = 120\n")
    install.main()
    assert installed == [["core", "clients/tools"]]
    (tmp_path / "clients/tools/pyproject.toml").write_text("two")
    install.main()
    assert installed[1:] == [["clients/tools"]]
    (tmp_path / "constraints.txt").write_text("typer==2.0")
    install.main()
    assert installed[2:] == [["core", "clients/tools"]]


def test_setup_adds_bytecode_to_the_archive_of_spark_s_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "tests" / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("pyspark/__init__.py", "answer = 42\n")
        made.writestr("pyspark/broken.py", "answer = \n")
        made.writestr("pyspark/sql/tests/test_it.py", "answer = 42\n")
    found = ModuleSpec("pyspark", None, origin=str(archive.parents[2] / "__init__.py"))
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda name: found)
    install.add_bytecode_to_spark()
    with zipfile.ZipFile(archive) as made:
        assert {name for name in made.namelist() if name.endswith(".pyc")} == {"pyspark/__init__.pyc"}
    written = archive.stat()
    install.add_bytecode_to_spark()
    again = archive.stat()  # without the time of the last read
    assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns), "written again"
    shown = "import pyspark; print(pyspark.__file__, pyspark.answer)"
    done = subprocess.run(
        [sys.executable, "-c", shown], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{archive}/pyspark/__init__.pyc 42\n"


def test_containers_are_not_tested_where_no_engine_answers_and_that_is_no_success() -> None:
    done = subprocess.run(
        [ROOT / "tools" / "compose_test.sh"],
        env={**os.environ, "DOCKER_HOST": "unix:///nobody/listens.here"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no Docker engine answers" in done.stderr


def test_every_promised_make_target_exists() -> None:
    targets = {
        line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ": " in line or ":" in line
    }
    for name in ("setup", "demo", "test", "check", "proto", "bench", "bench-peers", "sim", "verify", "compose-test"):
        assert name in targets


def test_a_bar_without_samples_is_not_measured_and_a_missed_one_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import bars
    import measure

    samples = measure.Samples()
    assert {verdict.met for verdict in bars.judge(samples)} == {None}
    for value in (5.0, 7.0, 100.0):  # the median counts
        samples.add("headrace.produce.arrow.commit", value, "rec/s")
    samples.add("kafka.producer-perf", 1.0, "rec/s")
    samples.add("headrace.produce.many.commit", 1.9, "rec/s")
    samples.add("headrace.latency.p50.commit", 1.5, "ms")
    by_path = {(verdict.bar.path, verdict.bar.against): verdict for verdict in bars.judge(samples)}
    arrow = by_path["produce, `send_arrow`", "Kafka producer-perf"]
    assert (arrow.measured, arrow.met, arrow.below_half) == (7.0, True, False)
    many = by_path["produce, `send_many`", "Kafka producer-perf"]
    assert (many.measured, many.met, many.below_half) == (1.9, False, True)
    latency = by_path["end to end at 1,000 rec/s, p50", "absolute"]
    assert (latency.measured, latency.met, latency.below_half) == (1.5, False, False)
