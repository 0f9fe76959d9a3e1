"""Registration, heartbeats, fencing and controlled shutdown of brokers (KIP-631); directory ids identify a broker.

    registered, fenced --- heartbeat, has applied its own registration ---> active
    active --- silent, disconnected for too long (sessions.py), or registered again ---> fenced
    active --- wants to stop ---> shutting down (leads nothing) --- leaderships taken over ---> fenced, may stop

A broker's id belongs to its log directories: a broker with the same directories gets the same id. Each registration has
a larger broker epoch, so messages from before a restart are refused.

A broker that cannot lead now reports this state in its heartbeats (leadership.py). When a broker reports that it cannot
lead, elections follow at once, as for a failed directory.

A directory goes offline when a heartbeat reports it as failed, or when a registration does not name it. A directory is
online again when a later registration names it (directories.py tracks the replicas' directories). A broker without an
online directory is fenced: it sends heartbeats, but cannot serve.

A registration names the broker epoch that the clean shutdown markers of its directories contain (KIP-966). If the
registration names an epoch other than the broker's last epoch, the broker stopped uncleanly. A broker that stopped
uncleanly is not an eligible leader of partitions whose last records it may have lost.

A directory may be an older copy, from a snapshot of the machine or from a backup. Each broker therefore writes its
epoch into its directories before it opens their logs. The image remembers, for each directory, the last epoch in which
the broker was unfenced with it: only an unfenced broker acknowledges records. A directory that returns with an older
epoch is *outdated*, and its replicas leave the ISR and the ELR, and are no last known leaders (elections.py). A broker
that stopped between its registration and the write of its epoch was never unfenced in that epoch, so its directory is
not outdated. Directories of a broker that writes no epochs prove their age only by their clean shutdown markers.

When a broker's state changes, its partitions change too (elections.py). These changes may need more records than one
batch of the metadata log may have, and each decision writes one batch. The first decision includes the broker's own
change, and ``settle`` writes the remaining partition changes in later decisions. The broker
stays fenced until all its partition changes are written.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import msgspec

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
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from headrace_core.types import NO_LEADER

from . import elections, features, leadership
from .decision import Decision, View
from .requests import FenceSilentBrokers, Heartbeat, HeartbeatReply, HeartbeatsEnded, RegisterBroker, Registered
from .sessions import Contact

ID_BYTES = 16
#: Limits of the fields of a registration, because every node keeps every registration in memory.
DIRECTORIES_MAX, ENDPOINTS_MAX, NAME_MAX = 1_000, 16, 255


def register(view: View, request: RegisterBroker) -> Decision:
    """Register a broker. Raises InconsistentClusterIdError, InvalidRequestError, DuplicateBrokerRegistrationError,
    UnsupportedVersionError."""
    image = view.image
    _check_registration(image, request)
    features.check_node(image, request.features, "the broker")
    broker_id = _choose_id(image, request)
    before = image.brokers.get(broker_id)
    if before is not None:
        if before.incarnation_id == request.incarnation_id:  # the same process repeats a request whose answer was lost
            contact = Contact(broker_id, before.broker_epoch, view.now_ms, registering=True)
            return Decision(reply=Registered(broker_id, before.broker_epoch), contact=contact)
        alive = view.sessions.lives(broker_id, before.broker_epoch, view.now_ms)
        if alive and not before.in_controlled_shutdown:
            raise DuplicateBrokerRegistrationError(
                f"broker id {broker_id} is in use by a live broker; if this is a restart, the earlier registration "
                f"expires {view.sessions.timeout_ms:.0f} ms after its last heartbeat, and the broker can register "
                "then"
            )
    epoch = image.next_offset  # the broker epoch is the offset of this record
    outdated = _outdated(before, request)
    registration = RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=epoch,
        incarnation_id=request.incarnation_id,
        directory_ids=request.directory_ids,
        endpoints=request.endpoints,
        rack=request.rack or None,
        offline_directories=_missing(before, request.directory_ids),
        features=request.features,
        default_log_flush=request.default_log_flush,
        writes_epochs=bool(request.directory_epochs),
        outdated_directories=outdated,
    )
    former = before if outdated else _lost_life(before, request.previous_broker_epoch)
    records, more = _with_consequences(view, registration, former=former)
    return Decision(
        tuple(records),
        Registered(broker_id, epoch),
        Contact(broker_id, epoch, view.now_ms, registering=True),
        elections_pending=more,
    )


def heartbeat(view: View, request: Heartbeat) -> Decision:
    """Raises BrokerIdNotRegisteredError, StaleBrokerEpochError, InvalidRequestError."""
    broker = known(view.image, request.broker_id, request.broker_epoch)
    leadership.check(request.cannot_lead)
    contact = Contact(
        broker.broker_id,
        broker.broker_epoch,
        view.now_ms,
        request.metadata_offset,
        stream=request.stream,
        cannot_lead=request.cannot_lead,
    )
    is_news = view.hindered.get(broker.broker_id, ()) != request.cannot_lead
    if is_news:
        hindered = leadership.with_reported(view.hindered, broker.broker_id, request.cannot_lead)
        view = msgspec.structs.replace(view, hindered=hindered)
    lost, elections_pending = _directories_lost(view, broker, request.offline_directories)
    if is_news and not lost:
        lost, elections_pending = _consequences(view, view.image, broker.broker_id, None, room=_batch_max(view))
    if lost:  # decide the rest of the heartbeat without the failed directories
        image = view.image.apply(lost, view.image.next_offset + len(lost))
        view, broker = msgspec.structs.replace(view, image=image), image.brokers[broker.broker_id]
    records: list[MetadataRecord] = []
    more: tuple[int, ...] = ()
    reply = HeartbeatReply(fenced=broker.fenced, should_shutdown=False)
    if request.want_shutdown:
        records, more, reply, offset = _shut_down(view, broker)
        # A broker that has permission to shut down exits soon, so its next start need not wait for the end of its
        # session.
        contact = dataclasses.replace(contact, shutdown_offset=offset, connected=not reply.should_shutdown)
    elif request.want_fence or not broker.online_directories:
        if not broker.fenced:
            records, more = _fence(view, broker)
        reply = HeartbeatReply(fenced=True, should_shutdown=False)
    elif broker.fenced and _may_be_unfenced(view, broker, request.metadata_offset):
        records, more = _with_consequences(view, _change(broker, fenced=False))
        reply = HeartbeatReply(fenced=False, should_shutdown=False)
    elif request.lacking_leaders and not lost and not broker.fenced:
        electorate = elections.Electorate(view.image, view.settings, view.hindered)
        changes = elections.without_lacking_leaders(electorate, broker.broker_id, request.lacking_leaders)
        records.extend(itertools.islice(changes, _batch_max(view)))  # the next heartbeat names the others again
    return Decision((*lost, *records), reply, contact, elections_pending=(*elections_pending, *more))


def heartbeats_ended(view: View, request: HeartbeatsEnded) -> Decision:
    """Start the broker's grace period, unless the broker has already sent heartbeats on a newer stream."""
    contact = Contact(request.broker_id, request.broker_epoch, view.now_ms, connected=False, stream=request.stream)
    return Decision(contact=contact)


