"""What nodes within this process have to say goes where a process's lines go: into the node's own file.

All nodes of a process share their loggers, so each line is told apart by who is running: a node's tasks, and whatever
they start, carry its file in a context variable. While there are nodes, their lines do not reach the handlers of the
program around them, whose own log they would fill (a broker that is stopped in a test is a warning to the broker, and
nothing to the test). A line of a thread that no node is known to have started still does.
"""

from __future__ import annotations

import contextlib
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
_before: dict[str, int] = {}  # the rooms' levels, as the program around us has them
_class_before: type[logging.Logger] | None = None  # of new loggers


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
        """One record, when the node's log.level has it. Never raises, as no handler does: what fails is a line, and not
        the work that it tells of. (A full disk; a line that is worded wrongly; a thread that outlives its node.)"""
        if record.levelno < self._level:
            return
        try:
            line = _formatter.format(record)
        except Exception as error:  # noqa: BLE001  (whatever a record's arguments do when they are put into words)
            line = f"{record.name}: a line that cannot be worded: {record.msg!r} ({type(error).__name__}: {error})"
        self.say(line)

    def say(self, line: str) -> None:
        """A line of our own: why the node ended."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: closed meanwhile
            self._stream.write(line + "\n")

    def close(self) -> None:
        """Its lines are nobody's any more."""
        with contextlib.suppress(OSError):  # the last of them does not fit on the disk
            self._stream.close()
        _end()


class _Sorter(logging.Filter):
    """Takes a node's records out and into its file; others go on if their level was enough without nodes, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        node = _file.get()
        if node is not None:
            node.write(record)
            return False
        return record.levelno >= _level_around(record.name)


_formatter = logging.Formatter(FORMAT)
_sorter = _Sorter()


def _sorting(base: type[logging.Logger]) -> type[logging.Logger]:
    """Of loggers that are made while there are nodes: by modules that are imported when they are first needed."""

    class SortingLogger(base):  # type: ignore[misc,valid-type]
        def __init__(self, name: str, level: int = logging.NOTSET) -> None:
            super().__init__(name, level)
            if _room(name) is not None:
                self.addFilter(_sorter)

    return SortingLogger


def _begin(level: int) -> None:
    global _open, _class_before
    with _lock:
        _open += 1
        if _open == 1:
            manager = logging.Logger.manager
            _class_before = manager.loggerClass
            manager.loggerClass = _sorting(_class_before or logging.getLoggerClass())
        for room in _ROOMS:
            logger = logging.getLogger(room)
            if _open == 1:
                _before[room] = logger.level
                logger.setLevel(level)
            else:
                logger.setLevel(min(level, logger.level))
        for logger in _loggers():
            logger.addFilter(_sorter)  # once, however often


def _end() -> None:
    global _open
    with _lock:
        _open -= 1
        if _open:
            return
        logging.Logger.manager.loggerClass = _class_before
        for room, level in _before.items():
            logging.getLogger(room).setLevel(level)
        _before.clear()
        for logger in _loggers():
            logger.removeFilter(_sorter)


def _loggers() -> list[logging.Logger]:
    """All that there are in the rooms. A filter sees what is logged by its own logger only, and a logger that does not
    propagate (so that a handler might sort) gets the handlers of pytest."""
    known = dict(logging.Logger.manager.loggerDict)
    inside = (logger for name, logger in known.items() if _room(name))
    return [logger for logger in inside if isinstance(logger, logging.Logger)]


def _room(name: str) -> str | None:
    return next((room for room in _ROOMS if name == room or name.startswith(room + ".")), None)


def _level_around(name: str) -> int:
    """The level that a room's logger would have without nodes."""
    room = _room(name)
    if room is not None and _before.get(room):
        return _before[room]
    return logging.getLogger("headrace" if name.startswith("headrace.") else None).getEffectiveLevel()
