# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Arrow's buffers to record batches and back, without a Python object per record and without the GIL in the loops.

arrow.py speaks pyarrow; here are only addresses and sizes. Buffers for decoded columns come from malloc, not from
Arrow's pool: where glibc is tuned (rpc/environment.py) it hands warm memory out again, and a cold page costs more than
the decoding of what fits on it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.limits cimport INT_MAX, LLONG_MAX, LLONG_MIN
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from ._wire cimport (
    COMPRESSION_BITS,
    CONTROL_FLAG,
    CRC_FROM,
    HEADER_SIZE,
    SOUND,
    TIMESTAMP_TYPE_FLAG,
    BatchFields,
    RecordView,
    Walk,
    begin_walk,
    bytes_t,
    get_varint32,
    parse_header,
    put32,
    put_varint,
    step,
    sub_overflows,
    varint_size,
    write_header,
    zigzag,
)

from crc32c import crc32c

from ..errors import InvalidArgumentError, InvalidRecordError, InvalidTimestampError, RecordTooLargeError
from . import batches as _batches
from ._faults import invalid_record
from .batches import attributes_of
from .compression import compress, decompress
from .types import Compression

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** bytes, Py_ssize_t newsize) except -1
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char* v, Py_ssize_t size) except NULL
    char* _bytes_data "PyBytes_AS_STRING"(PyObject* o)

cdef enum:
    PyBUF_READ = 0x100
    # Length, attributes, two deltas, three counts: what a record takes at most beside its key, value and headers.
    RECORD_OVERHEAD_MAX = 36
    HEADER_OVERHEAD_MAX = 10


# --- columns in -----------------------------------------------------------------------------------------------------

cdef enum Layout:
    ALL_NULL = 0
    OFFSETS_32 = 1
    OFFSETS_64 = 2
    FIXED_WIDTH = 3


cdef struct Column:
    int layout
    const uint8_t* validity  # NULL: no nulls
    const int32_t* offsets32
    const int64_t* offsets64
    bytes_t data
    Py_ssize_t data_size
    Py_ssize_t width
    Py_ssize_t shift  # the array's offset


cdef struct Source:
    Column key
    Column value
    Column header_name
    Column header_content
    bint has_headers
    const uint8_t* list_validity
    const int32_t* list_offsets
    Py_ssize_t list_shift
    Py_ssize_t header_rows
    const int64_t* timestamps  # NULL: none
    const uint8_t* timestamp_validity
    Py_ssize_t timestamp_shift
    int64_t timestamp_divisor  # units per millisecond
    int64_t now_ms
    const int64_t* rows  # NULL: all, in order
    Py_ssize_t row_count


cdef struct Sink:
    unsigned char* data
    Py_ssize_t used
    Py_ssize_t capacity
    int count
    int64_t base_timestamp
    int64_t max_timestamp


cdef enum Outcome:
    DRAINED = 0
    FULL = 1
    TOO_LARGE = 2
    BAD_OFFSETS = 3
    NAMELESS_HEADER = 4
    BAD_TIMESTAMP = 5


cdef inline bint is_set(const uint8_t* bits, Py_ssize_t index) noexcept nogil:
    return (bits[index >> 3] >> (index & 7)) & 1


cdef inline bint cell(const Column* column, Py_ssize_t row, bytes_t* data, Py_ssize_t* size) noexcept nogil:
    """The bytes of a row, size -1 for null; False when the offsets lead out of the data."""
    cdef int64_t start, end
    data[0] = NULL
    size[0] = -1
    if column.layout == ALL_NULL:
        return True
    row += column.shift
    if column.validity is not NULL and not is_set(column.validity, row):
        return True
    if column.layout == OFFSETS_32:
        start = column.offsets32[row]
        end = column.offsets32[row + 1]
    elif column.layout == OFFSETS_64:
        start = column.offsets64[row]
        end = column.offsets64[row + 1]
    else:
        start = row * column.width
        end = start + column.width
    if start < 0 or end < start or end > column.data_size:
        return False
    data[0] = column.data + start
    size[0] = end - start
    return True


