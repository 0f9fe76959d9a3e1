# cython: language_level=3, boundscheck=False, wraparound=False
"""Kafka's hash of a record key (murmur2), for a single key and for an Arrow column of keys. See _pure.murmur2."""

cdef extern from *:
    """
    static inline unsigned int headrace_word(const unsigned char *p) {
        unsigned int v; __builtin_memcpy(&v, p, 4);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap32(v);
    #endif
        return v;
    }
    """
    unsigned int word "headrace_word"(const unsigned char* p) noexcept nogil


cdef unsigned int hash_key(const unsigned char* data, Py_ssize_t length) noexcept nogil:
    cdef unsigned int m = 0x5BD1E995
    cdef unsigned int h = <unsigned int>0x9747B28C ^ <unsigned int>length
    cdef unsigned int k
    cdef Py_ssize_t left = length
    while left >= 4:
        k = word(data) * m
        k = (k ^ (k >> 24)) * m
        h = h * m ^ k
        data += 4
        left -= 4
    if left >= 3:
        h ^= <unsigned int>data[2] << 16
    if left >= 2:
        h ^= <unsigned int>data[1] << 8
    if left >= 1:
        h ^= data[0]
        h *= m
    h = (h ^ (h >> 13)) * m
    return h ^ (h >> 15)


def murmur2(data):
    """Kafka's hash of a key, as an unsigned 32-bit number."""
    cdef const unsigned char[::1] view = data
    if view.shape[0] == 0:
        return hash_key(b"", 0)
    return hash_key(&view[0], view.shape[0])


def key_partitions(
    size_t offsets, size_t data, size_t validity, Py_ssize_t first, Py_ssize_t rows, unsigned int count, out not None
):
    """Return the partition of each key of a large_binary Arrow array, as int32; -1 for a null key. The arguments are
    the addresses of the array's buffers."""
    cdef const long long* ends = <const long long*>offsets
    cdef const unsigned char* base = <const unsigned char*>data
    cdef const unsigned char* valid = <const unsigned char*>validity
    cdef unsigned char[::1] view = out
    cdef int* result
    cdef Py_ssize_t row, at
    if view.shape[0] < rows * 4:
        raise ValueError("murmur2: out has less than 4 bytes for each key")
    if rows == 0:
        return
    result = <int*>&view[0]
    with nogil:
        for row in range(rows):
            at = first + row
            if valid is not NULL and not (valid[at >> 3] >> (at & 7)) & 1:
                result[row] = -1
            else:
                result[row] = <int>((hash_key(base + ends[at], ends[at + 1] - ends[at]) & 0x7FFFFFFF) % count)
