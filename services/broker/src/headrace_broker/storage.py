"""The broker's log directories, each with its writer, and the logs in them.

``placement`` chooses the directory of a new partition. A failed directory takes offline only the partitions in it. A
full directory refuses appends and new logs until it has free space again (``headrace_core.log.space``).

A directory that was offline may have logs of topics that were deleted before it returned. Before the storage uses any
log, it compares the topic ids of each directory's logs with the metadata (``settle``): a log is kept, deleted, or set
aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, ParamSpec, TypeVar

from headrace_core.clock import Clock
from headrace_core.errors import (
    CorruptLogError,
    HeadraceError,
    InvalidConfigError,
    LogDirNotFoundError,
    ReplicaNotAvailableError,
    StorageError,
)
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.checkpoints import read_broker_epoch, read_clean_shutdown
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem, start_sync_threads
from headrace_core.log.progress import OpeningProgress
from headrace_core.log.space import SHORTAGE_FIRST_MS, SpaceGauge
from headrace_core.log.writer import DirectoryWriter, OnAdvanced
from headrace_core.metadata import FoundEpochs
from headrace_core.node.meta_properties import MetaProperties
from headrace_core.plurals import counted
from headrace_core.telemetry import (
    Emitter,
    LogDirectoryFailed,
    LogDirectoryFull,
    LogDirectoryOpened,
    LogDirectoryOpening,
)
from headrace_core.types import TopicPartition

from .directories import (
    DirectoryDescription,
    HeldDirectory,
    check_mounted,
    describe,
    identify,
    put_offline,
    raise_all_failed,
    tell_left,
)
from .leader_replica import LeaderReplica
from .moves import Moves, settle_moves
from .partition import PartitionFollower, PartitionLeader
from .placement import Assigned, Placement
from .replication.follower_replica import FollowerReplica
from .schema_registry import SchemaRegistry
from .threads import WorkThreads
from .traffic import Traffic

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R", LeaderReplica, FollowerReplica)

#: A partition to create, with its topic's id and the settings of its log.
NewLog = tuple[TopicPartition, uuid.UUID, LogConfig]
Outcome = tuple[TopicPartition, HeadraceError | None]

DEFAULT_RESERVE_BYTES = 64 * 1024 * 1024


class Fate(enum.Enum):
    """What a start does with a log that it finds."""

    KEEP = enum.auto()
    DELETE = enum.auto()
    SET_ASIDE = enum.auto()  #: The directory is renamed to ``...-stray``, and nothing is removed.


class FoundLogs(NamedTuple):
    """Result of ``Storage.settle``: partitions whose logs were deleted; logs that were set aside, by their new paths;
    and, with the reasons, the partitions that must not be served."""

    deleted: list[TopicPartition]
    set_aside: dict[str, TopicPartition]
    refused: dict[TopicPartition, HeadraceError]


class Signal(Generic[P]):
    """An event with subscribers; a call of the Signal calls each subscriber, in the event loop."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        self._subscribers.append(subscriber)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)


