# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Record batch v2, compiled: the twin of _pure.py, which documents what each of these does.

Every byte that comes from outside is read through _wire.pxd, which checks each bound. Errors of headers are raised by
batches.py (the same check in Python, run again), those of records by _faults.py.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_XDECREF
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_DecodeUTF8
from libc.limits cimport INT_MAX, LLONG_MAX, LLONG_MIN
from libc.string cimport memcpy

from ._wire cimport (
    BYTES_AFTER_LAST,
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
    begin_walk,
    bytes_t,
    get_varint32,
    parse_header,
    put32,
    put_varint,
    step,
    sub_overflows,
    varint_size,
    write_header,
    zigzag,
)

from crc32c import crc32c

from ..errors import (
    IllegalStateError,
    InvalidArgumentError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
)
from ..types import TimestampType
from . import batches as _batches
from ._faults import invalid_record
from .batches import attributes_of, check_producer_fields
from .compression import check_level, compress, decompress
from .types import DEFAULT_LIMITS, BatchHeader, BatchSpan, Compression

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** bytes, Py_ssize_t newsize) except -1
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char* v, Py_ssize_t size) except NULL
    char* _bytes_data "PyBytes_AS_STRING"(PyObject* o)
    const char* PyUnicode_AsUTF8AndSize(object unicode, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(object pylong, int* overflow) except? -1

# Below this, giving the GIL up costs more than the work that it lets others do.
cdef enum:
    NOGIL_BYTES_MIN = 64 * 1024
    FIRST_CAPACITY = 512
    PyBUF_READ = 0x100

cdef object _NONE = Compression.NONE
cdef object _CREATE_TIME = TimestampType.CREATE_TIME
cdef object _new_tuple = tuple.__new__
_INT64_MIN, _INT64_MAX = LLONG_MIN, LLONG_MAX


# --- records --------------------------------------------------------------------------------------------------------


@cython.final
@cython.no_gc  # it refers to bytes and strings; the collector would only lose time on millions of them
@cython.freelist(512)
cdef class Record:
    """One record as a consumer hands it out. See _pure.Record."""

    def __init__(
        self,
        str topic not None,
        int partition,
        long long offset,
        long long timestamp_ms,
        key,
        value,
        headers=None,
        int leader_epoch=-1,
        timestamp_type=_CREATE_TIME,
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self._headers = headers
        self.leader_epoch = leader_epoch
        self._timestamp_type = TimestampType(timestamp_type)

    @property
    def headers(self):
        if self._headers is None:
            self._headers = []
        return self._headers

    @property
    def timestamp_type(self):
        return TimestampType(self._timestamp_type)

    def _fields(self):
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
            self.timestamp_type,
        )

    def __eq__(self, other):
        return self._fields() == (<Record>other)._fields() if isinstance(other, Record) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r}, "
            f"leader_epoch={self.leader_epoch})"
        )

    def __reduce__(self):
        return Record, self._fields()


cdef list _read_headers(bytes_t p, bytes_t end, int count):
    """The headers of a record, which step() has checked."""
    cdef list headers = []
    cdef int size = 0
    for _ in range(count):
        get_varint32(&p, end, &size)
        name = PyUnicode_DecodeUTF8(<const char*>p, size, b"replace")
        p += size
        get_varint32(&p, end, &size)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, PyBytes_FromStringAndSize(<const char*>p, size)))
            p += size
    return headers


cdef inline Record _make_record(
    str topic, int partition, int leader_epoch, const Walk* walk, const RecordView* view
):
    cdef Record record = Record.__new__(Record)
    record.topic = topic
    record.partition = partition
    record.leader_epoch = leader_epoch
    record.offset = view.offset
    record.timestamp_ms = view.timestamp_ms
    record._timestamp_type = walk.has_append_time
    if view.key_size >= 0:
        record.key = PyBytes_FromStringAndSize(<const char*>view.key, view.key_size)
    if view.value_size >= 0:
        record.value = PyBytes_FromStringAndSize(<const char*>view.value, view.value_size)
    if view.header_count:
        record._headers = _read_headers(view.headers, walk.cursor, view.header_count)
    return record


# --- headers --------------------------------------------------------------------------------------------------------


cdef object _header_of(const BatchFields* batch):
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


