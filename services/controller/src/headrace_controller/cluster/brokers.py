"""Brokers: registration, heartbeats, fencing, controlled shutdown (KIP-631, with ids by directory as in KIP-853).

    registered, fenced --- heartbeat, has applied its own registration ---> active
    active --- silent for broker.session.timeout.ms, or registered anew ---> fenced
    active --- wants to stop ---> shutting down (leads nothing) --- leaderships taken over ---> fenced, may stop

A broker's id belongs to its directories: whoever comes with the same directories gets the same id. Each registration
has a larger epoch, so what an earlier life of the broker says is refused.

A directory is offline from the heartbeat that says so, or the registration that does not name it, until a later
registration names it again (directories.py has where replicas are). A broker without any online directory is fenced:
it heartbeats, but it can serve nothing.
"""

from __future__ import annotations

import dataclasses

from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
)
from headrace_core.metadata import (
    LOST_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerChangeRecord,
    BrokerImage,
    MetadataImage,
    MetadataRecord,
    RegisterBrokerRecord,
)

from . import elections
from .decision import Decision, View
from .requests import FenceSilentBrokers, Heartbeat, HeartbeatReply, HeartbeatsEnded, RegisterBroker, Registered
from .sessions import Contact

ID_BYTES = 16
#: Every node keeps every registration in memory.
DIRECTORIES_MAX, ENDPOINTS_MAX, NAME_MAX = 1_000, 16, 255


def register(view: View, request: RegisterBroker) -> Decision:
    """Raises InconsistentClusterIdError, InvalidRequestError, DuplicateBrokerRegistrationError."""
    image = view.image
    _check_registration(image, request)
    broker_id = _choose_id(image, request)
    before = image.brokers.get(broker_id)
    if before is not None:
        if before.incarnation_id == request.incarnation_id:  # the same process asks again: the answer was lost
            contact = Contact(broker_id, before.broker_epoch, view.now_ms)
            return Decision(reply=Registered(broker_id, before.broker_epoch), contact=contact)
        alive = view.sessions.lives(broker_id, before.broker_epoch, view.now_ms)
        if alive and not before.in_controlled_shutdown:
            raise DuplicateBrokerRegistrationError(
                f"broker {broker_id} is registered and alive; if it was restarted just now, its earlier registration "
                f"ends {view.sessions.timeout_ms:.0f} ms after its last heartbeat, and then this one will be accepted"
            )
    epoch = image.next_offset  # the offset that this very record gets
    records: list[MetadataRecord] = [
        RegisterBrokerRecord(
            broker_id=broker_id,
            broker_epoch=epoch,
            incarnation_id=request.incarnation_id,
            directory_ids=request.directory_ids,
            endpoints=request.endpoints,
            rack=request.rack or None,
            offline_directories=_missing(before, request.directory_ids),
        )
    ]
    if before is not None and before.active:  # it restarted faster than its session ended: it is fenced by this
        records += elections.after_broker_left(image, broker_id)
    return Decision(tuple(records), Registered(broker_id, epoch), Contact(broker_id, epoch, view.now_ms))


def heartbeat(view: View, request: Heartbeat) -> Decision:
    """Raises BrokerIdNotRegisteredError, StaleBrokerEpochError."""
    broker = known(view.image, request.broker_id, request.broker_epoch)
    contact = Contact(broker.broker_id, broker.broker_epoch, view.now_ms, request.metadata_offset)
    lost = _directories_lost(view.image, broker, request.offline_directories)
    if lost:  # what else the heartbeat asks for is decided on what is left
        image = view.image.apply(lost, view.image.next_offset + len(lost))
        view, broker = dataclasses.replace(view, image=image), image.brokers[broker.broker_id]
    records: list[MetadataRecord] = []
    if request.want_shutdown:
        records, reply, offset = _shut_down(view, broker)
        # A process that may stop is about to end: its successor need not wait for its session.
        contact = dataclasses.replace(contact, shutdown_offset=offset, connected=not reply.should_shutdown)
    elif request.want_fence or not broker.online_directories:
        records = records if broker.fenced else _fence(view.image, broker)
        reply = HeartbeatReply(fenced=True, should_shutdown=False)
    elif broker.fenced and request.metadata_offset > broker.broker_epoch:
        records = _unfence(view.image, broker)
        reply = HeartbeatReply(fenced=False, should_shutdown=False)
    else:
        reply = HeartbeatReply(fenced=broker.fenced, should_shutdown=False)
    return Decision((*lost, *records), reply, contact)


def heartbeats_ended(view: View, request: HeartbeatsEnded) -> Decision:
    contact = Contact(request.broker_id, request.broker_epoch, view.now_ms, connected=False)
    return Decision(contact=contact)


def fence_silent(view: View, request: FenceSilentBrokers) -> Decision:
    """Fences at most one broker: a decision is one batch, and elections look at the brokers as they then are."""
    for broker in view.image.brokers.values():
        silent_ms = view.sessions.silent_ms(broker.broker_id, broker.broker_epoch, view.now_ms)
        if not broker.fenced and silent_ms > view.sessions.timeout_ms:
            return Decision(tuple(_fence(view.image, broker)))
    return Decision()


