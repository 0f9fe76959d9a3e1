# cython: language_level=3
"""What other compiled code may cimport: the builder's and the iterator's C-level methods, and the record itself."""

cimport cython
from cpython.buffer cimport Py_buffer
from cpython.object cimport PyObject

from ._wire cimport BatchFields, RecordView, Walk, bytes_t


cdef class Record:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly int leader_epoch
    cdef readonly long long offset
    cdef readonly long long timestamp_ms
    cdef public object key
    cdef public object value
    cdef list _headers
    cdef signed char _timestamp_type


cdef class BatchBuilder:
    cdef PyObject* _buffer
    cdef unsigned char* _data
    cdef Py_ssize_t _capacity
    cdef Py_ssize_t _used
    cdef Py_ssize_t _last_size
    cdef long long _base_timestamp
    cdef long long _max_timestamp
    cdef readonly Py_ssize_t max_bytes
    cdef readonly int count

    # The record's index in the batch, -1 when it does not fit; -2 with an exception set. Sizes of -1 mean null. With
    # headers None nothing but C runs (and malloc); keep the GIL: the builder has no lock of its own.
    cdef int append_raw(
        self,
        long long timestamp_ms,
        const char* key,
        Py_ssize_t key_size,
        const char* value,
        Py_ssize_t value_size,
        object headers,
    ) except -2
    cdef int _grow(self, Py_ssize_t needed) except -1
    cdef int _append(self, long long timestamp_ms, object key, object value, object headers) except -2


cdef class RecordIterator:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly long long position
    cdef list _slices
    cdef Py_ssize_t _slice
    cdef Py_ssize_t _at
    cdef Py_buffer _view
    cdef bint _has_view
    cdef Py_buffer _body_view
    cdef bint _has_body_view
    cdef object _limits
    cdef Py_ssize_t _max_decompressed
    cdef int _max_records
    cdef int _max_headers
    cdef bint _check_crc
    cdef bint _include_control
    cdef bint _in_batch
    cdef BatchFields _batch
    cdef Walk _walk

    # The next record, or None when none is left; raises as __next__ does.
    cdef Record next_record(self)
    cdef void _leave_batch(self) noexcept
    cdef void _release_body(self) noexcept
    cdef bint _enter_batch(self) except -1
    cdef int _fail(self, int fault) except -1
