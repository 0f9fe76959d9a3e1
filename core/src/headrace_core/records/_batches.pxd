# cython: language_level=3
"""Functions that the readers share. Each raises the same errors as its Python twin."""

from ._wire cimport BatchFields, bytes_t

cdef int clamped(object value) except? -1
cdef object decompressed(bytes_t p, Py_ssize_t size, const BatchFields* batch, Py_ssize_t max_bytes)
cdef object header_of(const BatchFields* batch)
# Fill in ``batch`` from ``position`` of ``data``, whose ``size`` bytes are at ``p``; ``whole``: all of it must be there.
cdef int parse_whole(
    object data, bytes_t p, Py_ssize_t size, Py_ssize_t position, bint whole, BatchFields* batch
) except -1
cdef int check_crc_of(object data, bytes_t p, Py_ssize_t position, const BatchFields* batch) except -1
