"""Offsets of open transactions (KIP-447): the records of pending offsets, the state that is derived from them, and
verifications. Pure.

    key      int16 1006 | msgpack [producer id, group id, topic, part]
    value    int16 1 | msgpack [producer epoch, transactional id, coordinator epoch, offsets, orders]
             offsets: [partition, sequence, the value of the offset commit as in codec.py] each
             orders: one number for each of the offsets; an older coordinator writes none, and drops those it finds

A record has the pending offsets of one producer in one group, for at most 32 partitions of a topic (one *part*;
partition 70 is in part 2). A request with offsets therefore rewrites only the parts that it names, and not all pending
offsets. At a COMMIT marker the shard writes one batch: offset commits, and tombstones for the producer's records. At an
ABORT marker the shard writes only the tombstones. Kafka writes pending offsets as transactional batches (see
kafka_transactions.py).

Several open transactions may have an offset of one partition. As in Kafka, the offset that was *written* last counts,
and not the one whose marker comes last: a COMMIT marker also drops the older pending offsets of its partitions. The
``order`` of a pending offset says which one is older. It is in the record, because compaction changes positions.

All pending offsets of a producer have the same epoch. Offsets of the next transaction are refused until the marker has
arrived, as in a partition's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

import msgspec

from headrace_core.errors import CorruptLogError, UnsupportedVersionError
from headrace_core.types import NO_EPOCH, TopicPartition

from ..state_machine import RecordKind
from .codec import CommittedOffset, decode_value, encode_key, encode_value, record_bytes

VERSION = 1  #: The version of the records that this coordinator writes, and the newest that it can read.
PART_PARTITIONS = 32  #: Number of partitions of a topic whose pending offsets share a record.
_KIND = int(RecordKind.PENDING_OFFSETS).to_bytes(2, "big")


class PendingOffset(NamedTuple):
    """The offset that a transaction commits for a partition. ``sequence``: the number of the producer's request, which
    shows whether a request was delayed; 0: the request has no number. ``order``: larger than the order of each pending
    offset of the partition that was written before; 0: an older coordinator wrote the record (PendingBook.ordered)."""

    committed: CommittedOffset
    sequence: int = 0
    order: int = 0


class PendingKey(NamedTuple):
    """The key of a record: producer, group, topic, and part of the topic's partitions."""

    producer_id: int
    group_id: str
    topic: str
    part: int

    def partitions(self) -> Iterator[TopicPartition]:
        """All partitions that the record may contain."""
        for partition in range(self.part * PART_PARTITIONS, (self.part + 1) * PART_PARTITIONS):
            yield TopicPartition(self.topic, partition)


class PendingOffsets(NamedTuple):
    """Pending offsets of one producer in one group: the offsets of one record, or all offsets. ``epoch``: the producer
    epoch of the transaction. ``coordinator_epoch``: the epoch of the transaction's shard that confirmed the
    transaction, -1 if it is unknown."""

    epoch: int
    offsets: Mapping[TopicPartition, PendingOffset]
    transactional_id: str = ""
    coordinator_epoch: int = NO_EPOCH


