"""The producer's hot path: batches, queues, futures, ``send``. The package is compiled Cython; there is no pure-Python
version."""

from ._checks import Headers, NoSuchPartition, header_list

try:
    from ._native import (
        Accumulator,
        AsyncRecordFuture,
        NativeAsyncProducer,
        NativeProducer,
        PartitionQueue,
        RecordFuture,
        RecordMetadata,
        SendBatch,
        TopicQueues,
        key_partitions,
        murmur2,
    )
except ModuleNotFoundError as error:
    raise ImportError(
        f"headrace is not compiled here ({error}): install a wheel, or build it with a C compiler and Python's headers "
        "(`pip install headrace`; in a checkout `make setup`)"
    ) from error

__all__ = [
    "Accumulator", "AsyncRecordFuture", "Headers", "NativeAsyncProducer", "NativeProducer", "NoSuchPartition",
    "PartitionQueue", "RecordFuture", "RecordMetadata", "SendBatch", "TopicQueues", "header_list", "key_partitions",
    "murmur2",
]  # fmt: skip
