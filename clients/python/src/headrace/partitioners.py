"""Which partition a record goes to.

A record that names its partition goes there. Else a record with a key goes to murmur2(key) mod partition count, exactly
as Java's Kafka has it, so that both clients agree; a record without one goes to the *sticky* partition: one partition
takes records until a batch is full, then the next is chosen (KIP-480, KIP-794), so that batches are large at any rate.

``partitioner.class`` replaces both: a callable, or an object (or class) with ``partition``, given
``(topic, key, value, partition_count)`` with the serialized bytes, returning a number below the count, or None for the
default.
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
    """An example: keys that begin with ``PRIORITY_HIGH`` go to partition 0, the others are hashed over the rest.

    A consumer that reads partition 0 by itself then sees urgent records at once, however long the others' queue is.
    Records without a key are not urgent: the first of the rest takes them. With one partition everything goes there.
    """

    def __init__(self, prefix: bytes = b"PRIORITY_HIGH") -> None:
        self.prefix = prefix

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        if partition_count == 1 or (key is not None and key.startswith(self.prefix)):
            return 0
        return 1 + key_partition(key or b"", partition_count - 1)


def partitioner(given: Any) -> Partitioner | None:
    """A callable for what ``partitioner.class`` holds; None for the default."""
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
