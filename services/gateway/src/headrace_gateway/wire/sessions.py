"""Fetch sessions (KIP-227) of one Kafka connection: which partitions a client fetches, from which offsets. Pure.

A session belongs to the connection that made it: a client that connects again gets FETCH_SESSION_ID_NOT_FOUND and
begins a new session. A connection has one session at a time, as every client does. A request that begins a session, or
uses none, ends the present one, also if it names a session that is gone: franz-go drops the answer that names its new
session when it resets its offsets, and names the old session in its next request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FULL, FINAL = 0, -1  #: Session epochs: FULL begins a session, FINAL means a request without a session.
NO_SESSION = 0  #: The session id in a request or an answer without a session.
_EPOCH_MAX = 2**31 - 1
#: Maximum number of partitions of a session, because each fetch iterates over all partitions of its session. A client
#: begins a lost session again with one full fetch, so the partitions must fit into one request (primitives.ITEMS_MAX).
SESSION_PARTITIONS_MAX = 20_000

Key = tuple[str, bytes, int]  #: A topic name (or ""), a topic id (or zeros), and a partition number.


class Wanted(NamedTuple):
    """A partition that a client fetches. ``leader_epoch``, ``last_epoch``: -1 if the client names none."""

    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int


class SessionError(Exception):
    """``code``: Kafka's error number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH = 70, 71


class FetchSession:
    """The session of one connection, or the request's partitions where there is none."""

    __slots__ = ("_next_epoch", "session_id", "wanted")

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.wanted: dict[Key, Wanted] = {}
        self._next_epoch = FULL

    def apply(
        self,
        session_id: int,
        epoch: int,
        named: Iterable[tuple[Key, Wanted]],
        forgotten: Iterable[Key],
        new_id: int,
    ) -> bool:
        """Apply a request; ``wanted`` then has the partitions to fetch. Returns whether the answer names all of them,
        and not only those with news. ``new_id``: id of a session that the request begins; NO_SESSION: it gets none.
        Raises SessionError."""
        if epoch in (FULL, FINAL):
            self.wanted = dict(named)
            is_session = epoch == FULL and new_id != NO_SESSION and bool(self.wanted)
            self.session_id = new_id if is_session else NO_SESSION
            self._next_epoch = 1
            return True
        if self.session_id == NO_SESSION or session_id != self.session_id:
            raise SessionError(SESSION_ID_NOT_FOUND)
        if epoch != self._next_epoch:
            raise SessionError(INVALID_SESSION_EPOCH)
        self._next_epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        for key in forgotten:
            self.wanted.pop(key, None)
        self.wanted.update(named)
        if len(self.wanted) > SESSION_PARTITIONS_MAX:  # the client begins a new session
            self.session_id, self.wanted = NO_SESSION, {}
            raise SessionError(SESSION_ID_NOT_FOUND)
        return False