cdef int _parse(object data, bytes_t p, Py_ssize_t size, Py_ssize_t position, bint whole, BatchFields* batch) except -1:
    """Fill in ``batch`` from ``position``, or raise what the Python twin raises."""
    if position < 0 or position > size or not parse_header(p + position, size - position, batch):
        _batches.read_header(data, position)
        raise AssertionError(f"the two header checks disagree at position {position}")
    if whole and batch.size > size - position:
        _batches.read_whole_header(data, position)
        raise AssertionError(f"the two header checks disagree at position {position}")
    return 0


cdef int _check_crc(object data, bytes_t p, Py_ssize_t position, const BatchFields* batch) except -1:
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
        _parse(data, <bytes_t>view.buf, view.len, position, False, &batch)
    finally:
        PyBuffer_Release(&view)
    return _header_of(&batch)


def check_batch(data, Py_ssize_t position=0):
    cdef Py_buffer view
    cdef BatchFields batch
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        _parse(data, <bytes_t>view.buf, view.len, position, True, &batch)
        _check_crc(data, <bytes_t>view.buf, position, &batch)
    finally:
        PyBuffer_Release(&view)
    return _header_of(&batch)


def split_batches(data):
    cdef Py_buffer view
    cdef BatchFields batch
    cdef Py_ssize_t position = 0
    cdef list spans = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            _parse(data, <bytes_t>view.buf, view.len, position, True, &batch)
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


# --- encoding -------------------------------------------------------------------------------------------------------


cdef inline long long _timestamp(object timestamp_ms) except? -2:
    cdef int overflow = 0
    cdef long long result = PyLong_AsLongLongAndOverflow(timestamp_ms, &overflow)
    if overflow or result < -1:
        raise _bad_timestamp(timestamp_ms)
    return result


cdef object _bad_timestamp(object timestamp_ms):
    return InvalidTimestampError(
        f"timestamp {timestamp_ms} is not one: milliseconds since 1970, or -1 for none"
    )


cdef list _normal_headers(object headers):
    """The headers as (str, bytes or None), exactly those types, so that no Python code runs while they are written."""
    cdef list normal = []
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        if content is not None and not PyBytes_CheckExact(content):
            content = bytes(memoryview(content))
        normal.append((str(name), content))
    return normal


cdef Py_ssize_t _headers_size(list headers) except -1:
    cdef Py_ssize_t total = varint_size(zigzag(len(headers)))
    cdef Py_ssize_t size = 0
    cdef tuple pair
    for pair in headers:
        PyUnicode_AsUTF8AndSize(pair[0], &size)
        total += varint_size(zigzag(size)) + size
        size = -1 if pair[1] is None else PyBytes_GET_SIZE(pair[1])
        total += varint_size(zigzag(size)) + (size if size > 0 else 0)
    return total


cdef unsigned char* _write_headers(unsigned char* p, list headers) except NULL:
    cdef Py_ssize_t size = 0
    cdef const char* name
    cdef tuple pair
    p = put_varint(p, zigzag(len(headers)))
    for pair in headers:
        name = PyUnicode_AsUTF8AndSize(pair[0], &size)
        p = put_varint(p, zigzag(size))
        memcpy(p, name, size)
        p += size
        if pair[1] is None:
            p = put_varint(p, zigzag(-1))
        else:
            size = PyBytes_GET_SIZE(pair[1])
            p = put_varint(p, zigzag(size))
            memcpy(p, PyBytes_AS_STRING(pair[1]), size)
            p += size
    return p


def record_bytes_max(key, value, headers=None):
    cdef Py_ssize_t size = 5 + 1 + 10 + 5 + 5 + 5 + 5
    if key is not None:
        size += PyBytes_GET_SIZE(key) if PyBytes_CheckExact(key) else memoryview(key).nbytes
    if value is not None:
        size += PyBytes_GET_SIZE(value) if PyBytes_CheckExact(value) else memoryview(value).nbytes
    if headers is not None:
        for name, content in headers:
            size += 10 + <Py_ssize_t>len(name.encode()) + (0 if content is None else memoryview(content).nbytes)
    return size


