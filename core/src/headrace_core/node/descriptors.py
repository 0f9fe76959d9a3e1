"""File descriptors of a node: how many connections there is room for, and a watch that sees the shortage coming.

A process without descriptors accepts no connection, opens no log and reaches no controller. It goes on leading.
So connections are limited to what the process has left over (``connections_with_room``), a few descriptors are held
in reserve, and the watch says when fewer than ``FLOOR`` are left: the reserve is given up then, so that the broker can
still tell the controllers, and hand its leaderships over.

Whether enough are free is found out by opening so many for a moment: 32 cost some 30 µs, and a count of /proc/self/fd
costs milliseconds on a node with thousands of files.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

#: Fewer free descriptors than this are a shortage; twice as many end it.
FLOOR = 32
#: Held, to be given up in a shortage.
RESERVE = 16
#: For what is neither a log file nor a client's connection: other nodes, listeners, pollers, libraries.
OWN = 128
#: A listener takes so many connections however few descriptors there are.
CONNECTIONS_MIN = 16


def connections_with_room(wanted: int, files: int, limit: int | None = None) -> int:
    """How many connections of clients a process may take: ``wanted`` (max.connections), but no more than its limit
    leaves beside ``files`` open log files. ``limit``: of descriptors; None: this process's."""
    if limit is None:
        limit = descriptor_limit()
    room = limit - files - OWN - FLOOR - RESERVE
    if room < CONNECTIONS_MIN:  # the files' cache gives descriptors up when there are none (log/descriptors.py)
        room = (limit - OWN) // 2
    return max(min(wanted, room), CONNECTIONS_MIN)


def descriptor_limit() -> int:
    """The soft limit of this process; very many when there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


class DescriptorWatch:
    """``check`` now and then; ``is_short`` tells what it found, ``changed(is_short)`` is called when that changes."""

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
        """Are as many free as there should be?"""
        is_short = not self._are_free(2 * FLOOR + RESERVE if self.is_short else FLOOR)
        if is_short:
            self._close_all(self._held)
        elif len(self._held) < RESERVE:
            self._take(self._held, RESERVE)
        if is_short != self.is_short:
            self.is_short = is_short
            self._changed(is_short)

    def close(self) -> None:
        """Give the reserve back; the node stops."""
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
