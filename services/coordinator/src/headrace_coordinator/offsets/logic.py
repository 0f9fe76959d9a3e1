"""Decide about committed offsets (commit, fetch, delete, expire) and about offsets of open transactions. Pure.

Each decision about offsets first makes the records, and refuses a request before any change. Then the decision applies
the values of its records to the state, as ``replay`` does.

A decision that exceeds a batch is refused before it is applied (INVALID_COMMIT_OFFSET_SIZE). The partition's leader
would refuse a decision that exceeds a batch, and the shard would drop its state machine again at each retry.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    HeadraceError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetMetadataTooLargeError,
    StaleMemberEpochError,
    TransactionAbortableError,
    TransactionCoordinatorFencedError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from headrace_core.types import NO_EPOCH, TopicPartition, check_topic_name

from ..group.messages import DescribedPending, Topic, TopicsChanged
from ..state_machine import Decision, GroupStateMachine, RecordKind, ShardRecord, kind_of
from ..transaction.state import BUMPING_VERSION
from .book import OffsetBook
from .codec import (
    STRING_BYTES_MAX,
    TOPIC_ID_BYTES,
    CommittedOffset,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    record_bytes,
)
from .lag import LagBook
from .messages import (
    NO_OFFSET,
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteOffsets,
    DescribeLag,
    EndOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    OffsetToCommit,
    OffsetToFetch,
    PartitionResult,
    VerificationFailed,
    WatermarksSeen,
)
from .pending import (
    PendingKey,
    PendingOffset,
    PendingOffsets,
    Verifications,
    decode_pending,
    decode_pending_key,
    encode_pending,
    encode_pending_key,
    key_of,
)
from .retention import REMOVALS_PER_TICK, RetentionSettings, RetentionSweep

#: Milliseconds after the loading of the shard from which a committed offset with a different topic id must belong to a
#: deleted topic of the same name. By then this coordinator knows each topic that the shard's former owner knew.
NAMESAKE_AGE_MS = 60_000

_ABSENT = CommittedOffset(NO_OFFSET)
COMMITTERS_MAX = 10_000  #: Maximum number of members whose last commit is remembered.
#: The number of the last commit of each (group, member), for the members that committed last, and the partitions that
#: its next attempt may commit; None: all.
Committers = OrderedDict[tuple[str, str], tuple[int, frozenset[TopicPartition] | None]]
UTF8_BYTES_MAX = 4  #: Maximum number of bytes of a character in UTF-8.


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSettings:
    """Limits of commits.

    ``metadata_chars_max``: offset.metadata.max.bytes, which Kafka counts in UTF-16 characters. ``commit_bytes_max``:
    maximum size of the batch that one commit writes, or the commit of a transaction's pending offsets; it must be below
    max.message.bytes of ``__consumer_offsets``. ``retention``: the time after which committed offsets expire.
    """

    metadata_chars_max: int = from_key(SERVER, "offset.metadata.max.bytes")
    commit_bytes_max: int = 1_000_000
    retention: RetentionSettings = field(default_factory=RetentionSettings)


class OffsetsLogic:
    """The committed offsets of one shard. ``groups`` is used only to look up members and subscriptions."""

    __slots__ = (
        "_committers",
        "_doomed",
        "_dropped",
        "_groups",
        "_loaded_ms",
        "_settings",
        "_sweep",
        "_topics",
        "_verifications",
        "book",
        "lags",
    )

    def __init__(
        self, groups: GroupStateMachine, settings: OffsetSettings, committers: Committers | None = None
    ) -> None:
        """``committers``: the last commits before the shard was loaded again. The log may lack the last commit of a
        member, so an attempt of it takes effect."""
        self._groups = groups
        self._settings = settings
        self._sweep = RetentionSweep(settings.retention)
        #: When the shard was loaded, by the present wall clock.
        self._loaded_ms = 0
        self._topics: Mapping[str, Topic] | None = None  # topics of the metadata; None until they are set
        self._doomed: deque[tuple[str, TopicPartition, bytes]] = deque()
        self._verifications = Verifications()
        self._committers: Committers = OrderedDict() if committers is None else committers
        for committer, (last, _) in self._committers.items():
            self._committers[committer] = last, None
        #: The numbers of the requests whose pending offsets were dropped before their transaction has ended, by
        #: producer id.
        self._dropped: dict[int, dict[tuple[int, str, TopicPartition], int]] = {}
        self.book = OffsetBook()
        self.lags = LagBook()

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log. Raises CorruptLogError and UnsupportedVersionError, after which the shard must not
        serve."""
        if kind_of(key) == RecordKind.PENDING_OFFSETS:
            pending_key, pending = decode_pending_key(key), self.book.pending
            found = None if value is None else pending.ordered(pending_key, decode_pending(pending_key, value))
            pending.apply(pending_key, found)
            return
        group_id, partition = decode_key(key)
        self._apply(group_id, partition, None if value is None else decode_value(value))

    def _apply(self, group_id: str, partition: TopicPartition, committed: CommittedOffset | None) -> None:
        self.book.apply(group_id, partition, committed)
        if committed is None or committed.offset < 0:
            self.lags.forgotten(group_id, partition)
        else:
            self.lags.committed(group_id, partition, committed)

    def commit(self, request: CommitOffsets, now_ms: int) -> Decision:
        """Kafka's OffsetCommit. Raises the errors that refuse the whole request: InvalidGroupIdError,
        GroupIdNotFoundError, UnknownMemberIdError (the group has only offsets), the errors of check_commit,
        InvalidCommitOffsetSizeError.

        The commit also removes the pending offsets of its partitions. An open transaction got them before this commit,
        so they would be older than the committed offset (Kafka compares the log offsets of both records)."""
        self._check_committer(request)
        left = self._left_of(request)
        results, accepted = self._accepted(request, now_ms)
        if left is not None:
            accepted = [each for each in accepted if each[0] in left]
        overtaken = self._without(self._pending(request.group_id, (partition for partition, _ in accepted)))
        records = tuple(
            ShardRecord(encode_key(request.group_id, partition), encode_value(committed))
            for partition, committed in accepted
        ) + _pending_records(overtaken)
        self._check_size(request.group_id, sum(record_bytes(*record) for record in records))
        for partition, committed in accepted:
            self._apply(request.group_id, partition, committed)
        self._drop(overtaken)
        self._groups.committed(request.group_id, request.member_id, now_ms)
        if request.sequence:
            failed = {TopicPartition(each.topic, each.partition) for each in results if each.error is not None}
            self._remember(request, frozenset(failed if left is None else failed & left))
        return Decision(records, OffsetsCommitted(results))

    def _last_of(self, request: CommitOffsets) -> tuple[int, frozenset[TopicPartition] | None]:
        return self._committers.get((request.group_id, request.member_id), (0, None))

    def _remember(self, request: CommitOffsets, left: frozenset[TopicPartition]) -> None:
        """Note the last commit of a member, and the partitions for which it has failed."""
        committer = request.group_id, request.member_id
        self._committers[committer] = request.sequence, left
        self._committers.move_to_end(committer)
        if len(self._committers) > COMMITTERS_MAX:
            self._committers.popitem(last=False)

    def _left_of(self, request: CommitOffsets) -> frozenset[TopicPartition] | None:
        """The partitions for which the member's last commit has failed, if the request is an attempt of that commit;
        None if the request is a new commit. Raises StaleMemberEpochError for an attempt of an earlier commit.

        Guard: a late attempt must not reset the offsets of the member's next commit, or of its next transaction.
        (Kafka's consumers have no numbers.)"""
        last, left = self._last_of(request)
        if 0 < request.sequence < last:
            raise StaleMemberEpochError(
                f"group {request.group_id!r}: commit {request.sequence} of member {request.member_id!r} arrived after "
                f"the member's commit {last}, and changes nothing"
            )
        return left if 0 < request.sequence == last else None

    def _accepted(
        self, request: CommitOffsets, now_ms: int
    ) -> tuple[tuple[PartitionResult, ...], list[tuple[TopicPartition, CommittedOffset]]]:
        """Return the result of each partition, and the offsets that can be committed."""
        results = []
        accepted = []
        for offset in request.offsets:
            error = self._refused(offset)
            results.append(PartitionResult(offset.topic, offset.partition, error))
            if error is None:
                topic_id = offset.topic_id or self._id_of(offset.topic)
                committed = CommittedOffset(offset.offset, offset.leader_epoch, offset.metadata, now_ms, None, topic_id)
                accepted.append((TopicPartition(offset.topic, offset.partition), committed))
        return tuple(results), accepted

    def commit_in_transaction(self, request: CommitTransactionOffsets, now_ms: int) -> Decision:
        """Kafka's TxnOffsetCommit. Raises the errors of ``commit``. TransactionAbortableError: the transaction has
        ended since the verification began, or the marker of the producer's previous transaction is missing.
        InvalidProducerEpochError: the shard has pending offsets of a larger epoch. CoordinatorNotAvailableError: the
        verification began before the shard was last loaded."""
        commit, producer_id = request.commit, request.producer_id
        if request.verification is None:
            self._check_committer(commit, in_transaction=True)
            return Decision(reply=self._verifications.begin(producer_id, request.epoch))
        if not self._verifications.end(request.verification):
            if request.verification.of is not self._verifications:
                raise CoordinatorNotAvailableError(
                    f"the shard of group {commit.group_id!r} was loaded again while offsets were added to a "
                    "transaction; retry"
                )
            raise TransactionAbortableError(
                f"the transaction of producer {producer_id} with epoch {request.epoch} has ended while offsets of "
                f"group {commit.group_id!r} were added to it: abort the transaction"
            )
        self._check_committer(commit, in_transaction=True)
        of_producer = self.book.pending.of_producer(producer_id)
        for pending in of_producer.values():
            _check_same_transaction(request, pending.epoch)
        results, accepted = self._accepted(commit, now_ms)
        if not accepted:
            return Decision(reply=OffsetsCommitted(results))
        changes = self._added(request, accepted)
        records = _pending_records(changes)
        self._check_size(commit.group_id, sum(record_bytes(*record) for record in records))
        self._check_size(commit.group_id, self.book.pending.end_bytes(producer_id, changes))
        for key, after in changes.items():
            self.book.pending.apply(key, after)
        if commit.sequence > self._last_of(commit)[0]:
            self._remember(commit, frozenset())
        return Decision(records, OffsetsCommitted(results))

    def _added(
        self, request: CommitTransactionOffsets, accepted: Iterable[tuple[TopicPartition, CommittedOffset]]
    ) -> dict[PendingKey, PendingOffsets]:
        """Return the records of pending offsets that ``accepted`` changes, with their new values."""
        of_group = self.book.pending.of_producer(request.producer_id).get(request.commit.group_id)
        coordinator_epoch = max(request.coordinator_epoch, NO_EPOCH if of_group is None else of_group.coordinator_epoch)
        added: dict[PendingKey, dict[TopicPartition, PendingOffset]] = {}
        for partition, committed in accepted:
            key = key_of(request.producer_id, request.commit.group_id, partition)
            if key not in added:
                before = self.book.pending.part(key)
                added[key] = {} if before is None else dict(before.offsets)
            known = added[key].get(partition)
            dropped = self._dropped.get(request.producer_id, {})
            last = dropped.get((request.epoch, key.group_id, partition), 0) if known is None else known.sequence
            # A repetition of this request, or a later request, has arrived before this delayed request.
            if not 0 < request.sequence <= last:
                written = self.book.pending.of_partition(request.commit.group_id, partition)
                order = 1 + max((one.order for _, one in written), default=0)
                added[key][partition] = PendingOffset(committed, request.sequence, order)
        return {
            key: PendingOffsets(request.epoch, offsets, request.transactional_id, coordinator_epoch)
            for key, offsets in added.items()
            if offsets
        }

    def verification_failed(self, request: VerificationFailed) -> Decision:
        self._verifications.end(request.verification)
        return Decision()

    def end_transaction(self, request: EndOffsets, now_ms: int) -> Decision:
        """Commit or drop the pending offsets of a producer, because its transaction has ended.

            marker's epoch, to the pending offsets'  version 2                 version 1
            ---------------------------------------  ------------------------  ------------------------
            nothing is pending                       done already              done already
            larger                                   end                       end
            equal                                    INVALID_PRODUCER_EPOCH    end
            smaller                                  INVALID_PRODUCER_EPOCH    INVALID_PRODUCER_EPOCH

        Under version 2, a marker with the epoch of the pending offsets is a late marker of the previous transaction
        (KAFKA-17754). A marker is also late if its coordinator epoch is below the epoch that confirmed the offsets
        (TransactionCoordinatorFencedError). For retention and lag, the commit time is the time of the marker, and not
        the time at which the offset became pending.

        A commit also removes the pending offsets of other transactions that were written before it, as ``commit``
        does. Their records come first: if only they reach the log, the repeated marker does the rest."""
        of_producer = self.book.pending.of_producer(request.producer_id)
        is_bumping = request.version >= BUMPING_VERSION
        for pending in of_producer.values():
            _check_marker(request, pending, is_bumping=is_bumping)
        ended_epoch = request.epoch - 1 if is_bumping else request.epoch
        self._verifications.cancel(request.producer_id, ended_epoch)
        overtaken = self._overtaken(request.producer_id) if request.commit else {}
        records = _pending_records(overtaken) + _end_records(request, of_producer, now_ms)
        self._drop(overtaken)
        dropped = self._dropped.pop(request.producer_id, {})
        if of_next := {key: number for key, number in dropped.items() if key[0] > ended_epoch}:  # the marker is late
            self._dropped[request.producer_id] = of_next
        for group_id, pending in list(of_producer.items()):
            for partition, one in pending.offsets.items() if request.commit else ():
                self._apply(group_id, partition, one.committed._replace(commit_timestamp_ms=now_ms))
            for key in _keys(request.producer_id, group_id, pending):
                self.book.pending.apply(key, None)
        size = sum(record_bytes(*record) for record in records)
        return Decision(records, is_atomic=not overtaken or size <= self._settings.commit_bytes_max)

    def _overtaken(self, producer_id: int) -> dict[PendingKey, PendingOffsets | None]:
        """Return the records of other producers without the offsets that were written before those of the producer.

        Records of later offsets are written again as they are. Kafka may have written them, also those of a transaction
        that Headrace continues, and a replay drops Kafka's pending offsets at each commit of their partition
        (kafka_transactions.py)."""
        pending, gone = self.book.pending, dict[PendingKey, set[TopicPartition]]()
        for group_id, of_group in pending.of_producer(producer_id).items():
            for partition, mine in of_group.offsets.items():
                for other_id, other in pending.of_partition(group_id, partition):
                    if other_id != producer_id:
                        found = gone.setdefault(key_of(other_id, group_id, partition), set())
                        found.update({partition} if other.order < mine.order else ())
        return self._without(gone)

    def _check_committer(self, request: CommitOffsets, *, in_transaction: bool = False) -> None:
        """A request that names no member may commit in a transaction while the group has members, as in Kafka. Clients
        such as aiokafka and sarama name only the group, as all clients did before KIP-447."""
        group_id = request.group_id
        _check_group_id(group_id, may_be_empty=not in_transaction)
        epoch = _epoch(request)
        if in_transaction and epoch < 0 and not request.member_id and request.instance_id is None:
            return
        if self._groups.exists(group_id):
            partitions = [(offset.topic, offset.partition) for offset in request.offsets]
            self._groups.check_commit(
                group_id, request.member_id, epoch, request.instance_id, partitions, in_transaction=in_transaction
            )
        elif epoch >= 0:
            # A group with only offsets exists, too. Kafka's consumers join again after UNKNOWN_MEMBER_ID, but fail
            # after GROUP_ID_NOT_FOUND.
            error, why = (
                (UnknownMemberIdError, "has no members")
                if self.book.has(group_id)
                else (GroupIdNotFoundError, "does not exist")
            )
            raise error(
                f"member {request.member_id!r} of epoch {request.member_epoch} commits to group {group_id!r}, which "
                f"{why}: join the group again"
            )

    def _refused(self, offset: OffsetToCommit) -> HeadraceError | None:
        """The error of one partition in a commit; None if it can be committed. A negative offset can be committed, as
        in Kafka: kafkajs commits -2 to restart a group at the first record. Readers treat a negative offset as no
        offset."""
        if self._topics is None or offset.topic not in self._topics:
            try:
                check_topic_name(offset.topic)
            except InvalidTopicError as error:
                return error.with_traceback(None)
        if offset.partition < 0:
            return UnknownTopicOrPartitionError(f"{_where(offset)}: partition numbers start at 0")
        if offset.topic_id is not None and len(offset.topic_id) != TOPIC_ID_BYTES:
            return InvalidRequestError(
                f"{_where(offset)}: the topic id has {len(offset.topic_id)} bytes, not {TOPIC_ID_BYTES}"
            )
        metadata, limit = offset.metadata, self._settings.metadata_chars_max
        if len(metadata) > limit // 2 and (size := len(metadata.encode("utf-16-le")) // 2) > limit:
            return OffsetMetadataTooLargeError(
                f"{_where(offset)}: the metadata has {size} UTF-16 characters, more than offset.metadata.max.bytes="
                f"{limit}; commit shorter metadata"
            )
        if len(metadata) > STRING_BYTES_MAX // UTF8_BYTES_MAX and (size := len(metadata.encode())) > STRING_BYTES_MAX:
            return OffsetMetadataTooLargeError(
                f"{_where(offset)}: the metadata has {size} bytes, more than the {STRING_BYTES_MAX} that fit into "
                "Kafka's record; commit shorter metadata"
            )
        return self._unknown(offset) if self._topics is not None else None

    def _unknown(self, offset: OffsetToCommit) -> HeadraceError | None:
        """The retriable error for an unknown partition: the client may have newer metadata than this coordinator."""
        assert self._topics is not None
        topic = self._topics.get(offset.topic)
        if topic is None or offset.partition >= topic.partitions:
            return UnknownTopicOrPartitionError(f"{_where(offset)}: the partition does not exist")
        if offset.topic_id is not None and offset.topic_id != topic.topic_id:
            return UnknownTopicIdError(
                f"{offset.topic}: the commit is for topic id {offset.topic_id.hex()}, the topic's id is "
                f"{topic.topic_id.hex()}: the topic was deleted and created again"
            )
        return None

    def _id_of(self, topic: str) -> bytes | None:
        found = self._topics.get(topic) if self._topics is not None else None
        return found.topic_id if found is not None else None

    def _check_size(self, group_id: str, size: int) -> None:
        if size > self._settings.commit_bytes_max:
            raise InvalidCommitOffsetSizeError(
                f"the commit of group {group_id!r} takes {size} bytes, more than the "
                f"{self._settings.commit_bytes_max} that a batch may have: commit fewer partitions at once, or less "
                "metadata"
            )

    def fetch(self, request: FetchOffsets, now_ms: int) -> Decision:
        """Kafka's OffsetFetch; a group without offsets gets "no offset" for each partition. Raises the errors of
        check_fetch."""
        _check_group_id(request.group_id, may_be_empty=True)
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
        unstable: Set[TopicPartition] = (
            self.book.pending.partitions(request.group_id) if request.require_stable else frozenset()
        )
        if request.partitions is not None:
            found = [self._fetched(request, offsets, unstable, one, now_ms) for one in request.partitions]
        else:
            partitions = sorted(offsets.keys() | unstable)
            all_of_it = [self._fetched(request, offsets, unstable, OffsetToFetch(*one), now_ms) for one in partitions]
            found = [one for one in all_of_it if one.error is not None or one.offset != NO_OFFSET]
        return Decision(reply=OffsetsFetched(tuple(found)))

    def _fetched(
        self,
        request: FetchOffsets,
        offsets: Mapping[TopicPartition, CommittedOffset],
        unstable: Set[TopicPartition],
        wanted: OffsetToFetch,
        now_ms: int,
    ) -> FetchedOffset:
        partition = TopicPartition(wanted.topic, wanted.partition)
        if partition in unstable:
            error: HeadraceError = UnstableOffsetCommitError(
                f"{partition}: an open transaction has offsets of group {request.group_id!r}: retry when the "
                "transaction has ended"
            )
            return FetchedOffset(*partition, error=error)
        found = offsets.get(partition, _ABSENT)
        topic_id = wanted.topic_id or self._id_of(wanted.topic) or found.topic_id
        if found.topic_id is not None and found.topic_id != topic_id:
            # The committed offset belongs to a deleted topic of this name, so the answer is "no offset". Soon after the
            # loading of the shard, it may belong to a new topic that only the shard's former owner knew. The answer "no
            # offset" would then wrongly send the consumer to auto.offset.reset. (The commit's time is no help: it is
            # the former owner's.)
            if wanted.topic_id is None and now_ms - self._loaded_ms < NAMESAKE_AGE_MS:
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
        known = self.book.of(request.group_id).keys() | self.book.pending.partitions(request.group_id)
        subscribed = self._groups.subscribed(request.group_id, {partition.topic for partition in request.partitions})
        results = []
        gone: dict[TopicPartition, None] = {}
        for partition in request.partitions:
            error = None
            if partition.topic in subscribed:
                error = GroupSubscribedToTopicError(
                    f"{partition}: group {request.group_id!r} has members that subscribe to the topic; stop them first"
                )
            elif partition in known:
                gone[partition] = None
            results.append(PartitionResult(*partition, error))
        records = self.remove((request.group_id, partition) for partition in gone)
        return Decision(records, OffsetsDeleted(tuple(results)), is_atomic=False)

    def remove(self, offsets: Iterable[tuple[str, TopicPartition]]) -> tuple[ShardRecord, ...]:
        """Return the records that remove committed and pending ``offsets``; the records are already applied."""
        return self._remove((group_id, partition, None) for group_id, partition in offsets)

    def _remove(self, offsets: Iterable[tuple[str, TopicPartition, bytes | None]]) -> tuple[ShardRecord, ...]:
        """Remove offsets as ``remove`` does; if a topic id is given, remove only offsets that may belong to the topic
        with this id."""
        records = []
        gone: dict[PendingKey, set[TopicPartition]] = defaultdict(set)
        for group_id, partition, topic_id in offsets:
            committed = self.book.of(group_id).get(partition)
            if committed is not None and _may_belong(committed, topic_id):
                self._apply(group_id, partition, None)
                records.append(ShardRecord(encode_key(group_id, partition), None))
            for producer_id, one in self.book.pending.of_partition(group_id, partition):
                if _may_belong(one.committed, topic_id):
                    gone[key_of(producer_id, group_id, partition)].add(partition)
        changes = self._without(gone)
        self._drop(changes)
        return (*records, *_pending_records(changes))

    def _pending(self, group_id: str, partitions: Iterable[TopicPartition]) -> dict[PendingKey, set[TopicPartition]]:
        """Return which of a group's ``partitions`` have pending offsets, by the keys of their records."""
        found: dict[PendingKey, set[TopicPartition]] = defaultdict(set)
        for partition in partitions if self.book.pending.partitions(group_id) else ():
            for producer_id, _ in self.book.pending.of_partition(group_id, partition):
                found[key_of(producer_id, group_id, partition)].add(partition)
        return found

    def _without(self, gone: Mapping[PendingKey, Set[TopicPartition]]) -> dict[PendingKey, PendingOffsets | None]:
        """Return the records of pending offsets without the partitions that are gone; None: nothing is left."""
        changes: dict[PendingKey, PendingOffsets | None] = {}
        for key, partitions in gone.items():
            before = self.book.pending.part(key)
            assert before is not None
            left = {each: one for each, one in before.offsets.items() if each not in partitions}
            changes[key] = before._replace(offsets=left) if left else None
        return changes

    def _drop(self, changes: Mapping[PendingKey, PendingOffsets | None]) -> None:
        """Apply records of pending offsets that ``_without`` returned.

        Guard: a request of the open transaction that arrives again must not bring a dropped offset back, as the
        transaction would then set the committed offset back. (Kafka's producers have no numbers.)"""
        for key, after in changes.items():
            before = self.book.pending.part(key)
            assert before is not None
            for partition, one in before.offsets.items():
                if one.sequence and (after is None or partition not in after.offsets):
                    dropped = self._dropped.setdefault(key.producer_id, {})
                    dropped[before.epoch, key.group_id, partition] = one.sequence
            self.book.pending.apply(key, after)

    def remove_group(self, group_id: str) -> tuple[ShardRecord, ...]:
        """Return the records that remove all offsets of the group; the records are already applied."""
        partitions = (*self.book.of(group_id), *self.book.pending.partitions(group_id))
        return self.remove([(group_id, partition) for partition in dict.fromkeys(partitions)])

    def topics_changed(self, request: TopicsChanged) -> None:
        """Mark the committed offsets of topics that were removed after the last call, so that the next ticks delete
        these offsets.

        The offset of an unknown topic is marked only if this coordinator has seen the topic's removal. Otherwise the
        offset may belong to a new topic that this coordinator does not know yet. Topics that were removed while the
        shard had no owner are recognized by topic id, and their offsets expire.
        """
        before, self._topics = self._topics or {}, request.topics
        gone = {
            name: before[name].topic_id
            for name in (before if request.changed is None else request.changed)
            if name in before and (name not in request.topics or request.topics[name].topic_id != before[name].topic_id)
        }
        if gone:
            pending = [
                (group_id, partition)
                for group_id in self.book.pending.group_ids()
                for partition in sorted(self.book.pending.partitions(group_id))
            ]
            self._doomed.extend(
                (group_id, partition, gone[partition.topic])
                for group_id, partition in dict.fromkeys([*(each[:2] for each in self.book), *pending])
                if partition.topic in gone
            )

    def started(self, now_ms: int) -> None:
        """Called when the replay is complete."""
        self._sweep.start(now_ms)
        self._loaded_ms = now_ms

    def clock_set(self, by_ms: int) -> None:
        """Called when the wall clock was set."""
        self._loaded_ms += by_ms

    def check_clock(self, now_ms: int) -> None:
        """Check whether the wall clock was set back after the last tick."""
        self._sweep.check_clock(now_ms)

    def next_due_ms(self) -> int | None:
        return 0 if self._doomed else self._sweep.next_due_ms()

    def tick(self, now_ms: int) -> tuple[tuple[ShardRecord, ...], tuple[str, ...]]:
        """Return the records that remove the next marked or expired offsets (already applied), and the empty groups
        without offsets."""
        if self._doomed:
            count = min(len(self._doomed), REMOVALS_PER_TICK)
            return self._remove([self._doomed.popleft() for _ in range(count)]), ()
        expired = self._sweep.tick(now_ms, self.book, self._groups)
        return self.remove(expired.offsets), expired.groups

    def watermarks_seen(self, request: WatermarksSeen, now_ms: int) -> Decision:
        self.lags.seen(request.ends, now_ms)
        return Decision()

    def describe_lag(self, request: DescribeLag, now_ms: int) -> Decision:
        """Raises GroupIdNotFoundError."""
        self._check_known(request.group_id)
        return Decision(reply=self.lags.describe(request.group_id, self.book.of(request.group_id), now_ms))

    def pending(self, group_id: str) -> tuple[DescribedPending, ...]:
        """Describe the pending offsets of a group, in the order of their partitions."""
        return tuple(
            sorted(
                DescribedPending(
                    *partition,
                    one.committed.offset,
                    pending.transactional_id,
                    producer_id,
                    pending.epoch,
                    one.committed.commit_timestamp_ms,
                )
                for producer_id, pending in self.book.pending.of_group(group_id)
                for partition, one in pending.offsets.items()
            )
        )

    def _check_known(self, group_id: str) -> None:
        if not self._groups.exists(group_id) and not self.book.has(group_id):
            raise GroupIdNotFoundError(f"group {group_id!r} does not exist")


