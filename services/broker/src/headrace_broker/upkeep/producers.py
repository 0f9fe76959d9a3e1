"""Expire idle producers, with one task for all logs of the broker (KIP-854).

Every ``producer.id.expiration.check.interval.ms`` the task checks the producer tables of all logs on a thread, a few
logs at a time. The directory writer then removes the producers that have still not written for
``producer.id.expiration.ms``. The expiry depends on the time of a producer's last append on this broker, not on the
timestamps of its records (core/log/producer_state.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.log import PartitionLog
from headrace_core.log.writer import DirectoryWriter

from ..settings import BrokerSettings, LiveSettings
from ..threads import WorkThreads

logger = logging.getLogger(__name__)

_LOGS_AT_ONCE = 64  #: Logs checked together.
#: Maximum number of producers that the directory writer removes in one step. Each step that removes producers delays
#: appends to the directory by some milliseconds.
_FORGOTTEN_AT_ONCE = 10_000


class _Found(NamedTuple):
    log: PartitionLog
    producer_ids: list[int]


class ProducerExpiry:
    """See the module. The task that expires idle producers; call its methods in the event loop."""

    def __init__(
        self,
        writers: Callable[[], list[DirectoryWriter]],
        *,
        clock: Clock,
        settings: LiveSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._writers = writers
        self._clock = clock
        self._settings = settings
        self._threads = WorkThreads(loop, size=1)
        self._changed = asyncio.Event()

    def begin(self) -> None:
        """Start the thread of the checks; call ``begin`` before ``run``."""
        self._threads.begin()

    async def run(self) -> None:
        """Run until cancelled."""
        unsubscribe = self._settings.subscribe(self._settings_changed)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.current.producer_check_interval_ms / 1000):
                        await self._changed.wait()
                self._changed.clear()
                try:
                    await self.check()
                except Exception:  # a bug in this check must not end the broker
                    logger.exception("expiring idle producer ids failed; trying again later")
        finally:
            unsubscribe()
            self._threads.close()

    def _settings_changed(self, old: BrokerSettings, new: BrokerSettings) -> None:
        if (old.producer_expiration_ms, old.producer_check_interval_ms) != (
            new.producer_expiration_ms,
            new.producer_check_interval_ms,
        ):
            self._changed.set()

    async def check(self) -> int:
        """Check the producers of all logs once; returns the number of removed producers."""
        gone = 0
        for writer in self._writers():
            # copy the values first: the directory's thread may create and delete logs at the same time
            logs = [log for log in list(writer.directory.logs.values()) if len(log.producers)]
            for first in range(0, len(logs), _LOGS_AT_ONCE):
                some = logs[first : first + _LOGS_AT_ONCE]
                for found in await self._threads.run(partial(self._look, some)):
                    gone += await self._forget(writer, found)
        return gone

    def _look(self, logs: list[PartitionLog]) -> list[_Found]:
        """Find idle producers; runs on a thread."""
        now_ms, expiration_ms = self._clock.monotonic_ms(), self._settings.current.producer_expiration_ms
        found = [_Found(log, log.producers.expired(now_ms, expiration_ms)) for log in logs]
        return [item for item in found if item.producer_ids]

    async def _forget(self, writer: DirectoryWriter, found: _Found) -> int:
        log, gone = found.log, 0
        expiration_ms = self._settings.current.producer_expiration_ms
        for first in range(0, len(found.producer_ids), _FORGOTTEN_AT_ONCE):
            some = found.producer_ids[first : first + _FORGOTTEN_AT_ONCE]
            try:
                gone += await writer.run(partial(log.expire_producers, expiration_ms, some), log=log)
            except HeadraceError as error:  # the directory has failed, or the broker is stopping
                logger.info("partition %s: cannot remove expired producer ids: %s", log.topic_partition, error)
                break
        return gone