@cython.final
cdef class BatchBuilder:
    """Collects records until ``max_bytes`` are reached, then builds the batch. See _pure.BatchBuilder.

    The records are written into a bytes object that nobody else has seen yet; an uncompressed batch is that very
    object, cut to size. It starts as large as the last batch was.
    """

    def __cinit__(self, Py_ssize_t max_bytes):
        if not HEADER_SIZE < max_bytes <= INT_MAX:
            raise InvalidArgumentError(
                f"max_bytes={max_bytes}: must be between {HEADER_SIZE + 1} and {INT_MAX}"
            )
        self.max_bytes = max_bytes
        self._used = HEADER_SIZE
        self._max_timestamp = -1

    def __dealloc__(self):
        Py_XDECREF(self._buffer)

    @property
    def size(self):
        return self._used

    def clear(self):
        """Forget what was appended, and give its memory back."""
        Py_XDECREF(self._buffer)
        self._buffer = NULL
        self._capacity = 0
        self._used = HEADER_SIZE
        self._max_timestamp = -1
        self.count = 0

    cdef int _grow(self, Py_ssize_t needed) except -1:
        cdef Py_ssize_t capacity
        if needed > INT_MAX:
            raise RecordTooLargeError(f"a record of {needed - self._used} bytes fits into no batch")
        if self._buffer is NULL:
            capacity = max(needed, min(max(FIRST_CAPACITY, self._last_size + (self._last_size >> 3)), self.max_bytes))
            self._buffer = _new_bytes(NULL, capacity)
        else:
            capacity = max(needed, min(2 * self._capacity, self.max_bytes))
            self._capacity = 0
            _PyBytes_Resize(&self._buffer, capacity)  # on failure the buffer is gone and the pointer NULL
        self._capacity = capacity
        self._data = <unsigned char*>_bytes_data(self._buffer)
        return 0

    cdef int append_raw(
        self,
        long long timestamp_ms,
        const char* key,
        Py_ssize_t key_size,
        const char* value,
        Py_ssize_t value_size,
        object headers,
    ) except -2:
        cdef unsigned char* p
        cdef Py_ssize_t body, needed
        cdef long long delta = 0
        cdef unsigned long long zigzag_delta
        cdef list pairs = None
        if timestamp_ms < -1:
            raise _bad_timestamp(timestamp_ms)
        if self.count and sub_overflows(timestamp_ms, self._base_timestamp, &delta):
            raise InvalidTimestampError(
                f"timestamp {timestamp_ms} is too far from {self._base_timestamp}, the first of its batch"
            )
        zigzag_delta = zigzag(delta)
        body = (
            1
            + varint_size(zigzag_delta)
            + varint_size(zigzag(self.count))
            + varint_size(zigzag(key_size))
            + varint_size(zigzag(value_size))
        )
        if key_size > 0:
            body += key_size
        if value_size > 0:
            body += value_size
        if headers is None:
            body += 1
        else:
            pairs = _normal_headers(headers)
            body += _headers_size(pairs)
        needed = self._used + varint_size(zigzag(body)) + body
        if needed > self.max_bytes and self.count:
            return -1
        if needed > self._capacity:
            self._grow(needed)
        p = self._data + self._used
        p = put_varint(p, zigzag(body))
        p[0] = 0
        p = put_varint(p + 1, zigzag_delta)
        p = put_varint(p, zigzag(self.count))
        p = put_varint(p, zigzag(key_size))
        if key_size > 0:
            memcpy(p, key, key_size)
            p += key_size
        p = put_varint(p, zigzag(value_size))
        if value_size > 0:
            memcpy(p, value, value_size)
            p += value_size
        if pairs is None:
            p[0] = 0
        else:
            _write_headers(p, pairs)
        self._used = needed
        if self.count == 0:
            self._base_timestamp = timestamp_ms
        if timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        self.count += 1
        return self.count - 1

    cdef int _append(self, long long timestamp_ms, object key, object value, object headers) except -2:
        cdef Py_buffer key_view, value_view
        cdef const char* key_data = NULL
        cdef const char* value_data = NULL
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef bint has_key_view = False
        cdef bint has_value_view = False
        try:
            if PyBytes_CheckExact(key):
                key_data = PyBytes_AS_STRING(key)
                key_size = PyBytes_GET_SIZE(key)
            elif key is not None:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                has_key_view = True
                key_data = <const char*>key_view.buf
                key_size = key_view.len
            if PyBytes_CheckExact(value):
                value_data = PyBytes_AS_STRING(value)
                value_size = PyBytes_GET_SIZE(value)
            elif value is not None:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                has_value_view = True
                value_data = <const char*>value_view.buf
                value_size = value_view.len
            return self.append_raw(timestamp_ms, key_data, key_size, value_data, value_size, headers)
        finally:
            if has_key_view:
                PyBuffer_Release(&key_view)
            if has_value_view:
                PyBuffer_Release(&value_view)

    def append(self, timestamp_ms, key, value, headers=None):
        return self._append(_timestamp(timestamp_ms), key, value, headers)

    def append_many(self, records, Py_ssize_t start=0, timestamp_ms=-1):
        cdef long long when = _timestamp(timestamp_ms)
        cdef list items = records if type(records) is list else list(records)
        cdef Py_ssize_t index = start
        cdef Py_ssize_t fields
        cdef int added
        cdef object record
        cdef tuple parts
        while index < len(items):
            record = <object>PyList_GET_ITEM(items, index)
            if PyBytes_CheckExact(record):
                added = self.append_raw(when, NULL, -1, PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record), None)
            elif isinstance(record, tuple):
                parts = <tuple>record
                fields = len(parts)
                if not 2 <= fields <= 3:
                    raise TypeError(f"record {index} is a tuple of {fields}, not (key, value[, headers])")
                added = self._append(when, parts[0], parts[1], parts[2] if fields == 3 else None)
            else:
                added = self._append(when, None, record, None)
            if added < 0:
                break
            index += 1
        return index

    def build(
        self,
        *,
        compression=_NONE,
        level=None,
        long long base_offset=0,
        int leader_epoch=-1,
        timestamp_type=_CREATE_TIME,
        long long producer_id=-1,
        short producer_epoch=-1,
        int base_sequence=-1,
        bint transactional=False,
        bint control=False,
    ):
        cdef unsigned char* p
        cdef PyObject* batch = NULL
        cdef BatchFields header
        cdef Py_buffer packed
        cdef Py_ssize_t size = self._used
        cdef unsigned short attributes = attributes_of(
            compression, timestamp_type, transactional=transactional, control=control
        )
        if not self.count:
            raise IllegalStateError("a batch needs at least one record: nothing was appended")
        check_level(compression, level)
        if compression == 0:
            batch = self._buffer
            self._buffer = NULL
            self._capacity = 0
            _PyBytes_Resize(&batch, size)
        else:
            body = compress(
                compression,
                PyMemoryView_FromMemory(<char*>self._data + HEADER_SIZE, size - HEADER_SIZE, PyBUF_READ),
                level,
            )
            PyObject_GetBuffer(body, &packed, PyBUF_SIMPLE)
            try:
                batch = _new_bytes(NULL, HEADER_SIZE + packed.len)
                size = HEADER_SIZE + packed.len
                memcpy(_bytes_data(batch) + HEADER_SIZE, packed.buf, packed.len)
            finally:
                PyBuffer_Release(&packed)
        result = <object>batch
        Py_XDECREF(batch)  # the name above holds it now
        p = <unsigned char*>_bytes_data(batch)
        header.base_offset = base_offset
        header.size = size
        header.leader_epoch = leader_epoch
        header.attributes = attributes
        header.last_offset_delta = self.count - 1
        header.base_timestamp = self._base_timestamp
        header.max_timestamp = self._max_timestamp
        header.producer_id = producer_id
        header.producer_epoch = producer_epoch
        header.base_sequence = base_sequence
        header.record_count = self.count
        write_header(p, &header)
        put32(p + 17, crc32c(PyMemoryView_FromMemory(<char*>p + CRC_FROM, size - CRC_FROM, PyBUF_READ)))
        self._last_size = self._used
        self._used = HEADER_SIZE
        self._max_timestamp = -1
        self.count = 0
        return result