def _end_records(marker: EndOffsets, pending: Mapping[str, PendingOffsets], now_ms: int) -> tuple[ShardRecord, ...]:
    """Return the records that end a transaction. A commit writes an offset commit for each pending offset; both
    outcomes write tombstones for the records of pending offsets."""
    records = []
    for group_id, of_group in pending.items():
        for partition, one in of_group.offsets.items() if marker.commit else ():
            committed = one.committed._replace(commit_timestamp_ms=now_ms)
            records.append(ShardRecord(encode_key(group_id, partition), encode_value(committed)))
        keys = _keys(marker.producer_id, group_id, of_group)
        records += [ShardRecord(encode_pending_key(key), None) for key in keys]
    return tuple(records)


def _pending_records(changes: Mapping[PendingKey, PendingOffsets | None]) -> tuple[ShardRecord, ...]:
    return tuple(
        ShardRecord(encode_pending_key(key), None if after is None else encode_pending(after))
        for key, after in changes.items()
    )


def _keys(producer_id: int, group_id: str, pending: PendingOffsets) -> list[PendingKey]:
    """Return the keys of the records that contain the pending offsets."""
    return list(dict.fromkeys(key_of(producer_id, group_id, partition) for partition in pending.offsets))


def _check_same_transaction(request: CommitTransactionOffsets, epoch: int) -> None:
    """Check that new offsets belong to the same transaction as the pending offsets of ``epoch``."""
    if request.epoch < epoch:
        raise InvalidProducerEpochError(
            f"producer {request.producer_id} with epoch {request.epoch} is out of date: the group "
            f"{request.commit.group_id!r} has pending offsets of epoch {epoch}"
        )
    if request.epoch > epoch:
        raise TransactionAbortableError(
            f"producer {request.producer_id} with epoch {request.epoch} cannot commit offsets of group "
            f"{request.commit.group_id!r}: the marker of its former transaction, with epoch {epoch}, is still missing; "
            "abort the transaction"
        )


