"""Sessions of brokers and coordinators: controller state that is not in the metadata log.

    heartbeat ----------------------------> connected, silent for 0 ms
    its stream broke ---------------------> disconnected: the *grace* runs, until a heartbeat ends it
    silent for the session timeout, or disconnected for longer than the grace -----> to be fenced
    has not reached a new leader within two heartbeat intervals (``FirstContacts``) ---> to be fenced

A new leader starts with the assumption that every node has just sent a heartbeat. A change of leaders starts no grace
period, because the old leader's streams broke when the old leader stopped. All times in sessions are in monotonic
milliseconds.

The grace period (broker.session.disconnect.grace.ms) is an addition to Kafka. A broker process that ends closes its
connections, so the broker's partitions need not wait for a whole session timeout. With the grace period, a new leader
of a dead broker's partitions is elected after 0.5 s instead of 9 s. A broker that only lost its connection reconnects
within milliseconds. If a connection breaks repeatedly, each break within a session timeout of the previous break
doubles the grace period, up to the session timeout. The doubling keeps a broker with an unstable connection from being
fenced and unfenced again and again. Breaks of a broker's connection are counted for one broker epoch. A new
registration shows that the broker's process had ended, so the count of breaks starts again.

Streams have numbers, because a broker may open a new stream before the controller notices the end of the old stream.
The controller ignores the end of a stream that is older than the broker's latest stream. The controller also accepts
the end of a stream that is newer than the latest known stream. The newer stream broke before the controller processed
its first heartbeat.

The first heartbeat after a registration must arrive within FIRST_HEARTBEAT_MS. Until the first heartbeat arrives, there
is no stream whose end could show that the process has ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from .leadership import CannotLead, Hindered, with_reported

#: Milliseconds within which the first heartbeat must follow a broker's registration; the broker sends it at once on a
#: new connection.
FIRST_HEARTBEAT_MS = 2_000.0


class FirstContacts:
    """The time that nodes have to reach a new leader, ``window_ms``: a node that died together with the old leader need
    not be awaited for a session.

    The window begins when the leader serves, which the first contact of any node shows. Until then, and in all at most,
    each node has its session timeout. Whenever the leader stands still, even for less than a session, the window begins
    anew: the nodes may have waited for the leader."""

    def __init__(self, window_ms: float) -> None:
        self._window_ms = window_ms
        self._since_ms = math.inf

    @classmethod
    def of(cls, heartbeat_interval_ms: float, session_timeout_ms: float) -> FirstContacts:
        """Two heartbeat intervals. However short these are, a node needs up to two seconds to notice that the old
        leader is silent."""
        return cls(max(2 * heartbeat_interval_ms, min(FIRST_HEARTBEAT_MS, session_timeout_ms / 2)))

    def forget(self) -> None:
        """A term begins or ends: no node has reached this leader yet."""
        self._since_ms = math.inf

    def reached(self, now_ms: float) -> None:
        self._since_ms = min(self._since_ms, now_ms)

    def stood_still(self, now_ms: float) -> None:
        if self._since_ms < math.inf:
            self._since_ms = now_ms

    @property
    def over_at_ms(self) -> float:
        """Time after which a node that has not reached this leader is to be fenced; infinite before any contact."""
        return self._since_ms + self._window_ms


@dataclass(slots=True)
class Session:
    broker_epoch: int
    last_contact_ms: float
    #: Milliseconds of silence that end the broker's session: FIRST_HEARTBEAT_MS after a registration, the session
    #: timeout after a heartbeat.
    silence_max_ms: float
    metadata_offset: int = 0
    connected: bool = True
    #: Number of the stream that carried the broker's latest heartbeat; None if the broker has sent no heartbeat to this
    #: leader of the controllers.
    stream: int | None = None
    #: Time at which the broker's stream broke (None without a break under this leader), and the length of the grace
    #: period; both in milliseconds.
    broken_ms: float | None = None
    grace_ms: float = 0.0
    shutdown_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Contact:
    """A message or a broken stream of a broker; ``connected`` is False if the broker's stream broke.
    ``shutdown_offset``: the broker may stop when all other brokers have applied the metadata log up to this offset.
    ``registering``: the contact is a registration, not a heartbeat, so its stream is not known yet. ``cannot_lead``:
    the broker's report of directories that cannot lead; None if it is unchanged."""

    broker_id: int
    broker_epoch: int
    at_ms: float
    metadata_offset: int = 0
    connected: bool = True
    shutdown_offset: int | None = None
    stream: int = 0
    registering: bool = False
    cannot_lead: tuple[CannotLead, ...] | None = None


