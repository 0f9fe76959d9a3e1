"""The compiled backend: the names of _pure, imported from the compiled modules."""

from __future__ import annotations

from ._batches import check_batch, check_plain_batch, check_slice, read_header, split_batches, validate_batches
from ._native import BatchBuilder, encode_batch, record_bytes_max
from ._reader import Record, RecordIterator, decode_batch, without_aborted

__all__ = [
    "BatchBuilder",
    "Record",
    "RecordIterator",
    "check_batch",
    "check_plain_batch",
    "check_slice",
    "decode_batch",
    "encode_batch",
    "read_header",
    "record_bytes_max",
    "split_batches",
    "validate_batches",
    "without_aborted",
]
