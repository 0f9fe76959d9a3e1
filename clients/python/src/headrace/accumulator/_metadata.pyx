# cython: language_level=3
"""What a record's future says when all went well. One is made for each record, which decides its form.

Not a tuple: the garbage collector tracks tuples, and looking through hundreds of thousands of them again and again took
half of the time of a program that keeps its outcomes.
"""

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class RecordMetadata:
    """Where an acknowledged record went. ``offset`` is -1 with acks=0, where nobody says."""

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
