"""Which coordinators have been heard of, and when. As the brokers' sessions: not in the log, and a new leader has just
heard of everybody, so that a change of leaders takes nobody's shards. Times are milliseconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .sessions import FIRST_HEARTBEAT_MS


@dataclass(frozen=True, slots=True)
class CoordinatorContact:
    """A coordinator was heard of on one of its streams; ``connected`` False: that stream broke. ``registering``: it
    was a registration, not a heartbeat, so no stream is known yet."""

    coordinator_id: int
    coordinator_epoch: int
    at_ms: float
    stream: int = 0
    connected: bool = True
    registering: bool = False


@dataclass(slots=True)
class _Session:
    coordinator_epoch: int
    last_contact_ms: float
    #: The stream of its latest heartbeat; 0: it has registered only. -1: this leader has heard nothing of it.
    stream: int
    #: Silence that ends the session: FIRST_HEARTBEAT_MS after a registration, then the session's time-out.
    silence_max_ms: float
    broken_at_ms: float | None = None


class CoordinatorSessions:
    """``timeout_ms``: silence that ends a session; ``grace_ms``: how long a broken connection may stay so."""

    def __init__(self, timeout_ms: float, grace_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._sessions: dict[int, _Session] = {}

    def begin_anew(self, coordinators: Iterable[tuple[int, int]], now_ms: float) -> None:
        """All of these, (id, epoch) each, were heard of just now; their streams went to somebody else."""
        self._sessions = {each: _Session(epoch, now_ms, -1, self._timeout_ms) for each, epoch in coordinators}

    def stood_still(self, now_ms: float) -> None:
        """This process was paused and could hear no coordinator: all times begin again. The streams stay known, so that
        the end of one still tells."""
        for session in self._sessions.values():
            session.last_contact_ms = now_ms
            if session.broken_at_ms is not None:
                session.broken_at_ms = now_ms

    def forget(self) -> None:
        self._sessions.clear()

    def note(self, contact: CoordinatorContact) -> None:
        session = self._sessions.get(contact.coordinator_id)
        if session is None or session.coordinator_epoch < contact.coordinator_epoch:
            first_ms = min(FIRST_HEARTBEAT_MS, self._timeout_ms)
            session = _Session(contact.coordinator_epoch, contact.at_ms, contact.stream, first_ms)
            self._sessions[contact.coordinator_id] = session
        elif session.coordinator_epoch > contact.coordinator_epoch:
            return  # an echo of an earlier life
        if contact.connected:
            session.last_contact_ms, session.stream, session.broken_at_ms = contact.at_ms, contact.stream, None
            if not contact.registering:
                session.silence_max_ms = self._timeout_ms
        elif 0 <= session.stream <= contact.stream and session.broken_at_ms is None:
            # Also a newer stream, which broke before its first heartbeat was decided.
            session.broken_at_ms = contact.at_ms

    def is_gone(self, coordinator_id: int, coordinator_epoch: int, now_ms: float) -> bool:
        """Has this life of it been silent, or disconnected, for too long? One never heard of is gone."""
        return now_ms > self.gone_at_ms(coordinator_id, coordinator_epoch)

    def gone_at_ms(self, coordinator_id: int, coordinator_epoch: int) -> float:
        """``is_gone`` of any time behind this, unless it is heard of; of any time, when it never was."""
        session = self._sessions.get(coordinator_id)
        if session is None or session.coordinator_epoch != coordinator_epoch:
            return float("-inf")
        gone_ms = session.last_contact_ms + session.silence_max_ms
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
