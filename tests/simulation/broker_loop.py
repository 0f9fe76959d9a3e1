"""An event loop and a disk with virtual time, on which the brokers' asyncio code runs unchanged.

A loop stands for one process: when the process is killed, no code in it runs any more; while it is paused, all code
waits. Callbacks that are ready run together, as in asyncio's own loop, some time after the first of them became ready.
An exception of a callback is not only logged, as in asyncio, but counts as a violation.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError, StorageError
from headrace_core.log.turns import Turn
from headrace_core.log.writer import DirectoryWriter, _nothing
from headrace_core.testing.crashing_fs import SimulatedCrash
from headrace_core.testing.scheduler import Planned

if TYPE_CHECKING:
    from tests.simulation.broker_node import BrokerHost


#: Names of tasks whose handler awaits them and answers with their error.
_ANSWERED = frozenset({"delete_records"})


class _Buried(BaseException):
    """Ends the remaining code of a process when its world ends; no ``except Exception`` catches it."""


class Ready:
    """A callback that is scheduled for a time."""

    __slots__ = ("arguments", "callback", "context")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.arguments = arguments
        self.context = context

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


class Timer:
    """What ``call_later`` gives."""

    __slots__ = ("_is_cancelled", "_planned", "_ready", "_when")

    def __init__(self, when: float) -> None:
        self._planned: Planned | None = None
        self._ready: Ready | None = None
        self._when = when
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._planned is not None:
            self._planned.cancel()
        if self._ready is not None:  # it is due, and has not run yet
            self._ready.cancel()

    def cancelled(self) -> bool:
        return self._is_cancelled

    def when(self) -> float:
        return self._when


class SimLoop(asyncio.AbstractEventLoop):
    """The part of asyncio's event loop that the brokers' code uses. See the module."""

    def __init__(self, host: BrokerHost) -> None:
        self._host = host
        self._scheduler = host.world.scheduler
        self._ready: deque[Ready] = deque()
        self._is_scheduled = False
        self.is_dead = False
        self.is_paused = False
        self._held_until_ms = 0.0
        #: The world keeps the coroutines until its end, because a killed process runs no ``finally``.
        self._coroutines: list[Any] = []

    def time(self) -> float:
        return self._scheduler.now_ms / 1_000

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        ready = Ready(callback, args, context)
        self._ready.append(ready)
        if not self._is_scheduled and not self.is_dead:
            self._is_scheduled = True
            self._scheduler.after(self._host.loop_delay_ms() + self._held_for_ms(), self._turn)
        return ready

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        timer = Timer(when)

        def due() -> None:
            timer._ready = self.call_soon(callback, *args, context=context)

        timer._planned = self._scheduler.at(when * 1_000, due)
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> Any:
        self._coroutines.append(coro)
        host_loops = self._host.world.loops
        if self not in host_loops:
            host_loops.append(self)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name or "task")
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a process that is killed awaits nothing
        task.add_done_callback(self._task_ended)
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """The work of a thread runs at a single moment, a short time later."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

        self.call_later(self._host.world.rng.uniform(0.1, 1.0) / 1_000, work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.is_dead:
            # The process was killed after a task failed and before the loop's next turn: the task counts as it would
            # have counted in that turn. A future whose exception is never read is not a violation, because its reader
            # was killed.
            if isinstance(failed := context.get("future"), asyncio.Task):
                self._task_ended(failed)
            return
        if isinstance(error, BaseException) and not isinstance(error, SimulatedCrash):
            self._host.world.stumbled(self._host, error)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if getattr(task.get_coro(), "__name__", "") in _ANSWERED:
            return
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SimulatedCrash):
            self._host.task_failed(error)

    def held_up(self, for_ms: float) -> None:
        """Note that the current callback takes this much virtual time."""
        self._held_until_ms = self._scheduler.now_ms + for_ms

    def _turn(self) -> None:
        """Run all callbacks that are ready now; callbacks that become ready during the run run in the next turn."""
        if self.is_dead or self.is_paused:
            return
        self._is_scheduled = False
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                ready = self._ready.popleft()
                callback = ready.callback
                if callback is None:
                    continue
                if ready.context is None:
                    callback(*ready.arguments)
                else:
                    ready.context.run(callback, *ready.arguments)
                if self.is_dead:
                    break
        except SimulatedCrash:
            pass
        except Exception as error:  # noqa: BLE001 - nothing may be raised in the loop
            self._host.world.stumbled(self._host, error)
        finally:
            asyncio._set_running_loop(None)
        self._host.turned()
        if self._ready and not self._is_scheduled and not self.is_dead:
            self._is_scheduled = True
            self._scheduler.after(self._host.loop_delay_ms() + self._held_for_ms(), self._turn)

    def _held_for_ms(self) -> float:
        left_ms = self._held_until_ms - self._scheduler.now_ms
        return left_ms if left_ms > 0.0 else 0.0

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Deliver a message or a request from outside to the process."""
        self.call_soon(callback, *arguments)

    def die(self) -> None:
        self.is_dead = True
        self._ready.clear()

    def bury(self) -> None:
        """End the loop, because its world has ended."""
        self.die()
        asyncio._set_running_loop(self)
        try:
            for coroutine in self._coroutines:
                for _ in range(20):  # it may wait again in a ``finally``
                    if coroutine.cr_frame is None:
                        break
                    with contextlib.suppress(_Buried, Exception):
                        coroutine.throw(_Buried())
        finally:
            asyncio._set_running_loop(None)
        self._coroutines.clear()

    def resume(self) -> None:
        self.is_paused = False
        self._is_scheduled = True
        self._scheduler.after(0.0, self._turn)


class SimThread:
    """Stands for one of the writer's threads, which waits for the processor before it writes."""

    def __init__(self, writer: SimWriter) -> None:
        self._writer = writer

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def put(self, turn: Turn) -> None:
        wait_ms = self._writer._host.disk_delay_ms() / 4
        self._writer._loop.call_later(wait_ms / 1_000, self._writer.thread_writes, turn)


