"""Record batch v2: Kafka's format for records in the log, in requests and in responses.

This module selects the backend: the compiled codec if it is built, else the pure-Python reference.
``HEADRACE_PURE_PYTHON=1`` forces the pure-Python backend. ``BACKEND`` names the selected backend; both backends export
the same names and behave alike. ``headrace_core.records.arrow`` is imported separately, because it needs pyarrow.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .batches import (
    SLICE_EXACT,
    SLICE_HAS_GAPS,
    check_batch_count,
    epoch_range,
    is_as_sent,
    iterate_headers,
    recompress,
    slice_fault,
    whole_batches_end,
    with_base,
    with_log_append_time,
    with_max_timestamps,
    without_position,
)
from .types import (
    ABORT,
    COMMIT,
    DEFAULT_LIMITS,
    HEADER_BYTES,
    NO_SCHEMA,
    NO_TIMESTAMP,
    SCHEMA_IDS_MAX,
    TIMESTAMP_MS_MIN,
    BatchHeader,
    BatchSchemas,
    BatchSpan,
    Buffer,
    Compression,
    DecodeLimits,
    Headers,
    RecordTuple,
    SchemaIds,
)

BACKEND: str

if TYPE_CHECKING or os.environ.get("HEADRACE_PURE_PYTHON", "0") not in ("", "0"):
    from . import _pure as _backend

    BACKEND = "pure"
else:
    try:
        from . import _compiled as _backend

        BACKEND = "native"
    except ImportError:
        from . import _pure as _backend

        BACKEND = "pure"

BatchBuilder = _backend.BatchBuilder
Record = _backend.Record
RecordIterator = _backend.RecordIterator
check_batch = _backend.check_batch
check_plain_batch = _backend.check_plain_batch
check_slice = _backend.check_slice
decode_batch = _backend.decode_batch
encode_batch = _backend.encode_batch
read_header = _backend.read_header
record_bytes_max = _backend.record_bytes_max
split_batches = _backend.split_batches
validate_batches = _backend.validate_batches
without_aborted = _backend.without_aborted

__all__ = [
    "ABORT",
    "BACKEND",
    "COMMIT",
    "DEFAULT_LIMITS",
    "HEADER_BYTES",
    "NO_SCHEMA",
    "NO_TIMESTAMP",
    "SCHEMA_IDS_MAX",
    "SLICE_EXACT",
    "SLICE_HAS_GAPS",
    "TIMESTAMP_MS_MIN",
    "BatchBuilder",
    "BatchHeader",
    "BatchSchemas",
    "BatchSpan",
    "Buffer",
    "Compression",
    "DecodeLimits",
    "Headers",
    "Record",
    "RecordIterator",
    "RecordTuple",
    "SchemaIds",
    "check_batch",
    "check_batch_count",
    "check_plain_batch",
    "check_slice",
    "decode_batch",
    "encode_batch",
    "epoch_range",
    "is_as_sent",
    "iterate_headers",
    "read_header",
    "recompress",
    "record_bytes_max",
    "slice_fault",
    "split_batches",
    "validate_batches",
    "whole_batches_end",
    "with_base",
    "with_log_append_time",
    "with_max_timestamps",
    "without_aborted",
    "without_position",
]
