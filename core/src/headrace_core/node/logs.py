"""The lines of a node's log on stderr: text for people, or one JSON object per line (``log.format``).

A JSON line has the members ``time`` (RFC 3339, UTC, milliseconds), ``level``, ``logger`` and ``message``. The line of
an event (telemetry.py) also has ``event``, the event's name, and the event's fields. A line about an exception has
``exception``, its traceback. If the exception made a request fail, the line has ``request_id``, which is also in the
client's error, and ``trace_id``, if the request is traced (unexpected.py). In the text format, the line ends with the
two ids. Every JSON line has the members that ``log_to_stderr`` got as ``fields``, such as the role.

Messages contain names that clients choose. Both log formats therefore show control characters as escapes (visible.py),
and a JSON line has only ASCII.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
import sys
from collections.abc import Mapping

from ..telemetry import EVENT_ATTRIBUTE
from ..unexpected import REQUEST_ID, TRACE_ID
from ..visible import one_line

#: A line of text: 2026-01-02 03:04:05,678 INFO    headrace.controller  broker 1 unfenced
LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s  %(message)s"
FORMATS = ("text", "json")


class TextFormatter(logging.Formatter):
    """Formats a record of ``logging`` as a line of text, followed by the traceback of its exception."""

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        ids = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in _ids(record))
        return one_line(super().formatMessage(record) + (f" ({ids})" if ids else ""))


class JsonFormatter(logging.Formatter):
    """Formats a record of ``logging`` as one line of JSON."""

    def __init__(self, fields: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        event = getattr(record, EVENT_ATTRIBUTE, None)
        if event is not None:
            line["event"] = type(event).__name__
            for field in dataclasses.fields(event):
                line.setdefault(field.name, getattr(event, field.name))
        line.update(_ids(record))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _ids(record: logging.LogRecord) -> list[tuple[str, str]]:
    """The ids of the request that a log record is about."""
    return [(name, value) for name in (REQUEST_ID, TRACE_ID) if (value := getattr(record, name, None)) is not None]


def log_to_stderr(level: str, *, form: str = "text", fields: Mapping[str, str | int] | None = None) -> None:
    """Send the lines of all loggers with ``level`` ("debug", "info", ...) or higher to stderr, which the process that
    started the node stores. ``form`` is one of FORMATS; ``fields``: members of every JSON line. Replaces earlier
    handlers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(fields) if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
