"""Raft's messages across the wire: valid ones survive the round trip; all others raise a typed error."""

from __future__ import annotations

import dataclasses
import random
import string

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from headrace_controller.control_records import encode_control
from headrace_controller.raft import (
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
from headrace_controller.raft.types import Body
from headrace_controller.transport import wire
from headrace_core.errors import HeadraceError, InvalidRequestError
from headrace_core.records import encode_batch
from headrace_protos.v1 import raft_pb2

VOTERS = VoterSet.of([ReplicaKey(1, bytes(16))])

terms = st.integers(1, 2**31 - 1)
offsets = st.integers(0, 2**62)
places = st.builds(Place, offsets, st.integers(0, 2**31 - 1))
keys = st.builds(ReplicaKey, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16))


@st.composite
def voter_sets(draw: st.DrawFn) -> VoterSet:
    found = draw(st.lists(keys, min_size=1, max_size=5, unique_by=lambda key: key.node_id))
    hosts = st.text(string.ascii_letters + ".0123456789", min_size=1, max_size=12)
    somewhere = st.just("") | st.builds("{}:{}".format, hosts, st.integers(1, 65_535))
    addresses = {key.node_id: draw(somewhere) for key in found}
    return VoterSet.of(found, addresses)


def entry(kind: EntryKind, term: int, base: int, count: int, voters: VoterSet | None = None) -> Entry:
    if kind is EntryKind.DATA:
        records = [(1, b"key", b"value %d" % number, ()) for number in range(count)]
        return Entry(kind, term, base, count, encode_batch(records, base_offset=base, leader_epoch=term))
    data = encode_control(kind, term, base, 1, voters or VOTERS, 1)
    return Entry(kind, term, base, count, data, voters)


@st.composite
def append_requests(draw: st.DrawFn) -> AppendRequest:
    ascending = sorted(draw(st.lists(terms, min_size=1, max_size=6)))
    previous = Place(draw(st.integers(0, 2**40)), draw(st.integers(0, ascending[0])))
    entries, end = [], previous.offset
    for term in ascending[:-1]:
        kind = draw(st.sampled_from(EntryKind))
        count = draw(st.integers(1, 3)) if kind is EntryKind.DATA else 1
        entries.append(entry(kind, term, end, count, draw(voter_sets()) if kind is EntryKind.VOTERS else None))
        end += count
    return AppendRequest(ascending[-1], previous, tuple(entries), draw(offsets))


@st.composite
def snapshot_requests(draw: st.DrawFn) -> SnapshotRequest:
    place = draw(st.builds(Place, st.integers(1, 2**62), st.integers(0, 2**30)))
    term = draw(st.integers(max(place.term, 1), 2**31 - 1))
    snapshot = SnapshotId(place, draw(voter_sets()))
    return SnapshotRequest(term, snapshot, draw(offsets), draw(st.binary(max_size=50)), draw(st.booleans()))


bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(VoteRequest, terms, places, st.booleans(), st.booleans()),
    st.builds(VoteResponse, st.integers(0, 2**31 - 1), terms, st.booleans(), st.booleans()),
    append_requests(),
    st.builds(AppendResponse, terms, st.integers(-1, 2**62), places, st.booleans()),
    st.builds(HeartbeatRequest, terms, offsets, offsets, offsets, offsets),
    st.builds(HeartbeatResponse, terms, offsets, st.none() | st.builds(Room, offsets, offsets)),
    snapshot_requests(),
    st.builds(SnapshotResponse, terms, places, offsets, st.booleans()),
    st.builds(TimeoutNow, terms),
)
#: Messages that older controllers do not know.
later: st.SearchStrategy[Body] = st.one_of(
    st.builds(RecallRequest, terms),
    st.builds(RecallResponse, terms, st.builds(Remembered, terms, st.none() | keys, offsets, offsets)),
    st.builds(OutdatedNotice, terms),
)


def voters_in(body: Body) -> list[VoterSet]:
    if isinstance(body, SnapshotRequest):
        return [body.snapshot.voters]
    return [each.voters for each in getattr(body, "entries", ()) if each.voters is not None]


