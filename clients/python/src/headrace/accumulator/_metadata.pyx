# cython: language_level=3
"""RecordMetadata: the result of a record's future. The producer makes one RecordMetadata object for each record, so the
memory layout of RecordMetadata affects the producer's speed.

RecordMetadata is not a tuple, because the garbage collector tracks tuples. In a program that keeps its results as
tuples, garbage collection took half of the time.
"""

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class RecordMetadata:
    """The topic, partition, offset and timestamp of an acknowledged record. ``offset`` is -1 with acks=0, because the
    broker does not answer."""

    def __init__(self, str topic not None, int partition, long long offset, long long timestamp_ms):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms

    def __iter__(self):
        return iter((self.topic, self.partition, self.offset, self.timestamp_ms))

    def __eq__(self, other):
        cdef RecordMetadata that
        if not isinstance(other, RecordMetadata):
            return NotImplemented
        that = <RecordMetadata>other
        return (
            self.offset == that.offset
            and self.partition == that.partition
            and self.timestamp_ms == that.timestamp_ms
            and self.topic == that.topic
        )

    def __hash__(self):
        return hash((self.topic, self.partition, self.offset, self.timestamp_ms))

    def __repr__(self):
        return (
            f"RecordMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"timestamp_ms={self.timestamp_ms})"
        )

    def __reduce__(self):
        return RecordMetadata, (self.topic, self.partition, self.offset, self.timestamp_ms)
