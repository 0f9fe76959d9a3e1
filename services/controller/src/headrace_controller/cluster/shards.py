"""Owners of shards. Each shard, a partition of __consumer_offsets or __transaction_state, has one coordinator as owner
at a time. The shard epoch increases with each change of the owner (decision 13).

    registered --- heartbeats ---> has shards --- wants to stop ---> draining --- owns nothing ---> removed
    any of them: silent for broker.session.timeout.ms, or its stream broken for the grace ---> removed
    no first heartbeat within FIRST_HEARTBEAT_MS (sessions.py) ---> removed

A coordinator has no directories, so its state ends with its process. A coordinator's id is only a name, the
smallest free number unless an operator set one; its epoch is the offset of its registration. A coordinator that
registers again under its id counts as new: its shards, even if they are the same, get new epochs.

The controller decides which coordinator owns a shard, and the leader of the shard's partition refuses appends with
lower shard epochs. Even if two coordinators believe that they own a shard, only the coordinator with the larger shard
epoch can write (headrace_core.log.fencing).

Within each topic, the numbers of shards of any two coordinators differ by at most one, and as few shards as possible
move (``assign``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
)
from headrace_core.metadata import (
    CoordinatorChangeRecord,
    CoordinatorImage,
    CoordinatorState,
    MetadataImage,
    MetadataRecord,
    RegisterCoordinatorRecord,
    ShardRecord,
)
from headrace_core.metadata.shards import SHARD_TOPICS

from .decision import Decision, View
from .requests import (
    CoordinatorHeartbeat,
    CoordinatorHeartbeatReply,
    CoordinatorHeartbeatsEnded,
    CoordinatorRegistered,
    RegisterCoordinator,
)
from .sessions import CoordinatorContact

NO_OWNER = -1
ID_BYTES = 16
ENDPOINTS_MAX, NAME_MAX = 16, 255

Key = tuple[bytes, int]  #: (topic id, partition number)


def register(view: View, request: RegisterCoordinator) -> Decision:
    """Returns a CoordinatorRegistered. Raises InconsistentClusterIdError, InvalidRequestError, and
    DuplicateBrokerRegistrationError if a running coordinator has the wanted id."""
    image = view.image
    _check_registration(image, request)
    coordinators = image.ledger.coordinators
    for known in coordinators.values():
        if known.incarnation_id == request.incarnation_id:  # the same process repeats a request whose answer was lost
            return Decision(
                reply=CoordinatorRegistered(known.coordinator_id, known.coordinator_epoch),
                coordinator=CoordinatorContact(*_identity(known), view.now_ms, registering=True),
            )
    coordinator_id = request.wanted_id if request.wanted_id >= 0 else _smallest_free(coordinators)
    before = coordinators.get(coordinator_id)
    if before is not None and view.coordinator_sessions.lives(
        before.coordinator_id, before.coordinator_epoch, view.now_ms
    ):
        raise DuplicateBrokerRegistrationError(
            f"coordinator id {coordinator_id} is in use by a live coordinator; if this is a restart, the earlier "
            "registration expires with its session, and the coordinator can register then"
        )
    epoch = image.next_offset  # the coordinator epoch is the offset of this record
    records: list[MetadataRecord] = [
        RegisterCoordinatorRecord(
            coordinator_id, epoch, request.incarnation_id, request.endpoints, request.rack or None
        )
    ]
    records += inherited(image, coordinator_id)
    return Decision(
        tuple(records),
        CoordinatorRegistered(coordinator_id, epoch),
        coordinator=CoordinatorContact(coordinator_id, epoch, view.now_ms, registering=True),
    )


def heartbeat(view: View, request: CoordinatorHeartbeat) -> Decision:
    """Returns a CoordinatorHeartbeatReply. Raises BrokerIdNotRegisteredError or StaleBrokerEpochError if the
    coordinator must register again."""
    image = view.image
    coordinator = known(image, request.coordinator_id, request.coordinator_epoch)
    contact = CoordinatorContact(*_identity(coordinator), view.now_ms, stream=request.stream)
    if not request.want_shutdown:
        return Decision(reply=CoordinatorHeartbeatReply(should_shutdown=False), coordinator=contact)
    if any(True for _ in _shards_of(image, coordinator.coordinator_id)):
        records: list[MetadataRecord] = []
        if not coordinator.draining:
            records.append(CoordinatorChangeRecord(*_identity(coordinator), int(CoordinatorState.DRAINING)))
        records += reassigned(image, without=coordinator.coordinator_id)
        return Decision(tuple(records), CoordinatorHeartbeatReply(should_shutdown=False), coordinator=contact)
    gone = CoordinatorChangeRecord(*_identity(coordinator), int(CoordinatorState.GONE))
    return Decision((gone,), CoordinatorHeartbeatReply(should_shutdown=True), coordinator=contact)


def heartbeats_ended(view: View, request: CoordinatorHeartbeatsEnded) -> Decision:
    """Start the coordinator's grace period, because its heartbeat stream broke."""
    return Decision(
        coordinator=CoordinatorContact(
            request.coordinator_id, request.coordinator_epoch, view.now_ms, stream=request.stream, connected=False
        )
    )


