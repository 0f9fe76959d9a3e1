"""The state machine of one group member (KIP-848), a pure core: no stream, clock or threads. Times are arguments, in
seconds of a clock that never goes back and counts suspensions of the machine (core/clock.py).

    join, connected, disconnected, answered, refused, looked_up, tick ----> request()      the heartbeat to send now
                                                                      `---> take_events()  work for the consumer
    Assign(parts)  ---> begin(): the ones still in the target assignment; the member owns and reads them
    Revoke(parts)  ---> released(): the consumer has released them
    Lost(parts)        other members may read them: their commits are refused
    Suspended, Resumed ownership is unknown: reading stops, nothing is lost yet
    Failed(error)      the group refuses the member permanently

Changes are processed one at a time. The member releases partitions before it takes new ones, and each event is
delivered before the next event is computed. Because changes are processed one at a time, the owned partitions in a
heartbeat are always exact. A revocation drops a queued Assign event, because other members wait for the revoked
partitions, and the search for the start offsets of the event may take long. A partition that leaves the target leaves
the Assign event in progress, too: if it comes back, another member may have read on from the start offset that was
found. Events other than Assign are never dropped.

**The lease.** A member may have lost its partitions after the session timeout without a response, or after the grace
period without a connection. The coordinator, too, measures session timeout and grace period, but later: the session
timeout from the receipt of the request, the grace period from the time at which it notices the broken connection.
Because the member starts to measure earlier, it stops reading before the coordinator can give its partitions to other
members. The member reads again after the coordinator's next response. A member also stops reading after its process was
paused for the grace period: its connection may have broken during the pause.

**Without a coordinator** a member continues to read, based on the cluster's metadata about the group's shard (its
partition of ``__consumer_offsets``). A coordinator that lost the group's shard *before* the end of the grace period has
not removed the member. A coordinator cannot remove a member after it lost the group's shard, because it removes members
only while it provably owns the shard. The new coordinator counts every session timeout from the moment when it takes
over the group's shard. After a change of coordinator, the member's lease is again a whole session timeout. The member's
lease starts when the old coordinator last proved its ownership, or at the time of metadata in which the group's shard
has no coordinator. At the start of the lease the group's shard certainly had no newer coordinator. The member uses
metadata about the group's shard only during the lease, and only if the last request got a response. A lost request may
have reached a coordinator with an epoch that the member does not know.

**A late release.** The coordinator removes a member that has not released its partitions within the rebalance timeout.
If the connection breaks at the end of the rebalance timeout, the member cannot know that it was removed, and other
members may read its partitions at once. A member without a connection therefore stops reading when its rebalance
timeout is over and it still has partitions to release. The coordinator measures the rebalance timeout from a later
moment than the member: from the first heartbeat with the revocation's revision.

**Assumption**: a member notices a broken connection no later than its coordinator notices it. If the coordinator
notices a half-open connection first, two members may read the same records until the request times out and the lease
ends. If the coordinator fails after the connection broke, two members may read the same records until a new coordinator
takes over. The coordinator refuses the commits of a member that has lost its partitions. To detect a half-open
connection first, the member would need a heartbeat in each grace period. The member would also have to treat each late
response as a broken connection.

**Epochs of commits.** A commit carries the epoch under which the member owned the partition. For a partition that the
member must release, this is the epoch before the assignment without the partition (``ended``). With a later epoch, a
commit that is delayed beyond the release could reset the offset of a later owner, or of this member's own next
ownership.

**Revisions.** Each assignment has a revision number. A heartbeat repeats the revision of the latest assignment that the
member has received. From the revision in a heartbeat, the coordinator knows to which assignment the owned partitions
refer.

A revocation has three steps. The member stops fetching when it receives the revocation; the caller commits and releases
the partitions in its next ``poll``. After the release a heartbeat reports that the member no longer owns the
partitions.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace_core.errors import HeadraceError

JOIN_EPOCH = 0

#: Errors that end the membership; the member then joins the group again.
REJOIN = ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH")
#: The error code when another process uses the instance id. The coordinator releases the instance id after the
#: connection of that process has ended.
WAIT = ("UNRELEASED_INSTANCE_ID",)


class Part(NamedTuple):
    topic_id: bytes
    topic: str
    partition: int


Parts = frozenset[Part]
NOTHING: Parts = frozenset()


@dataclass(frozen=True, slots=True)
class Subscription:
    """``topics``: topic names; ``pattern``: an RE2 regular expression for whole topic names, "" for none."""

    topics: tuple[str, ...] = ()
    pattern: str = ""


class Request(NamedTuple):
    """A heartbeat. ``is_full``: the request has all fields; the first request on a stream and each join are full.
    ``owned`` None: unchanged."""

    number: int
    epoch: int
    revision: int
    owned: Parts | None
    is_full: bool


class Answer(NamedTuple):
    """A response of the coordinator; ``number`` is 0 if the coordinator sent it without a request. ``assignment`` None:
    unchanged."""

    number: int
    epoch: int
    revision: int
    assignment: Parts | None
    heartbeat_interval_s: float
    session_timeout_s: float
    connection_grace_s: float
    #: The epoch of the group's shard (its partition of ``__consumer_offsets``); 0 in a message that the coordinator
    #: pushed without a request, because only responses have the epoch.
    shard_epoch: int = 0
    #: Age in seconds, at the time of the response, of the coordinator's last proof that it owns the shard under
    #: ``shard_epoch``; None if unknown.
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
    """The possible causes of a pause, in which a member does not read; ``metrics()`` has a gauge for each cause."""

    NO_CONNECTION = "no-connection"
    NO_ANSWER = "no-answer"
    OWNER_UNKNOWN = "owner-unknown"
    STOOD_STILL = "stood-still"
    LATE_RELEASE = "late-release"


class Suspended(NamedTuple):
    why: str
    cause: PauseCause


class Resumed(NamedTuple):
    pass


class Failed(NamedTuple):
    error: HeadraceError


Event = Assign | Revoke | Lost | Suspended | Resumed | Failed

#: The interval between heartbeats, the session timeout and the grace period (seconds), until the coordinator's first
#: response names its own values.
INTERVAL_S, SESSION_S, GRACE_S = 5.0, 45.0, 1.5
#: A pause of the process of up to this many seconds does not count as a possible loss of the connection, because
#: scheduling the I/O thread may take as long.
SHORTEST_STILL_S = 0.5


class Member:
    """The state machine of one group member. ``retry_s``: seconds to wait after a retriable error of the coordinator.
    ``rebalance_timeout_s``: the member's own rebalance timeout, as its heartbeats name it."""

    def __init__(self, *, retry_s: float = 0.1, rebalance_timeout_s: float = float("inf")) -> None:
        self.epoch = JOIN_EPOCH
        self.revision = 0
        #: Partitions that the member reads or is releasing.
        self.owned: Parts = NOTHING
        #: The partitions in ``owned`` that the member must release, each with the last epoch under which it owned the
        #: partition.
        self.ended: Mapping[Part, int] = {}
        self.is_suspended = False
        #: Whether the member belongs to the group or wants to join the group; False after a leave, an eviction or a
        #: final error.
        self.is_wanted = False
        self.interval_s, self.session_s, self.grace_s = INTERVAL_S, SESSION_S, GRACE_S
        self._target: Parts | None = None
        self._retry_s = retry_s
        self._rebalance_timeout_s = rebalance_timeout_s
        #: The time at which the member learned that it must release partitions; None if it has released them and the
        #: coordinator knows that.
        self._releases_since: float | None = None
        self._ticket = 0
        self._change: Assign | Revoke | None = None
        self._events: list[Event] = []
        self._is_connected = False
        self._broken_at: float | None = None
        self._looked_at: float | None = None  # time of the last reading of the clock; None: no reading was needed
        self._stood_still_until: float | None = None  # responses to requests before this time are no proof of ownership
        self._answered_at = 0.0  # time at which the last request that got a response was sent
        self._shard_epoch = 0  # only a coordinator with a larger shard epoch can remove the member; 0: unknown
        self._newest_epoch = 0  # the largest shard epoch seen since the last response
        self._vacant_at = float("-inf")  # before this time, no later coordinator owned the shard.
        # The member's coordinator lost the shard before it could remove the member, and no new coordinator has
        # responded.
        self._is_orphaned = False
        self._is_answered_here = False  # a response has come on this stream
        self._is_doubtful = False  # a request was lost on a stream that never got a response
        self._number = 0
        self._sent: tuple[int, float] | None = None
        self._is_first = True
        self._is_due = False
        self._names_all = True
        self._next_at = 0.0  # time of the next regular heartbeat
        self._not_before = 0.0  # after a retriable refusal: the time before which no heartbeat is sent
        self._past = 0  # responses to requests up to this number are for an earlier membership

    # -- inputs ------------------------------------------------------------------------------------------------------

    def join(self, now: float) -> None:
        self.is_wanted, self._is_due, self._names_all = True, True, True
        self._not_before = now

    def subscribed_anew(self) -> None:
        self._is_due = self._names_all = True

    def connected(self, now: float) -> None:
        self._is_connected, self._is_answered_here, self._sent = True, False, None
        self._is_first = self._is_due = True
        self._not_before = now

    def disconnected(self, now: float) -> None:
        if self._is_connected and self._broken_at is None:
            self._broken_at = now
        if self._is_connected and self._sent is not None and not self._is_answered_here:
            self._is_doubtful = True
        self._is_connected, self._sent = False, None

    def answered(self, answer: Answer, now: float) -> None:
        """Handle a response without an error, or a message that the coordinator pushed without a request."""
        sent = self._take_sent(answer.number)
        if not self.is_wanted or 0 < answer.number <= self._past:
            return
        if sent is not None:
            self._answered_at = sent
            self._broken_at = None
            self._shard_epoch = self._newest_epoch = answer.shard_epoch
            self._vacant_at = float("-inf") if answer.ownership_age_s is None else sent - answer.ownership_age_s
            self._is_orphaned, self._is_doubtful, self._is_answered_here = False, False, True
            if self._stood_still_until is not None and sent >= self._stood_still_until:
                self._stood_still_until = None
            self._next_at = now + answer.heartbeat_interval_s
        self.interval_s, self.session_s, self.grace_s = answer[4:7]
        if answer.assignment is not None:
            self.ended = {**dict.fromkeys(self.owned - answer.assignment, self.epoch), **self.ended}
            self._target, self.revision = answer.assignment, answer.revision
            self._is_due = True  # report the owned partitions: the coordinator expects them under this revision
        self.epoch = answer.epoch
        self._go_on()  # call _go_on first: revoked partitions must not be read under the new lease
        if not self._excess:
            if sent is not None:
                self._releases_since = None
        elif self._releases_since is None:
            self._releases_since = now
        self.tick(now)

    def _take_sent(self, number: int) -> float | None:
        """The time at which the request of response ``number`` was sent; None if the coordinator pushed the message
        without a request."""
        if self._sent is None or number != self._sent[0]:
            return None
        sent, self._sent = self._sent[1], None
        return sent

    def refused(self, number: int, error: HeadraceError, now: float) -> None:
        """Handle a response with an error; ``number`` is 0 for a message that the coordinator pushed without a
        request."""
        self._take_sent(number)
        if not self.is_wanted or 0 < number <= self._past:
            return
        if error.code in REJOIN:
            self.lost(f"{error.code}: {error.message}")
            self.join(now)
        elif error.code in WAIT or error.retriable:
            # Name all fields in the next heartbeat, because the coordinator did not store the fields of the failed
            # request.
            self._is_due = self._names_all = True
            self._not_before = now + self._retry_s
        else:
            self.lost(f"{error.code}: {error.message}")
            self.is_wanted = False
            self._events.append(Failed(error))

    def not_coordinator(self, number: int) -> None:
        """Handle a NOT_COORDINATOR response: the node that sent it has changed nothing in the group."""
        self._take_sent(number)

    def looked_up(self, shard_epoch: int, as_of: float | None, now: float, *, is_vacant: bool) -> None:
        """Use new metadata of the group's shard: its epoch, and whether it lacks a coordinator. The metadata are
        complete as of ``as_of`` (None: unknown). The shard's epoch is used even if the metadata are old, because an
        epoch never decreases."""
        if self._is_connected or not self.owned or not self._shard_epoch or self._is_doubtful:
            return
        self.tick(now)
        if self.is_suspended or shard_epoch < max(self._shard_epoch, self._newest_epoch):
            return  # (A higher shard epoch proves that the shard has had a new owner, even if the metadata are old.)
        self._newest_epoch = shard_epoch
        if shard_epoch > self._shard_epoch:
            self._is_orphaned, self._broken_at = True, None
            if is_vacant:
                # The new shard epoch proves that the shard has had another owner. The other owner may have started the
                # member's session timeout long ago.
                self._shard_epoch = shard_epoch
        if self._is_orphaned and is_vacant and as_of is not None:
            self._vacant_at = max(self._vacant_at, as_of)
        self.tick(now)

    @property
    def needs_news(self) -> bool:
        """Whether the member needs metadata about the shard: it reads partitions, but has no connection to a
        coordinator."""
        return bool(self.owned) and not self._is_connected and not self.is_suspended

    @property
    def is_orphaned(self) -> bool:
        """Whether the member reads without a coordinator, based on metadata."""
        return self._is_orphaned

    def tick(self, now: float) -> None:
        """Notice a pause of the process, and suspend or resume reading as of the time ``now``. Call ``tick`` at the
        time of ``look_at``, or earlier."""
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
        elif not why and self.is_suspended and not self._has_unnamed_excess:
            self.is_suspended = False
            self._events.append(Resumed())

    def _why_to_stop(self, now: float) -> str:
        return self._why_over(now) if self.owned else ""

    def _why_over(self, now: float) -> str:
        """The reason why other members may own this member's partitions; "" if no other member can own them."""
        match self._cause_over(now):
            case PauseCause.NO_CONNECTION:
                return f"no connection to the coordinator for {self.grace_s:g} s"
            case PauseCause.NO_ANSWER:
                return f"no answer from the coordinator for {self.session_s:g} s"
            case PauseCause.OWNER_UNKNOWN:
                return f"the coordinator could not prove for {self.session_s:g} s that it still owns the group"
            case PauseCause.STOOD_STILL:
                return f"this process was paused for more than {self._still_s:g} s"
            case PauseCause.LATE_RELEASE:
                return (
                    f"no connection to the coordinator, and revoked partitions were not released within the rebalance "
                    f"timeout of {self._rebalance_timeout_s:g} s (max.poll.interval.ms)"
                )
        return ""

    def _cause_over(self, now: float) -> PauseCause | None:
        if self._broken_at is not None and now - self._broken_at >= self.grace_s:
            return PauseCause.NO_CONNECTION
        if now >= self._must_release_by():
            return PauseCause.LATE_RELEASE
        if now - self._lease_from() >= self.session_s:
            return PauseCause.OWNER_UNKNOWN if self._is_orphaned else PauseCause.NO_ANSWER
        return None if self._stood_still_until is None else PauseCause.STOOD_STILL

    def _must_release_by(self) -> float:
        """The earliest time at which the coordinator may have removed the member because of a late release. The time is
        infinite while a coordinator answers on this connection, because the coordinator would report the removal."""
        if self._releases_since is None or (self._is_connected and self._is_answered_here):
            return float("inf")
        return self._releases_since + self._rebalance_timeout_s

    def _lease_from(self) -> float:
        return self._vacant_at if self._is_orphaned else self._answered_at

    @property
    def _still_s(self) -> float:
        """The longest pause of the process (in seconds) after which the member still trusts its connection."""
        return max(self.grace_s, SHORTEST_STILL_S)

    # -- results of events -------------------------------------------------------------------------------------------

    def begin(self, ticket: int, now: float) -> Parts:
        """Record that the consumer is ready to read the assignment ``ticket``. Returns the partitions of ``ticket``
        that have been assigned without a break; the member owns them from now on. Returns nothing if the lease has
        ended: other members may own the partitions, and the coordinator's next response says which partitions are
        assigned."""
        if self._change is None or self._change.ticket != ticket:
            return NOTHING
        if self._why_over(now):
            self._change = None
            self._is_due = True
            return NOTHING
        begun, self._change = self._change.parts, None
        self.owned |= begun
        self._is_due = True
        self._go_on()
        return begun

    def released(self, ticket: int) -> None:
        if self._change is None or self._change.ticket != ticket:
            return
        self.owned -= self._change.parts
        self.ended = {part: epoch for part, epoch in self.ended.items() if part in self.owned}
        self._change = None
        self._is_due = True
        self._go_on()

    def lost(self, why: str) -> None:
        """Drop all partitions without a request to the coordinator."""
        parts, self.owned = self.owned, NOTHING
        self._change = self._target = None
        self.ended = {}
        self.epoch, self.revision = JOIN_EPOCH, 0
        self._broken_at = self._stood_still_until = self._releases_since = None
        self._shard_epoch, self._is_orphaned, self._is_doubtful = 0, False, False
        self._past = self._number
        if parts:
            self._events.append(Lost(parts, why))
        if self.is_suspended:
            self.is_suspended = False
            self._events.append(Resumed())

    def left(self) -> Parts:
        """Leave the group; return the partitions that the member owned."""
        parts, self.owned = self.owned, NOTHING
        self.lost("")
        self.is_wanted = False
        return parts

    @property
    def _excess(self) -> Parts:
        """The partitions to release: those that have left the target, even if they are back in it. (An older
        coordinator gives a partition back before its release. The member's positions are of the ownership that ended,
        and commits with that epoch are refused.)"""
        return frozenset(self.ended)

    @property
    def _has_unnamed_excess(self) -> bool:
        """Whether the member must release partitions that no Revoke event names yet, because an earlier Revoke is not
        finished. The coordinator may have given these partitions to other members while this member was suspended."""
        return bool(self._excess - self._change.parts) if isinstance(self._change, Revoke) else False

    def _go_on(self) -> None:
        if self._target is None:
            return
        excess, fresh = self._excess, self._target - self.owned
        if isinstance(self._change, Assign):
            left = self._change.parts & self._target
            self._change = self._change._replace(parts=left) if left and not excess else None
        if self._change is not None:
            return
        if excess or fresh:
            self._ticket += 1
            self._change = Revoke(self._ticket, excess) if excess else Assign(self._ticket, fresh)
            self._events.append(self._change)

    # -- outputs -----------------------------------------------------------------------------------------------------

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def request(self, now: float) -> Request | None:
        """The heartbeat to send now, or None. A heartbeat that ``request`` returns is treated as sent."""
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
        """Whether the member waits for the response to a request."""
        return self._sent is not None

    def next_at(self) -> float:
        """The time at which ``request`` will return the next heartbeat if nothing else happens; infinite while a
        response is missing."""
        if not self._is_connected or not self.is_wanted or self._sent is not None:
            return float("inf")
        return self._not_before if self._is_due else max(self._not_before, self._next_at)

    def lease_ends_at(self) -> float:
        """The time at which the member must stop reading if no response arrives; infinite if the member reads no
        partitions."""
        if not self.owned or self.is_suspended:
            return float("inf")
        end = min(self._lease_from() + self.session_s, self._must_release_by())
        return end if self._broken_at is None else min(end, self._broken_at + self.grace_s)

    def reads_until(self) -> float:
        """The time after which records may be returned only if ``tick`` has run: the lease has ended, or the process
        was paused. The caller's thread needs the time limit, because the thread may run before the timer that calls
        ``tick``, mainly after the machine was suspended."""
        if self._looked_at is None:
            return float("inf")
        return min(self.lease_ends_at(), self._looked_at + self._still_s)

    def look_at(self) -> float:
        """The latest time at which ``tick`` must be called: at the end of the lease, or for the next reading of the
        clock."""
        if not self.owned:
            return float("inf")
        return (
            float("-inf") if self._looked_at is None else min(self.lease_ends_at(), self._looked_at + self._still_s / 3)
        )
