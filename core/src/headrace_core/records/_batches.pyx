# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Whole batches, compiled: headers, CRC, and a broker's checks of a producer's batches.

This module repeats parts of batches.py and _pure.py in compiled code; those two modules document each function. Every
byte is read through _wire.pxd, which checks that each read is within the buffer. A fault in a header is raised by
batches.py, which repeats the check in Python. A fault in a record is raised by _faults.py.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.limits cimport INT_MAX, LLONG_MAX, LLONG_MIN

from ._wire cimport (
    COMPRESSION_BITS,
    CONTROL_FLAG,
    CRC_FROM,
    HEADER_SIZE,
    KEY_MISSING,
    OFFSET_DELTA,
    SOUND,
    TIMESTAMP_RANGE,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchFields,
    RecordView,
    Walk,
    be32,
    begin_walk,
    bytes_t,
    parse_header,
    step,
)

from ..errors import InvalidRecordError, InvalidTimestampError
from . import batches as _batches
from ._faults import invalid_record, too_many_schemas
from .batches import SLICE_EXACT, SLICE_HAS_GAPS, check_producer_fields
from .compression import decompress
from .crc import crc32c
from .types import (
    DEFAULT_LIMITS,
    SCHEMA_IDS_MAX,
    SCHEMA_PLACES_MAX,
    BatchHeader,
    BatchSchemas,
    BatchSpan,
    Compression,
)

cdef enum:
    PyBUF_READ = 0x100
    # Size in bytes below which releasing the GIL costs more than the work that other threads can do meanwhile.
    NOGIL_BYTES_MIN = 64 * 1024

cdef object _new_tuple = tuple.__new__
cdef Py_ssize_t _ids_max = SCHEMA_IDS_MAX
cdef Py_ssize_t _places_max = SCHEMA_PLACES_MAX
cdef int _records_max = INT_MAX if DEFAULT_LIMITS.max_records > INT_MAX else DEFAULT_LIMITS.max_records
cdef int _headers_max = INT_MAX if DEFAULT_LIMITS.max_headers > INT_MAX else DEFAULT_LIMITS.max_headers


cdef int clamped(object value) except? -1:
    # Cap the limit: one batch has at most 2 GiB, so a larger limit changes nothing.
    return INT_MAX if value > INT_MAX else value


cdef object decompressed(bytes_t p, Py_ssize_t size, const BatchFields* batch, Py_ssize_t max_bytes):
    try:
        return decompress(
            Compression(batch.attributes & COMPRESSION_BITS),
            PyMemoryView_FromMemory(<char*>p, size, PyBUF_READ),
            max_bytes,
        )
    except InvalidRecordError as error:
        raise InvalidRecordError(f"the batch with base offset {batch.base_offset}: {error.message}") from None


cdef object header_of(const BatchFields* batch):
    return _new_tuple(
        BatchHeader,
        (
            batch.base_offset,
            batch.batch_length,
            batch.leader_epoch,
            2,
            batch.crc,
            batch.attributes,
            batch.last_offset_delta,
            batch.base_timestamp,
            batch.max_timestamp,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.record_count,
        ),
    )


cdef int parse_whole(object data, bytes_t p, Py_ssize_t size, Py_ssize_t position, bint whole, BatchFields* batch) except -1:
    """Fill in ``batch`` from the header at ``position``, or raise the same error as batches.py."""
    if position < 0 or position > size or not parse_header(p + position, size - position, batch):
        _batches.read_header(data, position)
        raise AssertionError(f"the two header checks disagree at position {position}")
    if whole and batch.size > size - position:
        _batches.read_whole_header(data, position)
        raise AssertionError(f"the two header checks disagree at position {position}")
    return 0


cdef int check_crc_of(object data, bytes_t p, Py_ssize_t position, const BatchFields* batch) except -1:
    cdef unsigned int found = crc32c(
        PyMemoryView_FromMemory(<char*>p + position + CRC_FROM, batch.size - CRC_FROM, PyBUF_READ)
    )
    if found != batch.crc:
        _batches.check_batch(data, position)
        raise AssertionError(f"the two CRC checks disagree at position {position}")
    return 0


def read_header(data, Py_ssize_t position=0):
    cdef Py_buffer view
    cdef BatchFields batch
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        parse_whole(data, <bytes_t>view.buf, view.len, position, False, &batch)
    finally:
        PyBuffer_Release(&view)
    return header_of(&batch)


def check_batch(data, Py_ssize_t position=0):
    cdef Py_buffer view
    cdef BatchFields batch
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        parse_whole(data, <bytes_t>view.buf, view.len, position, True, &batch)
        check_crc_of(data, <bytes_t>view.buf, position, &batch)
    finally:
        PyBuffer_Release(&view)
    return header_of(&batch)


