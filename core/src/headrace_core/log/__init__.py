"""The log: Kafka's files on disk, kept by one owner, read by many.

``PartitionLog`` is one partition, ``LogDirectory`` all partitions in one directory, ``DirectoryWriter`` the asyncio
shell that makes every change to a directory, in turns, with group commit. ``dump`` reads files without any of them.
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
