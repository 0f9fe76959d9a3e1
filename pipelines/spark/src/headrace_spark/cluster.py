"""What the source asks of a Headrace cluster: partitions, offsets, and the records of a range as Arrow batches.

``Cluster`` is owned here, by its user; the SDK stands behind it in ``sdk_cluster.py``, a fake in the tests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace_core.types import TopicPartition

from .planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class KnownTopic(NamedTuple):
    """A topic as the cluster has it now. ``topic_id`` (hexadecimal) tells it from one of the same name made later."""

    topic_id: str
    partitions: tuple[int, ...]


class Cluster(Protocol):
    """Blocking; one thread at a time. Failures are HeadraceErrors."""

    def topics(self, names: Collection[str] | None) -> dict[str, KnownTopic]:
        """Topics by name; None asks for all that are not internal. A topic that does not exist is left out."""

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of a time (milliseconds, or -1 latest, -2 earliest) by partition; -1 when no record is that late.

        UnknownTopicOrPartitionError for one that does not exist.
        """

    def read(
        self, wanted: OffsetRange, *, topic_id: str, columns: Sequence[str], timeout_ms: int
    ) -> Iterator[pa.RecordBatch]:
        """The records of ``wanted`` that exist, in order, in batches of some ten thousand rows.

        OffsetOutOfRangeError when the log does not hold ``wanted.start``; InconsistentTopicIdError when the topic is
        not the one of ``topic_id`` ("": any) any more; RequestTimedOutError when nothing comes for ``timeout_ms``.
        """

    def close(self) -> None:
        """Let go of connections."""
