"""The commit hook: what it accepts and refuses, and when `make setup` enables it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import install
import pytest

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / ".githooks" / "commit-msg"

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # Git must use neither the user's settings nor the settings of a hook that runs these tests.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    return subprocess.run(["git", *identity, *words], cwd=clone, env=own, capture_output=True, text=True, timeout=60)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new repository with our hook in it, in which `make setup` would run."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".githooks").mkdir()
    shutil.copy2(HOOK, tmp_path / ".githooks")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    return tmp_path


@pytest.mark.parametrize(
    "message",
    [
        "broker: retry a failed flush",
        "docs, config: plainer words in texts that users read\n\nThe why, at any length.",
        "core/log: " + "x" * 62,
        "docs: " + "ü" * 66,  # 72 characters, more bytes
        "# a comment of git\n\ntests: skip comments",
        "Merge branch 'main'",
        'Revert "broker: retry a failed flush"',
        "fixup! broker: retry a failed flush",
    ],
)
def test_the_hook_accepts_a_subject_with_its_area(clone: Path, message: str) -> None:
    (clone / "message").write_text(message)
    done = subprocess.run([HOOK, "message"], cwd=clone, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("wip", 'is not "area: what it does"'),
        ("Broker: retry a failed flush", 'is not "area: what it does"'),
        ("broker:retry a failed flush", 'is not "area: what it does"'),
        ("broker: ", 'is not "area: what it does"'),
        ("core/log: " + "x" * 63, "has 73 characters, at most 72"),
    ],
)
def test_the_hook_refuses_another_subject_and_says_why(clone: Path, message: str, why: str) -> None:
    (clone / "message").write_text(message)
    done = subprocess.run([HOOK, "message"], cwd=clone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert why in done.stderr


def test_git_calls_the_hook_once_setup_has_enabled_it(clone: Path) -> None:
    install.enable_hooks()
    refused = git(clone, "commit", "--quiet", "--allow-empty", "-m", "wip")
    assert refused.returncode != 0
    assert "commit refused" in refused.stderr
    accepted = git(clone, "commit", "--quiet", "--allow-empty", "-m", "tests: commit with the hook")
    assert accepted.returncode == 0, accepted.stderr
    assert git(clone, "log", "--format=%s").stdout == "tests: commit with the hook\n"


def test_setup_leaves_hooks_alone_that_a_clone_has_already(clone: Path) -> None:
    own = clone / ".git" / "hooks" / "pre-commit"
    own.parent.mkdir(exist_ok=True)
    own.write_text("#!/bin/sh\n")
    install.enable_hooks()
    assert git(clone, "config", "core.hooksPath").stdout == ""
    own.unlink()
    git(clone, "config", "core.hooksPath", "elsewhere")
    install.enable_hooks()
    assert git(clone, "config", "core.hooksPath").stdout == "elsewhere\n"


def test_setup_needs_no_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "ROOT", tmp_path)
    install.enable_hooks()
    assert list(tmp_path.iterdir()) == []
