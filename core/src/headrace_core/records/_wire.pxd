# cython: language_level=3
"""Record batch v2 at the level of C: every read is checked against the end of what it reads from; nothing needs the GIL.

Inlined into each module that cimports it. The rules are those of _pure.py, the reference; the layout is drawn in types.py.
"""

ctypedef const unsigned char* bytes_t

cdef extern from *:
    """
    static inline unsigned long long headrace_be64(const unsigned char *p) {
        unsigned long long v; __builtin_memcpy(&v, p, 8); return __builtin_bswap64(v);
    }
    static inline unsigned int headrace_be32(const unsigned char *p) {
        unsigned int v; __builtin_memcpy(&v, p, 4); return __builtin_bswap32(v);
    }
    static inline unsigned short headrace_be16(const unsigned char *p) {
        unsigned short v; __builtin_memcpy(&v, p, 2); return __builtin_bswap16(v);
    }
    static inline void headrace_put64(unsigned char *p, unsigned long long v) {
        v = __builtin_bswap64(v); __builtin_memcpy(p, &v, 8);
    }
    static inline void headrace_put32(unsigned char *p, unsigned int v) {
        v = __builtin_bswap32(v); __builtin_memcpy(p, &v, 4);
    }
    static inline void headrace_put16(unsigned char *p, unsigned short v) {
        v = __builtin_bswap16(v); __builtin_memcpy(p, &v, 2);
    }
    static inline int headrace_add64(long long a, long long b, long long *sum) {
        return __builtin_add_overflow(a, b, sum);
    }
    static inline int headrace_sub64(long long a, long long b, long long *difference) {
        return __builtin_sub_overflow(a, b, difference);
    }
    static inline unsigned long long headrace_zigzag(long long v) {
        return ((unsigned long long)v << 1) ^ (unsigned long long)(v >> 63);
    }
    static inline int headrace_varint_size(unsigned long long zigzag) {
        if (__builtin_expect(zigzag < 0x80, 1)) return 1;
        unsigned int bits = 64 - (unsigned int)__builtin_clzll(zigzag);
        return (int)((bits * 9 + 64) >> 6);  /* bits / 7, rounded up, for 1 to 64 */
    }
    static inline unsigned char *headrace_put_varint(unsigned char *p, unsigned long long zigzag) {
        if (__builtin_expect(zigzag < 0x80, 1)) { *p = (unsigned char)zigzag; return p + 1; }
        if (__builtin_expect(zigzag < 0x4000, 1)) {
            p[0] = (unsigned char)(zigzag | 0x80); p[1] = (unsigned char)(zigzag >> 7); return p + 2;
        }
        while (zigzag > 0x7F) { *p++ = (unsigned char)(zigzag | 0x80); zigzag >>= 7; }
        *p++ = (unsigned char)zigzag;
        return p;
    }
    /* 0, or the error: 1 past the end, 2 too long for its type. */
    static inline int headrace_varint64(const unsigned char **p, const unsigned char *end, long long *out) {
        unsigned long long v = 0; int shift = 0;
        for (;;) {
            if (*p >= end) return 1;
            unsigned char b = *(*p)++;
            if (shift == 63 && b > 1) return 2;
            v |= (unsigned long long)(b & 0x7F) << shift;
            if (b < 0x80) break;
            shift += 7;
        }
        *out = (long long)(v >> 1) ^ -(long long)(v & 1);
        return 0;
    }
    static inline int headrace_varint32_slow(const unsigned char **p, const unsigned char *end, int *out) {
        unsigned int v = 0; int shift = 0;
        for (;;) {
            if (*p >= end) return 1;
            unsigned char b = *(*p)++;
            if (shift == 28 && b > 0x0F) return 2;
            v |= (unsigned int)(b & 0x7F) << shift;
            if (b < 0x80) break;
            shift += 7;
        }
        *out = (int)(v >> 1) ^ -(int)(v & 1);
        return 0;
    }
    static inline int headrace_varint32(const unsigned char **p, const unsigned char *end, int *out) {
        if (__builtin_expect(*p < end && **p < 0x80, 1)) {
            unsigned int v = *(*p)++;
            *out = (int)(v >> 1) ^ -(int)(v & 1);
            return 0;
        }
        return headrace_varint32_slow(p, end, out);
    }
    """
    unsigned long long be64 "headrace_be64"(bytes_t p) noexcept nogil
    unsigned int be32 "headrace_be32"(bytes_t p) noexcept nogil
    unsigned short be16 "headrace_be16"(bytes_t p) noexcept nogil
    void put64 "headrace_put64"(unsigned char* p, unsigned long long v) noexcept nogil
    void put32 "headrace_put32"(unsigned char* p, unsigned int v) noexcept nogil
    void put16 "headrace_put16"(unsigned char* p, unsigned short v) noexcept nogil
    bint add_overflows "headrace_add64"(long long a, long long b, long long* sum) noexcept nogil
    bint sub_overflows "headrace_sub64"(long long a, long long b, long long* difference) noexcept nogil
    unsigned long long zigzag "headrace_zigzag"(long long v) noexcept nogil
    int varint_size "headrace_varint_size"(unsigned long long zigzagged) noexcept nogil
    unsigned char* put_varint "headrace_put_varint"(unsigned char* p, unsigned long long zigzagged) noexcept nogil
    int get_varint32 "headrace_varint32"(bytes_t* p, bytes_t end, int* out) noexcept nogil
    int get_varint64 "headrace_varint64"(bytes_t* p, bytes_t end, long long* out) noexcept nogil
    bint likely "__builtin_expect"(bint condition, long expected) noexcept nogil


