"""Real threads in a program whose threads are greenlets, because gevent has patched ``threading``.

An event loop and gRPC's poller wait in native code. As greenlets they would stop the whole program, so they get threads
of the operating system. gevent's locks and futures work between threads: a greenlet that waits for a result lets the
other greenlets run. eventlet's locks do not, so a result would wake nobody.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .errors import IllegalStateError

_EVENTLET = (
    "eventlet has replaced Python's threads by green threads, and cannot wake one from another thread, such as "
    "Headrace's I/O thread: use real threads (gunicorn -k gthread, celery -P threads), gevent, or "
    "eventlet.monkey_patch(thread=False)"
)


def refuse_eventlet() -> None:
    """Raise IllegalStateError if eventlet has patched this process's threads: every wait would last for ever."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        raise IllegalStateError(_EVENTLET)


def are_green() -> bool:
    """Whether gevent has patched this process's threads."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def _original(module: str, name: str) -> Any:
    """A function as it was before gevent's patches."""
    monkey = sys.modules.get("gevent.monkey")
    return getattr(sys.modules[module], name) if monkey is None else monkey.get_original(module, name)


#: The number of the current thread of the operating system, whichever greenlet runs in it.
current_ident: Callable[[], int] = _original("_thread", "get_ident")


class RealThread:
    """A daemon thread of the operating system, with the methods of ``threading.Thread`` that we and gRPC use."""

    def __init__(
        self, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True
    ) -> None:
        self.name, self.daemon, self.ident = name, daemon, -1
        self._target, self._args = target, args
        self._runs = _original("_thread", "allocate_lock")()  # held while the thread runs

    def start(self) -> None:
        self._runs.acquire()
        self.ident = _original("_thread", "start_new_thread")(self._run, ())

    def _run(self) -> None:
        try:
            self._target(*self._args)
        finally:
            self._runs.release()

    def is_alive(self) -> bool:
        return bool(self._runs.locked())

    def join(self, timeout: float | None = None) -> None:
        if self._runs.acquire(True, -1 if timeout is None else timeout):
            self._runs.release()


Thread = threading.Thread | RealThread


def start_thread(target: Callable[[], object], name: str) -> Thread:
    """Start a daemon thread of the operating system."""
    thread = (RealThread if are_green() else threading.Thread)(target=target, name=name, daemon=True)
    thread.start()
    return thread


class RealThreadPool(ThreadPoolExecutor):
    """A thread pool of RealThreads, which start at once. (asyncio takes no other base class.)"""

    def __init__(self, size: int, name: str) -> None:
        super().__init__(size, thread_name_prefix=name)
        self._work: Any = _original("queue", "SimpleQueue")()
        self._size = size
        for number in range(size):
            RealThread(target=self._do, name=f"{name}_{number}").start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put((future, fn, args, kwargs))
        return future

    def _do(self) -> None:
        while (work := self._work.get()) is not None:
            future, function, args, kwargs = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001  (whoever waits for the future gets it)
                    future.set_exception(error)
            del work, future, function, args, kwargs

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self._size):
            self._work.put(None)
