"""A snapshot that comes in chunks (Raft, 7; KIP-630): which chunk is next, and when it is there as a whole.

One chunk is with the disk at a time, and answered when it is durable; the answer says where to go on. Chunks of one
leader's only: two nodes' snapshots of the same place hold the same state, and need not be the same bytes.
"""

from __future__ import annotations

from .types import SnapshotChunk, SnapshotId, SnapshotRequest


class SnapshotReceiver:
    """See the module."""

    def __init__(self) -> None:
        #: (term of the leader that sends it, what it sends, durable below this byte).
        self._receiving: tuple[int, SnapshotId, int] | None = None
        self._waiting: tuple[int, SnapshotChunk] | None = None
        self._in_hand: tuple[int, SnapshotChunk] | None = None

    def offer(self, request: SnapshotRequest) -> int | None:
        """A chunk has arrived. None: it is taken, or another one is and will be answered. Else where to go on."""
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
        """What is to be written now; ``written`` follows."""
        self._in_hand, self._waiting = self._waiting, None
        return None if self._in_hand is None else self._in_hand[1]

    def written(self, *, is_sound: bool) -> SnapshotChunk | None:
        """What was taken is durable: returned, unless another snapshot is being received by now. ``is_sound``: False
        when it was the last one, and the whole is damaged."""
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
        """Where the next chunk begins."""
        return 0 if self._receiving is None else self._receiving[2]

    def drop(self) -> None:
        """Nothing more is expected."""
        self._receiving = None
