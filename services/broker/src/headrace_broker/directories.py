"""The broker's log directories (``log.dirs``) as such: whose they are, which of them work, where a new partition goes.

A directory is *online*, with a writer, or *offline*: not formatted (perhaps not mounted), unreadable, read-only, or
failed while it was used. An offline one stays so until the broker starts anew; the broker goes on with the others, and
ends when there is none left (KIP-112).

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

#: KIP-858's reserved ids: of a log that nobody has placed yet, and of one that may be in a directory that is away.
UNASSIGNED, LOST = uuid.UUID(int=0), uuid.UUID(int=1)


@dataclass(slots=True, eq=False)
class HeldDirectory:
    """One of ``log.dirs``, in whatever state."""

    root: str
    #: None while it could never be read.
    directory_id: uuid.UUID | None = None
    writer: DirectoryWriter | None = None
    space: SpaceGauge | None = None
    #: Why it could not be used at the start.
    start_failure: StorageError | None = None

    @property
    def failure(self) -> StorageError | None:
        """Why it is offline; None while it works (or has yet to be opened)."""
        if self.start_failure is not None:
            return self.start_failure
        return None if self.writer is None else self.writer.failure

    @property
    def load(self) -> tuple[bool, int, int]:
        """Smaller is better for one more partition: room above the reserve, few logs, much free space."""
        assert self.writer is not None
        assert self.space is not None
        directory = self.writer.directory
        return self.space.is_full, len(directory.logs) + len(directory.quarantined), -self.space.free_bytes

    def measure(self) -> None:
        """The free space as it is now. A disk that cannot even say that has failed. Call in the loop."""
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
    #: By how much the log's end is behind: of the present log, for a future one; else 0.
    offset_lag: int
    is_future: bool
    #: Why it is not served although its directory is online; None: it is.
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryDescription:
    """What DescribeLogDirs says of one directory (KIP-113, KIP-827). Bytes are -1 when nobody can tell."""

    root: str
    directory_id: uuid.UUID | None
    error: StorageError | None
    total_bytes: int
    usable_bytes: int
    logs: Sequence[LogDescription]
    #: The median of its last small flushes; -1 while there were too few to tell.
    sync_us: int = -1


def identify(fs: FileSystem, directories: Iterable[HeldDirectory], *, node_id: int) -> list[MetaProperties]:
    """Learn whose each directory is. One that cannot tell is offline; returns what the others say.

    Raises InvalidConfigError (another node's, one given twice, not one is formatted), InconsistentClusterIdError,
    StorageError (another process has one of them, or not one can be used): mistakes that only a person can mend.
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
    """StorageError when another process has the directory. One that cannot be locked at all is offline."""
    try:
        fs.lock(f"{directory.root}/{LOCK}").release()
    except BlockingIOError:
        raise StorageError(
            f"log directory {directory.root} is in use: another process holds {directory.root}/{LOCK}"
        ) from None
    except OSError as error:
        put_offline(directory, error)


def put_offline(directory: HeldDirectory, error: Exception) -> None:
    """The directory cannot be used in this life of the broker. Whether others can, the caller says (tell_left)."""
    why = error.message if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    directory.start_failure = StorageError(
        f"log directory {directory.root} is offline: {why}. Once that is mended, or the directory is taken out of "
        "log.dirs, restart the broker"
    )
    directory.start_failure.__cause__ = error
    logger.error("%s", directory.start_failure.message)


def tell_left(directories: Collection[HeldDirectory]) -> None:
    """Said once all have been tried: how many of them the broker goes on with, if not with all."""
    usable = sum(directory.failure is None for directory in directories)
    if usable < len(directories):
        logger.warning("the broker goes on with %d of its %d log directories", usable, len(directories))


def raise_all_failed(failures: Sequence[Exception]) -> None:
    """No directory is left: the first reason as it is, when it says what to do; else StorageError with all of them."""
    if isinstance(failures[0], HeadraceError):
        raise failures[0]
    raise StorageError("no log directory can be used: " + "; ".join(map(str, failures))) from failures[0]


def check_mounted(directory: LogDirectory) -> None:
    """OSError when the directory is not what was opened: unmounted, replaced, or read-only by now. Two opens and no
    write; on the directory's thread."""
    fs, root = directory.fs, directory.root
    fs.open(f"{root}/{LOCK}", write=True).close()
    try:
        found = read_meta(root, fs=fs)
    except InvalidConfigError as error:
        raise OSError(f"{root} is not the directory that was opened: {error.message}") from error
    if found.directory_id != directory.meta.directory_id.bytes:
        raise OSError(f"{root}/{META_PROPERTIES} belongs to another directory than the one that was opened")


def describe(
    held: HeldDirectory,
    futures: Iterable[LogDescription] = (),
    refused: Mapping[TopicPartition, HeadraceError] = MappingProxyType({}),
) -> DirectoryDescription:
    """The directory with its logs, ``futures`` and quarantined ones among them; measures its disk. ``refused``: which
    logs are not served, and why."""
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
    """Of a log that is not open."""
    try:
        return sum(fs.file_size(f"{path}/{name}") for name in fs.listdir(path) if name.endswith(LOG_SUFFIX))
    except OSError:
        return 0  # it is being taken away: there is nothing any more


def least_loaded(candidates: Collection[HeldDirectory], added: dict[HeldDirectory, int]) -> HeldDirectory:
    """Where one more partition goes: the directory with the fewest (``added`` counts those on their way), as in Kafka;
    of equals, the one with the most free space. A full one only while all are full. ``candidates`` is not empty."""

    def load(directory: HeldDirectory) -> tuple[bool, int, int]:
        is_full, logs, free = directory.load
        return is_full, logs + added.get(directory, 0), free

    return min(candidates, key=load)
