"""Sessions of members, and a queue of members and groups to check, ordered by time. The sessions of members and the
queue of checks are not in the log. A new owner of the shard assumes that every member has just sent a heartbeat, so a
change of coordinators affects no member.

    heartbeat --------------------------> connected, silent for 0 ms
    its stream broke -------------------> disconnected: the *grace* runs, until a heartbeat ends it
    silent for the session timeout, or (a dynamic member) disconnected for longer than the grace ----> removed

If a connection breaks repeatedly, each break within a session timeout of the previous break doubles the grace period,
up to the session timeout.

The rebalance timeout begins with the first heartbeat that names the assignment revision with the revocation. A member
that has not received the revocation reads all its partitions until its session times out.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

#: Connection numbers: NO_CONNECTION before the member's first contact with this coordinator, NO_STREAM for a member
#: without a stream (a client of Kafka). Every stream has a number above 0.
NO_CONNECTION, NO_STREAM = -1, 0


@dataclass(slots=True)
class Session:
    """Times are in milliseconds of the steady clock. ``connection``: the number of the member's latest stream.
    ``broken_ms``: when the member's latest stream broke. ``grace_ms``: how long the member may be without a stream.
    ``revoking_ms``: time from which on the member must release partitions. ``knows_ms``: time from which on the member
    knows that it must release partitions. ``late_ms``: time of the member's first heartbeat after the rebalance
    timeout. ``join_by_ms``, ``sync_by_ms``: time until which a member of the classic protocol must join again, or must
    send SyncGroup after its join."""

    last_contact_ms: int
    connection: int = NO_CONNECTION
    connected: bool = False
    broken_ms: int | None = None
    grace_ms: int = 0
    last_break_ms: int | None = None
    revoking_ms: int | None = None
    knows_ms: int | None = None
    late_ms: int | None = None
    join_by_ms: int | None = None
    sync_by_ms: int | None = None

    def touch(self, connection: int, now_ms: int) -> None:
        self.last_contact_ms = now_ms
        self.connection = connection
        self.connected = True
        self.broken_ms = None

    def broke(self, now_ms: int, grace_ms: int, session_timeout_ms: int) -> None:
        flaps = self.last_break_ms is not None and now_ms - self.last_break_ms <= session_timeout_ms
        self.grace_ms = min(self.grace_ms * 2 if flaps else grace_ms, session_timeout_ms)
        self.connected = False
        self.broken_ms = self.last_break_ms = now_ms

    def has_to_let_go(self, now_ms: int) -> None:
        """Record that the member must release partitions from now on."""
        self.revoking_ms, self.knows_ms, self.late_ms = now_ms, None, None

    def has_let_go(self) -> None:
        self.revoking_ms = self.knows_ms = self.late_ms = None

    def note_revoking(self, *, knows: bool, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Record a heartbeat of a member that must release partitions. ``knows``: the heartbeat shows that the member
        knows the revocation."""
        assert self.revoking_ms is not None
        if knows and self.knows_ms is None:
            self.knows_ms, self.late_ms = self.last_contact_ms, None
        since_ms = self.revoking_ms + session_timeout_ms if self.knows_ms is None else self.knows_ms
        if self.late_ms is None and since_ms + rebalance_timeout_ms <= self.last_contact_ms:
            self.late_ms = self.last_contact_ms

    def is_slow(self, now_ms: int) -> bool:
        """Whether the member failed to release partitions within the rebalance timeout.

        Guard: the rebalance timeout begins when the member reports that it knows of the revocation. The rebalance
        timeout begins at the latest one session timeout after the revocation, because every answer in this time
        contained the revocation. Only a member that sends a heartbeat after the timeout counts as slow, because a
        connected member receives the revocation at once. A silent member (disconnected, or reading without a
        coordinator) reads all its partitions until its session times out, which may be after the rebalance timeout.

        Whether a member released its partitions in time is judged by its first heartbeat after the rebalance timeout,
        not by its last heartbeat. ``now_ms`` is the time of a proof of ownership. The last heartbeat of a member with
        frequent heartbeats is always later than the last proof of ownership, so it decides nothing.
        """
        return self.connected and self.late_ms is not None and self.late_ms <= now_ms

    def missed_join(self, now_ms: int) -> bool:
        """Whether a member of the classic protocol has not joined again, or asked for its assignment, in time."""
        return any(by_ms is not None and by_ms <= now_ms for by_ms in (self.join_by_ms, self.sync_by_ms))

    def is_lost(self, now_ms: int) -> bool:
        """Whether the member's connection has been broken for the grace period. A member whose connection is broken for
        longer than the grace period reads no partition (messages.HeartbeatReply)."""
        return self.broken_ms is not None and now_ms - self.broken_ms >= self.grace_ms


class Ownership:
    """Time up to which this coordinator is proven to have owned the shard. Guard: no member is removed for a time that
    is later than the last proof of ownership.

    Two coordinators of one shard cannot both write. A deposed coordinator that does not know that it was deposed can
    still write until the next coordinator has claimed the shard. If there is no other coordinator, the shard may wait
    long for its next owner. A member may find in the metadata that its coordinator was deposed before the member's
    grace period was over. A member that finds its coordinator deposed continues to read (headrace.group.member), so a
    deposed coordinator must not reassign the member's partitions. A proof of ownership is valid for a time in the past,
    so an append that arrives later does no harm.
    """

    def __init__(self) -> None:
        self.proven_ms: int | None = None
        self._asked: tuple[int, int] | None = None

    def asked(self, number: int, steady_ms: int) -> None:
        self._asked = number, steady_ms

    def proven(self, number: int) -> None:
        if self._asked is not None and self._asked[0] == number:
            self.proven_ms = self._asked[1]


Matter = tuple[str, str]  #: A group, and its member


class Agenda:
    """The queue of checks. Each member or group to check has one entry, with the earliest time at which the check may
    be due. If a check comes too early, the checker adds the entry again with a later time. A heartbeat only delays a
    check, so a heartbeat need not change the queue."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Matter]] = []
        self._due: dict[Matter, int] = {}

    def put(self, matter: Matter, due_ms: int) -> None:
        known = self._due.get(matter)
        if known is None or due_ms < known:
            self._due[matter] = due_ms
            heapq.heappush(self._heap, (due_ms, matter))

    def next_due_ms(self) -> int | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> dict[str, list[str]]:
        """Remove all members and groups whose checks are due from the queue, and return them by group."""
        due: dict[str, list[str]] = {}
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            _, matter = heapq.heappop(self._heap)
            del self._due[matter]
            group_id, member_id = matter
            due.setdefault(group_id, []).append(member_id)
        return due
