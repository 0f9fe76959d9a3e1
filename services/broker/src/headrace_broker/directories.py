"""The broker's log directories (``log.dirs``): their identity, their state, and the choice of a directory for a new
partition.

A directory is *online*, with a writer, or *offline*: not formatted (perhaps not mounted), unreadable, read-only, or
failed in use. An offline directory stays offline until the broker restarts. When a directory fails, the broker
continues with its other directories; it stops when no directory is left (KIP-112).

An unmounted directory looks like an empty directory, in which the broker must not create files. The broker creates a
file in a directory only after it has opened ``.lock`` there and has read the directory's id from ``meta.properties``.
Every five seconds ``check_mounted`` checks that the path of each directory still leads to the directory that was
opened.

A flush, write or read that fails counts as a failed disk, with two exceptions. A write that fails with ENOSPC or EDQUOT
means a full disk. A read that fails with one of eight values of errno (``_NOT_THE_DISK`` in
``headrace_core.log.writer``) has another cause. For example, ENOENT and ESTALE mean that a file was deleted during a
read, and EMFILE that the process has no free descriptor.
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

#: Reserved directory ids of KIP-858: UNASSIGNED for a log without a directory, LOST for a log that may be in an offline
#: directory.
UNASSIGNED, LOST = uuid.UUID(int=0), uuid.UUID(int=1)


@dataclass(slots=True, eq=False)
class HeldDirectory:
    """A directory of ``log.dirs``, online or offline."""

    root: str
    #: The id of the log directory; None while the directory's meta.properties could not be read.
    directory_id: uuid.UUID | None = None
    writer: DirectoryWriter | None = None
    space: SpaceGauge | None = None
    #: The error that made the directory unusable when the broker started; None for a usable directory.
    start_failure: StorageError | None = None

    @property
    def failure(self) -> StorageError | None:
        """Why the directory is offline; None while it is online or not opened yet."""
        if self.start_failure is not None:
            return self.start_failure
        return None if self.writer is None else self.writer.failure

    @property
    def load(self) -> tuple[bool, int, int]:
        """Sort key for placing a partition, best directory first. Directories that are not full come before full
        directories, then fewer logs come before more, then more free space before less."""
        assert self.writer is not None
        assert self.space is not None
        directory = self.writer.directory
        return self.space.is_full, len(directory.logs) + len(directory.quarantined), -self.space.free_bytes

    def measure(self) -> None:
        """Measure the free space of the directory; an error counts as a failed disk. Call this method in the event
        loop."""
        assert self.writer is not None
        assert self.space is not None
        try:
            self.space.measure()
        except OSError as error:
            self.writer.fail(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """A log in a log directory (KIP-113)."""

    partition: TopicPartition
    size_bytes: int
    #: Number of offsets by which the copy of a moving log (a future log) is behind the original log; 0 for any other
    #: log.
    offset_lag: int
    is_future: bool
    #: The reason why the broker does not serve the log although its directory is online; None if the broker serves the
    #: log.
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryDescription:
    """Description of one log directory in DescribeLogDirs (KIP-113, KIP-827). Byte counts in the description of a
    directory are -1 when they are unknown."""

    root: str
    directory_id: uuid.UUID | None
    error: StorageError | None
    total_bytes: int
    usable_bytes: int
    logs: Sequence[LogDescription]
    #: Median duration of the log directory's last small flushes in microseconds; -1 if there were too few flushes.
    sync_us: int = -1


def identify(fs: FileSystem, directories: Iterable[HeldDirectory], *, node_id: int) -> list[MetaProperties]:
    """Read the identity of each directory, and put unreadable directories offline. Returns the identities of the
    readable directories.

    Raises errors for mistakes in directories or configuration that a person must correct. InvalidConfigError: a
    directory of another node, a directory given twice, or no formatted directory. InconsistentClusterIdError:
    directories of two clusters. StorageError: another process uses a directory, or no directory is usable.
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
    """Raise StorageError if another process uses the directory; put the directory offline if it cannot be locked."""
    try:
        fs.lock(f"{directory.root}/{LOCK}").release()
    except BlockingIOError:
        raise StorageError(
            f"log directory {directory.root} is in use: another process holds {directory.root}/{LOCK}; stop the other "
            "process, or remove the directory from log.dirs"
        ) from None
    except OSError as error:
        put_offline(directory, error)


def put_offline(directory: HeldDirectory, error: Exception) -> None:
    """Mark the directory offline until the broker restarts. The caller then logs how many directories are left
    (``tell_left``)."""
    why = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    directory.start_failure = StorageError(
        f"log directory {directory.root} is offline: {why}. Repair it or remove it from log.dirs, then restart the "
        "broker"
    )
    directory.start_failure.__cause__ = error
    logger.error("%s", directory.start_failure.message)


def tell_left(directories: Collection[HeldDirectory]) -> None:
    """If some directories are offline, log the number of directories with which the broker continues. ``tell_left`` is
    called once, after the broker has tried to open every directory."""
    usable = sum(directory.failure is None for directory in directories)
    if usable < len(directories):
        logger.warning("the broker continues with %d of its %d log directories", usable, len(directories))


def raise_all_failed(failures: Sequence[Exception]) -> None:
    """Raise an error because no directory is left: the first failure if its message names a cure, else a StorageError
    that lists all failures."""
    if isinstance(failures[0], HeadraceError):
        raise failures[0]
    raise StorageError("no log directory is usable: " + "; ".join(map(str, failures))) from failures[0]


def check_mounted(directory: LogDirectory) -> None:
    """Raise OSError if the path no longer leads to the directory that was opened: unmounted, replaced, or read-only.
    The check of a directory opens two files and writes none; call it on the directory's thread."""
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
    """Describe a directory with its logs, including ``futures`` and quarantined logs, and measure its disk. ``refused``
    has the logs that the broker does not serve, with the reasons."""
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
    """Size in bytes of a log that is not open."""
    try:
        return sum(fs.file_size(f"{path}/{name}") for name in fs.listdir(path) if name.endswith(LOG_SUFFIX))
    except OSError:
        return 0  # the log has been removed


def least_loaded(candidates: Collection[HeldDirectory], added: dict[HeldDirectory, int]) -> HeldDirectory:
    """The directory for one more partition: the directory with the fewest logs, as in Kafka, then the one with the most
    free space. ``added`` has, for each directory, the number of logs that are planned but not created yet. A full
    directory is chosen only if all directories are full. ``candidates`` must not be empty."""

    def load(directory: HeldDirectory) -> tuple[bool, int, int]:
        is_full, logs, free = directory.load
        return is_full, logs + added.get(directory, 0), free

    return min(candidates, key=load)
