"""Which brokers have been heard of, and when: the one part of the controller's state that is not in the log.

It decides nothing by itself and nobody else sees it; a new leader starts with everybody just heard of, so that a change
of leaders fences nobody. Times are milliseconds of a clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    broker_epoch: int
    last_contact_ms: float
    metadata_offset: int = 0
    connected: bool = True
    shutdown_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Contact:
    """A broker was heard of; ``connected`` False: its stream broke. ``shutdown_offset``: it wants to stop, and may once
    all others have applied the metadata log up to there."""

    broker_id: int
    broker_epoch: int
    at_ms: float
    metadata_offset: int = 0
    connected: bool = True
    shutdown_offset: int | None = None


class BrokerSessions:
    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: dict[int, Session] = {}

    def forget(self) -> None:
        self._sessions.clear()

    def note(self, contact: Contact) -> None:
        session = self._sessions.get(contact.broker_id)
        if session is None or session.broker_epoch < contact.broker_epoch:
            session = self._sessions[contact.broker_id] = Session(contact.broker_epoch, contact.at_ms)
        elif session.broker_epoch > contact.broker_epoch:
            return  # an echo of an earlier life
        if contact.connected:
            session.last_contact_ms = contact.at_ms
            session.metadata_offset = max(session.metadata_offset, contact.metadata_offset)
        session.connected = contact.connected
        if session.shutdown_offset is None:
            session.shutdown_offset = contact.shutdown_offset

    def silent_ms(self, broker_id: int, broker_epoch: int, now_ms: float) -> float:
        """How long this life of the broker has been silent; infinite when it was never heard of."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return float("inf")
        return now_ms - session.last_contact_ms

    def lives(self, broker_id: int, broker_epoch: int, now_ms: float) -> bool:
        """Is this life of the broker probably still going on? Not when its connection broke: a process that is gone
        closes its connections, one that only stands still does not."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.connected
            and self.silent_ms(broker_id, broker_epoch, now_ms) < self.timeout_ms
        )

    def shutdown_offset(self, broker_id: int) -> int | None:
        """Up to where others must have applied the metadata log before this broker may stop; None: not known here."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.shutdown_offset

    def metadata_offset(self, broker_id: int) -> int:
        """How far the broker said it has applied the metadata log."""
        session = self._sessions.get(broker_id)
        return 0 if session is None else session.metadata_offset
