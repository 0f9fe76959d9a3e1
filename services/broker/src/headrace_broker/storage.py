"""The broker's log directories, each with its writer; which of them has which partition.

A new partition goes to the directory that has the fewest. A directory that fails takes its partitions offline, and only
them.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

from headrace_core.clock import Clock
from headrace_core.errors import CorruptLogError, HeadraceError, StorageError
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.checkpoints import LOCK
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem
from headrace_core.log.writer import DirectoryWriter
from headrace_core.telemetry import Emitter, LogDirectoryFailed, LogDirectoryOpened
from headrace_core.types import TopicPartition

from .partition import PartitionLeader
from .replica import Replica
from .threads import WorkThreads

logger = logging.getLogger(__name__)

#: A partition to create: its topic's id, and its log's settings.
NewLog = tuple[TopicPartition, uuid.UUID, LogConfig]


class Storage:
    """See the module. ``on_turn`` hears which logs a turn has moved; ``on_failed`` which went offline, and why."""

    def __init__(
        self,
        fs: FileSystem,
        roots: Iterable[str],
        *,
        clock: Clock,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        events: Emitter,
        on_turn: Callable[[list[PartitionLog]], None],
        on_failed: Callable[[Iterable[TopicPartition], str], None],
    ) -> None:
        self._fs = fs
        self._roots = tuple(roots)
        self._clock = clock
        self._rng = rng
        self._events = events
        self._on_turn = on_turn
        self._on_failed = on_failed
        self._threads = WorkThreads(loop)
        self._writers: list[DirectoryWriter] = []
        #: Where each partition's log is, or is to be made: a creation that fails is tried again in the same place.
        self._at: dict[TopicPartition, DirectoryWriter] = {}
        self._twice: set[TopicPartition] = set()

    def check_free(self) -> None:
        """Fail early when another process has a directory, with StorageError. ``open`` locks for good."""
        for root in self._roots:
            try:
                self._fs.lock(f"{root}/{LOCK}").release()
            except BlockingIOError:
                raise StorageError(f"log directory {root} is in use: another process holds {root}/{LOCK}") from None

    async def open(self, settings_of: Callable[[str], LogConfig]) -> None:
        """Lock every directory and open every log, recovering those that need it, in threads. ``settle`` comes next.

        Raises InvalidConfigError (not formatted), StorageError (another process has the directory), OSError.
        """
        open_one = functools.partial(self._open_directory, settings_of)
        directories = await asyncio.gather(*(asyncio.to_thread(open_one, root) for root in self._roots))
        for directory in directories:
            writer = DirectoryWriter(
                directory,
                clock=self._clock,
                on_turn=self._on_turn,
                on_failure=functools.partial(self._failed, directory),
            )
            self._writers.append(writer)
            self._events.emit(
                LogDirectoryOpened(
                    path=directory.root,
                    logs=len(directory.logs),
                    damaged=len(directory.quarantined),
                    clean=directory.clean_shutdown_epoch is not None,
                )
            )

    async def settle(
        self, belongs: Callable[[uuid.UUID], bool]
    ) -> tuple[list[TopicPartition], dict[TopicPartition, HeadraceError]]:
        """Which of the logs that were found are the partitions'. Those of topics whose id does not ``belong`` to any
        topic now are deleted, damaged or not: a directory that was offline meanwhile may still have the log of an
        older topic beside that of its namesake in another directory. Returns (deleted, not to be served and why).
        """
        deleted: list[TopicPartition] = []
        refused: dict[TopicPartition, HeadraceError] = {}
        for writer in self._writers:
            directory = writer.directory
            deleted += await self._delete_in(
                writer, [item for item, topic_id in directory.holdings() if topic_id and not belongs(topic_id)]
            )
            refused.update(directory.quarantined)
            for partition, _ in directory.holdings():
                other = self._at.setdefault(partition, writer)
                if other is not writer:
                    self._twice.add(partition)
                    refused[partition] = CorruptLogError(
                        f"{partition} has a log in {other.directory.root} and another in {directory.root}: stop the "
                        "broker, move the one that is out of date away, and start it again"
                    )
        return deleted, refused

    def _open_directory(self, settings_of: Callable[[str], LogConfig], root: str) -> LogDirectory:
        return LogDirectory.open(
            self._fs, root, clock=self._clock, config_of=lambda topic, _: settings_of(topic), rng=self._rng
        )

    def _failed(self, directory: LogDirectory, failure: StorageError) -> None:
        partitions = [partition for partition, writer in self._at.items() if writer.directory is directory]
        self._events.emit(LogDirectoryFailed(path=directory.root, reason=failure.message))
        self._on_failed(partitions, failure.message)

    # -- logs --------------------------------------------------------------------------------------------------------

    def log(self, partition: TopicPartition) -> PartitionLog | None:
        """The log of a partition, when there is one and it can be used."""
        writer = self._at.get(partition)
        if writer is None or writer.failure is not None or partition in self._twice:
            return None
        return writer.directory.get(partition)

    def logs(self) -> list[tuple[TopicPartition, PartitionLog]]:
        return [item for writer in self._writers for item in writer.directory.logs.items()]

    def replica(self, log: PartitionLog, leader: PartitionLeader) -> Replica:
        """``log`` led by ``leader``."""
        return Replica(log, leader, self._at[leader.partition], self._threads)

    async def create(self, wanted: Iterable[NewLog]) -> list[tuple[TopicPartition, HeadraceError | None]]:
        """Create logs, durably, spread over the directories; None for each that is there now, else why it is not."""
        shares: dict[DirectoryWriter, list[NewLog]] = {}
        counts = {writer: len(writer.directory.logs) for writer in self._writers if writer.failure is None}
        outcomes: list[tuple[TopicPartition, HeadraceError | None]] = []
        for item in wanted:
            writer = self._at.get(item[0])
            if writer is None:
                if not counts:
                    outcomes.append((item[0], StorageError("every log directory of this broker has failed")))
                    continue
                writer = self._at[item[0]] = min(counts, key=counts.__getitem__)
                counts[writer] += 1
            if writer.failure is not None:
                outcomes.append((item[0], writer.failure))
            else:
                shares.setdefault(writer, []).append(item)
        for writer, share in shares.items():
            outcomes += await self._create_in(writer, share)
        return outcomes

    async def _create_in(
        self, writer: DirectoryWriter, share: list[NewLog]
    ) -> list[tuple[TopicPartition, HeadraceError | None]]:
        def create_all() -> list[tuple[TopicPartition, HeadraceError | None]]:
            outcomes: list[tuple[TopicPartition, HeadraceError | None]] = []
            for partition, topic_id, config in share:
                try:
                    writer.directory.create(partition, topic_id, config)
                    outcomes.append((partition, None))
                except HeadraceError as error:
                    outcomes.append((partition, error))
            return outcomes

        try:
            return await writer.run(create_all)
        except HeadraceError as error:
            return [(partition, error) for partition, _, _ in share]

    async def delete(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Remove partitions' logs for good, wherever they are; returns those that were there. A directory that has
        failed keeps its own until it is back (``settle``)."""
        deleted: list[TopicPartition] = []
        for partition in partitions:
            self._at.pop(partition, None)
            self._twice.discard(partition)
        for writer in self._writers:
            deleted += await self._delete_in(writer, [item for item in partitions if writer.directory.holds(item)])
        return deleted

    async def _delete_in(self, writer: DirectoryWriter, share: list[TopicPartition]) -> list[TopicPartition]:
        if not share or writer.failure is not None:
            return []
        try:
            return await writer.run(functools.partial(writer.directory.delete_all, share))
        except HeadraceError as error:
            logger.error("%s: %d log(s) could not be deleted: %s", writer.directory.root, len(share), error)
            return []

    async def reconfigure(self, log: PartitionLog, config: LogConfig) -> None:
        """New settings for a log, in their turn among the appends to it."""
        writer = self._at.get(log.topic_partition)
        if writer is not None and writer.failure is None:
            await writer.run(functools.partial(log.reconfigure, config), log=log)

    # -- checkpoints, the end ----------------------------------------------------------------------------------------

    async def checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write recovery points and high watermarks of every working directory."""
        for writer in self._writers:
            if writer.failure is not None:
                continue
            directory = writer.directory
            share = {partition: end for partition, end in high_watermarks.items() if partition in directory.logs}
            try:
                await writer.run(functools.partial(_checkpoint, directory, share))
            except HeadraceError as error:
                logger.warning("%s: checkpoints not written: %s", directory.root, error)

    async def close(self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int) -> bool:
        """Flush, close and mark every directory; True when all of them are clean."""
        self._threads.close()
        clean = True
        if self._writers:
            await self.checkpoint(high_watermarks)
        for writer in self._writers:
            await writer.close()
            try:
                writer.directory.close(broker_epoch=broker_epoch, clean=writer.failure is None)
            except OSError as error:
                logger.error("%s could not be closed cleanly: %s", writer.directory.root, error)
                clean = False
            clean = clean and writer.failure is None
        self._writers.clear()
        self._at.clear()
        return clean


def _checkpoint(directory: LogDirectory, high_watermarks: Mapping[TopicPartition, int]) -> None:
    directory.write_recovery_points()
    directory.write_high_watermarks(high_watermarks)
