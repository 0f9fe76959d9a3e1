# cython: language_level=3, boundscheck=False, wraparound=False
"""The producer's hot path. ``_native.pyi`` has the contract of each method; tests/property has a model of the
accumulator.

**No lock.** Each atomic step is C code that keeps the GIL: append to a batch, seal a batch, take a batch, set an
outcome. An atomic step must run no Python code: no callback, no Python function, no allocation of a garbage-collected
object (a collection runs finalizers). Python code would let another thread run in the middle of the step. A step that
must allocate a garbage-collected object (a new batch, headers) switches the collector off until the step ends.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE

from headrace_core.records._native cimport BatchBuilder

from ._batches cimport Ledger, PartitionQueue, SendBatch, TopicQueues
from ._clock cimport now_ms, usleep
from ._futures cimport AsyncRecordFuture, RecordFuture, Sent
from ._murmur cimport hash_key

import inspect

from . import _batches, _futures, _metadata, _murmur
from ..serializers import WouldWait
from ._murmur import murmur2
from ._checks import (
    NoSuchPartition,
    header_list,
    partition_number,
    prepared,
    timestamp_of,
    too_large,
    wrong_topic,
    wrong_type,
)

cdef extern from *:
    """
    /* (a macro: it is used behind the definition of Cython's struct) */
    #define headrace_set_code(function, code) do { \
        PyObject *old = ((__pyx_CyFunctionObject *)(function))->func_code; \
        Py_INCREF(code); \
        ((__pyx_CyFunctionObject *)(function))->func_code = (code); \
        Py_XDECREF(old); \
    } while (0)
    """
    void set_code "headrace_set_code"(object function, object code)

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object pylong, int* overflow) except? -1
    bint PyLong_CheckExact(object o)
    bint PyUnicode_CheckExact(object o)
    bint PyTuple_CheckExact(object o)
    bint PyList_CheckExact(object o)
    Py_ssize_t PyTuple_GET_SIZE(object o)
    Py_ssize_t PyUnicode_GET_LENGTH(object o)
    bint PyUnicode_IS_ASCII(object o)
    int PyGC_Disable()
    int PyGC_Enable()

# A type that Cython imports with ``cimport`` is not an attribute of the module, so set these types as attributes.
globals().update(
    AsyncRecordFuture=_futures.AsyncRecordFuture,
    PartitionQueue=_batches.PartitionQueue,
    RecordFuture=_futures.RecordFuture,
    RecordMetadata=_metadata.RecordMetadata,
    SendBatch=_batches.SendBatch,
    TopicQueues=_batches.TopicQueues,
    key_partitions=_murmur.key_partitions,
)

cdef enum:
    STICKY_MIN = 16384
    ALONE = 96  # more than the header of a batch and the lengths and numbers of its only record
    PARTITION_MAX = 0x7FFFFFFF
    OPEN_STATE = 0
    WAKE_RECORDS = 256  # a power of two: wake the sender after this many records of a list


cdef Py_ssize_t _number(object partition) except -1:
    cdef int overflow = 0
    cdef long long number
    if PyLong_CheckExact(partition):
        number = PyLong_AsLongLongAndOverflow(partition, &overflow)
        if not overflow and 0 <= number <= PARTITION_MAX:
            return number
    return partition_number(partition)


cdef long long _when(object timestamp_ms) except? -2:
    cdef int overflow = 0
    cdef long long when
    if PyLong_CheckExact(timestamp_ms):
        when = PyLong_AsLongLongAndOverflow(timestamp_ms, &overflow)
        if not overflow and when >= -1:
            return when
    return timestamp_of(timestamp_ms)


cdef inline bint _is_plain(object data, Py_ssize_t* size) noexcept:
    """Whether ``data`` is bytes or None; adds its length to ``size``."""
    if data is None:
        return True
    if not PyBytes_CheckExact(data):
        return False
    size[0] += PyBytes_GET_SIZE(data)
    return True


cdef bint _are_plain(object headers, Py_ssize_t* size) noexcept:
    """Whether ``headers`` is a list of (ASCII text, bytes or None) pairs; adds an upper bound of their bytes to
    ``size``."""
    cdef object pair
    if not PyList_CheckExact(headers):
        return False
    for pair in <list>headers:
        if not PyTuple_CheckExact(pair) or PyTuple_GET_SIZE(pair) != 2:
            return False
        name = (<tuple>pair)[0]
        if not PyUnicode_CheckExact(name) or not PyUnicode_IS_ASCII(name) or not _is_plain((<tuple>pair)[1], size):
            return False
        size[0] += PyUnicode_GET_LENGTH(name) + 10
    return True


@cython.final
cdef class Accumulator(Ledger):
    """Gathers a producer's records into batches."""

    cdef readonly Py_ssize_t batch_bytes
    cdef readonly bint ignore_keys
    cdef readonly object partitioner
    cdef readonly object key_serializer
    cdef readonly object value_serializer
    cdef readonly long long records_appended
    cdef readonly dict topics
    cdef list ready
    cdef public bint awake
    cdef public bint breathe
    cdef public unsigned int yield_us
    cdef public long long untraced
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
        self._space_waiters = []
        self.yield_us = 50
        self.untraced = -1

    # --- callers ---------------------------------------------------------------------------------------------------

    def append(self, future_class, topic, value, key, headers, partition, timestamp_ms, trace=None):
        cdef int index = 0
        cdef long long when = 0
        cdef SendBatch batch = self._append(topic, value, key, headers, partition, timestamp_ms, trace, &index, &when)
        return None if batch is None else future_class(batch, index, when)

    def prepare_many(self, str topic not None, values, partition):
        cdef list items = list(values)
        cdef TopicQueues known = self.topics.get(topic)
        cdef Py_ssize_t limit, at, size
        cdef tuple parts
        cdef object item, headers
        if known is None or not PyList_GET_SIZE(known.queues):  # closed by another thread: append_many appends nothing
            return items
        limit = min(known.max_batch_bytes, self.buffer_bytes) - ALONE
        if partition is not None and partition >= PyList_GET_SIZE(known.queues):
            raise NoSuchPartition(partition)
        for at in range(PyList_GET_SIZE(items)):
            item = items[at]
            if not self._custom:
                if item is None or (PyBytes_CheckExact(item) and PyBytes_GET_SIZE(item) <= limit):
                    continue
                if PyTuple_CheckExact(item) and 2 <= PyTuple_GET_SIZE(item) <= 3:
                    parts = <tuple>item
                    size = 0
                    if _is_plain(parts[0], &size) and _is_plain(parts[1], &size) and size <= limit:
                        if PyTuple_GET_SIZE(item) == 2:
                            continue
                        headers = parts[2]
                        if headers is None or (_are_plain(headers, &size) and size <= limit):
                            items[at] = (parts[0], parts[1], None if headers is None else list(headers))
                            continue
            items[at] = prepared(self, known, item, at, partition)
        return items

    def append_many(
        self,
        str topic not None,
        list values not None,
        Py_ssize_t start,
        partition,
        long long timestamp_ms,
        list runs not None,
        trace=None,
    ):
        try:
            return self._append_many(topic, values, start, partition, timestamp_ms, runs, trace)
        finally:
            self._wake_sender()

    cdef Py_ssize_t _append_many(
        self,
        str topic,
        list values,
        Py_ssize_t start,
        object partition,
        long long timestamp_ms,
        list runs,
        object trace,
    ) except -1:
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
            chosen = partition
            if isinstance(item, tuple):
                parts = <tuple>item
                fields = len(parts)
                if not 2 <= fields <= 4:
                    raise wrong_type(topic, None, None, None, TypeError(f"a tuple of {fields} items"))
                key = parts[0]
                value = parts[1]
                if fields >= 3:
                    headers = parts[2]
                if fields == 4:
                    chosen = parts[3]
            queue = self._queue_for(known, key, chosen)
            batch = self._put(queue, timestamp_ms, key, value, headers, self._is_sticky(key, chosen), &index)
            if run is None or run[0] is not batch or <int>run[1] + <int>run[2] != index:
                run = [batch, index, 1]
                runs.append(run)
                if trace is not None and batch.trace is None:
                    batch.trace = trace
            else:
                run[2] = <int>run[2] + 1
            start += 1
            # Wake the sender once per WAKE_RECORDS records, or when a batch is full. If the first record woke the
            # sender, the sender could take the GIL and send this record alone.
            if self.breathe or not start & (WAKE_RECORDS - 1):
                self._wake_sender()
            if self.breathe:
                self.breathe = False
                if self.yield_us:
                    with nogil:
                        usleep(self.yield_us)
        return start

    def append_encoded(self, str topic not None, int partition, bytes data not None, int count, trace=None):
        cdef TopicQueues known = self.topics.get(topic)
        cdef PartitionQueue queue
        cdef SendBatch batch
        if known is None or self.state != OPEN_STATE or self.buffered_bytes >= self.buffer_bytes:
            return None
        queue = self._queue_for(known, None, partition)
        batch = SendBatch(queue, None, data, count)
        batch.trace = trace
        if self.state != OPEN_STATE:  # the allocation ran a finalizer, and with it perhaps another thread's close()
            return None
        self._seal(queue)
        self.unfinished.add(batch)
        queue.sealed.append(batch)
        self.buffered_bytes += batch.size
        queue.bytes += batch.size
        self.records_appended += count
        self._announce(queue, True)
        self._wake_sender()
        return batch

    cdef SendBatch _append(
        self,
        object topic,
        object value,
        object key,
        object headers,
        object partition,
        object timestamp_ms,
        object trace,
        int* index,
        long long* when,
    ):
        cdef TopicQueues known
        cdef PartitionQueue queue
        cdef SendBatch batch
        if topic is self._last_name and topic is not None:
            known = self._last_topic
        else:
            if not isinstance(topic, str):
                raise wrong_topic(topic)
            known = self.topics.get(topic)
            if known is None:
                return None
            self._last_name = topic
            self._last_topic = known
        if self.state != OPEN_STATE or self.buffered_bytes >= self.buffer_bytes:
            return None
        if headers is not None:
            headers = header_list(headers)
        if self._custom:
            if self.key_serializer is not None:
                key = self.key_serializer(topic, key)
            if self.value_serializer is not None:
                value = self.value_serializer(topic, value)
            if partition is None and self.partitioner is not None:
                if self.state != OPEN_STATE:  # closed while a serializer ran: the topic may have no queues
                    return None
                partition = self.partitioner(topic, key, value, len(known.queues))
                if partition is not None:
                    partition = _number(partition)  # ``_number`` runs the caller's code if the number is not an int
        when[0] = now_ms() if timestamp_ms is None else _when(timestamp_ms)
        if self.state != OPEN_STATE:  # closed while the caller's code ran: the record would never be sent
            return None
        queue = self._queue_for(known, key, partition)
        batch = self._put(queue, when[0], key, value, headers, self._is_sticky(key, partition), index)
        if trace is not None and batch.trace is None:
            batch.trace = trace  # before the wake-up: the sender may send the batch at once
        self._wake_sender()
        return batch

    cdef inline bint _is_untraced(self) noexcept:
        """Whether the producer may send the next record without calling the tracer. Counts down ``untraced``."""
        if self.untraced > 0:
            self.untraced -= 1
            return True
        return self.untraced < 0

    cdef inline bint _is_sticky(self, object key, object partition) noexcept:
        return partition is None and (key is None or self.ignore_keys)

    cdef PartitionQueue _queue_for(self, TopicQueues known, object key, object partition):
        cdef PartitionQueue queue
        cdef Py_ssize_t number
        if partition is not None:
            number = _number(partition)
            if number >= PyList_GET_SIZE(known.queues):
                raise NoSuchPartition(number)
            return <PartitionQueue>known.queues[number]
        if key is not None and not self.ignore_keys:
            if PyBytes_CheckExact(key):
                number = hash_key(<const unsigned char*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & 0x7FFFFFFF
            else:
                try:
                    number = <unsigned int>murmur2(key) & 0x7FFFFFFF
                except (TypeError, ValueError, BufferError) as error:
                    raise wrong_type(known.name, key, None, None, error) from None
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
                    try:
                        at = builder._append(timestamp_ms, key, value, headers)
                    except (TypeError, ValueError, BufferError) as error:
                        raise wrong_type(topic.name, key, value, headers, error) from None
                if at >= 0:
                    break
                self._seal(queue)
                if sticky and topic.sticky_bytes >= STICKY_MIN:
                    topic._choose()
                    queue = <PartitionQueue>topic.queues[topic.sticky]
            if at == 0:
                if builder._used > topic.max_batch_bytes or builder._used > self.buffer_bytes:
                    self._wake_sender()  # this record sealed the previous batch
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
            self._call_wake = True  # the caller of this step calls the sender's wake after the step

    cdef inline int _wake_sender(self) except -1:
        if self._call_wake:
            self._call_wake = False
            self._wake()
        return 0

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

    def close(self):
        cdef TopicQueues known
        cdef list none_left
        self._last_name = None
        self._last_topic = None
        self.ready = []
        topics = list(self.topics.values())
        self.topics.clear()
        for known in topics:
            none_left = []
            known.queues = none_left  # each queue refers to its topic

    def snapshot_unfinished(self):
        return list(self.unfinished)

    def seal_all(self):
        cdef SendBatch batch
        unfinished = list(self.unfinished)
        for batch in unfinished:
            if batch.queue.open is batch:
                self._seal(batch.queue)
        self._wake_sender()
        return unfinished


def _not_made(producer):
    return TypeError(f"{type(producer).__name__}.__init__ did not call super().__init__()")


cdef class NativeProducer:
    """The compiled part of Producer: ``send``, without a Python frame for each record."""

    cdef Accumulator _accumulator

    def __init__(self, Accumulator accumulator not None):
        self._accumulator = accumulator

    @cython.annotation_typing(False)
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture:
        """Queue one record; returns a future for its RecordMetadata.

        ``value`` and ``key`` are bytes or None, or what the serializers accept; ``timestamp_ms`` (since 1970) defaults
        to now. ``on_delivery(metadata, error)`` is called on the I/O thread and must not block. In ``on_delivery``,
        calls of ``flush``, ``close`` and ``result`` raise IllegalStateError, and a send into a full buffer raises
        BufferTimeoutError at once.

        Raises RecordTooLargeError, SerializationError, InvalidArgumentError (no such partition),
        UnknownTopicOrPartitionError, BufferTimeoutError (buffer full), BootstrapError, ClosedError. Delivery errors
        after ``send`` has returned are raised by the future.
        """
        cdef Accumulator accumulator = self._accumulator
        cdef RecordFuture future
        cdef SendBatch batch
        cdef int index = 0
        cdef long long when = 0
        if accumulator is None:
            raise _not_made(self)
        if on_delivery is None and accumulator._is_untraced():
            try:
                batch = accumulator._append(topic, value, key, headers, partition, timestamp_ms, None, &index, &when)
            except (NoSuchPartition, WouldWait):  # the slow path waits for what is missing
                batch = None
            if batch is not None:
                future = RecordFuture.__new__(RecordFuture)
                future._batch = batch
                future._index = index
                future._timestamp_ms = when
                if accumulator.breathe:
                    # An append has just filled a batch. Sleep briefly, because the I/O thread may be waiting for the
                    # GIL: without a sleep, this thread would keep the GIL for another 5 ms (sys.getswitchinterval).
                    accumulator.breathe = False
                    if accumulator.yield_us:
                        with nogil:
                            usleep(accumulator.yield_us)
                return future
        return accumulator._slow(topic, value, key, headers, partition, timestamp_ms, on_delivery)


cdef class NativeAsyncProducer:
    """The compiled part of AsyncProducer: ``send``."""

    cdef Accumulator _accumulator

    def __init__(self, Accumulator accumulator not None):
        self._accumulator = accumulator

    @cython.annotation_typing(False)
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Coroutine[Any, Any, AsyncRecordFuture]:
        """Queue one record. Await the call to get a future; await the future to get the record's RecordMetadata.

        Arguments and errors are the same as in Producer.send. To register a callback, call ``add_done_callback`` of the
        future.
        """
        cdef Accumulator accumulator = self._accumulator
        cdef Sent sent
        cdef AsyncRecordFuture future
        cdef SendBatch batch
        cdef int index = 0
        cdef long long when = 0
        if accumulator is None:
            raise _not_made(self)
        if accumulator.breathe:
            accumulator.breathe = False
        elif accumulator._is_untraced():
            try:
                batch = accumulator._append(topic, value, key, headers, partition, timestamp_ms, None, &index, &when)
            except (NoSuchPartition, WouldWait):  # the slow path awaits what is missing
                batch = None
            if batch is not None:
                future = AsyncRecordFuture.__new__(AsyncRecordFuture)
                future._batch = batch
                future._index = index
                future._timestamp_ms = when
                sent = <Sent>Sent.__new__(Sent)
                sent._result = future
                return sent
        return accumulator._slow(topic, value, key, headers, partition, timestamp_ms, None)


# Frameworks (Starlette's BackgroundTasks, mock.create_autospec) await what inspect and asyncio call a coroutine function.
# They look at the flags of its code object, which is there for them and for tracebacks.
set_code(NativeAsyncProducer.send, NativeAsyncProducer.send.__code__.replace(
    co_flags=NativeAsyncProducer.send.__code__.co_flags | inspect.CO_COROUTINE
))