class BrokerSessions:
    def __init__(self, timeout_ms: float, grace_ms: float, first_contacts: FirstContacts) -> None:
        self.timeout_ms = timeout_ms
        self.grace_ms = grace_ms
        self._first_contacts = first_contacts
        #: Brokers that cannot lead now, each with the directories that cannot lead. A change replaces the whole mapping
        #: of brokers that cannot lead, so a view can keep an older mapping.
        self.hindered: Hindered = {}
        self._sessions: dict[int, Session] = {}
        # For each broker: (time of the last break in its broker epoch, grace period of that break).
        self._breaks: dict[int, tuple[float, float]] = {}

    def forget(self) -> None:
        self._sessions.clear()
        self._breaks.clear()
        self.hindered = {}

    def begin(self, broker_id: int, broker_epoch: int, now_ms: float) -> None:
        """Start a broker's session at the beginning of a leader's term. The broker counts as having just sent a
        heartbeat, so that the new leader does not fence it too early. At the beginning of a term the broker does not
        count as connected, so that a restarting broker may register."""
        self._sessions[broker_id] = Session(broker_epoch, now_ms, self.timeout_ms, connected=False)

    def stood_still(self, now_ms: float) -> None:
        """Called after a pause of this process, during which no message could arrive: the silence of every session is
        measured from now on."""
        for session in self._sessions.values():
            session.last_contact_ms = now_ms
            if session.broken_ms is not None:
                session.broken_ms = now_ms

    def note(self, contact: Contact) -> None:
        session = self._sessions.get(contact.broker_id)
        if session is None or session.broker_epoch < contact.broker_epoch:
            if not contact.connected:
                return  # the stream that ended was never seen by this leader
            self._breaks.pop(contact.broker_id, None)  # forget the breaks of an earlier broker epoch
            self.hindered = with_reported(self.hindered, contact.broker_id, ())
            session = self._sessions[contact.broker_id] = Session(
                contact.broker_epoch, contact.at_ms, min(FIRST_HEARTBEAT_MS, self.timeout_ms), stream=contact.stream
            )
        elif session.broker_epoch > contact.broker_epoch:
            return  # the message is outdated: it belongs to an earlier broker epoch
        if contact.connected:
            self._first_contacts.reached(contact.at_ms)
            session.last_contact_ms = contact.at_ms
            if not contact.registering:
                session.silence_max_ms = self.timeout_ms
            session.metadata_offset = max(session.metadata_offset, contact.metadata_offset)
            session.connected = True
            session.stream = contact.stream
            session.broken_ms = None
            if contact.cannot_lead is not None:
                self.hindered = with_reported(self.hindered, contact.broker_id, contact.cannot_lead)
        elif self._is_latest(session, contact):
            self._broke(session, contact)
        if session.shutdown_offset is None:
            session.shutdown_offset = contact.shutdown_offset

    def _is_latest(self, session: Session, contact: Contact) -> bool:
        """Whether the stream that ended with ``contact`` is the stream of the broker's present session or a newer
        stream."""
        return session.connected and session.stream is not None and contact.stream >= session.stream

    def _broke(self, session: Session, contact: Contact) -> None:
        session.connected = False
        session.broken_ms = contact.at_ms
        session.grace_ms = self._next_grace_ms(contact.broker_id, contact.at_ms)
        self._breaks[contact.broker_id] = (contact.at_ms, session.grace_ms)

    def _next_grace_ms(self, broker_id: int, now_ms: float) -> float:
        before = self._breaks.get(broker_id)
        if before is None or now_ms - before[0] > self.timeout_ms:
            return min(self.grace_ms, self.timeout_ms)
        return min(before[1] * 2, self.timeout_ms)

    def silent_ms(self, broker_id: int, broker_epoch: int, now_ms: float) -> float:
        """Milliseconds for which this broker epoch has been silent; infinite if there was no contact."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return float("inf")
        return now_ms - session.last_contact_ms

    def is_over(self, broker_id: int, broker_epoch: int, now_ms: float) -> bool:
        """Whether to fence this broker epoch: silent for a session timeout, disconnected for longer than its grace
        period, or absent since the leader's term began."""
        return now_ms > self.over_at_ms(broker_id, broker_epoch)

    def over_at_ms(self, broker_id: int, broker_epoch: int) -> float:
        """The time after which ``is_over`` returns True, if the broker sends nothing more until then."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return float("-inf")
        over_ms = session.last_contact_ms + session.silence_max_ms
        if session.stream is None:
            over_ms = min(over_ms, self._first_contacts.over_at_ms)
        return over_ms if session.broken_ms is None else min(over_ms, session.broken_ms + session.grace_ms)

    def lives(self, broker_id: int, broker_epoch: int, now_ms: float) -> bool:
        """Whether the process of the broker is probably running. The result is False if the broker's connection broke:
        a process that ends closes its connections, a paused process does not."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.connected
            and self.silent_ms(broker_id, broker_epoch, now_ms) < session.silence_max_ms
        )

    def shutdown_offset(self, broker_id: int) -> int | None:
        """Metadata offset that the other brokers must have applied before the broker may stop; None if this leader does
        not know that offset."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.shutdown_offset

    def metadata_offset(self, broker_id: int) -> int:
        """The offset up to which the broker has applied the metadata log, according to its last heartbeat."""
        session = self._sessions.get(broker_id)
        return 0 if session is None else session.metadata_offset


@dataclass(frozen=True, slots=True)
class CoordinatorContact:
    """A message of a coordinator on one of its streams, or the end of that stream; ``connected`` is False if the stream
    broke. ``registering``: the contact is a registration, not a heartbeat, so its stream is not known yet."""

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
    #: Number of the stream that carried the coordinator's latest heartbeat; 0 after a registration without heartbeat,
    #: -1 if this leader does not know the stream.
    stream: int
    #: Milliseconds of silence that end the coordinator's session: FIRST_HEARTBEAT_MS after a registration, the session
    #: timeout after a heartbeat.
    silence_max_ms: float
    broken_at_ms: float | None = None


class CoordinatorSessions:
    """``timeout_ms``: milliseconds of silence after which a session ends. ``grace_ms``: longest time in milliseconds
    that a node may be without a connection."""

    def __init__(self, timeout_ms: float, grace_ms: float, first_contacts: FirstContacts) -> None:
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._first_contacts = first_contacts
        self._sessions: dict[int, _Session] = {}

    def begin_anew(self, coordinators: Iterable[tuple[int, int]], now_ms: float) -> None:
        """Start the sessions of ``coordinators``, given as (id, epoch), as if each had just sent a heartbeat. At the
        beginning of a term, the known streams of ``coordinators`` belong to another leader."""
        self._sessions = {each: _Session(epoch, now_ms, -1, self._timeout_ms) for each, epoch in coordinators}

    def stood_still(self, now_ms: float) -> None:
        """Called after a pause of this process, during which no message could arrive: the silence of every session is
        measured from now on. The streams of the coordinators stay known after a pause."""
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
            return  # the contact is outdated: it is from an earlier coordinator epoch
        if contact.connected:
            self._first_contacts.reached(contact.at_ms)
            session.last_contact_ms, session.stream, session.broken_at_ms = contact.at_ms, contact.stream, None
            if not contact.registering:
                session.silence_max_ms = self._timeout_ms
        elif 0 <= session.stream <= contact.stream and session.broken_at_ms is None:
            # A stream newer than the session's stream may have broken before its first heartbeat was processed.
            session.broken_at_ms = contact.at_ms

    def is_gone(self, coordinator_id: int, coordinator_epoch: int, now_ms: float) -> bool:
        """Whether the coordinator with the given epoch has been silent, or disconnected, for too long. Returns True if
        this leader had no contact with the coordinator."""
        return now_ms > self.gone_at_ms(coordinator_id, coordinator_epoch)

    def gone_at_ms(self, coordinator_id: int, coordinator_epoch: int) -> float:
        """Time after which ``is_gone`` is true if there is no further contact."""
        session = self._sessions.get(coordinator_id)
        if session is None or session.coordinator_epoch != coordinator_epoch:
            return float("-inf")
        gone_ms = session.last_contact_ms + session.silence_max_ms
        if session.stream < 0:
            gone_ms = min(gone_ms, self._first_contacts.over_at_ms)
        return gone_ms if session.broken_at_ms is None else min(gone_ms, session.broken_at_ms + self._grace_ms)

    def lives(self, coordinator_id: int, coordinator_epoch: int, now_ms: float) -> bool:
        """Whether the coordinator's process is probably running. The result is False if the coordinator's stream broke
        or is unknown to this leader. If the coordinator's stream broke, a registration with the same id comes from a
        restarted process."""
        session = self._sessions.get(coordinator_id)
        return (
            session is not None
            and session.stream >= 0
            and session.broken_at_ms is None
            and not self.is_gone(coordinator_id, coordinator_epoch, now_ms)
        )