cdef enum:
    HEADER_SIZE = 61
    CRC_FROM = 21
    RECORD_SIZE_MIN = 7
    COMPRESSION_BITS = 0x07
    TIMESTAMP_TYPE_FLAG = 0x08
    TRANSACTIONAL_FLAG = 0x10
    CONTROL_FLAG = 0x20


# What can be wrong with a record; _faults.py holds the sentences.
cdef enum Fault:
    SOUND = 0
    VARINT_PAST_END = 1
    VARINT_TOO_LONG = 2
    RECORD_LENGTH = 3
    FIELD_LENGTH = 4
    HEADER_COUNT = 5
    HEADER_NAME = 6
    RECORD_END = 7
    OFFSET_DELTA = 8
    TIMESTAMP_DELTA = 9
    BYTES_AFTER_LAST = 10
    COUNT = 11
    KEY_MISSING = 12
    TIMESTAMP_RANGE = 13


cdef struct BatchFields:
    long long base_offset
    Py_ssize_t size
    int batch_length
    int leader_epoch
    unsigned int crc
    int attributes
    int last_offset_delta
    long long base_timestamp
    long long max_timestamp
    long long producer_id
    int producer_epoch
    int base_sequence
    int record_count


cdef struct RecordView:
    long long timestamp_ms
    long long offset
    int offset_delta
    bytes_t key
    int key_size  # -1: null
    bytes_t value
    int value_size
    bytes_t headers  # the first record, after the record count
    int header_count


cdef struct Walk:
    bytes_t cursor
    bytes_t end
    long long base_offset
    long long base_timestamp
    long long append_time  # the timestamp of every record if has_append_time is set
    bint has_append_time
    int last_offset_delta
    int max_headers
    int count
    int index  # of the next record; after a fault, of the faulty record
    int last_delta


cdef inline bint parse_header(bytes_t p, Py_ssize_t available, BatchFields* out) noexcept nogil:
    """False when batches.read_header would raise. It does not check that the whole batch is present."""
    if available < HEADER_SIZE or p[16] != 2:
        return False
    out.base_offset = <long long>be64(p)
    out.batch_length = <int>be32(p + 8)
    out.leader_epoch = <int>be32(p + 12)
    out.crc = be32(p + 17)
    out.attributes = <short>be16(p + 21)
    out.last_offset_delta = <int>be32(p + 23)
    out.base_timestamp = <long long>be64(p + 27)
    out.max_timestamp = <long long>be64(p + 35)
    out.producer_id = <long long>be64(p + 43)
    out.producer_epoch = <short>be16(p + 51)
    out.base_sequence = <int>be32(p + 53)
    out.record_count = <int>be32(p + 57)
    out.size = <Py_ssize_t>out.batch_length + 12
    return (
        out.batch_length >= HEADER_SIZE - 12
        and (out.attributes & COMPRESSION_BITS) <= 4
        and out.last_offset_delta >= 0
        and out.base_offset >= 0
        and out.base_offset <= <long long>0x7FFFFFFFFFFFFFFF - out.last_offset_delta - 1
        and 0 <= out.record_count <= <long long>out.last_offset_delta + 1
    )


