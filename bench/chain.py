"""Measure the machine's own time for acks=all: five small programs exchange bytes over sockets and flush them.

A sender, a leader, two followers and a receiver are processes, as in replicated.py. The leader sends each portion to
the followers and appends it to a file, which it flushes. A follower does the same with its own file, and answers with
one byte. When both have answered, the leader answers the sender and sends the portion to the receiver. Portions that
wait in the leader's socket are flushed together, as a broker does. There is no gRPC, no check and no index.

``measure`` measures what the scheduler, the sockets and the disk need without any system. With ``busy_ms`` each of the
three nodes also computes for so long for each portion, and with ``client_ms`` each client does: then the chain has the
processor time of a system, but not its way of working.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from measure import percentiles

#: A portion: its size without this header in bytes, and the time when it was due (perf_counter_ns).
_HEADER = struct.Struct(">IQ")
_WARM_UP_PORTIONS = 50
_START_S = 0.2
_TIMEOUT_S = 60.0


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
            what: json.loads(process.communicate(timeout=3 * count * every_s + _TIMEOUT_S)[0])
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


if __name__ == "__main__":
    role, rest = sys.argv[1], sys.argv[2:]
    if role == "follow":
        follow(Path(rest[0]), float(rest[1]))
    elif role == "lead":
        lead(Path(rest[0]), float(rest[1]), [int(port) for port in rest[2:]])
    elif role == "receive":
        print(json.dumps(receive(int(rest[0]), int(rest[1]), float(rest[2]))))
    else:
        print("ready", flush=True)
        print(json.dumps(send(int(rest[0]), int(rest[1]), int(rest[2]), float(rest[3]), float(rest[4]))))
