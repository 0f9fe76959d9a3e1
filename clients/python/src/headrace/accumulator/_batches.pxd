# cython: language_level=3

from headrace_core.records._native cimport BatchBuilder


cdef class Ledger:
    cdef readonly Py_ssize_t buffer_bytes
    cdef readonly bint adaptive
    cdef public int state
    cdef public bint transactional
    cdef public object unread  # called with a failed batch and the number of its records that nobody has read; or None
    cdef public Py_ssize_t buffered_bytes
    cdef readonly set unfinished
    cdef list _space_waiters

    cdef int _space_freed(self) except -1


cdef class SendBatch:
    cdef readonly PartitionQueue queue
    cdef public object builder
    cdef BatchBuilder _builder  # the same object, while it is open
    cdef public object data
    cdef public int count
    cdef public Py_ssize_t size
    cdef public double created_s
    cdef readonly long long sequence
    cdef public int attempts
    cdef public bint in_flight
    cdef public bint maybe_written
    cdef readonly bint done
    cdef readonly long long base_offset
    cdef readonly long long log_append_time_ms
    cdef readonly object error
    cdef public object watch  # concurrent.futures.wait's (_watching.py), or None
    cdef public object trace  # the context of the first traced record, or None
    cdef public int reads  # the records of a failed batch whose error the program has read
    cdef object _event
    cdef list _waiters

    cdef object metadata(self, int index, long long timestamp_ms)


cdef class PartitionQueue:
    cdef readonly TopicQueues topic
    cdef readonly int partition
    cdef public SendBatch open
    cdef readonly list sealed
    cdef public bint listed
    cdef public Py_ssize_t bytes
    cdef readonly long long sequence
    cdef public object sender


cdef class TopicQueues:
    cdef readonly Ledger accumulator
    cdef readonly str name
    cdef public list queues
    cdef public list available
    cdef public Py_ssize_t max_batch_bytes
    cdef public Py_ssize_t sticky
    cdef public Py_ssize_t sticky_bytes
    cdef unsigned long long _chance

    cdef Py_ssize_t _below(self, Py_ssize_t limit) noexcept
    cdef int _choose(self) except -1
