"""The events that a run of the group schedules must have seen to prove anything."""

from __future__ import annotations

from tests.simulation.group_plan import KINDS

#: (category, name), as they are counted in the world.
GROUPS_LISTED: tuple[tuple[str, str], ...] = (
    *(("fault", kind) for kind in KINDS),
    ("clocks", "brokers are days off"),
    ("clocks", "coordinators are days off"),
    ("check", "state machine compared with its log"),
    ("coordinator", "life ended by the controllers"),
    ("coordinator", "stopped cleanly"),
    ("shard", "claiming"),
    ("shard", "fenced"),
    ("shard", "resigned"),
    ("shard", "serving"),
    ("log", "answer of an append lost"),
    ("log", "append at a deposed leader"),
    ("log", "append late"),
    ("log", "uncommitted records lost"),
    ("member", "gave a connection up"),
    ("member", "lost its partitions"),
    ("member", "reads on without a coordinator"),
    ("member", "reads on without the controllers"),
    ("member", "suspended"),
    ("member", "guest committed and left"),
    ("transaction", "committed"),
    ("transaction", "aborted"),
    ("transaction", "request delivered twice"),
    ("refusal", "FENCED_SHARD_EPOCH"),
    ("refusal", "NOT_COORDINATOR"),
    ("refusal", "STALE_MEMBER_EPOCH"),
    ("refusal", "UNEXPECTED_LOG_END"),
    ("refusal", "UNKNOWN_MEMBER_ID"),
)
