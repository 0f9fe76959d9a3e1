# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compaction, record by record: the offset map and the filter. _pure.py is the readable version and the tests' oracle.

The offset map is one hash table of 24-byte slots (a 128-bit hash of the key, and an offset) with open addressing and
linear probing. The memory of the map is allocated once and never grows. The hash is SipHash-2-4 with 128 bits of output
(Aumasson and Bernstein) and a secret key. If two record keys had equal hashes, compaction would drop a record that must
stay. Without the secret, no client can find two record keys with equal hashes.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.limits cimport LLONG_MIN
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from headrace_core.records._batches cimport check_crc_of, decompressed, header_of, parse_whole
from headrace_core.records._wire cimport (
    COMPRESSION_BITS,
    CONTROL_FLAG,
    CRC_FROM,
    HEADER_SIZE,
    SOUND,
    TIMESTAMP_DELTA,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchFields,
    RecordView,
    Walk,
    be16,
    begin_walk,
    bytes_t,
    get_varint32,
    get_varint64,
    put32,
    put_varint,
    step,
    sub_overflows,
    varint_size,
    write_header,
    zigzag,
)

from crc32c import crc32c

from headrace_core.records._faults import invalid_record
from headrace_core.records.compression import compress
from headrace_core.records.types import DEFAULT_LIMITS, Compression

from .horizon import NO_CONTROL_TYPE, Verdict

cdef enum:
    PyBUF_READ = 0x100
    HORIZON_FLAG = 0x40
    SLOT_BYTES = 24
    # Size in bytes below which releasing the GIL costs more than it gains.
    NOGIL_BYTES_MIN = 2048

cdef extern from *:
    """
    #include <stdlib.h>
    #include <string.h>
    #ifdef __linux__
    #include <sys/mman.h>
    #endif
    #define HEADRACE_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
    #define HEADRACE_SIPROUND do { \
        v0 += v1; v1 = HEADRACE_ROTL(v1, 13); v1 ^= v0; v0 = HEADRACE_ROTL(v0, 32); \
        v2 += v3; v3 = HEADRACE_ROTL(v3, 16); v3 ^= v2; \
        v0 += v3; v3 = HEADRACE_ROTL(v3, 21); v3 ^= v0; \
        v2 += v1; v1 = HEADRACE_ROTL(v1, 17); v1 ^= v2; v2 = HEADRACE_ROTL(v2, 32); } while (0)
    static inline unsigned long long headrace_le64(const unsigned char *p) {
        unsigned long long v; __builtin_memcpy(&v, p, 8);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap64(v);
    #endif
        return v;
    }
    static inline void headrace_siphash128(
        const unsigned char *in, size_t size, unsigned long long k0, unsigned long long k1, unsigned long long *out
    ) {
        unsigned long long v0 = 0x736f6d6570736575ULL ^ k0, v1 = 0x646f72616e646f6dULL ^ k1;
        unsigned long long v2 = 0x6c7967656e657261ULL ^ k0, v3 = 0x7465646279746573ULL ^ k1;
        unsigned long long m, b = ((unsigned long long)size) << 56;
        const unsigned char *end = in + (size & ~(size_t)7);
        v1 ^= 0xee;
        for (; in != end; in += 8) {
            m = headrace_le64(in);
            v3 ^= m; HEADRACE_SIPROUND; HEADRACE_SIPROUND; v0 ^= m;
        }
        for (size_t i = 0; i < (size & 7); i++) b |= ((unsigned long long)in[i]) << (8 * i);
        v3 ^= b; HEADRACE_SIPROUND; HEADRACE_SIPROUND; v0 ^= b;
        v2 ^= 0xee;
        HEADRACE_SIPROUND; HEADRACE_SIPROUND; HEADRACE_SIPROUND; HEADRACE_SIPROUND;
        out[0] = v0 ^ v1 ^ v2 ^ v3;
        v1 ^= 0xdd;
        HEADRACE_SIPROUND; HEADRACE_SIPROUND; HEADRACE_SIPROUND; HEADRACE_SIPROUND;
        out[1] = v0 ^ v1 ^ v2 ^ v3;
    }
    /* A large table uses the kernel's huge pages if available, because lookups hit all parts of the table. Clearing a
       table gives its memory back, so that an idle cleaner has none. */
    #define HEADRACE_LARGE ((size_t)4 << 20)
    static void *headrace_table_new(size_t size) {
    #ifdef __linux__
        if (size >= HEADRACE_LARGE) {
            void *table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (table == MAP_FAILED) return NULL;
            madvise(table, size, MADV_HUGEPAGE);
            return table;
        }
    #endif
        return calloc(size, 1);
    }
    static void headrace_table_clear(void *table, size_t size) {
    #ifdef __linux__
        if (size >= HEADRACE_LARGE && madvise(table, size, MADV_DONTNEED) == 0) return;
    #endif
        memset(table, 0, size);
    }
    static void headrace_table_free(void *table, size_t size) {
    #ifdef __linux__
        if (size >= HEADRACE_LARGE) { if (table) munmap(table, size); return; }
    #endif
        free(table);
    }
    /* The upper half of a product: uniform over any number of slots, without a division. */
    static inline size_t headrace_slot_of(unsigned long long hashed, size_t slots) {
        return (size_t)(((unsigned __int128)hashed * slots) >> 64);
    }
    """
    void siphash128 "headrace_siphash128"(
        bytes_t data, size_t size, unsigned long long k0, unsigned long long k1, unsigned long long* out
    ) noexcept nogil
    unsigned long long le64 "headrace_le64"(bytes_t p) noexcept nogil
    void* new_table "headrace_table_new"(size_t size) noexcept nogil
    void clear_table "headrace_table_clear"(void* table, size_t size) noexcept nogil
    void free_table "headrace_table_free"(void* table, size_t size) noexcept nogil
    size_t slot_of "headrace_slot_of"(unsigned long long hashed, size_t slots) noexcept nogil


