"""Confirms that a leader has received the leave of a follower.

The leader reads a stream in order. So its answer to a join that was sent behind a leave shows that it received the
leave. An answer on a later stream shows it as well: the handles of an earlier stream ended with that stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..partition.messages import Ack, Ended, Join, Joined, Lane, OffsetsUpdate, Push

_AGAIN_S = 1.0


class OnStream(Protocol):
    """A replica on a stream: following, or just released."""

    @property
    def leader_id(self) -> int: ...

    @property
    def lane(self) -> Lane: ...

    @property
    def can_join(self) -> bool: ...

    def join(self, handle: int) -> Join: ...

    def next_ack(self) -> Ack | None: ...

    def joined(self, answer: Joined) -> None: ...

    def pushed(self, push: Push) -> None: ...

    def updated(self, update: OffsetsUpdate) -> None: ...

    def ended(self, message: Ended) -> None: ...

    def lost(self) -> None:
        """The stream broke; join again on the next one."""

    def stumbled(self, error: Exception) -> None:
        """A message could not be processed because of a bug. It is on no lane now, and joins again when it likes."""


class _Streams(Protocol):
    def join(self, replica: OnStream) -> None: ...

    def leave(self, replica: OnStream) -> None: ...


class _Replica(Protocol):
    @property
    def leader_id(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def topic_id(self) -> bytes: ...

    @property
    def number(self) -> int: ...

    @property
    def lane(self) -> Lane: ...


class LeaveConfirmation:
    """Joins once more behind the leave, on the same lane, as an empty replica; leaves again at the answer."""

    def __init__(self, replica: _Replica, streams: _Streams, done: Callable[[], None]) -> None:
        self.leader_id = replica.leader_id
        self.lane = replica.lane
        self.can_join = True
        self._leader_epoch = replica.leader_epoch
        self._topic_id, self._partition = replica.topic_id, replica.number
        self._streams = streams
        self._done = done
        self._again: asyncio.TimerHandle | None = None

    def join(self, handle: int) -> Join:
        return Join(handle, self._topic_id, self._partition, self._leader_epoch, 0, 0, -1, 0, window_bytes=1)

    def next_ack(self) -> Ack | None:
        return None

    def joined(self, answer: Joined) -> None:
        """Any answer confirms the leave."""
        self._streams.leave(self)
        self._done()

    def pushed(self, push: Push) -> None:
        pass

    def updated(self, update: OffsetsUpdate) -> None:
        pass

    def ended(self, message: Ended) -> None:
        pass

    def lost(self) -> None:
        pass

    def stumbled(self, error: Exception) -> None:
        """``done`` failed; call it again after a pause."""
        self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._streams.join, self)

    def cancel(self) -> None:
        """Stop: the confirmation is not needed."""
        if self._again is not None:
            self._again.cancel()
        self._streams.leave(self)
