"""Texts of the faults that compiled code finds in a record. The compiled code runs without the GIL and returns the
number of a fault."""

from __future__ import annotations

from ..errors import InvalidRecordError
from .types import SCHEMA_IDS_MAX

_BYTES_AFTER_LAST = 10
_COUNT = 11

#: Text of each fault, by its number in the enum ``Fault`` of _wire.pxd.
FAULTS = {
    1: "a varint runs past the end of its record",
    2: "a varint is too long for its type",
    3: "the record's length is impossible: too small for a record, or more than the batch has left",
    4: "a key, value or header claims more bytes than its record has left, or a negative number of bytes",
    5: "the record's number of headers is impossible or above the limit",
    6: "the name of a record header is null",
    7: "the fields of the record end before its length",
    8: "the record's offset delta is not above the delta before, or not within the batch",
    9: "the record's timestamp delta overflows",
    _BYTES_AFTER_LAST: "bytes follow the last record",
    _COUNT: "the record count is impossible for the batch's size, or above the limit",
    12: "the record has no key, which a compacted topic needs",
    13: "the record's timestamp is outside of the topic's limits",
}


def invalid_record(fault: int, index: int, base_offset: int) -> InvalidRecordError:
    """Return the error for a fault in record ``index`` of a batch, or in the batch as a whole."""
    where = "" if fault in (_BYTES_AFTER_LAST, _COUNT) else f"record {index} of "
    return InvalidRecordError(f"{where}the batch with base offset {base_offset}: {FAULTS[fault]}")


def too_many_schemas(index: int, base_offset: int) -> InvalidRecordError:
    """Return the error for a batch with more than SCHEMA_IDS_MAX different schema ids; record ``index`` has the first
    id above the limit."""
    error = InvalidRecordError(
        f"the batch with base offset {base_offset} has more than {SCHEMA_IDS_MAX} different schema ids: send smaller "
        "batches"
    )
    error.faults = ((index, "the batch has too many different schema ids"),)
    return error
