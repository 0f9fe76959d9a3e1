"""Measure the machine's own time for the disk writes of headline.py: three files, flushed on the same schedule. The
measurement uses no network and almost no program code. Each of three processes appends a portion's bytes to a file and
flushes the file, every few milliseconds. A portion is done when all three processes have written it, as with acks=all.
A system that flushes each record on every in-sync replica cannot be faster than this time on the same disk.

``read_at_rate`` is a second user of the disk for fairness.py: it reads files from the disk, as a broker does for a
client that catches up. ``forced_beside`` is a second user for quotas.py: it writes and flushes, as a broker does for a
client with a quota.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measure import percentiles

#: Seconds from the start signal to the first portion, in which all three processes get ready.
START_S = 0.2
READ_BYTES = 1 << 20  #: Bytes of one read of ``read_at_rate``.


def forced_portions(directory: Path, *, size: int, every_s: float, seconds: float, files: int = 3) -> dict[str, float]:
    """Time in ms from a portion's due time until all ``files`` have its ``size`` bytes on disk: p50, p99, p999, max."""
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(files):
            command = [
                sys.executable,
                __file__,
                str(directory / f"floor-{number}"),
                str(size),
                str(every_s),
                str(seconds),
            ]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for one in started:
            assert one.stdout is not None
            if one.stdout.readline().strip() != "ready":
                raise RuntimeError("a process of the disk measurement did not start; its error is above")
        begin = time.perf_counter() + START_S
        for one in started:
            assert one.stdin is not None
            one.stdin.write(f"{begin}\n")
            one.stdin.flush()
        found = [json.loads(one.communicate(timeout=3 * seconds + 60)[0]) for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()
            one.wait()
            for pipe in (one.stdin, one.stdout):
                if pipe is not None:
                    pipe.close()
    return percentiles([max(of_all) for of_all in zip(*found, strict=True)])


@contextlib.contextmanager
def forced_beside(directory: Path, *, size: int, every_s: float, seconds: float) -> Iterator[None]:
    """During the block, at most for ``seconds``, another process appends ``size`` bytes to a file every ``every_s``
    seconds, and flushes it."""
    command = [sys.executable, __file__, str(directory / "beside"), str(size), str(every_s), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError("the process that writes in the background did not start; its error is above")
            process.stdin.write(f"{time.perf_counter()}\n")
            process.stdin.flush()
            yield
        finally:
            process.kill()
    (directory / "beside").unlink(missing_ok=True)


def force_on_schedule(path: Path, size: int, every_s: float, seconds: float) -> list[float]:
    """Time in ms from each portion's due time until it was flushed. The schedule begins at the time that standard input
    names."""
    data, late = os.urandom(size), []
    try:
        with path.open("wb", buffering=0) as file:
            print("ready", flush=True)
            begin = float(sys.stdin.readline())
            for number in range(int(seconds / every_s)):
                due = begin + number * every_s
                if (left := due - time.perf_counter()) > 0:
                    time.sleep(left)
                file.write(data)
                os.fdatasync(file.fileno())
                late.append(round((time.perf_counter() - due) * 1e3, 3))
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return late


def read_at_rate(paths: Sequence[Path], bytes_per_s: float) -> None:
    """Read files from the disk repeatedly, one after another, until the process is killed. Before each reading of a
    file, its pages are dropped from the page cache."""
    begin, done = time.perf_counter(), 0
    for path in itertools.cycle(paths):
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while part := file.read(READ_BYTES):
                done += len(part)
                if (left := begin + done / bytes_per_s - time.perf_counter()) > 0:
                    time.sleep(left)


if __name__ == "__main__":
    print(json.dumps(force_on_schedule(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))))
