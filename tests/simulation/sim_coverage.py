"""Events that a run must have seen to prove anything: a schedule without events proves nothing."""

from __future__ import annotations

from collections import Counter

from tests.simulation.sim_plan import KINDS

#: (category, name), as they are counted in the world.
LISTED: tuple[tuple[str, str], ...] = (
    *(("fault", kind) for kind in KINDS),
    ("role", "follower -> prospective"),
    ("role", "follower -> candidate"),
    ("role", "prospective -> candidate"),
    ("role", "prospective -> follower"),
    ("role", "candidate -> leader"),
    ("role", "candidate -> follower"),
    ("role", "candidate -> prospective"),
    ("role", "leader -> follower"),
    ("progress", "none -> probe"),
    ("progress", "probe -> replicate"),
    ("progress", "replicate -> probe"),
    ("progress", "probe -> snapshot"),
    ("progress", "snapshot -> replicate"),
    ("state", "asymmetric partition"),
    ("state", "connection lost"),
    ("state", "controlled shutdown done"),
    ("state", "controller started"),
    ("state", "damaged disk noticed while running"),
    ("state", "damaged disk refused"),
    ("state", "older copy found"),
    ("state", "older copy that nobody remembers"),
    ("state", "append refused"),
    ("state", "lead handed over"),
    ("state", "log rolled"),
    ("state", "log truncated"),
    ("state", "no room for a snapshot"),
    ("state", "observer got a snapshot"),
    ("state", "power lost while writing"),
    ("state", "pre-vote refused"),
    ("state", "quiet period calm to its end"),
    ("state", "read served"),
    ("state", "snapshot chunk sent"),
    ("state", "snapshot installed"),
    ("state", "snapshot taken"),
    ("state", "vote granted"),
    ("state", "vote refused"),
    ("state", "voters changed"),
    ("state", "connection flapped in a calm time"),
    ("state", "deaf leader gave way"),
    ("state", "flush failed"),
    ("state", "power lost after a failed flush"),
    ("state", "producer ids given out"),
    ("state", "coordinator answered"),
    ("brokers", "registered first"),
    ("brokers", "registered anew"),
    ("brokers", "fenced -> active"),
    ("brokers", "active -> fenced"),
    ("brokers", "active -> shutting down"),
    ("brokers", "directory failed"),
    ("partitions", "led -> leaderless"),
    ("partitions", "leaderless -> led"),
    ("partitions", "led by another"),
    ("partitions", "in-sync set shrinks"),
    ("partitions", "in-sync set grows"),
    ("partitions", "a move begins"),
    ("partitions", "a move ends"),
    ("voters", "adds: done"),
    ("voters", "removes: done"),
    ("voters", "hands: done"),
)


#: Events that occur in five to ten of 1,000 schedules, so that one run in a hundred of that length would have none of
#: them.
RARE = frozenset({("state", "damaged disk noticed while running"), ("state", "no room for a snapshot")})
RARE_FROM = 3_000


def missing(seen: Counter[tuple[str, str]], schedules: int = RARE_FROM) -> list[tuple[str, str]]:
    """The required events that never happened in this many ``schedules``; rare events are only required from RARE_FROM
    schedules on."""
    return [each for each in LISTED if not seen[each] and (schedules >= RARE_FROM or each not in RARE)]
