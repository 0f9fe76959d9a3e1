"""Configuration keys of groups, as fields with underscores for dots."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.config import from_key
from headrace_core.config.coordinator_keys import ASSIGNORS
from headrace_core.config.server_keys import SERVER


def _with_sticky(asked: list[str]) -> tuple[str, ...]:
    """The assignors that members may request: the configured assignors, and always "sticky"."""
    return (*asked, *(each for each in ASSIGNORS[-1:] if each not in asked))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """``group.consumer.*`` of KIP-848, and Headrace's limits (``*_max``), which keep a member's record within one
    batch.

    ``connection_grace_ms`` (group.consumer.connection.grace.ms, an addition to Kafka): longest time without a
    connection. ``assignment_interval_ms`` (KIP-1263): shortest time between two assignments of a group. A change that
    leaves partitions without a reader does not wait for the interval in small groups. A group is small if its members
    times its partitions are at most ``assignment_at_once_max``. ``migration_policy``: with "upgrade" or
    "bidirectional", a classic group with members may change to KIP-848; with "downgrade" or "bidirectional", the group
    may change back.
    """

    session_timeout_ms: int = from_key(SERVER, "group.consumer.session.timeout.ms")
    heartbeat_interval_ms: int = from_key(SERVER, "group.consumer.heartbeat.interval.ms")
    connection_grace_ms: int = from_key(SERVER, "group.consumer.connection.grace.ms")
    assignment_interval_ms: int = from_key(SERVER, "group.consumer.assignment.interval.ms")
    assignment_at_once_max: int = 100_000
    max_size: int = from_key(SERVER, "group.consumer.max.size")
    assignors: tuple[str, ...] = from_key(SERVER, "group.consumer.assignors", _with_sticky)
    migration_policy: str = from_key(SERVER, "group.consumer.migration.policy", str.lower)
    name_bytes_max: int = 249
    topics_max: int = 5_000
    topics_bytes_max: int = 900_000
    regex_bytes_max: int = 1_024
