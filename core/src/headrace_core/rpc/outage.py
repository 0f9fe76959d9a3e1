"""Retries and log lines while a node cannot reach another node: a first warning, a warning every ten seconds, a line at
the end."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable

_GRACE_S = 1.0  #: Seconds of an outage before the first warning, because the peer may be starting at the same time.
_EVERY_S = 10.0  #: Seconds between two warnings about one outage.


class Outage:
    """Logs an outage of a peer. Call ``failed`` or ``over`` after each attempt; ``over`` costs one comparison."""

    def __init__(
        self,
        logger: logging.Logger,
        what: str,
        *,
        whom: str = "the controller",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``what``: the attempted action, with which each log line begins. ``clock``: returns seconds."""
        self._logger = logger
        self._what = what
        self._whom = whom
        self._clock = clock
        self._since_s: float | None = None
        self._logged_s: float | None = None

    def failed(self, address: str, error: object) -> None:
        """Record that an attempt at ``address`` (``host:port``) failed."""
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if waited_s < _GRACE_S or (self._logged_s is not None and now_s - self._logged_s < _EVERY_S):
            return
        self._logged_s = now_s
        self._logger.warning(
            "%s: cannot reach %s at %s for %.0f s, retrying: %s",
            self._what,
            self._whom,
            address,
            waited_s,
            error,
        )

    def over(self) -> None:
        """Record a successful attempt, which ends an outage."""
        if self._since_s is None:
            return
        if self._logged_s is not None:
            self._logger.info("%s: the connection is back after %.0f s", self._what, self._clock() - self._since_s)
        self._since_s = self._logged_s = None


class Backoff:
    """Pauses between retries: doubling, with jitter, bounded (Kafka's retry.backoff.ms, KIP-580).

    ``next_s()`` returns the next pause in seconds; call ``reset()`` after a successful attempt. The jitter spreads the
    retries of many clients.
    """

    def __init__(self, *, first_ms: float = 50, most_ms: float = 1_000, rng: random.Random | None = None) -> None:
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._uniform = random.uniform if rng is None else rng.uniform
        self._failures = 0

    def next_s(self) -> float:
        wait_ms = min(self._first_ms * 2.0 ** min(self._failures, 30), self._most_ms)
        self._failures += 1
        return wait_ms * self._uniform(0.8, 1.2) / 1_000

    def reset(self) -> None:
        self._failures = 0
