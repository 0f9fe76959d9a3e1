"""The I/O thread: each process has one, with one event loop, for all its clients, blocking and asyncio.

Asyncio clients use the I/O thread too, for three reasons. grpc.aio fails with several event loops in a process. A busy
user loop must not delay heartbeats or a producer's sender. Connections must survive the end of an event loop (two
``asyncio.run`` in a row). The hot paths (a producer's append, a consumer's decode) run in the caller's thread, and only
wake the I/O thread.

**Fork.** gRPC's threads do not survive a fork, and gRPC's state cannot be reset in the child. A client that was used
before the fork raises IllegalStateError in the child, which keeps its connections, untouched, until the child ends. A
client that was only opened works in the child, because it registers at its first use (``Engine.io``). A child process
may use clients if no used client was open in its parent at the fork; otherwise its clients raise an error instead of
hanging. The I/O thread is started by the first client that needs it, never by an import.

**gevent.** The I/O thread is a thread of the operating system in a program with gevent's patches too; the waits of its
callers let other greenlets run (headrace_core.real_threads). Under eventlet's patches clients raise
IllegalStateError, and asyncio clients do under trio.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import errno
import gc
import logging
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headrace_core import real_threads
from headrace_core.errors import ClosedError, IllegalStateError
from headrace_core.rpc import grpc_poller
from headrace_core.rpc.event_loop import new_event_loop

from ..callbacks import SIGNALS_S, refuse_to_wait, set_io_thread

logger = logging.getLogger("headrace")
T = TypeVar("T")

#: Seconds that the end of a closed client's connections may take.
END_S = 2.0
#: Called on the I/O thread with the task of a call for which the program no longer waits.
Interrupted = Callable[[asyncio.Task[Any]], object]


class Tenant(Protocol):
    """A client or a cluster that uses the I/O thread: it is notified after a fork (in the child) and when the process
    ends."""

    def after_fork(self) -> None: ...

    def at_exit(self) -> None:
        """A client begins its close (``IoThread.finish``); a cluster stops."""


class IoThread:
    """The I/O thread with its event loop; ``io_thread()`` returns the I/O thread of this process."""

    def __init__(self) -> None:
        self.loop = new_event_loop()
        self.loop.set_exception_handler(_note)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = real_threads.start_thread(self._run, "headrace-io")

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
    def thread(self) -> real_threads.Thread:
        return self._thread

    def submit(
        self, work: Coroutine[Any, Any, T], interrupted: Interrupted = asyncio.Task.cancel
    ) -> concurrent.futures.Future[T]:
        """Start a coroutine on the I/O thread; call this method from any other thread. Cancelling the future cancels
        the coroutine, or calls ``interrupted`` with its task, on the I/O thread."""
        future = _Outcome(self, work, interrupted)
        self.loop.call_soon_threadsafe(future.start)
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
        future = _Outcome(self, work, interrupted)
        try:  # from here on Ctrl-C, which may come at any line, reaches the coroutine
            self.loop.call_soon_threadsafe(future.start)
            return future.result(timeout)
        except concurrent.futures.CancelledError:  # the close of the client cancelled the future, not this call
            raise interrupted_error() from None
        except BaseException as error:
            if not future.done() or future.cancelled() or future.exception() is not error:
                future.cancel()
            raise
        finally:
            # Drop the future: the traceback of the future's error would keep this frame and the frames of the callers.
            del future

    async def run_async(self, work: Coroutine[Any, Any, T], interrupted: Interrupted = asyncio.Task.cancel) -> T:
        """Run a coroutine on the I/O thread, and await its result from another event loop. Cancelling the caller
        cancels the coroutine, or calls ``interrupted``, even if the coroutine has just ended: its result is lost."""
        refuse_other_loops(work)
        future = _Outcome(self, work, interrupted)
        self.loop.call_soon_threadsafe(future.start)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                future.cancel()
                raise
            raise interrupted_error() from None
        except GeneratorExit:  # the caller's event loop has ended
            future.cancel()
            raise

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Schedule ``function`` on the I/O thread; callable from any thread. ``call`` does nothing while the process
        ends."""
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

    def finish(
        self, close: Coroutine[Any, Any, None], timeout_s: float, left: Callable[[], str] = str
    ) -> concurrent.futures.Future[None]:
        """Run the close of a client in the background. The end of the process waits for it, at most ``timeout_s``, and
        then warns of what it ``left``. The garbage collector may call ``finish``, in any thread."""
        closing = self.submit(close)
        _closes[closing] = timeout_s, left
        closing.add_done_callback(self._has_closed)
        return closing

    def end(self, close: Coroutine[Any, Any, None]) -> None:
        """End the connections of a closed client: wait at most END_S, then let it continue in the background."""
        concurrent.futures.wait([self.finish(close, END_S)], END_S)

    async def end_async(self, close: Coroutine[Any, Any, None]) -> None:
        refuse_other_loops(close)
        ending = asyncio.wrap_future(self.finish(close, END_S))
        await asyncio.shield(asyncio.wait([ending], timeout=END_S))

    def _has_closed(self, closing: concurrent.futures.Future[None]) -> None:
        _closes.pop(closing, None)
        if not closing.cancelled() and (error := closing.exception()) is not None:
            context = {"message": "the close of a client failed", "exception": error}
            self.loop.call_exception_handler(context)  # logged to stderr, whatever the program logs

    def stop(self) -> None:
        """End the thread. Close all clients before you call ``stop``."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)


class _Outcome(concurrent.futures.Future[T]):
    """The result of a coroutine that runs on the I/O thread. A callback on the I/O thread cannot wait for the result of
    a coroutine on that thread (``refuse_to_wait``)."""

    def __init__(self, io: IoThread, work: Coroutine[Any, Any, T], interrupted: Interrupted) -> None:
        super().__init__()
        self._io = io
        self._work: Coroutine[Any, Any, T] | None = work
        self._interrupted: Interrupted | None = interrupted
        self._task: asyncio.Task[T]

    def start(self) -> None:
        work, self._work = self._work, None
        if work is not None:
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
            self.start()  # Ctrl-C came before the caller had scheduled it: what cleans up needs a task
            interrupted(self._task)

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
            while timeout is None:
                try:
                    return super().result(SIGNALS_S)
                except TimeoutError:
                    if self.done():  # it ended meanwhile, or with this error
                        break
            return super().result(timeout)
        finally:
            del self  # drop ``self``: the traceback of the error keeps this frame

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
#: The tenants by their ids. (A WeakSet cannot be copied while another thread, or the garbage collector, removes one.)
_tenants: dict[int, weakref.ref[Any]] = {}
# Stop in-process clusters last, because the clients of this thread need the cluster until they are closed.
_last_to_leave: weakref.WeakSet[Any] = weakref.WeakSet()
#: Closes in the background: how many seconds the end of the process waits, and what is lost without the close.
_closes: dict[concurrent.futures.Future[None], tuple[float, Callable[[], str]]] = {}
_EXIT = "headrace-exit"
_leaves_before_pools = False
_is_ending = False  # the process closes its clients, and opens no new ones
_grpc_before_fork = False
_unusable = False  # True in a child process whose parent had open connections


def io_thread() -> IoThread:
    """Return the process's I/O thread; the first call starts it. Raises IllegalStateError in a forked child process
    that cannot have an I/O thread, and at the end of the process."""
    global _current
    if _unusable:
        raise IllegalStateError(
            "this process was forked from a process with open gRPC connections, and gRPC does not work in a forked "
            "child: start the child with spawn (multiprocessing.set_start_method('spawn')), or close all clients "
            "before the fork"
        )
    if _is_ending:
        raise IllegalStateError(
            "the process is ending, and Headrace has closed its clients: use a client earlier, or in a function that "
            "atexit.register got after `import headrace`"
        )
    real_threads.refuse_eventlet()
    with _lock:
        if real_threads.are_green():  # also if gevent came later than the I/O thread
            grpc_poller.let_grpc_poll()
        if _current is None:
            _current = IoThread()
            set_io_thread(_current.thread)
            if not _before_threads_are_joined(_close_in_child):
                _close_in_child()  # the main thread has ended
        return _current


def register(tenant: Tenant, *, last: bool = False) -> None:
    """Notify ``tenant`` of forks and of the process's end as long as other objects refer to ``tenant``. ``last``:
    notify this tenant after all other tenants."""
    key = id(tenant)
    _tenants[key] = weakref.ref(tenant, lambda _: _tenants.pop(key, None))
    if last:
        _last_to_leave.add(tenant)


def forget(tenant: Tenant) -> None:
    _tenants.pop(id(tenant), None)
    _last_to_leave.discard(tenant)


def _here() -> list[Tenant]:
    found = [reference() for reference in list(_tenants.values())]
    return [tenant for tenant in found if tenant is not None]


def leave_before_pools() -> None:
    """At interpreter exit, close all users of the I/O thread (clients and LocalClusters). Clients and LocalClusters are
    closed before concurrent.futures ends its thread pools, because a LocalCluster's nodes need the pools until they
    have stopped. Python also joins the program's other threads at interpreter exit."""
    global _leaves_before_pools
    with _lock:
        if not _leaves_before_pools:
            _leaves_before_pools = True
            _before_threads_are_joined(_at_exit)


