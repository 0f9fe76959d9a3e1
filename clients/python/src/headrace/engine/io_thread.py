"""The I/O thread: each process has one, with one event loop, for all its clients, blocking and asyncio.

Asyncio clients use the I/O thread too, for three reasons. grpc.aio fails with several event loops in a process. A busy
user loop must not delay heartbeats or a producer's sender. Connections must survive the end of an event loop (two
``asyncio.run`` in a row). The hot paths (a producer's append, a consumer's decode) run in the caller's thread, and only
wake the I/O thread.

**Fork.** gRPC's threads do not survive a fork, and gRPC's state cannot be reset in the child. A client that was used
before the fork raises IllegalStateError in the child. A client that was only opened works in the child, because it
registers at its first use (``Engine.io``). A child process may use clients if no used client was open in its parent at
the fork; otherwise its clients raise an error instead of hanging. The I/O thread is started by the first client that
needs it, never by an import.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import errno
import gc
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace_core.errors import ClosedError, IllegalStateError
from headrace_core.rpc.event_loop import new_event_loop

from ..callbacks import refuse_to_wait, set_io_thread

logger = logging.getLogger("headrace")
T = TypeVar("T")


class Tenant(Protocol):
    """A client or a cluster that uses the I/O thread: it is notified after a fork (in the child) and when the process