def key_hash(bytes key, bytes secret):
    """Hash a record's key to the 16 bytes that represent the key in the map."""
    cdef unsigned long long out[2]
    cdef bytes_t k = secret
    siphash128(<bytes_t>key, len(key), le64(k), le64(k + 8), out)
    return int(out[0]).to_bytes(8, "little") + int(out[1]).to_bytes(8, "little")


cdef struct Slot:
    unsigned long long low
    unsigned long long high
    long long next_offset  # offset + 1; 0: the slot is free


cdef class OffsetMap:
    """See _pure.OffsetMap."""

    cdef Slot* _slots
    cdef size_t _slot_count
    cdef readonly Py_ssize_t capacity
    cdef readonly Py_ssize_t size
    cdef unsigned long long _k0
    cdef unsigned long long _k1

    def __cinit__(self, Py_ssize_t memory_bytes, bytes secret, double load_factor=0.9):
        cdef bytes_t key = secret
        if len(secret) != 16:
            raise ValueError("the hash secret must have 16 bytes")
        self._slot_count = max(memory_bytes // SLOT_BYTES, 2)
        # One slot always stays free, because a free slot ends the search for a missing key.
        self.capacity = max(min(<Py_ssize_t>(self._slot_count * load_factor), <Py_ssize_t>self._slot_count - 1), 1)
        self._k0 = le64(key)
        self._k1 = le64(key + 8)
        self._slots = <Slot*>new_table(self._slot_count * sizeof(Slot))
        if self._slots is NULL:
            raise MemoryError(f"cannot allocate {memory_bytes} bytes for the offset map of compaction (log.cleaner.dedupe.buffer.size)")

    def __dealloc__(self):
        free_table(self._slots, self._slot_count * sizeof(Slot))

    def clear(self):
        clear_table(self._slots, self._slot_count * sizeof(Slot))
        self.size = 0

    cdef Slot* _find(self, bytes_t key, size_t size) noexcept nogil:
        """Find the slot of a key, or the free slot where the key would be stored."""
        cdef unsigned long long hashed[2]
        cdef size_t at
        cdef Slot* slot
        siphash128(key, size, self._k0, self._k1, hashed)
        at = slot_of(hashed[0], self._slot_count)
        while True:
            slot = self._slots + at
            if slot.next_offset == 0:
                slot.low = hashed[0]
                slot.high = hashed[1]
                return slot
            if slot.low == hashed[0] and slot.high == hashed[1]:
                return slot
            at += 1
            if at == self._slot_count:
                at = 0

    cdef void _put(self, bytes_t key, size_t size, long long offset) noexcept nogil:
        cdef Slot* slot = self._find(key, size)
        if slot.next_offset == 0:
            self.size += 1
        slot.next_offset = offset + 1

    cdef long long _get(self, bytes_t key, size_t size) noexcept nogil:
        return self._find(key, size).next_offset - 1

    def put(self, bytes key, long long offset):
        if self.size >= self.capacity:
            raise ValueError(f"the offset map is full: {self.size} keys")
        self._put(<bytes_t>key, len(key), offset)

    def get(self, bytes key):
        return self._get(<bytes_t>key, len(key))



cdef int _control_type(bytes_t p, const BatchFields* batch) except -2:
    """See _pure._control_type."""
    cdef Walk walk
    cdef RecordView record
    cdef int fault
    if batch.record_count == 0 or batch.attributes & COMPRESSION_BITS:
        return NO_CONTROL_TYPE
    fault = begin_walk(
        &walk, batch, p + HEADER_SIZE, batch.size - HEADER_SIZE, DEFAULT_LIMITS.max_records, DEFAULT_LIMITS.max_headers
    )
    if not fault:
        fault = step(&walk, &record)
    if fault:
        return NO_CONTROL_TYPE
    return <short>be16(record.key + 2) if record.key_size >= 4 else NO_CONTROL_TYPE


def scan_batches(data, observe):
    """See _pure.scan_batches."""
    cdef Py_buffer view
    cdef BatchFields batch
    cdef bytes_t p
    cdef Py_ssize_t position = 0
    cdef int control_type
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <bytes_t>view.buf
        while view.len - position >= HEADER_SIZE:
            parse_whole(data, p, view.len, position, False, &batch)
            if batch.attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG):
                control_type = NO_CONTROL_TYPE
                if batch.attributes & CONTROL_FLAG:
                    if batch.size > view.len - position:
                        break
                    check_crc_of(data, p, position, &batch)
                    control_type = _control_type(p + position, &batch)
                observe(header_of(&batch), control_type)
            position += batch.size
    finally:
        PyBuffer_Release(&view)
    return position


