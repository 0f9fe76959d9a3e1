# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Plain Produce requests: one batch of at most PLAIN_BATCH_BYTES for each partition, without a transactional id, in a
flexible version. Their frames and answers are read and written here without a Python object for each field; the general
codec (schema.py) reads all other requests, and damaged ones.

    request   type 0 int16 | version int16 | correlation id int32 | client id (nullable string) | 0 (no tagged fields)
              | 0 (null transactional id) | acks int16 | timeout int32 | topics | 0 (tagged fields)
    topics    array of: topic | array of: index int32, records (compact bytes), 0 | 0
    answer    length int32 | correlation id int32 | 0 | array of: topic, array of: result, 0 | throttle time int32 | 0
    result    index int32 | error int16 | base offset int64 | append time int64 | start offset int64
              | 1 (no record errors) | 0 (no message) | 0
    topic     from version 13 its id, 16 bytes; before, a compact string
    array     its length + 1 as a varint | its elements
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
    NAME_BYTES_MAX = 249 # Kafka's longest name of a topic
    RESULT_BYTES = 4 + 2 + 3 * 8 + 3

TOPIC_IDS = 13  #: The first version in which a topic has its id in place of its name.
#: Limits of a plain request: bytes of its frame and of each batch, topics and partitions. Larger ones gain nothing here.
PLAIN_BYTES_MAX, PLAIN_BATCH_BYTES_MAX, PLAIN_PARTITIONS_MAX = 512 * 1024, 48 * 1024, 100
cdef int _first = VERSIONS[Api.PRODUCE].flexible
cdef int _last = VERSIONS[Api.PRODUCE].high
cdef int _topic_ids = TOPIC_IDS
cdef Py_ssize_t _most = PLAIN_BYTES_MAX
cdef Py_ssize_t _batch_most = PLAIN_BATCH_BYTES_MAX
cdef Py_ssize_t _partitions_most = PLAIN_PARTITIONS_MAX


cdef Py_ssize_t _length(const unsigned char* p, Py_ssize_t* at, Py_ssize_t size) noexcept:
    """The compact length at ``at``, minus 1, and ``at`` behind it; -1: null, longer than three bytes, or cut."""
    cdef Py_ssize_t length = 0
    cdef int shift = 0
    while at[0] < size and shift <= 14:
        length |= <Py_ssize_t>(p[at[0]] & 0x7F) << shift
        at[0] += 1
        if p[at[0] - 1] < 0x80:
            return length - 1
        shift += 7
    return -1


cdef object _read_topics(bytes frame, Py_ssize_t at, Py_ssize_t size, int version):
    """The batches of a request from its topics at ``at`` to its end; None: they are not plain."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t length, topics, partitions, count = 0
    cdef list found = []
    topics = _length(p, &at, size)
    if topics < 1:
        return None
    for _ in range(topics):
        length = 16 if version >= _topic_ids else _length(p, &at, size)
        if length < 1 or length > NAME_BYTES_MAX or at + length > size:
            return None
        topic = frame[at : at + length] if version >= _topic_ids else p[at : at + length].decode("utf-8")
        at += length
        partitions = _length(p, &at, size)
        count += partitions
        if partitions < 1 or count > _partitions_most:
            return None
        for _ in range(partitions):
            if at + 4 > size:
                return None
            index = <int>get32(p + at)
            at += 4
            length = _length(p, &at, size)
            if length < BATCH_HEADER or length > _batch_most or at + length >= size:
                return None
            if p[at + MAGIC_AT] != 2 or <Py_ssize_t>get32(p + at + 8) + 12 != length or p[at + length]:
                return None
            found.append((topic, index, frame[at : at + length]))
            at += length + 1
        if at >= size or p[at]:
            return None
        at += 1
    return found if at + 1 == size and not p[at] else None


def read_plain(bytes frame):
    """(version, correlation id, client id, whether acks is all, timeout in ms, batches) of a plain request whose frame,
    without the length, is ``frame``; a batch is (topic's name or id, partition, records). None: the request is not
    plain, or not valid."""
    cdef const unsigned char* p = <const unsigned char*>PyBytes_AS_STRING(frame)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(frame)
    cdef Py_ssize_t at = 10, length
    cdef int version, acks
    if size < 30 + BATCH_HEADER or size > _most or get16(p) != 0:
        return None
    version = get16(p + 2)
    if version < _first or version > _last:
        return None
    length = <short>get16(p + 8)
    if length < -1 or at + length + 30 > size:
        return None
    length = length if length > 0 else 0
    if p[at + length] or p[at + length + 1]:  # tagged fields, or a transactional id
        return None
    acks = <short>get16(p + at + length + 2)
    timeout = <int>get32(p + at + length + 4)
    if (acks != 1 and acks != -1) or timeout < 0:
        return None
    try:
        client_id = p[at : at + length].decode("utf-8")
        found = _read_topics(frame, at + length + 8, size, version)
    except UnicodeDecodeError:
        return None
    return None if found is None else (version, <int>get32(p + 4), client_id, acks == -1, timeout, found)


cdef unsigned char* _put_length(unsigned char* p, Py_ssize_t length) noexcept:
    """Write a compact length of up to 16,382."""
    length += 1
    if length > 0x7F:
        p[0] = <unsigned char>(length & 0x7F | 0x80)
        p += 1
        length >>= 7
    p[0] = <unsigned char>length
    return p + 1


def plain_answer(int version, int correlation_id, list batches, list outcomes):
    """The frame of the answer to a plain request whose ``batches`` (``read_plain``) were appended; an outcome is a
    tuple with the base offset and the log's start offset."""
    cdef Py_ssize_t count = len(batches), topics = 0, size = 4 + 4 + 1 + 2 + 4 + 1, i, end
    cdef list names = []
    cdef bytes name
    cdef object topic = None
    for i in range(count):
        if i and batches[i][0] is topic:
            names.append(None)
            continue
        topic = batches[i][0]
        name = topic if version >= _topic_ids else (<str>topic).encode()
        names.append(name)
        size += PyBytes_GET_SIZE(name) + 2 + 2 + 1
        topics += 1
    cdef bytes out = PyBytes_FromStringAndSize(NULL, size + count * RESULT_BYTES)
    cdef unsigned char* start = <unsigned char*>PyBytes_AS_STRING(out)
    cdef unsigned char* p = put32(start + 4, <unsigned int>correlation_id)
    p[0] = 0
    p = _put_length(p + 1, topics)
    for i in range(count):
        name = names[i]
        if name is not None:
            if i:
                p[0] = 0
                p += 1
            if version < _topic_ids:
                p = _put_length(p, PyBytes_GET_SIZE(name))
            memcpy(p, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
            p += PyBytes_GET_SIZE(name)
            end = i + 1
            while end < count and names[end] is None:
                end += 1
            p = _put_length(p, end - i)
        p = put32(p, <unsigned int><int>batches[i][1])
        p[0], p[1] = 0, 0
        p = put64(p + 2, <unsigned long long><long long>outcomes[i][0])
        p = put64(p, 0xFFFFFFFFFFFFFFFFu)
        p = put64(p, <unsigned long long><long long>outcomes[i][1])
        p[0], p[1], p[2] = 1, 0, 0
        p += 3
    p[0] = 0
    p = put32(p + 1, 0)
    p[0] = 0
    size = p + 1 - start
    put32(start, <unsigned int>(size - 4))
    return out[:size]
