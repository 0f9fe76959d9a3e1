# cython: language_level=3, boundscheck=False, wraparound=False
"""The producer's hot path, compiled. ``_pure.py`` is the reference: names, arguments and meaning are the same.

**No lock.** Whatever must happen as one step is C code that keeps the GIL: appending to a batch, sealing it, taking it
away, setting an outcome. Inside such a step nothing may run Python code, or another thread could get in between: no
callback, no Python function, and no allocation of a garbage-collected object, for a collection runs finalizers. Where a
step must allocate one (a new batch, headers), the collector is off for that moment.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject

from headrace_core.records._native cimport BatchBuilder

import asyncio
import threading


from ..models import RecordMetadata
from ._pure import too_large

cdef extern from "Python.h":
    int PyGC_Disable()
    int PyGC_Enable()

cdef extern from *:
    """
    #include <time.h>
    #include <unistd.h>
    static inline long long headrace_now_ms(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    static inline double headrace_monotonic_s(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
        return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    static inline unsigned int headrace_word(const unsigned char *p) {
        unsigned int v; __builtin_memcpy(&v, p, 4);
    #if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        v = __builtin_bswap32(v);
    #endif
        return v;
    }
    """
    long long now_ms "headrace_now_ms"() noexcept nogil
    double monotonic_s "headrace_monotonic_s"() noexcept nogil
    unsigned int word "headrace_word"(const unsigned char* p) noexcept nogil
    int usleep(unsigned int microseconds) noexcept nogil

cdef enum:
    STICKY_MIN = 16384
    OPEN_STATE = 0

cdef object _new_tuple = tuple.__new__
cdef object _Metadata = RecordMetadata


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
    """The partition of each key of a large_binary Arrow array (addresses of its buffers), -1 for null, as int32s."""
    cdef const long long* ends = <const long long*>offsets
    cdef const unsigned char* base = <const unsigned char*>data
    cdef const unsigned char* valid = <const unsigned char*>validity
    cdef unsigned char[::1] view = out
    cdef int* result
    cdef Py_ssize_t row, at
    if view.shape[0] < rows * 4:
        raise ValueError("out is too small")
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


cdef class SendBatch:
    """One batch on its way: ``builder`` while it is open, ``data`` once it is sealed, then the outcome."""

    cdef readonly PartitionQueue queue
    cdef public object builder
    cdef BatchBuilder _builder  # the same, while it is open
    cdef public object data
    cdef public int count
    cdef public Py_ssize_t size
    cdef public double created_s
    cdef readonly long long sequence
    cdef public int attempts
    cdef public bint in_flight
    cdef public bint maybe_written
    cdef readonly bint done
    cdef readonly long long base_offset
    cdef readonly long long log_append_time_ms
    cdef readonly object error
    cdef object _event
    cdef list _waiters

    def __cinit__(self, PartitionQueue queue, builder, data=None, int count=0):
        self.queue = queue
        self.builder = builder
        if builder is not None:
            self._builder = <BatchBuilder>builder
        self.data = data
        self.count = count
        self.size = 0 if data is None else len(data)
        self.created_s = monotonic_s()
        queue.sequence += 1
        self.sequence = queue.sequence
        self.base_offset = -1
        self.log_append_time_ms = -1
        self._waiters = []

    def finish(self, long long base_offset, long long log_append_time_ms, error):
        cdef Accumulator accumulator = self.queue.topic.accumulator
        cdef list waiters
        if self.done:
            return []
        builder = self.builder  # keeps what is freed alive until the step is over
        data = self.data
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self.error = error
        self.done = True
        waiters = self._waiters
        self._waiters = None
        self.data = None
        self.builder = None
        self._builder = None
        accumulator.unfinished.discard(self)
        accumulator.buffered_bytes -= self.size
        self.queue.bytes -= self.size
        if self.queue.open is self:
            self.queue.open = None
        if self._event is not None:
            self._event.set()
        accumulator.space_freed()
        return waiters

    def wait(self, timeout_s):
        if not self.done:
            if self._event is None:
                event = threading.Event()
                if self._event is None:
                    self._event = event
            if not self.done:  # asked after the event can be seen by finish
                self._event.wait(timeout_s)
        return self.done

    def add_waiter(self, waiter):
        if self.done:
            return False
        self._waiters.append(waiter)
        return True

    cdef object metadata(self, int index, long long timestamp_ms):
        if self.log_append_time_ms >= 0:
            timestamp_ms = self.log_append_time_ms
        return _new_tuple(
            _Metadata,
            (
                self.queue.topic.name,
                self.queue.partition,
                self.base_offset + index if self.base_offset >= 0 else -1,
                timestamp_ms,
            ),
        )


@cython.final
@cython.no_gc  # it refers to its batch, and no batch refers to futures once it is done
@cython.freelist(256)
cdef class RecordFuture:
    """The outcome of one record, to be: ask it, wait for it, or have a callback called."""

    cdef SendBatch _batch
    cdef int _index
    cdef long long _timestamp_ms

    def __init__(self, SendBatch batch not None, int index, long long timestamp_ms):
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self):
        """Whether the outcome is known."""
        return self._batch.done

    def result(self, timeout=None):
        """Where the record went; waits up to ``timeout`` seconds (TimeoutError), raises the record's failure."""
        if not self._batch.done:
            self._wait(timeout)
        if self._batch.error is not None:
            raise self._batch.error
        return self._batch.metadata(self._index, self._timestamp_ms)

    def exception(self, timeout=None):
        """The record's failure, None when it was acknowledged; waits like result."""
        if not self._batch.done:
            self._wait(timeout)
        return self._batch.error

    def add_done_callback(self, callback):
        """Call ``callback(self)`` on the I/O thread once the outcome is known, at once when it is. Keep it short."""
        if not self._batch.add_waiter((self, callback)):
            callback(self)

    cdef int _wait(self, timeout) except -1:
        if not self._batch.wait(timeout):
            raise TimeoutError(f"no outcome after {timeout:g} s; the record is still being sent")
        return 0


@cython.final
@cython.no_gc  # its callbacks are dropped when its batch is done, which every batch is in the end
@cython.freelist(256)
cdef class AsyncRecordFuture:
    """The outcome of one record for asyncio: await it, or give it to gather, wait, shield, as any asyncio future.

    Cancelling it only gives up waiting: the record is on its way.
    """

    cdef SendBatch _batch
    cdef int _index
    cdef long long _timestamp_ms
    cdef list _callbacks
    cdef object _loop
    cdef bint _cancelled
    cdef public bint _asyncio_future_blocking

    def __init__(self, SendBatch batch not None, int index, long long timestamp_ms):
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms

    def done(self):
        """Whether the outcome is known (or waiting for it was given up)."""
        return self._cancelled or self._batch.done

    def cancelled(self):
        return self._cancelled

    def result(self):
        """Where the record went; raises its failure, asyncio.InvalidStateError before the outcome is known."""
        error = self.exception()
        if error is not None:
            raise error
        return self._batch.metadata(self._index, self._timestamp_ms)

    def exception(self):
        """The record's failure, None when it was acknowledged."""
        if self._cancelled:
            raise asyncio.CancelledError
        if not self._batch.done:
            raise asyncio.InvalidStateError("the outcome is not known yet")
        return self._batch.error

    def get_loop(self):
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def add_done_callback(self, callback, *, context=None):
        """Call ``callback(self)`` soon, on the running loop, once the outcome is known."""
        loop = self.get_loop()
        if not self._cancelled:
            if self._callbacks is not None:
                self._callbacks.append((callback, context))
                return
            self._callbacks = [(callback, context)]
            if self._batch.add_waiter(self):
                return
            self._callbacks = None
        loop.call_soon(callback, self, context=context)

    def remove_done_callback(self, callback):
        """Take back add_done_callback; returns how many were taken back."""
        if self._callbacks is None:
            return 0
        kept = [item for item in self._callbacks if item[0] != callback]
        removed = len(self._callbacks) - len(kept)
        self._callbacks = kept
        return removed

    def cancel(self, msg=None):
        """Give up waiting. The record is sent all the same."""
        if self._cancelled or self._batch.done:
            return False
        self._cancelled = True
        self.run_callbacks()
        return True

    def run_callbacks(self):
        """On the loop: schedule the callbacks."""
        callbacks = self._callbacks
        self._callbacks = None
        if callbacks is not None:
            loop = self.get_loop()
            for callback, context in callbacks:
                loop.call_soon(callback, self, context=context)

    def __await__(self):
        if self._batch.done or self._cancelled:
            return Sent.__new__(Sent, self.result())
        return self._wait_for_it()

    def __iter__(self):
        return self.__await__()

    def _wait_for_it(self):
        self._asyncio_future_blocking = True
        yield self
        return self.result()


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Sent:
    """An awaitable that has its result already: what an asyncio send returns when it need not wait."""

    cdef object _result

    def __cinit__(self, result):
        self._result = result

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration(self._result)

    def send(self, value):
        raise StopIteration(self._result)

    def throw(self, *error):
        raise error[1] if len(error) > 1 and error[1] is not None else error[0]

    def close(self):
        pass


cdef class PartitionQueue:
    """What waits to be sent to one partition."""

    cdef readonly TopicQueues topic
    cdef readonly int partition
    cdef public SendBatch open
    cdef readonly list sealed
    cdef public bint listed
    cdef public Py_ssize_t bytes
    cdef readonly long long sequence
    cdef public object sender

    def __init__(self, TopicQueues topic not None, int partition):
        self.topic = topic
        self.partition = partition
        self.sealed = []

    def requeue(self, batches):
        """Put batches, oldest first, before those that wait."""
        self.sealed[:0] = batches


cdef class TopicQueues:
    """A topic's queues, and the sticky one among those that have a leader."""

    cdef readonly Accumulator accumulator
    cdef readonly str name
    cdef public list queues
    cdef public list available
    cdef public Py_ssize_t max_batch_bytes
    cdef public Py_ssize_t sticky
    cdef public Py_ssize_t sticky_bytes
    cdef unsigned long long _chance

    def __init__(self, Accumulator accumulator not None, str name not None, int partitions, Py_ssize_t max_batch_bytes):
        self.accumulator = accumulator
        self.name = name
        self.queues = [PartitionQueue(self, number) for number in range(partitions)]
        self.available = list(range(partitions))
        self.max_batch_bytes = max_batch_bytes
        self._chance = <unsigned long long>(monotonic_s() * 1e9) | 1
        self.sticky = self._below(partitions)

    def grow(self, int partitions):
        self.queues = self.queues + [PartitionQueue(self, number) for number in range(len(self.queues), partitions)]

    cdef Py_ssize_t _below(self, Py_ssize_t limit) noexcept:
        # xorshift64*: chance without Python's random, which would run Python code inside a step
        self._chance ^= self._chance >> 12
        self._chance ^= self._chance << 25
        self._chance ^= self._chance >> 27
        return <Py_ssize_t>(((self._chance * <unsigned long long>0x2545F4914F6CDD1D) >> 33) % <unsigned long long>limit)

    cdef int _choose(self) except -1:
        cdef list choices = self.available
        cdef Py_ssize_t count = PyList_GET_SIZE(choices)
        cdef Py_ssize_t at, one, other
        self.sticky_bytes = 0
        if count == 0:
            self.sticky = self._below(PyList_GET_SIZE(self.queues))
            return 0
        at = self._below(count)
        one = <object>PyList_GET_ITEM(choices, at)
        other = <object>PyList_GET_ITEM(choices, self._below(count))
        if one == self.sticky:
            one = <object>PyList_GET_ITEM(choices, (at + 1) % count)
        if (
            not self.accumulator.adaptive
            or other == self.sticky
            or (<PartitionQueue>self.queues[one]).bytes <= (<PartitionQueue>self.queues[other]).bytes
        ):
            self.sticky = one
        else:
            self.sticky = other
        return 0

    def choose_sticky(self):
        self._choose()


@cython.final
cdef class Accumulator:
    """Takes records in and gathers them into batches."""

    cdef readonly Py_ssize_t batch_bytes
    cdef readonly Py_ssize_t buffer_bytes
    cdef readonly bint adaptive
    cdef readonly bint ignore_keys
    cdef readonly object partitioner
    cdef readonly object key_serializer
    cdef readonly object value_serializer
    cdef public int state
    cdef public Py_ssize_t buffered_bytes
    cdef readonly long long records_appended
    cdef readonly dict topics
    cdef readonly set unfinished
    cdef list ready
    cdef public bint awake
    cdef public list space_waiters
    cdef public bint breathe
    cdef public unsigned int yield_us
    cdef object _wake
    cdef object _slow
    cdef bint _custom
    cdef bint _call_wake
    cdef str _last_name
    cdef TopicQueues _last_topic

    def __init__(
        self,
        *,
        Py_ssize_t batch_bytes,
        Py_ssize_t buffer_bytes,
        wake,
        slow,
        bint adaptive=True,
        bint ignore_keys=False,
        partitioner=None,
        key_serializer=None,
        value_serializer=None,
    ):
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.adaptive = adaptive
        self.ignore_keys = ignore_keys
        self.partitioner = partitioner
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self._custom = not (partitioner is None and key_serializer is None and value_serializer is None)
        self._wake = wake
        self._slow = slow
        self.state = OPEN_STATE
        self.topics = {}
        self.unfinished = set()
        self.ready = []
        self.space_waiters = []
        self.yield_us = 50

    # --- callers ---------------------------------------------------------------------------------------------------

    def send(
        self, str topic not None, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None
    ):
        cdef RecordFuture future
        cdef SendBatch batch
        cdef int index = 0
        cdef long long when = 0
        if on_delivery is None:
            try:
                batch = self._append(topic, value, key, headers, partition, timestamp_ms, &index, &when)
            except IndexError:  # no such partition, as far as we know: the slow way asks again
                batch = None
            if batch is not None:
                future = RecordFuture.__new__(RecordFuture)
                future._batch = batch
                future._index = index
                future._timestamp_ms = when
                if self.breathe:
                    # A batch has just become full. The I/O thread may have waited for the GIL since; a thread that
                    # never sleeps would keep it for another 5 ms (sys.getswitchinterval).
                    self.breathe = False
                    if self.yield_us:
                        with nogil:
                            usleep(self.yield_us)
                return future
        return self._slow(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def send_async(self, str topic not None, value=None, key=None, headers=None, partition=None, timestamp_ms=None):
        cdef AsyncRecordFuture future
        cdef SendBatch batch
        cdef int index = 0
        cdef long long when = 0
        if self.breathe:
            self.breathe = False
        else:
            try:
                batch = self._append(topic, value, key, headers, partition, timestamp_ms, &index, &when)
            except IndexError:
                batch = None
            if batch is not None:
                future = AsyncRecordFuture.__new__(AsyncRecordFuture)
                future._batch = batch
                future._index = index
                future._timestamp_ms = when
                return Sent.__new__(Sent, future)
        return self._slow(topic, value, key, headers, partition, timestamp_ms, None)

    def append(self, future_class, str topic not None, value, key, headers, partition, timestamp_ms):
        cdef int index = 0
        cdef long long when = 0
        cdef SendBatch batch = self._append(topic, value, key, headers, partition, timestamp_ms, &index, &when)
        return None if batch is None else future_class(batch, index, when)

    def append_many(self, str topic not None, list values not None, Py_ssize_t start, partition, long long timestamp_ms, list runs not None):
        cdef TopicQueues known = self.topics.get(topic)
        cdef Py_ssize_t count = PyList_GET_SIZE(values)
        cdef Py_ssize_t fields
        cdef PartitionQueue queue
        cdef SendBatch batch
        cdef list run = None
        cdef tuple parts
        cdef int index = 0
        cdef object item, key, value, headers, chosen
        if known is None:
            return start
        while start < count and self.state == OPEN_STATE and self.buffered_bytes < self.buffer_bytes:
            if start >= PyList_GET_SIZE(values):
                break
            item = values[start]
            key = headers = None
            value = item
            if isinstance(item, tuple):
                parts = <tuple>item
                fields = len(parts)
                if not 2 <= fields <= 3:
                    raise TypeError(f"record {start} is a tuple of {fields}, not (key, value[, headers])")
                key = parts[0]
                value = parts[1]
                if fields == 3 and parts[2] is not None:
                    headers = list(parts[2])
            chosen = partition
            if self._custom:
                if self.key_serializer is not None:
                    key = self.key_serializer(topic, key)
                if self.value_serializer is not None:
                    value = self.value_serializer(topic, value)
                if chosen is None and self.partitioner is not None:
                    chosen = self.partitioner(topic, key, value, len(known.queues))
            queue = self._queue_for(known, key, chosen)
            batch = self._put(queue, timestamp_ms, key, value, headers, self._is_sticky(key, chosen), &index)
            if run is None or run[0] is not batch or <int>run[1] + <int>run[2] != index:
                run = [batch, index, 1]
                runs.append(run)
            else:
                run[2] = <int>run[2] + 1
            start += 1
            if self._call_wake:
                self._call_wake = False
                self._wake()
            if self.breathe:
                self.breathe = False
                if self.yield_us:
                    with nogil:
                        usleep(self.yield_us)
        return start

    def append_encoded(self, str topic not None, int partition, bytes data not None, int count):
        cdef TopicQueues known = self.topics.get(topic)
        cdef PartitionQueue queue
        cdef SendBatch batch
        if known is None or self.state != OPEN_STATE or self.buffered_bytes >= self.buffer_bytes:
            return None
        queue = self._queue_for(known, None, partition)
        batch = SendBatch(queue, None, data, count)
        self._seal(queue)
        self.unfinished.add(batch)
        queue.sealed.append(batch)
        self.buffered_bytes += batch.size
        queue.bytes += batch.size
        self.records_appended += count
        self._announce(queue, True)
        if self._call_wake:
            self._call_wake = False
            self._wake()
        return batch

    cdef SendBatch _append(
        self,
        str topic,
        object value,
        object key,
        object headers,
        object partition,
        object timestamp_ms,
        int* index,
        long long* when,
    ):
        cdef TopicQueues known
        cdef PartitionQueue queue
        cdef SendBatch batch
        if topic is self._last_name:
            known = self._last_topic
        else:
            known = self.topics.get(topic)
            if known is None:
                return None
            self._last_name = topic
            self._last_topic = known
        if self.state != OPEN_STATE or self.buffered_bytes >= self.buffer_bytes:
            return None
        if headers is not None:
            headers = list(headers)
        if self._custom:
            if self.key_serializer is not None:
                key = self.key_serializer(topic, key)
            if self.value_serializer is not None:
                value = self.value_serializer(topic, value)
            if partition is None and self.partitioner is not None:
                partition = self.partitioner(topic, key, value, len(known.queues))
        when[0] = now_ms() if timestamp_ms is None else timestamp_ms
        queue = self._queue_for(known, key, partition)
        batch = self._put(queue, when[0], key, value, headers, self._is_sticky(key, partition), index)
        if self._call_wake:
            self._call_wake = False
            self._wake()
        return batch

    cdef inline bint _is_sticky(self, object key, object partition) noexcept:
        return partition is None and (key is None or self.ignore_keys)

    cdef PartitionQueue _queue_for(self, TopicQueues known, object key, object partition):
        cdef PartitionQueue queue
        cdef Py_ssize_t number
        if partition is not None:
            number = partition
            if not 0 <= number < PyList_GET_SIZE(known.queues):
                raise IndexError(number)
            return <PartitionQueue>known.queues[number]
        if key is not None and not self.ignore_keys:
            if PyBytes_CheckExact(key):
                number = hash_key(<const unsigned char*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF
            else:
                number = <unsigned int>murmur2(key) & 0x7FFFFFFF
            return <PartitionQueue>known.queues[number % PyList_GET_SIZE(known.queues)]
        queue = <PartitionQueue>known.queues[known.sticky]
        if queue.open is None and known.sticky_bytes >= STICKY_MIN:
            known._choose()
            queue = <PartitionQueue>known.queues[known.sticky]
        return queue

    cdef SendBatch _put(
        self,
        PartitionQueue queue,
        long long timestamp_ms,
        object key,
        object value,
        object headers,
        bint sticky,
        int* index,
    ):
        cdef SendBatch batch = queue.open
        cdef BatchBuilder builder
        cdef TopicQueues topic = queue.topic
        cdef const char* key_data = NULL
        cdef const char* value_data = NULL
        cdef Py_ssize_t key_size = -1
        cdef Py_ssize_t value_size = -1
        cdef Py_ssize_t grown
        cdef int at
        cdef bint plain = headers is None
        cdef bint collecting = False
        if PyBytes_CheckExact(value):
            value_data = PyBytes_AS_STRING(value)
            value_size = PyBytes_GET_SIZE(value)
        elif value is not None:
            plain = False
        if key is not None:
            if PyBytes_CheckExact(key):
                key_data = PyBytes_AS_STRING(key)
                key_size = PyBytes_GET_SIZE(key)
            else:
                plain = False
        if batch is not None and plain:
            builder = batch._builder
            at = builder.append_raw(timestamp_ms, key_data, key_size, value_data, value_size, None)
            if at > 0:
                self._count(queue, batch, builder)
                index[0] = at
                return batch
        collecting = PyGC_Disable()
        try:
            while True:
                batch = queue.open
                if batch is None:
                    batch = SendBatch(queue, BatchBuilder(min(self.batch_bytes, topic.max_batch_bytes)))
                builder = batch._builder
                if plain:
                    at = builder.append_raw(timestamp_ms, key_data, key_size, value_data, value_size, None)
                else:
                    at = builder._append(timestamp_ms, key, value, headers)
                if at >= 0:
                    break
                self._seal(queue)
                if sticky and topic.sticky_bytes >= STICKY_MIN:
                    topic._choose()
                    queue = <PartitionQueue>topic.queues[topic.sticky]
            if at == 0:
                if builder._used > topic.max_batch_bytes or builder._used > self.buffer_bytes:
                    raise too_large(topic.name, builder._used, topic.max_batch_bytes, self.buffer_bytes)
                queue.open = batch
                self.unfinished.add(batch)
            self._count(queue, batch, builder)
        finally:
            if collecting:
                PyGC_Enable()
        index[0] = at
        return batch

    cdef inline void _count(self, PartitionQueue queue, SendBatch batch, BatchBuilder builder) noexcept:
        cdef Py_ssize_t grown = builder._used - batch.size
        batch.size += grown
        batch.count += 1
        self.buffered_bytes += grown
        self.records_appended += 1
        queue.bytes += grown
        queue.topic.sticky_bytes += grown
        if not queue.listed:
            self._announce(queue, False)

    cdef int _seal(self, PartitionQueue queue) except -1:
        if queue.open is not None:
            queue.sealed.append(queue.open)
            queue.open = None
            self.breathe = True
            self._announce(queue, True)
        return 0

    cdef void _announce(self, PartitionQueue queue, bint full) noexcept:
        if not queue.listed:
            queue.listed = True
            self.ready.append(queue)
        elif not full:
            return
        if not self.awake:
            self.awake = True
            self._call_wake = True  # called by whoever appends, once the step is over

    # --- the I/O thread --------------------------------------------------------------------------------------------

    def take_ready(self):
        empty = []
        ready = self.ready
        self.ready = empty
        self.awake = False
        return ready

    def take(self, PartitionQueue queue not None, *, bint partial):
        if not queue.sealed:
            if not partial or queue.open is None:
                return None
            batch = queue.open
            queue.open = None
            return batch
        return queue.sealed.pop(0)

    def leave_if_empty(self, PartitionQueue queue not None):
        if queue.sealed or queue.open is not None:
            return False
        queue.listed = False
        return True

    def snapshot_unfinished(self):
        return list(self.unfinished)

    def seal_all(self):
        cdef SendBatch batch
        unfinished = list(self.unfinished)
        for batch in unfinished:
            if batch.queue.open is batch:
                self._seal(batch.queue)
        if self._call_wake:
            self._call_wake = False
            self._wake()
        return unfinished

    def space_freed(self):
        if self.space_waiters and (self.buffered_bytes <= self.buffer_bytes // 4 * 3 or self.state != OPEN_STATE):
            waiters = self.space_waiters
            self.space_waiters = []
            for waiter in waiters:
                waiter()
