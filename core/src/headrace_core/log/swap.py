"""Replace old segments by a cleaned segment with their remaining records, so that a crash leaves either the old
segments or the cleaned segment.

The file names are Kafka's. The order of the steps avoids the data loss of KAFKA-12520:

    1  <base>.log.cleaned and its indexes are written and forced
    2  the indexes become .swap; directory forced
    3  <base>.log.cleaned -> <base>.log.swap; directory forced      from here on the new segment is valid
    4  the other old segments are unlinked, the indexes take their names; directory forced
    5  <base>.log.swap -> <base>.log; directory forced

A crash before the .log.swap file is durable (step 3) has not changed the old segments, and the next start removes the
.cleaned and .swap files. After a crash in a later step, ``finish_swaps`` repeats steps 4 and 5 before the log is
opened. ``finish_swaps`` needs no list of the replaced segments: a cleaned segment keeps the last batch of its sources
(at least that batch's header). Every old segment that begins before the cleaned segment's end is therefore a source.
The .log file is renamed last, so a new index is never next to an old .log file without a .swap file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import CorruptLogError
from ..plurals import counted
from .files import FileSystem
from .producer_state import SNAPSHOT_SUFFIX
from .recovery import scan
from .segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from .txn_index import TXN_INDEX_SUFFIX

CLEANED, SWAP = ".cleaned", ".swap"
_INDEXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_LOG = re.compile(r"(\d{20})\.log\Z")
_LOG_SWAP = re.compile(r"(\d{20})\.log\.swap\Z")
_INDEX_SWAP = re.compile(r"\d{20}\.(index|timeindex|txnindex)\.swap\Z")


def commit_swap(fs: FileSystem, directory: str, base_offset: int) -> None:
    """Perform steps 2 and 3 of a swap (see the module's docstring): afterwards the cleaned segment is valid, even after
    a crash."""
    stem = f"{directory}/{segment_name(base_offset)}"
    for suffix in _INDEXES:
        if fs.exists(stem + suffix + CLEANED):
            fs.rename(stem + suffix + CLEANED, stem + suffix + SWAP)
    fs.sync_directory(directory)
    fs.rename(stem + LOG_SUFFIX + CLEANED, stem + LOG_SUFFIX + SWAP)
    fs.sync_directory(directory)


def finish_swap(fs: FileSystem, directory: str, base_offset: int, replaced: Iterable[int]) -> None:
    """Perform steps 4 and 5 of a swap (see the module's docstring). ``replaced``: the base offsets of the segments that
    the cleaned segment replaces."""
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
    """Finish swaps whose .log.swap file is durable, and remove the files of swaps that a crash interrupted earlier.
    ``finish_swaps`` is called before a log is opened. ``finish_swaps`` is idempotent, and returns notes about its
    changes. Raises CorruptLogError, without a change, when a swapped segment is unreadable."""
    names = fs.listdir(directory)
    committed = sorted(int(match[1]) for match in map(_LOG_SWAP.match, names) if match)
    bases = [int(match[1]) for match in map(_LOG.match, names) if match]
    # Check all swapped segments before the first change.
    ends = {base: _end_of_swapped(fs, directory, base) for base in committed}
    notes = []
    for base, end in ends.items():
        replaced = [old for old in bases if base <= old < end]
        finish_swap(fs, directory, base, replaced)
        path = f"{directory}/{segment_name(base)}{LOG_SUFFIX}{SWAP}"
        notes.append(
            f"{path}: finished an interrupted compaction, which replaced {counted(len(replaced), 'segment')} by one"
        )
    orphans = [name for name in names if _INDEX_SWAP.match(name) and fs.exists(f"{directory}/{name}")]
    for name in orphans:
        fs.unlink(f"{directory}/{name}")
    if orphans:
        fs.sync_directory(directory)
    return notes


def _end_of_swapped(fs: FileSystem, directory: str, base: int) -> int:
    """Return the end offset of a swapped segment, which is never empty because it keeps the last batch of its
    sources."""
    path = f"{directory}/{segment_name(base)}{LOG_SUFFIX}{SWAP}"
    file = fs.open(path)
    try:
        found = scan(file, base, check_crc=False, note=lambda batch: None)
    finally:
        file.close()
    problem = found.problem or ("it has no batch" if not found.count else None)
    if problem is not None:
        raise CorruptLogError(
            f"{path}, position {found.end}: {problem}. Compaction was about to replace older segments by this "
            f"segment. No file was changed: restore the segment, or delete {directory}: all its records on this "
            "broker are lost then (docs/operations/damage.md)"
        )
    return found.next_offset


def _unlink(fs: FileSystem, path: str) -> None:
    if fs.exists(path):
        fs.unlink(path)