def encode_batch(records, **fields):
    cdef BatchBuilder builder = BatchBuilder(INT_MAX)
    for timestamp_ms, key, value, headers in records:
        if builder._append(_timestamp(timestamp_ms), key, value, headers) < 0:
            raise RecordTooLargeError(f"a batch has at most {INT_MAX} bytes; {builder.count} records fit")
    return builder.build(**fields)


# --- decoding -------------------------------------------------------------------------------------------------------


cdef int _clamped(object value) except? -1:
    # One batch has at most 2 GiB, so no larger limit has a meaning.
    return INT_MAX if value > INT_MAX else value


@cython.final
cdef class RecordIterator:
    """The records of many batches, one by one, from an offset on. See _pure.RecordIterator."""

    def __init__(
        self,
        slices,
        *,
        str topic not None="",
        int partition=-1,
        long long start_offset=0,
        limits=DEFAULT_LIMITS,
        bint check_crc=True,
        bint include_control=False,
    ):
        self.topic = topic
        self.partition = partition
        self.position = start_offset
        self._slices = [slices] if isinstance(slices, (bytes, bytearray, memoryview)) else list(slices)
        self._limits = limits
        self._max_decompressed = _clamped(limits.max_decompressed_bytes)
        self._max_records = _clamped(limits.max_records)
        self._max_headers = _clamped(limits.max_headers)
        self._check_crc = check_crc
        self._include_control = include_control

    def __dealloc__(self):
        self._release_body()
        if self._has_view:
            PyBuffer_Release(&self._view)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record = self.next_record()
        if record is None:
            raise StopIteration
        return record

    def take(self, Py_ssize_t count):
        """Up to ``count`` records; an empty list when none are left. What is sound comes before an error is raised."""
        cdef list taken = []
        cdef Record record
        while len(taken) < count:
            try:
                record = self.next_record()
            except Exception:
                if not taken:
                    raise
                break
            if record is None:
                break
            taken.append(record)
        return taken

    cdef Record next_record(self):
        cdef RecordView view
        cdef int fault
        while True:
            while self._walk.index < self._walk.count:
                fault = step(&self._walk, &view)
                if fault:
                    self._fail(fault)
                if view.offset >= self.position:
                    self.position = view.offset + 1
                    return _make_record(self.topic, self.partition, self._batch.leader_epoch, &self._walk, &view)
            self._leave_batch()
            if not self._enter_batch():
                return None

    cdef int _fail(self, int fault) except -1:
        cdef int index = self._walk.index - (1 if fault == BYTES_AFTER_LAST else 0)
        self._walk.index = self._walk.count = 0  # the next step enters this batch again
        self._in_batch = False
        self._release_body()
        raise invalid_record(fault, index, self._batch.base_offset)

    cdef void _release_body(self) noexcept:
        if self._has_body_view:
            PyBuffer_Release(&self._body_view)
            self._has_body_view = False

    cdef void _leave_batch(self) noexcept:
        self._release_body()
        if self._in_batch:
            self._in_batch = False
            self.position = max(self.position, self._batch.base_offset + self._batch.last_offset_delta + 1)
            self._at += self._batch.size

    cdef bint _enter_batch(self) except -1:
        cdef BatchFields* batch = &self._batch
        cdef bytes_t p
        cdef Py_ssize_t size
        cdef int fault
        while True:
            if not self._has_view:
                if self._slice >= len(self._slices):
                    return False
                PyObject_GetBuffer(self._slices[self._slice], &self._view, PyBUF_SIMPLE)
                self._has_view = True
                self._at = 0
            if self._at >= self._view.len:
                PyBuffer_Release(&self._view)
                self._has_view = False
                self._slices[self._slice] = None  # so that what was read can go
                self._slice += 1
                continue
            p = <bytes_t>self._view.buf
            data = self._slices[self._slice]
            _parse(data, p, self._view.len, self._at, True, batch)
            if batch.base_offset + batch.last_offset_delta >= self.position and (
                self._include_control or not batch.attributes & CONTROL_FLAG
            ):
                break
            self.position = max(self.position, batch.base_offset + batch.last_offset_delta + 1)
            self._at += batch.size
        if self._check_crc:
            _check_crc(data, p, self._at, batch)
        p += self._at + HEADER_SIZE
        size = batch.size - HEADER_SIZE
        if batch.attributes & COMPRESSION_BITS:
            body = _decompressed(p, size, batch, self._max_decompressed)
            PyObject_GetBuffer(body, &self._body_view, PyBUF_SIMPLE)
            self._has_body_view = True
            p = <bytes_t>self._body_view.buf
            size = self._body_view.len
        fault = begin_walk(&self._walk, batch, p, size, self._max_records, self._max_headers)
        if fault:
            self._fail(fault)
        self._in_batch = True
        return True


