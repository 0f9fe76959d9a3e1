# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Read records from batches. This compiled module does the same as the reader in _pure.py, which documents each
function."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8

from ._batches cimport check_crc_of, clamped, decompressed, parse_whole
from ._wire cimport (
    BYTES_AFTER_LAST,
    COMPRESSION_BITS,
    CONTROL_FLAG,
    HEADER_SIZE,
    SOUND,
    TRANSACTIONAL_FLAG,
    BatchFields,
    RecordView,
    Walk,
    begin_walk,
    bytes_t,
    get_varint32,
    parse_header,
    step,
)

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

from operator import itemgetter

from ..errors import CorruptMessageError, IllegalStateError, InvalidRecordError
from ..types import TimestampType, TopicPartition
from ._faults import invalid_record
from .types import ABORT, DEFAULT_LIMITS

cdef object _CREATE_TIME = TimestampType.CREATE_TIME


@cython.final
@cython.no_gc  # a record refers to bytes and strings only, so the garbage collector need not visit millions of records
@cython.freelist(512)
cdef class Record:
    """One record as a consumer receives it. See _pure.Record."""

    def __init__(
        self,
        str topic not None,
        int partition,
        long long offset,
        long long timestamp_ms,
        key,
        value,
        headers=None,
        int leader_epoch=-1,
        timestamp_type=_CREATE_TIME,
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self._headers = headers
        self.leader_epoch = leader_epoch
        self._timestamp_type = TimestampType(timestamp_type)

    @property
    def headers(self):
        if self._headers is None:
            self._headers = []
        return self._headers

    @property
    def timestamp_type(self):
        return TimestampType(self._timestamp_type)

    @property
    def topic_partition(self):
        return TopicPartition(self.topic, self.partition)

    def _fields(self):
        return (
            self.topic,
            self.partition,
            self.offset,
            self.timestamp_ms,
            self.key,
            self.value,
            self.headers,
            self.leader_epoch,
            self.timestamp_type,
        )

    def __eq__(self, other):
        return self._fields() == (<Record>other)._fields() if isinstance(other, Record) else NotImplemented

    __hash__ = None

    def __repr__(self):
        return (
            f"Record(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms}, key={self.key!r}, value={self.value!r}, headers={self.headers!r}, "
            f"leader_epoch={self.leader_epoch})"
        )

    def __reduce__(self):
        return Record, self._fields()


cdef list _read_headers(bytes_t p, bytes_t end, int count):
    """Read the headers of one record, which step() has checked."""
    cdef list headers = []
    cdef int size = 0
    for _ in range(count):
        get_varint32(&p, end, &size)
        name = PyUnicode_DecodeUTF8(<const char*>p, size, b"replace")
        p += size
        get_varint32(&p, end, &size)
        if size < 0:
            headers.append((name, None))
        else:
            headers.append((name, PyBytes_FromStringAndSize(<const char*>p, size)))
            p += size
    return headers


cdef inline Record _make_record(
    str topic, int partition, int leader_epoch, const Walk* walk, const RecordView* view
):
    cdef Record record = Record.__new__(Record)
    record.topic = topic
    record.partition = partition
    record.leader_epoch = leader_epoch
    record.offset = view.offset
    record.timestamp_ms = view.timestamp_ms
    record._timestamp_type = walk.has_append_time
    if view.key_size >= 0:
        record.key = PyBytes_FromStringAndSize(<const char*>view.key, view.key_size)
    if view.value_size >= 0:
        record.value = PyBytes_FromStringAndSize(<const char*>view.value, view.value_size)
    if view.header_count:
        record._headers = _read_headers(view.headers, walk.cursor, view.header_count)
    return record


@cython.final
cdef class RecordIterator:
    """Iterates over the records of many batches from an offset on. See _pure.RecordIterator."""

    def __init__(
        self,
        slices,
        *,
        str topic not None="",
        int partition=-1,
        long long start_offset=0,
        limits=DEFAULT_LIMITS,
        bint check_crc=True,
        bint include_control=False,
    ):
        self.topic = topic
        self.partition = partition
        self.position = start_offset
        self._slices = [slices] if isinstance(slices, (bytes, bytearray, memoryview)) else list(slices)
        self._limits = limits
        self._max_decompressed = clamped(limits.max_decompressed_bytes)
        self._max_records = clamped(limits.max_records)
        self._max_headers = clamped(limits.max_headers)
        self._check_crc = check_crc
        self._include_control = include_control

    def __dealloc__(self):
        self._release_body()
        if self._has_view:
            PyBuffer_Release(&self._view)

    def __iter__(self):
        return self

    def __next__(self):
        cdef Record record = self.next_record()
        if record is None:
            raise StopIteration
        return record

    def take(self, Py_ssize_t count, Py_ssize_t max_bytes=PY_SSIZE_T_MAX):
        """Return up to ``count`` records; an empty list when no records are left. Records before a faulty record are
        returned first; the next call raises the error. The last record of a list reaches ``max_bytes`` of keys, values
        and headers."""
        cdef list taken = []
        cdef Record record
        self.taken_bytes = 0
        while len(taken) < count and self.taken_bytes < max_bytes:
            try:
                record = self.next_record()
            except Exception:
                if not taken:
                    raise
                break
            if record is None:
                break
            taken.append(record)
            if record.key is not None:
                self.taken_bytes += PyBytes_GET_SIZE(record.key)
            if record.value is not None:
                self.taken_bytes += PyBytes_GET_SIZE(record.value)
            if record._headers is not None:
                for name, content in record._headers:
                    self.taken_bytes += len(name) + (0 if content is None else len(content))
        return taken

    cdef Record next_record(self):
        if self._busy:
            raise IllegalStateError("a record iterator was used by two threads at once: give each its own, or lock it")
        self._busy = True  # a CRC or a decompression may release the GIL
        try:
            return self._next()
        finally:
            self._busy = False

    cdef Record _next(self):
        cdef RecordView view
        cdef int fault
        while True:
            while self._walk.index < self._walk.count:
                fault = step(&self._walk, &view)
                if fault:
                    self._fail(fault)
                if view.offset >= self.position:
                    self.position = view.offset + 1
                    return _make_record(self.topic, self.partition, self._batch.leader_epoch, &self._walk, &view)
            self._leave_batch()
            if not self._enter_batch():
                return None

    cdef int _fail(self, int fault) except -1:
        cdef int index = self._walk.index - (1 if fault == BYTES_AFTER_LAST else 0)
        self._walk.index = self._walk.count = 0
        self._is_stuck = True  # the next step enters this batch again, even if all its offsets were returned
        self._in_batch = False
        self._release_body()
        raise invalid_record(fault, index, self._batch.base_offset)

    cdef void _release_body(self) noexcept:
        if self._has_body_view:
            PyBuffer_Release(&self._body_view)
            self._has_body_view = False

    cdef void _leave_batch(self) noexcept:
        self._release_body()
        if self._in_batch:
            self._in_batch = False
            self.position = max(self.position, self._batch.base_offset + self._batch.last_offset_delta + 1)
            self._at += self._batch.size

    cdef bint _enter_batch(self) except -1:
        cdef BatchFields* batch = &self._batch
        cdef bytes_t p
        cdef Py_ssize_t size
        cdef int fault
        while True:
            if not self._has_view:
                if self._slice >= len(self._slices):
                    return False
                PyObject_GetBuffer(self._slices[self._slice], &self._view, PyBUF_SIMPLE)
                self._has_view = True
                self._at = 0
            if self._at >= self._view.len:
                PyBuffer_Release(&self._view)
                self._has_view = False
                self._slices[self._slice] = None  # drop the finished slice, so that its memory can be freed
                self._slice += 1
                continue
            p = <bytes_t>self._view.buf
            data = self._slices[self._slice]
            parse_whole(data, p, self._view.len, self._at, True, batch)
            # Check the CRC of skipped batches too: a flipped bit must not turn a wanted batch into a skipped batch.
            if self._check_crc:
                check_crc_of(data, p, self._at, batch)
            if (batch.base_offset + batch.last_offset_delta >= self.position or self._is_stuck) and (
                self._include_control or not batch.attributes & CONTROL_FLAG
            ):
                break
            self.position = max(self.position, batch.base_offset + batch.last_offset_delta + 1)
            self._at += batch.size
        p += self._at + HEADER_SIZE
        size = batch.size - HEADER_SIZE
        if batch.attributes & COMPRESSION_BITS:
            body = decompressed(p, size, batch, self._max_decompressed)
            PyObject_GetBuffer(body, &self._body_view, PyBUF_SIMPLE)
            self._has_body_view = True
            p = <bytes_t>self._body_view.buf
            size = self._body_view.len
        fault = begin_walk(&self._walk, batch, p, size, self._max_records, self._max_headers)
        if fault:
            self._fail(fault)
        self._in_batch = True
        return True


def decode_batch(
    data,
    Py_ssize_t position=0,
    *,
    str topic not None="",
    int partition=-1,
    long long start_offset=0,
    limits=DEFAULT_LIMITS,
    bint check_crc=True,
):
    cdef Py_buffer view, body_view
    cdef bint has_body_view = False
    cdef BatchFields batch
    cdef Walk walk
    cdef RecordView record
    cdef bytes_t p
    cdef Py_ssize_t size
    cdef int fault
    cdef list records = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <bytes_t>view.buf
        parse_whole(data, p, view.len, position, True, &batch)
        if check_crc:
            check_crc_of(data, p, position, &batch)
        p += position + HEADER_SIZE
        size = batch.size - HEADER_SIZE
        if batch.attributes & COMPRESSION_BITS:
            body = decompressed(p, size, &batch, clamped(limits.max_decompressed_bytes))
            PyObject_GetBuffer(body, &body_view, PyBUF_SIMPLE)
            has_body_view = True
            p = <bytes_t>body_view.buf
            size = body_view.len
        fault = begin_walk(&walk, &batch, p, size, clamped(limits.max_records), clamped(limits.max_headers))
        while fault == SOUND and walk.index < walk.count:
            fault = step(&walk, &record)
            if fault == SOUND and record.offset >= start_offset:
                records.append(_make_record(topic, partition, batch.leader_epoch, &walk, &record))
        if fault:
            raise invalid_record(fault, walk.index, batch.base_offset)
        return records
    finally:
        if has_body_view:
            PyBuffer_Release(&body_view)
        PyBuffer_Release(&view)


def without_aborted(data, aborted, *, bint check_crc=True):
    cdef Py_buffer view
    cdef BatchFields batch
    cdef bytes_t p
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t kept_to = 0
    cdef list kept = []
    cdef list coming = sorted(aborted, key=itemgetter(1), reverse=True)
    cdef set skipping = set()
    cdef long long next_first = coming[len(coming) - 1][1] if coming else 0
    whole = memoryview(data)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        p = <bytes_t>view.buf
        while position < view.len and (coming or skipping):
            if not parse_header(p + position, view.len - position, &batch) or batch.size > view.len - position:
                break
            while coming and next_first <= batch.base_offset + batch.last_offset_delta:
                skipping.add(coming.pop()[0])
                next_first = coming[len(coming) - 1][1] if coming else 0
            if skipping and batch.producer_id in skipping:
                if batch.attributes & CONTROL_FLAG:
                    if _is_abort_marker(data, position, check_crc):
                        skipping.discard(batch.producer_id)
                elif batch.attributes & TRANSACTIONAL_FLAG:
                    if check_crc:
                        check_crc_of(data, p, position, &batch)
                    if kept_to < position:
                        kept.append(whole[kept_to:position])
                    kept_to = position + batch.size
            position += batch.size
    except (CorruptMessageError, InvalidRecordError):
        pass
    finally:
        PyBuffer_Release(&view)
    if not kept_to:
        return [data]
    if kept_to < len(whole):
        kept.append(whole[kept_to:])
    return kept


cdef bint _is_abort_marker(data, Py_ssize_t position, bint check_crc) except -1:
    try:
        records = decode_batch(data, position)
    except InvalidRecordError:
        return False
    except CorruptMessageError:
        if check_crc:
            raise
        return True
    key = (<Record>records[0]).key if records else None
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == ABORT