def _check_registration(image: MetadataImage, request: RegisterBroker) -> None:
    if request.cluster_id != image.cluster_id:
        raise InconsistentClusterIdError(
            f"the broker belongs to cluster {request.cluster_id or '(none)'}, but this is cluster {image.cluster_id}"
        )
    if len(request.incarnation_id) != ID_BYTES:
        raise InvalidRequestError(f"incarnation_id has {len(request.incarnation_id)} bytes, not {ID_BYTES}")
    directories = request.directory_ids
    if not directories or len(set(directories)) != len(directories) or any(len(i) != ID_BYTES for i in directories):
        raise InvalidRequestError("directory_ids: one or more distinct ids of 16 bytes are needed")
    if UNASSIGNED_DIRECTORY in directories or LOST_DIRECTORY in directories:
        raise InvalidRequestError("directory_ids: the ids 0 and 1 are reserved")
    if (
        len(directories) > DIRECTORIES_MAX
        or len(request.endpoints) > ENDPOINTS_MAX
        or len(request.rack or "") > NAME_MAX
    ):
        raise InvalidRequestError(
            f"{len(directories)} directories, {len(request.endpoints)} endpoints, or the rack: too many or too long"
        )
    for endpoint in request.endpoints:
        if (
            not 0 < endpoint.port < 65_536
            or not 0 < len(endpoint.host) <= NAME_MAX
            or len(endpoint.listener) > NAME_MAX
        ):
            raise InvalidRequestError(f"endpoint {endpoint.host[:NAME_MAX]}:{endpoint.port} cannot be connected to")
    if not request.endpoints:
        raise InvalidRequestError("endpoints: a broker without any cannot be reached")
    if len({endpoint.listener for endpoint in request.endpoints}) != len(request.endpoints):
        raise InvalidRequestError("endpoints: a listener is named twice")


def _choose_id(image: MetadataImage, request: RegisterBroker) -> int:
    asked = set(request.directory_ids)
    owners = sorted(broker.broker_id for broker in image.brokers.values() if asked.intersection(broker.directory_ids))
    if not owners:  # they failed, and the broker went on without them
        owners = [each.broker_id for each in image.brokers.values() if asked.intersection(each.offline_directories)]
    if len(owners) > 1:
        raise InvalidRequestError(f"the directories belong to different brokers: {', '.join(map(str, owners))}")
    wanted = request.wanted_broker_id
    if owners:
        if wanted not in (-1, owners[0]):
            raise InvalidRequestError(
                f"the directories belong to broker {owners[0]}, but broker id {wanted} is wanted; "
                f"set node.id={owners[0]} (or leave it out), or use the directories of broker {wanted}"
            )
        return owners[0]
    return wanted if wanted >= 0 else max(image.brokers, default=0) + 1


def known(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The broker, in the life that ``broker_epoch`` names. BrokerIdNotRegisteredError, StaleBrokerEpochError."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"broker {broker_id} has registered anew with epoch {broker.broker_epoch}; {broker_epoch} is a former life"
        )
    return broker


def _missing(before: BrokerImage | None, named: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The directories that a broker had and does not name any more, oldest first and not without bound."""
    if before is None:
        return ()
    had = dict.fromkeys((*before.offline_directories, *before.directory_ids))
    return tuple(each for each in had if each not in named)[-DIRECTORIES_MAX:]


def _directories_lost(image: MetadataImage, broker: BrokerImage, offline: tuple[bytes, ...]) -> list[MetadataRecord]:
    """What follows when the broker says that these of its directories have failed; nothing when that is known."""
    failed = [each for each in dict.fromkeys(offline) if each in broker.online_directories]
    if not failed:
        return []
    change = BrokerChangeRecord(
        broker.broker_id, broker.broker_epoch, offline_directories=(*broker.offline_directories, *failed)
    )
    return [change, *elections.after_directories_failed(image, broker.broker_id, failed)]


def _fence(image: MetadataImage, broker: BrokerImage) -> list[MetadataRecord]:
    change = BrokerChangeRecord(broker.broker_id, broker.broker_epoch, fenced=True, in_controlled_shutdown=False)
    return [change, *elections.after_broker_left(image, broker.broker_id)]


def _unfence(image: MetadataImage, broker: BrokerImage) -> list[MetadataRecord]:
    change = BrokerChangeRecord(broker.broker_id, broker.broker_epoch, fenced=False)
    return [change, *elections.after_broker_came(image, broker.broker_id)]


def _shut_down(view: View, broker: BrokerImage) -> tuple[list[MetadataRecord], HeartbeatReply, int | None]:
    """Leaderships go to others first; the broker may stop once all others have heard of it. The third item is the
    offset that they must have applied."""
    image = view.image
    may_stop, wait = (
        HeartbeatReply(fenced=True, should_shutdown=True),
        HeartbeatReply(fenced=False, should_shutdown=False),
    )
    if broker.fenced:
        return [], may_stop, None
    if not broker.in_controlled_shutdown:
        changes = elections.after_broker_left(image, broker.broker_id)
        if all(change.leader is None or change.leader < 0 for change in changes):  # nobody has to take anything over
            return _fence(image, broker), may_stop, None
        begun = BrokerChangeRecord(broker.broker_id, broker.broker_epoch, in_controlled_shutdown=True)
        return [begun, *changes], wait, image.next_offset + 1 + len(changes)
    handed_over = view.sessions.shutdown_offset(broker.broker_id)
    if handed_over is None:  # another controller began this: everything until now is surely late enough
        handed_over = image.next_offset
    if all(view.sessions.metadata_offset(other.broker_id) >= handed_over for other in image.active_brokers()):
        return _fence(image, broker), may_stop, None
    return [], wait, handed_over