class _Value(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    transactional_id: str
    coordinator_epoch: int
    offsets: tuple[tuple[int, int, bytes], ...]
    orders: tuple[int, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_key_decoder = msgspec.msgpack.Decoder(tuple[int, str, str, int])
_value_decoder = msgspec.msgpack.Decoder(_Value)


def key_of(producer_id: int, group_id: str, partition: TopicPartition) -> PendingKey:
    """Return the key of the record that contains the partition's pending offset."""
    return PendingKey(producer_id, group_id, partition.topic, partition.partition // PART_PARTITIONS)


def encode_pending_key(key: PendingKey) -> bytes:
    return _KIND + _encoder.encode(tuple(key))


def decode_pending_key(key: bytes) -> PendingKey:
    """Raises CorruptLogError."""
    try:
        return PendingKey(*_key_decoder.decode(key[2:]))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptLogError(f"cannot decode the key of pending offsets: {error}") from None


def encode_pending(pending: PendingOffsets) -> bytes:
    """Encode the value of a record; all its partitions belong to the topic and the part in its key."""
    ascending = sorted(pending.offsets.items())
    offsets = tuple((partition.partition, one.sequence, encode_value(one.committed)) for partition, one in ascending)
    orders = tuple(one.order for _, one in ascending)
    value = _Value(pending.epoch, pending.transactional_id, pending.coordinator_epoch, offsets, orders)
    return VERSION.to_bytes(2, "big") + _encoder.encode(value)


def decode_pending(key: PendingKey, value: bytes) -> PendingOffsets:
    """Raises UnsupportedVersionError for a record of a newer Headrace version, and CorruptLogError."""
    version = int.from_bytes(value[:2], "big", signed=True)
    if version > VERSION:
        raise UnsupportedVersionError(
            f"a record of pending offsets has version {version}, but this coordinator supports at most {VERSION}: "
            "upgrade the coordinator"
        )
    try:
        found = _value_decoder.decode(value[2:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptLogError(f"cannot decode pending offsets: {error}") from None
    orders = found.orders or (0,) * len(found.offsets)
    if len(orders) != len(found.offsets):
        raise CorruptLogError(f"{len(found.offsets)} pending offsets are listed with {len(orders)} orders")
    offsets = {
        TopicPartition(key.topic, partition): PendingOffset(decode_value(committed), sequence, order)
        for (partition, sequence, committed), order in zip(found.offsets, orders, strict=True)
    }
    return PendingOffsets(found.epoch, offsets, found.transactional_id, found.coordinator_epoch)


_NOTHING: Mapping[str, PendingOffsets] = {}


class PendingBook:
    """The pending offsets of a shard, derived only from the records."""

    __slots__ = ("_by_partition", "_by_producer", "_end_bytes", "_end_bytes_of", "_producers")

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, PendingOffsets]] = {}
        #: Maps a group to the producers with pending offsets of this group, in all and for each partition. A request
        #: that names a few partitions must not look at all pending offsets of the group.
        self._producers: dict[str, set[int]] = {}
        self._by_partition: dict[str, dict[TopicPartition, set[int]]] = {}
        #: Maps the key of a record of pending offsets to the bytes that these offsets take in the batch with which a
        #: marker commits them. ``_end_bytes`` has the sums of these bytes by producer.
        self._end_bytes_of: dict[PendingKey, int] = {}
        self._end_bytes: Counter[int] = Counter()

    def apply(self, key: PendingKey, pending: PendingOffsets | None) -> None:
        """Apply a record. A value of None is a tombstone; the record that it removes need not exist."""
        producer_id, group_id, *_ = key
        groups = self._by_producer.setdefault(producer_id, {})
        before = groups.get(group_id)
        offsets = {} if before is None else before.offsets
        assert isinstance(offsets, dict)
        if key in self._end_bytes_of:
            self._end_bytes[producer_id] -= self._end_bytes_of.pop(key)
            for partition in key.partitions():
                if offsets.pop(partition, None) is not None:
                    self._unlink(producer_id, group_id, partition)
        if pending is not None:
            offsets.update(pending.offsets)
            coordinator_epoch = max(pending.coordinator_epoch, NO_EPOCH if before is None else before.coordinator_epoch)
            groups[group_id] = pending._replace(offsets=offsets, coordinator_epoch=coordinator_epoch)
            self._end_bytes_of[key] = end_bytes(key, pending)
            self._end_bytes[producer_id] += self._end_bytes_of[key]
            self._producers.setdefault(group_id, set()).add(producer_id)
            by_partition = self._by_partition.setdefault(group_id, {})
            for partition in pending.offsets:
                by_partition.setdefault(partition, set()).add(producer_id)
        elif not offsets:
            self._forget(producer_id, group_id)

    def _unlink(self, producer_id: int, group_id: str, partition: TopicPartition) -> None:
        by_partition = self._by_partition[group_id]
        producers = by_partition[partition]
        producers.discard(producer_id)
        if not producers:
            del by_partition[partition]
            if not by_partition:
                del self._by_partition[group_id]

    def _forget(self, producer_id: int, group_id: str) -> None:
        """Called when the producer has no more pending offsets of the group."""
        groups = self._by_producer[producer_id]
        groups.pop(group_id, None)
        if not groups:
            del self._by_producer[producer_id]
            self._end_bytes.pop(producer_id, None)
        producers = self._producers.get(group_id, set())
        producers.discard(producer_id)
        if not producers:
            self._producers.pop(group_id, None)

    def ordered(self, key: PendingKey, pending: PendingOffsets) -> PendingOffsets:
        """Return a record of the log with the orders that it lacks. An older coordinator, which had the shard in
        between, wrote the record: with new offsets, and with those that it left as they were."""
        if all(one.order for one in pending.offsets.values()):
            return pending
        before = self.part(key)
        known = before.offsets if before is not None and before.epoch == pending.epoch else {}
        return pending._replace(
            offsets={
                each: one._replace(order=one.order or self._order(one, known.get(each), key.group_id, each))
                for each, one in pending.offsets.items()
            }
        )

    def _order(self, one: PendingOffset, before: PendingOffset | None, group_id: str, partition: TopicPartition) -> int:
        """The order of an offset in a record without orders. The place in the log decides for a new offset. If
        compaction has removed the producer's record before, the offset may be one that was left as it was: then its
        time decides, and it counts as older than offsets of a later time."""
        if before is not None and before._replace(order=0) == one:
            return before.order
        others = [other for _, other in self.of_partition(group_id, partition)]
        time_ms = one.committed.commit_timestamp_ms
        later = [other.order for other in others if other.committed.commit_timestamp_ms > time_ms]
        if before is None and later:
            return min(later) - 1
        return 1 + max((other.order for other in others), default=0)

    def part(self, key: PendingKey) -> PendingOffsets | None:
        """Return the pending offsets in a record."""
        of_group = self.of_producer(key.producer_id).get(key.group_id)
        if of_group is None or key not in self._end_bytes_of:
            return None
        found = of_group.offsets
        return of_group._replace(offsets={each: found[each] for each in key.partitions() if each in found})

    def end_bytes(self, producer_id: int, changes: Mapping[PendingKey, PendingOffsets]) -> int:
        """Return the size of the batch with which a marker commits the producer's pending offsets, after
        ``changes``."""
        size = self._end_bytes.get(producer_id, 0)
        return size + sum(end_bytes(key, each) - self._end_bytes_of.get(key, 0) for key, each in changes.items())

    def of_producer(self, producer_id: int) -> Mapping[str, PendingOffsets]:
        """The pending offsets of a producer by group. Do not keep the returned mapping, because it changes."""
        return self._by_producer.get(producer_id, _NOTHING)

    def of_group(self, group_id: str) -> Iterator[tuple[int, PendingOffsets]]:
        """The producers with pending offsets of a group, in the order of their ids, each with its pending offsets."""
        for producer_id in sorted(self._producers.get(group_id, ())):
            yield producer_id, self._by_producer[producer_id][group_id]

    def of_partition(self, group_id: str, partition: TopicPartition) -> list[tuple[int, PendingOffset]]:
        """The producers with a pending offset of a group's partition, in the order of their ids, each with its
        offset."""
        producers = self._by_partition.get(group_id, {}).get(partition, ())
        return [(each, self._by_producer[each][group_id].offsets[partition]) for each in sorted(producers)]

    def partitions(self, group_id: str) -> Set[TopicPartition]:
        """The partitions with pending offsets of a group: open transactions may still change their committed offsets.
        Do not keep the returned set, because it changes."""
        return self._by_partition.get(group_id, {}).keys()

    def group_ids(self) -> tuple[str, ...]:
        """Ids of the groups with pending offsets."""
        return tuple(self._producers)


def end_bytes(key: PendingKey, pending: PendingOffsets) -> int:
    """Return the size of the records with which a marker commits a record's offsets: the commits and the tombstone."""
    return record_bytes(encode_pending_key(key), None) + sum(
        record_bytes(encode_key(key.group_id, partition), encode_value(one.committed))
        for partition, one in pending.offsets.items()
    )


class Verification:
    """A pending request to verify a transaction at the transaction's coordinator. A verification equals only itself, so
    a confirmation from before a replay of the shard is ignored. ``of``: the set of verifications that contains this
    verification."""

    __slots__ = ("epoch", "of", "producer_id")

    def __init__(self, of: Verifications, producer_id: int, epoch: int) -> None:
        self.of = of
        self.producer_id = producer_id
        self.epoch = epoch


class Verifications:
    """The pending verifications of a shard.

    A marker cancels the verifications of the transactions that it ends. The coordinator may have confirmed the
    verifications before it wrote the marker; offsets that are added after the marker would stay pending forever.
    """

    __slots__ = ("_of",)

    def __init__(self) -> None:
        #: Maps a producer id to the producer's verifications in progress.
        self._of: dict[int, set[Verification]] = {}

    def begin(self, producer_id: int, epoch: int) -> Verification:
        verification = Verification(self, producer_id, epoch)
        self._of.setdefault(producer_id, set()).add(verification)
        return verification

    def end(self, verification: Verification) -> bool:
        """Remove a verification; returns whether it was still in progress."""
        found = self._of.get(verification.producer_id)
        if found is None or verification not in found:
            return False
        self._keep(verification.producer_id, found - {verification})
        return True

    def cancel(self, producer_id: int, last_ended_epoch: int) -> None:
        """Called when a marker has ended the producer's transactions up to this epoch."""
        found = self._of.get(producer_id)
        if found is not None:
            self._keep(producer_id, {each for each in found if each.epoch > last_ended_epoch})

    def _keep(self, producer_id: int, left: set[Verification]) -> None:
        if left:
            self._of[producer_id] = left
        else:
            self._of.pop(producer_id, None)
