"""Messages waiting for a replica: small messages are sent first, and the total size is bounded."""

from __future__ import annotations

from headrace_controller.raft import (
    AppendRequest,
    HeartbeatRequest,
    Place,
    ReplicaKey,
    SnapshotId,
    SnapshotRequest,
    VoteResponse,
    VoterSet,
)
from headrace_controller.transport.peers import BULK_BYTES_MAX, ENVELOPE_BYTES, URGENT_MAX, Outbox

MIB = 1 << 20


def outbox() -> Outbox:
    found = Outbox()
    found.is_open = True
    return found


def chunk(position: int) -> SnapshotRequest:
    snapshot = SnapshotId(Place(1, 1), VoterSet.of([ReplicaKey(1)]))
    return SnapshotRequest(1, snapshot, position, bytes(MIB), is_last=False)


def append(offset: int) -> AppendRequest:
    return AppendRequest(1, Place(offset, 1), (), 0)


def vote(term: int) -> VoteResponse:
    return VoteResponse(term, term, is_granted=True)


def test_a_heartbeat_does_not_wait_behind_chunks() -> None:
    box = outbox()
    for position in range(5):
        box.put(chunk(position), MIB)
    box.put(HeartbeatRequest(1, 0, 1), 64)
    bodies, size = box.take()
    assert [type(body) for body in bodies] == [HeartbeatRequest, SnapshotRequest]
    assert size == MIB, "one chunk at a time: what comes next waits for no more than that"


def test_entries_keep_their_order_and_share_envelopes() -> None:
    box = outbox()
    for offset in range(100):
        box.put(append(offset), ENVELOPE_BYTES // 50)
    first, size = box.take()
    second, _ = box.take()
    assert size <= ENVELOPE_BYTES
    assert (len(first), len(second)) == (50, 50)
    assert [body.previous.offset for body in first + second] == list(range(100))  # type: ignore[union-attr]
    assert not box


def test_a_newer_heartbeat_takes_the_place_of_one_that_has_not_left() -> None:
    box = outbox()
    for round_ in range(1_000):
        box.put(HeartbeatRequest(1, round_, round_), 64)
    assert box.take()[0] == [HeartbeatRequest(1, 999, 999)]


def test_what_is_large_is_bounded_and_what_came_first_stays() -> None:
    box = outbox()
    kept = [box.put(chunk(position), MIB) for position in range(40)]
    assert kept == [True] * (BULK_BYTES_MAX // MIB) + [False] * (40 - BULK_BYTES_MAX // MIB)
    assert box.take()[0] == [chunk(0)]
    assert box.dropped == 40 - BULK_BYTES_MAX // MIB
    assert box.put(chunk(40), MIB), "there is room again"


def test_a_message_larger_than_all_limits_goes_alone() -> None:
    box = outbox()
    assert box.put(chunk(0), BULK_BYTES_MAX + 1)
    assert box.take()[1] == BULK_BYTES_MAX + 1


def test_of_what_is_small_the_oldest_goes() -> None:
    box = outbox()
    for term in range(URGENT_MAX + 10):
        box.put(vote(term), 64)
    bodies, _ = box.take()
    assert bodies == [vote(term) for term in range(10, URGENT_MAX + 10)]


def test_for_who_is_not_there_a_few_small_things_are_kept() -> None:
    """A vote request that is sent while the connection is being opened is kept. The request need not be repeated after
    a time-out."""
    box = Outbox()
    for term in range(50):
        box.put(vote(term), 64)
        assert not box.put(append(term), 64)
    box.is_open = True
    assert box.take()[0] == [vote(term) for term in range(42, 50)]


def test_when_the_connection_goes_what_is_large_goes_with_it() -> None:
    box = outbox()
    box.put(chunk(0), MIB)
    box.put(vote(1), 64)
    box.close()
    assert len(box) == 1
    box.is_open = True
    assert box.take() == ([vote(1)], 0)