def known(image: MetadataImage, coordinator_id: int, coordinator_epoch: int) -> CoordinatorImage:
    """Guard: return the registered coordinator with this id and epoch; raise an error if there is none. Raises
    BrokerIdNotRegisteredError, StaleBrokerEpochError."""
    coordinator = image.ledger.coordinators.get(coordinator_id)
    if coordinator is None:
        raise BrokerIdNotRegisteredError(
            f"coordinator {coordinator_id} is not registered, or its session has expired; register again"
        )
    if coordinator.coordinator_epoch != coordinator_epoch:
        raise StaleBrokerEpochError(
            f"coordinator {coordinator_id} has registered again with epoch {coordinator.coordinator_epoch}; epoch "
            f"{coordinator_epoch} is out of date"
        )
    return coordinator


def sweep(view: View) -> Decision:
    """Remove one coordinator that has been silent or disconnected for too long, and reassign its shards."""
    for coordinator in view.image.ledger.coordinators.values():
        if view.coordinator_sessions.is_gone(*_identity(coordinator), view.now_ms):
            gone = CoordinatorChangeRecord(*_identity(coordinator), int(CoordinatorState.GONE))
            return Decision((gone, *reassigned(view.image, without=coordinator.coordinator_id)))
    return Decision()


def distribute(view: View) -> Decision:
    """Assign owners to shards that have no owner, and a share of the shards to new coordinators."""
    return Decision(tuple(reassigned(view.image)))


def reassigned(image: MetadataImage, *, without: int = NO_OWNER) -> list[MetadataRecord]:
    """The records that distribute the shards evenly over the coordinators that take shards; the coordinator ``without``
    takes none."""
    coordinators = [
        each.coordinator_id
        for each in image.ledger.coordinators.values()
        if not each.draining and each.coordinator_id != without
    ]
    owners = {key: shard.coordinator_id for key, shard in image.ledger.shards.items()}
    if not (coordinators or owners):
        return []
    changes = assign([_topic_shards(image, name, owners) for name in SHARD_TOPICS], coordinators)
    return [owned(image, key, coordinator_id) for key, coordinator_id in changes.items()]


def inherited(image: MetadataImage, coordinator_id: int) -> list[MetadataRecord]:
    """Guard: give new epochs to shards that a new coordinator owns under its id, because their former owner was another
    process."""
    return [owned(image, key, coordinator_id) for key in _shards_of(image, coordinator_id)]


def owned(image: MetadataImage, key: Key, coordinator_id: int) -> ShardRecord:
    return ShardRecord(*key, coordinator_id, next_epoch(image, key))


def next_epoch(image: MetadataImage, key: Key) -> int:
    """Guard: the shard's new epoch must be above every earlier epoch of the shard."""
    shard = image.ledger.shards.get(key)
    return 1 if shard is None else shard.shard_epoch + 1


