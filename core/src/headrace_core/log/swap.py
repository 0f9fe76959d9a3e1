"""A cleaned segment takes the place of the segments that it was made from, so that a crash leaves the old or the new.

Kafka's names, in an order of our own where Kafka's had holes (KAFKA-12520):

    1  <base>.log.cleaned and its indexes are written and forced
    2  the indexes become .swap; directory forced
    3  <base>.log.cleaned -> <base>.log.swap; directory forced      from here on the new one counts
    4  the other old segments are unlinked, the indexes take their names; directory forced
    5  <base>.log.swap -> <base>.log; directory forced

A crash before 3 is durable: what is called .cleaned or .swap goes, the old segments were never touched. After it:
``finish_swaps``, before the log is opened, does 4 and 5 (again). Which segments are old needs no list: a cleaned
segment keeps the last batch of what it was made from, if only its header, so every segment that begins before its end
is one.
The log takes its name last, so that at no moment a new index lies beside an old log without the .swap that tells so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import CorruptLogError
from .files import FileSystem
from .producer_state import SNAPSHOT_SUFFIX
from .recovery import scan
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name

CLEANED, SWAP = ".cleaned", ".swap"
TXN_INDEX_SUFFIX = ".txnindex"
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_LOG = re.compile(r"(\d{20})\.log\Z")
_LOG_SWAP = re.compile(r"(\d{20})\.log\.swap\Z")
_INDEX_SWAP = re.compile(r"\d{20}\.(index|timeindex|txnindex)\.swap\Z")


def commit_swap(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Steps 2 and 3: when this returns, the cleaned segment is the one that counts, whatever happens."""
    stem = f"{directory}/{segment_name(base_offset)}"
    for suffix in _INDEXES:
        if fs.exists(stem + suffix + CLEANED):
            fs.rename(stem + suffix + CLEANED, stem + suffix + SWAP)
    fs.sync_directory(directory)
    fs.rename(stem + LOG_SUFFIX + CLEANED, stem + LOG_SUFFIX + SWAP)
    fs.sync_directory(directory)


def finish_swap(fs: FileSystem, directory: str, base_offset: int, replaced: Iterable[int]) -> None:
    """Steps 4 and 5; ``replaced``: the base offsets of the segments whose place it takes."""
    for old in replaced:
        if old != base_offset:
            for suffix in (LOG_SUFFIX, *_INDEXES, SNAPSHOT_SUFFIX):
                _unlink(fs, f"{directory}/{segment_name(old)}{suffix}")
    stem = f"{directory}/{segment_name(base_offset)}"
    for suffix in _INDEXES:
        if fs.exists(stem + suffix + SWAP):
            fs.rename(stem + suffix + SWAP, stem + suffix)
    fs.sync_directory(directory)
    fs.rename(stem + LOG_SUFFIX + SWAP, stem + LOG_SUFFIX)
    fs.sync_directory(directory)


def finish_swaps(fs: FileSystem, directory: str) -> list[str]:
    """Before a log is opened: finishes the swap that a crash interrupted, removes what never counted. Idempotent; says
    what it did. CorruptLogError (and no change) when a swapped segment cannot be read."""
    names = fs.listdir(directory)
    committed = sorted(int(match[1]) for match in map(_LOG_SWAP.match, names) if match)
    bases = [int(match[1]) for match in map(_LOG.match, names) if match]
    ends = {base: _end_of_swapped(fs, directory, base) for base in committed}  # all of them before anything is changed
    notes = []
    for base, end in ends.items():
        replaced = [old for old in bases if base <= old < end]
        finish_swap(fs, directory, base, replaced)
        path = f"{directory}/{segment_name(base)}{LOG_SUFFIX}{SWAP}"
        notes.append(f"{path}: an interrupted compaction is finished, {len(replaced)} segments replaced by one")
    orphans = [name for name in names if _INDEX_SWAP.match(name) and fs.exists(f"{directory}/{name}")]
    for name in orphans:
        fs.unlink(f"{directory}/{name}")
    if orphans:
        fs.sync_directory(directory)
    return notes


def _end_of_swapped(fs: FileSystem, directory: str, base: int) -> int:
    """The offset after the last one of a swapped segment, which is never empty: it keeps the last batch of the old."""
    path = f"{directory}/{segment_name(base)}{LOG_SUFFIX}{SWAP}"
    file = fs.open(path)
    try:
        found = scan(file, base, check_crc=False)
    finally:
        file.close()
    problem = found.problem or ("there is no batch in it" if not found.batches else None)
    if problem is not None:
        raise CorruptLogError(
            f"{path}, position {found.end}: {problem}. A compaction was to put it in the place of older segments; all "
            f"files are left as they are: restore it, or delete {directory}: all its records on "
            "this broker are lost then (docs/operations/damage.md)"
        )
    return found.next_offset


def _unlink(fs: FileSystem, path: str) -> None:
    if fs.exists(path):
        fs.unlink(path)
