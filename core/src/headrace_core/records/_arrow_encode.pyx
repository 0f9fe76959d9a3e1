# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Convert Arrow's buffers to record batches, without a Python object per record and without the GIL in the loop.

Only arrow.py calls pyarrow; this module works with addresses and sizes. The encoder does what _arrow_pure.Encoder does.
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memset

from ._wire cimport (
    CRC_FROM,
    HEADER_SIZE,
    BatchFields,
    bytes_t,
    put32,
    put_varint,
    sub_overflows,
    varint_size,
    write_header,
    zigzag,
)

from ..errors import InvalidArgumentError, InvalidTimestampError, RecordTooLargeError
from .batches import attributes_of
from .compression import compress
from .crc import crc32c

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject** bytes, Py_ssize_t newsize) except -1
    PyObject* _new_bytes "PyBytes_FromStringAndSize"(const char* v, Py_ssize_t size) except NULL
    char* _bytes_data "PyBytes_AS_STRING"(PyObject* o)

cdef enum:
    PyBUF_READ = 0x100
    # Largest size of a record without its key, value and headers: length, attributes, two deltas, three counts.
    RECORD_OVERHEAD_MAX = 36


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
    const int64_t* rows  # NULL: all rows, in their order
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
    """Find the bytes of one row of a column, with size -1 for null; False when the offsets point outside of the
    data."""
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
    quotient = value // divisor  # correct the result, because C's division rounds towards zero
    return quotient - 1 if value < 0 and quotient * divisor != value else quotient


cdef inline Py_ssize_t _room(Py_ssize_t size) noexcept nogil:
    """Encoded size of a nullable field, with the varint of its length."""
    return varint_size(zigzag(size)) + (size if size > 0 else 0)


cdef inline unsigned char* _put(unsigned char* p, bytes_t data, Py_ssize_t size) noexcept nogil:
    p = put_varint(p, zigzag(size))
    if size > 0:
        memcpy(p, data, size)
        p += size
    return p


cdef inline int fill_as(const Source* from_, Py_ssize_t* next_row, Sink* to, bint plain) noexcept nogil:
    """The body of fill(), compiled twice; ``plain`` means that there are only values, so checks of other columns are
    left out."""
    # Use local copies of the source and the sink: the compiler must assume that a store through ``p`` changes the
    # target of any pointer.
    cdef Source source = from_[0]
    cdef Sink sink = to[0]
    cdef int outcome = DRAINED
    cdef Py_ssize_t index = next_row[0]
    cdef Py_ssize_t row, value_size, body, needed, header, name_size, content_size
    cdef Py_ssize_t key_size = -1
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t last = 0
    cdef bytes_t value, name, content
    cdef bytes_t key = NULL
    cdef long long delta = 0
    cdef int64_t timestamp = source.now_ms
    cdef unsigned char* p
    while index < source.row_count:
        row = index
        if not plain:
            if source.rows is not NULL:
                row = source.rows[index]
            if not cell(&source.key, row, &key, &key_size):
                outcome = BAD_OFFSETS
                break
            timestamp = source.now_ms
            if source.timestamps is not NULL and (
                source.timestamp_validity is NULL or is_set(source.timestamp_validity, row + source.timestamp_shift)
            ):
                timestamp = floored(source.timestamps[row + source.timestamp_shift], source.timestamp_divisor)
            first = last = 0
            if source.has_headers and (
                source.list_validity is NULL or is_set(source.list_validity, row + source.list_shift)
            ):
                first = source.list_offsets[row + source.list_shift]
                last = source.list_offsets[row + source.list_shift + 1]
                if first < 0 or last < first or last > source.header_rows:
                    outcome = BAD_OFFSETS
                    break
        if not cell(&source.value, row, &value, &value_size):
            outcome = BAD_OFFSETS
            break
        if sink.count == 0:
            sink.base_timestamp = sink.max_timestamp = timestamp
        if sub_overflows(timestamp, sink.base_timestamp, &delta):
            outcome = BAD_TIMESTAMP
            break
        body = (
            1
            + varint_size(zigzag(delta))
            + varint_size(zigzag(sink.count))
            + _room(key_size)
            + _room(value_size)
            + varint_size(zigzag(last - first))
        )
        for header in range(first, last):
            if not cell(&source.header_name, header, &name, &name_size) or not cell(
                &source.header_content, header, &content, &content_size
            ):
                outcome = BAD_OFFSETS
                break
            if name_size < 0:
                outcome = NAMELESS_HEADER
                break
            body += _room(name_size) + _room(content_size)
        if outcome != DRAINED:
            break
        needed = sink.used + varint_size(zigzag(body)) + body
        if needed > sink.capacity:
            outcome = FULL if sink.count else TOO_LARGE
            break
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
        if timestamp > sink.max_timestamp:
            sink.max_timestamp = timestamp
        sink.count += 1
        index += 1
    next_row[0] = index
    to[0] = sink
    return outcome


