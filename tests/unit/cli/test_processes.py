"""Processes are identified by more than their pid: a reused pid is another process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_tools.local.processes import ProcessId, identify, spawn

_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(_SLEEP)
    yield process
    process.kill()
    process.wait()


def test_a_reused_pid_is_neither_alive_nor_signalled(stranger: subprocess.Popen[bytes]) -> None:
    stale = ProcessId(stranger.pid, "this-boot/1")  # the pid of a node that died long ago
    assert not stale.alive()
    assert not stale.signal(signal.SIGKILL)
    assert stale.wait(0)
    assert stranger.poll() is None


def test_a_process_of_the_same_pid_is_known_by_its_start(stranger: subprocess.Popen[bytes]) -> None:
    found = identify(stranger.pid)
    assert found is not None
    assert found == identify(stranger.pid)
    assert found.alive()
    assert not found.wait(0)


def test_a_process_that_stands_still_is_alive_and_stopped(stranger: subprocess.Popen[bytes]) -> None:
    found = identify(stranger.pid)
    assert found is not None
    assert not found.stopped()
    os.kill(stranger.pid, signal.SIGSTOP)
    os.waitpid(stranger.pid, os.WUNTRACED)  # until it stands
    assert found.alive()
    assert found.stopped()
    os.kill(stranger.pid, signal.SIGCONT)
    os.waitpid(stranger.pid, os.WCONTINUED)
    assert not found.stopped()
    assert not ProcessId(stranger.pid, "this-boot/1").stopped()


def test_a_zombie_is_dead(stranger: subprocess.Popen[bytes]) -> None:
    found = identify(stranger.pid)
    assert found is not None
    os.kill(stranger.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while found.alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not found.alive()
    assert stranger.wait() == -signal.SIGKILL  # the exit code of another caller's child can still be read


def test_a_number_without_a_process_has_no_identity() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert identify(process.pid) is None
    assert not ProcessId(process.pid, "x").signal(signal.SIGTERM)


def test_a_spawned_process_shares_nothing_with_us(tmp_path: Path) -> None:
    """The child has no descriptor of this process (even an inheritable one), its own session, an empty stdin, and its
    output in its log."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    report = (
        "import os, sys; print(sorted(os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{n}'))); print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()))"
    )
    log = tmp_path / "node.log"
    process = spawn([sys.executable, "-I", "-c", report], log=log, directory=tmp_path)
    os.close(writer)
    assert process.wait(60)
    descriptors, rest = log.read_text().splitlines()
    assert eval(descriptors) == sorted([os.devnull, str(log), str(log)])
    assert rest == "True ''"
    assert os.read(reader, 1) == b""  # the other end of the pipe is closed everywhere
    os.close(reader)
    assert not process.signal(signal.SIGTERM)
