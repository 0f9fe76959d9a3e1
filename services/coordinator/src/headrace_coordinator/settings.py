"""The coordinator's slice of the configuration, in units of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.node.group_keys import ASSIGNORS
from headrace_core.records import Compression

from .group.settings import GroupSettings
from .offsets.logic import OffsetSettings
from .offsets.retention import RetentionSettings

#: How often high watermarks are asked for, for the groups' lag.
WATERMARKS_INTERVAL_S = 2.0
#: Shards that replay at the same time.
REPLAYS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """``session_timeout_ms``, ``heartbeat_interval_ms``: of the coordinator itself at the controllers."""

    groups: GroupSettings
    offsets: OffsetSettings
    compression: Compression
    append_timeout_s: float
    load_bytes: int
    session_timeout_ms: float
    heartbeat_interval_ms: float
    rack: str | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CoordinatorSettings:
        """Out of a node's values by name."""
        asked = tuple(values["group.consumer.assignors"])
        return cls(
            groups=GroupSettings(
                session_timeout_ms=values["group.consumer.session.timeout.ms"],
                heartbeat_interval_ms=values["group.consumer.heartbeat.interval.ms"],
                connection_grace_ms=values["group.consumer.connection.grace.ms"],
                assignment_interval_ms=values["group.consumer.assignment.interval.ms"],
                max_size=values["group.consumer.max.size"],
                assignors=(*asked, *(each for each in ASSIGNORS[-1:] if each not in asked)),
            ),
            compression=Compression(values["offsets.topic.compression.codec"]),
            offsets=OffsetSettings(
                metadata_bytes_max=values["offset.metadata.max.bytes"],
                retention=RetentionSettings(
                    retention_ms=values["offsets.retention.minutes"] * 60_000,
                    check_interval_ms=values["offsets.retention.check.interval.ms"],
                ),
            ),
            append_timeout_s=values["offsets.commit.timeout.ms"] / 1_000,
            load_bytes=values["offsets.load.buffer.size"],
            session_timeout_ms=values["broker.session.timeout.ms"],
            heartbeat_interval_ms=values["broker.heartbeat.interval.ms"],
            rack=values["broker.rack"],
        )
