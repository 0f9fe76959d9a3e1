"""Configuration keys of classic groups, as fields with underscores for dots."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSettings:
    """``initial_delay_ms``: how long the first rebalance of an empty group waits for more members.
    ``pending_max``: maximum number of a group's members that have a member id and have not joined yet (KIP-394)."""

    initial_delay_ms: int = from_key(SERVER, "group.initial.rebalance.delay.ms")
    session_timeout_min_ms: int = from_key(SERVER, "group.min.session.timeout.ms")
    session_timeout_max_ms: int = from_key(SERVER, "group.max.session.timeout.ms")
    max_size: int = from_key(SERVER, "group.max.size")
    pending_max: int = 1_000
    name_bytes_max: int = 249
    #: Maximum bytes of a group's record, which must fit into one batch.
    record_bytes_max: int = 1_000_000