cdef inline void write_header(unsigned char* p, const BatchFields* batch) noexcept nogil:
    """Write the 61-byte header of a batch of batch.size bytes, without the CRC."""
    put64(p, batch.base_offset)
    put32(p + 8, <unsigned int>(batch.size - 12))
    put32(p + 12, batch.leader_epoch)
    p[16] = 2
    put32(p + 17, 0)
    put16(p + 21, batch.attributes)
    put32(p + 23, batch.last_offset_delta)
    put64(p + 27, batch.base_timestamp)
    put64(p + 35, batch.max_timestamp)
    put64(p + 43, batch.producer_id)
    put16(p + 51, batch.producer_epoch)
    put32(p + 53, batch.base_sequence)
    put32(p + 57, batch.record_count)


cdef inline int begin_walk(
    Walk* walk, const BatchFields* batch, bytes_t body, Py_ssize_t size, int max_records, int max_headers
) noexcept nogil:
    """Set up the walk over the records of a batch, uncompressed in body. A Fault."""
    walk.cursor = body
    walk.end = body + size
    walk.base_offset = batch.base_offset
    walk.base_timestamp = batch.base_timestamp
    walk.append_time = batch.max_timestamp
    walk.has_append_time = (batch.attributes & TIMESTAMP_TYPE_FLAG) != 0
    walk.last_offset_delta = batch.last_offset_delta
    walk.max_headers = max_headers
    walk.count = batch.record_count
    walk.index = 0
    walk.last_delta = -1
    if batch.record_count > max_records or batch.record_count > size // RECORD_SIZE_MIN:
        return COUNT
    if batch.record_count == 0 and size:
        return BYTES_AFTER_LAST
    return SOUND


cdef inline int skip_headers(bytes_t* cursor, bytes_t end, int count) noexcept nogil:
    """Check ``count`` headers and step over them. A Fault."""
    cdef bytes_t p = cursor[0]
    cdef int size = 0
    cdef int fault
    for _ in range(count):
        fault = get_varint32(&p, end, &size)
        if fault:
            return fault
        if size < 0:
            return HEADER_NAME if size == -1 else FIELD_LENGTH
        if size > end - p:
            return FIELD_LENGTH
        p += size
        fault = get_varint32(&p, end, &size)
        if fault:
            return fault
        if size < -1 or size > end - p:
            return FIELD_LENGTH
        if size > 0:
            p += size
    cursor[0] = p
    return SOUND


cdef inline int step(Walk* walk, RecordView* out) noexcept nogil:
    """Read the next record (the caller knows that there is one) and check all of it. A Fault."""
    cdef bytes_t p = walk.cursor
    cdef bytes_t end
    cdef int size = 0
    cdef int fault
    cdef long long delta = 0
    fault = get_varint32(&p, walk.end, &size)
    if fault:
        return fault
    if size < RECORD_SIZE_MIN - 1 or size > walk.end - p:
        return RECORD_LENGTH
    end = p + size
    p += 1  # attributes: no bit has a meaning
    fault = get_varint64(&p, end, &delta)
    if fault:
        return fault
    fault = get_varint32(&p, end, &out.offset_delta)
    if fault:
        return fault
    fault = get_varint32(&p, end, &out.key_size)
    if fault:
        return fault
    out.key = p
    if out.key_size != -1:
        if out.key_size < -1 or out.key_size > end - p:
            return FIELD_LENGTH
        p += out.key_size
    fault = get_varint32(&p, end, &out.value_size)
    if fault:
        return fault
    out.value = p
    if out.value_size != -1:
        if out.value_size < -1 or out.value_size > end - p:
            return FIELD_LENGTH
        p += out.value_size
    fault = get_varint32(&p, end, &out.header_count)
    if fault:
        return fault
    out.headers = p
    if out.header_count:
        if out.header_count < 0 or out.header_count > (end - p) // 2 or out.header_count > walk.max_headers:
            return HEADER_COUNT
        fault = skip_headers(&p, end, out.header_count)
        if fault:
            return fault
    if p != end:
        return RECORD_END
    if out.offset_delta <= walk.last_delta or out.offset_delta > walk.last_offset_delta:
        return OFFSET_DELTA
    if add_overflows(walk.base_timestamp, delta, &out.timestamp_ms):
        return TIMESTAMP_DELTA
    if walk.has_append_time:
        out.timestamp_ms = walk.append_time
    walk.last_delta = out.offset_delta
    out.offset = walk.base_offset + out.offset_delta
    walk.cursor = end
    walk.index += 1
    if walk.index == walk.count and end != walk.end:
        return BYTES_AFTER_LAST
    return SOUND