cdef class KeyIndexer:
    """See _pure.KeyIndexer."""

    cdef OffsetMap _map
    cdef object _judge
    cdef long long _start
    cdef Py_ssize_t _bytes_max
    cdef int _max_records
    cdef int _max_headers
    cdef public long long latest
    cdef readonly bint is_full
    cdef readonly long long records_read

    def __init__(self, OffsetMap offset_map, long long start_offset, judge):
        self._map = offset_map
        self._judge = judge
        self._start = start_offset
        self.latest = start_offset - 1
        self._bytes_max = DEFAULT_LIMITS.max_decompressed_bytes
        self._max_records = DEFAULT_LIMITS.max_records
        self._max_headers = DEFAULT_LIMITS.max_headers

    def feed(self, data):
        cdef Py_buffer view
        cdef BatchFields batch
        cdef bytes_t p
        cdef Py_ssize_t position = 0
        cdef long long last_offset
        cdef bint wanted
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            p = <bytes_t>view.buf
            while view.len - position >= HEADER_SIZE and not self.is_full:
                parse_whole(data, p, view.len, position, False, &batch)
                if batch.size > view.len - position:
                    break
                check_crc_of(data, p, position, &batch)
                last_offset = batch.base_offset + batch.last_offset_delta
                wanted = last_offset >= self._start and batch.record_count > 0
                if batch.attributes & CONTROL_FLAG:
                    self._judge(header_of(&batch), _control_type(p + position, &batch))
                    wanted = False
                elif batch.attributes & TRANSACTIONAL_FLAG:
                    if self._judge(header_of(&batch), NO_CONTROL_TYPE) & 1:
                        wanted = False
                if wanted:
                    if self._map.size + batch.record_count > self._map.capacity:
                        self.is_full = True
                        break
                    self._index(p + position, &batch)
                if last_offset > self.latest:
                    self.latest = last_offset
                position += batch.size
        finally:
            PyBuffer_Release(&view)
        return position

    cdef int _index(self, bytes_t p, const BatchFields* batch) except -1:
        cdef Py_buffer body_view
        cdef Walk walk
        cdef int fault
        if not batch.attributes & COMPRESSION_BITS:
            fault = self._walk(&walk, batch, p + HEADER_SIZE, batch.size - HEADER_SIZE)
        else:
            PyObject_GetBuffer(
                decompressed(p + HEADER_SIZE, batch.size - HEADER_SIZE, batch, self._bytes_max), &body_view, PyBUF_SIMPLE
            )
            try:
                fault = self._walk(&walk, batch, <bytes_t>body_view.buf, body_view.len)
            finally:
                PyBuffer_Release(&body_view)
        if fault:
            raise invalid_record(fault, walk.index, batch.base_offset)
        self.records_read += batch.record_count
        return 0

    cdef int _walk(self, Walk* walk, const BatchFields* batch, bytes_t body, Py_ssize_t size):
        cdef int fault = begin_walk(walk, batch, body, size, self._max_records, self._max_headers)
        if fault:
            return fault
        if size < NOGIL_BYTES_MIN:
            return self._walk_records(walk)
        with nogil:
            fault = self._walk_records(walk)
        return fault

    cdef int _walk_records(self, Walk* walk) noexcept nogil:
        cdef RecordView record
        cdef int fault
        while walk.index < walk.count:
            fault = step(walk, &record)
            if fault:
                return fault
            if record.key_size >= 0 and record.offset >= self._start:
                self._map._put(record.key, record.key_size, record.offset)
        return SOUND


