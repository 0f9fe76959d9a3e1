"""Receive a snapshot in chunks (Raft, 7; KIP-630).

One snapshot chunk is written at a time, and is answered when it is durable; the answer names the next position.
Snapshot chunks are taken from one leader only. Snapshots of two nodes that end at the same offset contain the same
state, but their bytes may differ.
"""

from __future__ import annotations

from .types import SnapshotChunk, SnapshotId, SnapshotRequest


class SnapshotReceiver:
    """See the module."""

    def __init__(self) -> None:
        #: The received snapshot: (term of the sending leader, snapshot, number of durable bytes).
        self._receiving: tuple[int, SnapshotId, int] | None = None
        self._waiting: tuple[int, SnapshotChunk] | None = None
        self._in_hand: tuple[int, SnapshotChunk] | None = None

    def offer(self, request: SnapshotRequest) -> int | None:
        """Offer a snapshot chunk that has arrived. Returns None if the chunk was taken, or if another chunk is being
        written and will be answered. If the snapshot chunk was not taken, returns the position of the chunk that is
        needed next."""
        if self._receiving is None or self._receiving[:2] != (request.term, request.snapshot):
            self._receiving = (request.term, request.snapshot, 0)
        if self._waiting is not None or self._in_hand is not None:
            return None
        position = self._receiving[2]
        if request.position != position:
            return position
        chunk = SnapshotChunk(request.snapshot, position, request.data, request.is_last)
        self._waiting = (request.term, chunk)
        return None

    def take(self) -> SnapshotChunk | None:
        """The snapshot chunk to write now; call ``written`` when the chunk is durable."""
        self._in_hand, self._waiting = self._waiting, None
        return None if self._in_hand is None else self._in_hand[1]

    def written(self, *, is_sound: bool) -> SnapshotChunk | None:
        """Call ``written`` when the taken chunk is durable. Returns the chunk, or None if another snapshot is now being
        received. ``is_sound`` is False if the chunk was the last chunk, and the whole snapshot is damaged."""
        taken, self._in_hand = self._in_hand, None
        if taken is None:
            return None
        term, chunk = taken
        if self._receiving != (term, chunk.snapshot, chunk.position):
            return None
        self._receiving = (term, chunk.snapshot, chunk.position + len(chunk.data) if is_sound else 0)
        return chunk

    @property
    def position(self) -> int:
        """Position of the next snapshot chunk."""
        return 0 if self._receiving is None else self._receiving[2]

    def drop(self) -> None:
        """Stop receiving."""
        self._receiving = None
