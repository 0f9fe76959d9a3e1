"""The compose file as a test sees it: `docker compose` on a project of its own, whose volumes go with it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "headrace-test"
#: The edge's published ports: any broker, broker N, coordinator N.
BOOTSTRAP = "127.0.0.1:9095"
LIMIT_S = 120.0


class Stack:
    """``docker compose -p headrace-test ...`` at the repository's root."""

    def compose(self, *arguments: str, limit_s: float = 300.0, check: bool = True) -> str:
        """What it prints; a failure carries all that it said."""
        done = subprocess.run(
            ["docker", "compose", "-p", PROJECT, *arguments],
            cwd=ROOT,
            env={**os.environ, "COMPOSE_PROGRESS": "plain"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        if check and done.returncode:
            logs = self.compose("logs", "--no-color", "--tail=40", check=False)
            raise AssertionError(f"docker compose {' '.join(arguments)}: {done.returncode}\n{done.stderr}\n{logs}")
        return done.stdout

    def up(self, *arguments: str) -> float:
        """``up --wait``; seconds."""
        began = time.monotonic()
        self.compose("up", "--wait", "--wait-timeout", "240", *arguments)
        return time.monotonic() - began

    def down(self) -> None:
        self.compose("--profile", "*", "down", "-v", "--remove-orphans", "--timeout", "40")

    def headrace(self, *arguments: str, service: str = "broker") -> Any:
        """The command line inside of a container, without flags but ``-o json``."""
        return json.loads(self.compose("exec", "-T", service, "headrace", *arguments, "-o", "json") or "null")

    def containers(self, service: str | None = None) -> dict[str, str]:
        """Container name -> its state, those of ``service`` only if given; ended ones too."""
        lines = self.compose("ps", "-a", "--format", "json", *([service] if service else [])).splitlines()
        return {each["Name"]: each["State"] for each in map(json.loads, lines)}

    def kill(self, service: str, number: int) -> None:
        docker("kill", f"{PROJECT}-{service}-{number}")

    def start(self, service: str, number: int) -> None:
        docker("start", f"{PROJECT}-{service}-{number}")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Seconds until ``holds``; AssertionError with ``what`` after ``limit_s``."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < limit_s, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.2)
    return time.monotonic() - began
