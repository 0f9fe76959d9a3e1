# cython: language_level=3

from ._batches cimport SendBatch


cdef class RecordFuture:
    cdef SendBatch _batch
    cdef int _index
    cdef bint _is_read
    cdef long long _timestamp_ms

    cdef int _wait(self, timeout) except -1


cdef class AsyncRecordFuture:
    cdef SendBatch _batch
    cdef int _index
    cdef bint _is_read
    cdef long long _timestamp_ms
    cdef list _callbacks
    cdef object _loop
    cdef bint _cancelled
    cdef public bint _asyncio_future_blocking


cdef class Sent:
    cdef object _result
