"""Show the control records of the metadata log: Raft's records between the controller's decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..metadata.control_records import (
    ControlRecord,
    ControlType,
    SnapshotVoter,
    decode_control_batch,
    parse_kraft_version,
    parse_kraft_voters,
    parse_leader_change,
    parse_snapshot_header,
)
from ..node.ids import id_to_text
from ..records import Record, encode_batch


def parse(record: Record) -> ControlRecord:
    """Parse a record of a control batch according to its type. CorruptLogError, UnsupportedVersionError."""
    key, value = (None if each is None else bytes(each) for each in (record.key, record.value))
    return decode_control_batch(encode_batch([(record.timestamp_ms, key, value, ())], control=True))[0]


def describe(record: ControlRecord) -> tuple[str, dict[str, Any]]:
    """Describe a control record as (Kafka's name of its type, its fields). CorruptLogError, UnsupportedVersionError."""
    name, fields = _KINDS[record.type]
    return name, fields(record.value)


def voter(found: SnapshotVoter) -> dict[str, Any]:
    """Describe one voter for output."""
    return {"id": found.node_id, "directory_id": id_to_text(found.directory_id), "address": found.address}


def _leader_change(value: bytes) -> dict[str, Any]:
    found = parse_leader_change(value)
    voters = [{"id": node_id, "directory_id": id_to_text(directory)} for node_id, directory in found.voters]
    return {"leader": found.leader_id, "voters": voters}


def _snapshot_header(value: bytes) -> dict[str, Any]:
    found = parse_snapshot_header(value)
    return {"next_offset": found.next_offset, "last_contained_log_timestamp_ms": found.timestamp_ms}


_KINDS: dict[ControlType, tuple[str, Callable[[bytes], dict[str, Any]]]] = {
    ControlType.LEADER_CHANGE: ("LeaderChange", _leader_change),
    ControlType.SNAPSHOT_HEADER: ("SnapshotHeader", _snapshot_header),
    ControlType.SNAPSHOT_FOOTER: ("SnapshotFooter", lambda value: {}),
    ControlType.KRAFT_VERSION: ("KRaftVersion", lambda value: {"kraft_version": parse_kraft_version(value)}),
    ControlType.KRAFT_VOTERS: (
        "KRaftVoters",
        lambda value: {"voters": [voter(each) for each in parse_kraft_voters(value)]},
    ),
}