def fence_silent(view: View, request: FenceSilentBrokers | None = None) -> Decision:
    """Fence at most one broker, because a decision is one batch, and elections must use the brokers' state after the
    fencing."""
    for broker in view.image.brokers.values():
        if not broker.fenced and view.sessions.is_over(broker.broker_id, broker.broker_epoch, view.now_ms):
            records, more = _fence(view, broker)
            return Decision(tuple(records), elections_pending=more)
    return Decision()


def settle(view: View) -> Decision:
    """Continue the partition changes of a broker whose changes did not fit into one decision. The image shows which
    partition changes are left, so a new leader can continue."""
    for broker_id in sorted(view.agenda.elections_pending):
        broker = view.image.brokers.get(broker_id)
        if broker is not None:
            former = broker if broker.elections_pending else None
            records, more = _consequences(view, view.image, broker_id, former, room=_batch_max(view))
            if former is not None and not more:
                records.append(_change(broker, elections_pending=False))
            if records:
                return Decision(tuple(records), elections_pending=more)
        view.agenda.elections_pending.discard(broker_id)
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
        raise InvalidRequestError("directory_ids: must be one or more distinct ids of 16 bytes")
    if UNASSIGNED_DIRECTORY in directories or LOST_DIRECTORY in directories:
        raise InvalidRequestError("directory_ids: the ids 0 and 1 are reserved")
    _check_sizes(request)
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
    if not request.endpoints:
        raise InvalidRequestError("endpoints is empty: a broker needs at least one")
    if len({endpoint.listener for endpoint in request.endpoints}) != len(request.endpoints):
        raise InvalidRequestError("endpoints: a listener is named twice; name each once")


