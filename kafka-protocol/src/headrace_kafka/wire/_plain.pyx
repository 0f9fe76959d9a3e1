# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain Produce requests, which unbatched producers send: one batch of one partition, without a transactional id, in a
flexible version. Their frames and answers are read and written here without a Python object for each field; the general
codec (schema.py) reads all other requests, and damaged ones.

    request   type 0 int16 | version int16 | correlation id int32 | client id (nullable string) | 0 (no tagged fields)
              | 0 (null transactional id) | acks int16 | timeout int32 | 2 (one topic) | topic
              | 2 (one partition) | index int32 | records (compact bytes) | 0 | 0 | 0 (tagged fields)
    answer    length int32 | correlation id int32 | 0 | 2 | topic | 2 | index int32 | error int16 | base offset int64
              | append time int64 | start offset int64 | 1 (no record errors) | 0 (no message) | 0 | 0 (tagged fields)
              | throttle time int32 | 0
    topic     from version 13 its id, 16 bytes; before, a compact string
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from .apis import VERSIONS, Api

cdef extern from *:
    """
    static inline unsigned short kafka_get16(const unsigned char *p) {
        unsigned short v; __builtin_memcpy(&v, p, 2); return __builtin_bswap16(v);
    }
    static inline unsigned int kafka_get32(const unsigned char *p) {
        unsigned int v; __builtin_memcpy(&v, p, 4); return __builtin_bswap32(v);
    }
    static inline unsigned char *kafka_put32(unsigned char *p, unsigned int v) {
        v = __builtin_bswap32(v); __builtin_memcpy(p, &v, 4); return p + 4;
    }
    static inline unsigned char *kafka_put64(unsigned char *p, unsigned long long v) {
        v = __builtin_bswap64(v); __builtin_memcpy(p, &v, 8); return p + 8;
    }
    """
    unsigned short get16 "kafka_get16"(const unsigned char* p) noexcept
    unsigned int get32 "kafka_get32"(const unsigned char* p) noexcept
    unsigned char* put32 "kafka_put32"(unsigned char* p, unsigned int v) noexcept
    unsigned char* put64 "kafka_put64"(unsigned char* p, unsigned long long v) noexcept

cdef enum:
    BATCH_HEADER = 61
    MAGIC_AT = 16
    ONE = 2  # a compact array with one element begins with its length + 1

TOPIC_IDS = 13  #: The first version in which a topic has its id in place of its name.
PLAIN_BYTES_MAX = 48 * 1024  #: Longer frames gain nothing here.
cdef int _first = VERSIONS[Api.PRODUCE].flexible
cdef int _last = VERSIONS[Api.PRODUCE].high
cdef int _topic_ids = TOPIC_IDS
cdef Py_ssize_t _most = PLAIN_BYTES_MAX


cdef Py_ssize_t _records(const unsigned char* p, Py_ssize_t at, Py_ssize_t size, Py_ssize_t* end) noexcept:
    """Where the records begin whose length field is at ``at``; -1 unless they are one whole batch of magic 2 at the
    end of the frame."""
    cdef Py_ssize_t length = 0
    cdef int shift = 0
    while True:
        if at >= size or shift > 14:
            return -1
        length |= <Py_ssize_t>(p[at] & 0x7F) << shift
        at += 1
        if p[at - 1] < 0x80:
            break
        shift += 7
    length -= 1
    if length < BATCH_HEADER or at + length + 3 != size or p[at + length] or p[at + length + 1] or p[at + length + 2]:
        return -1
    if p[at + MAGIC_AT] != 2 or <Py_ssize_t>get32(p + at + 8) + 12 != length:
        return -1
    end[0] = at + length
    return at


def read_plain(bytes frame):
    """(version, correlation id, client id, whether acks is all, timeout in ms, topic's name or id, partition, records)
    of a plain request whose frame, without the length, is ``frame``. None: the request is not plain, or not valid."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(frame)
    cdef Py_ssize_t at = 10, end = 0, length
    cdef int version, acks
    if size < 30 + BATCH_HEADER or size > _most or get16(p) != 0:
        return None
    version = get16(p + 2)
    if version < _first or version > _last:
        return None
    length = <short>get16(p + 8)
    if length < -1 or at + length + 30 > size:
        return None
    try:
        client_id = "" if length <= 0 else p[at : at + length].decode("utf-8")
    except UnicodeDecodeError:
        return None
    at += length if length > 0 else 0
    if p[at] or p[at + 1]:  # tagged fields, or a transactional id
        return None
    acks = <short>get16(p + at + 2)
    timeout = <int>get32(p + at + 4)
    if (acks != 1 and acks != -1) or timeout < 0 or p[at + 8] != ONE:
        return None
    at += 9
    length = 16 if version >= _topic_ids else p[at] - 1
    if version < _topic_ids:
        at += 1
        if length < 1 or length > 126:
            return None
    if at + length + 6 > size:
        return None
    try:
        topic = frame[at : at + length] if version >= _topic_ids else p[at : at + length].decode("utf-8")
    except UnicodeDecodeError:
        return None
    at += length
    if p[at] != ONE:
        return None
    index = <int>get32(p + at + 1)
    at = _records(p, at + 5, size, &end)
    if at < 0:
        return None
    return version, <int>get32(p + 4), client_id, acks == -1, timeout, topic, index, frame[at:end]


def plain_answer(int version, int correlation_id, topic, int index, long long base_offset, long long start_offset):
    """The frame of the answer to a plain request whose batch was appended."""
    cdef bytes name = topic if version >= _topic_ids else topic.encode()
    cdef Py_ssize_t length = PyBytes_GET_SIZE(name)
    cdef Py_ssize_t size = 10 + (version < _topic_ids) + length + 40
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char* p = <unsigned char*>PyBytes_AS_STRING(out)
    p = put32(p, <unsigned int>(size - 4))
    p = put32(p, <unsigned int>correlation_id)
    p[0], p[1] = 0, ONE
    p += 2
    if version < _topic_ids:
        p[0] = <unsigned char>(length + 1)
        p += 1
    memcpy(p, PyBytes_AS_STRING(name), length)
    p += length
    p[0] = ONE
    p = put32(p + 1, <unsigned int>index)
    p[0], p[1] = 0, 0
    p = put64(p + 2, <unsigned long long>base_offset)
    p = put64(p, 0xFFFFFFFFFFFFFFFFu)
    p = put64(p, <unsigned long long>start_offset)
    p[0], p[1], p[2], p[3] = 1, 0, 0, 0
    p = put32(p + 4, 0)
    p[0] = 0
    return out
