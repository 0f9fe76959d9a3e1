"""Events as log lines: the event's name, then its fields as key=value, on the standard ``logging``."""

from __future__ import annotations

import dataclasses
import logging

from .events import Event


def log_events(logger: logging.Logger) -> _EventLog:
    """A subscriber that writes each event to ``logger`` at the event's own severity."""
    return _EventLog(logger)


class _EventLog:
    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def __call__(self, event: Event) -> None:
        if self._logger.isEnabledFor(event.severity):
            shown = (f"{field.name}={_shown(getattr(event, field.name))}" for field in dataclasses.fields(event))
            self._logger.log(event.severity, "%s %s", type(event).__name__, " ".join(shown))


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text
