"""Partition logs on disk, in Kafka's file format: one task changes a log, many threads read it.

``PartitionLog`` is the log of one partition. ``LogDirectory`` holds the logs of all partitions in one directory.
``DirectoryWriter`` makes all changes of a log directory for asyncio code, with group commit: one flush for all waiting
appends. ``dump`` reads a log's files without the classes ``PartitionLog`` and ``LogDirectory``.

    files.py, descriptors.py                             the file system as an argument; a bounded number of descriptors
    segment.py, index.py, reading.py                     one segment and its indexes; reads by offset and time
    partition_log.py, segments.py, group.py              one log; the changes of its segments; appends as one write
    appending.py, replicated.py                          a producer's batches; the checks of a leader's batches (pure)
    opening.py, recovery.py                              after an unclean stop: torn tail or corruption
    epochs.py, checkpoints.py                            leader epochs; the small files and their checksums
    producer_state.py, producer_files.py                 sequences of idempotent producers, and their snapshots
    fencing.py                                           the shard epoch: which coordinator may append
    directory.py, creating.py, deleting.py, moving.py    the logs of one directory: creation, removal, moves
    turns.py, writer.py                                  group commit; turns.py is its pure part
    retention.py, space.py, compaction/                  what is removed: by age and size, when the disk is full, by key
    dump.py, verify.py, scrubbing.py                     the search for damage, without a broker or in a running broker
"""

from .appending import Append, AppendInfo, validate
from .config import DEFAULT_FLUSH_INTERVAL_MS, LogConfig
from .directory import LogDirectory, format_directory
from .epochs import EpochEnd, EpochStart
from .files import File, FileSystem, RealFileSystem
from .partition_log import PartitionLog
from .reading import FoundTimestamp, ReadResult
from .writer import DirectoryWriter

__all__ = [
    "DEFAULT_FLUSH_INTERVAL_MS",
    "Append",
    "AppendInfo",
    "DirectoryWriter",
    "EpochEnd",
    "EpochStart",
    "File",
    "FileSystem",
    "FoundTimestamp",
    "LogConfig",
    "LogDirectory",
    "PartitionLog",
    "ReadResult",
    "RealFileSystem",
    "format_directory",
    "validate",
]
