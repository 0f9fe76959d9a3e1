"""Runs ``headrace`` commands without their start-up time: each command is a forked child of a process that has imported
all modules.

Tests run hundreds of commands. A new interpreter would cost each command a quarter of a second of processor time. The
fork is a real process. The fork has the caller's arguments, environment, directory and three streams (pipes), returns
its exit code to the caller, and ends like an interpreter. tests/integration/contract and tests with the fixture
``program`` run the console script itself.

    warm_headrace.py SOCKET       the server; it ends when its standard input does
"""

from __future__ import annotations

import array
import contextlib
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PROGRAM = str(Path(sys.executable).with_name("headrace"))
_REQUEST_MAX = 1 << 20


class WarmHeadrace:
    """Runs commands. The first command starts the server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def run(
        self, arguments: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Works like ``subprocess.run`` with ``capture_output``. Kills the command at its timeout and raises
        subprocess.TimeoutExpired."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(self._address())
            (in_end, feed), (out, out_end), (err, err_end) = os.pipe(), os.pipe(), os.pipe()
            request = json.dumps({"arguments": list(arguments), "env": dict(env), "cwd": os.getcwd()}).encode()
            try:
                socket.send_fds(link, [request], [in_end, out_end, err_end])
            finally:
                for each in (in_end, out_end, err_end):
                    os.close(each)
            streams = _Streams(feed, stdin, out, err)
            pid = int(link.recv(100))
            link.settimeout(timeout_s)
            try:
                code = int(link.recv(100))
                streams.join(timeout_s)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["headrace", *arguments], timeout_s, *streams.read) from None
        return subprocess.CompletedProcess(["headrace", *arguments], code, *streams.read)

    def close(self) -> None:
        if self._server is not None and self._directory is not None:
            self._server.communicate()
            self._directory.cleanup()

    def _address(self) -> str:
        with self._lock:
            if self._directory is None:
                self._directory = tempfile.TemporaryDirectory(prefix="warm-headrace-")
                address = str(Path(self._directory.name, "socket"))
                self._server = subprocess.Popen(
                    [sys.executable, __file__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                assert self._server.stdout is not None
                assert self._server.stdout.readline() == b"warm\n", "the server of commands did not start"
            return str(Path(self._directory.name, "socket"))


class _Streams:
    """Feeds a command's standard input, and reads its two outputs to their ends."""

    def __init__(self, feed: int, stdin: bytes, out: int, err: int) -> None:
        self.read = [b"", b""]
        work: list[tuple[Callable[..., None], Any]] = [(self._feed, (feed, stdin)), (self._read, (out, 0))]
        self._threads = [threading.Thread(target=do, args=given, daemon=True) for do, given in work]
        self._threads.append(threading.Thread(target=self._read, args=(err, 1), daemon=True))
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                raise TimeoutError

    def _feed(self, to: int, data: bytes) -> None:
        # the command may end before it has read its whole input
        with contextlib.suppress(BrokenPipeError), open(to, "wb") as pipe:
            pipe.write(data)

    def _read(self, source: int, at: int) -> None:
        with open(source, "rb") as pipe:
            self.read[at] = pipe.read()


def serve(address: str) -> Callable[[], int]:
    """Fork children until standard input ends. Returns in each child, with the command to run."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen(100)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, socket.socket] = {}  # by pid
    os.write(1, b"warm\n")
    while True:
        ready, _, _ = select.select([0, woken, listening], [], [])
        if 0 in ready:
            os._exit(0)
        if woken in ready:
            os.read(woken, 1000)
            _reap(running)
        if listening not in ready:
            continue
        link, _ = listening.accept()
        request, fds, _, _ = socket.recv_fds(link, _REQUEST_MAX, 3)
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not be forked"
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Close the parent's descriptors now: later, their numbers may belong to other files.
            for ours in (listening, link, *running.values()):
                ours.close()
            os.close(woken)
            os.close(wake)
            return _become(json.loads(request), fds)
        for each in fds:
            os.close(each)
        running[pid] = link
        _send(link, pid)


def _reap(running: dict[int, socket.socket]) -> None:
    """Report the exit codes of the children that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as link:
            _send(link, os.waitstatus_to_exitcode(status))


def _send(link: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the requesting process may have ended
        link.send(b"%d" % number)


def _become(request: dict[str, Any], fds: array.array[int] | list[int]) -> Callable[[], int]:
    """Run the command as the console script would."""
    for at, each in enumerate(fds):
        os.dup2(each, at)
        os.close(each)
    os.chdir(request["cwd"])
    ours = {name: value for name, value in os.environ.items() if name.startswith("GRPC_")}  # set by imported modules
    os.environ.clear()
    os.environ.update(ours | request["env"])
    sys.argv = [PROGRAM, *request["arguments"]]
    from headrace_tools.cli import main

    return main


def _warm_up() -> None:
    import headrace
    from headrace_tools.cli import app, root

    root.build(())
    for name in headrace.__all__:
        getattr(headrace, name)
    with contextlib.redirect_stdout(io.StringIO()):
        app.run(["random-uuid"])  # modules that are imported only when a command is parsed
    gc.collect()
    gc.freeze()  # garbage collections need not examine objects that exist already, and their memory stays shared


if __name__ == "__main__":
    _warm_up()
    sys.exit(serve(sys.argv[1])())
