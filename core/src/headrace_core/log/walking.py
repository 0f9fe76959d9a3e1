"""From batch to batch through a segment's headers, each held against the one before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import CorruptLogError, CorruptMessageError
from ..records import HEADER_BYTES, BatchHeader, read_header, without_position

if TYPE_CHECKING:
    from .segment import LogSegment

#: What a walk over headers reads at once: a whole index interval and then some.
_WALK_BYTES = 8192


class Place(NamedTuple):
    """A batch found in a segment."""

    position: int
    header: BatchHeader


class IndexMismatchError(CorruptLogError):
    """An index says something of the log that the log does not bear out: either of them may be the damaged one."""


class BatchWalk:
    """Iterates over headers, a few of them for each read while batches are small. CorruptLogError where they cannot
    follow each other; IndexMismatchError where the first one ends above ``indexed_offset`` (-1: not known), or no other
    ends with it."""

    __slots__ = ("_chunk", "_chunk_at", "_end", "_indexed_offset", "_next_offset", "_position", "_segment")

    def __init__(self, segment: LogSegment, position: int, end: int, *, indexed_offset: int = -1) -> None:
        self._segment = segment
        self._position = position
        self._end = end
        self._chunk = b""
        self._chunk_at = position
        self._next_offset = segment.base_offset
        self._indexed_offset = indexed_offset

    def __iter__(self) -> BatchWalk:
        return self

    def __next__(self) -> Place:
        position = self._position
        if position >= self._end:
            if self._indexed_offset >= 0 and position >= self._segment.size:
                raise self._mismatch(f"the log has only {self._segment.size} bytes")
            raise StopIteration
        inside = position - self._chunk_at
        if inside + HEADER_BYTES > len(self._chunk):
            self._chunk = self._segment.log.pread(_WALK_BYTES, position)
            self._chunk_at, inside = position, 0
        try:
            header = read_header(self._chunk, inside)
        except CorruptMessageError as error:
            if self._indexed_offset >= 0:
                raise self._mismatch(error.message) from error
            raise CorruptLogError(
                f"{self._segment.path}, position {position}, offset {self._next_offset}: "
                f"{without_position(error.message)}"
            ) from error
        if self._indexed_offset >= 0:
            if header.last_offset > self._indexed_offset:
                raise self._mismatch(f"a batch with offsets {header.base_offset} to {header.last_offset} is there")
            # Below it: so Kafka up to 3.9 writes of several batches that came together (on followers, and when it
            # compacts): where the first of them begins, and with which offset the last one ends.
            if header.last_offset == self._indexed_offset:
                self._indexed_offset = -1
        if header.base_offset < self._next_offset or not self._segment.fits(header.last_offset):
            raise cannot_follow(self._segment.path, position, header, self._next_offset)
        self._next_offset = header.next_offset
        self._position = position + header.size
        if self._position > self._segment.size:
            raise CorruptLogError(
                f"{self._segment.path}, position {position}, offset {header.base_offset}: the batch has {header.size} "
                f"bytes by its header, only {self._segment.size - position} are there"
            )
        return Place(position, header)

    def _mismatch(self, what: str) -> IndexMismatchError:
        return IndexMismatchError(
            f"{self._segment.index.file.path}: the batch that ends with offset {self._indexed_offset} should lie at "
            f"position {self._position} of the log, but {what}"
        )


def cannot_follow(path: str, position: int, header: BatchHeader, next_offset: int) -> CorruptLogError:
    """A batch is out of order."""
    return CorruptLogError(
        f"{path}, position {position}, offset {next_offset}: a batch with offsets {header.base_offset} to "
        f"{header.last_offset} cannot follow {next_offset - 1}"
    )


def show_compaction(segments: Iterable[LogSegment]) -> bool:
    """Has compaction been at work here: is there a gap between batches, or within one? Walks over headers up to the
    first one; CorruptLogError. (A topic may have been compacted before its policy was changed, or before its files were
    copied here.)"""
    for segment in segments:
        next_offset = segment.base_offset
        for _, header in segment.places(0, segment.size):
            if header.base_offset > next_offset or header.record_count <= header.last_offset_delta:
                return True
            next_offset = header.next_offset
    return False