def _before_threads_are_joined(work: Callable[[], object]) -> bool:
    """Call ``work`` when the interpreter ends, before it joins the program's other threads. Returns False if it joins
    them already."""
    try:
        threading._register_atexit(work)  # type: ignore[attr-defined]  # concurrent.futures uses this private hook too
    except RuntimeError:
        return False
    except AttributeError:
        pass
    return True


def _close_in_child() -> None:
    """Close the clients of a child of multiprocessing, which ends with os._exit, without atexit. Its other threads may
    use the clients until they end, so a thread, which Python joins too, waits for them first. One such thread: a child
    inherits the calls that its parents registered, and two threads would wait for each other."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _current is None:
        return
    if all(thread.name != _EXIT for thread in threading.enumerate()):
        threading.Thread(target=_after_other_threads, name=_EXIT, daemon=False).start()


def _after_other_threads() -> None:
    own = threading.current_thread(), threading.main_thread()
    while others := [each for each in threading.enumerate() if each not in own and not each.daemon]:
        for thread in others:
            thread.join()
    _at_exit()


def refuse_other_loops(work: Coroutine[Any, Any, Any] | None = None) -> None:
    """Raise IllegalStateError in a task of trio, which cannot await what asyncio clients return; then close ``work``.
    Without ``work``, code that runs in no event loop passes: a client may be created there."""
    trio = sys.modules.get("trio")
    if (trio is not None and trio.lowlevel.in_trio_task()) or (
        work is not None and asyncio._get_running_loop() is None
    ):
        if work is not None:
            work.close()
        raise IllegalStateError(
            "asyncio clients need asyncio's event loop, and this code runs in another one, such as trio's: use the "
            "blocking client in a thread (trio.to_thread.run_sync(producer.flush)), or run anyio on its backend asyncio"
        )


def forked_error(what: str) -> IllegalStateError:
    return IllegalStateError(
        f"this {what} was opened before the process forked, and connections do not survive a fork: open a new "
        f"{what} in the child process (with multiprocessing, use the spawn or forkserver start method)"
    )


def closed_error(what: str) -> ClosedError:
    return ClosedError(f"this {what} is closed")


def interrupted_error() -> ClosedError:
    if _is_ending:
        return ClosedError("the client was closed during this call, because the process is ending")
    return ClosedError(
        "the client was closed during this call; Python closes a client that no variable refers to, so keep the "
        "client in a variable (with Producer(...) as producer: ...)"
    )


def _grpc_is_alive() -> bool:
    """Whether gRPC has threads: the poller of grpc.aio, or the threads of gRPC's core. The poller ends with the last
    gRPC object; the threads of gRPC's core end a moment later. A child that is forked between the end of the poller and
    the end of gRPC's core would hang, because gRPC is only half closed."""
    if any(thread.name.endswith("(_poll_wrapper)") for thread in threading.enumerate()) or grpc_poller.grpc_polls():
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
    if _current is not None and not _tenants and not _closes and _grpc_is_alive():
        gc.collect()
        give_up = time.monotonic() + 1.0
        while _grpc_is_alive() and time.monotonic() < give_up:
            time.sleep(0.005)
    _grpc_before_fork = _grpc_is_alive()


