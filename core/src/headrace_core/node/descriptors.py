"""File descriptors of a node: a limit of connections, and a watch that detects a shortage early.

A process without descriptors accepts no connection, opens no log and reaches no controller, but still leads. So
connections are limited to the descriptors that are left (``connections_with_room``), a few descriptors are held in
reserve, and the watch reports when fewer than ``FLOOR`` are left. It then closes the reserve, so that the broker can
still tell the controllers, and move its leaderships away.

The watch opens so many descriptors for a moment: 32 cost some 30 µs, and counting /proc/self/fd costs milliseconds on a
node with thousands of files.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

FLOOR = 32  #: Fewer free descriptors than this are a shortage; twice as many end it.
RESERVE = 16  #: Held, and closed in a shortage.
OWN = 128  #: For everything but log files and clients' connections: other nodes, listeners, pollers, libraries.
CONNECTIONS_MIN = 16  #: Connections that a listener accepts with any number of descriptors.


def connections_with_room(wanted: int, files: int, limit: int | None = None) -> int:
    """Limit of clients' connections: ``wanted`` (max.connections), but at most what is left beside ``files`` open log
    files. ``limit``: of descriptors; None: this process's."""
    if limit is None:
        limit = descriptor_limit()
    room = limit - files - OWN - FLOOR - RESERVE
    if room < CONNECTIONS_MIN:  # the files' cache frees descriptors when there are none (log/descriptors.py)
        room = (limit - OWN) // 2
    return max(min(wanted, room), CONNECTIONS_MIN)


def descriptor_limit() -> int:
    """The soft limit of this process; a very large number without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


class DescriptorWatch:
    """Call ``check`` at intervals; ``is_short`` has its result, ``changed(is_short)`` is called when that changes."""

    def __init__(
        self,
        changed: Callable[[bool], None],
        *,
        open_one: Callable[[], int] = lambda: os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC),
        close: Callable[[int], None] = os.close,
    ) -> None:
        self._changed = changed
        self._open_one, self._close = open_one, close
        self._held: list[int] = []
        self.is_short = False

    def check(self) -> None:
        """Check whether enough are free."""
        is_short = not self._are_free(2 * FLOOR + RESERVE if self.is_short else FLOOR)
        if is_short:
            self._close_all(self._held)
        elif len(self._held) < RESERVE:
            self._take(self._held, RESERVE)
        if is_short != self.is_short:
            self.is_short = is_short
            self._changed(is_short)

    def close(self) -> None:
        """Close the reserve; the node stops."""
        self._close_all(self._held)

    def _are_free(self, count: int) -> bool:
        taken: list[int] = []
        enough = self._take(taken, count)
        self._close_all(taken)
        return enough

    def _take(self, taken: list[int], count: int) -> bool:
        try:
            while len(taken) < count:
                taken.append(self._open_one())
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            return False
        return True

    def _close_all(self, taken: list[int]) -> None:
        while taken:
            self._close(taken.pop())
