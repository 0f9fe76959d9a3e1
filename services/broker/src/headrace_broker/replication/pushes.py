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

    __slots__ = ("_awake", "_waiting")

    def __init__(self) -> None:
        self._awake: dict[object, None] = {}  #: Streams on which a push is about to be sent.
        self._waiting: list[tuple[dict[object, None], Callable[[], None]]] = []

    def begin(self, stream: object) -> None:
        """Record that ``stream`` is about to make a push."""
        self._awake[stream] = None

    def end(self, stream: object) -> None:
        """Record that gRPC has taken the push of ``stream``, or that the stream has no push to make. Repeated calls are
        harmless."""
        if stream not in self._awake:
            return
        del self._awake[stream]
        for waiting in list(self._waiting):
            streams, sent = waiting
            streams.pop(stream, None)
            if not streams:
                self._waiting.remove(waiting)
                sent()

    def when_sent(self, sent: Callable[[], None]) -> None:
        """Call ``sent`` when every stream that is about to push has passed its push to gRPC, immediately if no stream
        is about to push."""
        if self._awake:
            self._waiting.append((dict(self._awake), sent))
        else:
            sent()
