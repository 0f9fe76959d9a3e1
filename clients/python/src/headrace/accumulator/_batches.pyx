# cython: language_level=3, boundscheck=False, wraparound=False
"""Record batches to be sent, and their queues. ``_native.pyi`` has the contract of each method; ``_native.pyx`` has the
rules about the GIL."""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE

from headrace_core.records._native cimport BatchBuilder

from ._clock cimport monotonic_s
from ._metadata cimport RecordMetadata

import threading

from ..callbacks import SIGNALS_S, refuse_to_wait

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE

cdef extern from *:
    """
    /* Fourteen bytes of a batch change (and the transactional bit), and its CRC-32C with them. A CRC is linear: the
       new CRC is the old CRC xor the CRC of the changed bits. The CRC of the changed bits must be extended over the n
       unchanged bytes behind these bits. To extend this CRC, multiply it by x^8n modulo the polynomial (reflected, as
       in CRC-32C). So a batch of a megabyte need not be read again. */
    #define HEADRACE_CRC_POLYNOMIAL 0x82F63B78u
    static unsigned int headrace_powers[40];  /* x^(2^k) */
    static unsigned int headrace_times(unsigned int a, unsigned int b) {
        unsigned int product = 0;
        for (unsigned int bit = 1u << 31; bit; bit >>= 1) {
            if (a & bit) product ^= b;
            b = b & 1 ? (b >> 1) ^ HEADRACE_CRC_POLYNOMIAL : b >> 1;
        }
        return product;
    }
    static void headrace_prepare_powers(void) {
        headrace_powers[0] = 1u << 30;
        for (int k = 1; k < 40; k++) headrace_powers[k] = headrace_times(headrace_powers[k - 1], headrace_powers[k - 1]);
    }
    static void headrace_stamp(
        unsigned char *batch, long long size, long long producer_id, int epoch, int sequence, int transactional
    ) {
        unsigned char fields[35], *at = batch + 22, *crc_at = batch + 17;  /* from the attributes on */
        unsigned int difference = 0, crc;
        int first = transactional ? 0 : 21;
        long long bytes = size - 57;
        for (int i = first; i < 21; i++) fields[i] = at[i];
        if (transactional) fields[0] |= 0x10;
        for (int i = 0; i < 8; i++) fields[21 + i] = (unsigned char)((unsigned long long)producer_id >> (56 - 8 * i));
        for (int i = 0; i < 2; i++) fields[29 + i] = (unsigned char)((unsigned int)epoch >> (8 - 8 * i));
        for (int i = 0; i < 4; i++) fields[31 + i] = (unsigned char)((unsigned int)sequence >> (24 - 8 * i));
        for (int i = first; i < 35; i++) {
            difference ^= fields[i] ^ at[i];
            for (int bit = 0; bit < 8; bit++)
                difference = difference & 1 ? (difference >> 1) ^ HEADRACE_CRC_POLYNOMIAL : difference >> 1;
            at[i] = fields[i];
        }
        for (int k = 3; bytes; k++, bytes >>= 1)
            if (bytes & 1) difference = headrace_times(headrace_powers[k], difference);
        crc = (unsigned int)crc_at[0] << 24 | (unsigned int)crc_at[1] << 16 | (unsigned int)crc_at[2] << 8 | crc_at[3];
        crc ^= difference;
        for (int i = 0; i < 4; i++) crc_at[i] = (unsigned char)(crc >> (24 - 8 * i));
    }
    """
    void headrace_prepare_powers()
    void headrace_stamp(
        unsigned char* batch, long long size, long long producer_id, int epoch, int sequence, int transactional
    )

headrace_prepare_powers()


