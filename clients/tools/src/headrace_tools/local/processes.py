"""Processes by identity, not by number.

A pid is reused as soon as its process is gone, so a pid read from a file says nothing by itself. With the boot id and
the start time of the process (ticks since boot, /proc/PID/stat) it names one process for good; and a signal goes
through a pidfd, so that nobody else can take the number between the check and the signal. Where there is no /proc
(macOS) the start time comes from ``ps``, and the signal goes by number right after the check.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot of this machine. ``started`` is opaque text that no later process repeats."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Is this very process still running? A zombie is dead: all that is left of it is an exit code."""
        return _start_mark(self.pid) == self.started

    def stopped(self) -> bool:
        """Is it stopped (SIGSTOP, a debugger), so that it does nothing until SIGCONT? False where /proc is missing."""
        try:
            stat = (_PROC / str(self.pid) / "stat").read_bytes()
        except OSError:
            return False
        return stat[stat.rindex(b")") + 2 :].split()[0] in (b"T", b"t") and self.alive()

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to this process and no other; False when it is gone."""
        if not hasattr(os, "pidfd_open"):
            if not self.alive():
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
                return True
            return False
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():  # checked after the descriptor was taken: from here on it is bound to one process
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process is gone; True when it is. Reaps it if it is our child."""
        deadline = time.monotonic() + timeout_s
        while self.alive():
            self._reap()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return not self.alive()
            self._sleep_until_gone(min(remaining, 0.5))
        self._reap()
        return True

    def _sleep_until_gone(self, seconds: float) -> None:
        if not hasattr(os, "pidfd_open"):
            time.sleep(min(seconds, 0.01))
            return
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return
        try:
            poller = select.poll()  # (select() takes no descriptor above 1023, and a test run may have that many)
            poller.register(descriptor, select.POLLIN)
            poller.poll(seconds * 1_000)
        finally:
            os.close(descriptor)

    def _reap(self) -> None:
        if self in _children:  # never a child of our caller's
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                    return
            _children.discard(self)


#: What this process spawned and has not yet reaped.
_children: set[ProcessId] = set()


def identify(pid: int) -> ProcessId | None:
    """The identity of a running process, or None when there is none with this number."""
    mark = _start_mark(pid)
    return ProcessId(pid, mark) if mark is not None else None


def _start_mark(pid: int) -> str | None:
    """``boot id/start ticks`` of a running process; None when it is gone or a zombie."""
    if sys.platform.startswith("linux"):
        try:
            stat = (_PROC / str(pid) / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat[stat.rindex(b")") + 2 :].split()  # the name in parentheses may itself hold blanks and parentheses
        state, threads, start_ticks = fields[0], int(fields[17]), int(fields[19])
        # A zombie with threads is still dying: until the last thread is gone the process's ports stay taken.
        return None if state in (b"Z", b"X", b"x") and threads <= 1 else f"{_boot_id()}/{start_ticks}"
    answer = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    ).stdout.strip()
    return None if not answer or answer.startswith("Z") else answer.partition(" ")[2].strip()


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown-boot"


def spawn(
    arguments: Sequence[str], *, log: Path, directory: Path, environment: Mapping[str, str] | None = None
) -> ProcessId:
    """Start a process that outlives us and shares nothing with us: own session, no descriptor, output to ``log``.

    OSError when it cannot be started at all.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            close_fds=True,
            start_new_session=True,
            cwd=directory,
            env=dict(environment) if environment is not None else None,
        )
    # From here on the process is known by its identity; Popen's destructor would only complain that it still runs.
    process.returncode = 0
    found = identify(process.pid) or ProcessId(process.pid, "ended before we looked")
    _children.add(found)
    return found
