"""Pushes to followers that have not been passed to gRPC yet, and the directory writers that wait for these pushes
before a flush.

A flush in the event loop would delay the sending of pushes. Before a flush, the writer waits until each stream that has
new records has passed its message to gRPC, whose threads send it. Because the pushes are sent before the leader's
flush, the followers' disks flush at the same time as the leader's disk. The writer does not wait for a stream that is
still writing its last message, so a follower that does not read delays no flush.
"""

from __future__ import annotations

from collections.abc import Callable


class PendingPushes:
    """The set of streams with pending pushes. The streams to followers change the set, and the partition table reads
    the set; both run in the event loop."""

    __slots__ = ("_waiting", "awake")

    def __init__(self) -> None:
        #: Streams that are about to make a push; they add themselves.
        self.awake: dict[object, None] = {}
        self._waiting: list[tuple[dict[object, None], Callable[[], None]]] = []

    def end(self, stream: object) -> None:
        """Record that gRPC has taken the push of ``stream``, or that the stream has no push to make. Repeated calls are
        harmless."""
        if stream not in self.awake:
            return
        del self.awake[stream]
        for waiting in list(self._waiting):
            streams, sent = waiting
            streams.pop(stream, None)
            if not streams:
                self._waiting.remove(waiting)
                sent()

    def when_sent(self, sent: Callable[[], None]) -> None:
        """Call ``sent`` when every stream that is about to push has passed its push to gRPC, immediately if no stream
        is about to push."""
        if self.awake:
            self._waiting.append((dict(self.awake), sent))
        else:
            sent()
