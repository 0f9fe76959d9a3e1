"""Fetch sessions (KIP-227) of one Kafka connection: which partitions a client fetches, from which offsets. Pure.

A session belongs to one connection: a client that reconnects gets FETCH_SESSION_ID_NOT_FOUND, and begins a new session.
A connection has at most one session, because no client uses more. A request that begins a session, or is without a
session, ends the connection's current session, even if the request names an old session. franz-go needs this rule: when
franz-go resets offsets, it drops the answer that has its new session id. Its next request then names the old session.
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
    """A partition that a client fetches. ``leader_epoch`` and ``last_epoch`` are -1 if the client sends no epoch."""

    offset: int
    max_bytes: int
    leader_epoch: int
    last_epoch: int


class SessionError(Exception):
    """A request does not fit the fetch session. ``code``: Kafka's error number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


SESSION_ID_NOT_FOUND, INVALID_SESSION_EPOCH = 70, 71


class FetchSession:
    """The fetch session of one connection, or the partitions of the current request if there is no session."""

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
        """Apply a request; afterwards ``wanted`` has the partitions to fetch. Returns True if the answer must name all
        partitions, and False if it names only changed partitions. ``new_id``: the id for a session that the request
        begins; NO_SESSION refuses a new session. Raises SessionError."""
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