cdef int fill(const Source* source, Py_ssize_t* next_row, Sink* sink) noexcept nogil:
    """Write records from ``next_row`` on until the source is drained or the next record does not fit; returns an
    Outcome."""
    if (
        source.key.layout == ALL_NULL
        and source.rows is NULL
        and source.timestamps is NULL
        and not source.has_headers
    ):
        return fill_as(source, next_row, sink, True)
    return fill_as(source, next_row, sink, False)


cdef void _describe(Column* column, object description) noexcept:
    """Fill in ``column`` from None, or from (layout, addresses of validity or 0, offsets and data, data size, width,
    shift)."""
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
    """Packs the rows of several chunks, one after the other, into batches of at most ``max_batch_bytes``. A row above
    ``max_batch_bytes`` gets a separate batch of at most ``max_row_bytes``."""

    cdef Py_ssize_t _max_batch_bytes
    cdef Py_ssize_t _max_row_bytes
    cdef object _fields
    cdef PyObject* _buffer
    cdef Sink _sink
    cdef Py_ssize_t _rows_done
    cdef readonly list batches

    def __cinit__(self, Py_ssize_t max_batch_bytes, Py_ssize_t max_row_bytes, fields):
        self._max_batch_bytes = max_batch_bytes
        self._max_row_bytes = max_row_bytes
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
        """Encode one chunk. ``bytes_bound``: upper bound for the bytes of the chunk's keys, values and headers; -1 if
        unknown."""
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
                if self._sink.capacity < self._max_batch_bytes:  # the buffer was sized for fewer rows
                    self._widen(self._max_batch_bytes)
                    continue
            if outcome == TOO_LARGE and self._sink.capacity < self._max_row_bytes:
                self._widen(self._max_row_bytes)
                source.row_count = row + 1  # the batch gets no other row
                with nogil:
                    outcome = fill(&source, &row, &self._sink)
                source.row_count = row_count
                if outcome == DRAINED:
                    outcome = FULL
            if outcome == FULL:
                self._finish()
            elif outcome != DRAINED:
                self._refuse(outcome, self._rows_done + row)
        self._rows_done += row_count

    def finish(self):
        """Return the finished batches: a list of (bytes, record count)."""
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

    cdef int _widen(self, Py_ssize_t capacity) except -1:
        self._sink.capacity = 0
        _PyBytes_Resize(&self._buffer, capacity)
        self._sink.data = <unsigned char*>_bytes_data(self._buffer)
        self._sink.capacity = capacity
        return 0

    cdef int _refuse(self, int outcome, Py_ssize_t row) except -1:
        if outcome == TOO_LARGE:
            raise RecordTooLargeError(
                f"row {row} alone needs more than {self._max_row_bytes} bytes, the limit of a batch"
            )
        if outcome == NAMELESS_HEADER:
            raise InvalidArgumentError(f"row {row}: a header has no name (null)")
        if outcome == BAD_TIMESTAMP:
            raise InvalidTimestampError(
                f"row {row}: the timestamp is too far from the first timestamp of its batch"
            )
        raise InvalidArgumentError(f"row {row}: the column is damaged: its offsets point outside of its data")

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
