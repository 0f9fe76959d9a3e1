"""Reassignments of partitions (KIP-455): they are requested, begun a few at a time, completed, cancelled and listed.

    requested or planned --- its brokers are free ---> in progress --- all added replicas are in sync ---> done
         |   their turn has not come                    |
         +---> queued                                   +--- cancelled ---> as before

No broker takes part in more than ``reassignment.partitions.per.broker`` copies at a time, as sender or fetcher. Kafka
begins all copies at once. Reassignments that exceed the limit are queued in the metadata log, so that another
controller can continue. A reassignment that adds a replica on an inactive broker does not count towards the limit.

moves.py has the records of each step, throttles.py the changes of the configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace_core.errors import (
    HeadraceError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import (
    MetadataImage,
    MetadataRecord,
    PartitionImage,
    QueuedReassignment,
    QueuedReassignmentRecord,
)
from headrace_core.plurals import counted

from . import internal_topics, moves, throttles
from .balancing import is_enabled
from .decision import Decision, View
from .elections import Electorate
from .moves import Key
from .rebalance import planned_replicas
from .requests import AlterPartitionReassignments, Reassignment, ReassignmentResult
from .throttles import Copying

_STEP = 100  #: Maximum number of reassignments that one upkeep decision completes or begins.
_LOOK_AGAIN_MS = 5_000.0
#: Maximum number of queued reassignments that one step examines. The number is larger than the number of copies that
#: the brokers of a cluster can begin at once.
_LOOK = 2_000


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """An entry of ListPartitionReassignments; the entry of a queued reassignment shows the state after the reassignment
    begins."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    waits: bool


def listed(image: MetadataImage, wanted: Iterable[tuple[str, int]] | None = None) -> Iterator[OngoingReassignment]:
    """The reassignments in progress or queued: of all partitions, or of the partitions ``wanted`` (topic, number).
    Partitions without a reassignment are left out of the list."""
    ledger = image.ledger
    if wanted is None:
        keys: Iterable[Key] = sorted({*ledger.reassigning, *ledger.queued})
    else:
        keys = [(image.topic_ids[topic], number) for topic, number in wanted if topic in image.topic_ids]
    for key in keys:
        partition = image.partition(*key)
        if partition is None:
            continue
        name = image.topics[key[0]].name
        queued = ledger.queued.get(key)
        if queued is not None:
            adding = moves.added_by(partition, queued.targets)
            removing = tuple(each for each in partition.replicas if each not in queued.targets)
            yield OngoingReassignment(name, key[1], partition.replicas, adding, removing, waits=True)
        elif key in ledger.reassigning:
            yield OngoingReassignment(
                name, key[1], partition.replicas, partition.adding, partition.removing, waits=False
            )


def alter(view: View, request: AlterPartitionReassignments) -> Decision:
    """Returns one ReassignmentResult for each requested reassignment. Raises InvalidRequestError for a negative
    throttle, and PolicyViolationError for more than metadata.max.records.per.request."""
    if request.throttle_bytes_per_s is not None and request.throttle_bytes_per_s < 0:
        raise InvalidRequestError(
            f"throttle_bytes_per_s={request.throttle_bytes_per_s}: must be 0 (no throttle) or more"
        )
    room = view.settings.metadata_max_records_per_request
    if len(request.reassignments) > room:
        raise PolicyViolationError(
            f"the request has {len(request.reassignments)} reassignments, more than "
            f"metadata.max.records.per.request={room}; split it into several requests"
        )
    steps = _Steps(view)
    named = Counter((item.topic, item.partition) for item in request.reassignments)
    results = []
    for item in request.reassignments:
        try:
            if named[item.topic, item.partition] > 1:
                raise InvalidRequestError(f"{item.topic}-{item.partition} is named more than once in the request")
            _alter_one(steps, item, request)
        except HeadraceError as error:
            results.append(ReassignmentResult(item.topic, item.partition, error))
        else:
            results.append(ReassignmentResult(item.topic, item.partition))
    return Decision(steps.finish(request.throttle_bytes_per_s), tuple(results))


def _alter_one(steps: _Steps, item: Reassignment, request: AlterPartitionReassignments) -> None:
    image = steps.view.image
    topic_id = image.topic_ids.get(item.topic)
    partition = None if topic_id is None else image.partition(topic_id, item.partition)
    if topic_id is None or partition is None:
        raise UnknownTopicOrPartitionError(f"partition {item.topic[:249]}-{item.partition} does not exist")
    key = (topic_id, item.partition)
    if item.targets is None:
        steps.cancel(key, f"{item.topic}-{item.partition}")
        return
    check_targets(image, partition, item.targets)
    factor = len(planned_replicas(partition))
    if len(item.targets) != factor and not request.allow_replication_factor_change:
        raise InvalidReplicationFactorError(
            f"{item.topic}-{item.partition} has {counted(factor, 'replica')}, but the request names "
            f"{len(item.targets)} and does not allow the replication factor to change"
        )
    steps.move(key, QueuedReassignment(item.targets, automatic=False))


