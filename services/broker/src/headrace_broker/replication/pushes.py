"""Pushes to followers that gRPC does not have yet, and who waits until it has them.

A flush in the event loop holds up whatever is to be sent. So a turn of a writer waits before it flushes until the
streams that its bytes woke have handed their messages to gRPC, whose threads send them: then the followers' disks work
while the leader's does. A stream whose last message is still being written is not waited for: a follower that does not
read holds up nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class PendingPushes:
    """A leaf of the broker: the streams to followers write it, the partition table reads it. In the event loop."""

    __slots__ = ("_awake", "_waiting")

    def __init__(self) -> None:
        #: Streams that are about to make a message.
        self._awake: dict[object, None] = {}
        self._waiting: list[tuple[dict[object, None], Callable[[], None]]] = []

    def begin(self, stream: object) -> None:
        """``stream`` is about to look what it has to push."""
        self._awake[stream] = None

    def end(self, stream: object) -> None:
        """gRPC has the message of ``stream``, or there is none now. May be called often."""
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
        """Call ``sent`` when the streams that are about to push have done so; at once when none is."""
        if self._awake:
            self._waiting.append((dict(self._awake), sent))
        else:
            sent()
