"""One member of a group, pure (KIP-848): no stream, no clock, no threads. Times are seconds of a clock that never goes
back and counts suspensions of the machine (core/clock.py), and are given.

    subscribe, connected, disconnected, heard, refused, looked_up, tick ----> request()      what to send now
                                                                        `---> take_events()  what the consumer has to do
    Assign(parts)  ---> begin(): those still in the target assignment; it reads them from then on
    Revoke(parts)  ---> released(): it has let go of them
    Lost(parts)        others may read them already: no commit of them is taken any more
    Suspended, Resumed nobody knows whether its partitions are still its own: nothing is read, nothing is lost yet
    Failed(error)      the group refuses it for good

One change at a time: what is to be let go of is let go of before anything new is taken, and each is told before the
next is looked at. So what the member says that it owns is always what it owns. Only an Assign that nobody has begun yet
makes way: to find out where it begins may take long, and others wait for what goes.

**The lease.** A member that was not answered for the session's time-out, or has been without a connection for the
grace, may have lost its partitions to others (the coordinator counts the same times from later moments: from when it
*got* what was answered, from when it *saw* the connection break). So it stops reading until it is answered. So does one
whose process stood still for as long as the grace: its connection may have broken meanwhile.

**Without a coordinator** it reads on, by the metadata. Whoever is found there to have been deposed *before* the grace
was over has not taken this member for gone, and cannot any more (a coordinator takes nobody for gone at a moment of
which it has no proof that the shard was its own). Whoever comes next counts the session of every member from the moment
when he takes the shard over. So the lease is the session's time-out again, from a moment at which the shard certainly
had no later owner: when the deposed one last said that it was his, or when the metadata, complete as of that moment,
said that nobody has it. Such news counts only while the lease lasts, and only after an answer: to a request that was
lost somebody may have listened whose epoch nobody here knows.

**What this rests on** is that a member sees its connection break no later than its coordinator does. Where a connection
is half open, and the coordinator sees it first, others may read the same for as long as the member is late (it gives
up a request that is not answered, and its lease ends); if the coordinator dies meanwhile, for as long as nobody
coordinates. Its commits are refused all the same. Nothing that a member can see would tell it: to count as cut off
whoever was not answered within the grace would cost a heartbeat in each grace.

**Revisions.** Each assignment has one; a heartbeat repeats that of the latest that was heard, or what it says about
owned partitions would be taken for more than it knows.

A revocation is three moments: fetching stops when the coordinator says so; the caller, back in ``poll``, commits and
releases; only then does a heartbeat say that the member no longer owns the partitions.

The lease counts from when the answered request was sent, the grace from when the connection broke here: the coordinator
counts both from later, so the member stops first.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from headrace_core.errors import HeadraceError

JOIN_EPOCH = 0

#: Final for the process's present membership only: it joins anew.
REJOIN = ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH")
#: Another process has the instance id still; it is released with that one's connection.
WAIT = ("UNRELEASED_INSTANCE_ID",)


class Part(NamedTuple):
    topic_id: bytes
    topic: str
    partition: int


Parts = frozenset[Part]
NOTHING: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class Subscription:
    """``topics`` by name; ``pattern``: RE2, which a whole name must match; "" for none."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


class Request(NamedTuple):
    """A heartbeat. ``is_full``: everything is named (the first one of a stream, and one that joins). ``owned`` None: as
    before."""

    number: int
    epoch: int
    revision: int
    owned: Parts | None
    is_full: bool


class Answer(NamedTuple):
    """What the coordinator said; ``number`` 0: without being asked. ``assignment`` None: as before."""

    number: int
    epoch: int
    revision: int
    assignment: Parts | None
    heartbeat_interval_s: float
    session_timeout_s: float
    connection_grace_s: float
    #: Of the shard; 0: not said (pushed).
    shard_epoch: int = 0
    #: How long before the answer the shard certainly was the coordinator's under that epoch; None: not known.
    ownership_age_s: float | None = None


class Assign(NamedTuple):
    ticket: int
    parts: Parts


class Revoke(NamedTuple):
    ticket: int
    parts: Parts


class Lost(NamedTuple):
    parts: Parts
    why: str


