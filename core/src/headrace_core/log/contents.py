"""Classify a directory by its contents: a log directory or a partition's directory. A directory's name is no evidence:
``headrace up`` calls a log directory ``broker-1``, and partition 1 of a topic ``broker`` has the same name. The
functions of this module read only file names and one checkpoint."""

from __future__ import annotations

import enum
import os.path
import re

from ..types import TopicPartition
from .checkpoints import (
    BROKER_EPOCH,
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    QUARANTINE,
    RECOVERY_POINTS,
    decode_checkpoint,
    parse_offsets,
)
from .compaction.manager import CLEANER_OFFSETS
from .directory import PARTITION_DIRECTORY, has_only_foreign_files
from .epochs import LEADER_EPOCH_FILE
from .files import FileSystem, read_file
from .segment import LOG_SUFFIX

_SEGMENT_FILE = re.compile(r"\d{20}\.(log|index|timeindex|txnindex)\Z")
_OF_A_PARTITION = {PARTITION_METADATA, LEADER_EPOCH_FILE, QUARANTINE}
_OF_A_LOG_DIRECTORY = {
    META_PROPERTIES,
    RECOVERY_POINTS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    CLEANER_OFFSETS,
    CLEAN_SHUTDOWN,
    BROKER_EPOCH,
}


class Kind(enum.Enum):
    PARTITION = "a partition's directory"
    LOG_DIRECTORY = "a log directory: partitions, and checkpoints of them all"
    SEVERAL = "a directory with log directories in it, as a cluster on one machine has"
    OTHER = "no log files"


def kind_of(fs: FileSystem, path: str) -> Kind:
    """Classify ``path``. An empty directory is classified as a partition's if its name is a partition's name and its
    parent is a log directory."""
    names = fs.listdir(path)
    kind = _by_names(names)
    if kind is not Kind.OTHER:
        return kind
    if partitions_in(fs, path):
        return Kind.LOG_DIRECTORY
    if log_directories_in(fs, path):
        return Kind.SEVERAL
    root, name = os.path.split(os.path.abspath(path))
    is_named_so = PARTITION_DIRECTORY.match(name) and not any(_is_directory(fs, f"{path}/{item}") for item in names)
    return Kind.PARTITION if is_named_so and _by_names(_names(fs, root)) is Kind.LOG_DIRECTORY else Kind.OTHER


def partitions_in(fs: FileSystem, root: str) -> dict[str, TopicPartition]:
    """Return the partition of each partition's directory in ``root``, by the directory's name, sorted. If the
    checkpoints show that ``root`` is a log directory, an empty subdirectory with a partition's name counts as a
    partition that lost all its files. A subdirectory with other files only is no partition, as in a broker, unless the
    partition had flushed records."""
    names = sorted(_names(fs, root))
    is_sure = _by_names(names) is Kind.LOG_DIRECTORY
    found = {}
    for name in names:
        match = PARTITION_DIRECTORY.match(name)
        if match is None or not _is_directory(fs, f"{root}/{name}"):
            continue
        inside = _names(fs, f"{root}/{name}")
        kind = _by_names(inside)
        is_lost = kind is Kind.OTHER and is_sure
        if is_lost and has_only_foreign_files(inside):
            is_lost = recovery_point_of(fs, f"{root}/{name}") > 0
        if kind is Kind.PARTITION or is_lost:
            found[name] = TopicPartition(match[1], int(match[2]))
    return found


def log_directories_in(fs: FileSystem, path: str) -> list[str]:
    """Return the names of the sub-directories that are log directories, sorted."""
    inside = (name for name in sorted(_names(fs, path)) if _is_directory(fs, f"{path}/{name}"))
    return [
        name
        for name in inside
        if _by_names(_names(fs, f"{path}/{name}")) is Kind.LOG_DIRECTORY or partitions_in(fs, f"{path}/{name}")
    ]


def segments_in(names: list[str]) -> list[int]:
    """Return the base offsets of the segments among a partition's files, ascending."""
    return sorted(
        int(name.removesuffix(LOG_SUFFIX)) for name in names if _SEGMENT_FILE.match(name) and name.endswith(LOG_SUFFIX)
    )


def recovery_point_of(fs: FileSystem, directory: str) -> int:
    """Return the recovery point of the log in ``directory``, from the parent directory's checkpoint; 0 where the
    checkpoint is unreadable."""
    root, name = os.path.split(os.path.abspath(directory))
    match = PARTITION_DIRECTORY.match(name)
    try:
        rows = decode_checkpoint(read_file(fs, f"{root}/{RECOVERY_POINTS}")).rows
        offsets = parse_offsets(rows or ())
    except (OSError, ValueError):
        return 0
    return 0 if match is None else offsets.get(TopicPartition(match[1], int(match[2])), 0)


def _by_names(names: list[str]) -> Kind:
    if not _OF_A_LOG_DIRECTORY.isdisjoint(names):
        return Kind.LOG_DIRECTORY
    if not _OF_A_PARTITION.isdisjoint(names) or any(_SEGMENT_FILE.match(name) for name in names):
        return Kind.PARTITION
    return Kind.OTHER


def _names(fs: FileSystem, path: str) -> list[str]:
    try:
        return fs.listdir(path)
    except OSError:
        return []  # no permission to read the directory: it is not a log directory of this user


def _is_directory(fs: FileSystem, path: str) -> bool:
    try:
        return fs.is_directory(path)
    except OSError:
        return False
