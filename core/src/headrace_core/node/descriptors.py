"""A node's file descriptors: a limit for connections, and a watch that detects a shortage early.

A broker without free descriptors accepts no connection, opens no log and reaches no controller, but is still a leader.
To keep descriptors free, a node limits connections to the descriptors that log files and the node itself leave over
(``connections_with_room``). A few descriptors are held in reserve for a shortage. The watch reports when fewer than
``FLOOR`` descriptors are free. In a shortage the watch closes the reserve, so that the broker can still inform the
controllers and move its leaderships away.

To check for a shortage, the watch opens ``FLOOR`` descriptors for a moment: 32 descriptors cost about 30 µs. Counting
the entries of /proc/self/fd would take milliseconds on a node with thousands of files.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

#: Number of free descriptors below which a shortage begins; the shortage ends with twice as many free descriptors.
FLOOR = 32
RESERVE = 16  #: Number of descriptors that the process holds in reserve, and closes in a shortage of descriptors.
#: Number of descriptors that log files and clients' connections must leave free for connections between nodes,
#: listeners, pollers and libraries.
OWN = 128
CONNECTIONS_MIN = 16  #: Number of connections that a listener accepts even if the process has few free descriptors.


def connections_with_room(wanted: int, files: int, limit: int | None = None) -> int:
    """Return the limit of clients' connections: ``wanted`` (max.connections), but at most the descriptors that
    ``files`` open log files and the node itself leave free. ``limit``: the descriptor limit; None: the limit of this
    process."""
    if limit is None:
        limit = descriptor_limit()
    room = limit - files - OWN - FLOOR - RESERVE
    if room < CONNECTIONS_MIN:  # the files' cache frees descriptors when no descriptor is free (log/descriptors.py)
        room = (limit - OWN) // 2
    return max(min(wanted, room), CONNECTIONS_MIN)


def descriptor_limit() -> int:
    """Return the soft limit of this process's file descriptors; a very large number if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


class DescriptorWatch:
    """Detects a shortage of file descriptors. Call ``check`` at intervals: it sets ``is_short``, and calls
    ``changed(is_short)`` when ``is_short`` changes."""

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
        """Check whether enough descriptors are free."""
        is_short = not self._are_free(2 * FLOOR + RESERVE if self.is_short else FLOOR)
        if is_short:
            self._close_all(self._held)
        elif len(self._held) < RESERVE:
            self._take(self._held, RESERVE)
        if is_short != self.is_short:
            self.is_short = is_short
            self._changed(is_short)

    def close(self) -> None:
        """Close the reserved descriptors when the node stops."""
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
