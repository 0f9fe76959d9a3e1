"""Pushes to followers that gRPC does not have yet, and the writer's turns that wait for them.

A flush in the event loop delays sending. So before its flush, a writer's turn waits until the streams that its bytes
woke have passed their messages to gRPC, whose threads send them. Then the followers' disks work at the same time as the
leader's. A stream that is still writing its last message is not waited for: a follower that does not read delays
nothing.
"""

from __future__ import annotations

from collections.abc import Callable


class PendingPushes:
    """The streams to followers write it, the partition table reads it. In the event loop."""

    __slots__ = ("_awake", "_waiting")

    def __init__(self) -> None:
        self._awake: dict[object, None] = {}  #: Streams that are about to make a message.
        self._waiting: list[tuple[dict[object, None], Callable[[], None]]] = []

    def begin(self, stream: object) -> None:
        """``stream`` is about to make a push."""
        self._awake[stream] = None

    def end(self, stream: object) -> None:
        """gRPC has the message of ``stream``, or there is none. May be called often."""
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
        """Call ``sent`` when all streams that are about to push have done so; at once when there are none."""
        if self._awake:
            self._waiting.append((dict(self._awake), sent))
        else:
            sent()
