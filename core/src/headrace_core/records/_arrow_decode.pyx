# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Convert record batches to Arrow's buffers, without a Python object per record and without the GIL in the loops.

Only arrow.py calls pyarrow; this module works with addresses and sizes. The decoder does what _arrow_pure.Decoder does.
Buffers come from malloc, not from Arrow's pool. Where glibc is tuned (rpc/environment.py), malloc reuses memory that is
already mapped. Mapping a new page costs more than decoding the records that fit on the page.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.limits cimport INT_MAX, LLONG_MAX, LLONG_MIN
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from ._batches cimport check_crc_of, clamped, decompressed, parse_whole
from ._wire cimport (
    COMPRESSION_BITS,
    CONTROL_FLAG,
    HEADER_SIZE,
    SOUND,
    TIMESTAMP_TYPE_FLAG,
    BatchFields,
    RecordView,
    Walk,
    begin_walk,
    bytes_t,
    get_varint32,
    step,
)

from ..errors import InvalidRecordError
from ._faults import invalid_record


cdef class Memory:
    """Memory from malloc that lives as long as this object; pyarrow keeps the object as the base of a foreign
    buffer."""

    cdef void* _data
    cdef readonly Py_ssize_t size

    @property
    def address(self):
        return <size_t>self._data

    def __dealloc__(self):
        free(self._data)


cdef Memory _owned(void* data, Py_ssize_t size, Py_ssize_t capacity):
    """Shrink the buffer ``data`` to ``size`` bytes, and wrap the buffer in a Memory object, which frees the buffer."""
    cdef Memory memory = Memory.__new__(Memory)
    cdef void* cut
    memory._data = data
    memory.size = size
    if capacity > size:
        cut = realloc(data, max(size, 1))
        if cut is not NULL:
            memory._data = cut
    return memory


cdef struct Growing:
    unsigned char* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef inline bint reserve(Growing* buffer, Py_ssize_t more) noexcept nogil:
    """Grow a buffer so that ``more`` bytes fit; False when malloc fails."""
    cdef Py_ssize_t capacity
    cdef void* grown
    if buffer.size + more <= buffer.capacity:
        return True
    capacity = max(buffer.size + more, 2 * buffer.capacity, 4096)
    grown = realloc(buffer.data, capacity)
    if grown is NULL:
        return False
    buffer.data = <unsigned char*>grown
    buffer.capacity = capacity
    return True


cdef struct BinaryOut:
    bint wanted
    uint8_t* validity
    int32_t* offsets
    Growing data
    Py_ssize_t rows
    Py_ssize_t nulls


cdef struct Part:
    BatchFields batch
    bytes_t body
    Py_ssize_t size


cdef struct Output:
    BinaryOut key
    BinaryOut value
    BinaryOut header_name  # the rows of the header columns are headers
    BinaryOut header_content
    bint headers_wanted
    bint ascii_names
    uint8_t* list_validity
    int32_t* list_offsets
    Py_ssize_t list_nulls
    int64_t* offsets
    int64_t* timestamps
    int32_t* timestamp_types
    Py_ssize_t rows
    int64_t start_offset
    int64_t end_offset


cdef enum:
    # Fault codes in addition to the enum ``Fault`` of _wire.pxd.
    NO_MEMORY = 100
    TIMESTAMP_BEYOND = 101


