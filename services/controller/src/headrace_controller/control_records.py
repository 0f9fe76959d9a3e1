"""Encode and decode Raft's own entries as Kafka's control records, so that Kafka's tools can read the log.

A LEADER_CHANGE entry is a LeaderChangeMessage (KIP-595), a VOTERS entry a KRaftVotersRecord (KIP-853). The leader that
proposes a control record encodes it once, and the logs of all voters keep the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_core.errors import CorruptLogError, CorruptMessageError
from headrace_core.metadata.control_records import (
    ControlRecord,
    ControlType,
    LeaderChange,
    SnapshotVoter,
    decode_control_batch,
    encode_control_batch,
    kraft_voters,
    leader_change,
    parse_kraft_voters,
    parse_leader_change,
)
from headrace_core.records import BatchHeader, check_batch

from .raft import Entry, EntryKind, ReplicaKey, VoterSet


def encode_control(kind: EntryKind, term: int, base_offset: int, leader: int, voters: VoterSet, now_ms: int) -> bytes:
    """The record batch of an entry that Raft itself proposes. ``voters``: the voters of the term that ``leader`` (a
    node id) leads; for a VOTERS entry, the new voters. Equal arguments give equal bytes of the batch."""
    match kind:
        case EntryKind.LEADER_CHANGE:
            record = leader_change(leader, [(key.node_id, key.directory_id) for key in voters])
        case EntryKind.VOTERS:
            record = kraft_voters(snapshot_voters(voters))
        case EntryKind.DATA:
            raise AssertionError("a data entry cannot be encoded as a control record")
    return encode_control_batch([record], base_offset=base_offset, epoch=term, timestamp_ms=now_ms)


def decode_entry(header: BatchHeader, data: bytes) -> Entry:
    """The Raft entry that a record batch contains. Raises CorruptLogError if the batch is not a control batch of Raft.
    Raises UnsupportedVersionError for a control record of a newer version."""
    kind, voters = EntryKind.DATA, None
    if header.is_control:
        record = _only_record(header, data)
        if record.type is ControlType.LEADER_CHANGE:
            kind = EntryKind.LEADER_CHANGE
        elif record.type is ControlType.KRAFT_VOTERS:
            kind, voters = EntryKind.VOTERS, voter_set(parse_kraft_voters(record.value))
        else:
            raise CorruptLogError(
                f"offset {header.base_offset}: a {record.type.name} record is not allowed in the metadata log, "
                "only LEADER_CHANGE and KRAFT_VOTERS are"
            )
    return Entry(kind, header.leader_epoch, header.base_offset, header.last_offset_delta + 1, data, voters)


def leader_change_of(entry: Entry) -> LeaderChange:
    """The leader of the term that a LEADER_CHANGE entry began, and the voters of the term."""
    return parse_leader_change(decode_control_batch(entry.data)[0].value)


def check_entry(entry: Entry) -> BatchHeader:
    """The header of an entry's record batch. Raises CorruptMessageError if the batch is damaged, or belongs to another
    entry."""
    header = check_batch(entry.data)
    said = (header.base_offset, header.next_offset, header.leader_epoch, header.size, header.is_control)
    wanted = (entry.base_offset, entry.next_offset, entry.term, len(entry.data), entry.kind is not EntryKind.DATA)
    if said != wanted:
        raise CorruptMessageError(
            f"a log entry does not match its batch: the entry has offsets {entry.base_offset} to "
            f"{entry.next_offset - 1}, term {entry.term}, kind {entry.kind.value}; the batch has offsets "
            f"{header.base_offset} to {header.last_offset}, term {header.leader_epoch}, "
            f"{'control' if header.is_control else 'data'}, {header.size} bytes of {len(entry.data)}"
        )
    return header


def voter_set(voters: Iterable[SnapshotVoter]) -> VoterSet:
    """The voters that a control record names, as a VoterSet. Raises CorruptLogError if the voters record names a node
    twice."""
    found = tuple(voters)
    try:
        return VoterSet.of(
            (ReplicaKey(each.node_id, each.directory_id) for each in found),
            {each.node_id: each.address for each in found},
        )
    except ValueError as error:
        raise CorruptLogError(f"a record of the metadata log has an invalid set of voters: {error}") from None


def snapshot_voters(voters: VoterSet) -> list[SnapshotVoter]:
    """Inverse of ``voter_set``."""
    return [SnapshotVoter(key.node_id, key.directory_id, voters.address(key.node_id)) for key in voters]


def _only_record(header: BatchHeader, data: bytes) -> ControlRecord:
    records = decode_control_batch(data)
    if len(records) != 1:
        raise CorruptLogError(f"offset {header.base_offset}: a control batch must have one record, not {len(records)}")
    return records[0]
