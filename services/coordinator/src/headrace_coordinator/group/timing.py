"""Sessions of members, and an agenda of due checks. None of it is in the log: a new owner of the shard starts with
every member just heard from, so a change of coordinators affects no member.

    heartbeat --------------------------> connected, silent for 0 ms
    its stream broke -------------------> disconnected: the *grace* runs, until a heartbeat ends it
    silent for the session timeout, or (a dynamic member) disconnected for longer than the grace ----> removed

Where connections flap, each break within a session timeout of the one before doubles the grace, up to the session
timeout.

The rebalance timeout counts from the heartbeat in which the member repeats the revision that revokes: a member without
that message reads all its partitions for its lease.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

LATE_MS = 2_000  #: If a check runs this many milliseconds late, the process was paused or the clock jumped.
NO_CONNECTION = -1


@dataclass(slots=True)
class Session:
    """Times are steady milliseconds. ``connection``: the number of its latest stream. ``broken_ms``: when that broke,
    ``grace_ms``: how long it may last. ``revoking_ms``: since when it must release something, ``knows_ms``: since when
    it knows, ``late_ms``: when it was first heard from too late with it."""

    last_contact_ms: int
    connection: int = NO_CONNECTION
    connected: bool = False
    broken_ms: int | None = None
    grace_ms: int = 0
    last_break_ms: int | None = None
    revoking_ms: int | None = None
    knows_ms: int | None = None
    late_ms: int | None = None

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
        """It must release something."""
        self.revoking_ms, self.knows_ms, self.late_ms = now_ms, None, None

    def has_let_go(self) -> None:
        self.revoking_ms = self.knows_ms = self.late_ms = None

    def note_revoking(self, *, knows: bool, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """It was heard from while it must release something; ``knows``: it knows that."""
        assert self.revoking_ms is not None
        if knows and self.knows_ms is None:
            self.knows_ms, self.late_ms = self.last_contact_ms, None
        since_ms = self.revoking_ms + session_timeout_ms if self.knows_ms is None else self.knows_ms
        if self.late_ms is None and since_ms + rebalance_timeout_ms <= self.last_contact_ms:
            self.late_ms = self.last_contact_ms

    def is_slow(self, now_ms: int) -> bool:
        """Whether it failed to release something within the rebalance timeout.

        Guard: the timeout begins when the member says that it knows (or must know: every answer of a session has said
        so). It ends only for a member heard from after it, which can get a push at once. A silent member (cut off, or
        reading on without a coordinator) reads everything for its lease, the session, which may be longer than this
        timeout.

        The first late heartbeat counts: ``now_ms`` is the moment of a proof (Ownership), and a member that sends more
        often than proofs are made would always have been heard from since.
        """
        return self.connected and self.late_ms is not None and self.late_ms <= now_ms

    def is_lost(self, now_ms: int) -> bool:
        """Whether its connection has been broken for the grace. Then it reads nothing (messages.HeartbeatReply)."""
        return self.broken_ms is not None and now_ms - self.broken_ms >= self.grace_ms


class Ownership:
    """Time until which the shard is proven to have been this owner's. Guard: no member is removed as of a later moment.

    Two coordinators cannot both write, but a deposed one that does not know it can write until the next one has claimed
    the shard; without another one, for long. A member that finds in the metadata that its coordinator was deposed
    before its grace was over reads on (headrace.group.member), so a deposed one must not give away its partitions. The
    proof is of a past moment, so a late append does no harm.
    """

    def __init__(self) -> None:
        self.proven_ms: int | None = None
        self._asked: tuple[int, int] | None = None

    def asked(self, number: int, steady_ms: int) -> None:
        self._asked = number, steady_ms

    def proven(self, number: int) -> None:
        if self._asked is not None and self._asked[0] == number:
            self.proven_ms = self._asked[1]


class SteadyClock:
    """Derives a steady clock from a wall clock that may jump. During a jump, and during a pause of the process, no time
    passes: no heartbeat could arrive, so no member is late."""

    def __init__(self) -> None:
        self._ahead_ms = 0  # wall clock minus steady clock
        self._last_ms: int | None = None

    def was_set(self, by_ms: int) -> None:
        """Report a clock step found with a second clock. Guard: a step too short to be seen here would shorten a grace,
        and a member reads until its own is over."""
        self._ahead_ms += by_ms

    def read(self, wall_ms: int, due_ms: int | None) -> int:
        """Steady time; ``due_ms``: steady time at which this should have been called at the latest."""
        last = self._last_ms
        now_ms = wall_ms - self._ahead_ms
        if last is not None and (now_ms < last or (due_ms is not None and now_ms > max(due_ms, last) + LATE_MS)):
            self._ahead_ms += now_ms - last
            now_ms = last
        self._last_ms = now_ms
        return now_ms

    def wall(self, steady_ms: int) -> int:
        return steady_ms + self._ahead_ms


Matter = tuple[str, str]  #: A group, and its member


class Agenda:
    """Matters to check, and when at the latest. A matter has one entry, its earliest; a check that finds it early adds
    it again. So a heartbeat, which only delays matters, costs nothing here."""

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

    def take(self, now_ms: int) -> Matter | None:
        """Remove and return the next due matter."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        _, matter = heapq.heappop(self._heap)
        del self._due[matter]
        return matter
