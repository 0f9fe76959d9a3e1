"""Decisions about committed offsets: commit, fetch, delete, expire. Pure.

Each decision about offsets first makes the records, and refuses a request before any change. After the records are
made, a decision about offsets applies the values in them, as ``replay`` does.

A decision that exceeds a batch is refused before it is applied (INVALID_COMMIT_OFFSET_SIZE). The partition's leader
would refuse a decision that exceeds a batch, and the shard would drop its state machine again at each retry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    HeadraceError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.types import NO_EPOCH, TopicPartition, check_topic_name

from ..group.messages import Topic, TopicsChanged
from ..state_machine import Decision, GroupStateMachine, ShardRecord
from .book import OffsetBook
from .codec import STRING_BYTES_MAX, TOPIC_ID_BYTES, CommittedOffset, decode_key, decode_value, encode_key, encode_value
from .lag import LagBook
from .messages import (
    NO_OFFSET,
    CommitOffsets,
    DeleteOffsets,
    DescribeLag,
    FetchedOffset,
    FetchOffsets,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    OffsetToCommit,
    OffsetToFetch,
    PartitionResult,
    WatermarksSeen,
)
from .retention import REMOVALS_PER_TICK, RetentionSettings, RetentionSweep

_RECORD_OVERHEAD_BYTES = 32  #: Maximum bytes of a record in addition to key and value: lengths, deltas and attributes.

#: Age in milliseconds from which a committed offset with a different topic id must belong to a deleted topic of the
#: same name. After NAMESAKE_AGE_MS every live coordinator knows the newest topic of the name.
NAMESAKE_AGE_MS = 60_000

_ABSENT = CommittedOffset(NO_OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSettings:
    """Limits of commits.

    ``metadata_bytes_max``: offset.metadata.max.bytes. ``commit_bytes_max``: maximum bytes of the records of one commit,
    which are one batch; it must be below max.message.bytes of ``__consumer_offsets``. ``retention``: after what time
    committed offsets expire.
    """

    metadata_bytes_max: int = from_key(SERVER, "offset.metadata.max.bytes")
    commit_bytes_max: int = 1_000_000
    retention: RetentionSettings = field(default_factory=RetentionSettings)


class OffsetsLogic:
    """The committed offsets of one shard. ``groups`` is used only to look up members and subscriptions."""

    __slots__ = ("_doomed", "_groups", "_settings", "_sweep", "_topics", "book", "lags")

    def __init__(self, groups: GroupStateMachine, settings: OffsetSettings) -> None:
        self._groups = groups
        self._settings = settings
        self._sweep = RetentionSweep(settings.retention)
        self._topics: Mapping[str, Topic] | None = None  # None: not set yet
        self._doomed: deque[tuple[str, TopicPartition, bytes]] = deque()
        self.book = OffsetBook()
        self.lags = LagBook()

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log. Raises CorruptLogError and UnsupportedVersionError, after which the shard must not
        serve."""
        group_id, partition = decode_key(key)
        self._apply(group_id, partition, None if value is None else decode_value(value))

    def _apply(self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        self.book.apply(group_id, partition, committed)
        if committed is None:
            self.lags.forgotten(group_id, partition)
        else:
            self.lags.committed(group_id, partition, committed)

    def commit(self, request: CommitOffsets, now_ms: int) -> Decision:
        """Kafka's OffsetCommit. Raises the errors that refuse the whole request: InvalidGroupIdError,
        GroupIdNotFoundError, the errors of check_commit, InvalidCommitOffsetSizeError."""
        self._check_committer(request)
        results = []
        accepted: list[tuple[TopicPartition, CommittedOffset]] = []
        for offset in request.offsets:
            error = self._refused(offset)
            results.append(PartitionResult(offset.topic, offset.partition, error))
            if error is None:
                topic_id = offset.topic_id or self._id_of(offset.topic)
                committed = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata, now_ms, None, topic_id)
                accepted.append((TopicPartition(offset.topic, offset.partition), committed))
        records = tuple(
            ShardRecord(encode_key(request.group_id, partition), encode_value(committed))
            for partition, committed in accepted
        )
        self._check_size(request.group_id, records)
        for partition, committed in accepted:
            self._apply(request.group_id, partition, committed)
        return Decision(records, OffsetsCommitted(tuple(results)))

    def _check_committer(self, request: CommitOffsets) -> None:
        group_id = request.group_id
        _check_group_id(group_id)
        epoch = _epoch(request)
        if self._groups.exists(group_id):
            partitions = [(offset.topic, offset.partition) for offset in request.offsets]
            self._groups.check_commit(group_id, request.member_id, epoch, request.instance_id, partitions)
        elif epoch >= 0:
            raise GroupIdNotFoundError(
                f"member {request.member_id!r} of epoch {request.member_epoch} commits to group {group_id!r}, which "
                "does not exist: join the group again"
            )

    def _refused(self, offset: OffsetToCommit) -> HeadraceError | None:
        """The error of one partition in a commit; None if it can be committed."""
        where = f"{offset.topic}-{offset.partition}"
        try:
            check_topic_name(offset.topic)
        except InvalidTopicError as error:
            return error
        if offset.partition < 0:
            return UnknownTopicOrPartitionError(f"{where}: partition numbers start at 0")
        if offset.offset < 0:
            return InvalidRequestError(f"{where}: offset {offset.offset} is negative; must be 0 or more")
        if offset.topic_id is not None and len(offset.topic_id) != TOPIC_ID_BYTES:
            return InvalidRequestError(f"{where}: a topic id of {len(offset.topic_id)} bytes, not {TOPIC_ID_BYTES}")
        size, limit = len(offset.metadata.encode()), min(self._settings.metadata_bytes_max, STRING_BYTES_MAX)
        if size > limit:
            return OffsetMetadataTooLargeError(
                f"{where}: the metadata has {size} bytes, more than {limit} (offset.metadata.max.bytes, and at most "
                f"the {STRING_BYTES_MAX} that fit into Kafka's record)"
            )
        return self._unknown(offset) if self._topics is not None else None

    def _unknown(self, offset: OffsetToCommit) -> HeadraceError | None:
        """The retriable error for an unknown partition: the client may have newer metadata than this coordinator."""
        assert self._topics is not None
        if offset.topic in SHARD_TOPICS:
            return None  # groups do not learn of internal topics, but any consumer may read them
        topic = self._topics.get(offset.topic)
        if topic is None or offset.partition >= topic.partitions:
            return UnknownTopicOrPartitionError(f"{offset.topic}-{offset.partition}: the partition does not exist")
        if offset.topic_id is not None and offset.topic_id != topic.topic_id:
            return UnknownTopicIdError(
                f"{offset.topic}: the commit is for topic id {offset.topic_id.hex()}, the topic's id is "
                f"{topic.topic_id.hex()}: the topic was deleted and created again"
            )
        return None

    def _id_of(self, topic: str) -> bytes | None:
        found = self._topics.get(topic) if self._topics is not None else None
        return found.topic_id if found is not None else None

    def _check_size(self, group_id: str, records: tuple[ShardRecord, ...]) -> None:
        size = sum(len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in records)
        if size > self._settings.commit_bytes_max:
            raise InvalidCommitOffsetSizeError(
                f"the commit of group {group_id!r} takes {size} bytes in {len(records)} records, more than the "
                f"{self._settings.commit_bytes_max} that a batch may have: commit fewer partitions at once, or less "
                "metadata"
            )

    def fetch(self, request: FetchOffsets, now_ms: int) -> Decision:
        """Kafka's OffsetFetch; a group without offsets gets "no offset" for each partition. Raises the errors of
        check_fetch."""
        _check_group_id(request.group_id)
        epoch = _epoch(request)
        if self._groups.exists(request.group_id):
            self._groups.check_fetch(request.group_id, request.member_id, epoch)
        elif epoch >= 0:
            # Kafka would answer "no offset" for a group that does not exist. After "no offset" the member would use
            # auto.offset.reset, and skip or repeat all records.
            raise UnknownMemberIdError(
                f"member {request.member_id!r} asks for offsets of group {request.group_id!r}, which does not exist: "
                "join the group again"
            )
        offsets = self.book.of(request.group_id)
        if request.partitions is not None:
            found = [self._fetched(request, offsets, one, now_ms) for one in request.partitions]
        else:
            all_of_it = [self._fetched(request, offsets, OffsetToFetch(*one), now_ms) for one in sorted(offsets)]
            found = [one for one in all_of_it if one.error is not None or one.offset != NO_OFFSET]
        return Decision(reply=OffsetsFetched(tuple(found)))

    def _fetched(
        self,
        request: FetchOffsets,
        offsets: Mapping[TopicPartition, CommittedOffset],
        wanted: OffsetToFetch,
        now_ms: int,
    ) -> FetchedOffset:
        partition = TopicPartition(wanted.topic, wanted.partition)
        if request.require_stable and self.book.is_pending(request.group_id, partition):
            error: HeadraceError = UnstableOffsetCommitError(
                f"{partition}: an open transaction has offsets of group {request.group_id!r}: retry when it has ended"
            )
            return FetchedOffset(*partition, error=error)
        found = offsets.get(partition, _ABSENT)
        topic_id = wanted.topic_id or self._id_of(wanted.topic) or found.topic_id
        if found.topic_id is not None and found.topic_id != topic_id:
            # The committed offset belongs to a deleted topic of this name, so the answer is "no offset". A recent
            # offset may belong to a new topic that only the shard's former owner knew; "no offset" would send the
            # consumer to auto.offset.reset. (A commit timestamp may be in the future, if two clocks differ, so the age
            # is the absolute difference of both times.)
            if wanted.topic_id is None and abs(now_ms - found.commit_timestamp_ms) < NAMESAKE_AGE_MS:
                error = UnknownTopicIdError(
                    f"{partition}: the offset was committed for another topic of this name: retry when this "
                    "coordinator's metadata has caught up"
                )
                return FetchedOffset(*partition, error=error)
            found = _ABSENT
        return FetchedOffset(
            *partition, found.offset, found.leader_epoch, found.metadata, found.commit_timestamp_ms, found.topic_id
        )

    def delete(self, request: DeleteOffsets) -> Decision:
        """Kafka's OffsetDelete. Raises GroupIdNotFoundError; topics that members subscribe to keep their committed
        offsets."""
        _check_group_id(request.group_id)
        self._check_known(request.group_id)
        offsets = self.book.of(request.group_id)
        results = []
        gone: dict[TopicPartition, None] = {}
        for partition in request.partitions:
            error = None
            if self._groups.is_subscribed(request.group_id, partition.topic):
                error = GroupSubscribedToTopicError(
                    f"{partition}: group {request.group_id!r} has members that subscribe to the topic; stop them first"
                )
            elif partition in offsets:
                gone[partition] = None
            results.append(PartitionResult(*partition, error))
        records = self.remove((request.group_id, partition) for partition in gone)
        return Decision(records, OffsetsDeleted(tuple(results)), is_atomic=False)

    def remove(self, offsets: Iterable[tuple[str, TopicPartition]]) -> tuple[ShardRecord, ...]:
        """Tombstones for ``offsets``; the tombstones are already applied."""
        gone = tuple(offsets)
        for group_id, partition in gone:
            self._apply(group_id, partition, None)
        return tuple(ShardRecord(encode_key(group_id, partition), None) for group_id, partition in gone)

    def remove_group(self, group_id: str) -> tuple[ShardRecord, ...]:
        """Tombstones for all offsets of the group; the tombstones are already applied."""
        return self.remove([(group_id, partition) for partition in self.book.of(group_id)])

    def topics_changed(self, request: TopicsChanged) -> None:
        """Mark the committed offsets of topics that were removed after the last call, so that the next ticks delete
        these offsets.

        Only a removal that this coordinator has seen marks an offset, because the offset may belong to a topic that the
        coordinator does not know yet. Topics that were removed while the shard had no owner are recognized by topic id,
        and their offsets expire.
        """
        before, self._topics = self._topics or {}, request.topics
        gone = {
            name: before[name].topic_id
            for name in (before if request.changed is None else request.changed)
            if name in before and (name not in request.topics or request.topics[name].topic_id != before[name].topic_id)
        }
        if gone:
            self._doomed.extend(
                (group_id, partition, gone[partition.topic])
                for group_id, partition, _ in self.book
                if partition.topic in gone
            )

    def started(self, now_ms: int) -> None:
        """All is replayed."""
        self._sweep.start(now_ms)

    def check_clock(self, now_ms: int) -> None:
        """Check whether the wall clock was set back after the last tick."""
        self._sweep.check_clock(now_ms)

    def next_due_ms(self) -> int | None:
        return 0 if self._doomed else self._sweep.next_due_ms()

    def tick(self, now_ms: int) -> tuple[tuple[ShardRecord, ...], tuple[str, ...]]:
        """Tombstones of the next marked or expired offsets, already applied; and the empty groups without offsets."""
        if self._doomed:
            return self.remove(self._next_doomed()), ()
        expired = self._sweep.tick(now_ms, self.book, self._groups)
        return self.remove(expired.offsets), expired.groups

    def _next_doomed(self) -> list[tuple[str, TopicPartition]]:
        """The marked offsets to delete next, without offsets that now belong to a new topic of the same name."""
        doomed: dict[tuple[str, TopicPartition], None] = {}
        while self._doomed and len(doomed) < REMOVALS_PER_TICK:
            group_id, partition, topic_id = self._doomed.popleft()
            committed = self.book.of(group_id).get(partition)
            if committed is not None and committed.topic_id in (None, topic_id):
                doomed[group_id, partition] = None
        return list(doomed)

    def watermarks_seen(self, request: WatermarksSeen, now_ms: int) -> Decision:
        self.lags.seen(request.ends, now_ms)
        return Decision()

    def describe_lag(self, request: DescribeLag, now_ms: int) -> Decision:
        """GroupIdNotFoundError."""
        self._check_known(request.group_id)
        return Decision(reply=self.lags.describe(request.group_id, self.book.of(request.group_id), now_ms))

    def _check_known(self, group_id: str) -> None:
        if not self._groups.exists(group_id) and not self.book.of(group_id):
            raise GroupIdNotFoundError(f"group {group_id!r} does not exist")


def _epoch(request: CommitOffsets | FetchOffsets) -> int:
    """The member's epoch; -1 for a client without a membership, which sends "" and 0 (no member has epoch 0)."""
    return NO_EPOCH if not request.member_id and request.member_epoch == 0 else request.member_epoch


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupIdError("the group id is empty: set group.id")
    if len(group_id.encode()) > STRING_BYTES_MAX:
        raise InvalidGroupIdError(
            f"the group id is too long: {len(group_id.encode())} bytes, at most {STRING_BYTES_MAX} are allowed"
        )