@given(st.lists(bodies, max_size=4))
def test_what_goes_in_comes_out(sent: list[Body]) -> None:
    data = wire.envelope_of(sent).SerializeToString()
    got = wire.read_envelope(raft_pb2.RaftEnvelope.FromString(data))
    assert got == sent
    assert [v.addresses for body in got for v in voters_in(body)] == [
        v.addresses for body in sent for v in voters_in(body)
    ], "addresses are no part of who is who, and travel all the same"


@given(st.lists(later, max_size=4))
def test_an_older_controller_does_not_notice_what_it_does_not_know(sent: list[Body]) -> None:
    envelope = wire.envelope_of([*sent, TimeoutNow(1)])
    assert [each.WhichOneof("body") for each in envelope.messages] == ["timeout_now"]
    got = wire.read_envelope(raft_pb2.RaftEnvelope.FromString(envelope.SerializeToString()))
    assert got == [TimeoutNow(1), *sent]


@given(st.lists(bodies, min_size=1, max_size=3), st.integers(0, 2**32), st.integers(1, 4))
def test_damaged_messages_are_typed_errors(sent: list[Body], seed: int, flips: int) -> None:
    rng = random.Random(seed)
    data = bytearray(wire.envelope_of(sent).SerializeToString())
    for _ in range(flips):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    try:
        wire.read_envelope(raft_pb2.RaftEnvelope.FromString(bytes(data)))
    except (HeadraceError, DecodeError):  # (the stream handler answers the second one)
        return


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_typed_errors(data: bytes) -> None:
    try:
        wire.read_envelope(raft_pb2.RaftEnvelope.FromString(data))
    except (HeadraceError, DecodeError):
        return


@given(bodies)
def test_the_size_of_a_message_is_about_its_size(body: Body) -> None:
    actual = wire.envelope_of([body]).ByteSize()
    assert actual - 1_000 <= wire.size_of(body) <= 3 * actual + 200


def test_a_flipped_bit_in_an_entrys_batch_does_not_reach_the_disk() -> None:
    """TCP's checksum has only 16 bits. A follower therefore checks the CRC of a batch before it writes and acknowledges
    it."""
    good = wire.envelope_of([AppendRequest(1, Place(0, 0), (entry(EntryKind.DATA, 1, 0, 2),), 0)])
    data = bytearray(good.messages[0].append_request.entries[0].data)
    for at in range(12, len(data)):  # (the fields before it are the base offset and the length, which are compared)
        damaged = raft_pb2.RaftEnvelope.FromString(good.SerializeToString())
        broken = bytearray(data)
        broken[at] ^= 1
        damaged.messages[0].append_request.entries[0].data = bytes(broken)
        with pytest.raises(HeadraceError):
            wire.read_envelope(damaged)


FIRST = entry(EntryKind.DATA, 2, 5, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: setattr(m, "term", -1), "term=-1"),
        (lambda m: m.ClearField("append_request"), "has no body"),
        (lambda m: setattr(m.append_request.previous, "offset", -1), "not a place"),
        (lambda m: setattr(m.append_request.previous, "term", 9), "previous has term 9"),
        (lambda m: setattr(m.append_request.previous, "offset", 4), "but the previous entry ends at 4"),
        (lambda m: setattr(m.append_request, "committed_offset", -1), "committed_offset"),
        (lambda m: setattr(m.append_request.entries[0], "kind", 0), "unknown kind"),
        (lambda m: setattr(m.append_request.entries[0], "kind", 2), "its batch has"),
        (lambda m: setattr(m.append_request.entries[0], "term", 3), "its batch has"),
        (lambda m: setattr(m.append_request.entries[0], "count", 2), "its batch has"),
        (lambda m: setattr(m.append_request.entries[0], "count", 0), "without a term"),
        (lambda m: setattr(m.append_request.entries[0], "data", FIRST.data * 2), "its batch has"),
        (lambda m: setattr(m.append_request.entries[0], "data", b""), "append_request"),
        (lambda m: m.append_request.entries[0].voters.add(), "with voters"),
        (lambda m: setattr(m, "term", 1), "sent in term 1"),
    ],
)
def test_an_append_that_no_sound_leader_sends(change, says: str) -> None:  # type: ignore[no-untyped-def]
    envelope = wire.envelope_of([AppendRequest(4, Place(5, 1), (FIRST,), 0)])
    change(envelope.messages[0])
    with pytest.raises(HeadraceError, match=says):
        wire.read_envelope(envelope)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.ClearField("voters"), "there are none"),
        (lambda s: s.voters.add().CopyFrom(s.voters[0]), "named twice"),
        (lambda s: setattr(s.voters[0].key, "directory_id", b"short"), "5 bytes"),
        (lambda s: setattr(s.voters[0].key, "node_id", -1), "node_id=-1"),
        (lambda s: setattr(s, "position", -1), "position=-1"),
        (lambda s: setattr(s.place, "offset", 0), "without an offset"),
        (lambda s: setattr(s.place, "term", 9), "sent in term 4"),
    ],
)
def test_a_snapshot_that_no_sound_leader_sends(change, says: str) -> None:  # type: ignore[no-untyped-def]
    envelope = wire.envelope_of([SnapshotRequest(4, SnapshotId(Place(5, 1), VOTERS), 0, b"x", False)])
    change(envelope.messages[0].snapshot_request)
    with pytest.raises(InvalidRequestError, match=says):
        wire.read_envelope(envelope)