def assign(topics: Iterable[Mapping[Key, int]], coordinators: Sequence[int]) -> dict[Key, int]:
    """The shards that change owners, with their new owners.

    ``topics``: for each topic, its shards with their present owners (NO_OWNER if a shard has none). In the result, the
    numbers of a topic's shards on any two ``coordinators`` differ by at most one, with as few moves as possible. Each
    remaining shard is assigned to the coordinator with the fewest shards of the topics that were distributed before.
    """
    totals: Counter[int] = Counter(dict.fromkeys(coordinators, 0))
    changes: dict[Key, int] = {}
    for shards in topics:
        for key, owner in _assign_topic(shards, coordinators, totals):
            if owner != shards[key]:
                changes[key] = owner
            totals[owner] += 1
    return changes


def _assign_topic(
    shards: Mapping[Key, int], coordinators: Sequence[int], totals: Mapping[int, int]
) -> Iterator[tuple[Key, int]]:
    """Yield every shard with its future owner."""
    if not coordinators:
        yield from ((key, NO_OWNER) for key in shards)
        return
    least, odd = divmod(len(shards), len(coordinators))
    held = Counter(owner for owner in shards.values() if owner in totals)
    # Give the higher share to the coordinators that own the most shards now, so that few shards change their owner.
    order = sorted(coordinators, key=lambda each: (-held[each], totals[each], each))
    room = {each: least + (place < odd) for place, each in enumerate(order)}
    homeless = []
    for key, owner in shards.items():
        if room.get(owner, 0) > 0:
            room[owner] -= 1
            yield key, owner
        else:
            homeless.append(key)
    places = [each for each in sorted(room, key=lambda each: (totals[each], each)) for _ in range(room[each])]
    yield from zip(homeless, places, strict=True)


def _topic_shards(image: MetadataImage, name: str, owners: Mapping[Key, int]) -> dict[Key, int]:
    topic = image.topic(name)
    if topic is None:
        return {}
    return {
        (topic.topic_id, number): owners.get((topic.topic_id, number), NO_OWNER)
        for number in range(len(topic.partitions))
    }


def _shards_of(image: MetadataImage, coordinator_id: int) -> Iterator[Key]:
    return (key for key, shard in image.ledger.shards.items() if shard.coordinator_id == coordinator_id)


def _identity(coordinator: CoordinatorImage) -> tuple[int, int]:
    return coordinator.coordinator_id, coordinator.coordinator_epoch


def _smallest_free(coordinators: Mapping[int, CoordinatorImage]) -> int:
    return next(each for each in range(1, len(coordinators) + 2) if each not in coordinators)


def _check_registration(image: MetadataImage, request: RegisterCoordinator) -> None:
    if request.cluster_id != image.cluster_id:
        raise InconsistentClusterIdError(
            f"the coordinator belongs to cluster {request.cluster_id or '(none)'}, but this is cluster "
            f"{image.cluster_id}"
        )
    if len(request.incarnation_id) != ID_BYTES or request.wanted_id < -1:
        raise InvalidRequestError(
            f"incarnation_id must have {ID_BYTES} bytes, and the wanted id must be -1 (none) or above"
        )
    if not 0 < len(request.endpoints) <= ENDPOINTS_MAX or len(request.rack or "") > NAME_MAX:
        raise InvalidRequestError(
            f"invalid registration: {len(request.endpoints)} endpoints (1 to {ENDPOINTS_MAX} are allowed), or a rack "
            f"name of more than {NAME_MAX} characters"
        )
    for endpoint in request.endpoints:
        if (
            not 0 < endpoint.port < 65_536
            or not 0 < len(endpoint.host) <= NAME_MAX
            or len(endpoint.listener) > NAME_MAX
        ):
            raise InvalidRequestError(
                f"endpoint {endpoint.host[:NAME_MAX]}:{endpoint.port} is not reachable: name a host and a port from "
                "1 to 65535"
            )
