"""Sends one registry request at a time for each piece of data, however many threads and tasks need it.

A blocking caller makes the request in its own thread; other callers that need the same data wait for its result. A
caller in an event loop never waits: a worker thread makes the request, and the caller gets WouldWait. For a short time
after a failure, calls raise the same error without a request. Therefore neither a blocking caller nor a caller in an
event loop sends a request per record to a registry that is down.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from headrace_core.errors import HeadraceError

from ..callbacks import refuse_to_wait
from ..serializers import WouldWait
from .cache import Bounded
from .errors import RegistryUnavailableError

V = TypeVar("V")

#: Maximum number of threads that send registry requests for callers in event loops.
WORKERS_MAX: Final = 4


class Flights:
    """The requests of one SchemaRegistry that are in progress, and the requests that have just failed."""

    def __init__(self, failure_s: float, capacity: int, now: Callable[[], float] = time.monotonic) -> None:
        self._failure_s, self._now = failure_s, now
        self._failures: Bounded[Hashable, tuple[HeadraceError, float]] = Bounded(capacity)
        self.after_fork()

    def after_fork(self) -> None:
        """Drop the threads after a fork, because the parent's threads do not exist in the child."""
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Future[Any]] = {}
        self._jobs: deque[Callable[[], None]] = deque()
        self._workers = 0
        self._failures.after_fork()

    def find(self, key: Hashable, cache: Bounded[Any, V], fetch: Callable[[], V], *, may_wait: bool) -> V:
        """Return the cached value for the key; if there is none, call ``fetch`` and cache its result.

        Raises the error of ``fetch``; WouldWait if the caller must not wait.
        """
        found = cache.get(key)
        if found is not None:
            return found
        if may_wait:
            refuse_to_wait("a request to the schema registry")
        landed: V | None
        flight, is_mine, landed = self._board(key, cache)
        if landed is not None:
            return landed
        if not may_wait:
            if is_mine:
                self._submit(lambda: self._fly(key, cache, fetch, flight))
            raise WouldWait(flight)
        if is_mine:
            self._fly(key, cache, fetch, flight)
        error = flight.exception()
        if error is not None:
            raise error.copy() if isinstance(error, HeadraceError) else error
        value: V = flight.result()
        return value

    def refresh(self, key: Hashable, cache: Bounded[Any, V], fetch: Callable[[], V]) -> None:
        """Fetch the value again in the background, and replace it in the cache. If the fetch fails, the cache keeps the
        old value."""
        with self._lock:
            failure = self._failures.get(key)
            if key in self._flights or (failure is not None and self._now() < failure[1]):
                return
            flight = self._flights[key] = Future()
        self._submit(lambda: self._fly(key, cache, fetch, flight))

    def _board(self, key: Hashable, cache: Bounded[Any, Any]) -> tuple[Future[Any], bool, Any]:
        """The flight (the shared request) for the key, and whether the caller must make the request. Raises the error
        again if the request failed recently."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is not None:
                return flight, False, None
            found = cache.get(key)  # a flight may have ended since the caller looked
            if found is not None:
                return Future(), False, found
            failure = self._failures.get(key)
            if failure is not None:
                if self._now() < failure[1]:
                    raise failure[0].copy()
                self._failures.remove(key)
            flight = self._flights[key] = Future()
            return flight, True, None

    def _fly(self, key: Hashable, cache: Bounded[Any, V], fetch: Callable[[], V], flight: Future[Any]) -> None:
        try:
            value = cache.put(key, fetch())
        except Exception as error:  # noqa: BLE001 - every caller of the flight raises it
            if isinstance(error, HeadraceError):
                self._failures.put(key, (error.with_traceback(None), self._now() + self._failure_s))
            self._land(key)
            flight.set_exception(error)
        except BaseException:  # Ctrl-C stops only the thread that makes the request
            self._land(key)
            flight.set_exception(RegistryUnavailableError("the request to the schema registry was interrupted"))
            raise
        else:
            self._land(key)
            flight.set_result(value)

    def _land(self, key: Hashable) -> None:
        with self._lock:
            self._flights.pop(key, None)

    def _submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._workers >= WORKERS_MAX:
                return
            self._workers += 1
        threading.Thread(target=self._work, name="headrace-schemas", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._workers -= 1
                    return
                job = self._jobs.popleft()
            job()
