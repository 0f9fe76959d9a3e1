"""From the one who knows to those who want to know."""

from __future__ import annotations

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
