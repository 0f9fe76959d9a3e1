"""All background work of a broker, for app.py, which starts it when the broker serves and stops it before the directory
writers close."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from headrace_core.clock import Clock
from headrace_core.log.writer import DirectoryWriter
from headrace_core.metadata import MetadataDelta
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.telemetry import Emitter, Metrics

from ..leader_replica import OnDamage
from ..partition_table import PartitionTable
from ..settings import LiveSettings
from .cleaners import Cleaners
from .producers import ProducerExpiry
from .retention import Retention
from .scrubber import Scrubber


class Upkeep:
    """Starts and stops all background tasks; call its methods in the event loop. ``writers`` returns the writers of the
    online directories."""

    def __init__(
        self,
        writers: Callable[[], list[DirectoryWriter]],
        partitions: PartitionTable,
        *,
        clock: Clock,
        settings: LiveSettings,
        events: Emitter,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        on_damage: OnDamage,
    ) -> None:
        self.retention = Retention(writers, partitions, clock=clock, settings=settings, events=events, loop=loop)
        self.cleaners = Cleaners(
            writers,
            partitions,
            clock=clock,
            settings=settings,
            events=events,
            loop=loop,
            uncleanable=metrics.counter("uncleanable-partitions-count"),
        )
        self.scrubber = Scrubber(writers, on_damage, clock=clock, settings=settings, events=events, loop=loop)
        self.producers = ProducerExpiry(writers, clock=clock, settings=settings, loop=loop)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.retention.begin()
        self.producers.begin()
        self._tasks = [
            asyncio.create_task(self.retention.run(), name="retention"),
            asyncio.create_task(self.producers.run(), name="producer-expiry"),
        ]
        self.cleaners.start()
        self.scrubber.start()

    async def stop(self) -> None:
        """Stop all background work; when ``stop`` returns, no background work is in progress. ``stop`` is idempotent,
        and may also be called before ``start``."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.cleaners.stop()
        await self.scrubber.stop()

    def metadata_changed(self, delta: MetadataDelta) -> None:
        """Call this method when a metadata change is in effect. Logs of topics with new settings (of the topic, or a
        broker's default) may now need cleaning, or may be cleaned again after a failure."""
        if any(kind is ConfigResourceType.BROKER for kind, _ in delta.configs):
            self.cleaners.retry()
        elif delta.configs:
            self.cleaners.retry(name for kind, name in delta.configs if kind is ConfigResourceType.TOPIC)
