"""The smaller part of the controller's state: producer ids, owners of shards, reassignments in progress and queued, and
registrations of controllers and coordinators.

The ledger is one frozen value, a part of the metadata image (``image.ledger``). The ledger is small (a few hundred
entries) except for the queue of reassignments. The queue of reassignments may hold thousands of entries and is a
SortedMap, like the large tables of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .records import (
    BrokerEndpoint,
    CoordinatorChangeRecord,
    CoordinatorState,
    FeatureRange,
    ProducerIdsRecord,
    QueuedReassignmentRecord,
    ReassignmentThrottleRecord,
    RegisterControllerRecord,
    RegisterCoordinatorRecord,
    ShardRecord,
)
from .sorted_map import SortedMap

PartitionKey = tuple[bytes, int]  #: (topic id, partition number)


class ControllerImage(msgspec.Struct, frozen=True):
    """A registered controller."""

    controller_id: int
    directory_id: bytes
    features: tuple[FeatureRange, ...]


class CoordinatorImage(msgspec.Struct, frozen=True):
    """A coordinator that is registered; a removed coordinator is not in the image."""

    coordinator_id: int
    coordinator_epoch: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None
    draining: bool = False


class ShardImage(msgspec.Struct, frozen=True):
    """The coordinator that owns a shard (-1: none), and the shard epoch, which grows with each change of the owner. A
    shard is a partition of an internal topic."""

    coordinator_id: int
    shard_epoch: int


class QueuedReassignment(msgspec.Struct, frozen=True):
    """A queued reassignment of a partition; ``targets``: the brokers that will hold the partition's replicas.
    ``automatic``: the cluster planned the reassignment."""

    targets: tuple[int, ...]
    automatic: bool


class Throttle(msgspec.Struct, frozen=True):
    """The throttle of reassignments in bytes per second (0: no throttle), and the brokers to which it applies."""

    bytes_per_s: int = 0
    broker_ids: tuple[int, ...] = ()


NO_THROTTLE = Throttle()


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger, as the module's docstring describes it. ``reassigning``: partitions with a reassignment in progress,
    whose replicas are in the partition's ``adding`` and ``removing``. ``queued``: reassignments that wait for their
    turn."""

    next_producer_id: int = 0
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    coordinators: Mapping[int, CoordinatorImage] = field(default_factory=dict)
    shards: Mapping[PartitionKey, ShardImage] = field(default_factory=SortedMap)
    reassigning: Mapping[PartitionKey, bool] = field(default_factory=SortedMap)
    queued: Mapping[PartitionKey, QueuedReassignment] = field(default_factory=SortedMap)
    throttle: Throttle = NO_THROTTLE


EMPTY_LEDGER = Ledger()


