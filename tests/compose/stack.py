"""Runs `docker compose` with the compose file for tests, in a project of its own. The volumes of the project are
deleted together with the project."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.worlds import waiting

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "headrace-test"
FIGURES = ROOT / "build" / "compose" / "figures.json"
#: Ports that the edge publishes: for any broker, by gRPC and by Kafka's protocol.
BOOTSTRAP, KAFKA_BOOTSTRAP = "127.0.0.1:9095", "127.0.0.1:9092"
LIMIT_S = 120.0


class Stack:
    """``docker compose -p headrace-test ...`` at the repository's root. ``version`` is the version of the images."""

    version = "0.1.0"

    def run(self, command: list[str], limit_s: float = 300.0, check: bool = True) -> str:
        """Run ``command`` in the folder of the compose file, for this project. Return the command's output; a failure
        contains all of the output."""
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "COMPOSE_PROGRESS": "plain",
                "COMPOSE_PROJECT_NAME": PROJECT,
                "HEADRACE_VERSION": self.version,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        if check and done.returncode:
            logs = self.compose("logs", "--no-color", "--tail=40", check=False)
            raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{logs}")
        return done.stdout

    def compose(self, *arguments: str, limit_s: float = 300.0, check: bool = True) -> str:
        return self.run(["docker", "compose", *arguments], limit_s, check)

    def up(self, *arguments: str, profile: str = "") -> float:
        """``up --wait``; seconds."""
        began = time.monotonic()
        profiles = ["--profile", profile] if profile else []
        self.compose(*profiles, "up", "--wait", "--wait-timeout", "240", "--no-recreate", *arguments)
        return time.monotonic() - began

    def scale(self, **services: int) -> float:
        """Run ``up --wait`` with this number of containers of each service. Return how many seconds the start took."""
        return self.up(*(f"--scale={service}={count}" for service, count in services.items()))

    def down(self) -> None:
        self.compose("--profile", "*", "down", "-v", "--remove-orphans", "--timeout", "40")

    def headrace(self, *arguments: str, service: str = "broker") -> Any:
        """Run the command line inside of a container. The only flag that the tests need is ``-o json``."""
        return json.loads(self.compose("exec", "-T", service, "headrace", *arguments, "-o", "json") or "null")

    def findings(self) -> list[dict[str, Any]]:
        """What the doctor finds. If it finds something, its exit code is 1."""
        said = self.compose("exec", "-T", "broker", "headrace", "doctor", "-o", "json", check=False)
        return list(json.loads(said)["findings"])

    def containers(self, service: str | None = None) -> dict[str, str]:
        """Container name -> its state, also for containers that have ended. If ``service`` is given, return only the
        containers of that service."""
        lines = self.compose("ps", "-a", "--format", "json", *([service] if service else [])).splitlines()
        return {each["Name"]: each["State"] for each in map(json.loads, lines)}

    def kill(self, service: str, number: int) -> None:
        docker("kill", f"{PROJECT}-{service}-{number}")

    def start(self, service: str, number: int) -> None:
        docker("start", f"{PROJECT}-{service}-{number}")


def docker(*arguments: str) -> str:
    """Return what the command prints on standard output."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def logs_of(container: str) -> str:
    """Return what the command prints on both of its output streams."""
    command = ["docker", "logs", container]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    return done.stdout


def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> float:
    """Wait until ``holds`` returns true, and return the seconds of the wait. After ``limit_s`` raise AssertionError
    with ``what``."""
    began = time.monotonic()
    waiting.until(holds, what, limit_s, pause_s=0.2)
    return time.monotonic() - began


def note(**figures: float) -> None:
    """Keep a measured value, which is shown at the end of the run."""
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    FIGURES.write_text(json.dumps(known | figures, indent=1, sort_keys=True) + "\n")
