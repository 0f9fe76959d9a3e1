"""What the machine itself needs for acks=all: the disk alone, and a chain of five small programs.

``forced_portions``: processes append a portion's bytes to a file each and flush it, on one schedule, without a network.
A portion is done when all have written it. A system that flushes each record on every in-sync replica cannot be faster
on the same disk. ``forced_beside`` and ``read_at_rate`` are second users of the disk.

``measure``: a sender, a leader, two followers and a receiver, as in replicated.py. The leader sends each portion to
the followers and appends it to a file, which it flushes. A follower does the same with its own file, and answers with
one byte. When both have answered, the leader answers the sender and sends the portion to the receiver. Portions that
wait in the leader's socket are flushed together, as a broker does. There is no gRPC, no check and no index.

With ``busy_ms`` each of the three nodes also computes for so long for each portion, and with ``client_ms`` each client
does: then the chain has the processor time of a system, but not its way of working.

    chain.py [--seconds 5]      one portion of 100 bytes in flight, then 1,000 a second, then 50,000 bytes every 5 ms
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measure import WORK, emit, machine, percentiles

#: A portion: its size without this header in bytes, and the time when it was due (perf_counter_ns).
_HEADER = struct.Struct(">IQ")
_WARM_UP_PORTIONS = 50
_START_S = 0.2
_TIMEOUT_S = 60.0
READ_BYTES = 1 << 20  #: Bytes of one read of ``read_at_rate``.


# -- the disk alone ---------------------------------------------------------------------------------------------------


def _flushing(path: Path, size: int, every_s: float, seconds: float) -> list[str]:
    return [sys.executable, __file__, "flush", str(path), str(size), str(every_s), str(seconds)]


def forced_portions(directory: Path, *, size: int, every_s: float, seconds: float, files: int = 3) -> dict[str, float]:
    """Time in ms from a portion's due time until all ``files`` have its ``size`` bytes on disk: p50, p99, p999, max."""
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(files):
            command = _flushing(directory / f"floor-{number}", size, every_s, seconds)
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for one in started:
            assert one.stdout is not None
            if one.stdout.readline().strip() != "ready":
                raise RuntimeError("a process of the disk measurement did not start; its error is above")
        begin = time.perf_counter() + _START_S
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
    command = _flushing(directory / "beside", size, every_s, seconds)
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


# -- the chain --------------------------------------------------------------------------------------------------------


class Link:
    """A socket that carries portions."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._buffer = connection, bytearray()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Wait for exactly ``size`` bytes. Returns fewer bytes when the other side has ended."""
        while len(self._buffer) < size and (more := self._socket.recv(1 << 20)):
            self._buffer += more
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def portion(self) -> bytes:
        """Wait for the next portion, with its header. b"" when the other side has ended."""
        header = self.read(_HEADER.size)
        return header + self.read(_HEADER.unpack(header)[0]) if header else b""

    def portions(self) -> list[bytes]:
        """Wait for the next portion; return it together with all portions that have arrived whole."""
        found = [self.portion()]
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while more := self._socket.recv(1 << 20):
                self._buffer += more
        self._socket.setblocking(True)
        while len(self._buffer) >= _HEADER.size:
            size = _HEADER.size + _HEADER.unpack_from(self._buffer)[0]
            if len(self._buffer) < size:
                break
            found.append(self.read(size))
        return [each for each in found if each]


def compute(milliseconds: float) -> None:
    """Use the processor for ``milliseconds`` of its time."""
    end = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < end:
        pass


def listen() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    return listener


def connect(port: int) -> Link:
    return Link(socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S))


def follow(path: Path, busy_ms: float) -> None:
    """A follower: append and flush what the leader sends; answer with one byte for each message."""
    with listen() as listener, path.open("wb", buffering=0) as file:
        leader = Link(listener.accept()[0])
        while size := leader.read(4):
            data = leader.read(int.from_bytes(size, "big"))
            file.write(data)
            os.fdatasync(file.fileno())
            compute(busy_ms)
            leader.send(b"1")


