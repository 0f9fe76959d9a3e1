"""Real controller processes on loopback, one directory each, stopped at the end of the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_core.node.state_file import RuntimeState, read_state


class ControllerProcess:
    """A controller in ``directory``, which a test formats, starts, kills and starts again. The controller keeps its
    first ports."""

    def __init__(self, directory: Path, cluster_id: str = "scenario", **config: str) -> None:
        self.directory = directory
        self.cluster_id = cluster_id
        self.config = {
            "node.id": "1",
            "listeners": "client://127.0.0.1:0,internal://127.0.0.1:0",
            "log.dirs": str(directory / "data"),
            **config,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.state: RuntimeState | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def properties(self) -> Path:
        path = self.directory / "controller.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        return path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        command = [sys.executable, "-P", "-m", "headrace_controller", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def format(self, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run("format", "--cluster-id", self.cluster_id, "--config", str(self.properties), *more)

    def start(self, *overrides: str) -> RuntimeState:
        """Wait until the controller serves."""
        with (self.directory / "log").open("ab") as log:
            command = [sys.executable, "-P", "-m", "headrace_controller", "--config", str(self.properties)]
            for override in overrides:
                command += ["-o", override]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            state = read_state(self.config.get("runtime.state.file", self.config["log.dirs"] + "/node.json"))
            if state is not None and state.pid == self.process.pid:
                self.state = state
                self.config["listeners"] = ",".join(f"{name}://{at}" for name, at in state.listeners.items())
                return state
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise AssertionError(f"the controller did not come up:\n{self.log()}")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(60)

    def stop(self) -> int:
        """Send SIGTERM to the controller, and return its exit code."""
        assert self.process is not None
        self.signal(signal.SIGTERM)
        return self.process.wait(60)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def client(self) -> str:
        assert self.state is not None
        return self.state.listeners["client"]

    @property
    def internal(self) -> str:
        assert self.state is not None
        return self.state.listeners["internal"]


@pytest.fixture
def make_controller(tmp_path: Path) -> Iterator[Callable[..., ControllerProcess]]:
    """Makes formatted controllers."""
    made: list[ControllerProcess] = []

    def make(**config: str) -> ControllerProcess:
        named = {key.replace("_", "."): value for key, value in config.items()}
        controller = ControllerProcess(tmp_path / f"controller-{len(made)}", **named)
        made.append(controller)
        done = controller.format()
        assert done.returncode == 0, done.stderr
        return controller

    yield make
    for controller in made:
        if controller.process is not None and controller.process.poll() is None:
            os.kill(controller.process.pid, signal.SIGKILL)
            controller.process.wait(60)
