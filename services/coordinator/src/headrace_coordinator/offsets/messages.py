"""Requests and replies about committed offsets. All messages about committed offsets are frozen values; the handlers
build them from protobuf.

A request that is refused as a whole raises an error; the ``error`` of a result concerns one partition.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.types import NO_EPOCH, TopicPartition

from .codec import CommittedOffset
from .pending import Verification

NO_OFFSET = -1  #: The offset that Kafka returns for a partition without a committed offset.


class OffsetToCommit(NamedTuple):
    """The offset to commit for one partition. ``topic_id``: id of the topic that was read, if it is known (KIP-516)."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    topic_id: bytes | None = None


class CommitOffsets(NamedTuple):
    """Kafka's OffsetCommit. ``member_epoch`` is -1, without a member id, for an admin or for a consumer that assigns
    partitions to itself. ``sequence``: the number of the request among the member's commits; 0: without a number."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    member_epoch: int = NO_EPOCH
    instance_id: str | None = None
    sequence: int = 0


class PartitionResult(NamedTuple):
    """Result of an offset request for one partition."""

    topic: str
    partition: int
    error: HeadraceError | None = None


class OffsetsCommitted(NamedTuple):
    """The reply to CommitOffsets; results are in the request's order."""

    results: tuple[PartitionResult, ...]


class CommitTransactionOffsets(NamedTuple):
    """Kafka's TxnOffsetCommit (KIP-447): the offsets become pending, and take effect when the transaction is committed.

    The reply to a request without ``verification`` is a Verification. The caller then adds the shard to the transaction
    at the transaction's coordinator, or verifies that the producer has added it (version 1). If the coordinator
    confirms, the caller sends the request again, with the verification and the epoch of the transaction's shard
    (``coordinator_epoch``). The reply to a request with ``verification`` is OffsetsCommitted. If the coordinator does
    not confirm, the caller sends VerificationFailed.

    ``sequence``: the number of the request among the producer's requests of the transaction; 0: without a number.
    ``commit.sequence`` is its number among the member's commits, by which attempts of earlier commits are late."""

    commit: CommitOffsets
    transactional_id: str
    producer_id: int
    epoch: int
    sequence: int = 0
    verification: Verification | None = None
    coordinator_epoch: int = NO_EPOCH


class VerificationFailed(NamedTuple):
    """A message that the transaction's coordinator did not confirm the transaction, or that the caller stopped waiting.
    The reply is None."""

    verification: Verification


class EndOffsets(NamedTuple):
    """A transaction's marker, which commits or drops the producer's pending offsets in this shard. ``epoch``: the
    marker's producer epoch. ``version``: the transaction version; under version 2, each end of a transaction raises the
    epoch. ``coordinator_epoch``: the epoch of the transaction's shard. The reply is None, even if no offset is
    pending."""

    producer_id: int
    epoch: int
    commit: bool
    version: int
    coordinator_epoch: int


class OffsetToFetch(NamedTuple):
    """A partition whose offset is wanted; an offset that was committed under another topic id counts as no offset."""

    topic: str
    partition: int
    topic_id: bytes | None = None


class FetchOffsets(NamedTuple):
    """Kafka's OffsetFetch. ``partitions`` None: fetch all committed offsets of the group. ``require_stable`` (KIP-447):
    a partition whose offset an open transaction may still change gets UNSTABLE_OFFSET_COMMIT."""

    group_id: str
    partitions: tuple[OffsetToFetch, ...] | None = None
    member_id: str = ""
    member_epoch: int = NO_EPOCH
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """``offset`` NO_OFFSET: no offset is committed."""

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = -1
    topic_id: bytes | None = None
    error: HeadraceError | None = None


class OffsetsFetched(NamedTuple):
    """The reply to FetchOffsets, in the request's order; for all offsets, by topic and partition."""

    offsets: tuple[FetchedOffset, ...]


class DeleteOffsets(NamedTuple):
    """Kafka's OffsetDelete (KIP-496). Pending offsets of the named partitions are dropped, too."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


class OffsetsDeleted(NamedTuple):
    """The reply to DeleteOffsets, in the request's order; an offset that does not exist counts as deleted."""

    results: tuple[PartitionResult, ...]


class DeleteGroup(NamedTuple):
    """Delete a group and its offsets, including pending offsets, if the group has no members. The reply to DeleteGroup
    is None."""

    group_id: str


class PartitionEnd(NamedTuple):
    """The log start and the high watermark of a partition."""

    topic: str
    partition: int
    high_watermark: int
    log_start: int = 0


class WatermarksSeen(NamedTuple):
    """The current high watermarks from the leaders; no record is written, and the reply is None."""

    ends: tuple[PartitionEnd, ...]


class DescribeLag(NamedTuple):
    """Asks for a group's lag; fails with GroupIdNotFoundError. The reply to DescribeLag is a GroupLag."""

    group_id: str


class LagStatus(enum.Enum):
    """The state of a partition or a group, by Burrow's rules. The status of a group is OK, WARN or ERR. The status of a
    partition is OK, WARN, STOP, STALL or REWIND. If any partition has the status STOP, STALL or REWIND, its group has
    ERR."""

    OK = "OK"
    WARN = "WARN"  #: WARN: the consumer commits offsets, but its lag does not shrink.
    ERR = "ERR"
    STOP = "STOP"  #: STOP: no commit has arrived for longer than the last ten commits took.
    STALL = "STALL"  #: STALL: commits arrive, but the committed offset does not advance.
    REWIND = "REWIND"  #: REWIND: the committed offset went back.

    @property
    def is_error(self) -> bool:
        return self not in (LagStatus.OK, LagStatus.WARN)


class PartitionLag(NamedTuple):
    """The lag of a group in one partition. Fields of the lag are None while they are unknown, before the first high
    watermark.

    ``lag``: offsets between the committed offset and the high watermark. ``lag_ms``: how long the first unread record
    has been waiting. ``lag_ms_is_at_least``: the record has waited longer than this coordinator has watched, so
    ``lag_ms`` is a lower bound. ``records_lost``: number of offsets that were deleted before the group read them.
    ``complete``: the number of known commits divided by ten, 0 to 1.
    """

    topic: str
    partition: int
    committed: CommittedOffset
    high_watermark: int | None
    lag: int | None
    lag_ms: int | None
    lag_ms_is_at_least: bool
    records_lost: int
    status: LagStatus
    complete: float


class GroupLag(NamedTuple):
    """A group's partitions by topic and number, the sum of their lags, and the worst of their states."""

    group_id: str
    status: LagStatus
    total_lag: int
    partitions: tuple[PartitionLag, ...]