def split_batches(data):
    cdef Py_buffer view
    cdef BatchFields batch
    cdef Py_ssize_t position = 0
    cdef list spans = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            parse_whole(data, <bytes_t>view.buf, view.len, position, True, &batch)
            spans.append(
                _new_tuple(
                    BatchSpan,
                    (position, batch.size, batch.base_offset, batch.base_offset + batch.last_offset_delta),
                )
            )
            position += batch.size
    finally:
        PyBuffer_Release(&view)
    return spans


def check_slice(data, long long offset, long long end_offset, epochs=None):
    cdef Py_buffer view
    cdef BatchFields batch
    cdef bytes_t p
    cdef Py_ssize_t position = 0
    cdef long long expected = offset
    cdef long long last
    cdef long long epoch_from = 0
    cdef long long epoch_to = -1  # an empty range of offsets, so the first batch looks up its epoch
    cdef long long least = 0
    cdef long long most = 0
    cdef bint is_exact = True
    cdef bint has_epochs = epochs is not None
    if epochs:  # most reads concern the last epoch
        least, epoch_from = epochs[len(epochs) - 1]  # (no index below 0: wraparound=False)
        most, epoch_to = least, LLONG_MAX
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <bytes_t>view.buf
        while position < view.len:
            if not parse_header(p + position, view.len - position, &batch) or batch.size > view.len - position:
                return position
            last = batch.base_offset + batch.last_offset_delta
            if batch.base_offset < expected and (position or last < offset):
                return position
            if batch.base_offset > expected:
                is_exact = False
            if last >= end_offset:
                return position
            if has_epochs:
                if last < epoch_from or last >= epoch_to:
                    epoch_from, epoch_to, least, most = _batches.epoch_range(epochs, last)
                if batch.leader_epoch < least or batch.leader_epoch > most:
                    return position
            # crc32c releases the GIL itself where the data is large.
            if batch.crc != <unsigned int>crc32c(
                PyMemoryView_FromMemory(<char*>p + position + CRC_FROM, batch.size - CRC_FROM, PyBUF_READ)
            ):
                return position
            expected = last + 1
            position += batch.size
    finally:
        PyBuffer_Release(&view)
    return SLICE_EXACT if is_exact and expected == end_offset else SLICE_HAS_GAPS


cdef struct Demands:
    bint keys
    long long timestamp_min
    long long timestamp_max


cdef int _walk_all(Walk* walk, const Demands* demands, long long* latest) noexcept nogil:
    """Check every record of a producer's batch; returns a Fault and stores the largest timestamp."""
    cdef RecordView record
    cdef int fault
    latest[0] = LLONG_MIN
    while walk.index < walk.count:
        fault = step(walk, &record)
        if fault:
            return fault
        if record.offset_delta != walk.index - 1:
            fault = OFFSET_DELTA
        elif demands.keys and record.key_size < 0:
            fault = KEY_MISSING
        elif record.timestamp_ms != -1 and (
            record.timestamp_ms < demands.timestamp_min or record.timestamp_ms > demands.timestamp_max
        ):
            fault = TIMESTAMP_RANGE
        if fault:
            walk.index -= 1
            return fault
        if record.timestamp_ms > latest[0]:
            latest[0] = record.timestamp_ms
    return SOUND


cdef class _Places:
    """The records with each schema id, of the keys or of the values of one batch. Most records have the same schema id
    as the record before, so the entry of the last id is cached."""

    cdef dict of
    cdef list last
    cdef int last_id
    cdef Py_ssize_t room  # number of further records for which the entry of the last id has room

    def __cinit__(self):
        self.of = {}
        self.last_id = -2

    cdef int note(self, bytes_t data, int size, int index, long long base_offset) except -1:
        cdef int schema_id = -1
        if size >= 5 and data[0] == 0:
            schema_id = <int>be32(data + 1)
            if schema_id < 0:
                schema_id = -1
        if schema_id != self.last_id:
            self.last = self.of.get(schema_id)
            if self.last is None:
                if len(self.of) >= _ids_max:
                    raise too_many_schemas(index, base_offset)
                self.last = []
                self.of[schema_id] = self.last
            self.last_id = schema_id
            self.room = _places_max - len(self.last)
        if self.room > 0:
            self.last.append(index)
            self.room -= 1
        return 0


cdef object _schemas_of(Walk* walk, object wanted, long long base_offset):
    """The schema ids of a batch whose records are well-formed; ``walk`` is at the first record."""
    cdef bint of_keys = wanted.of_keys
    cdef bint of_values = wanted.of_values
    cdef _Places keys = _Places()
    cdef _Places values = _Places()
    cdef RecordView record
    while walk.index < walk.count:
        if step(walk, &record) != SOUND:
            raise AssertionError("a record that was well-formed has changed during the check")
        if of_keys and record.key_size >= 0:
            keys.note(record.key, record.key_size, walk.index - 1, base_offset)
        if of_values and record.value_size >= 0:
            values.note(record.value, record.value_size, walk.index - 1, base_offset)
    return BatchSchemas(keys.of, values.of)


