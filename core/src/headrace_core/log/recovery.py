"""Recovery of a log that was not closed cleanly.

The recovery point is the offset up to which all records were flushed; it is persisted from time to time. Recovery
trusts no bytes after the recovery point: it reads every segment that reaches beyond the recovery point and checks every
CRC. A scan ends at the end of the file, or at the first bytes that are no valid batch. The following table shows what
recovery does with the bytes after the last valid batch:

    the bad bytes are            and                                     verdict
    -------------------------    -------------------------------------   ---------------------------------------------
    below the recovery point     -                                       corruption: these bytes were flushed
    in a sealed segment          -                                       corruption: a roll flushes the old segment
    at or above it, at the end   no sound batch follows                  torn tail: cut
    at or above it               sound batches follow, no hole           corruption: cutting would lose sound records
    at or above it               sound batches follow, but the bad       torn tail: cut
                                 bytes have a hole

A *hole* is an aligned 4-KiB block of zeros inside the bad batch. A hole may also be the end of the batch's first block
or, at the end of the file, the beginning of its last block. One group commit may write many blocks, and a power loss
may persist any of these blocks. In a file that only grew, the blocks that a power loss destroyed read as zeros. Batches
after the hole can be valid, but belong to the same group commit, which was never acknowledged. Bit rot in acknowledged
bytes does not leave a 4-KiB block of zeros. (Without the rule for holes, a power loss could make a partition with one
replica refuse to start.) Zeros in a part of a block prove a hole only where a valid batch would have non-zero bytes.

A log that ends below its recovery point has lost flushed bytes, which is corruption too. Recovery never repairs
corruption: the files stay unchanged, and the broker does not serve the log. The broker fetches a new copy from another
replica, or waits for the operator.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import CorruptMessageError
from ..records import HEADER_BYTES, check_batch, epoch_range, read_header, without_position
from ..types import NO_EPOCH
from .epochs import EpochStart
from .files import File
from .index import RELATIVE_OFFSET_MAX, BatchMeta

_WINDOW_BYTES = 4 * 1024 * 1024
_BLOCK_BYTES = 4096
#: Minimum number of zeros in the last block that count as a hole; one zero is no evidence, because a record without
#: headers ends with the header count 0.
_MIN_HOLE_BYTES_AT_END = 2
_ZERO_BLOCK = bytes(_BLOCK_BYTES)
_ZEROS = 8  #: If the last _ZEROS bytes of a file are all zero, the tail of the file was never written.
_MAGIC_AT = 16
_BASE_OFFSET = struct.Struct(">q")


@dataclass(slots=True)
class Scan:
    """Result of scanning a segment."""

    #: The sound batches; empty if the caller of ``scan`` gave ``note``.
    batches: list[BatchMeta] = field(default_factory=list)
    count: int = 0  #: Number of sound batches.
    epochs: list[EpochStart] = field(default_factory=list)
    #: Position in the file where the sound batches end; ``next_offset`` is the offset after the last sound batch.
    end: int = 0
    next_offset: int = 0
    file_size: int = 0
    has_markers: bool = False  #: Whether the segment has a control batch.
    #: Why the bytes at position ``end`` are not a sound batch; None when the file ends at ``end``.
    problem: str | None = None


class Verdict(enum.Enum):
    WHOLE = "whole"
    TORN = "torn tail"
    CORRUPT = "corruption"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether the bytes at the end of a log are damaged, with a sentence that explains the reason."""

    verdict: Verdict
    why: str = ""


