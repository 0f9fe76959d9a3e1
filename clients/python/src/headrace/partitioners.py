"""The choice of a record's partition.

A record that names its partition is sent to that partition. A record with a key is sent to partition murmur2(key) mod
partition count, as Kafka's Java client does. A record without a key is sent to the *sticky* partition: one partition
takes records until a batch is full, then another partition is chosen (KIP-480, KIP-794). Because the sticky partition
takes whole batches, batches are large even at a low rate of records.

``partitioner.class`` replaces the rules for records that name no partition. The value of ``partitioner.class`` is a
callable, or an object (or class) with a method ``partition``. The callable receives ``(topic, key, value,
partition_count)`` with the serialized bytes. The callable returns a number below the partition count, or None for the
default rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_core.errors import InvalidConfigError

from .accumulator import murmur2

Partitioner = Callable[[str, bytes | None, bytes | None, int], int | None]


def key_partition(key: bytes, partition_count: int) -> int:
    """The partition of a key by Kafka's rule: murmur2, sign bit cleared, modulo the partition count."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class PriorityPartitioner:
    """An example partitioner: keys that begin with ``PRIORITY_HIGH`` are sent to partition 0, other keys are hashed
    over the other partitions.

    A consumer of partition 0 sees urgent records at once, however many records wait in the other partitions. Records
    without a key are sent to one of the partitions other than 0. If the topic has only one partition, all records are
    sent to that partition.
    """

    def __init__(self, prefix: bytes = b"PRIORITY_HIGH") -> None:
        self.prefix = prefix

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if partition_count == 1 or (key is not None and key.startswith(self.prefix)):
            return 0
        return 1 + key_partition(key or b"", partition_count - 1)


def partitioner(given: Any) -> Partitioner | None:
    """The callable for the value of ``partitioner.class``; None for the default rules."""
    if given is None:
        return None
    if isinstance(given, type):
        given = given()
    call = getattr(given, "partition", given)
    if not callable(call):
        raise InvalidConfigError(
            f"partitioner.class={given!r}: must be callable as (topic, key, value, partition_count), "
            "or have a method partition()"
        )
    found: Partitioner = call
    return found
