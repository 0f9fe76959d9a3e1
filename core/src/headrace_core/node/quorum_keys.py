"""The keys of the metadata quorum: elections, and when the metadata log gives way to a snapshot (KIP-595, KIP-630).

Names, defaults and ranges are Kafka's (4.x). Its followers fetch from the leader; here the leader sends, on streams
that stay open, so that heartbeats and broken connections say what time-outs of single calls say there.
"""

from __future__ import annotations

from ..config import ConfigKey, Kind
from .declaring import accepted, honoured

_PUSHED = "has no effect: the leader sends to the others as soon as it has something"
_ELECTIONS = "has no effect: each election waits for a time drawn anew, of once to twice the election time-out"
_TRIMMED = "has no effect: the log begins behind the last snapshot but one, whatever its size and age"
_CHUNKS = "has no effect: messages between controllers hold about 1 MiB"

QUORUM: tuple[ConfigKey, ...] = (
    honoured(
        "controller.quorum.election.timeout.ms",
        1_000,
        "A controller that hears of no leader for once to twice this time asks for votes; a leader that no majority "
        "answers for so long resigns. Heartbeats come every 0.3 of this time. That a leader's process ended is noticed "
        "by its broken connections, within 0.3 of this time. That it stood still is not held against brokers when that "
        "was half of this time or more, and half of their session. Above 2000 each question how old the metadata are "
        "has a round of its own, instead of waiting for heartbeats.",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.fetch.timeout.ms",
        2_000,
        "When a controller gives its leader up.",
        "has no effect: it does after once to twice controller.quorum.election.timeout.ms without a heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.election.backoff.max.ms",
        1_000,
        "The longest pause after an election without a winner.",
        _ELECTIONS,
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.request.timeout.ms",
        2_000,
        "How long a call between controllers may take.",
        "has no effect: what is lost is sent again after the next heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.retry.backoff.ms",
        20,
        "The pause before such a call is repeated.",
        "has no effect: what is lost is sent again after the next heartbeat",
        low=0,
        source="KIP-595",
    ),
    accepted(
        "controller.quorum.append.linger.ms",
        25,
        "How long the leader lets records gather before it writes them.",
        "has no effect: a turn takes all that has arrived, and waits for nothing",
        low=0,
        source="KIP-595",
    ),
    accepted("controller.quorum.fetch.max.bytes", 1_048_576, "Bytes of one fetch.", _PUSHED, low=1),
    accepted(
        "controller.quorum.fetch.snapshot.max.bytes", 1_048_576, "Bytes of one fetch of a snapshot.", _CHUNKS, low=1
    ),
    accepted(
        "controller.quorum.auto.join.enable",
        False,
        "Does a controller join the voters by itself?",
        "voters never join by themselves; `headrace format` names the first, `headrace quorum add` the others",
        source="KIP-853",
    ),
    honoured(
        "metadata.log.max.record.bytes.between.snapshots",
        20_971_520,
        "A controller makes a snapshot of the metadata when its log has grown by so many bytes since the last one.",
        kind=Kind.LONG,
        low=1,
        source="KIP-630",
    ),
    honoured(
        "metadata.log.max.snapshot.interval.ms",
        3_600_000,
        "A controller makes a snapshot after this time, if there is anything new; 0: only by size.",
        kind=Kind.LONG,
        low=0,
        source="KIP-876",
    ),
    accepted("metadata.log.segment.bytes", 1_073_741_824, "Size of the metadata log's segments.", _TRIMMED, low=12),
    accepted("metadata.log.segment.ms", 604_800_000, "Age of the metadata log's segments.", _TRIMMED, kind=Kind.LONG),
    accepted(
        "metadata.max.retention.bytes", 104_857_600, "Size that the metadata log may have.", _TRIMMED, kind=Kind.LONG
    ),
    accepted("metadata.max.retention.ms", 604_800_000, "How long metadata records are kept.", _TRIMMED, kind=Kind.LONG),
)