def scan(
    file: File,
    base_offset: int,
    *,
    position: int = 0,
    end: int | None = None,
    check_crc: bool = True,
    contiguous: bool = False,
    epochs: Sequence[EpochStart] | None = None,
    accept: Callable[[memoryview, int], object] | None = None,
    accept_from: int = 0,
    note: Callable[[BatchMeta], object] | None = None,
) -> Scan:
    """Read batches from ``position`` (where a batch begins) until the end of the file or the first invalid batch. An
    invalid batch is incomplete, has an impossible header or a wrong CRC, or its offset or leader epoch cannot follow
    the previous batch. (The CRC covers neither offset nor epoch.)

    * ``contiguous``: offsets must have no gap, as in every log that was never compacted.
    * ``epochs``: the epoch checkpoint, which is durable before the first batch of an epoch is written, so a batch with
      another epoch is damaged. With ``epochs=None``, leader epochs are not checked.
    * ``accept`` gets the checked bytes of sound batches and their position, some MiB at a time and without a gap. The
      first batch that ``accept`` gets has ``accept_from`` or a later offset.
    * ``note`` gets each sound batch, in place of ``Scan.batches``: a large segment may have ten million batches.
    """
    size = file.size() if end is None else end
    found = Scan(end=position, next_offset=base_offset, file_size=size)
    note = found.batches.append if note is None else note
    window = b""
    window_at = position
    accepted: int | None = None  # position up to which ``accept`` got the bytes; None: no bytes yet

    def tell_accepted() -> None:
        nonlocal accepted
        if accept is not None and accepted is not None and accepted < found.end:
            accept(memoryview(window)[accepted - window_at : found.end - window_at], accepted)
            accepted = found.end

    while found.end < size:
        at = found.end - window_at
        try:
            if at + HEADER_BYTES > len(window):
                tell_accepted()
                window, window_at, at = file.pread(min(_WINDOW_BYTES, size - found.end), found.end), found.end, 0
            header = read_header(window, at)
            if header.size > size - found.end:
                raise CorruptMessageError(
                    f"the header of the batch says {header.size} bytes, only {size - found.end} are in the file"
                )
            gap = header.base_offset - found.next_offset
            if gap < 0 or (gap and contiguous) or header.last_offset > base_offset + RELATIVE_OFFSET_MAX:
                raise CorruptMessageError(
                    f"a batch with offsets {header.base_offset} to {header.last_offset} cannot follow offset "
                    f"{found.next_offset - 1}"
                )
            if header.last_offset - base_offset > RELATIVE_OFFSET_MAX:
                raise CorruptMessageError(
                    f"offset {header.last_offset} is too far from {base_offset}, the first offset of the segment"
                )
            latest_epoch = found.epochs[-1].epoch if found.epochs else NO_EPOCH
            # also check epoch -1 (no epoch): a log that had a leader keeps an epoch
            if header.leader_epoch < latest_epoch:
                raise CorruptMessageError(
                    f"a batch of leader epoch {header.leader_epoch} cannot follow a batch of epoch {latest_epoch}"
                )
            if epochs:  # without any epoch, the file may have batches below the offset at which the log was cut
                _, _, least, most = epoch_range(epochs, header.last_offset)
                if not least <= header.leader_epoch <= most:
                    known = f"{most}" if least == most else f"{least} to {most}"
                    raise CorruptMessageError(
                        f"the batch has leader epoch {header.leader_epoch}, but the epoch checkpoint says {known}"
                    )
            if check_crc:
                if at + header.size > len(window):
                    tell_accepted()
                    window = file.pread(min(max(_WINDOW_BYTES, header.size), size - found.end), found.end)
                    window_at, at = found.end, 0
                check_batch(window, at)
        except CorruptMessageError as error:
            found.problem = without_position(error.message)
            break
        if accepted is None and header.last_offset >= accept_from:
            accepted = found.end
        note(BatchMeta.of(header))
        found.count += 1
        found.has_markers |= header.is_control
        if not found.epochs or header.leader_epoch > found.epochs[-1].epoch:
            # Begin the epoch at the end of the previous batch: compaction may have removed the epoch's first records.
            start_offset = found.next_offset if found.count > 1 else header.base_offset
            found.epochs.append(EpochStart(header.leader_epoch, start_offset))
        found.end += header.size
        found.next_offset = header.next_offset
    tell_accepted()
    return found


def judge(file: File, found: Scan, *, recovery_point: int, is_last: bool) -> Judgement:
    """Distinguish a torn tail from corruption by the table in the module's docstring."""
    if found.problem is None:
        if is_last and found.next_offset < recovery_point:
            return Judgement(
                Verdict.CORRUPT, f"the log ends at offset {found.next_offset}, but was flushed up to {recovery_point}"
            )
        return Judgement(Verdict.WHOLE)
    where = f"position {found.end} (offset {found.next_offset}): {found.problem}"
    if found.next_offset < recovery_point:
        return Judgement(Verdict.CORRUPT, f"{where}; below the recovery point {recovery_point}")
    if not is_last:
        return Judgement(Verdict.CORRUPT, f"{where}; in a segment that was sealed")
    sound = find_sound_batch(file, found.end + 1, found.file_size, found.next_offset)
    if sound is None:
        return Judgement(Verdict.TORN, f"{where}; no sound batch follows")
    if has_hole(file, found.end, sound, found.next_offset):
        return Judgement(Verdict.TORN, f"{where}; a block that never reached the disk")
    return Judgement(Verdict.CORRUPT, f"{where}; but a sound batch follows at position {sound}")