def validate_batches(
    data,
    *,
    limits=DEFAULT_LIMITS,
    bint allow_control=False,
    bint allow_transactional=False,
    bint allow_producer_id=False,
    bint require_keys=False,
    long long timestamp_ms_min=LLONG_MIN,
    long long timestamp_ms_max=LLONG_MAX,
    schemas=None,
):
    cdef Py_buffer view, body_view
    cdef bint has_body_view = False
    cdef BatchFields batch
    cdef Walk walk
    cdef Demands demands = Demands(require_keys, timestamp_ms_min, timestamp_ms_max)
    cdef bytes_t p
    cdef Py_ssize_t size
    cdef Py_ssize_t position = 0
    cdef int max_decompressed = clamped(limits.max_decompressed_bytes)
    cdef int max_records = clamped(limits.max_records)
    cdef int max_headers = clamped(limits.max_headers)
    cdef int fault
    cdef long long latest = 0
    cdef int refused_flags = TIMESTAMP_TYPE_FLAG
    cdef list headers = []
    if not allow_transactional:
        refused_flags |= TRANSACTIONAL_FLAG
    if not allow_control:
        refused_flags |= CONTROL_FLAG
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <bytes_t>view.buf
            parse_whole(data, p, view.len, position, True, &batch)
            check_crc_of(data, p, position, &batch)
            if (
                batch.record_count != <long long>batch.last_offset_delta + 1
                or batch.attributes & refused_flags
                or (batch.producer_id >= 0 and (not allow_producer_id or (batch.base_sequence | batch.producer_epoch) < 0))
            ):
                check_producer_fields(header_of(&batch), allow_control, allow_transactional, allow_producer_id)
            p += position + HEADER_SIZE
            size = batch.size - HEADER_SIZE
            if batch.attributes & COMPRESSION_BITS:
                body = decompressed(p, size, &batch, max_decompressed)
                PyObject_GetBuffer(body, &body_view, PyBUF_SIMPLE)
                has_body_view = True
                p = <bytes_t>body_view.buf
                size = body_view.len
            fault = begin_walk(&walk, &batch, p, size, max_records, max_headers)
            if fault == SOUND:
                if size >= NOGIL_BYTES_MIN:
                    with nogil:
                        fault = _walk_all(&walk, &demands, &latest)
                else:
                    fault = _walk_all(&walk, &demands, &latest)
            if fault == TIMESTAMP_RANGE:
                raise InvalidTimestampError(
                    f"record {walk.index} of a batch has a timestamp outside of the topic's limits: "
                    f"{timestamp_ms_min} to {timestamp_ms_max}"
                )
            if fault:
                raise invalid_record(fault, walk.index, batch.base_offset)
            if schemas is not None:
                begin_walk(&walk, &batch, p, size, max_records, max_headers)
                schemas.batches.append(_schemas_of(&walk, schemas, batch.base_offset))
            if has_body_view:
                PyBuffer_Release(&body_view)
                has_body_view = False
            batch.max_timestamp = latest
            headers.append(header_of(&batch))
            position += batch.size
    finally:
        if has_body_view:
            PyBuffer_Release(&body_view)
        PyBuffer_Release(&view)
    if not headers:
        raise InvalidRecordError("not a record batch: the data is empty")
    return headers


def check_plain_batch(data, Py_ssize_t size_max, bint require_keys, long long timestamp_ms_min, long long timestamp_ms_max):
    cdef Py_buffer view
    cdef BatchFields batch
    cdef Walk walk
    cdef Demands demands = Demands(require_keys, timestamp_ms_min, timestamp_ms_max)
    cdef bytes_t p
    cdef long long latest = 0
    cdef bint is_sound = False
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <bytes_t>view.buf
        if (
            view.len <= size_max
            and parse_header(p, view.len, &batch)
            and batch.size == view.len
            and not batch.attributes & (COMPRESSION_BITS | TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG)
            and batch.record_count == <long long>batch.last_offset_delta + 1
            and (batch.producer_id < 0 or (batch.base_sequence | batch.producer_epoch) >= 0)
            and batch.crc == <unsigned int>crc32c(PyMemoryView_FromMemory(<char*>p + CRC_FROM, view.len - CRC_FROM, PyBUF_READ))
            and begin_walk(&walk, &batch, p + HEADER_SIZE, view.len - HEADER_SIZE, _records_max, _headers_max) == SOUND
        ):
            is_sound = _walk_all(&walk, &demands, &latest) == SOUND and latest == batch.max_timestamp
    finally:
        PyBuffer_Release(&view)
    return header_of(&batch) if is_sound else None
