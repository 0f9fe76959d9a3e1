"""Run brokers' code without threads: a thread's work runs in the event loop, some iterations later. The seed determines
the number of iterations, and the same seed gives the same history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

from headrace_broker import storage
from headrace_core.log.turns import Turn
from headrace_core.log.writer import DirectoryWriter, TurnResult

T = TypeVar("T")

#: The share of disk operations that would run on the directory's thread because the disk is slow.
ON_THREAD = 0.2
LOOP_TURNS_MAX = 4


class ThreadlessLoop(asyncio.SelectorEventLoop):
    def __init__(self, seed: object) -> None:
        super().__init__()
        self.rng = random.Random(f"threads {seed}")

    def later(self, act: Callable[[], object]) -> None:
        """Call ``act`` after some iterations of the loop."""
        self._wait(self.rng.randint(1, LOOP_TURNS_MAX), act)

    def _wait(self, turns: int, act: Callable[[], object]) -> None:
        self.call_soon(act if turns == 1 else lambda: self._wait(turns - 1, act))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

        self.later(work)
        return future


class LaterThread:
    """Stands for one of the writer's threads: a turn writes some iterations of the loop later, and flushes after some
    more."""

    def __init__(self, writer: ThreadlessWriter) -> None:
        self._writer = writer

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def put(self, turn: Turn) -> None:
        self._writer._loop.later(lambda: self._writer.write_now(turn))


class ThreadlessWriter(DirectoryWriter):
    """The product's writer. The seed, and not the duration of a flush or the size of a turn, determines which turns run
    on the "thread". While a turn of appends is there, the next turns may run beside it."""

    _loop: ThreadlessLoop

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._thread = LaterThread(self)  # type: ignore[assignment]
        self._thread_beside = LaterThread(self)  # type: ignore[assignment]

    def _leaves_room(self, turn: Turn) -> bool:
        return all(isinstance(step, tuple) for step in turn.steps)

    def write_now(self, turn: Turn) -> None:
        begun = self._write_all(turn)
        if isinstance(begun, TurnResult):
            self._loop.later(lambda: self._end_turn(turn, begun))
            return
        if begun.written:
            self._tell_written_soon(begun.written)
        self._loop.later(lambda: self._end_turn(turn, self._flush_all(turn, begun)))

    def _run_inline(self, turn: Turn) -> None:
        if self._loop.rng.random() < ON_THREAD:
            self._hand_over(turn)
        else:
            super()._run_inline(turn)

    def _flush_all(self, turn: Turn, begun: Any) -> TurnResult:
        return super()._flush_all(turn, begun)._replace(sync_ms=0.0)


def run_without_threads(seed: object, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Like ``asyncio.run(main())``."""
    with (
        mock.patch.object(storage, "DirectoryWriter", ThreadlessWriter),
        asyncio.Runner(loop_factory=lambda: ThreadlessLoop(seed)) as runner,
    ):
        return runner.run(main())