def test_a_hello_in_the_midst_of_a_stream() -> None:
    envelope = wire.envelope_of([TimeoutNow(1)])
    envelope.hello.cluster_id = "c"
    with pytest.raises(InvalidRequestError, match="hello"):
        wire.read_envelope(envelope)


def test_voters_are_those_that_the_entrys_own_bytes_name() -> None:
    """No checksum covers the voters that are sent beside the batch, and the voters decide elections. After a restart,
    the node would read other voters from its log."""
    true = entry(
        EntryKind.VOTERS, 3, 7, 1, VoterSet.of([ReplicaKey(1, bytes(16)), ReplicaKey(2, bytes(16))], {2: "b:1"})
    )
    note = entry(EntryKind.LEADER_CHANGE, 3, 7, 1)
    for said, why in (
        (dataclasses.replace(true, voters=VOTERS), "voters"),
        (dataclasses.replace(true, kind=EntryKind.LEADER_CHANGE, voters=None), "leader change"),
        (dataclasses.replace(note, kind=EntryKind.VOTERS, voters=VOTERS), "voters"),
    ):
        envelope = wire.envelope_of([AppendRequest(3, Place(7, 2), (said,), 0)])
        with pytest.raises(InvalidRequestError, match=why):
            wire.read_envelope(envelope)
    moved = dataclasses.replace(true, voters=VoterSet.of(true.voters or (), {2: "b:2"}))
    (body,) = wire.read_envelope(wire.envelope_of([AppendRequest(3, Place(7, 2), (moved,), 0)]))
    assert [voters.addresses for voters in voters_in(body)] == [((2, "b:1"),)]
    nonsense = encode_batch([(1, b"key", b"value", ())], base_offset=7, leader_epoch=3, control=True)
    envelope = wire.envelope_of([AppendRequest(3, Place(7, 2), (dataclasses.replace(note, data=nonsense),), 0)])
    with pytest.raises(InvalidRequestError, match="control"):
        wire.read_envelope(envelope)


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("host:0080", "host:80"),
        ("[::1]:9", "[::1]:9"),
        ("h:0", None),
        ("h", None),
        (":1", None),
        (f"{'h' * 262}:1", None),
    ],
)
def test_an_address_is_kept_as_the_log_gives_it_back(address: str, kept: str | None) -> None:
    if kept is None:
        with pytest.raises(InvalidRequestError):
            wire.check_address(address)
        return
    assert wire.check_address(address) == kept
    voters = VoterSet.of([ReplicaKey(1, bytes(16))], {1: kept})
    (body,) = wire.read_envelope(
        wire.envelope_of([AppendRequest(3, Place(7, 2), (entry(EntryKind.VOTERS, 3, 7, 1, voters),), 0)])
    )
    assert [found.addresses for found in voters_in(body)] == [voters.addresses]
