"""The partition of a record.

A record that names its partition goes there. A record with a key goes to murmur2(key) mod partition count, as in Java's
client, so both agree. A record without a key goes to the *sticky* partition: one partition takes records until a batch
is full, then another is chosen (KIP-480, KIP-794), so batches are large at any rate.

``partitioner.class`` replaces both rules. It is a callable, or an object (or class) with ``partition``. Arguments:
``(topic, key, value, partition_count)`` with the serialized bytes. It returns a number below the count, or None for the
default rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_core.errors import InvalidConfigError

from .accumulator import murmur2

Partitioner = Callable[[str, bytes | None, bytes | None, int], int | None]


def key_partition(key: bytes, partition_count: int) -> int:
    """Kafka's partition of a key: murmur2, sign bit cleared, modulo the count."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class PriorityPartitioner:
    """An example: keys that begin with ``PRIORITY_HIGH`` go to partition 0, other keys are hashed over the rest.

    A consumer of partition 0 sees urgent records at once, however long the queue of the others is. Records without a
    key go to partition 1. A topic with one partition gets everything there.
    """

    def __init__(self, prefix: bytes = b"PRIORITY_HIGH") -> None:
        self.prefix = prefix

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if partition_count == 1 or (key is not None and key.startswith(self.prefix)):
            return 0
        return 1 + key_partition(key or b"", partition_count - 1)


def partitioner(given: Any) -> Partitioner | None:
    """The callable for the value of ``partitioner.class``; None for the default."""
    if given is None:
        return None
    if isinstance(given, type):
        given = given()
    call = getattr(given, "partition", given)
    if not callable(call):
        raise InvalidConfigError(
            f"partitioner.class={given!r}: must be callable as (topic, key, value, partition_count), "
            "or have partition()"
        )
    found: Partitioner = call
    return found
