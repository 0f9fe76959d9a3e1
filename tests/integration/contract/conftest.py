"""Shared by the contract tests: the run's cluster, separate topics for each test, and the command line as a process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic

HEADRACE = str(Path(sys.executable).with_name("headrace"))
_numbers = itertools.count()


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run_headrace(*arguments: str | Path, stdin: str = "", bootstrap: str | None = None) -> Ended:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    if bootstrap:
        environment["HEADRACE_BOOTSTRAP_SERVERS"] = bootstrap
    done = subprocess.run(
        [HEADRACE, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        env=environment,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def bootstrap(headrace: LocalCluster) -> str:
    return headrace.bootstrap_servers


@pytest.fixture
def topic(bootstrap: str) -> str:
    """A new topic of three partitions."""
    name = f"contract-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=3)])
    return name


@pytest.fixture
def cli(bootstrap: str) -> Callable[..., Ended]:
    """``cli("topics", "list")`` against the run's cluster."""

    def run(*arguments: str | Path, stdin: str = "") -> Ended:
        return run_headrace(*arguments, stdin=stdin, bootstrap=bootstrap)

    return run


@pytest.fixture
def bare_cli() -> Callable[..., Ended]:
    """The command line without a cluster in its environment."""
    return run_headrace


@pytest.fixture
def program() -> str:
    return HEADRACE
