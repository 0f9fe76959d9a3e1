"""The keys that decisions about groups depend on; names are those of the properties file, with underscores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """``group.consumer.*`` of KIP-848, and limits of our own (``*_max``) that keep a member's record in one batch.

    ``connection_grace_ms`` (group.consumer.connection.grace.ms, ours): how long a broken connection may stay broken.
    ``assignment_interval_ms`` (KIP-1263): the shortest time between two assignments of a group; what leaves partitions
    without a reader does not wait for it while members times partitions are below ``assignment_at_once_max``.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    connection_grace_ms: int = 1_500
    assignment_interval_ms: int = 1_000
    assignment_at_once_max: int = 100_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range", "sticky")
    name_bytes_max: int = 249
    topics_max: int = 5_000
    regex_bytes_max: int = 1_024