def _after_fork_in_child() -> None:
    global _current, _lock, _unusable, _is_ending
    _lock = threading.Lock()
    _unusable = _unusable or bool(_tenants) or _grpc_before_fork
    if _current is not None:
        _keep_for_ever(_current)
    _current = None
    _is_ending = False
    set_io_thread(None)
    for tenant in _here():
        tenant.after_fork()
    _tenants.clear()
    _last_to_leave.clear()
    _closes.clear()


def _keep_for_ever(io: IoThread) -> None:
    """Keep what refers to gRPC's objects of the parent process, in the end of the interpreter too: the clients, and the
    tasks on the I/O thread. The destructors would wait for threads and locks that the child does not have, or abort it.
    (To search the heap for these objects would copy it: their reference counts share its pages.)"""
    for each in (io, *_here(), *_closes, *asyncio.all_tasks(io.loop)):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))


def _at_exit() -> None:
    """Close the clients that the program has left open, all at the same time. Then stop the clusters of this
    process."""
    global _current, _is_ending
    _is_ending = True
    tenants = _here()
    try:
        _leave(tenant for tenant in tenants if tenant not in _last_to_leave)
        _await_closes()
    finally:
        _leave(tenant for tenant in tenants if tenant in _last_to_leave)
        with _lock:
            thread, _current = _current, None
        if thread is not None:
            thread.stop()
            set_io_thread(None)


def _leave(tenants: Iterable[Tenant]) -> None:
    for tenant in tenants:
        try:
            tenant.at_exit()
        except Exception:
            logger.exception("closing %r at exit failed", tenant)


def _await_closes() -> None:
    """Wait for the closes in the background, each at most its time. Warn of what they leave, also after Ctrl-C."""
    began = time.monotonic()
    try:
        while waiting := dict(_closes):  # (the I/O thread removes one that has ended)
            left_s = began + max(timeout_s for timeout_s, _ in waiting.values()) - time.monotonic()
            if left_s <= 0:
                return
            done, _ = concurrent.futures.wait(waiting, left_s, concurrent.futures.FIRST_COMPLETED)
            for closing in done:
                _closes.pop(closing, None)
    finally:
        if lost := [text for _, left in list(_closes.values()) if (text := left())]:
            lose("; ".join(lost))


def lose(text: str) -> None:
    """Warn of records that are lost in the background, each time: Python shows a repeated warning once for a line."""
    logger.warning("%s", text)
    warnings.warn_explicit(text, RuntimeWarning, "headrace", 0, registry={})


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
