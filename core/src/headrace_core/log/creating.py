"""Create many logs at once: a topic with thousands of partitions is created in seconds.

Each log needs a directory, ``partition.metadata`` and an empty segment. To create a single log, the broker waits for
five fsync calls on the log's files and directories. Logs that are created together share the five waits: one commit of
the file system's journal covers all files that are synced together. Many logs are created in the same order of steps as
a single log:

    1   create the directories; write and force partition.metadata under another name
    2   rename the file to partition.metadata; create the segments' files
    3   force the names in each directory, then the names of the directories
    4   the logs exist

A crash before step 4 leaves directories that no caller uses yet. After the crash, a directory with the topic's id is an
ordinary log. A directory without a topic's id gets the id when the log is created again.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice

from ..clock import Clock
from ..types import TopicPartition
from .checkpoints import PARTITION_METADATA, encode_partition_metadata
from .config import LogConfig
from .epochs import LeaderEpochs
from .files import FileSystem, write_files_atomically
from .partition_log import PartitionLog
from .segment import LogSegment

#: A log to create, as a tuple of the partition, the topic's id and the log's settings.
NewLog = tuple[TopicPartition, uuid.UUID, LogConfig]

_AT_ONCE = 128  #: Maximum number of logs created together, because each log holds a descriptor until its creation ends.


def create_logs(
    fs: FileSystem, root: str, wanted: Sequence[NewLog], *, clock: Clock, rng: random.Random
) -> Iterator[list[PartitionLog]]:
    """Create missing logs in the directory ``root``, in groups; a yielded log is durable. After an OSError, some files
    of logs that were not yielded may exist."""
    rest = iter(wanted)
    while some := list(islice(rest, _AT_ONCE)):
        paths = [f"{root}/{partition}" for partition, _, _ in some]
        for path in paths:
            fs.mkdir(path)
        write_files_atomically(
            fs,
            [
                (f"{path}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
                for path, (_, topic_id, _) in zip(paths, some, strict=True)
            ],
            sync_names=False,
        )
        now_ms = clock.now_ms()
        logs = [
            PartitionLog(
                fs,
                path,
                partition,
                config,
                clock,
                rng,
                topic_id,
                [_first_segment(fs, path, config, now_ms)],
                LeaderEpochs(fs, path),
                0,
                0,
            )
            for path, (partition, topic_id, config) in zip(paths, some, strict=True)
        ]
        fs.sync_directories(paths)
        fs.sync_directory(root)
        yield logs


def _first_segment(fs: FileSystem, path: str, config: LogConfig, now_ms: int) -> LogSegment:
    return LogSegment.create(
        fs,
        path,
        0,
        index_bytes_max=config.segment_index_bytes,
        interval_bytes=config.index_interval_bytes,
        now_ms=now_ms,
        reserve_bytes=config.segment_bytes if config.preallocate else 0,
    )
