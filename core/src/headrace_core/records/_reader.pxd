# cython: language_level=3
"""The record and the iterator, for other compiled code."""

from cpython.buffer cimport Py_buffer

from ._wire cimport BatchFields, Walk


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
    cdef bint _is_stuck
    cdef bint _busy
    cdef BatchFields _batch
    cdef Walk _walk
    cdef readonly Py_ssize_t taken_bytes  # keys, values and headers of the last ``take``

    # The next record, or None when none is left; raises as __next__ does.
    cdef Record next_record(self)
    cdef Record _next(self)
    cdef void _leave_batch(self) noexcept
    cdef void _release_body(self) noexcept
    cdef bint _enter_batch(self) except -1
    cdef int _fail(self, int fault) except -1
