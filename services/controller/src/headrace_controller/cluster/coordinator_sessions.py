"""Which coordinators have been heard of, and when. As the brokers' sessions: not in the log, and a new leader has just
heard of everybody, so that a change of leaders takes nobody's shards. Times are milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoordinatorContact:
    """A coordinator was heard of on one of its streams; ``connected`` False: that stream broke."""

    coordinator_id: int
    coordinator_epoch: int
    at_ms: float
    stream: int = 0
    connected: bool = True


@dataclass(slots=True)
class _Session:
    coordinator_epoch: int
    last_contact_ms: float
    stream: int
    broken_at_ms: float | None = None


class CoordinatorSessions:
    """``timeout_ms``: silence that ends a session; ``grace_ms``: how long a broken connection may stay so."""

    def __init__(self, timeout_ms: float, grace_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._sessions: dict[int, _Session] = {}

    def begin_anew(self, coordinators: Iterable[tuple[int, int]], now_ms: float) -> None:
        """All of these, (id, epoch) each, were heard of just now; their streams went to somebody else."""
        self._sessions = {each: _Session(epoch, now_ms, stream=-1) for each, epoch in coordinators}

    def forget(self) -> None:
        self._sessions.clear()

    def note(self, contact: CoordinatorContact) -> None:
        session = self._sessions.get(contact.coordinator_id)
        if session is None or session.coordinator_epoch < contact.coordinator_epoch:
            session = _Session(contact.coordinator_epoch, contact.at_ms, contact.stream)
            self._sessions[contact.coordinator_id] = session
        elif session.coordinator_epoch > contact.coordinator_epoch:
            return  # an echo of an earlier life
        if contact.connected:
            session.last_contact_ms, session.stream, session.broken_at_ms = contact.at_ms, contact.stream, None
        elif contact.stream == session.stream and session.broken_at_ms is None:
            session.broken_at_ms = contact.at_ms

    def is_gone(self, coordinator_id: int, coordinator_epoch: int, now_ms: float) -> bool:
        """Has this life of it been silent, or disconnected, for too long? One never heard of is gone."""
        session = self._sessions.get(coordinator_id)
        if session is None or session.coordinator_epoch != coordinator_epoch:
            return True
        broken_at_ms = session.broken_at_ms
        if broken_at_ms is not None and now_ms - broken_at_ms > self._grace_ms:
            return True
        return now_ms - session.last_contact_ms > self._timeout_ms

    def gone_at_ms(self, coordinator_id: int, coordinator_epoch: int) -> float:
        """``is_gone`` of any time behind this, unless it is heard of; of any time, when it never was."""
        session = self._sessions.get(coordinator_id)
        if session is None or session.coordinator_epoch != coordinator_epoch:
            return float("-inf")
        gone_ms = session.last_contact_ms + self._timeout_ms
        return gone_ms if session.broken_at_ms is None else min(gone_ms, session.broken_at_ms + self._grace_ms)

    def lives(self, coordinator_id: int, coordinator_epoch: int, now_ms: float) -> bool:
        """Is its process probably still there? Not when its stream broke, nor when its streams are not known here: then
        whoever registers under its id is its successor."""
        session = self._sessions.get(coordinator_id)
        return (
            session is not None
            and session.stream >= 0
            and session.broken_at_ms is None
            and not self.is_gone(coordinator_id, coordinator_epoch, now_ms)
        )
