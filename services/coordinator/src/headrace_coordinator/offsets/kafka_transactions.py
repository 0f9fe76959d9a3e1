"""Convert Kafka's transactional offset commits into the records that Headrace writes. Pure.

Kafka appends the offsets of a transaction as ordinary offset commits in a transactional batch, and the transaction's
marker as a control batch. When a coordinator replays a shard that Kafka wrote, ``KafkaTransactions`` converts these
batches:

    a transactional batch   ->  the pending offsets of its producer (pending.py)
    a COMMIT marker         ->  the offset commits, tombstones for the pending offsets, and the pending offsets of other
                                producers without those that were written before the committed ones
    an ABORT marker         ->  tombstones for the pending offsets
    another offset commit   ->  the same commit, and the pending offsets without its partition

Headrace may end or continue a transaction that Kafka began. Headrace then writes records of pending offsets and no
marker, so in the log, Kafka's transaction stays open until an operator aborts it. The same producer may have a later
transaction by then. From the first record of pending offsets on, a marker in the log therefore no longer ends the
record's pending offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace_core.types import TopicPartition

from ..state_machine import RecordKind, kind_of
from .codec import decode_key, decode_value, encode_key, encode_value
from .pending import (
    PendingKey,
    PendingOffset,
    PendingOffsets,
    decode_pending_key,
    encode_pending,
    encode_pending_key,
    key_of,
)

_OFFSET_KINDS = (RecordKind.OLD_OFFSET_COMMIT, RecordKind.OFFSET_COMMIT)

#: Key, value and timestamp of a record.
Replayed = tuple[bytes, bytes | None, int]


@dataclass
class KafkaTransactions:
    """The open transactions that Kafka wrote, during a replay."""

    #: Maps a producer id to the producer's pending offsets, grouped by the key of the Headrace record that will
    #: contain the offsets.
    _open: dict[int, dict[PendingKey, dict[TopicPartition, PendingOffset]]] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)  #: the producers' epochs in their last transactional batches
    _written: int = 0  #: the number of pending offsets so far, which is the order of the last one

    def batch(self, producer_id: int, epoch: int, records: Iterable[Replayed]) -> list[Replayed]:
        """A transactional batch. Raises the errors of ``codec``."""
        self._epochs[producer_id] = epoch
        parts = self._open.setdefault(producer_id, {})
        changed: dict[PendingKey, int] = {}
        for key, value, timestamp_ms in records:
            if kind_of(key) in _OFFSET_KINDS and value is not None:
                group_id, partition = decode_key(key)
                part = key_of(producer_id, group_id, partition)
                self._written += 1
                parts.setdefault(part, {})[partition] = PendingOffset(decode_value(value), order=self._written)
                changed[part] = timestamp_ms
        return [self._record(part, timestamp_ms) for part, timestamp_ms in changed.items()]

    def plain(self, records: Iterable[Replayed]) -> list[Replayed]:
        """Process records outside of transactions, and return further records, to be replayed after them. Pending
        offsets in a record of Headrace no longer belong to Kafka's transaction. A commit or a tombstone of an offset
        replaces the older pending offsets of the partition. Raises the errors of ``codec``."""
        changed: dict[PendingKey, int] = {}
        for key, _, timestamp_ms in records if self._open else ():
            if kind_of(key) == RecordKind.PENDING_OFFSETS:
                part = decode_pending_key(key)
                self._open.get(part.producer_id, {}).pop(part, None)
                changed.pop(part, None)
            elif kind_of(key) in _OFFSET_KINDS:
                for part in self._overtaken(*decode_key(key)):
                    changed[part] = timestamp_ms
        return [self._record(part, timestamp_ms) for part, timestamp_ms in changed.items()]

    def _overtaken(self, group_id: str, partition: TopicPartition, order: float = float("inf")) -> Iterator[PendingKey]:
        """Remove the pending offsets of a partition that were written before ``order``, and return the records that
        contained them."""
        for producer_id, parts in self._open.items():
            part = key_of(producer_id, group_id, partition)
            one = parts.get(part, {}).get(partition)
            if one is not None and one.order < order:
                del parts[part][partition]
                yield part

    def _record(self, part: PendingKey, timestamp_ms: int) -> Replayed:
        """Return the record with the pending offsets of a part."""
        offsets = self._open[part.producer_id][part]
        pending = PendingOffsets(self._epochs[part.producer_id], offsets)
        return encode_pending_key(part), encode_pending(pending) if offsets else None, timestamp_ms

    def marker(self, producer_id: int, *, commit: bool, timestamp_ms: int) -> list[Replayed]:
        """Convert a marker of the producer's transaction."""
        ended: list[Replayed] = []
        overtaken: dict[PendingKey, None] = {}
        for part, offsets in self._open.pop(producer_id, {}).items():
            for partition, one in offsets.items() if commit else ():
                ended.append((encode_key(part.group_id, partition), encode_value(one.committed), timestamp_ms))
                overtaken.update(dict.fromkeys(self._overtaken(part.group_id, partition, one.order)))
            ended.append((encode_pending_key(part), None, timestamp_ms))
        return ended + [self._record(part, timestamp_ms) for part in overtaken]