cdef inline bint begin_binary(BinaryOut* out, Py_ssize_t rows, Py_ssize_t data_bytes) noexcept nogil:
    out.wanted = True
    out.validity = <uint8_t*>calloc((rows + 7) // 8 + 1, 1)
    out.offsets = <int32_t*>malloc((rows + 1) * sizeof(int32_t))
    if out.validity is NULL or out.offsets is NULL:
        return False
    out.offsets[0] = 0
    return data_bytes == 0 or reserve(&out.data, data_bytes)


cdef inline bint put_binary(BinaryOut* out, bytes_t data, int size) noexcept nogil:
    if size >= 0:
        if size > 0:
            if not reserve(&out.data, size):
                return False
            memcpy(out.data.data + out.data.size, data, size)
            out.data.size += size
        out.validity[out.rows >> 3] |= 1 << (out.rows & 7)
    else:
        out.nulls += 1
    out.rows += 1
    out.offsets[out.rows] = <int32_t>out.data.size
    return True


cdef bint put_headers(Output* out, const RecordView* record, bytes_t end) noexcept nogil:
    """Append the headers of one record, which step() has checked, to the header columns."""
    cdef bytes_t p = record.headers
    cdef int size = 0
    cdef int i
    for _ in range(record.header_count):
        get_varint32(&p, end, &size)
        for i in range(size):
            if p[i] >= 0x80:
                out.ascii_names = False
        if not put_binary(&out.header_name, p, size):
            return False
        p += size
        get_varint32(&p, end, &size)
        if not put_binary(&out.header_content, p, size):
            return False
        if size > 0:
            p += size
    if record.header_count:
        out.list_validity[out.rows >> 3] |= 1 << (out.rows & 7)
    else:
        out.list_nulls += 1
    out.list_offsets[out.rows + 1] = <int32_t>out.header_name.rows
    return True


cdef int count_headers(const Part* part, int max_headers, Py_ssize_t* total) noexcept nogil:
    cdef Walk walk
    cdef RecordView record
    cdef int fault = begin_walk(&walk, &part.batch, part.body, part.size, INT_MAX, max_headers)
    while fault == SOUND and walk.index < walk.count:
        fault = step(&walk, &record)
        if fault == SOUND:
            total[0] += record.header_count
    return fault


cdef int unpack(const Part* part, Output* out, int max_records, int max_headers, int* index) noexcept nogil:
    """Append the records of one batch to the columns; returns a Fault and stores the index of the faulty record."""
    cdef Walk walk
    cdef RecordView record
    cdef int fault = begin_walk(&walk, &part.batch, part.body, part.size, max_records, max_headers)
    cdef int kind = (part.batch.attributes & TIMESTAMP_TYPE_FLAG) != 0
    while fault == SOUND and walk.index < walk.count:
        fault = step(&walk, &record)
        if fault:
            break
        if record.offset < out.start_offset:
            continue
        if record.offset >= out.end_offset:
            continue # later records are still checked
        if out.value.wanted and not put_binary(&out.value, record.value, record.value_size):
            fault = NO_MEMORY
        if out.key.wanted and not put_binary(&out.key, record.key, record.key_size):
            fault = NO_MEMORY
        if out.headers_wanted and not put_headers(out, &record, walk.cursor):
            fault = NO_MEMORY
        if out.offsets is not NULL:
            out.offsets[out.rows] = record.offset
        if out.timestamps is not NULL:
            if record.timestamp_ms > LLONG_MAX // 1000 or record.timestamp_ms < LLONG_MIN // 1000:
                fault = TIMESTAMP_BEYOND
                walk.index -= 1
                break
            out.timestamps[out.rows] = record.timestamp_ms * 1000
        if out.timestamp_types is not NULL:
            out.timestamp_types[out.rows] = kind
        out.rows += 1
    index[0] = walk.index
    return fault


cdef void free_binary(BinaryOut* out) noexcept nogil:
    free(out.validity)
    free(out.offsets)
    free(out.data.data)
    memset(out, 0, sizeof(BinaryOut))


cdef tuple take_binary(BinaryOut* out):
    """(validity or None, offsets, data, null count), each a Memory; the struct is left empty."""
    cdef Memory validity = None
    cdef Memory offsets, data
    if out.nulls:
        validity = _owned(out.validity, (out.rows + 7) // 8, 0)
    else:
        free(out.validity)
    out.validity = NULL
    offsets = _owned(out.offsets, (out.rows + 1) * sizeof(int32_t), 0)
    out.offsets = NULL
    data = _owned(out.data.data, out.data.size, out.data.capacity)
    out.data.data = NULL
    return validity, offsets, data, out.nulls


cdef class Decoder:
    """Collects batches (``add``) until their records would exceed ``max_bytes``, then turns the batches into
    columns."""

    cdef Part* _parts
    cdef Py_ssize_t _part_count
    cdef Py_ssize_t _part_capacity
    cdef list _alive  # keeps the buffers alive into which the parts point
    cdef object _newest
    cdef Py_ssize_t _rows_max
    cdef Py_ssize_t _bytes
    cdef object _limits
    cdef int64_t _start_offset
    cdef int64_t _end_offset
    cdef bint _check_crc

    def __cinit__(self, int64_t start_offset, int64_t end_offset, limits, bint check_crc):
        self._alive = []
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._limits = limits
        self._check_crc = check_crc

    def __dealloc__(self):
        free(self._parts)

    def add(self, data, Py_ssize_t position, Py_ssize_t max_bytes, Py_ssize_t max_batch_bytes=-1):
        """Collect the batches from ``position`` on; returns the position of the first batch that did not fit into
        ``max_bytes`` beside others, or the end. InvalidRecordError: a batch has more than ``max_batch_bytes`` (by
        default, ``max_bytes``)."""
        cdef Py_buffer view
        cdef BatchFields batch
        cdef bytes_t p
        cdef Py_ssize_t size
        cdef int64_t last
        if max_batch_bytes < 0:
            max_batch_bytes = max_bytes
        kept = memoryview(data)
        if not kept.readonly:
            # Copy a writable buffer, because the columns are filled without the GIL, and another thread could change
            # the buffer meanwhile.
            kept = memoryview(bytes(kept))
        PyObject_GetBuffer(kept, &view, PyBUF_SIMPLE)
        try:
            while position < view.len:
                p = <bytes_t>view.buf
                parse_whole(kept, p, view.len, position, True, &batch)
                last = batch.base_offset + batch.last_offset_delta
                if batch.base_offset >= self._end_offset:
                    position += batch.size
                    continue
                # Check the CRC of skipped batches too: a flipped bit must not turn a wanted batch into a skipped batch.
                if self._check_crc:
                    check_crc_of(kept, p, position, &batch)
                if batch.attributes & CONTROL_FLAG or last < self._start_offset:
                    position += batch.size
                    continue
                if not self._take(kept, p + position, &batch, max_bytes, max_batch_bytes):
                    break
                position += batch.size
        finally:
            PyBuffer_Release(&view)
        return position

    cdef bint _take(
        self, slice_, bytes_t p, const BatchFields* batch, Py_ssize_t max_bytes, Py_ssize_t max_batch_bytes
    ) except -1:
        cdef bytes_t body = p + HEADER_SIZE
        cdef Py_ssize_t size = batch.size - HEADER_SIZE
        cdef Py_ssize_t capacity
        cdef const unsigned char[::1] view
        cdef void* grown
        kept = slice_
        if batch.attributes & COMPRESSION_BITS:
            kept = decompressed(body, size, batch, clamped(self._limits.max_decompressed_bytes))
            view = kept
            size = view.shape[0]
            body = &view[0] if size else NULL
        if self._part_count and self._bytes + size > max_bytes:
            return False
        if size > max_batch_bytes:
            raise InvalidRecordError(
                f"the batch with base offset {batch.base_offset} decompresses to {size} bytes, more than {max_batch_bytes} bytes, the limit"
            )
        if self._part_count == self._part_capacity:
            capacity = max(16, 2 * self._part_capacity)
            grown = realloc(self._parts, capacity * sizeof(Part))
            if grown is NULL:
                raise MemoryError
            self._parts = <Part*>grown
            self._part_capacity = capacity
        self._parts[self._part_count].batch = batch[0]
        self._parts[self._part_count].body = body
        self._parts[self._part_count].size = size
        self._part_count += 1
        # An impossible record count must not determine the size of the buffers; the later walk over the records reports
        # the count.
        self._rows_max += min(batch.record_count, size // 7)
        self._bytes += size
        if kept is not self._newest:
            self._newest = kept
            self._alive.append(kept)
        return True

    def columns(self, bint key, bint value, bint offset, bint timestamp, bint timestamp_type, bint headers):
        """Return the added records as a dict of raw columns and "rows" (their number); the decoder is empty afterwards.

        A column of numbers is a Memory. A binary column is (validity or None, offsets, data, nulls). The headers are
        (validity or None, list offsets, nulls, names, contents, count, whether all names are ASCII).
        """
        cdef Output out
        cdef Py_ssize_t rows = self._rows_max
        cdef Py_ssize_t header_count = 0
        cdef Py_ssize_t i
        cdef int max_records = clamped(self._limits.max_records)
        cdef int max_headers = clamped(self._limits.max_headers)
        cdef int fault = SOUND
        cdef int index = 0
        cdef bint ready = True
        memset(&out, 0, sizeof(Output))
        out.start_offset = self._start_offset
        out.end_offset = self._end_offset
        out.ascii_names = True
        try:
            with nogil:
                if value:
                    ready = begin_binary(&out.value, rows, self._bytes) and ready
                if key:
                    ready = begin_binary(&out.key, rows, 0) and ready
                if offset:
                    out.offsets = <int64_t*>malloc((rows + 1) * sizeof(int64_t))
                    ready = out.offsets is not NULL and ready
                if timestamp:
                    out.timestamps = <int64_t*>malloc((rows + 1) * sizeof(int64_t))
                    ready = out.timestamps is not NULL and ready
                if timestamp_type:
                    out.timestamp_types = <int32_t*>malloc((rows + 1) * sizeof(int32_t))
                    ready = out.timestamp_types is not NULL and ready
                i = 0
                if headers:
                    out.headers_wanted = True
                    while i < self._part_count and fault == SOUND:
                        # Ignore a fault here: the second pass below finds the same fault and reports its place.
                        fault = count_headers(&self._parts[i], max_headers, &header_count)
                        i += 1
                    fault = SOUND
                    ready = begin_binary(&out.header_name, header_count, 0) and ready
                    ready = begin_binary(&out.header_content, header_count, 0) and ready
                    out.list_validity = <uint8_t*>calloc((rows + 7) // 8 + 1, 1)
                    out.list_offsets = <int32_t*>malloc((rows + 1) * sizeof(int32_t))
                    ready = out.list_validity is not NULL and out.list_offsets is not NULL and ready
                    if ready:
                        out.list_offsets[0] = 0
                i = 0
                if not ready:
                    fault = NO_MEMORY
                while i < self._part_count and fault == SOUND:
                    fault = unpack(&self._parts[i], &out, max_records, max_headers, &index)
                    i += 1
            if fault == NO_MEMORY:
                raise MemoryError(f"no memory for the columns of {self._bytes} bytes of records")
            if fault == TIMESTAMP_BEYOND:
                raise InvalidRecordError(
                    f"record {index} of the batch with base offset {self._parts[i - 1].batch.base_offset}: "
                    "its timestamp cannot be expressed in microseconds"
                )
            if fault:
                raise invalid_record(fault, index, self._parts[i - 1].batch.base_offset)
            return self._collect(&out, rows)
        finally:
            free_binary(&out.key)
            free_binary(&out.value)
            free_binary(&out.header_name)
            free_binary(&out.header_content)
            free(out.list_validity)
            free(out.list_offsets)
            free(out.offsets)
            free(out.timestamps)
            free(out.timestamp_types)
            self._alive = []
            self._newest = None
            self._part_count = 0
            self._rows_max = 0
            self._bytes = 0

    cdef dict _collect(self, Output* out, Py_ssize_t rows_max):
        cdef dict columns = {"rows": out.rows}
        cdef Memory validity = None
        cdef Py_ssize_t spare = rows_max - out.rows
        if out.value.wanted:
            columns["value"] = take_binary(&out.value)
        if out.key.wanted:
            columns["key"] = take_binary(&out.key)
        if out.offsets is not NULL:
            columns["offset"] = _owned(out.offsets, out.rows * 8, (out.rows + spare) * 8)
            out.offsets = NULL
        if out.timestamps is not NULL:
            columns["timestamp"] = _owned(out.timestamps, out.rows * 8, (out.rows + spare) * 8)
            out.timestamps = NULL
        if out.timestamp_types is not NULL:
            columns["timestampType"] = _owned(out.timestamp_types, out.rows * 4, (out.rows + spare) * 4)
            out.timestamp_types = NULL
        if out.headers_wanted:
            if out.list_nulls:
                validity = _owned(out.list_validity, (out.rows + 7) // 8, 0)
                out.list_validity = NULL
            offsets = _owned(out.list_offsets, (out.rows + 1) * 4, 0)
            out.list_offsets = NULL
            count = out.header_name.rows
            columns["headers"] = (
                validity,
                offsets,
                out.list_nulls,
                take_binary(&out.header_name),
                take_binary(&out.header_content),
                count,
                out.ascii_names,
            )
        return columns