cdef inline int64_t floored(int64_t value, int64_t divisor) noexcept nogil:
    cdef int64_t quotient
    if divisor == 1:
        return value
    quotient = value // divisor  # C's division: towards zero
    return quotient - 1 if value < 0 and quotient * divisor != value else quotient


cdef inline Py_ssize_t _room(Py_ssize_t size) noexcept nogil:
    """Bytes of a nullable field with its length."""
    return varint_size(zigzag(size)) + (size if size > 0 else 0)


cdef inline unsigned char* _put(unsigned char* p, bytes_t data, Py_ssize_t size) noexcept nogil:
    p = put_varint(p, zigzag(size))
    if size > 0:
        memcpy(p, data, size)
        p += size
    return p


cdef int fill(const Source* source, Py_ssize_t* next_row, Sink* sink) noexcept nogil:
    """Write records from ``next_row`` on until the source is drained or the next one does not fit. An Outcome."""
    cdef Py_ssize_t index, row, key_size, value_size, body, needed, header, first, last, name_size, content_size
    cdef bytes_t key, value, name, content
    cdef long long delta = 0
    cdef int64_t timestamp
    cdef unsigned char* p
    for index in range(next_row[0], source.row_count):
        next_row[0] = index
        row = index if source.rows is NULL else source.rows[index]
        if not cell(&source.key, row, &key, &key_size) or not cell(&source.value, row, &value, &value_size):
            return BAD_OFFSETS
        timestamp = source.now_ms
        if source.timestamps is not NULL and (
            source.timestamp_validity is NULL or is_set(source.timestamp_validity, row + source.timestamp_shift)
        ):
            timestamp = floored(source.timestamps[row + source.timestamp_shift], source.timestamp_divisor)
        if timestamp < -1 or (sink.count and sub_overflows(timestamp, sink.base_timestamp, &delta)):
            return BAD_TIMESTAMP
        if sink.count == 0:
            delta = 0
        first = last = 0
        if source.has_headers and (
            source.list_validity is NULL or is_set(source.list_validity, row + source.list_shift)
        ):
            first = source.list_offsets[row + source.list_shift]
            last = source.list_offsets[row + source.list_shift + 1]
            if first < 0 or last < first or last > source.header_rows:
                return BAD_OFFSETS
        body = (
            1 + varint_size(zigzag(delta)) + varint_size(zigzag(sink.count)) + _room(key_size) + _room(value_size)
            + varint_size(zigzag(last - first))
        )
        for header in range(first, last):
            if not cell(&source.header_name, header, &name, &name_size):
                return BAD_OFFSETS
            if not cell(&source.header_content, header, &content, &content_size):
                return BAD_OFFSETS
            if name_size < 0:
                return NAMELESS_HEADER
            body += _room(name_size) + _room(content_size)
        needed = sink.used + varint_size(zigzag(body)) + body
        if needed > sink.capacity:
            return FULL if sink.count else TOO_LARGE
        p = put_varint(sink.data + sink.used, zigzag(body))
        p[0] = 0
        p = put_varint(p + 1, zigzag(delta))
        p = put_varint(p, zigzag(sink.count))
        p = _put(p, key, key_size)
        p = _put(p, value, value_size)
        p = put_varint(p, zigzag(last - first))
        for header in range(first, last):
            cell(&source.header_name, header, &name, &name_size)
            p = _put(p, name, name_size)
            cell(&source.header_content, header, &content, &content_size)
            p = _put(p, content, content_size)
        sink.used = needed
        if sink.count == 0:
            sink.base_timestamp = timestamp
        if timestamp > sink.max_timestamp:
            sink.max_timestamp = timestamp
        sink.count += 1
    next_row[0] = source.row_count
    return DRAINED