#: Called on the I/O thread with the task of a call for which the program no longer waits.
Interrupted = Callable[[asyncio.Task[Any]], object]

    ends."""

    def after_fork(self) -> None: ...

    def at_exit(self) -> None: ...


class IoThread:
    """The I/O thread with its event loop; ``io_thread()`` returns the I/O thread of this process."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.loop.set_exception_handler(_note)
        self._thread = threading.Thread(target=self._run, name="headrace-io", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            try:
                self.loop.run_forever()
            # Asyncio lets SystemExit and KeyboardInterrupt end an event loop, but clients need this loop.
            except BaseException:
                logger.exception("Headrace's I/O thread caught an error and continues")
            else:
                return

    @property
    def thread(self) -> threading.Thread:
        return self._thread

    def submit(
        self, work: Coroutine[Any, Any, T], interrupted: Interrupted = asyncio.Task.cancel
    ) -> concurrent.futures.Future[T]:
        """Start a coroutine on the I/O thread; call this method from any other thread. Cancelling the future cancels
        the coroutine, or calls ``interrupted`` with its task, on the I/O thread."""
        return self._submit(work, interrupted)

    def _submit(self, work: Coroutine[Any, Any, T], interrupted: Interrupted) -> _Outcome[T]:
        future: _Outcome[T] = _Outcome(self, interrupted)
        self.loop.call_soon_threadsafe(future.start, work)
        return future

    def run(
        self,
        work: Coroutine[Any, Any, T],
        timeout: float | None = None,
        interrupted: Interrupted = asyncio.Task.cancel,
    ) -> T:
        """Run a coroutine on the I/O thread and wait for its result (``timeout`` in seconds). Ctrl-C cancels it, or
        calls ``interrupted``.

        Raises IllegalStateError if a callback on the I/O thread calls ``run``; ClosedError when the client is closed
        while ``run`` waits.
        """
        try:
            refuse_to_wait()
        except IllegalStateError:
            work.close()
            raise
        future = self._submit(work, interrupted)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:  # the close of the client cancelled the future, not this call
            raise interrupted_error() from None
        except BaseException as error:
            if not future.done() or future.exception() is not error:
                future.cancel()
            raise
        finally:
            # Drop the future: the traceback of the future's error would keep this frame and the frames of the callers.
            del future

    async def run_async(self, work: Coroutine[Any, Any, T], interrupted: Interrupted = asyncio.Task.cancel) -> T:
        """Run a coroutine on the I/O thread, and await its result from another event loop. Cancelling the caller
        cancels the coroutine, or calls ``interrupted``, even if the coroutine has just ended: its result is lost."""
        future = self._submit(work, interrupted)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise interrupted_error() from None

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
                future.cancel()
        """Schedule ``function`` on the I/O thread; callable from any thread. ``call`` does nothing while the process
        ends."""
        except GeneratorExit:  # the caller's event loop has ended
            future.cancel()
            raise
        with contextlib.suppress(RuntimeError):  # a closed loop raises RuntimeError: the process is ending
            self.loop.call_soon_threadsafe(function, *arguments)

    def spawn(
        self, work: Coroutine[Any, Any, Any], name: str, failed: Callable[[str, BaseException], object] | None = None
    ) -> asyncio.Task[Any]:
        """Start a background task, from the I/O thread. An exception of the task is logged, and passed to ``failed``
        with the task's name."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finished, failed))
        return task

    def _finished(self, failed: Callable[[str, BaseException], object] | None, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %s failed", task.get_name(), exc_info=error)
            if failed is not None:
                failed(task.get_name(), error)

    def stop(self) -> None:
        """End the thread. Close all clients before you call ``stop``."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


class _Outcome(concurrent.futures.Future[T]):
    """The result of a coroutine that runs on the I/O thread. A callback on the I/O thread cannot wait for the result of
    a coroutine on that thread (``refuse_to_wait``)."""

    def settle(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            super().cancel()
        if not self.set_running_or_notify_cancel():
            return
        if (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            refuse_to_wait("result()")
        try:
            return super().result(timeout)
        finally:
            del self  # drop ``self``: the traceback of the error keeps this frame

    def __init__(self, io: IoThread, interrupted: Interrupted) -> None:
        super().__init__()
        self._io = io
        self._interrupted: Interrupted | None = interrupted
        self._task: asyncio.Task[T]

    def start(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._io.loop.create_task(work)
        self._task.add_done_callback(self.settle)

    def cancel(self) -> bool:
        """The caller takes no result any more; the coroutine may have ended. (The calls of a thread keep their order:
        its next call starts after this one was interrupted.)"""
        cancelled = super().cancel()
        self._io.call(self._interrupt)
        return cancelled

    def _interrupt(self) -> None:
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None:
            interrupted(self._task)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            refuse_to_wait("exception()")
        return super().exception(timeout)


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an unhandled error of the event loop. An EBADF error of grpc.aio's poller is harmless, so it is not logged:
    the poller sometimes reads a descriptor that was closed when another event loop ended."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno == errno.EBADF and "_handle_events" in _innermost(error):
        logger.debug("grpc's poller met a closed descriptor")
    else:
        loop.default_exception_handler(context)


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_name


def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Schedule ``function`` on a caller's event loop; does nothing when that loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function)


_lock = threading.Lock()
_current: IoThread | None = None
_tenants: weakref.WeakSet[Any] = weakref.WeakSet()
# Stop in-process clusters last, because the clients of this thread need the cluster until they are closed.
_last_to_leave: weakref.WeakSet[Any] = weakref.WeakSet()
_leaves_before_pools = False
_grpc_before_fork = False
_unusable = False  # True in a child process whose parent had open connections


def io_thread() -> IoThread:
    """Return the process's I/O thread; the first call starts it. Raises IllegalStateError in a forked child process
    that cannot have an I/O thread."""
    global _current
    if _unusable:
        raise IllegalStateError(
            "this process was forked from a process with open gRPC connections, and gRPC does not work in a forked "
            "child: start the child with spawn (multiprocessing.set_start_method('spawn')), or close all clients "
            "before the fork"
        )
    with _lock:
        if _current is None:
            _current = IoThread()
            set_io_thread(_current.thread)
        return _current


def register(tenant: Tenant, *, last: bool = False) -> None:
    """Notify ``tenant`` of forks and of the process's end as long as other objects refer to ``tenant``. ``last``:
    notify this tenant after all other tenants."""
    _tenants.add(tenant)
    if last:
        _last_to_leave.add(tenant)


def forget(tenant: Tenant) -> None:
    _tenants.discard(tenant)
    _last_to_leave.discard(tenant)


def leave_before_pools() -> None:
    """At interpreter exit, close all users of the I/O thread (clients and LocalClusters). Clients and LocalClusters are
    closed before concurrent.futures ends its thread pools, because a LocalCluster's nodes need the pools until they
    have stopped. Python also joins the program's other threads at interpreter exit."""
    global _leaves_before_pools
    with _lock:
        register_atexit = getattr(threading, "_register_atexit", None)  # concurrent.futures uses this private hook too
        if register_atexit is not None and not _leaves_before_pools:
            _leaves_before_pools = True
            register_atexit(_at_exit)


def forked_error(what: str) -> IllegalStateError:
    return IllegalStateError(
        f"this {what} was opened before the process forked, and connections do not survive a fork: open a new "
        f"{what} in the child process (with multiprocessing, use the spawn or forkserver start method)"
    )


def closed_error(what: str) -> ClosedError:
    return ClosedError(f"this {what} is closed")


def interrupted_error() -> ClosedError:
    return ClosedError(
        "the client was closed during this call; Python closes a client that no variable refers to, so keep the "
        "client in a variable (with Producer(...) as producer: ...)"
    )


def _grpc_is_alive() -> bool:
    """Whether gRPC has threads: the poller of grpc.aio, or the threads of gRPC's core. The poller ends with the last
    gRPC object; the threads of gRPC's core end a moment later. A child that is forked between the end of the poller and
    the end of gRPC's core would hang, because gRPC is only half closed."""
    if any(thread.name.endswith("(_poll_wrapper)") for thread in threading.enumerate()):
        return True
    return any(name.startswith(("event_engine", "lifeguard", "grpc_")) for name in _native_threads())


def _native_threads() -> list[str]:
    """The names of this process's threads, as the kernel knows them; empty without /proc (macOS)."""
    names = []
    for thread in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread may have ended during the read
            names.append(thread.read_text().strip())
    return names


def _before_fork() -> None:
    """Let the garbage collector free closed clients, so that the child process can start its own I/O thread."""
    global _grpc_before_fork
    if _current is not None and not _tenants and _grpc_is_alive():
        gc.collect()
        give_up = time.monotonic() + 1.0
        while _grpc_is_alive() and time.monotonic() < give_up:
            time.sleep(0.005)
    _grpc_before_fork = _grpc_is_alive()


def _after_fork_in_child() -> None:
    global _current, _lock, _unusable
    _lock = threading.Lock()
    _unusable = _unusable or bool(_tenants) or _grpc_before_fork
    _current = None
    set_io_thread(None)
    for tenant in list(_tenants):
        tenant.after_fork()
    _tenants.clear()
    _last_to_leave.clear()


def _at_exit() -> None:
    global _current
    for tenant in sorted(_tenants, key=lambda tenant: tenant in _last_to_leave):
        try:
            tenant.at_exit()
        except Exception:
            logger.exception("closing %r at exit failed", tenant)
    with _lock:
        thread, _current = _current, None
    if thread is not None:
        thread.stop()
        set_io_thread(None)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
