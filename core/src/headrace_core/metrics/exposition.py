"""Collect the rows of a scrape, in short turns of the event loop.

A node with thousands of partitions has tens of thousands of lines. The event loop must answer clients during a
collection, so a collection works for at most TURN_S at a time. Scrapes share a collection's text if they arrive during
the collection, or soon after its end: within FRESH_S or, if that is longer, within REST times the duration of the
collection (at most REST_S_MAX). Even with very frequent scrapes, collections take a small part of the node's time. Only
the value of the node's clock is new in each scrape: it is the time when the scrape arrived, which Prometheus compares
with the time when it sent the scrape.
"""

from __future__ import annotations

import asyncio
import logging
import time

from .catalog import COLLECTOR_ERRORS, SCRAPE_SECONDS, TIME_SECONDS
from .model import Collector, Metric, Row
from .text import END, Writer, heads_of

logger = logging.getLogger("headrace.metrics")

TURN_S = 0.001  #: Time that a collection works before it lets the event loop do other work.
ROWS_PER_LOOK = 16  #: Number of rows between two readings of the clock.
FRESH_S = 0.1  #: A scrape gets the text of a collection that ended at most this long ago,
REST = 4.0  #: or at most this many times the duration of the collection,
REST_S_MAX = 5.0  #: but at most this long.


class Exposition:
    """The collectors of one node, and the text of the last collection."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self._writer = Writer()
        self._errors = 0
        self._seconds = 0.0
        self._families: dict[Metric, list[bytes]] = {}  # the lines of the last collection
        #: The texts that scrapes requested, by a flag for OpenMetrics; without the lines of ``_ending``.
        self._bodies: dict[bool, bytes] = {}
        self._ended_s = float("-inf")
        self._under_way: asyncio.Task[None] | None = None

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    async def text(self, *, openmetrics: bool) -> str:
        """The text for one scrape."""
        return (await self.body(openmetrics=openmetrics)).decode()

    async def body(self, *, openmetrics: bool) -> bytes:
        """The text for one scrape, in UTF-8."""
        asked_s = time.time()
        if time.monotonic() - self._ended_s > max(FRESH_S, min(REST * self._seconds, REST_S_MAX)):
            if self._under_way is None:
                self._under_way = asyncio.create_task(self._collect())
                self._under_way.add_done_callback(self._over)
            # A scraper that disconnects must not cancel a collection for which other scrapers wait.
            await asyncio.shield(self._under_way)
        found = self._bodies.get(openmetrics)
        if found is None:
            found = self._bodies[openmetrics] = _body_of(self._families, openmetrics=openmetrics)
        return found + _ending(asked_s, openmetrics=openmetrics)

    async def close(self) -> None:
        """Cancel the collection that is in progress, if there is one."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    def _over(self, _: asyncio.Task[None]) -> None:
        self._under_way = None

    async def _collect(self) -> None:
        started_s = time.monotonic()
        families: dict[Metric, list[bytes]] = {}
        turns = _Turns()
        for collector in self._collectors:
            try:
                await self._rows_of(collector, families, turns)
            except Exception:
                # A node continues to serve clients despite a bug in its metrics; the counter shows the bug.
                self._errors += 1
                logger.exception("a collector of metrics failed; its remaining metrics are missing from this scrape")
        now_s = time.monotonic()
        self._seconds = now_s - started_s
        for metric, value in ((COLLECTOR_ERRORS, self._errors), (SCRAPE_SECONDS, self._seconds)):
            families[metric] = [self._writer.lines_of(Row(metric, (), value))]
        self._writer.end_scrape()
        await turns.look()
        self._families, self._bodies, self._ended_s = families, {}, now_s

    async def _rows_of(self, collector: Collector, families: dict[Metric, list[bytes]], turns: _Turns) -> None:
        lines_of = self._writer.lines_of
        for number, row in enumerate(collector()):
            if row is None:
                await turns.look()
                continue
            lines = lines_of(row)
            if lines:
                families.setdefault(row.metric, []).append(lines)
            if number % ROWS_PER_LOOK == 0:
                await turns.look()


class _Turns:
    """The turns of one collection in the event loop."""

    def __init__(self) -> None:
        self._due_s = time.perf_counter() + TURN_S

    async def look(self) -> None:
        """Let the event loop do other work if this turn took TURN_S."""
        if time.perf_counter() >= self._due_s:
            await asyncio.sleep(0)
            self._due_s = time.perf_counter() + TURN_S


def _body_of(families: dict[Metric, list[bytes]], *, openmetrics: bool) -> bytes:
    """The text of a scrape in one format. The formats differ only in the lines # HELP and # TYPE."""
    parts: list[bytes] = []
    for metric, lines in families.items():
        parts.append(_head_of(metric, openmetrics=openmetrics))
        parts += lines
    return b"".join(parts)


def _ending(asked_s: float, *, openmetrics: bool) -> bytes:
    """The last lines of a scrape's text, with the time of the scrape. ``asked_s``: the node's clock when the scrape
    arrived, in seconds since 1970."""
    line = f"{TIME_SECONDS.sample_name} {asked_s!r}\n".encode()
    return _head_of(TIME_SECONDS, openmetrics=openmetrics) + line + (END if openmetrics else b"")


def _head_of(metric: Metric, *, openmetrics: bool) -> bytes:
    of_openmetrics, plain = heads_of(metric)
    return of_openmetrics if openmetrics else plain