cdef void _describe(Column* column, object description) noexcept:
    """``description``: None, or (layout, address of validity or 0, of offsets, of data, data size, width, shift)."""
    cdef size_t validity, offsets, data
    memset(column, 0, sizeof(Column))
    if description is None:
        return
    layout, validity, offsets, data, data_size, width, shift = description
    column.layout = layout
    column.validity = <const uint8_t*>validity
    column.offsets32 = <const int32_t*>offsets
    column.offsets64 = <const int64_t*>offsets
    column.data = <bytes_t>data
    column.data_size = data_size
    column.width = width
    column.shift = shift


cdef class Encoder:
    """Packs the rows of several chunks, one after the other, into batches of at most ``max_batch_bytes``."""

    cdef Py_ssize_t _max_batch_bytes
    cdef object _fields
    cdef PyObject* _buffer
    cdef Sink _sink
    cdef Py_ssize_t _rows_done
    cdef readonly list batches

    def __cinit__(self, Py_ssize_t max_batch_bytes, fields):
        self._max_batch_bytes = max_batch_bytes
        self._fields = fields
        self.batches = []

    def __dealloc__(self):
        Py_XDECREF(self._buffer)

    def add(
        self,
        Py_ssize_t row_count,
        key,
        value,
        timestamps,
        headers,
        int64_t now_ms,
        size_t rows_address,
        Py_ssize_t bytes_bound,
    ):
        """Encode one chunk; ``bytes_bound``: what its keys, values and headers can take, or -1."""
        cdef Source source
        cdef Py_ssize_t row = 0
        cdef Py_ssize_t bound
        cdef int outcome
        cdef size_t address, validity
        memset(&source, 0, sizeof(Source))
        _describe(&source.key, key)
        _describe(&source.value, value)
        source.now_ms = now_ms
        source.row_count = row_count
        source.rows = <const int64_t*>rows_address
        if timestamps is not None:
            validity, address, shift, divisor = timestamps
            source.timestamps = <const int64_t*>address
            source.timestamp_validity = <const uint8_t*>validity
            source.timestamp_shift = shift
            source.timestamp_divisor = divisor
        if headers is not None:
            validity, address, shift, names, contents, header_rows = headers
            source.has_headers = True
            source.list_validity = <const uint8_t*>validity
            source.list_offsets = <const int32_t*>address
            source.list_shift = shift
            source.header_rows = header_rows
            _describe(&source.header_name, names)
            _describe(&source.header_content, contents)
        while row < row_count:
            if self._buffer is NULL:
                bound = self._max_batch_bytes
                if bytes_bound >= 0:
                    bound = min(bound, HEADER_SIZE + bytes_bound + (row_count - row) * RECORD_OVERHEAD_MAX)
                self._begin(bound)
            with nogil:
                outcome = fill(&source, &row, &self._sink)
            if outcome == FULL or outcome == TOO_LARGE:
                if self._sink.capacity < self._max_batch_bytes:  # it was sized for less than what came
                    self._widen()
                    continue
            if outcome == FULL:
                self._finish()
            elif outcome != DRAINED:
                self._refuse(outcome, self._rows_done + row)
        self._rows_done += row_count

    def finish(self):
        """The batches: a list of (bytes, record count)."""
        if self._sink.count:
            self._finish()
        return self.batches

    cdef int _begin(self, Py_ssize_t capacity) except -1:
        self._buffer = _new_bytes(NULL, capacity)
        self._sink.data = <unsigned char*>_bytes_data(self._buffer)
        self._sink.capacity = capacity
        self._sink.used = HEADER_SIZE
        self._sink.count = 0
        self._sink.base_timestamp = 0
        self._sink.max_timestamp = -1
        return 0

    cdef int _widen(self) except -1:
        self._sink.capacity = 0
        _PyBytes_Resize(&self._buffer, self._max_batch_bytes)
        self._sink.data = <unsigned char*>_bytes_data(self._buffer)
        self._sink.capacity = self._max_batch_bytes
        return 0

    cdef int _refuse(self, int outcome, Py_ssize_t row) except -1:
        if outcome == TOO_LARGE:
            raise RecordTooLargeError(
                f"row {row} takes more than {self._max_batch_bytes} bytes as a batch of its own, the limit for one"
            )
        if outcome == NAMELESS_HEADER:
            raise InvalidArgumentError(f"row {row}: a header has no name (null)")
        if outcome == BAD_TIMESTAMP:
            raise InvalidTimestampError(
                f"row {row}: its timestamp is not one: at or after 1970, or -1 ms for none, near those of its batch"
            )
        raise InvalidArgumentError(f"row {row}: the column's offsets lead out of its data")

    cdef int _finish(self) except -1:
        cdef BatchFields header
        cdef PyObject* batch = NULL
        cdef Py_buffer packed
        cdef Py_ssize_t size = self._sink.used
        cdef unsigned char* p
        fields = self._fields
        compression = fields["compression"]
        if compression == 0:
            batch = self._buffer
            self._buffer = NULL
            _PyBytes_Resize(&batch, size)
        else:
            body = compress(
                compression,
                PyMemoryView_FromMemory(<char*>self._sink.data + HEADER_SIZE, size - HEADER_SIZE, PyBUF_READ),
                fields["level"],
            )
            PyObject_GetBuffer(body, &packed, PyBUF_SIMPLE)
            try:
                size = HEADER_SIZE + packed.len
                batch = _new_bytes(NULL, size)
                memcpy(_bytes_data(batch) + HEADER_SIZE, packed.buf, packed.len)
            finally:
                PyBuffer_Release(&packed)
            Py_XDECREF(self._buffer)
            self._buffer = NULL
        try:
            p = <unsigned char*>_bytes_data(batch)
            memset(&header, 0, sizeof(header))
            header.size = size
            header.leader_epoch = fields["leader_epoch"]
            header.attributes = attributes_of(
                compression,
                fields["timestamp_type"],
                transactional=fields["transactional"],
                control=fields["control"],
            )
            header.last_offset_delta = self._sink.count - 1
            header.base_timestamp = self._sink.base_timestamp
            header.max_timestamp = self._sink.max_timestamp
            header.producer_id = fields["producer_id"]
            header.producer_epoch = fields["producer_epoch"]
            header.base_sequence = fields["base_sequence"]
            header.record_count = self._sink.count
            write_header(p, &header)
            put32(p + 17, crc32c(PyMemoryView_FromMemory(<char*>p + CRC_FROM, size - CRC_FROM, PyBUF_READ)))
            self.batches.append((<object>batch, self._sink.count))
            self._sink.count = 0
        finally:
            Py_XDECREF(batch)
        return 0


