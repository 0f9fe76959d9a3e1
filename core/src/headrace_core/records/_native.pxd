# cython: language_level=3
"""What other compiled code may cimport: the builder's and the iterator's C-level methods, and the record itself."""

from cpython.object cimport PyObject

from ._reader cimport Record, RecordIterator


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
    cdef bint _busy

    # The record's index in the batch, -1 when it does not fit; -2 with an exception set. Sizes of -1 mean null. Without
    # headers only C code runs (and malloc); keep the GIL: the builder has no lock of its own.
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
    cdef bytes _cut(self)
    cdef bytes _compressed(self, object compression, object level)
