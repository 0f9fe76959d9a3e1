# cython: language_level=3


cdef class RecordMetadata:
    cdef readonly str topic
    cdef readonly int partition
    cdef readonly long long offset
    cdef readonly long long timestamp_ms