cdef object _decompressed(bytes_t p, Py_ssize_t size, const BatchFields* batch, Py_ssize_t max_bytes):
    try:
        return decompress(
            Compression(batch.attributes & COMPRESSION_BITS),
            PyMemoryView_FromMemory(<char*>p, size, PyBUF_READ),
            max_bytes,
        )
    except InvalidRecordError as error:
        raise InvalidRecordError(f"the batch with base offset {batch.base_offset}: {error.message}") from None


def decode_batch(
    data,
    Py_ssize_t position=0,
    *,
    str topic not None="",
    int partition=-1,
    long long start_offset=0,
    limits=DEFAULT_LIMITS,
    bint check_crc=True,
):
    cdef Py_buffer view, body_view
    cdef bint has_body_view = False
    cdef BatchFields batch
    cdef Walk walk
    cdef RecordView record
    cdef bytes_t p
    cdef Py_ssize_t size
    cdef int fault
    cdef list records = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <bytes_t>view.buf
        _parse(data, p, view.len, position, True, &batch)
        if check_crc:
            _check_crc(data, p, position, &batch)
        p += position + HEADER_SIZE
        size = batch.size - HEADER_SIZE
        if batch.attributes & COMPRESSION_BITS:
            body = _decompressed(p, size, &batch, _clamped(limits.max_decompressed_bytes))
            PyObject_GetBuffer(body, &body_view, PyBUF_SIMPLE)
            has_body_view = True
            p = <bytes_t>body_view.buf
            size = body_view.len
        fault = begin_walk(&walk, &batch, p, size, _clamped(limits.max_records), _clamped(limits.max_headers))
        while fault == SOUND and walk.index < walk.count:
            fault = step(&walk, &record)
            if fault == SOUND and record.offset >= start_offset:
                records.append(_make_record(topic, partition, batch.leader_epoch, &walk, &record))
        if fault:
            raise invalid_record(fault, walk.index, batch.base_offset)
        return records
    finally:
        if has_body_view:
            PyBuffer_Release(&body_view)
        PyBuffer_Release(&view)