def _check_marker(marker: EndOffsets, pending: PendingOffsets, *, is_bumping: bool) -> None:
    if marker.epoch < pending.epoch or (is_bumping and marker.epoch == pending.epoch):
        raise InvalidProducerEpochError(
            f"marker of producer {marker.producer_id} with epoch {marker.epoch} is late: offsets of the next "
            f"transaction, with epoch {pending.epoch}, are pending"
        )
    if marker.coordinator_epoch < pending.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"marker of producer {marker.producer_id} is refused: its coordinator epoch {marker.coordinator_epoch} is "
            f"out of date, the pending offsets were confirmed under coordinator epoch {pending.coordinator_epoch}"
        )


def _may_belong(committed: CommittedOffset, topic_id: bytes | None) -> bool:
    return topic_id is None or committed.topic_id in (None, topic_id)


def _epoch(request: CommitOffsets | FetchOffsets) -> int:
    """The member's epoch; -1 for a client that is no member, which sends an empty member id and epoch 0 (no member has
    epoch 0)."""
    return NO_EPOCH if not request.member_id and request.member_epoch == 0 else request.member_epoch


def _where(offset: OffsetToCommit) -> str:
    return f"{offset.topic}-{offset.partition}"


def _check_group_id(group_id: str, *, may_be_empty: bool = False) -> None:
    """Clients of before KIP-289 without a group.id store offsets under the empty id, as in Kafka; no member can join
    this group."""
    if not group_id and not may_be_empty:
        raise InvalidGroupIdError("the group id is empty: set group.id")
    if len(group_id.encode()) > STRING_BYTES_MAX:
        raise InvalidGroupIdError(
            f"the group id is too long: {len(group_id.encode())} bytes, at most {STRING_BYTES_MAX} are allowed; "
            "choose a shorter group.id"
        )
