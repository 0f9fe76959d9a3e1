"""The clients through which the console reads and changes the cluster: the public SDK, like any other program."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headrace import Admin, AsyncAdmin, AsyncConsumer

from .settings import DEFAULT_BOOTSTRAP, ConsoleSettings

T = TypeVar("T")

#: Seconds that a page waits for one request to the cluster.
REQUEST_S = 5.0
#: Threads for requests that wait in a thread: the samples, the doctor, the schema registry.
_THREADS = 6
#: A page reads at most so many bytes of a partition at once, and of all partitions.
_PARTITION_BYTES, _FETCH_BYTES = 1 << 20, 8 << 20


class Cluster:
    """The clients of one console. ``admin`` is for coroutines; ``blocking`` is for the tools' code, in threads."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self._config: dict[str, Any] = {
            "client.id": "headrace-console",
            "bootstrap.timeout.ms": 3_000,
            **settings.client,
            "bootstrap.servers": settings.bootstrap,
        }
        self.admin = AsyncAdmin(self._config)
        self.blocking = Admin(self._config)
        self._threads = asyncio.Semaphore(_THREADS)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking code in a thread. A daemon thread, because the interpreter would wait at its end for the threads
        of a pool, and with them for silent nodes."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 -- the caller raises it
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, result, error)

        async with self._threads:
            threading.Thread(target=run, name="headrace-console", daemon=True).start()
            return await future

    def consumer(self, *, is_committed: bool = False) -> AsyncConsumer:
        """A consumer without a group, for one search or one live view."""
        return AsyncConsumer(
            self._config
            | {
                "isolation.level": "read_committed" if is_committed else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "max.partition.fetch.bytes": _PARTITION_BYTES,
                "fetch.max.bytes": _FETCH_BYTES,
            }
        )

    def command(self, *words: str) -> list[str]:
        """The words of a command line for this cluster."""
        is_default = self.settings.bootstrap_servers[0] == DEFAULT_BOOTSTRAP
        flags = [] if is_default else ["-b", self.settings.bootstrap]
        return ["headrace", *words, *flags]

    async def close(self) -> None:
        await self.admin.close()
        await self.in_thread(self.blocking.close)