# --- validation -----------------------------------------------------------------------------------------------------


cdef struct Demands:
    bint keys
    long long timestamp_min
    long long timestamp_max


cdef int _walk_all(Walk* walk, const Demands* demands, long long* latest) noexcept nogil:
    """Every record of a producer's batch; a Fault, and the largest timestamp."""
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
):
    cdef Py_buffer view, body_view
    cdef bint has_body_view = False
    cdef BatchFields batch
    cdef Walk walk
    cdef Demands demands = Demands(require_keys, timestamp_ms_min, timestamp_ms_max)
    cdef bytes_t p
    cdef Py_ssize_t size
    cdef Py_ssize_t position = 0
    cdef int max_decompressed = _clamped(limits.max_decompressed_bytes)
    cdef int max_records = _clamped(limits.max_records)
    cdef int max_headers = _clamped(limits.max_headers)
    cdef int fault
    cdef long long latest = 0
    cdef list headers = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while position < view.len:
            p = <bytes_t>view.buf
            _parse(data, p, view.len, position, True, &batch)
            _check_crc(data, p, position, &batch)
            if (
                batch.record_count != <long long>batch.last_offset_delta + 1
                or batch.attributes & (TIMESTAMP_TYPE_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG)
                or batch.producer_id >= 0
            ):
                check_producer_fields(_header_of(&batch), allow_control, allow_transactional, allow_producer_id)
            p += position + HEADER_SIZE
            size = batch.size - HEADER_SIZE
            if batch.attributes & COMPRESSION_BITS:
                body = _decompressed(p, size, &batch, max_decompressed)
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
                    f"record {walk.index} of a batch has a timestamp outside of what the topic accepts: "
                    f"{timestamp_ms_min} to {timestamp_ms_max}"
                )
            if fault:
                raise invalid_record(fault, walk.index, batch.base_offset)
            if has_body_view:
                PyBuffer_Release(&body_view)
                has_body_view = False
            batch.max_timestamp = latest
            headers.append(_header_of(&batch))
            position += batch.size
    finally:
        if has_body_view:
            PyBuffer_Release(&body_view)
        PyBuffer_Release(&view)
    if not headers:
        raise InvalidRecordError("no batch: the records are empty")
    return headers