cdef class Ledger:
    """Counts the unacknowledged bytes and records. ``Ledger`` is the base class of the accumulator; batches use only
    this part of the accumulator."""

    def add_space_waiter(self, waiter):
        """Register ``waiter`` to be called when a quarter of the buffer is free, or the accumulator is closed. Return
        False, and register nothing, if the buffer has free space now, or the accumulator is closed."""
        if self.buffered_bytes < self.buffer_bytes or self.state != 0:
            return False
        self._space_waiters.append(waiter)
        return True

    def space_freed(self):
        """Call the waiters if a quarter of the buffer is free, or the accumulator is closed."""
        self._space_freed()

    cdef int _space_freed(self) except -1:
        cdef list none_left
        if self._space_waiters and (self.buffered_bytes <= self.buffer_bytes // 4 * 3 or self.state != 0):
            none_left = []
            waiters = self._space_waiters
            self._space_waiters = none_left
            for waiter in waiters:
                waiter()
        return 0


cdef class SendBatch:
    """A record batch, from its first record to its outcome. The records are in ``builder`` while the batch is open, and
    in ``data`` once the batch is sealed."""

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

    def stamp(self, long long producer_id, int producer_epoch, int base_sequence):
        """Write an idempotent producer's id, epoch and sequence, and the flag of a transactional producer, into the
        batch. The bytes are changed in place, because no other code reads the batch yet."""
        data = self.data
        if data is None:
            return
        if not PyBytes_CheckExact(data) or PyBytes_GET_SIZE(data) < 61:
            raise ValueError("not a record batch: a batch has at least 61 bytes")
        headrace_stamp(
            <unsigned char*>PyBytes_AS_STRING(data),
            PyBytes_GET_SIZE(data),
            producer_id,
            producer_epoch,
            base_sequence,
            self.queue.topic.accumulator.transactional,
        )

    def finish(self, long long base_offset, long long log_append_time_ms, error):
        cdef Ledger accumulator = self.queue.topic.accumulator
        cdef list waiters
        if self.done:
            return []
        builder = self.builder  # ``builder`` keeps freed objects alive until the step ends
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
        accumulator._space_freed()
        return waiters

    def wait(self, timeout_s):
        if not self.done:
            if timeout_s is None or timeout_s > 0:
                refuse_to_wait("result()")
            if self._event is None:
                event = threading.Event()
                if self._event is None:
                    self._event = event
            if not self.done:  # ``finish`` sees the event, unless it has already set ``done``
                while not self._event.wait(SIGNALS_S if timeout_s is None else timeout_s) and timeout_s is None:
                    pass
        return self.done

    def add_waiter(self, waiter):
        if self.done:
            return False
        self._waiters.append(waiter)
        return True

    def __del__(self):
        """Report the records of a failed batch that nobody has read and nobody can read any more: the program has
        dropped their futures, which refer to the batch."""
        unread = (<Ledger>self.queue.topic.accumulator).unread
        if self.error is not None and self.reads < self.count and unread is not None:
            unread(self, self.count - self.reads)

    def failure(self):
        """Return a copy of the error of a failed batch, else None. Each record's future raises its own copy, because a
        raised error gets a traceback, which refers to the caller's frame and usually to a future. The garbage collector
        does not track futures, so a traceback on the batch's own error would keep the frame in memory forever."""
        return None if self.error is None else self.error.copy()

    cdef object metadata(self, int index, long long timestamp_ms):
        if self.log_append_time_ms >= 0:
            timestamp_ms = self.log_append_time_ms
        cdef RecordMetadata found = RecordMetadata.__new__(RecordMetadata)
        found.topic = self.queue.topic.name
        found.partition = self.queue.partition
        found.offset = self.base_offset + index if self.base_offset >= 0 else -1
        found.timestamp_ms = timestamp_ms
        return found


cdef class PartitionQueue:
    """Batches waiting to be sent to one partition."""

    def __init__(self, TopicQueues topic not None, int partition):
        self.topic = topic
        self.partition = partition
        self.sealed = []

    def requeue(self, batches):
        """Put batches (oldest first) back at the head of the queue."""
        self.sealed[:0] = batches


cdef class TopicQueues:
    """The partition queues of a topic, and its sticky partition. A new sticky partition is one of the partitions with
    a leader, if there are any."""

    def __init__(self, Ledger accumulator not None, str name not None, int partitions, Py_ssize_t max_batch_bytes):
        self.accumulator = accumulator
        self.name = name
        self.queues = [PartitionQueue(self, number) for number in range(partitions)]
        self.available = list(range(partitions))
        self.max_batch_bytes = max_batch_bytes
        self._chance = <unsigned long long>(monotonic_s() * 1e9) | 1
        self.sticky = self._below(partitions)

    def grow(self, int partitions):
        self.queues = self.queues + [PartitionQueue(self, number) for number in range(len(self.queues), partitions)]

    def shrink(self, int partitions):
        cdef list fewer = self.queues[:partitions]
        if self.sticky >= partitions:  # one atomic step begins: no line below may run Python code
            self.sticky = self._below(partitions)
        self.queues = fewer

    cdef Py_ssize_t _below(self, Py_ssize_t limit) noexcept:
        # xorshift64*: Python's random would run Python code inside a step
        self._chance ^= self._chance >> 12
        self._chance ^= self._chance << 25
        self._chance ^= self._chance >> 27
        return <Py_ssize_t>(((self._chance * <unsigned long long>0x2545F4914F6CDD1D) >> 33) % <unsigned long long>limit)

    cdef int _choose(self) except -1:
        cdef list choices = self.available
        cdef Py_ssize_t count = PyList_GET_SIZE(choices)
        cdef Py_ssize_t at, one, other
        self.sticky_bytes = 0
        if PyList_GET_SIZE(self.queues) == 0:  # another thread has closed the producer
            return 0
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