class LedgerBuilder:
    """Changes of a ledger, for ImageBuilder. Used once."""

    def __init__(self, base: Ledger) -> None:
        self._base = base
        self._changed = False
        self._next_producer_id = base.next_producer_id
        self._controllers = base.controllers
        self._coordinators = base.coordinators
        self._shards = SortedMap.of(base.shards).edit()
        self._reassigning = SortedMap.of(base.reassigning).edit()
        self._queued = SortedMap.of(base.queued).edit()
        self._throttle = base.throttle

    def replay(self, record: Any) -> bool:
        """Apply a record; returns False when the record names an entry that is not in the ledger."""
        self._changed = True
        return _REPLAY[type(record)](self, record)

    def partition_moves(self, topic_id: bytes, partition: int, *, moving: bool) -> None:
        """Record whether a partition's reassignment is in progress."""
        key = (topic_id, partition)
        if moving is (key in self._reassigning):
            return
        self._changed = True
        if moving:
            self._reassigning[key] = True
        else:
            del self._reassigning[key]

    def topic_removed(self, topic_id: bytes, partitions: int) -> None:
        """Remove all entries of the topic's partitions."""
        base = self._base
        if not (self._changed or base.shards or base.reassigning or base.queued):
            return
        for table in (self._shards, self._reassigning, self._queued):
            for number in range(partitions):
                if (topic_id, number) in table:
                    self._changed = True
                    del table[topic_id, number]

    def finish(self) -> Ledger:
        if not self._changed:
            return self._base
        return Ledger(
            next_producer_id=self._next_producer_id,
            controllers=self._controllers,
            coordinators=self._coordinators,
            shards=self._shards.finish(),
            reassigning=self._reassigning.finish(),
            queued=self._queued.finish(),
            throttle=self._throttle,
        )

    def _producer_ids(self, record: ProducerIdsRecord) -> bool:
        if record.next_producer_id < self._next_producer_id:
            return False
        self._next_producer_id = record.next_producer_id
        return True

    def _controller(self, record: RegisterControllerRecord) -> bool:
        image = ControllerImage(record.controller_id, record.directory_id, record.features)
        self._controllers = {**self._controllers, record.controller_id: image}
        return True

    def _coordinator(self, record: RegisterCoordinatorRecord) -> bool:
        image = CoordinatorImage(
            record.coordinator_id,
            record.coordinator_epoch,
            record.incarnation_id,
            record.endpoints,
            record.rack,
        )
        self._coordinators = {**self._coordinators, record.coordinator_id: image}
        return True

    def _coordinator_change(self, record: CoordinatorChangeRecord) -> bool:
        known = self._coordinators.get(record.coordinator_id)
        if known is None or known.coordinator_epoch != record.coordinator_epoch:
            return False
        others = {key: each for key, each in self._coordinators.items() if key != record.coordinator_id}
        if record.state != CoordinatorState.GONE:
            draining = record.state == CoordinatorState.DRAINING
            others[record.coordinator_id] = msgspec.structs.replace(known, draining=draining)
        self._coordinators = others
        return True

    def _shard(self, record: ShardRecord) -> bool:
        key = (record.topic_id, record.partition)
        before = self._shards.get(key)
        if before is not None and record.shard_epoch <= before.shard_epoch:
            return False
        self._shards[key] = ShardImage(record.coordinator_id, record.shard_epoch)
        return True

    def _queue(self, record: QueuedReassignmentRecord) -> bool:
        key = (record.topic_id, record.partition)
        if record.targets is not None:
            self._queued[key] = QueuedReassignment(record.targets, record.automatic)
        elif key in self._queued:
            del self._queued[key]
        else:
            return False
        return True

    def _throttled(self, record: ReassignmentThrottleRecord) -> bool:
        self._throttle = Throttle(record.bytes_per_s, record.broker_ids)
        return True


_REPLAY: dict[type, Callable[[LedgerBuilder, Any], bool]] = {
    ProducerIdsRecord: LedgerBuilder._producer_ids,
    RegisterControllerRecord: LedgerBuilder._controller,
    RegisterCoordinatorRecord: LedgerBuilder._coordinator,
    CoordinatorChangeRecord: LedgerBuilder._coordinator_change,
    ShardRecord: LedgerBuilder._shard,
    QueuedReassignmentRecord: LedgerBuilder._queue,
    ReassignmentThrottleRecord: LedgerBuilder._throttled,
}

LEDGER_RECORDS = tuple(_REPLAY)  #: The kinds of records that change the ledger.


def ledger_records(ledger: Ledger, metadata_version: int) -> list[Any]:
    """Return the records that build the ledger from an empty ledger, for a log of level ``metadata_version``. A
    snapshot has the ledger's records after the records of topics and brokers. Reassignments in progress are in the
    partitions' records."""
    # At level 1 of metadata.version the ledger is empty: the controllers refuse to lower the level while producer ids,
    # coordinators, shards or reassignments exist.
    if metadata_version < 2:
        return []
    records: list[Any] = []
    if ledger.next_producer_id:
        records.append(ProducerIdsRecord(-1, -1, ledger.next_producer_id))
    records += [
        RegisterControllerRecord(each.controller_id, each.directory_id, each.features)
        for each in ledger.controllers.values()
    ]
    for coordinator in ledger.coordinators.values():
        records += _coordinator_records(coordinator)
    for (topic_id, partition), shard in ledger.shards.items():
        records.append(ShardRecord(topic_id, partition, shard.coordinator_id, shard.shard_epoch))
    for (topic_id, partition), queued in ledger.queued.items():
        records.append(QueuedReassignmentRecord(topic_id, partition, queued.targets, queued.automatic))
    if ledger.throttle != NO_THROTTLE:
        records.append(ReassignmentThrottleRecord(ledger.throttle.bytes_per_s, ledger.throttle.broker_ids))
    return records


def _coordinator_records(each: CoordinatorImage) -> list[Any]:
    identity = each.coordinator_id, each.coordinator_epoch
    registered = RegisterCoordinatorRecord(*identity, each.incarnation_id, each.endpoints, each.rack)
    if not each.draining:
        return [registered]
    return [registered, CoordinatorChangeRecord(*identity, int(CoordinatorState.DRAINING))]