def check_targets(image: MetadataImage, partition: PartitionImage, targets: Sequence[int]) -> None:
    """Raise InvalidReplicaAssignmentError unless ``targets`` can be a partition's replicas."""
    if not targets:
        raise InvalidReplicaAssignmentError("the list of replicas is empty; leave it out to cancel a reassignment")
    if len(set(targets)) != len(targets):
        raise InvalidReplicaAssignmentError(f"replicas {_listed(targets)}: a broker is named twice")
    unknown = [each for each in targets if each not in image.brokers]
    if unknown:
        raise InvalidReplicaAssignmentError(f"replicas {_listed(targets)}: broker {_listed(unknown)} is not registered")
    draining = [each for each in targets if image.brokers[each].draining and each not in planned_replicas(partition)]
    if draining:
        raise InvalidReplicaAssignmentError(
            f"replicas {_listed(targets)}: broker {_listed(draining)} is being drained and takes no replicas"
        )


def complete(view: View) -> Decision:
    """Complete reassignments whose new replicas are in sync; one decision completes a limited number of
    reassignments."""
    steps = _Steps(view)
    for key in view.image.ledger.reassigning:
        steps.complete(key)
        if len(steps.ended) >= _STEP:
            break
    return Decision(steps.finish() if steps.ended else ())