class Storage:
    """See the module. ``on_advanced`` receives the logs that a directory writer has appended to or flushed, as
    ``DirectoryWriter`` says. ``assigned`` returns the directory that the controllers recorded for a partition's
    replica. Other parts of the broker subscribe to the storage's signals."""

    def __init__(
        self,
        fs: FileSystem,
        roots: Iterable[str],
        *,
        clock: Clock,
        rng: random.Random,
        loop: asyncio.AbstractEventLoop,
        events: Emitter,
        on_advanced: OnAdvanced,
        assigned: Assigned,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        shortage_first_ms: float = SHORTAGE_FIRST_MS,
        recovery_threads: int = 1,
        schemas: SchemaRegistry | None = None,
    ) -> None:
        #: Emitted with a damaged log and its error; the receiver of the signal then calls ``quarantine``.
        self.damaged = Signal[[PartitionLog, CorruptLogError]]()
        #: Emitted with the partitions that went offline, and the reason. Partitions go offline when the move of one
        #: partition fails, or when a whole log directory fails.
        self.failed = Signal[[Iterable[TopicPartition], str]]()
        #: Emitted with the writer of a directory that began to refuse appends; retention can then free space in the
        #: directory.
        self.full = Signal[[DirectoryWriter]]()
        #: Emitted with the partitions that moved to another directory.
        self.directory_changed = Signal[[Iterable[TopicPartition]]]()
        self.short = Signal[[]]()  #: Emitted when a shortage of disk space begins or ends (``short_directory_ids``).
        self._shortage_first_ms = shortage_first_ms
        self._fs = fs
        self._held = [HeldDirectory(root.rstrip("/")) for root in roots]
        self._clock = clock
        self._rng = rng
        self._events = events
        self._on_advanced = on_advanced
        self._reserve_bytes = reserve_bytes
        self._recovery_threads = recovery_threads
        self._schemas = schemas or SchemaRegistry(clock)
        self._loop = loop
        self._threads = WorkThreads(loop)
        self._all_failed = asyncio.Event()
        self._is_identified = False
        self._places = Placement(self._held, assigned)
        self._at, self._refused = self._places.at, self._places.refused
        #: Logs that are moving to another directory; their appends wait until the move is done.
        self._leaving: dict[TopicPartition, PartitionLog] = {}
        #: The current replica object of each partition.
        self._replicas: dict[TopicPartition, LeaderReplica | FollowerReplica] = {}
        self.traffic = Traffic()  #: Records and bytes by topic, for the metrics.
        self._moves = Moves(self, fs, clock=clock, rng=rng, events=events)

    def identify(self, *, node_id: int = -1) -> list[MetaProperties]:
        """Read the directories' identities, in the order of log.dirs; unreadable directories are offline until the
        broker restarts. Raises as ``directories.identify``."""
        self._is_identified = True
        return identify(self._fs, self._held, node_id=node_id)

    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch with which every online directory was cleanly closed (KIP-966); None if the last stop was
        not clean. Call this method before ``open``, which removes the markers of a clean stop."""
        try:
            stops = [read_clean_shutdown(self._fs, held.root) for held in self._held if held.failure is None]
        except OSError:  # ignore the error: opening the directory will report it
            return None
        epochs = {None if stop is None else stop.broker_epoch for stop in stops}
        return epochs.pop() if len(epochs) == 1 else None

    def directory_epochs(self) -> list[FoundEpochs]:
        """The broker epochs that the online directories prove. Call this method before ``open``."""
        found = []
        for held in self._held:
            if held.failure is None and held.directory_id is not None:
                started = stopped = -1
                with contextlib.suppress(OSError):  # ignore the error: opening the directory will report it
                    started = read_broker_epoch(self._fs, held.root)
                    stop = read_clean_shutdown(self._fs, held.root)
                    stopped = -1 if stop is None else stop.broker_epoch
                found.append(FoundEpochs(held.directory_id.bytes, started, stopped))
        return found

    async def open(self, settings_of: Callable[[str], LogConfig], *, broker_epoch: int | None = None) -> None:
        """Lock every directory and open every log on threads, with recovery where it is needed. Each directory gets
        ``broker_epoch`` before its logs are opened. A directory that cannot be opened is put offline. Call ``settle``
        next. Raises the errors of ``identify``, and StorageError if no directory can be opened."""
        if not self._is_identified:
            self.identify()
        usable = [held for held in self._held if held.failure is None]
        with ThreadPoolExecutor(max(len(usable), 1), thread_name_prefix="open") as pool:
            outcomes = await asyncio.gather(
                *(
                    self._loop.run_in_executor(pool, self._open_directory, settings_of, held.root, broker_epoch)
                    for held in usable
                ),
                return_exceptions=True,
            )
        fatal: BaseException | None = None
        failures: list[Exception] = [held.start_failure for held in self._held if held.start_failure is not None]
        for held, outcome in zip(usable, outcomes, strict=True):
            if isinstance(outcome, LogDirectory):
                self._opened(held, outcome)
            elif isinstance(outcome, OSError | InvalidConfigError):
                put_offline(held, outcome)
                failures.append(outcome)
            else:  # another process has locked the directory, or the code has a bug
                fatal = outcome
        if fatal is not None:
            raise fatal
        if not self.writers():
            raise_all_failed(failures)
        tell_left(self._held)

    def _open_directory(
        self, settings_of: Callable[[str], LogConfig], root: str, broker_epoch: int | None
    ) -> LogDirectory:
        return LogDirectory.open(
            self._fs,
            root,
            clock=self._clock,
            config_of=lambda topic, _: settings_of(topic),
            rng=self._rng,
            recovery_threads=self._recovery_threads,
            on_progress=self._on_progress,
            broker_epoch=broker_epoch,
        )

    def _on_progress(self, progress: OpeningProgress) -> None:
        """Called on a thread that opens logs."""
        with contextlib.suppress(RuntimeError):  # a closed loop raises RuntimeError: no receiver is left
            self._loop.call_soon_threadsafe(self._report_progress, progress)

    def _report_progress(self, progress: OpeningProgress) -> None:
        self._events.emit(
            LogDirectoryOpening(
                path=progress.path,
                logs_opened=progress.logs_opened,
                logs=progress.logs,
                scanned_bytes=progress.scanned_bytes,
                seconds=progress.seconds,
            )
        )

    def _opened(self, held: HeldDirectory, directory: LogDirectory) -> None:
        held.directory_id = directory.meta.directory_id
        held.space = SpaceGauge(
            self._fs, directory.root, self._clock, self._reserve_bytes, shortage_first_ms=self._shortage_first_ms
        )
        held.writer = DirectoryWriter(
            directory,
            clock=self._clock,
            on_advanced=self._on_advanced,
            on_failure=functools.partial(self._failed, held),
            space=held.space,
            on_full=functools.partial(self._full_or_not, held),
            on_short=lambda _: self.short(),
        )
        held.measure()
        self._events.emit(
            LogDirectoryOpened(
                path=directory.root,
                logs=len(directory.logs),
                damaged=len(directory.quarantined),
                clean=directory.clean_shutdown_epoch is not None,
            )
        )

    async def settle(self, fate_of: Callable[[TopicPartition, uuid.UUID], Fate]) -> FoundLogs:
        """Compare the logs that were found with the partitions in the metadata. ``fate_of`` decides from a log's
        partition and topic id. A directory that was offline may have a deleted topic's log, while another directory has
        the log of a new topic with the same name."""
        deleted: list[TopicPartition] = []
        set_aside: dict[str, TopicPartition] = {}
        refused = await settle_moves(self._held)
        for held in self._held:
            writer = held.writer
            if writer is None or writer.failure is not None:
                continue
            directory = writer.directory
            await self._delete_in(writer, _never_made(directory))
            logs: dict[Fate, list[TopicPartition]] = {fate: [] for fate in Fate}
            for partition, topic_id in directory.holdings():
                if topic_id is not None:
                    logs[fate_of(partition, topic_id)].append(partition)
            deleted += await self._delete_in(writer, logs[Fate.DELETE])
            set_aside |= await self._set_aside_in(writer, logs[Fate.SET_ASIDE])
            for partition, damage in directory.quarantined.items():
                refused.setdefault(partition, damage)
            for partition, _ in directory.holdings():
                other = self._at.setdefault(partition, held)
                if other is not held:
                    refused[partition] = CorruptLogError(
                        f"{partition} has a log in {other.root} and another in {held.root}: stop the broker, move "
                        "the outdated log away, then start the broker"
                    )
        # Forget the refusals of deleted partitions, because a new topic may have the same name.
        refused = {partition: why for partition, why in refused.items() if partition in self._at}
        self._refused.update(refused)
        return FoundLogs(deleted, set_aside, refused)

    def writers(self) -> list[DirectoryWriter]:
        """Writers of the online directories."""
        return [held.writer for held in self._held if held.writer is not None and held.failure is None]

    def directory_ids(self) -> dict[uuid.UUID, str]:
        """{id: root} of the online directories."""
        return {held.directory_id: held.root for held in self._held if held.failure is None and held.directory_id}

    def offline_directories(self) -> dict[str, str]:
        """{root: why} of the offline directories."""
        return {held.root: held.failure.message for held in self._held if held.failure is not None}

    def offline_directory_ids(self) -> list[uuid.UUID]:
        """Ids of the offline directories whose ids could be read before they failed."""
        return [held.directory_id for held in self._held if held.failure is not None and held.directory_id]

    def short_directory_ids(self) -> list[uuid.UUID]:
        """Ids of the online directories that are short of space, where replicas should not lead
        (``headrace_core.log.space``)."""
        return [
            held.directory_id
            for held in self._held
            if held.failure is None and held.directory_id and held.space is not None and held.space.is_short
        ]

    def directory_of(self, partition: TopicPartition) -> uuid.UUID | None:
        """See ``Placement.directory_of``."""
        return self._places.directory_of(partition)

    def describe(self) -> list[DirectoryDescription]:
        """Describe every directory, in the order of log.dirs, with its logs by topic and partition. Measures their
        disks."""
        troubles = {
            partition: replica.follower.leader_lacks
            for partition, replica in self._replicas.items()
            if isinstance(replica, FollowerReplica) and replica.follower.leader_lacks is not None
        } | self._refused
        return [
            describe(held, [move.describe() for move in self._moves.under_way() if move.target is held], troubles)
            for held in self._held
        ]

    def topics(self) -> set[str]:
        """The topics of all replicas on this broker."""
        return {partition.topic for partition in self._at}

    def held_directories(self) -> tuple[HeldDirectory, ...]:
        """The directories of log.dirs, in their order."""
        return tuple(self._held)

    def set_reserve(self, reserve_bytes: int) -> None:
        """Apply ``log.dir.reserve.bytes``."""
        self._reserve_bytes = reserve_bytes
        for held in self._held:
            if held.space is not None and held.failure is None:
                held.space.wanted_reserve_bytes = reserve_bytes
                held.measure()

    def set_moves_rate(self, bytes_per_second: float) -> None:
        """Apply ``replica.alter.log.dirs.io.max.bytes.per.second``."""
        self._moves.set_rate(bytes_per_second)

    def set_recovery_threads(self, threads: int) -> None:
        """Set ``num.recovery.threads.per.data.dir``; call this method before ``open``."""
        self._recovery_threads = threads

    def begin_threads(self) -> None:
        """Start all threads now, after ``open``, so that their number does not depend on the load."""
        start_sync_threads()
        self._threads.begin()
        for writer in self.writers():
            writer.begin_thread()

    async def until_all_failed(self) -> None:
        """Wait until the last directory has failed, then raise StorageError: the broker has no log left to serve
        (KIP-112)."""
        await self._all_failed.wait()
        raise StorageError(
            "all log directories of this broker have failed: " + "; ".join(self.offline_directories().values())
        )

    def _failed(self, held: HeldDirectory, failure: StorageError) -> None:
        partitions = [partition for partition, at in self._at.items() if at is held]
        self._events.emit(LogDirectoryFailed(path=held.root, reason=failure.message))
        self.failed(partitions, failure.message)
        if not self.writers():
            self._all_failed.set()

    def _full_or_not(self, held: HeldDirectory, is_full: bool) -> None:
        assert held.writer is not None
        assert held.space is not None
        self._events.emit(
            LogDirectoryFull(
                path=held.root,
                full=is_full,
                free_bytes=held.space.free_bytes,
                reserve_bytes=held.space.reserve_bytes,
            )
        )
        if not is_full or held.failure is not None:
            return
        giving_back = held.writer.run(functools.partial(_give_back_reserved, held.writer.directory))
        giving_back.add_done_callback(_log_failure)
        self.full(held.writer)

    def log(self, partition: TopicPartition) -> PartitionLog | None:
        """The log of a partition; None if there is no usable log."""
        held = self._at.get(partition)
        if held is None or held.writer is None or held.failure is not None or partition in self._refused:
            return None
        return self._leaving.get(partition) or held.writer.directory.get(partition)

    def logs(self) -> list[tuple[TopicPartition, PartitionLog]]:
        """Every undamaged log of the online directories."""
        found = {partition: log for writer in self.writers() for partition, log in list(writer.directory.logs.items())}
        return list((found | self._leaving).items())

    def leader_replica(self, log: PartitionLog, leader: PartitionLeader) -> LeaderReplica:
        return self._in_place_of_former(
            log,
            lambda writer: LeaderReplica(
                log, leader, writer, self._threads, self._schemas, self.damaged, self.traffic.of(leader.partition.topic)
            ),
        )

    def follower_replica(self, log: PartitionLog, follower: PartitionFollower) -> FollowerReplica:
        return self._in_place_of_former(
            log,
            lambda writer: FollowerReplica(
                log, follower, writer, self._threads, self.damaged, self.traffic.of(log.topic_partition.topic)
            ),
        )

    def _in_place_of_former(self, log: PartitionLog, make: Callable[[DirectoryWriter], R]) -> R:
        partition = log.topic_partition
        held = self._at[partition]
        assert held.writer is not None
        before = self._replicas.get(partition)
        replica = self._replicas[partition] = make(held.writer)
        if partition in self._leaving:
            replica.hold()
            if before is not None:  # the replica object is replaced, and its waiters get an error
                before.release(log, held.writer)
        return replica

    async def wait_written(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until the writers have written or refused all appends that were submitted before this call for
        ``partitions``."""
        writers = {held.writer for partition in partitions if (held := self._at.get(partition)) is not None}
        barriers = []
        for writer in writers:
            if writer is not None:
                # A failed directory raises HeadraceError: nothing more is written to that directory.
                with contextlib.suppress(HeadraceError):
                    barriers.append(writer.run(_nothing))
        await asyncio.gather(*barriers, return_exceptions=True)

    def holds(self, partition: TopicPartition) -> bool:
        """Whether an online directory has a log of the partition, sound or damaged."""
        held = self._at.get(partition)
        return held is not None and held.writer is not None and held.writer.directory.holds(partition)

    def anew(self, partition: TopicPartition, topic_id: uuid.UUID) -> uuid.UUID | None:
        """See ``Placement.anew``."""
        return self._places.anew(partition, topic_id)

    async def create(self, wanted: Iterable[NewLog], *, at_start: bool = False) -> list[Outcome]:
        """Create logs durably, each in the directory that ``placement`` chooses. Returns None for each log that exists
        now, otherwise its error: StorageError, DiskFullError (retry when the directory has free space),
        CorruptLogError, ...

        ``at_start``: the partitions come from the first metadata image, so their logs may be in an offline directory.
        """
        shares: dict[HeldDirectory, list[NewLog]] = {}
        added: dict[HeldDirectory, int] = {}
        outcomes: list[Outcome] = []
        for held in self._held:
            if held.writer is not None and held.failure is None:
                held.measure()
        for item in wanted:
            if item[0] in self._leaving:
                outcomes.append((item[0], None))
                continue
            try:
                held = self._places.place(item[0], item[1], added, at_start=at_start)
            except HeadraceError as error:
                outcomes.append((item[0], error))
                continue
            shares.setdefault(held, []).append(item)
            if self._at.get(item[0]) is not held:
                self._at[item[0]] = held
                added[held] = added.get(held, 0) + 1
        for held, share in shares.items():
            assert held.writer is not None
            outcomes += await self._create_in(held.writer, share)
        return outcomes

    async def _create_in(self, writer: DirectoryWriter, share: list[NewLog]) -> list[Outcome]:
        def create_all() -> list[Outcome]:
            # If the directory is unmounted, a log would be created on the disk of the mount point instead.
            check_mounted(writer.directory)
            made = writer.directory.create_all(share)
            return [
                (partition, outcome if isinstance(outcome, HeadraceError) else None)
                for (partition, _, _), outcome in zip(share, made, strict=True)
            ]

        try:
            return await writer.run(create_all)
        except HeadraceError as error:
            return [(partition, error) for partition, _, _ in share]

    async def delete(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Delete the logs of partitions in all directories; returns the partitions that had logs. The logs in a failed
        directory stay until the directory is online again (``settle``)."""
        deleted: list[TopicPartition] = []
        await self._moves.cancel(partitions)
        self._places.forget(partitions)
        for partition in partitions:
            self._replicas.pop(partition, None)
        for writer in self.writers():
            deleted += await self._delete_in(writer, [item for item in partitions if writer.directory.holds(item)])
        return deleted

    async def _delete_in(self, writer: DirectoryWriter, share: list[TopicPartition]) -> list[TopicPartition]:
        if not share or writer.failure is not None:
            return []
        try:
            return await writer.run(functools.partial(writer.directory.delete_all, share))
        except HeadraceError as error:
            logger.error(
                "log directory %s: cannot delete %s: %s", writer.directory.root, counted(len(share), "log"), error
            )
            return []

    async def _set_aside_in(self, writer: DirectoryWriter, share: list[TopicPartition]) -> dict[str, TopicPartition]:
        if not share or writer.failure is not None:
            return {}
        try:
            paths = await writer.run(functools.partial(writer.directory.set_aside, share))
        except HeadraceError as error:
            logger.error(
                "log directory %s: cannot set %s aside: %s", writer.directory.root, counted(len(share), "log"), error
            )
            return {}
        return {path: partition for partition, path in paths.items()}

    async def reconfigure(self, partition: TopicPartition, config: LogConfig) -> None:
        """Set a log's configuration, in order with the log's appends. A moving log gets the configuration in its new
        directory; an offline log gets the configuration when it is opened."""
        while (log := self.log(partition)) is not None:
            writer = self._at[partition].writer
            assert writer is not None
            if partition not in self._leaving:
                try:
                    await writer.run(functools.partial(log.reconfigure, config), log=log)
                except HeadraceError as error:
                    logger.warning("partition %s: cannot apply the new settings to the log: %s", partition, error)
                    return
            if partition in self._leaving:
                await self._moves.wait(partition)
            elif self.log(partition) is log:
                return

    async def move(self, partition: TopicPartition, root: str) -> None:
        """Start to move a partition's log to the directory ``root`` (KIP-113). If ``root`` is the log's current
        directory, a running move is cancelled. The call returns when the move has begun. ``describe`` shows the copy as
        a future log until the copy replaces the log. When the copy has replaced the log, ``directory_changed`` is
        emitted, and ``until_moved`` returns. A move does not continue after a restart of the broker.

        Raises LogDirNotFoundError if ``root`` is not in log.dirs, and StorageError if the old or the new directory is
        offline. Raises DiskFullError if ``root`` has too little free space for the log, and ReplicaNotAvailableError if
        this broker has no log of the partition.
        """
        target = next((held for held in self._held if held.root == root.rstrip("/")), None)
        if target is None:
            raise LogDirNotFoundError(
                f"cannot move {partition}: {root} is not one of log.dirs={','.join(held.root for held in self._held)}"
            )
        while target.failure is None and (under_way := self._moves.target_of(partition)) is not None:
            if under_way is target:
                return
            await self._moves.cancel([partition])  # another caller may have begun a move during the wait
        if target.failure is not None:
            raise StorageError(target.failure.message)
        source, log = self._at.get(partition), self.log(partition)
        if source is not None and source.failure is not None:
            raise StorageError(f"{partition} is offline: {source.failure.message}")
        if source is None or log is None:
            raise ReplicaNotAvailableError(f"cannot move {partition}: this broker has no log of the partition")
        if source is not target:
            self._moves.begin(log, source, target)

    async def until_moved(self, partition: TopicPartition) -> None:
        """Wait until no move of the partition is in progress; ``directory_of`` then returns the log's directory."""
        await self._moves.wait(partition)

    def hold(self, partition: TopicPartition, log: PartitionLog) -> None:
        """See ``moves.Mover``."""
        self._leaving[partition] = log
        if (replica := self._replicas.get(partition)) is not None:
            replica.hold()

    def release(self, partition: TopicPartition, log: PartitionLog, writer: DirectoryWriter) -> None:
        del self._leaving[partition]
        if (replica := self._replicas.get(partition)) is not None:
            replica.release(log, writer)

    def high_watermark(self, partition: TopicPartition) -> int:
        """The high watermark of the leader or follower on this broker; if the partition has no role, the checkpointed
        high watermark."""
        if (replica := self._replicas.get(partition)) is not None:
            return replica.leader.high_watermark if isinstance(replica, LeaderReplica) else replica.high_watermark
        return self.checkpointed(partition)

    def checkpointed(self, partition: TopicPartition) -> int:
        """The last checkpointed high watermark, limited to the log's end."""
        held = self._at[partition]
        assert held.writer is not None
        return held.writer.directory.high_watermark(partition)

    def was_cleaned(self, partition: TopicPartition) -> bool:
        """Whether this broker has compacted its log of the partition, perhaps before cleanup.policy changed."""
        writer = self._at[partition].writer
        return writer is not None and writer.directory.compaction.clean_offset(partition) is not None

    def taken_over(self, partition: TopicPartition, target: HeldDirectory) -> None:
        self._at[partition] = target

    def arrived(self, partition: TopicPartition) -> None:
        self.directory_changed([partition])

    def lost(self, partition: TopicPartition, error: HeadraceError) -> None:
        """Called when the move of the partition's log failed, and the partition is now unavailable."""
        self._refused[partition] = error
        self.failed([partition], error.message)

    def quarantine(self, log: PartitionLog, error: CorruptLogError) -> bool:
        """Take a damaged log out of use at once, and mark the log as damaged in its directory. Returns False if the log
        was not in use, because it was deleted or already quarantined."""
        partition = log.topic_partition
        if self.log(partition) is not log:
            return False
        self._refused[partition] = error
        writer = self._at[partition].writer
        assert writer is not None
        with contextlib.suppress(HeadraceError):  # ignore the error of a directory that has failed or is being closed
            writer.run(functools.partial(_quarantine, writer, partition, error)).add_done_callback(_log_failure)
        return True

    async def checkpoint(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Check that every online directory is present and writable, measure its disk, and write recovery points and
        high watermarks. The storage writes the recovery points and high watermarks of all directories at the same time.

        The check finds an unmounted, replaced or read-only directory. The check writes nothing, and unchanged
        checkpoints are not written again. A check may therefore miss an idle disk that fails reads and writes with
        EIO."""
        await asyncio.gather(*(self._checkpoint(writer, high_watermarks) for writer in self.writers()))

    async def _checkpoint(self, writer: DirectoryWriter, high_watermarks: Mapping[TopicPartition, int]) -> None:
        directory = writer.directory
        share = {partition: end for partition, end in high_watermarks.items() if partition in directory.logs}
        try:
            await writer.run(functools.partial(_check_and_checkpoint, writer, share))
        except HeadraceError as error:
            logger.warning(
                "log directory %s: cannot write the checkpoints of recovery points and high watermarks: %s",
                directory.root,
                error,
            )

    async def close(
        self, high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int, clean: bool = True
    ) -> bool:
        """Flush and close every directory, and mark each directory as cleanly closed. Returns True if all directories
        were cleanly closed. With ``clean`` False the directories are only closed, not flushed."""
        await self._moves.cancel()
        self._threads.close()
        if clean:
            await self.checkpoint(high_watermarks)
        marked = clean
        clean = clean and not self.offline_directories()
        for held in self._held:
            writer = held.writer
            if writer is None:
                continue
            await writer.close()
            try:
                writer.directory.close(broker_epoch=broker_epoch, clean=marked and writer.failure is None)
            except (OSError, HeadraceError) as error:
                logger.error(
                    "cannot close log directory %s cleanly, so the next start recovers its logs: %s",
                    writer.directory.root,
                    error,
                )
                clean = False
            clean = clean and writer.failure is None
            held.writer = None
        self._at.clear()
        self._replicas.clear()
        return clean


def _never_made(directory: LogDirectory) -> list[TopicPartition]:
    """The partitions of empty logs without a topic id, which interrupted creations left behind. The partition of such a
    log may now be in another directory, even in an offline directory, so its directory is chosen again."""
    return [item for item, log in directory.logs.items() if log.topic_id is None and log.log_end_offset == 0]


def _check_and_checkpoint(writer: DirectoryWriter, high_watermarks: Mapping[TopicPartition, int]) -> None:
    directory = writer.directory
    check_mounted(directory)
    if writer.space is not None:
        writer.space.measure()
    try:
        directory.write_recovery_points()
    finally:
        directory.write_high_watermarks(high_watermarks)


def _give_back_reserved(directory: LogDirectory) -> None:
    """Free the disk blocks that were reserved for growing segments, because the disk is full."""
    for log in directory.logs.values():
        if not log.is_closed:
            log.active.give_back()


def _quarantine(writer: DirectoryWriter, partition: TopicPartition, error: CorruptLogError) -> None:
    writer.directory.quarantine(partition, error)


def _nothing() -> None:
    """An empty action: when it has run, all earlier actions of the writer have run."""


def _log_failure(future: asyncio.Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        logger.warning("cannot release preallocated disk blocks, or mark a log as damaged: %s", error)
