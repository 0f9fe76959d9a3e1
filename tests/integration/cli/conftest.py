"""The command line as users run it: a process with its two outputs and its exit code, against the real cluster of the
test run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from tests.integration.warm_headrace import PROGRAM, WarmHeadrace

_warm = WarmHeadrace()


@dataclass(frozen=True)
class Outcome:
    """The result of a command."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def json(self) -> Any:
        """The only JSON document on stdout."""
        return json.loads(self.out)


Cli = Callable[..., Outcome]


def run_headrace(
    *arguments: str | Path, stdin: bytes = b"", bootstrap: str = "", code: int | None = 0, timeout_s: float = 180
) -> Outcome:
    """Run ``headrace`` in a warm process, and assert its exit code unless ``code`` is None."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    if bootstrap:
        environment["HEADRACE_BOOTSTRAP_SERVERS"] = bootstrap
    done = _warm.run([*map(str, arguments)], stdin=stdin, env=environment, timeout_s=timeout_s)
    found = Outcome(done.returncode, done.stdout, done.stderr.decode())
    assert code is None or found.code == code, f"headrace {arguments}: {found}"
    assert "Traceback" not in found.err, found.err
    return found


@pytest.fixture(scope="session", autouse=True)
def _warm_headrace_ends() -> Iterator[None]:
    yield
    _warm.close()


@pytest.fixture
def cli(headrace: LocalCluster) -> Cli:
    """``cli("topics", "list")`` against the shared cluster."""

    def run(*arguments: str | Path, stdin: bytes = b"", code: int | None = 0) -> Outcome:
        return run_headrace(*arguments, stdin=stdin, bootstrap=headrace.bootstrap_servers, code=code)

    return run


@pytest.fixture(scope="session")
def bare_cli() -> Cli:
    """``headrace`` without a cluster in its environment."""
    return run_headrace


@pytest.fixture
def program() -> str:
    """The path of the ``headrace`` script."""
    return PROGRAM