def _check_sizes(request: RegisterBroker) -> None:
    directories, endpoints = len(request.directory_ids), len(request.endpoints)
    if directories > DIRECTORIES_MAX:
        raise InvalidRequestError(
            f"the broker has {directories} log directories, at most {DIRECTORIES_MAX} are allowed; name fewer in "
            "log.dirs"
        )
    if endpoints > ENDPOINTS_MAX:
        raise InvalidRequestError(
            f"the broker has {endpoints} endpoints, at most {ENDPOINTS_MAX} are allowed; configure fewer listeners"
        )
    for key, value in (("broker.rack", request.rack or ""), ("log.flush", request.default_log_flush)):
        if len(value) > NAME_MAX:
            raise InvalidRequestError(f"{key} has {len(value)} characters, at most {NAME_MAX} are allowed; shorten it")


def _choose_id(image: MetadataImage, request: RegisterBroker) -> int:
    asked = set(request.directory_ids)
    owners = sorted(broker.broker_id for broker in image.brokers.values() if asked.intersection(broker.directory_ids))
    if not owners:  # the directories failed, and the broker continued without them
        owners = [each.broker_id for each in image.brokers.values() if asked.intersection(each.offline_directories)]
    if len(owners) > 1:
        raise InvalidRequestError(f"the directories belong to different brokers: {', '.join(map(str, owners))}")
    wanted = request.wanted_broker_id
    if owners:
        if wanted not in (-1, owners[0]):
            raise InvalidRequestError(
                f"the directories belong to broker {owners[0]}, but node.id={wanted}; set node.id={owners[0]} (or "
                f"leave it out), or use the directories of broker {wanted}"
            )
        return owners[0]
    return wanted if wanted >= 0 else max(image.brokers, default=0) + 1


