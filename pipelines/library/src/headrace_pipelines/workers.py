"""Worker threads of a run.

If an error ends a worker, the worker stores the error, and ``result`` raises it in the thread that waits.
"""

from __future__ import annotations

import threading
from abc import abstractmethod


class Worker(threading.Thread):
    """A thread that does ``work`` until it is done, or until ``is_stopped`` is set.

    ``is_over`` is set at its end. The main thread waits for this event: after Ctrl-C during a ``join``, Python 3.11
    takes a running thread for one that has ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.is_stopped, self.is_over = threading.Event(), threading.Event()
        self._failure: BaseException | None = None

    @abstractmethod
    def work(self) -> None: ...

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - ``result`` raises it in the thread that waits
            self._failure = error
        finally:
            self.is_over.set()

    def stop(self) -> None:
        """Ask the thread to end, and wait for its end."""
        self.is_stopped.set()
        if self.ident is not None:
            self.join()

    def result(self) -> None:
        """Wait for the end; raises the error that ended the thread."""
        self.join()
        if self._failure is not None:
            raise self._failure