def begin(view: View) -> Decision:
    """Begin queued reassignments whose brokers have free slots for copies. Drops outdated plans."""
    ledger = view.image.ledger
    if not ledger.queued:
        return Decision()
    # Skip this step if nothing has changed since a step that began no reassignment. The comparison leaves out leaders,
    # which change too often; so a full check runs every _LOOK_AGAIN_MS.
    where = (ledger.queued, ledger.reassigning, view.image.brokers, view.image.configs, view.now_ms // _LOOK_AGAIN_MS)
    if len(view.agenda.nothing_begins) == len(where) and all(map(_is_same, view.agenda.nothing_begins, where)):
        return Decision()
    steps = _Steps(view)
    for looked, (key, queued) in enumerate(view.image.ledger.queued.items()):
        if looked >= _LOOK or len(steps.records) >= _STEP:
            break
        if _is_void(view.image, key, queued.targets) or (
            queued.automatic and not (_still_fits(view.image, key, queued.targets) and _is_wanted(view, key, queued))
        ):
            steps.drop(key)
        elif _can_begin(view.image, key, queued.targets):
            steps.move(key, queued)
    if not steps.records:
        view.agenda.nothing_begins = where
    return Decision(steps.finish() if steps.records else ())


def _is_same(old: object, new: object) -> bool:
    """Whether two tables are the same object: a comparison of their entries would cost more than it saves."""
    return old is new or (isinstance(new, float) and old == new)


def _is_void(image: MetadataImage, key: Key, targets: Sequence[int]) -> bool:
    """Whether the reassignment would add a replica to a broker that is being drained or is no longer registered. The
    drain wins over an earlier reassignment to the drained broker, because the drain is the later request."""
    partition = image.topics[key[0]].partitions[key[1]]
    added = [image.brokers.get(each) for each in moves.added_by(partition, targets)]
    return any(broker is None or broker.draining for broker in added)


def _can_begin(image: MetadataImage, key: Key, targets: Sequence[int]) -> bool:
    """Whether the brokers that get new replicas are active and not being drained; an operator's request waits for
    inactive brokers."""
    partition = image.topics[key[0]].partitions[key[1]]
    return all(_takes(image, each) for each in moves.added_by(partition, targets))


def _still_fits(image: MetadataImage, key: Key, targets: Sequence[int]) -> bool:
    partition = image.topics[key[0]].partitions[key[1]]
    planned = planned_replicas(partition)
    if len(targets) != len(planned) and not internal_topics.may_grow_to(image, key, tuple(planned), tuple(targets)):
        return False
    return all(each in planned or _takes(image, each) for each in targets)


def _is_wanted(view: View, key: Key, queued: QueuedReassignment) -> bool:
    """Guard: whether a queued reassignment should still run. The reassignment should run if automatic rebalancing is
    on, or if it moves a replica off a broker that is being drained."""
    planned = planned_replicas(view.image.topics[key[0]].partitions[key[1]])
    leaving = [view.image.brokers[each] for each in planned if each not in queued.targets]
    return any(broker.draining for broker in leaving) or is_enabled(view)


def _takes(image: MetadataImage, broker_id: int) -> bool:
    """Guard: whether the broker may get new replicas, because it is active and not being drained."""
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.active and not broker.draining


class _Steps:
    """Collects the reassignment steps of one decision, each for a different partition; keeps count of the brokers' free
    slots, and sets the throttle."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.records: list[MetadataRecord] = []
        self.begun: dict[Key, Copying] = {}
        self.ended: set[Key] = set()
        self._queued = len(view.image.ledger.queued)
        self._copies = _copies(view.image)
        self._electorate = Electorate(view.image, view.settings, view.hindered)

    def move(self, key: Key, wanted: QueuedReassignment) -> None:
        """Begin the reassignment, or queue it while its brokers have no free slot."""
        image = self.view.image
        waits = image.ledger.queued.get(key)
        partition = image.topics[key[0]].partitions[key[1]]
        brokers = _copying_brokers(image, partition, moves.added_by(partition, wanted.targets))
        if not brokers:
            brokers = self._copying_once_begun(key, wanted)
        if not self._has_room(brokers) or not _can_begin(image, key, wanted.targets):
            if waits != wanted:
                self.records.append(QueuedReassignmentRecord(*key, wanted.targets, wanted.automatic))
                self._queued += waits is None
            return
        if waits is not None:
            self.drop(key)
        change = moves.begun(self._electorate, key, wanted.targets, elects=wanted.automatic)
        if change is None:
            return
        self._copies.update(brokers)
        self.records.append(change)
        after = image.apply([change], image.next_offset + 1)
        if key not in after.ledger.reassigning:  # the reassignment adds and removes no replica
            self.ended.add(key)
            return
        done = moves.completed(Electorate(after, self.view.settings, self.view.hindered), key)
        if done is not None:
            self.records.append(done)
            self.ended.add(key)
        else:
            self.begun[key] = Copying.of(after.topics[key[0]].partitions[key[1]])

    def _copying_once_begun(self, key: Key, wanted: QueuedReassignment) -> set[int]:
        """Brokers that would send or fetch the copies of this reassignment. If the partition has no leader, the first
        step of the reassignment may elect a leader, which then sends the copies."""
        change = moves.begun(self._electorate, key, wanted.targets)
        if change is None:
            return set()
        after = self.view.image.apply([change], self.view.image.next_offset + 1)
        partition = after.topics[key[0]].partitions[key[1]]
        return _copying_brokers(after, partition, partition.adding)

    def cancel(self, key: Key, name: str) -> None:
        """Raises NoReassignmentInProgressError, InvalidReplicaAssignmentError."""
        ledger = self.view.image.ledger
        if key in ledger.reassigning:
            self._record(moves.cancelled(self._electorate, key))
            self.ended.add(key)
        elif key not in ledger.queued:
            raise NoReassignmentInProgressError(f"{name} is not being reassigned, so there is nothing to cancel")
        if key in ledger.queued:
            self.drop(key)

    def drop(self, key: Key) -> None:
        """Remove the reassignment from the queue."""
        self.records.append(QueuedReassignmentRecord(*key))
        self._queued -= 1

    def complete(self, key: Key) -> None:
        done = moves.completed(self._electorate, key)
        if done is not None:
            self.records.append(done)
            self.ended.add(key)

    def _record(self, record: MetadataRecord | None) -> None:
        assert record is not None, "ending a reassignment always changes the partition"
        self.records.append(record)

    def finish(self, bytes_per_s: int | None = None) -> tuple[MetadataRecord, ...]:
        image = self.view.image
        still_moving = len(image.ledger.reassigning) - len(self.ended.intersection(image.ledger.reassigning))
        is_last = not (self._queued or still_moving or self.begun)
        self.records += throttles.follow(
            image, begun=self.begun, ended=self.ended, is_last=is_last, bytes_per_s=bytes_per_s
        )
        return tuple(self.records)

    def _has_room(self, brokers: Iterable[int]) -> bool:
        """Guard: whether each broker has a free slot for a copy."""
        limit = self.view.settings.reassignment_partitions_per_broker
        return all(self._copies[each] < limit for each in brokers)


def _copies(image: MetadataImage) -> Counter[int]:
    """Number of copies that each broker takes part in. A reassignment that adds a replica on an inactive broker does
    not count towards the limit."""
    counts: Counter[int] = Counter()
    for topic_id, number in image.ledger.reassigning:
        partition = image.topics[topic_id].partitions[number]
        if all(each in image.brokers and image.brokers[each].active for each in partition.adding):
            counts.update(_copying_brokers(image, partition, partition.adding))
    return counts


def _copying_brokers(image: MetadataImage, partition: PartitionImage, adding: Sequence[int]) -> set[int]:
    """Brokers that take part in copying a partition: the fetchers that have not caught up, and the sending leader. The
    set is empty if the partition has no leader."""
    fetching = {each for each in adding if each not in partition.isr}
    return {*fetching, partition.leader} if fetching and partition.leader in image.brokers else set()


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
