"""Stops a LocalCluster whose owner died without stopping it (kill -9, a crashed test worker).

Nodes continue to run after the process that started them, but the nodes of a ``with`` block must end with the process.
A small process, the guardian, runs beside the nodes and stops them when the owner has died. The guardian process runs
this file with ``python -I -S``, which costs milliseconds and imports no other module of Headrace. The guardian waits on
a pidfd of the owner process, without polling and without an inherited descriptor. When the owner dies, the guardian
executes a full interpreter, which stops the cluster. On systems without pidfds (macOS) there is no guardian.
"""

from __future__ import annotations

import os
import select
import sys

_AFTERMATH = """
import sys
from headrace_tools.local.cluster import end_abandoned
from headrace_tools.local.processes import ProcessId
pid, started, directory, data = sys.argv[1:]
end_abandoned(directory, ProcessId(int(pid), started), delete=data == "delete")
"""


class Guardian:
    """The guardian process; call ``dismiss`` after an ordinary stop of the cluster."""

    def __init__(self, process: object) -> None:
        self._process = process

    def dismiss(self) -> None:
        import subprocess

        assert isinstance(self._process, subprocess.Popen)
        self._process.kill()
        self._process.wait()


def start(directory: os.PathLike[str], started: str, *, delete: bool) -> Guardian | None:
    """Start a guardian for the cluster in ``directory``, whose owner is this process; None on systems without
    pidfds. ``started``: the start mark of this process (processes.ProcessId)."""
    if not hasattr(os, "pidfd_open"):
        return None
    import subprocess

    data = "delete" if delete else "keep"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), started, os.fspath(directory), data],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=True,
        start_new_session=True,
        cwd="/",
    )
    return Guardian(process)


def _wait_for_death(owner: int) -> None:
    try:
        descriptor = os.pidfd_open(owner)
    except ProcessLookupError:
        return
    if os.getppid() != owner:  # the owner died before the pidfd was opened, so the pidfd may name another process
        return
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(descriptor, select.POLLIN)
    poller.poll()


if __name__ == "__main__":
    _wait_for_death(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, "-P", "-c", _AFTERMATH, *sys.argv[1:]])
