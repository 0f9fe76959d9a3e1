"""Settings of a controller in the quorum, read from Kafka's configuration keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER

from .raft import RaftSettings

#: Number of ticks in an election timeout. A leader sends heartbeats every _HEARTBEAT_TICKS ticks. (Kafka's voters fetch
#: from their leader every 500 ms at least, and start an election after 2 s.)
_TICKS = 10
_HEARTBEAT_TICKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """The quorum's settings, from Kafka's keys; times are in milliseconds."""

    #: Election timeout in milliseconds; a follower without a leader starts an election after one to two election
    #: timeouts.
    election_timeout_ms: float = from_key(SERVER, "controller.quorum.election.timeout.ms")
    snapshot_bytes: int = from_key(SERVER, "metadata.log.max.record.bytes.between.snapshots")
    #: Longest time between two snapshots in milliseconds; with 0, only the bytes of log cause a snapshot.
    snapshot_interval_ms: float = from_key(SERVER, "metadata.log.max.snapshot.interval.ms")
    #: Maps a node id to "host:port", for voters whose address is not in the metadata log (controller.quorum.voters).
    voter_addresses: Mapping[int, str] = field(default_factory=dict)
    raft: RaftSettings = field(
        default_factory=lambda: RaftSettings(
            election_ticks=_TICKS, heartbeat_ticks=_HEARTBEAT_TICKS, recall_ticks=_TICKS
        )
    )

    @property
    def tick_ms(self) -> float:
        return max(self.election_timeout_ms / self.raft.election_ticks, 1)

    @property
    def heartbeat_ms(self) -> float:
        """Milliseconds between two heartbeats of a leader."""
        return self.raft.heartbeat_ticks * self.tick_ms
