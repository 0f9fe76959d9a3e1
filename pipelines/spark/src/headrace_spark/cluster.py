"""The interface of the Spark source to a Headrace cluster: partitions, offsets, and records of a range as Arrow
batches.

``Cluster`` is implemented with the SDK in ``sdk_cluster.py``, and by a fake in tests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace_core.types import TopicPartition

from .planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class KnownTopic(NamedTuple):
    """A topic as it exists now. ``topic_id`` (hexadecimal) distinguishes the topic from a later topic of the same
    name."""

    topic_id: str
    partitions: tuple[int, ...]


class Cluster(Protocol):
    """A client of a Headrace cluster. Calls of a cluster client block, and only one thread at a time may use the
    client. Failures are HeadraceErrors."""

    def topics(self, names: Collection[str] | None) -> dict[str, KnownTopic]:
        """The existing topics of ``names``, by name; None: all topics that are not internal."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Look up an offset for each partition by its time: milliseconds since 1970, or -1 (latest) or -2 (earliest).
        An offset of -1 means that no record has this time or a later one.

        Raises UnknownTopicOrPartitionError.
        """

    def read(
        self, wanted: OffsetRange, *, topic_id: str, columns: Sequence[str], timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """The existing records of the range ``wanted``, in order, in batches of some ten thousand rows.

        Raises OffsetOutOfRangeError when the log lacks ``wanted.start``; InconsistentTopicIdError when the topic no
        longer has ``topic_id`` ("": any); RequestTimedOutError without data for ``timeout_ms``.
        """

    def close(self) -> None:
        """Close the connections."""
