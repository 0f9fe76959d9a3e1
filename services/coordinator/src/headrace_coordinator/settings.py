"""The coordinator's settings, derived from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.config import fields_from, from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.records import Compression

from .classic.settings import ClassicSettings
from .group.settings import GroupSettings
from .offsets.logic import OffsetSettings
from .offsets.retention import RetentionSettings
from .transaction.transactions import TransactionSettings

WATERMARKS_INTERVAL_S = 2.0  #: Seconds between two queries for high watermarks, from which the groups' lag is computed.
REPLAYS_MAX = 8  #: Maximum number of shards that replay at the same time.


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """``session_timeout_ms`` and ``heartbeat_interval_ms`` are for the coordinator's own session with the
    controllers."""

    groups: GroupSettings
    classic: ClassicSettings
    offsets: OffsetSettings
    transactions: TransactionSettings
    compression: Compression = from_key(SERVER, "offsets.topic.compression.codec", Compression)
    append_timeout_s: float = from_key(SERVER, "offsets.commit.timeout.ms", lambda ms: ms / 1_000)
    load_bytes: int = from_key(SERVER, "offsets.load.buffer.size")
    transactions_load_bytes: int = from_key(SERVER, "transaction.state.log.load.buffer.size")
    session_timeout_ms: float = from_key(SERVER, "broker.session.timeout.ms")
    heartbeat_interval_ms: float = from_key(SERVER, "broker.heartbeat.interval.ms")
    rack: str | None = from_key(SERVER, "broker.rack")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CoordinatorSettings:
        """The settings from a node's configuration values, by name."""
        retention = RetentionSettings(**fields_from(RetentionSettings, values))
        return cls(
            groups=GroupSettings(**fields_from(GroupSettings, values)),
            classic=ClassicSettings(**fields_from(ClassicSettings, values)),
            offsets=OffsetSettings(**fields_from(OffsetSettings, values), retention=retention),
            transactions=TransactionSettings(**fields_from(TransactionSettings, values)),
            **fields_from(cls, values),
        )
