"""Collect the rows of a scrape, in short turns of the event loop.

A node with thousands of partitions has tens of thousands of lines. The event loop must answer clients meanwhile, so a
scrape works for at most TURN_S at a time. Scrapes that arrive during a collection, or soon after it, share its text: at
least for FRESH_S, and for REST times as long as the collection took. However often a stranger scrapes, collections take
a small part of the node's time.
"""

from __future__ import annotations

import asyncio
import logging
import time

from .catalog import COLLECTOR_ERRORS, SCRAPE_SECONDS
from .model import Collector, Metric, Row
from .text import END, head_of, lines_of

logger = logging.getLogger("headrace.metrics")

TURN_S = 0.001  #: Time that a collection works before it lets the event loop do other work.
LINES_PER_TURN = 5_000  #: Lines that one turn joins.
ROWS_PER_LOOK = 16  #: Rows between two looks at the clock.
FRESH_S = 0.1  #: A scrape gets the text of a collection that ended at most this long ago,
REST = 4.0  #: or at most this many times the duration of the collection,
REST_S_MAX = 5.0  #: but at most this long.


class Exposition:
    """The collectors of one node, and the text of the last collection."""

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self._errors = 0
        self._seconds = 0.0
        self._bodies = {True: b"", False: b""}  # by whether it is OpenMetrics
        self._ended_s = float("-inf")
        self._under_way: asyncio.Task[None] | None = None

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    async def text(self, *, openmetrics: bool) -> str:
        """The text for one scrape."""
        return (await self.body(openmetrics=openmetrics)).decode()

    async def body(self, *, openmetrics: bool) -> bytes:
        """The text for one scrape, in UTF-8."""
        if time.monotonic() - self._ended_s > max(FRESH_S, min(REST * self._seconds, REST_S_MAX)):
            if self._under_way is None:
                self._under_way = asyncio.create_task(self._collect())
                self._under_way.add_done_callback(self._over)
            # A scraper that hangs up must not cancel the collection of the others.
            await asyncio.shield(self._under_way)
        return self._bodies[openmetrics]

    async def close(self) -> None:
        """End a collection that is under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    def _over(self, _: asyncio.Task[None]) -> None:
        self._under_way = None

    async def _collect(self) -> None:
        started_s = time.monotonic()
        families: dict[Metric, list[str]] = {}
        for collector in self._collectors:
            try:
                await self._rows_of(collector, families)
            except Exception:
                # A node whose metrics have a bug must go on serving; the counter shows the bug.
                self._errors += 1
                logger.exception("a collector of metrics failed")
        now_s = time.monotonic()
        self._seconds = now_s - started_s
        for metric, value in ((COLLECTOR_ERRORS, self._errors), (SCRAPE_SECONDS, self._seconds)):
            families[metric] = list(lines_of(Row(metric, (), value)))
        self._bodies, self._ended_s = await _bodies_of(families), now_s

    async def _rows_of(self, collector: Collector, families: dict[Metric, list[str]]) -> None:
        due_s = time.perf_counter() + TURN_S
        for number, row in enumerate(collector()):
            if row is not None:
                families.setdefault(row.metric, []).extend(lines_of(row))
            if number % ROWS_PER_LOOK == 0 and time.perf_counter() >= due_s:
                await asyncio.sleep(0)
                due_s = time.perf_counter() + TURN_S


async def _bodies_of(families: dict[Metric, list[str]]) -> dict[bool, bytes]:
    """Both formats. They share the bytes of the samples, which are joined one family to a turn of the event loop."""
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for metric, lines in families.items():
        for begin in range(0, len(lines), LINES_PER_TURN):
            samples = ("\n".join(lines[begin : begin + LINES_PER_TURN]) + "\n").encode()
            for openmetrics, found in parts.items():
                if begin == 0:
                    found.append(head_of(metric, openmetrics=openmetrics).encode())
                found.append(samples)
            if len(lines) >= ROWS_PER_LOOK:
                await asyncio.sleep(0)
    parts[True].append(END.encode())
    return {openmetrics: b"".join(found) for openmetrics, found in parts.items()}