def known(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerImage:
    """The registered broker with this id and epoch; raises an error if there is none. Raises
    BrokerIdNotRegisteredError, StaleBrokerEpochError."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"broker {broker_id} is not registered")
    if broker.broker_epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"broker {broker_id} has registered again with epoch {broker.broker_epoch}; epoch {broker_epoch} is out "
            "of date"
        )
    return broker


def _missing(before: BrokerImage | None, named: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Directories that the broker had and that its registration no longer names, oldest first and limited in number."""
    if before is None:
        return ()
    had = dict.fromkeys((*before.offline_directories, *before.directory_ids))
    return tuple(each for each in had if each not in named)[-DIRECTORIES_MAX:]


def _lost_life(before: BrokerImage | None, previous_broker_epoch: int) -> BrokerImage | None:
    """The broker's previous registration after an unclean stop (KIP-966); None after a clean stop. The result also has
    the previous registration if the partition changes of an earlier unclean stop are not all written yet."""
    if before is None or (before.broker_epoch == previous_broker_epoch and not before.elections_pending):
        return None
    return before


def _outdated(before: BrokerImage | None, request: RegisterBroker) -> tuple[bytes, ...]:
    """The directories that are older copies. The result has those of the previous registration, too, if its partition
    changes are not all written yet: by now they have its epoch."""
    if before is None:
        return ()
    served = {each.directory_id: each for each in before.directory_epochs}
    found = set(before.outdated_directories if before.elections_pending else ())
    for epochs in request.directory_epochs:
        last = served.get(epochs.directory_id)
        if last is None:
            continue
        if epochs.stopped_epoch >= 0:
            is_older = epochs.stopped_epoch < last.broker_epoch
        else:
            is_older = last.is_written and epochs.started_epoch < last.broker_epoch
        if is_older:
            found.add(epochs.directory_id)
    return tuple(each for each in request.directory_ids if each in found)


def _may_be_unfenced(view: View, broker: BrokerImage, applied: int) -> bool:
    """Whether the broker has applied the record of its registration, and the metadata log has all partition changes
    that follow from the broker's last stop."""
    is_complete = not broker.elections_pending and broker.broker_id not in view.agenda.elections_pending
    return is_complete and applied > broker.broker_epoch


def _directories_lost(
    view: View, broker: BrokerImage, offline: tuple[bytes, ...]
) -> tuple[list[MetadataRecord], tuple[int, ...]]:
    """Records that the controller writes when ``directories`` have failed; none if the directories are already recorded
    as offline."""
    failed = [each for each in dict.fromkeys(offline) if each in broker.online_directories]
    if not failed:
        return [], ()
    return _with_consequences(view, _change(broker, offline_directories=(*broker.offline_directories, *failed)))


def _fence(view: View, broker: BrokerImage) -> tuple[list[MetadataRecord], tuple[int, ...]]:
    return _with_consequences(view, _change(broker, fenced=True, in_controlled_shutdown=False))


def _change(broker: BrokerImage, **changes: Any) -> BrokerChangeRecord:
    return BrokerChangeRecord(broker.broker_id, broker.broker_epoch, **changes)


def _with_consequences(
    view: View, change: RegisterBrokerRecord | BrokerChangeRecord, *, former: BrokerImage | None = None
) -> tuple[list[MetadataRecord], tuple[int, ...]]:
    """The record ``change``, followed by the changes of the broker's partitions, as many as fit into one decision. The
    second item of the result names the broker if more changes follow."""
    image = view.image.apply((change,), view.image.next_offset + 1)
    records, more = _consequences(view, image, change.broker_id, former, room=_batch_max(view))
    if more and former is not None:
        assert isinstance(change, RegisterBrokerRecord), "only a new registration ends a registration"
        # The new registration record keeps the weaker log.flush of the broker's former and new registration, because
        # later decisions read only the new record.
        flush = change.default_log_flush if former.default_log_flush == "commit" else former.default_log_flush
        change = msgspec.structs.replace(change, elections_pending=True, default_log_flush=flush)
    return [change, *records], more


def _consequences(
    view: View, image: MetadataImage, broker_id: int, former: BrokerImage | None, *, room: int
) -> tuple[list[MetadataRecord], tuple[int, ...]]:
    electorate = elections.Electorate(image, view.settings, view.hindered)
    changes = elections.after_broker_changed(electorate, broker_id, former=former)
    records: list[MetadataRecord] = list(itertools.islice(changes, room))
    return records, () if next(changes, None) is None else (broker_id,)


def _takes_over(record: MetadataRecord) -> bool:
    """Whether the record elects a leader."""
    return isinstance(record, PartitionChangeRecord) and record.leader is not None and record.leader != NO_LEADER


def _batch_max(view: View) -> int:
    """Maximum number of partitions that one decision changes: the decision's records are one log entry, which is
    encoded and applied in one turn."""
    return view.settings.metadata_max_records_per_request


def _shut_down(
    view: View, broker: BrokerImage
) -> tuple[list[MetadataRecord], tuple[int, ...], HeartbeatReply, int | None]:
    """Move the broker's leaderships to other brokers. The broker may stop when all other brokers have applied the
    metadata offset in the last item of the result."""
    image = view.image
    may_stop, wait = (
        HeartbeatReply(fenced=True, should_shutdown=True),
        HeartbeatReply(fenced=False, should_shutdown=False),
    )
    if broker.fenced:
        return [], (), may_stop, None
    if not broker.in_controlled_shutdown:
        records, more = _with_consequences(view, _change(broker, in_controlled_shutdown=True))
        if more or any(_takes_over(each) for each in records):
            return records, more, wait, None if more else image.next_offset + len(records)
        records, more = _fence(view, broker)  # the broker has no leadership to move
        return records, more, may_stop, None
    if broker.broker_id in view.agenda.elections_pending:
        return [], (), wait, None
    handed_over = view.sessions.shutdown_offset(broker.broker_id)
    # The offset of the last leadership move is unknown after a controller failover, or if the moves took more than one
    # batch of records. The present end of the metadata log is then a safe offset.
    if handed_over is None:
        handed_over = image.next_offset
    if all(view.sessions.metadata_offset(other.broker_id) >= handed_over for other in image.active_brokers()):
        records, more = _fence(view, broker)
        return records, more, may_stop, None
    return [], (), wait, handed_over