class SimWriter(DirectoryWriter):
    """Runs the product's writer in virtual time. The product decides whether a turn of the writer runs in the event
    loop or on the directory's thread. The simulation adds the threads, which do each part of their work at one moment,
    and the duration of disk operations. A turn on a thread writes its data (which are then read and pushed) some time
    before it forces them, and the machine may lose power between the two steps. A turn in the loop blocks the loop
    until the turn ends. Here all requests are small, so every turn of appends on the thread leaves room for a turn
    beside it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._thread = SimThread(self)  # type: ignore[assignment]
        self._thread_beside = SimThread(self)  # type: ignore[assignment]
        self._room_above_bytes = 0

    def thread_writes(self, turn: Turn) -> None:
        self._write(turn)
        if turn.failure is not None:
            self._loop.call_soon_threadsafe(self._end_turn, turn)
            return
        if turn.written:
            self._loop.call_soon_threadsafe(self._tell_advanced, turn.written, _nothing)
        delay_ms = self._host.disk_delay_ms()
        self._loop.call_later(delay_ms / 1_000, self._thread_forces, turn, delay_ms)

    def _thread_forces(self, turn: Turn, delay_ms: float) -> None:
        super()._flush(turn)
        turn.sync_ms = delay_ms
        self._loop.call_soon_threadsafe(self._end_turn, turn)

    def _flush(self, turn: Turn) -> None:
        """The method runs in the event loop."""
        if turn.failure is not None:
            return
        delay_ms = self._host.disk_delay_ms()
        self._loop.held_up(delay_ms)  # type: ignore[attr-defined]
        super()._flush(turn)
        turn.sync_ms = delay_ms

    def _failure_of(self, error: BaseException) -> StorageError:
        """A disk may fail; any other error is a bug, which the product would also treat as a failed disk."""
        if not isinstance(error, OSError | HeadraceError):
            self._host.world.stumbled(self._host, error)
        return super()._failure_of(error)

    @property
    def _host(self) -> BrokerHost:
        host: BrokerHost = self._loop._host  # type: ignore[attr-defined]
        return host
