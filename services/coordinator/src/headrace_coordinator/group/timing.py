"""When members were heard of, and what is due when. None of it is in the log: who takes a shard over begins anew with
everybody just heard of, so a change of coordinators costs no member anything.

    heartbeat --------------------------> connected, silent for 0 ms
    its stream broke -------------------> disconnected: the *grace* runs, until a heartbeat ends it
    silent for the session's time-out, or (a dynamic member) disconnected for longer than the grace ----> gone

Where connections flap, each break within a session of the one before doubles the grace, up to the session's time-out.

The rebalance timeout counts from the heartbeat in which the member repeats the revision that revokes: a member that was
not told reads all that it has for its lease.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

#: A time that comes so much after something was due was not waited for: the process stood still, or its clock jumped.
LATE_MS = 2_000
NO_CONNECTION = -1


@dataclass(slots=True)
class Session:
    """Times are steady milliseconds. ``connection``: the number of its latest stream. ``broken_ms``: since when that is
    broken, ``grace_ms``: how long it may be. ``revoking_ms``: since when it has had something to let go of,
    ``knows_ms``: since when it has said that it knows, ``late_ms``: when it was first heard with it too late."""

    last_contact_ms: int
    connection: int = NO_CONNECTION
    connected: bool = False
    broken_ms: int | None = None
    grace_ms: int = 0
    last_break_ms: int | None = None
    revoking_ms: int | None = None
    knows_ms: int | None = None
    late_ms: int | None = None

    def heard(self, connection: int, now_ms: int) -> None:
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
        """It is to be told so."""
        self.revoking_ms, self.knows_ms, self.late_ms = now_ms, None, None

    def has_let_go(self) -> None:
        self.revoking_ms = self.knows_ms = self.late_ms = None

    def heard_with_it(self, *, knows: bool, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """It was just heard, and has something to let go of; ``knows``: of that, as it says itself."""
        assert self.revoking_ms is not None
        if knows and self.knows_ms is None:
            self.knows_ms, self.late_ms = self.last_contact_ms, None
        since_ms = self.revoking_ms + session_timeout_ms if self.knows_ms is None else self.knows_ms
        if self.late_ms is None and since_ms + rebalance_timeout_ms <= self.last_contact_ms:
            self.late_ms = self.last_contact_ms

    def is_slow(self, now_ms: int) -> bool:
        """Has it had something to let go of for the rebalance time-out? Guard: that begins when it says that it knows
        (or when it must know: every answer of a session has said so), and it is over for a member that is heard after
        its end, so that it can be told at once. One that is not heard (cut off, or reading on without a coordinator)
        reads all that it has for as long as its lease, which is the session, and may be longer than this time-out.

        The first time that it was heard too late counts: ``now_ms`` is the moment of a proof (Ownership), and one that
        is heard more often than proofs are made would always have been heard since."""
        return self.connected and self.late_ms is not None and self.late_ms <= now_ms

    def is_lost(self, now_ms: int) -> bool:
        """Has its connection been broken for the grace? Then it reads nothing (messages.HeartbeatReply)."""
        return self.broken_ms is not None and now_ms - self.broken_ms >= self.grace_ms


class Ownership:
    """Until when the shard is proven to have been this owner's. Guard: nobody is taken for gone at a later moment.

    Two coordinators cannot both write, but one that was deposed and does not know it can, until the next one has
    claimed the shard; where there is no other one, for long. A member that finds in the metadata that its coordinator
    was deposed before its grace was over reads on (headrace.group.member), so a deposed one must not give away what it
    has. What is proven is a moment that has passed, so it does not matter how late the append comes.
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
    """Turns a wall clock, which may jump, into one that does not. Where it jumps, and after a pause of the process, no
    time has passed: nobody could be heard meanwhile, so nobody is to blame."""

    def __init__(self) -> None:
        self._ahead_ms = 0  # the wall clock of the steady one
        self._last_ms: int | None = None

    def was_set(self, by_ms: int) -> None:
        """Somebody who looks at a second clock says so. Guard: a step that is too short to be seen here would shorten a
        grace, and a member reads until its own is over."""
        self._ahead_ms += by_ms

    def read(self, wall_ms: int, due_ms: int | None) -> int:
        """Steady time; ``due_ms``: when (steady) somebody should have looked at the latest."""
        last = self._last_ms
        now_ms = wall_ms - self._ahead_ms
        if last is not None and (now_ms < last or (due_ms is not None and now_ms > max(due_ms, last) + LATE_MS)):
            self._ahead_ms += now_ms - last
            now_ms = last
        self._last_ms = now_ms
        return now_ms

    def wall(self, steady_ms: int) -> int:
        return steady_ms + self._ahead_ms


#: A group, and its member
Matter = tuple[str, str]


class Agenda:
    """What is to be looked at, and when at the latest. A matter has one entry, its earliest; whoever looks and finds
    that there is time puts it in again. So a heartbeat, which only ever puts things off, costs nothing here."""

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
        """The next matter that is due; it is no longer on the agenda."""
        due_ms = self.next_due_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        _, matter = heapq.heappop(self._heap)
        del self._due[matter]
        return matter