cdef struct Span:
    bytes_t start
    bytes_t end
    long long timestamp_ms


cdef class BatchFilter:
    """See _pure.BatchFilter."""

    cdef OffsetMap _map
    cdef object _judge
    cdef dict _last_offsets
    cdef dict _marker_epochs
    cdef long long _latest
    cdef long long _keep_next
    cdef long long _now
    cdef long long _horizon
    cdef Py_ssize_t _bytes_max
    cdef int _max_records
    cdef int _max_headers
    cdef bytearray _out
    cdef list _metas
    cdef Span* _spans
    cdef Py_ssize_t _span_count
    cdef Py_ssize_t _span_room
    cdef long long _largest
    cdef bint _has_tombstone
    cdef readonly long long records_read
    cdef readonly long long records_kept
    cdef readonly long long records_without_key

    def __init__(
        self,
        OffsetMap offset_map,
        *,
        long long latest,
        long long keep_next_offset,
        judge,
        dict last_offsets,
        dict marker_epochs,
        long long now_ms,
        long long horizon_ms,
    ):
        self._map = offset_map
        self._latest = latest
        self._keep_next = keep_next_offset
        self._judge = judge
        self._last_offsets = last_offsets
        self._marker_epochs = marker_epochs
        self._now = now_ms
        self._horizon = horizon_ms
        self._out = bytearray()
        self._metas = []
        self._bytes_max = DEFAULT_LIMITS.max_decompressed_bytes
        self._max_records = DEFAULT_LIMITS.max_records
        self._max_headers = DEFAULT_LIMITS.max_headers

    def __dealloc__(self):
        free(self._spans)

    def take(self):
        out, metas = self._out, self._metas
        self._out, self._metas = bytearray(), []
        return out, metas

    def feed(self, data):
        cdef Py_buffer view
        cdef BatchFields batch
        cdef bytes_t p
        cdef Py_ssize_t position = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            p = <bytes_t>view.buf
            while view.len - position >= HEADER_SIZE:
                parse_whole(data, p, view.len, position, False, &batch)
                if batch.size > view.len - position:
                    break
                check_crc_of(data, p, position, &batch)
                self._one(p + position, &batch)
                position += batch.size
        finally:
            PyBuffer_Release(&view)
        return position

    cdef bint _must_stay(self, const BatchFields* batch, long long last_offset):
        """Whether a batch's header stays even if no record of the batch stays."""
        if last_offset + 1 == self._keep_next:
            return True
        if batch.producer_id < 0:
            return False
        found = self._last_offsets.get(batch.producer_id)
        if found is not None:
            return <long long>found == last_offset
        if not batch.attributes & CONTROL_FLAG or not self._marker_epochs:
            return False
        found = self._marker_epochs.get(batch.producer_id)
        return found is not None and <int>found == batch.producer_epoch

    cdef int _one(self, bytes_t p, const BatchFields* batch) except -1:
        cdef long long last_offset = batch.base_offset + batch.last_offset_delta
        cdef int verdict = 0
        cdef bint is_control = (batch.attributes & CONTROL_FLAG) != 0
        if batch.attributes & (CONTROL_FLAG | TRANSACTIONAL_FLAG):
            verdict = self._judge(header_of(batch), _control_type(p, batch) if is_control else NO_CONTROL_TYPE)
        self.records_read += batch.record_count
        if last_offset > self._latest:  # a batch beyond this cleaning stays for the next cleaning
            self.records_kept += batch.record_count
            return self._append(p, batch.size, batch)
        if batch.record_count == 0 or verdict & 1:
            if self._must_stay(batch, last_offset):
                if batch.record_count == 0:
                    return self._append(p, batch.size, batch)
                return self._append_empty(batch)
            return 0
        if is_control and not (verdict & 2 and not batch.attributes & HORIZON_FLAG):
            self.records_kept += batch.record_count
            return self._append(p, batch.size, batch)
        return self._filter(p, batch, is_control, last_offset)

    cdef int _filter(self, bytes_t p, const BatchFields* batch, bint is_control, long long last_offset) except -1:
        cdef Py_buffer body_view
        cdef Walk walk
        cdef int fault
        cdef bint has_view = False
        cdef bint sets_horizon
        try:
            if not batch.attributes & COMPRESSION_BITS:
                fault = self._walk(&walk, batch, p + HEADER_SIZE, batch.size - HEADER_SIZE, is_control)
            else:
                PyObject_GetBuffer(
                    decompressed(p + HEADER_SIZE, batch.size - HEADER_SIZE, batch, self._bytes_max),
                    &body_view,
                    PyBUF_SIMPLE,
                )
                has_view = True
                fault = self._walk(&walk, batch, <bytes_t>body_view.buf, body_view.len, is_control)
            if fault:
                raise invalid_record(fault, walk.index, batch.base_offset)
            self.records_kept += self._span_count
            sets_horizon = (self._has_tombstone or is_control) and not batch.attributes & HORIZON_FLAG
            if self._span_count == 0:
                return self._append_empty(batch) if self._must_stay(batch, last_offset) else 0
            if self._span_count == batch.record_count and not sets_horizon:
                return self._append(p, batch.size, batch)
            return self._append_rebuilt(batch, sets_horizon)
        finally:
            if has_view:
                PyBuffer_Release(&body_view)

    cdef int _walk(self, Walk* walk, const BatchFields* batch, bytes_t body, Py_ssize_t size, bint keep_all) except -1:
        cdef int fault = begin_walk(walk, batch, body, size, self._max_records, self._max_headers)
        cdef Span* spans
        if fault:  # return before memory is reserved for the header's record count
            return fault
        if batch.record_count > self._span_room:
            spans = <Span*>realloc(self._spans, batch.record_count * sizeof(Span))
            if spans is NULL:
                raise MemoryError(f"no memory for the {batch.record_count} records of one batch")
            self._spans = spans
            self._span_room = batch.record_count
        self._span_count = 0
        self._largest = LLONG_MIN  # times before 1970 are valid too
        self._has_tombstone = False
        cdef bint drops_tombstones = (batch.attributes & HORIZON_FLAG) != 0 and self._now >= batch.base_timestamp
        if size < NOGIL_BYTES_MIN:
            return self._walk_records(walk, keep_all, drops_tombstones)
        with nogil:
            fault = self._walk_records(walk, keep_all, drops_tombstones)
        return fault

    cdef int _walk_records(self, Walk* walk, bint keep_all, bint drops_tombstones) noexcept nogil:
        cdef RecordView record
        cdef Span* span
        cdef bytes_t start
        cdef int fault
        while walk.index < walk.count:
            start = walk.cursor
            fault = step(walk, &record)
            if fault:
                return fault
            if not keep_all:
                if record.key_size < 0:
                    self.records_without_key += 1
                    continue
                if record.offset < self._map._get(record.key, record.key_size):
                    continue
                if record.value_size < 0:
                    if drops_tombstones:
                        continue
                    self._has_tombstone = True
            span = self._spans + self._span_count
            span.start = start
            span.end = walk.cursor
            span.timestamp_ms = record.timestamp_ms
            self._span_count += 1
            if record.timestamp_ms > self._largest:
                self._largest = record.timestamp_ms
        return SOUND

    # ---------------------------------------------------------------- output

    cdef int _note(self, const BatchFields* batch, Py_ssize_t size) except -1:
        cdef long long timestamp_ms = batch.max_timestamp if batch.record_count else -1
        self._metas.append((size, batch.base_offset, batch.base_offset + batch.last_offset_delta, timestamp_ms))
        return 0

    cdef unsigned char* _room(self, Py_ssize_t size) except NULL:
        cdef Py_ssize_t used = PyByteArray_GET_SIZE(self._out)
        PyByteArray_Resize(self._out, used + size)
        return <unsigned char*>PyByteArray_AS_STRING(self._out) + used

    cdef int _append(self, bytes_t p, Py_ssize_t size, const BatchFields* batch) except -1:
        memcpy(self._room(size), p, size)
        return self._note(batch, size)

    cdef int _append_empty(self, const BatchFields* batch) except -1:
        """Append only a batch's header, which keeps the base offset, the last offset and the producer's last
        sequence."""
        cdef BatchFields empty = batch[0]
        empty.size = HEADER_SIZE
        empty.attributes &= ~(COMPRESSION_BITS | HORIZON_FLAG)
        empty.base_timestamp = -1
        empty.record_count = 0
        return self._seal(&empty, NULL)

    cdef int _append_rebuilt(self, const BatchFields* batch, bint sets_horizon) except -1:
        cdef BatchFields rebuilt = batch[0]
        cdef bytearray records
        cdef Py_buffer packed
        rebuilt.record_count = <int>self._span_count
        if not batch.attributes & TIMESTAMP_TYPE_FLAG:
            rebuilt.max_timestamp = self._largest
        if sets_horizon:
            rebuilt.attributes |= HORIZON_FLAG
            rebuilt.base_timestamp = self._horizon
            records = self._moved_records(batch)
        else:
            records = self._kept_records()
        if not batch.attributes & COMPRESSION_BITS:
            rebuilt.size = HEADER_SIZE + PyByteArray_GET_SIZE(records)
            return self._seal(&rebuilt, <bytes_t>PyByteArray_AS_STRING(records))
        body = compress(Compression(batch.attributes & COMPRESSION_BITS), records)
        PyObject_GetBuffer(body, &packed, PyBUF_SIMPLE)
        try:
            rebuilt.size = HEADER_SIZE + packed.len
            return self._seal(&rebuilt, <bytes_t>packed.buf)
        finally:
            PyBuffer_Release(&packed)

    cdef bytearray _kept_records(self):
        """Append the kept records with unchanged bytes: base offset, base timestamp and deltas stay the same."""
        cdef bytearray records = bytearray()
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t index
        cdef Span* span
        cdef unsigned char* p
        for index in range(self._span_count):
            size += self._spans[index].end - self._spans[index].start
        PyByteArray_Resize(records, size)
        p = <unsigned char*>PyByteArray_AS_STRING(records)
        for index in range(self._span_count):
            span = self._spans + index
            memcpy(p, span.start, span.end - span.start)
            p += span.end - span.start
        return records

    cdef bytearray _moved_records(self, const BatchFields* batch):
        """Append the kept records with timestamp deltas relative to the delete horizon."""
        cdef bytearray records = bytearray()
        cdef Py_ssize_t size = 0
        cdef Py_ssize_t index
        cdef Span* span
        cdef unsigned char* p
        cdef bytes_t source
        cdef unsigned char attributes
        cdef int length = 0
        cdef long long delta = 0
        cdef unsigned long long moved
        for index in range(self._span_count):
            size += self._spans[index].end - self._spans[index].start + 16  # room for a longer delta and length
        PyByteArray_Resize(records, size)
        p = <unsigned char*>PyByteArray_AS_STRING(records)
        for index in range(self._span_count):
            span = self._spans + index
            source = span.start
            get_varint32(&source, span.end, &length)
            attributes = source[0]
            source += 1
            get_varint64(&source, span.end, &delta)
            if sub_overflows(span.timestamp_ms, self._horizon, &delta):
                raise invalid_record(TIMESTAMP_DELTA, index, batch.base_offset)
            moved = zigzag(delta)
            p = put_varint(p, zigzag(1 + varint_size(moved) + (span.end - source)))
            p[0] = attributes
            p = put_varint(p + 1, moved)
            memcpy(p, source, span.end - source)
            p += span.end - source
        PyByteArray_Resize(records, p - <unsigned char*>PyByteArray_AS_STRING(records))
        return records

    cdef int _seal(self, const BatchFields* batch, bytes_t body) except -1:
        """Append a batch of ``batch.size`` bytes."""
        cdef unsigned char* p = self._room(batch.size)
        write_header(p, batch)
        if batch.size > HEADER_SIZE:
            memcpy(p + HEADER_SIZE, body, batch.size - HEADER_SIZE)
        put32(p + 17, crc32c(PyMemoryView_FromMemory(<char*>p + CRC_FROM, batch.size - CRC_FROM, PyBUF_READ)))
        return self._note(batch, batch.size)
