"""Logs of nodes within this process: each node writes to its own file, as a process does.

All nodes of a process share their loggers. A context variable holds the node's file, and so identifies the node that
logged a line: the node's tasks and their child tasks inherit it. The log lines of in-process nodes do not reach the
program's log handlers: a broker that a test stops should not cause warnings in the test. A line from a thread whose
node is unknown still reaches the program's handlers.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
from pathlib import Path

from headrace_core.file_modes import opener
from headrace_core.node.logs import TextFormatter

#: Names of loggers that nodes use and clients do not.
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
_open = 0  # number of log files that are open
_before: dict[str, int] = {}  # levels that the loggers of nodes had in the program
_class_before: type[logging.Logger] | None = None  # the class of new loggers before the first log file was opened


class NodeLog:
    """The log file of one run of a node. Call ``enter`` in the node's context when it starts, and ``close`` when it has
    ended."""

    def __init__(self, path: Path, level: str) -> None:
        self.path = path
        self._level = int(logging.getLevelName(level.upper()))
        self._stream = open(  # noqa: SIM115 - ``close`` closes it
            path, "a", encoding="utf-8", errors="backslashreplace", buffering=1, opener=opener
        )
        _begin(self._level)

    def enter(self) -> None:
        """Direct the log lines of the current context (contextvars) to the node's file from now on."""
        _file.set(self)

    def write(self, record: logging.LogRecord) -> None:
        """Write a log record, if the node's log.level admits it. Like any log handler, ``write`` never raises. If the
        disk is full, the format string is wrong, or the thread outlives its node, only this line is lost."""
        if record.levelno < self._level:
            return
        try:
            line = _formatter.format(record)
        except Exception as error:  # noqa: BLE001  (formatting a record may raise anything)
            line = (
                f"{record.name}: a log line that cannot be formatted: {record.msg!r} ({type(error).__name__}: {error})"
            )
        self.say(line)

    def say(self, line: str) -> None:
        """Write the reason why the node ended, as a line that is not a log record."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: already closed
            self._stream.write(line + "\n")

    def close(self) -> None:
        """Close the file; later lines of the node are dropped."""
        with contextlib.suppress(OSError):  # the last log lines may not fit on a full disk
            self._stream.close()
        _end()


class _Sorter(logging.Filter):
    """A logging filter that writes a node's records to the node's file; other records pass if their level would suffice
    without nodes."""

    def filter(self, record: logging.LogRecord) -> bool:
        node = _file.get()
        if node is not None:
            node.write(record)
            return False
        return record.levelno >= _level_around(record.name)


_formatter = TextFormatter()
_sorter = _Sorter()


def _sorting(base: type[logging.Logger]) -> type[logging.Logger]:
    """A class for loggers that are created while there are nodes, by modules that are imported on demand."""

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
            logger.addFilter(_sorter)  # addFilter adds the same filter only once


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
    """All existing loggers of the nodes. Each logger of a node needs the filter, because a filter sees only the records
    of its own logger. A log handler instead of a filter would need loggers that do not propagate, and pytest adds its
    handlers to loggers that do not propagate."""
    known = dict(logging.Logger.manager.loggerDict)
    inside = (logger for name, logger in known.items() if _room(name))
    return [logger for logger in inside if isinstance(logger, logging.Logger)]


def _room(name: str) -> str | None:
    return next((room for room in _ROOMS if name == room or name.startswith(room + ".")), None)


def _level_around(name: str) -> int:
    """The level that the logger of a node would have if there were no nodes."""
    room = _room(name)
    if room is not None and _before.get(room):
        return _before[room]
    return logging.getLogger("headrace" if name.startswith("headrace.") else None).getEffectiveLevel()
