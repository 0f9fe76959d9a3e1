"""The broker's log directories (``log.dirs``): their identity and state, and where a new partition goes.

A directory is *online*, with a writer, or *offline*: not formatted (perhaps not mounted), unreadable, read-only, or
failed in use. An offline one stays so until the broker restarts; the broker continues with the others, and ends when
none is left (KIP-112).

An unmounted directory looks like an empty one: nothing is created, and no checkpoint written, before ``.lock`` could be
opened and ``meta.properties`` names this directory (``check_mounted``, every five seconds).

A failed flush, write or read with EIO is the disk's failure. ENOENT, EMFILE and ESTALE of a read are not
(``DirectoryWriter.read_failed``): the process has no descriptor left, or a file was deleted under a reader.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headrace_core.errors import HeadraceError, InvalidConfigError, StorageError
from headrace_core.log.checkpoints import LOCK, META_PROPERTIES
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem
from headrace_core.log.segment import LOG_SUFFIX
from headrace_core.log.space import SpaceGauge
from headrace_core.log.writer import DirectoryWriter
from headrace_core.node.meta_properties import MetaProperties, check_agreement, read_meta
from headrace_core.types import TopicPartition

logger = logging.getLogger(__name__)

#: KIP-858's reserved ids: of a log that is not placed yet, and of one that may be in an offline directory.
UNASSIGNED, LOST = uuid.UUID(int=0), uuid.UUID(int=1)


@dataclass(slots=True, eq=False)
class HeldDirectory:
    """One of ``log.dirs``, in any state."""

    root: str
    directory_id: uuid.UUID | None = None  #: None while it could never be read.
    writer: DirectoryWriter | None = None
    space: SpaceGauge | None = None
    start_failure: StorageError | None = None  #: Why it could not be used at the start.

    @property
    def failure(self) -> StorageError | None:
        """Why it is offline; None while it works (or is not opened yet)."""
        if self.start_failure is not None:
            return self.start_failure
        return None if self.writer is None else self.writer.failure

    @property
    def load(self) -> tuple[bool, int, int]:
        """Sort key for placing a partition, smallest first: room above the reserve, few logs, much free space."""
        assert self.writer is not None
        assert self.space is not None
        directory = self.writer.directory
        return self.space.is_full, len(directory.logs) + len(directory.quarantined), -self.space.free_bytes

    def measure(self) -> None:
        """Measure the free space; an error counts as a failure of the disk. Call in the event loop."""
        assert self.writer is not None
        assert self.space is not None
        try:
            self.space.measure()
        except OSError as error:
            self.writer.fail(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """A log in a directory (KIP-113)."""

    partition: TopicPartition
    size_bytes: int
    offset_lag: int  #: How far the end of a future log is behind the present log's; else 0.
    is_future: bool
    #: Why it is not served although its directory is online; None: it is served.
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryDescription:
    """One directory in DescribeLogDirs (KIP-113, KIP-827). Bytes are -1 when unknown."""

    root: str
    directory_id: uuid.UUID | None
    error: StorageError | None
    total_bytes: int
    usable_bytes: int
    logs: Sequence[LogDescription]
    sync_us: int = -1  #: Median of its last small flushes, in microseconds; -1: too few.


def identify(fs: FileSystem, directories: Iterable[HeldDirectory], *, node_id: int) -> list[MetaProperties]:
    """Read the identity of each directory; returns those that are readable, the rest is offline.

    Raises InvalidConfigError (another node's, one given twice, none formatted), InconsistentClusterIdError,
    StorageError (another process has one of them, or none is usable): mistakes that a person must correct.
    """
    held = list(directories)
    metas: list[MetaProperties] = []
    usable: list[HeldDirectory] = []
    failures: list[Exception] = []
    for directory in held:
        try:
            meta = read_meta(directory.root, node_id=node_id, fs=fs)
        except (InvalidConfigError, OSError) as error:
            failures.append(error)
            put_offline(directory, error)
            continue
        directory.directory_id = uuid.UUID(bytes=meta.directory_id)
        metas.append(meta)
        usable.append(directory)
    if not usable and failures:
        raise_all_failed(failures)
    check_agreement([directory.root for directory in usable], metas, node_id=node_id)
    for directory in usable:
        check_free(fs, directory)
    return metas


def check_free(fs: FileSystem, directory: HeldDirectory) -> None:
    """Raise StorageError if another process has the directory; one that cannot be locked is offline."""
    try:
        fs.lock(f"{directory.root}/{LOCK}").release()
    except BlockingIOError:
        raise StorageError(
            f"log directory {directory.root} is in use: another process holds {directory.root}/{LOCK}"
        ) from None
    except OSError as error:
        put_offline(directory, error)


def put_offline(directory: HeldDirectory, error: Exception) -> None:
    """Mark the directory offline until the broker restarts; the caller reports the remaining ones (tell_left)."""
    why = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    directory.start_failure = StorageError(
        f"log directory {directory.root} is offline: {why}. Repair it or remove it from log.dirs, then restart the "
        "broker"
    )
    directory.start_failure.__cause__ = error
    logger.error("%s", directory.start_failure.message)


def tell_left(directories: Collection[HeldDirectory]) -> None:
    """Log how many directories the broker continues with, if not all; called once after all were tried."""
    usable = sum(directory.failure is None for directory in directories)
    if usable < len(directories):
        logger.warning("the broker continues with %d of its %d log directories", usable, len(directories))


def raise_all_failed(failures: Sequence[Exception]) -> None:
    """Raise when no directory is left: the first failure, if it names a cure; else StorageError with all of them."""
    if isinstance(failures[0], HeadraceError):
        raise failures[0]
    raise StorageError("no log directory is usable: " + "; ".join(map(str, failures))) from failures[0]


def check_mounted(directory: LogDirectory) -> None:
    """Raise OSError if the directory is no longer the opened one: unmounted, replaced, or read-only. Two opens and no
    write; on the directory's thread."""
    fs, root = directory.fs, directory.root
    fs.open(f"{root}/{LOCK}", write=True).close()
    try:
        found = read_meta(root, fs=fs)
    except InvalidConfigError as error:
        raise OSError(f"{root} is no longer the directory that the broker opened: {error.message}") from error
    if found.directory_id != directory.meta.directory_id.bytes:
        raise OSError(
            f"{root}/{META_PROPERTIES} has another directory.id than the directory that the broker opened: was "
            "another disk mounted there?"
        )


def describe(
    held: HeldDirectory,
    futures: Iterable[LogDescription] = (),
    refused: Mapping[TopicPartition, HeadraceError] = MappingProxyType({}),
) -> DirectoryDescription:
    """Describe a directory with its logs, including ``futures`` and quarantined ones; measures its disk. ``refused``:
    logs that are not served, and why."""
    if held.writer is not None and held.failure is None:
        held.measure()
    error, logs = held.failure, list(futures)
    if held.writer is not None and error is None:
        directory = held.writer.directory
        logs += [
            LogDescription(
                partition=partition,
                size_bytes=log.size_bytes,
                offset_lag=0,
                is_future=False,
                error=refused.get(partition),
            )
            for partition, log in list(directory.logs.items())
        ]
        logs += [
            LogDescription(
                partition=partition,
                size_bytes=_segment_bytes(directory.fs, f"{directory.root}/{partition}"),
                offset_lag=0,
                is_future=False,
                error=damage,
            )
            for partition, damage in list(directory.quarantined.items())
        ]
    space = held.space if error is None else None
    return DirectoryDescription(
        root=held.root,
        directory_id=held.directory_id,
        error=error,
        total_bytes=-1 if space is None else space.total_bytes,
        usable_bytes=-1 if space is None else space.free_bytes,
        logs=[] if error is not None else sorted(logs, key=lambda log: (log.partition, log.is_future)),
        sync_us=_sync_us(held) if error is None else -1,
    )


def _sync_us(held: HeldDirectory) -> int:
    sync_ms = None if held.writer is None else held.writer.sync_ms
    return -1 if sync_ms is None else round(sync_ms * 1_000)


def _segment_bytes(fs: FileSystem, path: str) -> int:
    """Bytes of a log that is not open."""
    try:
        return sum(fs.file_size(f"{path}/{name}") for name in fs.listdir(path) if name.endswith(LOG_SUFFIX))
    except OSError:
        return 0  # it was removed meanwhile


def least_loaded(candidates: Collection[HeldDirectory], added: dict[HeldDirectory, int]) -> HeldDirectory:
    """The directory for one more partition: the one with the fewest logs (``added`` counts planned ones), as in Kafka;
    among equals, the one with the most free space. A full one only if all are full. ``candidates`` is not empty."""

    def load(directory: HeldDirectory) -> tuple[bool, int, int]:
        is_full, logs, free = directory.load
        return is_full, logs + added.get(directory, 0), free

    return min(candidates, key=load)
