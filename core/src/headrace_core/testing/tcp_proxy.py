"""A TCP proxy between real processes, with which tests break connections.

Nodes advertise the address of a ``FaultyNetwork``'s listener instead of their own addresses. Every connection therefore
passes through the proxy, which knows the process that opened the connection (by ``identify``) and the connection's
target. Between any two names, in either direction, a test may

    cut         lose all bytes, without a signal to either side: open connections stay open, and new connections are
                accepted and stay silent. ``heal`` resets cut connections, because TCP would have given up by then
    stall       hold back all bytes; after ``heal`` they arrive late (like a cable that was out for a moment)
    delay       deliver every byte later by the given time, in order
    throttle    deliver at most the given number of bytes per second
    refuse      reset new connections at once
    reset       reset the connections that are open now

A name in a rule may be ``ANY``. The last rule that matches a pair of names applies; ``heal`` removes rules. All methods
may be called from any thread. The proxy runs on a separate thread, which ``close`` ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

ANY = "*"  #: In a rule of the proxy, ANY matches any name.
_RESET = struct.pack("ii", 1, 0)
_PIECE_BYTES = 64 * 1024
#: Maximum bytes that one direction of a connection holds back before the proxy stops reading from it.
_HELD_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class Weather:
    """Faults that the proxy applies to bytes from one named process to another. ``bytes_per_second`` 0: unlimited."""

    is_cut: bool = False
    is_stalled: bool = False
    is_refused: bool = False
    delay_ms: float = 0.0
    bytes_per_second: float = 0.0


_FAIR = Weather()


class _Pipe:
    """One direction of one connection: it reads bytes, holds them back according to the faults in force, and writes
    them."""

    def __init__(
        self,
        network: FaultyNetwork,
        source: str,
        target: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._network = network
        self.source, self.target = source, target
        self._reader, self._writer = reader, writer
        #: (earliest time of delivery, bytes); b"" stands for the end of the stream.
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._moved = asyncio.Event()
        self._free_at = 0.0
        self.is_torn = False  #: Whether the proxy has lost bytes, so that the connection cannot continue.

    @property
    def weather(self) -> Weather:
        return self._network._weather(self.source, self.target)

    def weather_changed(self) -> None:
        self._moved.set()

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._held_bytes > _HELD_BYTES_MAX:
                self._moved.clear()
                await self._moved.wait()
            data = await self._reader.read(_PIECE_BYTES)
            weather = self.weather
            if weather.is_cut or self.is_torn:
                if data:
                    self.is_torn = True
                    self._network.dropped_bytes += len(data)
                    continue
                # A torn or cut connection does not forward the end of the stream.
                if self.is_torn or weather.is_cut:
                    self.is_torn = True
                    return
            self._held.append((loop.time() + weather.delay_ms / 1000, data))
            self._held_bytes += len(data)
            self._moved.set()
            if not data:
                return

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            weather = self.weather
            if not self._held or weather.is_stalled or weather.is_cut:
                if weather.is_cut and self._held:  # some bytes were in flight when the cable was cut
                    self.is_torn = True
                    self._held.clear()
                    self._held_bytes = 0
                self._moved.clear()
                await self._moved.wait()
                continue
            due = max(self._held[0][0], self._free_at)
            if due > now:
                self._moved.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due - now):
                        await self._moved.wait()
                continue
            _, data = self._held.popleft()
            self._held_bytes -= len(data)
            self._moved.set()
            if not data:
                with contextlib.suppress(OSError, RuntimeError):
                    self._writer.write_eof()
                return
            if weather.bytes_per_second:
                self._free_at = now + len(data) / weather.bytes_per_second
            self._writer.write(data)
            self._network.carried_bytes += len(data)
            await self._writer.drain()


class _Connection:
    """A connection: two pipes between the opener and the target."""

    def __init__(
        self,
        network: FaultyNetwork,
        source: str,
        target: str,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.source, self.target = source, target
        self._broken = asyncio.Event()
        self._writers = (near[1], far[1])
        self.pipes = (_Pipe(network, source, target, near[0], far[1]), _Pipe(network, target, source, far[0], near[1]))

    async def run(self) -> None:
        tasks = [asyncio.create_task(work()) for pipe in self.pipes for work in (pipe.read, pipe.write)]
        broken = asyncio.create_task(self._broken.wait())
        try:
            waiting = set(tasks)
            while waiting and not self._broken.is_set():
                done, _ = await asyncio.wait({*waiting, broken}, return_when=asyncio.FIRST_COMPLETED)
                if any(task.exception() is not None for task in done):  # forward a reset of one side to the other side
                    self.reset()
                waiting -= done
        finally:
            for task in (*tasks, broken):
                task.cancel()
            await asyncio.gather(*tasks, broken, return_exceptions=True)
            for writer in self._writers:
                writer.close()

    def reset(self) -> None:
        self._broken.set()
        for writer in self._writers:
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with RST instead of FIN, as a restarted machine does."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class FaultyNetwork:
    """A proxy with faults, as the module's docstring describes. ``identify(port, to)`` returns the name of the process
    that opened a connection from local port ``port`` to port ``to``. The proxy calls ``identify`` on a thread."""

    def __init__(self, identify: Callable[[int, int], str] = lambda port, to: "") -> None:
        self._identify = identify
        self._rules: list[tuple[str, str, Weather]] = []
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        #: Number of bytes that the proxy has forwarded; ``dropped_bytes`` is the number of lost bytes.
        self.carried_bytes = 0
        self.dropped_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty network", daemon=True)
        self._thread.start()

    def listen(self, target: str, port: int, *, host: str = "127.0.0.1", listen_port: int = 0) -> int:
        """Listen for connections to ``target``, which itself listens on ``port``; returns the port to advertise. Raises
        OSError."""
        return self._call(self._listen(target, host, port, listen_port))

    def cut(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Stop all bytes from ``source`` to ``target`` and, unless ``one_way``, from ``target`` to ``source``."""
        self._rule(source, target, Weather(is_cut=True), one_way)

    def stall(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Hold back all bytes between the two names until ``heal``."""
        self._rule(source, target, Weather(is_stalled=True), one_way)

    def delay(self, source: str, target: str, delay_ms: float, *, one_way: bool = False) -> None:
        self._rule(source, target, Weather(delay_ms=delay_ms), one_way)

    def throttle(self, source: str, target: str, bytes_per_second: float, *, one_way: bool = False) -> None:
        self._rule(source, target, Weather(bytes_per_second=bytes_per_second), one_way)

    def refuse(self, source: str, target: str) -> None:
        """Refuse new connections from ``source`` to ``target``; open connections stay."""
        self._rule(source, target, Weather(is_refused=True), one_way=True)

    def reset(self, source: str = ANY, target: str = ANY) -> int:
        """Reset the connections that ``source`` opened to ``target``; returns their number."""

        async def do() -> int:
            found = [each for each in self._connections if _fits(each.source, source) and _fits(each.target, target)]
            for each in found:
                each.reset()
            return len(found)

        return self._call(do())

    def heal(self, source: str = ANY, target: str = ANY) -> None:
        """Remove the rules between the given names, in both directions (without names: all rules). Connections that
        lost bytes under a removed rule are reset."""

        async def do() -> None:
            everything = source == ANY and target == ANY
            self._rules = [rule for rule in self._rules if not everything and {rule[0], rule[1]} != {source, target}]
            for each in self._connections:
                healed = [pipe for pipe in each.pipes if not pipe.weather.is_cut]
                if any(pipe.is_torn for pipe in each.pipes) and len(healed) == 2:
                    each.reset()
            self._weather_changed()

        self._call(do())

    def connections(self, source: str = ANY, target: str = ANY) -> int:
        """Return the number of open connections from ``source`` to ``target``."""

        async def do() -> int:
            return sum(_fits(each.source, source) and _fits(each.target, target) for each in self._connections)

        return self._call(do())

    def close(self) -> None:
        """Reset all connections, and end the proxy's thread."""

        async def do() -> None:
            for server in self._servers:
                server.close()
            for each in list(self._connections):
                each.reset()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._call(do())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def __enter__(self) -> FaultyNetwork:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)

    def _rule(self, source: str, target: str, weather: Weather, one_way: bool) -> None:
        async def do() -> None:
            self._rules.append((source, target, weather))
            if not one_way:
                self._rules.append((target, source, weather))
            self._weather_changed()

        self._call(do())

    def _weather(self, source: str, target: str) -> Weather:
        found = _FAIR
        for of_source, of_target, weather in self._rules:
            if _fits(source, of_source) and _fits(target, of_target):
                found = weather
        return found

    def _weather_changed(self) -> None:
        for each in self._connections:
            for pipe in each.pipes:
                pipe.weather_changed()

    async def _listen(self, target: str, host: str, port: int, listen_port: int) -> int:
        def opened(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._carry(target, host, port, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(opened, host, listen_port, limit=_PIECE_BYTES, backlog=512)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _carry(
        self, target: str, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            port_from, port_to = (int(writer.get_extra_info(end)[1]) for end in ("peername", "sockname"))
            source = await asyncio.to_thread(self._identify, port_from, port_to)
        except BaseException:
            _reset(writer)
            raise
        if self._weather(source, target).is_refused:
            _reset(writer)
            return
        try:
            far = await asyncio.open_connection(host, port, limit=_PIECE_BYTES)
        except OSError:  # the target has no listener, so behave as if the proxy had no listener
            _reset(writer)
            return
        connection = _Connection(self, source, target, (reader, writer), far)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)


def _fits(name: str, pattern: str) -> bool:
    return pattern in (ANY, name)
