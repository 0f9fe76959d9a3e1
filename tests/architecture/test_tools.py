"""The scripts behind the make targets: they do no work twice, and report every failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    monkeypatch.setattr(verify, "write_table", lambda: None)
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
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    promised = (
        "setup demo demo-cdc test test-deep search mutants check proto bench bench-peers bench-budget sim soak verify "
        "compose-test dist"
    )
    assert set(promised.split()) <= targets
