"""What nodes within this process have to say goes where a process's lines go: into the node's own file.

All nodes of a process share their loggers, so each line is told apart by who is running: a node's tasks, and whatever
they start, carry its file in a context variable. While there are nodes, their lines do not reach the handlers of the
program around them, whose own log they would fill (a broker that is stopped in a test is a warning to the broker, and
nothing to the test). A line of a thread that no node is known to have started still does.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from pathlib import Path

from headrace_core.node.log_output import FORMAT

#: The loggers that nothing but a node uses.
_ROOMS = (
    "headrace.broker",
    "headrace.config",
    "headrace.controller",
    "headrace.coordinator",
    "headrace.metadata",
    "headrace.node",
    "headrace_broker",
    "headrace_controller",
    "headrace_coordinator",
    "headrace_core",
)
_file: contextvars.ContextVar[NodeLog | None] = contextvars.ContextVar("headrace node's log", default=None)
_lock = threading.Lock()
_open = 0  # how many there are
_before: dict[str, tuple[int, bool]] = {}  # level and propagation, as the program around us has them


class NodeLog:
    """The file of one node's life. ``enter`` in the context in which the node is to run; ``close`` when it is over."""

    def __init__(self, path: Path, level: str) -> None:
        self.path = path
        self._level = int(logging.getLevelName(level.upper()))
        self._stream = path.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
        _begin(self._level)

    def enter(self) -> None:
        """From here on, this context's lines are the node's."""
        _file.set(self)

    def write(self, record: logging.LogRecord) -> None:
        """One record, when the node's log.level has it."""
        if record.levelno >= self._level and not self._stream.closed:
            self._stream.write(_formatter.format(record) + "\n")

    def say(self, line: str) -> None:
        """A line of our own: why the node ended."""
        if not self._stream.closed:
            self._stream.write(line + "\n")

    def close(self) -> None:
        """Its lines are nobody's any more."""
        self._stream.close()
        _end()


class _Sorter(logging.Handler):
    """Hands a node's records to its file, and anybody else's to whom they would have gone."""

    def emit(self, record: logging.LogRecord) -> None:
        node = _file.get()
        try:
            if node is not None:
                node.write(record)
                return
        except Exception:  # noqa: BLE001 -- as every handler of the library
            self.handleError(record)
            return
        around = logging.getLogger("headrace" if record.name.startswith("headrace.") else None)
        if around.isEnabledFor(record.levelno):
            around.handle(record)


_formatter = logging.Formatter(FORMAT)
_sorter = _Sorter()


def _begin(level: int) -> None:
    global _open
    with _lock:
        _open += 1
        for name in _ROOMS:
            logger = logging.getLogger(name)
            if _open == 1:
                _before[name] = (logger.level, logger.propagate)
                logger.addHandler(_sorter)
                logger.propagate = False
                logger.setLevel(level)
            else:
                logger.setLevel(min(level, logger.level))


def _end() -> None:
    global _open
    with _lock:
        _open -= 1
        if _open:
            return
        for name, (level, propagate) in _before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(_sorter)
            logger.setLevel(level)
            logger.propagate = propagate
        _before.clear()
