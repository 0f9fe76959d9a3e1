"""Texts of the faults that compiled code finds in a record. The compiled code runs without the GIL and returns a
number."""

from __future__ import annotations

from ..errors import InvalidRecordError

_BYTES_AFTER_LAST = 10
_COUNT = 11

#: Text of each fault, by its number in the enum ``Fault`` of _wire.pxd.
FAULTS = {
    1: "a varint runs past the end of its record",
    2: "a varint is too long for its type",
    3: "its length is impossible: too small for a record, or more than its batch has left",
    4: "a key, value or header claims more bytes than its record has left, or a negative number",
    5: "its number of headers is impossible or above the limit",
    6: "a header's name is null",
    7: "its fields end before the record does",
    8: "its offset delta is not above the one before, or not within the batch",
    9: "its timestamp delta overflows",
    _BYTES_AFTER_LAST: "bytes follow its last record",
    _COUNT: "its record count is impossible for its size, or above the limit",
    12: "it has no key, which a compacted topic needs",
    13: "its timestamp is outside of what the topic accepts",
}


def invalid_record(fault: int, index: int, base_offset: int) -> InvalidRecordError:
    """Return the error for a fault in record ``index`` of a batch, or in the batch as a whole."""
    where = "" if fault in (_BYTES_AFTER_LAST, _COUNT) else f"record {index} of "
    return InvalidRecordError(f"{where}the batch with base offset {base_offset}: {FAULTS[fault]}")