class PauseCause(enum.StrEnum):
    """Why a member stops reading for a while; ``metrics()`` has a gauge for each."""

    NO_CONNECTION = "no-connection"
    NO_ANSWER = "no-answer"
    OWNER_UNKNOWN = "owner-unknown"
    STOOD_STILL = "stood-still"


class Suspended(NamedTuple):
    why: str
    cause: PauseCause


class Resumed(NamedTuple):
    pass


class Failed(NamedTuple):
    error: HeadraceError


Event = Assign | Revoke | Lost | Suspended | Resumed | Failed

#: Until the coordinator says its own.
INTERVAL_S, SESSION_S, GRACE_S = 5.0, 45.0, 1.5
#: Whatever the grace: an I/O thread may have to wait so long for its turn.
SHORTEST_STILL_S = 0.5


class Member:
    """``retry_s``: the pause after a refusal that may pass."""

    def __init__(self, *, retry_s: float = 0.1) -> None:
        self.epoch = JOIN_EPOCH
        self.revision = 0
        #: What it reads, or is letting go of.
        self.owned: Parts = NOTHING
        self.is_suspended = False
        #: It is (or is about to be) a member; not after a leave, an eviction or a final refusal.
        self.is_wanted = False
        self.interval_s, self.session_s, self.grace_s = INTERVAL_S, SESSION_S, GRACE_S
        self._target: Parts | None = None
        self._retry_s = retry_s
        self._ticket = 0
        self._change: Assign | Revoke | None = None
        self._events: list[Event] = []
        self._is_connected = False
        self._broken_at: float | None = None
        self._looked_at: float | None = None  # at the clock; None: nobody had to
        self._stood_still_until: float | None = None  # what is older than this says nothing of whose the partitions are
        self._answered_at = 0.0  # when the last request that was answered was sent
        self._shard_epoch = 0  # whoever could take it for gone now has a larger one; 0: not known
        self._newest_epoch = 0  # of those that were ever heard of since the last answer
        self._vacant_at = float("-inf")  # nobody with a larger epoch had the shard before
        self._is_orphaned = False  # its coordinator was deposed in time, and no other one has answered
        self._is_heard_here = False  # on this stream
        self._is_doubtful = False  # a request was lost on a stream that never answered
        self._number = 0
        self._sent: tuple[int, float] | None = None
        self._is_first = True
        self._is_due = False
        self._names_all = True
        self._next_at = 0.0  # the next heartbeat, if there is no reason for an earlier one
        self._not_before = 0.0  # after a refusal that may pass
        self._past = 0  # answers to requests up to this one speak of an earlier membership

    # -- what it is told ---------------------------------------------------------------------------------------------

    def join(self, now: float) -> None:
        """Become a member (again)."""
        self.is_wanted, self._is_due, self._names_all = True, True, True
        self._not_before = now

    def subscribed_anew(self) -> None:
        """The subscription is another one."""
        self._is_due = self._names_all = True

    def connected(self, now: float) -> None:
        self._is_connected, self._is_heard_here, self._sent = True, False, None
        self._is_first = self._is_due = True
        self._not_before = now

    def disconnected(self, now: float) -> None:
        if self._is_connected and self._broken_at is None:
            self._broken_at = now
        if self._is_connected and self._sent is not None and not self._is_heard_here:
            self._is_doubtful = True
        self._is_connected, self._sent = False, None

    def heard(self, answer: Answer, now: float) -> None:
        """An answer without an error, or something that was pushed."""
        sent = self._take_sent(answer.number)
        if not self.is_wanted or 0 < answer.number <= self._past:
            return
        if sent is not None:
            self._answered_at = sent
            self._broken_at = None
            self._shard_epoch = self._newest_epoch = answer.shard_epoch
            self._vacant_at = float("-inf") if answer.ownership_age_s is None else sent - answer.ownership_age_s
            self._is_orphaned, self._is_doubtful, self._is_heard_here = False, False, True
            if self._stood_still_until is not None and sent >= self._stood_still_until:
                self._stood_still_until = None
            self._next_at = now + answer.heartbeat_interval_s
        self.interval_s, self.session_s, self.grace_s = answer[4:7]
        self.epoch = answer.epoch
        if answer.assignment is not None:
            self._target, self.revision = answer.assignment, answer.revision
            self._is_due = True  # the coordinator wants to hear what is owned under this revision
        self._go_on()  # first: what is revoked now must not be read when the lease begins again
        self.tick(now)

    def _take_sent(self, number: int) -> float | None:
        """When the request was sent that is answered with this; None: no answer."""
        if self._sent is None or number != self._sent[0]:
            return None
        sent, self._sent = self._sent[1], None
        return sent

    def refused(self, number: int, error: HeadraceError, now: float) -> None:
        """An answer (0: pushed) that is an error."""
        self._take_sent(number)
        if not self.is_wanted or 0 < number <= self._past:
            return
        if error.code in REJOIN:
            self.lost(f"{error.code}: {error.message}")
            self.join(now)
        elif error.code in WAIT or error.retriable:
            self._is_due = self._names_all = True  # what that one named was not taken in
            self._not_before = now + self._retry_s
        else:
            self.lost(f"{error.code}: {error.message}")
            self.is_wanted = False
            self._events.append(Failed(error))

    def refused_unheard(self, number: int) -> None:
        """Whoever it asked is not the coordinator, and has taken no notice."""
        self._take_sent(number)

    def looked_up(self, shard_epoch: int, as_of: float | None, now: float, *, is_vacant: bool) -> None:
        """The shard's epoch, and whether nobody has it, as the metadata say; they are complete as of ``as_of`` (None:
        not known), and may be older than that, which makes their epoch no less true."""
        if self._is_connected or not self.owned or not self._shard_epoch or self._is_doubtful:
            return
        self.tick(now)
        if self.is_suspended or shard_epoch < max(self._shard_epoch, self._newest_epoch):
            return  # (whatever its age: somebody has owned the shard since)
        self._newest_epoch = shard_epoch
        if shard_epoch > self._shard_epoch:
            self._is_orphaned, self._broken_at = True, None
            if is_vacant:
                self._shard_epoch = shard_epoch  # (else its owner may be counting since long ago)
        if self._is_orphaned and is_vacant and as_of is not None:
            self._vacant_at = max(self._vacant_at, as_of)
        self.tick(now)

    @property
    def needs_news(self) -> bool:
        """Is it worth while to look up who has the shard? It reads, and nobody answers it."""
        return bool(self.owned) and not self._is_connected and not self.is_suspended

    @property
    def is_orphaned(self) -> bool:
        """It reads on though it has no coordinator."""
        return self._is_orphaned

    def tick(self, now: float) -> None:
        """Time goes by. To be called by ``look_at`` at the latest."""
        if self._looked_at is not None and now - self._looked_at >= self._still_s:
            self._stood_still_until, self._is_due = now, True
        if self.owned:
            self._looked_at = now
        else:
            self._looked_at = self._stood_still_until = None
        why = self._why_to_stop(now)
        if why and not self.is_suspended:
            self.is_suspended = True
            self._events.append(Suspended(why, self._cause_over(now) or PauseCause.NO_ANSWER))
        elif not why and self.is_suspended:
            self.is_suspended = False
            self._events.append(Resumed())

    def _why_to_stop(self, now: float) -> str:
        return self._why_over(now) if self.owned else ""

    def _why_over(self, now: float) -> str:
        """Why others may have what is its own; "": they have not."""
        match self._cause_over(now):
            case PauseCause.NO_CONNECTION:
                return f"no connection to the coordinator for {self.grace_s:g} s"
            case PauseCause.NO_ANSWER:
                return f"no answer of the coordinator for {self.session_s:g} s"
            case PauseCause.OWNER_UNKNOWN:
                return f"for {self.session_s:g} s it is not certain that nobody else coordinates the group"
            case PauseCause.STOOD_STILL:
                return f"this process stood still for more than {self._still_s:g} s"
        return ""

    def _cause_over(self, now: float) -> PauseCause | None:
        if self._broken_at is not None and now - self._broken_at >= self.grace_s:
            return PauseCause.NO_CONNECTION
        if now - self._lease_from() >= self.session_s:
            return PauseCause.OWNER_UNKNOWN if self._is_orphaned else PauseCause.NO_ANSWER
        return None if self._stood_still_until is None else PauseCause.STOOD_STILL

    def _lease_from(self) -> float:
        return self._vacant_at if self._is_orphaned else self._answered_at

    @property
    def _still_s(self) -> float:
        """Who did not look at the clock for so long does not know what happened to his connection."""
        return max(self.grace_s, SHORTEST_STILL_S)

    # -- what the consumer says of the events ------------------------------------------------------------------------

    def begin(self, ticket: int, now: float) -> Parts:
        """The consumer can read what is assigned; what of it is still to be read, and is owned from here on. Guard:
        nothing when the lease is over, for others may have it; the next answer says whether it is still assigned."""
        if self._change is None or self._change.ticket != ticket:
            return NOTHING
        if self._why_over(now):
            self._change = None
            self._is_due = True
            return NOTHING
        begun = self._change.parts & (self._target or NOTHING)
        self._change = None
        self.owned |= begun
        self._is_due = True
        self._go_on()
        return begun

    def released(self, ticket: int) -> None:
        """The consumer has let go of what was revoked."""
        if self._change is None or self._change.ticket != ticket:
            return
        self.owned -= self._change.parts
        self._change = None
        self._is_due = True
        self._go_on()

    def lost(self, why: str) -> None:
        """Nothing is its own any more, and the coordinator is not asked."""
        parts, self.owned = self.owned, NOTHING
        self._change = self._target = None
        self.epoch, self.revision = JOIN_EPOCH, 0
        self._broken_at = self._stood_still_until = None
        self._shard_epoch, self._is_orphaned, self._is_doubtful = 0, False, False
        self._past = self._number
        if parts:
            self._events.append(Lost(parts, why))
        if self.is_suspended:
            self.is_suspended = False
            self._events.append(Resumed())

    def left(self) -> Parts:
        """It leaves of its own will; what it owned."""
        parts, self.owned = self.owned, NOTHING
        self.lost("")
        self.is_wanted = False
        return parts

    def _go_on(self) -> None:
        if self._target is None:
            return
        excess, fresh = self.owned - self._target, self._target - self.owned
        if excess and isinstance(self._change, Assign):
            self._change = None
        if self._change is not None:
            return
        if excess or fresh:
            self._ticket += 1
            self._change = Revoke(self._ticket, excess) if excess else Assign(self._ticket, fresh)
            self._events.append(self._change)

    # -- what it says ------------------------------------------------------------------------------------------------

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def request(self, now: float) -> Request | None:
        """What to send now, if anything; it counts as sent."""
        if not self._is_connected or not self.is_wanted or self._sent is not None:
            return None
        if now < self._not_before or not (self._is_due or now >= self._next_at):
            return None
        self._number += 1
        self._sent = self._number, now
        is_join = self.epoch == JOIN_EPOCH
        is_full = self._is_first or self._names_all or is_join
        owned = self.owned if not is_join and (self._is_due or is_full) else None
        self._is_first = self._is_due = self._names_all = False
        self._next_at = now + self.interval_s
        return Request(self._number, self.epoch, self.revision, owned, is_full)

    @property
    def is_waiting(self) -> bool:
        """A request of its is not answered yet."""
        return self._sent is not None

    def next_at(self) -> float:
        """When ``request`` has something to send, if nothing happens before; infinite while an answer is awaited."""
        if not self._is_connected or not self.is_wanted or self._sent is not None:
            return float("inf")
        return self._not_before if self._is_due else max(self._not_before, self._next_at)

    def lease_ends_at(self) -> float:
        """When it has to stop reading, if it hears nothing before; infinite when it reads nothing."""
        if not self.owned or self.is_suspended:
            return float("inf")
        end = self._lease_from() + self.session_s
        return end if self._broken_at is None else min(end, self._broken_at + self.grace_s)

    def reads_until(self) -> float:
        """From when on nothing is handed out unless ``tick`` came first: the lease is over, or the process stood still.
        For the caller's thread, which may run before the timer that ticks, above all when a machine was suspended."""
        if self._looked_at is None:
            return float("inf")
        return min(self.lease_ends_at(), self._looked_at + self._still_s)

    def look_at(self) -> float:
        """When to ``tick`` at the latest: the lease may be over, or it is time to look at the clock."""
        if not self.owned:
            return float("inf")
        return (
            float("-inf") if self._looked_at is None else min(self.lease_ends_at(), self._looked_at + self._still_s / 3)
        )
