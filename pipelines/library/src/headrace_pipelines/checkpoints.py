"""Read the checkpoints of a pipeline's queries: how far each query is, from the files that Spark writes.

A checkpoint is the directory ``DIR/checkpoints/QUERY``. Spark writes ``offsets/N`` before it runs batch N, and
``commits/N`` after the sink has committed the batch. The files ``offsets/N`` and ``commits/N`` have a line with the
version, and then JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace_spark.offsets import from_json, to_json

from .errors import PipelineFailedError

_VERSION = "v1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a query in its checkpoint.

    ``batch`` is the last committed batch (None: no batch is committed), and ``next_batch`` a batch that has begun and
    is not committed. ``offsets`` are the next offsets of each topic after ``batch``, by partition. ``watermark_ms`` is
    None without a watermark. ``state_bytes`` is the size of the state's files.
    """

    query: str
    directory: Path
    batch: int | None
    next_batch: int | None
    offsets: Mapping[str, Mapping[str, int]]
    watermark_ms: int | None
    state_bytes: int

    @property
    def position(self) -> int:
        """The sum of the offsets. For topics that begin at offset 0, the sum is the number of offsets that the query
        has read."""
        return sum(offset for partitions in self.offsets.values() for offset in partitions.values())

    def document(self) -> dict[str, Any]:
        """The checkpoint as a part of ``status -o json``."""
        return {
            "query": self.query,
            "checkpoint": str(self.directory),
            "batch": self.batch,
            "next_batch": self.next_batch,
            "offsets": self.offsets,
            "position": self.position,
            "watermark_ms": self.watermark_ms,
            "state_bytes": self.state_bytes,
        }


def checkpoints(directory: Path) -> list[Checkpoint]:
    """The checkpoints in ``directory``, in the order of their names. A running query may write its checkpoint during
    the read."""
    try:
        found = sorted(path for path in directory.iterdir() if (path / "metadata").exists())
    except FileNotFoundError:
        return []
    return [_read(path) for path in found]


def remove_unbegun(directory: Path) -> None:
    """Remove the checkpoints in ``directory`` of queries that have begun no batch.

    A process that is killed while it writes ``offsets/0`` leaves a temporary file there, and Spark refuses such a
    checkpoint (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY). A query that has begun no batch has written nothing, so it
    can start again from its first batch.
    """
    for path in directory.iterdir() if directory.is_dir() else ():
        has_offsets = (path / "offsets").is_dir()
        if has_offsets and not _numbers(path / "offsets") and not _numbers(path / "commits"):
            shutil.rmtree(path)


def batches(directory: Path) -> dict[str, int]:
    """Number of committed batches of each query, in all its runs."""
    return {each.query: 0 if each.batch is None else each.batch + 1 for each in checkpoints(directory)}


def _read(path: Path) -> Checkpoint:
    committed, begun = _numbers(path / "commits"), _numbers(path / "offsets")
    batch = max(committed, default=None)
    following = max(begun, default=None)
    offsets: dict[str, dict[str, int]] = {}
    watermark_ms = 0
    if batch is not None:
        sources = _lines(path / "offsets" / str(batch))[1:]
        known = [from_json(json.loads(source)) for source in sources if source.startswith("{")]
        for each in known:  # a self-join reads a topic twice: the slower source says how far the query is
            for topic, partitions in to_json(each).items():
                there = offsets.setdefault(topic, {})
                for number, offset in partitions.items():
                    there[number] = min(offset, there.get(number, offset))
        (commit, *_) = _lines(path / "commits" / str(batch)) or ["{}"]
        watermark_ms = json.loads(commit).get("nextBatchWatermarkMs", 0)
    return Checkpoint(
        query=path.name,
        directory=path,
        batch=batch,
        next_batch=following if following is not None and following != batch else None,
        offsets=offsets,
        watermark_ms=watermark_ms or None,
        state_bytes=_size(path / "state"),
    )


def _numbers(directory: Path) -> list[int]:
    try:
        return [int(path.name) for path in directory.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []


def _lines(path: Path) -> list[str]:
    """The lines of a checkpoint file after its version line; empty if Spark has deleted the file during the read.
    Raises PipelineFailedError."""
    try:
        version, *lines = path.read_text(errors="replace").splitlines() or [""]
    except FileNotFoundError:
        return []
    if not version.startswith("v"):
        raise PipelineFailedError(
            f"{path}: the file is damaged, for example by a power cut; remove the checkpoint, or begin "
            "again with --restart"
        )
    if version != _VERSION:
        raise PipelineFailedError(
            f"{path}: the version of Spark's log is {version!r}, and only {_VERSION!r} is known; run the query with "
            "the Spark that headrace-pipelines was installed with"
        )
    return lines


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # Spark may delete old state during the read
            continue
    return total