def find_sound_batch(file: File, position: int, end: int, offset_min: int) -> int | None:
    """Return the position of the first sound batch at or after ``position`` with an offset of at least ``offset_min``.
    Every position is a candidate; magic byte, offset range and length exclude nearly all positions before a CRC is
    computed."""
    start = position
    while start + HEADER_BYTES <= end:
        window = file.pread(min(_WINDOW_BYTES, end - start), start)
        candidate = window.find(b"\x02", _MAGIC_AT)
        while candidate != -1:
            at = candidate - _MAGIC_AT
            if at + HEADER_BYTES > len(window):
                break
            if _is_sound(file, window, at, start, end, offset_min):
                return start + at
            candidate = window.find(b"\x02", candidate + 1)
        start += max(len(window) - HEADER_BYTES + 1, 1)
    return None


def _is_sound(file: File, window: bytes, at: int, window_at: int, end: int, offset_min: int) -> bool:
    (base_offset,) = _BASE_OFFSET.unpack_from(window, at)
    if not offset_min <= base_offset <= offset_min + RELATIVE_OFFSET_MAX:
        return False
    try:
        header = read_header(window, at)
        if header.size > end - window_at - at:
            return False
        check_batch(file.pread(header.size, window_at + at))
    except CorruptMessageError:
        return False
    return True


def has_hole(file: File, start: int, end: int, next_offset: int) -> bool:
    """Whether one of the blocks of the bad batch between ``start`` and ``end`` is all zeros. Of the first block, only
    the bytes that belong to the bad batch are compared. If the file ends at ``end``, only the bytes of the bad batch
    are compared in the last block, too. ``next_offset``: the lowest possible offset of the bad batch."""
    boundary = -(-start // _BLOCK_BYTES) * _BLOCK_BYTES
    rest = file.pread(min(boundary, end) - start, start)
    # A batch begins with its offset, an int64 whose upper bytes are usually zeros. If the batch's first block contains
    # only such upper bytes of the batch, zeros in the block do not prove a hole.
    if any(_BASE_OFFSET.pack(next_offset)[: len(rest)]) and not any(rest):
        return True
    # Recovery checks the whole last block for zeros, although the block may contain the first bytes of the next batch's
    # offset.
    blocks_end = min(-(-end // _BLOCK_BYTES) * _BLOCK_BYTES, file.size())
    for at in range(boundary, blocks_end, _WINDOW_BYTES):
        window = file.pread(min(_WINDOW_BYTES, blocks_end - at), at)
        for block in range(0, len(window) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            if window.startswith(_ZERO_BLOCK, block):
                return True
    tail_at = max(end // _BLOCK_BYTES * _BLOCK_BYTES, boundary)
    tail = file.pread(end - tail_at, tail_at) if tail_at < end == file.size() else b""
    return len(tail) >= _MIN_HOLE_BYTES_AT_END and not any(tail)


def is_cut_short(file: File, found: Scan) -> bool:
    """Whether a crash probably damaged the end of the file: an incomplete batch, or zeros for blocks that never reached
    the disk."""
    rest = file.pread(found.file_size - found.end, found.end)
    if len(rest) < HEADER_BYTES or not any(rest[-_ZEROS:]):
        return True
    if has_hole(file, found.end, found.file_size, found.next_offset):
        return True
    try:
        size = read_header(rest).size
    except CorruptMessageError:
        return False
    if size <= len(rest):
        return False
    # Check whether only the batch's length field is wrong: then the batch is damaged, not incomplete.
    whole = rest[:8] + (len(rest) - 12).to_bytes(4, "big") + rest[12:]
    try:
        check_batch(whole)
    except CorruptMessageError:
        return True
    return False
