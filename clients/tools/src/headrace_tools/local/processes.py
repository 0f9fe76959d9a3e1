"""Processes that are identified by boot id, pid and start time.

The kernel reuses pids, so a pid that is stored in a file is ambiguous. Together with the boot id and the start time of
the process (ticks since boot, /proc/PID/stat) a pid is unique. Signals are sent through a pidfd, so that no other
process can get the pid between the check and the signal. Without /proc (macOS) the start time comes from ``ps``, and
the signal is sent to the pid right after the check.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_core.file_modes import opener

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, identified within one boot of this machine. ``started`` is an opaque text that no later process with
    this pid has."""

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether the identified process is running. A zombie is treated as ended, because only its exit code is
        left."""
        return _start_mark(self.pid) == self.started

    def stopped(self) -> bool:
        """Whether the process is suspended (SIGSTOP, a debugger). False without /proc."""
        try:
            stat = (_PROC / str(self.pid) / "stat").read_bytes()
        except OSError:
            return False
        return stat[stat.rindex(b")") + 2 :].split()[0] in (b"T", b"t") and self.alive()

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the process and to no other process; return False if the process has ended."""
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
            if not self.alive():  # check the start time after the pidfd is open, because a pidfd names one process only
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended; return whether the process has ended. If the process is a child of the
        current process, its exit status is collected."""
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
            poller = select.poll()  # select() takes no descriptor above 1023, and test runs have that many
            poller.register(descriptor, select.POLLIN)
            poller.poll(seconds * 1_000)
        finally:
            os.close(descriptor)

    def _reap(self) -> None:
        if self in _children:  # reap only processes that this module started
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                    return
            _children.discard(self)


#: Processes that this process has spawned and whose exit status is not collected yet.
_children: set[ProcessId] = set()


def identify(pid: int) -> ProcessId | None:
    """The identity of a running process; None if no process has this pid."""
    mark = _start_mark(pid)
    return ProcessId(pid, mark) if mark is not None else None


def this_process() -> ProcessId:
    found = identify(os.getpid())
    assert found is not None  # it is running
    return found


def _start_mark(pid: int) -> str | None:
    """Return ``boot id/start ticks``, which identifies a running process; None if the process has ended or is a
    zombie."""
    if sys.platform.startswith("linux"):
        try:
            stat = (_PROC / str(pid) / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat[stat.rindex(b")") + 2 :].split()  # the name in parentheses may contain blanks and parentheses
        state, threads, start_ticks = fields[0], int(fields[17]), int(fields[19])
        # A zombie process that still has threads has not ended: its ports are taken until the last thread has ended.
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


def spawn(arguments: Sequence[str], *, log: Path, directory: Path) -> ProcessId:
    """Start a process that outlives this one and shares nothing with it: new session, no inherited descriptors, output
    to ``log``.

    Raises OSError when the process cannot be started.
    """
    with open(log, "ab", opener=opener) as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            close_fds=True,
            start_new_session=True,
            cwd=directory,
        )
    # Set a return code, so that Popen's destructor does not warn that the process still runs. From here on, the
    # ProcessId identifies the process.
    process.returncode = 0
    found = identify(process.pid) or ProcessId(process.pid, "ended before it was checked")
    _children.add(found)
    return found
