# cython: language_level=3
"""The result of a record's future. One is made for each record, so its form decides the speed.

It is not a tuple: the garbage collector tracks tuples, and its passes over hundreds of thousands of them took half of
the time of a program that keeps its results.
"""

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class RecordMetadata:
    """Where an acknowledged record is. ``offset`` is -1 with acks=0, because the broker does not answer."""

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