# --- columns out ----------------------------------------------------------------------------------------------------


cdef class Memory:
    """Memory from malloc that lives as long as this object; pyarrow keeps it as the base of a foreign buffer."""

    cdef void* _data
    cdef readonly Py_ssize_t size

    @property
    def address(self):
        return <size_t>self._data

    def __dealloc__(self):
        free(self._data)


cdef Memory _owned(void* data, Py_ssize_t size, Py_ssize_t capacity):
    """``data`` under an owner, cut to ``size``."""
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
    """Room for ``more`` bytes; False when there is no memory."""
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
    BinaryOut header_name  # rows are headers here
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
    # Beside the Faults of _wire.pxd.
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
    """The headers of a record that step() has checked."""
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
    """The records of one batch appended to the columns. A Fault, with the record's index."""
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
            continue  # the rest is still checked
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
    """Collects batches (``add``) until their records' bytes would pass ``max_bytes``, then turns them into columns."""

    cdef Part* _parts
    cdef Py_ssize_t _part_count
    cdef Py_ssize_t _part_capacity
    cdef list _alive  # what the parts point into
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

    def add(self, data, Py_ssize_t position, Py_ssize_t max_bytes):
        """Take the batches from ``position`` on; returns where it stopped: at the end, or before ``max_bytes``."""
        cdef Py_buffer view
        cdef BatchFields batch
        cdef bytes_t p
        cdef Py_ssize_t size
        cdef int64_t last
        kept = memoryview(data)
        if not kept.readonly:
            kept = memoryview(bytes(kept))  # the columns are filled without the GIL: nobody may write meanwhile
        PyObject_GetBuffer(kept, &view, PyBUF_SIMPLE)
        try:
            while position < view.len:
                p = <bytes_t>view.buf + position
                if not parse_header(p, view.len - position, &batch) or batch.size > view.len - position:
                    _batches.read_whole_header(data, position)
                    raise AssertionError(f"the two header checks disagree at position {position}")
                last = batch.base_offset + batch.last_offset_delta
                if (
                    batch.attributes & CONTROL_FLAG
                    or last < self._start_offset
                    or batch.base_offset >= self._end_offset
                ):
                    position += batch.size
                    continue
                if self._check_crc:
                    if batch.crc != crc32c(
                        PyMemoryView_FromMemory(<char*>p + CRC_FROM, batch.size - CRC_FROM, PyBUF_READ)
                    ):
                        _batches.check_batch(data, position)
                        raise AssertionError(f"the two CRC checks disagree at position {position}")
                if not self._take(kept, p, &batch, max_bytes):
                    break
                position += batch.size
        finally:
            PyBuffer_Release(&view)
        return position

    cdef bint _take(self, slice_, bytes_t p, const BatchFields* batch, Py_ssize_t max_bytes) except -1:
        cdef bytes_t body = p + HEADER_SIZE
        cdef Py_ssize_t size = batch.size - HEADER_SIZE
        cdef Py_ssize_t capacity
        cdef const unsigned char[::1] view
        cdef void* grown
        kept = slice_
        if batch.attributes & COMPRESSION_BITS:
            kept = self._decompressed(body, size, batch)
            view = kept
            size = view.shape[0]
            body = &view[0] if size else NULL
        if self._part_count and self._bytes + size > max_bytes:
            return False
        if size > max_bytes:
            raise InvalidRecordError(
                f"the batch with base offset {batch.base_offset}: {size} bytes, at most {max_bytes} fit"
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
        # A count that cannot be right is found later, by the walk; it must not size the buffers.
        self._rows_max += min(batch.record_count, size // 7)
        self._bytes += size
        if kept is not self._newest:
            self._newest = kept
            self._alive.append(kept)
        return True

    cdef object _decompressed(self, bytes_t body, Py_ssize_t size, const BatchFields* batch):
        try:
            return decompress(
                Compression(batch.attributes & COMPRESSION_BITS),
                PyMemoryView_FromMemory(<char*>body, size, PyBUF_READ),
                min(self._limits.max_decompressed_bytes, INT_MAX),
            )
        except InvalidRecordError as error:
            raise InvalidRecordError(f"the batch with base offset {batch.base_offset}: {error.message}") from None

    def columns(self, bint key, bint value, bint offset, bint timestamp, bint timestamp_type, bint headers):
        """What was added, as a dict of raw columns and "rows"; the decoder is empty afterwards.

        Numbers are a Memory; binary columns (validity or None, offsets, data, nulls); headers (validity or None, list
        offsets, nulls, names, contents, count, names are ASCII).
        """
        cdef Output out
        cdef Py_ssize_t rows = self._rows_max
        cdef Py_ssize_t header_count = 0
        cdef Py_ssize_t i
        cdef int max_records = min(self._limits.max_records, INT_MAX)
        cdef int max_headers = min(self._limits.max_headers, INT_MAX)
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
                        # A fault here is found again, with its place, below.
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
                    "its timestamp has no representation in microseconds"
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
