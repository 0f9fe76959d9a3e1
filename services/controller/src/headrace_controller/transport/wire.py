"""Convert Raft's messages to and from protobuf (raft.proto).

The hello of a stream names the stream's sender, so the messages name neither sender nor receiver. Incoming messages are
checked field by field. The batch of an entry is checked by its CRC, and against the entry's fields. Because all fields
are checked, Raft receives no message that a correct peer could not have sent, and no damaged bytes reach the disk.
Invalid bytes raise InvalidRequestError (CorruptMessageError for a batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace_core.errors import (
    CorruptLogError,
    CorruptMessageError,
    HeadraceError,
    InvalidConfigError,
    InvalidRequestError,
)
from headrace_core.node.listeners import parse_addresses
from headrace_core.records import BatchHeader, check_batch
from headrace_core.types import join_address, split_address
from headrace_protos.v1 import raft_pb2

from ..control_records import decode_entry
from ..raft import (
    AppendRequest,
    AppendResponse,
    Entry,
    EntryKind,
    HeartbeatRequest,
    HeartbeatResponse,
    OutdatedNotice,
    Place,
    RecallRequest,
    RecallResponse,
    Remembered,
    ReplicaKey,
    Room,
    SnapshotId,
    SnapshotRequest,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    VoterSet,
)
from ..raft.types import Body

_DIRECTORY_BYTES = 16
#: Maximum length of a voter's address: a host name has at most 253 characters, and replicas receive the addresses
#: repeatedly.
_ADDRESS_MAX = 261
_SMALL_BYTES = 64  #: Approximate bytes of a Raft message without records.

_KINDS = {
    EntryKind.DATA: raft_pb2.RaftEntry.KIND_DATA,
    EntryKind.LEADER_CHANGE: raft_pb2.RaftEntry.KIND_LEADER_CHANGE,
    EntryKind.VOTERS: raft_pb2.RaftEntry.KIND_VOTERS,
}
#: Messages that older controllers do not know.
_LATER = RecallRequest | RecallResponse | OutdatedNotice
_KIND_OF = {number: kind for kind, number in _KINDS.items()}


def size_of(body: Body) -> int:
    """Approximate bytes of a message on the wire, for limits."""
    if isinstance(body, AppendRequest):
        return _SMALL_BYTES + sum(entry.size for entry in body.entries)
    if isinstance(body, SnapshotRequest):
        return _SMALL_BYTES + len(body.data)
    return _SMALL_BYTES


def write_key(key: ReplicaKey, out: Any) -> None:
    out.node_id = key.node_id
    out.directory_id = key.directory_id


def envelope_of(bodies: Iterable[Body]) -> raft_pb2.RaftEnvelope:
    envelope = raft_pb2.RaftEnvelope()
    for body in bodies:
        out = (envelope.later_messages if isinstance(body, _LATER) else envelope.messages).add()
        out.term = body.term
        _WRITERS[type(body)](body, out)
    return envelope


def _write_place(place: Place, out: Any) -> None:
    out.offset, out.term = place


def _write_voters(voters: VoterSet, out: Any) -> None:
    for key in voters:
        voter = out.add(address=voters.address(key.node_id))
        write_key(key, voter.key)


def _write_vote_request(body: VoteRequest, message: Any) -> None:
    out = message.vote_request
    _write_place(body.end, out.end)
    out.is_pre_vote, out.is_transfer = body.is_pre_vote, body.is_transfer


def _write_vote_response(body: VoteResponse, message: Any) -> None:
    out = message.vote_response
    out.asked_term, out.is_granted, out.is_pre_vote = body.asked_term, body.is_granted, body.is_pre_vote


def _write_append_request(body: AppendRequest, message: Any) -> None:
    out = message.append_request
    _write_place(body.previous, out.previous)
    out.committed_offset = body.committed
    for entry in body.entries:  # build entries in place: adding a finished message would copy it
        item = out.entries.add(
            kind=_KINDS[entry.kind],
            term=entry.term,
            base_offset=entry.base_offset,
            count=entry.count,
            data=entry.data,
        )
        if entry.voters is not None:
            _write_voters(entry.voters, item.voters)


def _write_append_response(body: AppendResponse, message: Any) -> None:
    out = message.append_response
    _write_place(body.match, out.match)
    out.previous_offset, out.is_rejected = body.previous_offset, body.is_rejected


def _write_heartbeat_request(body: HeartbeatRequest, message: Any) -> None:
    out = message.heartbeat_request
    out.committed_offset, out.round = body.committed, body.round
    out.acknowledged_offset, out.durable_offset = body.acknowledged, body.durable


def _write_heartbeat_response(body: HeartbeatResponse, message: Any) -> None:
    message.heartbeat_response.SetInParent()
    message.heartbeat_response.round = body.round
    if body.room is not None:
        message.heartbeat_response.usable_bytes, message.heartbeat_response.total_bytes = body.room


def _write_snapshot_request(body: SnapshotRequest, message: Any) -> None:
    out = message.snapshot_request
    _write_place(body.snapshot.place, out.place)
    _write_voters(body.snapshot.voters, out.voters)
    out.position, out.data, out.is_last = body.position, body.data, body.is_last


def _write_snapshot_response(body: SnapshotResponse, message: Any) -> None:
    out = message.snapshot_response
    _write_place(body.place, out.place)
    out.position, out.is_installed = body.position, body.is_installed


def _write_timeout_now(body: TimeoutNow, message: Any) -> None:
    message.timeout_now.SetInParent()


def _write_recall_request(body: RecallRequest, message: Any) -> None:
    message.recall_request.SetInParent()


def _write_recall_response(body: RecallResponse, message: Any) -> None:
    out = message.recall_response
    out.SetInParent()
    out.remembered_term, vote, out.end_offset, out.kept_offset = body.remembered
    if vote is not None:
        write_key(vote, out.vote)


def _write_outdated_notice(body: OutdatedNotice, message: Any) -> None:
    message.outdated_notice.SetInParent()


_WRITERS: dict[type, Callable[[Any, Any], None]] = {
    VoteRequest: _write_vote_request,
    VoteResponse: _write_vote_response,
    AppendRequest: _write_append_request,
    AppendResponse: _write_append_response,
    HeartbeatRequest: _write_heartbeat_request,
    HeartbeatResponse: _write_heartbeat_response,
    SnapshotRequest: _write_snapshot_request,
    SnapshotResponse: _write_snapshot_response,
    TimeoutNow: _write_timeout_now,
    RecallRequest: _write_recall_request,
    RecallResponse: _write_recall_response,
    OutdatedNotice: _write_outdated_notice,
}


def read_key(key: raft_pb2.RaftReplicaKey) -> ReplicaKey:
    _check(key.node_id >= 0, f"node_id={key.node_id}: must not be negative")
    directory: bytes = key.directory_id
    _check(len(directory) == _DIRECTORY_BYTES, f"directory_id: {len(directory)} bytes, must be {_DIRECTORY_BYTES}")
    return ReplicaKey(key.node_id, directory)


def check_address(address: str) -> str:
    """Return ``address`` if it is a "host:port" that a VOTERS entry can contain, else raise an error. Raises
    InvalidRequestError."""
    _check(
        len(address) <= _ADDRESS_MAX, f"address={address[:40]}...: {len(address)} characters, at most {_ADDRESS_MAX}"
    )
    try:
        (checked,) = parse_addresses([address], key="address")
        return join_address(*split_address(checked))
    except (InvalidConfigError, ValueError) as error:
        raise InvalidRequestError(str(error)) from None


def read_envelope(envelope: raft_pb2.RaftEnvelope) -> list[Body]:
    """The messages of an envelope, in order. Raises InvalidRequestError, CorruptMessageError."""
    _check(not envelope.HasField("hello"), "a stream has a second hello")
    return [_read_message(message) for message in (*envelope.messages, *envelope.later_messages)]


def _read_message(message: raft_pb2.RaftMessage) -> Body:
    _check(message.term >= 0, f"term={message.term}: must not be negative")
    kind = message.WhichOneof("body")
    _check(kind is not None, "a message has no body, or a body of a newer protocol")
    try:
        return _READERS[kind](message.term, getattr(message, kind))
    except HeadraceError as error:
        raise type(error)(f"{kind}: {error.message}") from None


def _check(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise InvalidRequestError(otherwise)


def _read_place(place: raft_pb2.RaftPlace) -> Place:
    _check(place.offset >= 0 and place.term >= 0, f"{place.offset}/{place.term} is not a place in a log")
    return Place(place.offset, place.term)


def _read_voters(items: Sequence[raft_pb2.RaftVoter]) -> VoterSet:
    try:
        voters = VoterSet.of(
            map(read_key, (item.key for item in items)), {item.key.node_id: item.address for item in items}
        )
    except ValueError as error:
        raise InvalidRequestError(f"voters: {error}") from None
    _check(len(voters) == len(items), "voters: a voter is named twice")
    _check(len(voters) > 0, "voters: there are none")
    return voters


def _read_vote_request(term: int, item: raft_pb2.RaftVoteRequest) -> VoteRequest:
    _check(term > 0, "term=0: votes need a term above 0")
    return VoteRequest(term, _read_place(item.end), item.is_pre_vote, item.is_transfer)


def _read_vote_response(term: int, item: raft_pb2.RaftVoteResponse) -> VoteResponse:
    _check(item.asked_term > 0, f"asked_term={item.asked_term}: must be above 0")
    return VoteResponse(term, item.asked_term, item.is_granted, item.is_pre_vote)


def _read_append_request(term: int, item: raft_pb2.RaftAppendRequest) -> AppendRequest:
    previous = _read_place(item.previous)
    _check(item.committed_offset >= 0, f"committed_offset={item.committed_offset}: must not be negative")
    entries = tuple(map(_read_entry, item.entries))
    end, last_term = previous
    _check(last_term <= term, f"previous has term {last_term}, but the leader has term {term}")
    for entry in entries:
        _check(
            entry.base_offset == end, f"an entry begins at {entry.base_offset}, but the previous entry ends at {end}"
        )
        _check(
            last_term <= entry.term <= term,
            f"an entry of term {entry.term} after an entry of term {last_term}, sent in term {term}",
        )
        end, last_term = entry.next_offset, entry.term
    return AppendRequest(term, previous, entries, item.committed_offset)


def _read_entry(item: raft_pb2.RaftEntry) -> Entry:
    kind = _KIND_OF.get(item.kind)
    if kind is None:
        raise InvalidRequestError(f"a Raft message has an entry of unknown kind {item.kind}")
    _check(item.term > 0 and item.base_offset >= 0 and item.count > 0, "an entry without a term, offset or records")
    _check(kind is EntryKind.VOTERS or not item.voters, f"an entry of kind {kind.value} with voters")
    data: bytes = item.data
    header = check_batch(data)
    said = (item.base_offset, item.count, item.term, kind is not EntryKind.DATA, len(data))
    found = (header.base_offset, header.last_offset_delta + 1, header.leader_epoch, header.is_control, header.size)
    _check(said == found, f"offset, count, term, control and size of an entry are {said}, but its batch has {found}")
    if kind is EntryKind.DATA:
        return Entry(kind, item.term, item.base_offset, item.count, data)
    voters = _read_voters(item.voters) if kind is EntryKind.VOTERS else None
    return _checked_control(Entry(kind, item.term, item.base_offset, item.count, data, voters), header)


def _checked_control(entry: Entry, header: BatchHeader) -> Entry:
    """Check ``entry``, whose fields must match its bytes: a checksum covers the bytes, and a restart reads the fields
    from them."""
    try:
        found = decode_entry(header, entry.data)
    except (CorruptLogError, CorruptMessageError) as error:
        raise InvalidRequestError(
            f"a Raft message has a damaged entry of kind {entry.kind.value}: {error.message}"
        ) from None
    _check(
        found.kind is entry.kind and found.voters == entry.voters,
        f"an entry of kind {entry.kind.value} with voters {entry.voters}, whose batch is of kind {found.kind.value} "
        f"with {found.voters}",
    )
    return found


def _read_append_response(term: int, item: raft_pb2.RaftAppendResponse) -> AppendResponse:
    _check(item.previous_offset >= -1, f"previous_offset={item.previous_offset}: must not be negative")
    return AppendResponse(term, item.previous_offset, _read_place(item.match), item.is_rejected)


def _read_heartbeat_request(term: int, item: raft_pb2.RaftHeartbeatRequest) -> HeartbeatRequest:
    numbers = item.committed_offset, item.round, item.acknowledged_offset, item.durable_offset
    _check(min(numbers) >= 0, "a negative offset or round")
    return HeartbeatRequest(term, *numbers)


def _read_heartbeat_response(term: int, item: raft_pb2.RaftHeartbeatResponse) -> HeartbeatResponse:
    _check(item.round >= 0, f"round={item.round}: must not be negative")
    room = Room(item.usable_bytes, item.total_bytes) if item.HasField("usable_bytes") else None
    _check(room is None or min(room) >= 0, f"room={room}: must not be negative")
    return HeartbeatResponse(term, item.round, room)


def _read_snapshot_request(term: int, item: raft_pb2.RaftSnapshotRequest) -> SnapshotRequest:
    snapshot = SnapshotId(_read_place(item.place), _read_voters(item.voters))
    _check(item.position >= 0, f"position={item.position}: must not be negative")
    _check(snapshot.place.offset > 0, "a snapshot without an offset")
    _check(snapshot.place.term <= term, f"a snapshot of term {snapshot.place.term}, sent in term {term}")
    return SnapshotRequest(term, snapshot, item.position, item.data, item.is_last)


def _read_snapshot_response(term: int, item: raft_pb2.RaftSnapshotResponse) -> SnapshotResponse:
    _check(item.position >= 0, f"position={item.position}: must not be negative")
    return SnapshotResponse(term, _read_place(item.place), item.position, item.is_installed)


def _read_timeout_now(term: int, item: raft_pb2.RaftTimeoutNow) -> TimeoutNow:
    return TimeoutNow(term)


def _read_recall_request(term: int, item: raft_pb2.RaftRecallRequest) -> RecallRequest:
    return RecallRequest(term)


def _read_recall_response(term: int, item: raft_pb2.RaftRecallResponse) -> RecallResponse:
    _check(min(item.remembered_term, item.end_offset, item.kept_offset) >= 0, "a negative term or offset")
    vote = read_key(item.vote) if item.HasField("vote") else None
    return RecallResponse(term, Remembered(item.remembered_term, vote, item.end_offset, item.kept_offset))


def _read_outdated_notice(term: int, item: raft_pb2.RaftOutdatedNotice) -> OutdatedNotice:
    return OutdatedNotice(term)


_READERS: dict[str, Callable[[int, Any], Body]] = {
    "vote_request": _read_vote_request,
    "vote_response": _read_vote_response,
    "append_request": _read_append_request,
    "append_response": _read_append_response,
    "heartbeat_request": _read_heartbeat_request,
    "heartbeat_response": _read_heartbeat_response,
    "snapshot_request": _read_snapshot_request,
    "snapshot_response": _read_snapshot_response,
    "timeout_now": _read_timeout_now,
    "recall_request": _read_recall_request,
    "recall_response": _read_recall_response,
    "outdated_notice": _read_outdated_notice,
}