def lead(path: Path, busy_ms: float, ports: list[int]) -> None:
    """The leader: its first connection is the receiver's, its second one the sender's."""
    followers = [connect(port) for port in ports]
    with listen() as listener, path.open("wb", buffering=0) as file:
        receiver, sender = (Link(listener.accept()[0]) for _ in range(2))
        while portions := sender.portions():
            data = b"".join(portions)
            for each in followers:
                each.send(len(data).to_bytes(4, "big") + data)
            file.write(data)
            os.fdatasync(file.fileno())
            compute(busy_ms * len(portions))
            for each in followers:
                each.read(1)
            sender.send(b"1" * len(portions))
            receiver.send(data)


def receive(port: int, count: int, busy_ms: float) -> list[float]:
    """Time in ms from the time when each portion was due until it arrived here."""
    leader, times = connect(port), []
    print("ready", flush=True)
    for _ in range(count):
        portion = leader.portion()
        times.append((time.perf_counter_ns() - _HEADER.unpack_from(portion)[1]) / 1e6)
        compute(busy_ms)
    return times


def send(port: int, count: int, size: int, every_s: float, busy_ms: float) -> list[float]:
    """Time in ms from the time when each portion was due until it was acknowledged. With ``every_s`` of 0 one portion
    is in flight."""
    leader, data = connect(port), os.urandom(size)
    due: list[int] = []
    times: list[float] = []
    acknowledged = threading.Semaphore(0)

    def acknowledge() -> None:
        for number in range(count):
            leader.read(1)
            times.append((time.perf_counter_ns() - due[number]) / 1e6)
            acknowledged.release()

    reader = threading.Thread(target=acknowledge)
    reader.start()
    begin = time.perf_counter() + _START_S
    for number in range(count):
        at = begin + number * every_s
        if every_s and (left := at - time.perf_counter()) > 0:
            time.sleep(left)
        due.append(int(at * 1e9) if every_s else time.perf_counter_ns())
        compute(busy_ms)
        leader.send(_HEADER.pack(size, due[-1]) + data)
        if not every_s:
            acknowledged.acquire()
    reader.join()
    return times


def measure(
    directory: Path, *, size: int, every_s: float, count: int, busy_ms: float = 0, client_ms: float = 0
) -> dict[str, dict[str, float]]:
    """{"acked", "received"}: percentiles in ms of ``count`` portions of ``size`` bytes, one every ``every_s`` seconds
    (0: one in flight). Raises RuntimeError when a process failed."""
    count += _WARM_UP_PORTIONS
    paths = [directory / f"chain-{number}" for number in range(3)]
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> str:
        command = [sys.executable, __file__, *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None
        if not (line := started[-1].stdout.readline().strip()):
            raise RuntimeError(f"the process {arguments[0]} of the chain did not start; its error is above")
        return line

    try:
        ports = [start("follow", path, busy_ms) for path in paths[1:]]
        leader = start("lead", paths[0], busy_ms, *ports)
        start("receive", leader, count, client_ms)
        start("send", leader, count, size, every_s, client_ms)
        receiver, sender = started[-2:]
        found = {
            what: json.loads(process.communicate(timeout=count * (3 * every_s + 0.1) + _TIMEOUT_S)[0])
            for what, process in (("acked", sender), ("received", receiver))
        }
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for path in paths:
            path.unlink(missing_ok=True)
    return {what: percentiles(times[_WARM_UP_PORTIONS:]) for what, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    emit(machine=machine())
    WORK.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK) as made:
        directory = Path(made)
        for name, size, every_s in (("alone", 100, 0.0), ("1k", 100, 0.001), ("headline", 50_000, 0.005)):
            found = measure(directory, size=size, every_s=every_s, count=int(seconds / (every_s or 0.001)))
            emit(chain=name, **found)
            if every_s:
                emit(disk=name, **forced_portions(directory, size=size, every_s=every_s, seconds=seconds))


if __name__ == "__main__":
    role, rest = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("", [])
    if role == "flush":
        print(json.dumps(force_on_schedule(Path(rest[0]), int(rest[1]), float(rest[2]), float(rest[3]))))
    elif role == "follow":
        follow(Path(rest[0]), float(rest[1]))
    elif role == "lead":
        lead(Path(rest[0]), float(rest[1]), [int(port) for port in rest[2:]])
    elif role == "receive":
        print(json.dumps(receive(int(rest[0]), int(rest[1]), float(rest[2]))))
    elif role == "send":
        print("ready", flush=True)
        print(json.dumps(send(int(rest[0]), int(rest[1]), int(rest[2]), float(rest[3]), float(rest[4]))))
    else:
        main()
