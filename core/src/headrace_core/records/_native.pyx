# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Build batches from records, compiled: repeats the builder of _pure.py, where each function is documented."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.limits cimport INT_MAX
from libc.string cimport memcpy

from ._wire cimport (
    CRC_FROM,
    HEADER_SIZE,
    BatchFields,
    put32,
    put_varint,
    sub_overflows,
    varint_size,
    write_header,
    zigzag,
)

from ..errors import IllegalStateError, InvalidArgumentError, InvalidTimestampError, RecordTooLargeError
from ..types import TimestampType
from .batches import attributes_of
from .compression import check_level, compress
from .crc import crc32c
from .types import Compression

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** bytes, Py_ssize_t newsize) except -1
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char* v, Py_ssize_t size) except NULL
    char* _bytes_data "PyBytes_AS_STRING"(PyObject* o)
    const char* PyUnicode_AsUTF8AndSize(object unicode, Py_ssize_t* size) except NULL
    long long PyLong_AsLongLongAndOverflow(object pylong, int* overflow) except? -1

cdef enum:
    FIRST_CAPACITY = 512
    PyBUF_READ = 0x100

cdef object _NONE = Compression.NONE
cdef object _CREATE_TIME = TimestampType.CREATE_TIME


cdef inline long long _timestamp(object timestamp_ms) except? -2:
    cdef int overflow = 0
    cdef long long result = PyLong_AsLongLongAndOverflow(timestamp_ms, &overflow)
    if overflow:
        raise InvalidTimestampError(f"timestamp {timestamp_ms} does not fit into 64 bits")
    return result


cdef object _in_use():
    return IllegalStateError("a batch builder was used by two threads at once: give each its own, or lock it")


cdef list _normal_headers(object headers):
    """Convert headers to pairs of exactly (str, bytes or None), so that no Python code runs while the headers are
    written."""
    cdef list normal = []
    for name, content in headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a record header must be str, not {type(name).__name__}")
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

    The builder writes records into a bytes object that has no other reference. An uncompressed batch is the builder's
    bytes object, shrunk to the batch's size. A new bytes object is as large as the last batch was.
    """

    def __cinit__(self, Py_ssize_t max_bytes):
        if not HEADER_SIZE < max_bytes <= INT_MAX:
            raise InvalidArgumentError(
                f"max_bytes={max_bytes}: must be between {HEADER_SIZE + 1} and {INT_MAX}"
            )
        self.max_bytes = max_bytes
        self._used = HEADER_SIZE

    def __dealloc__(self):
        Py_XDECREF(self._buffer)

    @property
    def size(self):
        return self._used

    def clear(self):
        """Drop the appended records and free their memory."""
        if self._busy:
            raise _in_use()
        Py_XDECREF(self._buffer)
        self._buffer = NULL
        self._capacity = 0
        self._used = HEADER_SIZE
        self.count = 0

    cdef int _grow(self, Py_ssize_t needed) except -1:
        cdef Py_ssize_t capacity
        if needed > INT_MAX:
            raise RecordTooLargeError(f"a record of {needed - self._used} bytes is larger than any batch may be")
        if self._buffer is NULL:
            capacity = max(needed, min(max(FIRST_CAPACITY, self._last_size + (self._last_size >> 3)), self.max_bytes))
            self._buffer = _new_bytes(NULL, capacity)
        else:
            capacity = max(needed, min(2 * self._capacity, self.max_bytes))
            self._capacity = 0
            _PyBytes_Resize(&self._buffer, capacity)  # on failure the buffer is freed and the pointer NULL
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
        if headers is not None:
            pairs = _normal_headers(headers)  # this call comes first, because it may run the caller's Python code
        if self._busy:
            raise _in_use()
        if self.count and sub_overflows(timestamp_ms, self._base_timestamp, &delta):
            raise InvalidTimestampError(
                f"timestamp {timestamp_ms} is too far from {self._base_timestamp}, the first timestamp of its batch"
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
        body += 1 if pairs is None else _headers_size(pairs)
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
            self._base_timestamp = self._max_timestamp = timestamp_ms
        elif timestamp_ms > self._max_timestamp:
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
                    raise TypeError(f"record {index} is a tuple of {fields} items, not (key, value[, headers])")
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
        cdef bytes batch
        cdef BatchFields header
        cdef Py_ssize_t size = self._used
        cdef int attributes = attributes_of(compression, timestamp_type, transactional=transactional, control=control)
        if self._busy:
            raise _in_use()
        if not self.count:
            raise IllegalStateError("a batch needs at least one record: nothing was appended")
        check_level(compression, level)
        self._busy = True  # from here on the GIL may be released
        try:
            batch = self._cut() if compression == 0 else self._compressed(compression, level)
            p = <unsigned char*>PyBytes_AS_STRING(batch)
            header.base_offset = base_offset
            header.size = PyBytes_GET_SIZE(batch)
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
            put32(p + 17, crc32c(PyMemoryView_FromMemory(<char*>p + CRC_FROM, header.size - CRC_FROM, PyBUF_READ)))
        finally:
            self._busy = False
            if self._buffer is NULL:
                self.clear()
        self._last_size = size
        self._used = HEADER_SIZE
        self.count = 0
        return batch

    cdef bytes _cut(self):
        """Return the buffer itself, shrunk to the batch's size: the buffer has no other references."""
        cdef PyObject* buffer = self._buffer
        self._buffer = NULL
        self._capacity = 0
        _PyBytes_Resize(&buffer, self._used)
        cut = <bytes>buffer
        Py_XDECREF(buffer)  # the variable ``cut`` holds the reference now
        return cut

    cdef bytes _compressed(self, object compression, object level):
        """Return a batch with compressed records, and space for the header in front of the records."""
        cdef Py_buffer packed
        cdef bytes batch
        records = PyMemoryView_FromMemory(<char*>self._data + HEADER_SIZE, self._used - HEADER_SIZE, PyBUF_READ)
        body = compress(compression, records, level)
        PyObject_GetBuffer(body, &packed, PyBUF_SIMPLE)
        try:
            batch = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + packed.len)
            memcpy(PyBytes_AS_STRING(batch) + HEADER_SIZE, packed.buf, packed.len)
        finally:
            PyBuffer_Release(&packed)
        return batch


def encode_batch(records, **fields):
    cdef BatchBuilder builder = BatchBuilder(INT_MAX)
    for timestamp_ms, key, value, headers in records:
        if builder._append(_timestamp(timestamp_ms), key, value, headers) < 0:
            raise RecordTooLargeError(f"a batch has at most {INT_MAX} bytes; {builder.count} records fit")
    return builder.build(**fields)
