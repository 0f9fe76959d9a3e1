"""Events and who listens to them: the emitter, and the subscriber that writes log lines."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from .events import Event

Subscriber = Callable[[Event], None]

logger = logging.getLogger(__name__)


class Emitter:
    """Hands each event to every subscriber, in the order of subscription, at once and in the caller's thread.

    A subscriber that raises is logged and kept: telemetry must never stop the work that it watches.
    """

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each event from now on; returns what ends the subscription."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

        return unsubscribe

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logger.exception("a subscriber failed on %r", event)


def log_events(logger: logging.Logger) -> _EventLog:
    """A subscriber that writes each event to ``logger`` at the event's own severity: its name, then its fields as
    key=value."""
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
