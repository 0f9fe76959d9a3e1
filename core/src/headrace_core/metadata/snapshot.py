"""Snapshots of the image (KIP-630): the smallest set of records that builds the state below one offset.

    batch    offsets     holds
    -------  ----------  ------------------------------------------------------------------------------------------
    first    0, 1, 2     control records: SnapshotHeader (the snapshot's end offset), KRaftVersion, KRaftVoters
    ...      3 ...       metadata records, a few thousand to a batch
    last     the last    control record: SnapshotFooter; a snapshot without it is incomplete

A snapshot is a log of ordinary record batches, each with its CRC, which Kafka's tools can read. The snapshot's offsets
begin at 0, and its leader epoch is the term of the last record that it replaces. Both the file name and the header name
the end offset and the term, so a renamed snapshot file is detected.

Only ``image_records`` converts an image back to records. Add every new kind of record and every new field of an image
to ``image_records``; until then ``tests/unit/metadata/test_metadata_snapshot.py`` fails.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import CorruptLogError, CorruptMessageError, InvalidRecordError
from ..records import check_batch, decode_batch, encode_batch
from .codec import decode_record, encode_record
from .control_records import (
    ControlRecord,
    ControlType,
    SnapshotHeader,
    SnapshotVoter,
    decode_control_batch,
    encode_control_batch,
    kraft_version,
    kraft_voters,
    parse_kraft_version,
    parse_kraft_voters,
    parse_snapshot_header,
    snapshot_footer,
    snapshot_header,
)
from .entities import BrokerImage, TopicImage
from .image import EMPTY_IMAGE, ImageBuilder, MetadataImage
from .ledger import ledger_records
from .records import (
    BrokerChangeRecord,
    BrokerDrainRecord,
    ClusterRecord,
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from .security import security_records

__all__ = [
    "SNAPSHOT_SUFFIX",
    "CheckedSnapshot",
    "SnapshotVoter",
    "check_snapshot",
    "decode_snapshot",
    "encode_snapshot",
    "image_records",
    "parse_snapshot_name",
    "snapshot_name",
]

SNAPSHOT_SUFFIX = ".checkpoint"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint\Z")
_BATCH_BYTES = 1 << 20
_BATCH_RECORDS = 4_000


def snapshot_name(offset: int, term: int) -> str:
    """Return the file name of a snapshot, as in Kafka. ``offset``: the snapshot's end offset; ``term``: the leader
    epoch of the last record below the end offset."""
    return f"{offset:020d}-{term:010d}{SNAPSHOT_SUFFIX}"


def parse_snapshot_name(name: str) -> tuple[int, int] | None:
    """Parse a snapshot's file name to (offset, term); None for any other file name."""
    match = _NAME.match(name)
    return None if match is None else (int(match[1]), int(match[2]))


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Iterate over the records that build ``image`` from an empty image: topics by id, brokers by id. Equal images give
    equal records."""
    if image.cluster_id or image.metadata_version:
        yield ClusterRecord(image.cluster_id, image.metadata_version, image.flush_weakened)
    for broker_id in sorted(image.brokers):
        yield from _broker_records(image.brokers[broker_id])
    for topic in image.topics.values():
        yield from _topic_records(topic)
    for (resource_type, name), entries in image.configs.items():
        for key in sorted(entries):
            yield ConfigRecord(int(resource_type), name, key, entries[key])
    yield from ledger_records(image.ledger, image.metadata_version)
    yield from security_records(image.security)


def _broker_records(broker: BrokerImage) -> Iterator[MetadataRecord]:
    yield RegisterBrokerRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        directory_ids=broker.directory_ids,
        endpoints=broker.endpoints,
        rack=broker.rack,
        offline_directories=broker.offline_directories,
        features=broker.features,
        default_log_flush=broker.default_log_flush,
        elections_pending=broker.elections_pending,
        writes_epochs=broker.writes_epochs,
        outdated_directories=broker.outdated_directories,
        directory_epochs=broker.directory_epochs,
    )
    if not broker.fenced or broker.in_controlled_shutdown:
        yield BrokerChangeRecord(
            broker.broker_id,
            broker.broker_epoch,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
        )
    if broker.draining:
        yield BrokerDrainRecord(broker.broker_id, draining=True)


def _topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    topic_id = topic.topic_id
    yield TopicRecord(topic.name, topic_id, topic.flush_weakened)
    for number, partition in enumerate(topic.partitions):
        yield PartitionRecord(
            topic_id=topic_id,
            partition=number,
            replicas=partition.replicas,
            isr=partition.isr,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            directories=partition.directories,
            elr=partition.elr,
            last_known_elr=partition.last_known_elr,
            adding=partition.adding,
            removing=partition.removing,
            recovering=partition.recovering,
            clean_since=partition.clean_since,
        )


def encode_snapshot(image: MetadataImage, *, voters: Iterable[SnapshotVoter], timestamp_ms: int) -> Iterator[bytes]:
    """Encode a snapshot, batch by batch (about 1 MiB each). ``voters``: the voters at the image's offset;
    ``timestamp_ms``: timestamp of the last record below that offset. Equal arguments give equal bytes. Any thread."""
    epoch = max(image.epoch, 0)
    header = SnapshotHeader(image.next_offset, timestamp_ms)
    first = [snapshot_header(header), kraft_version(), kraft_voters(sorted(voters, key=lambda each: each.node_id))]
    yield encode_control_batch(first, base_offset=0, epoch=epoch, timestamp_ms=timestamp_ms)
    offset = len(first)
    for values in _batches(image_records(image)):
        yield encode_batch(
            [(timestamp_ms, None, value, ()) for value in values], base_offset=offset, leader_epoch=epoch
        )
        offset += len(values)
    yield encode_control_batch([snapshot_footer()], base_offset=offset, epoch=epoch, timestamp_ms=timestamp_ms)


def _batches(records: Iterable[MetadataRecord]) -> Iterator[list[bytes]]:
    values: list[bytes] = []
    size = 0
    for record in records:
        value = encode_record(record)
        if values and (size + len(value) > _BATCH_BYTES or len(values) >= _BATCH_RECORDS):
            yield values
            values, size = [], 0
        values.append(value)
        size += len(value)
    if values:
        yield values


class CheckedSnapshot(NamedTuple):
    """A snapshot whose bytes were all checked. ``epoch``: the term of the last record that the snapshot replaces;
    ``batches``: positions of the snapshot's data batches."""

    next_offset: int
    epoch: int
    timestamp_ms: int
    voters: tuple[SnapshotVoter, ...]
    batches: tuple[int, ...]


def check_snapshot(data: bytes | memoryview) -> CheckedSnapshot:
    """Check a snapshot: read every byte, but decode only the first and the last batch. Raises CorruptLogError for a
    damaged or incomplete snapshot, UnsupportedVersionError for a snapshot that a newer Headrace wrote."""
    try:
        return _checked(data)
    except (CorruptMessageError, InvalidRecordError) as error:
        raise CorruptLogError(f"the snapshot is damaged: {error.message}") from None


def _checked(data: bytes | memoryview) -> CheckedSnapshot:
    first = check_batch(data, 0)
    if not first.is_control or first.base_offset != 0:
        raise CorruptLogError("the snapshot does not begin with a header")
    header, voters = _opening_records(decode_control_batch(data, 0))
    position, offset = first.size, first.next_offset
    batches: list[int] = []
    while True:
        if position >= len(data):
            raise CorruptLogError("the snapshot is incomplete: it has no footer")
        batch = check_batch(data, position)
        if batch.base_offset != offset or batch.leader_epoch != first.leader_epoch:
            raise CorruptLogError(
                f"the snapshot is damaged at position {position}: offset {batch.base_offset} of epoch "
                f"{batch.leader_epoch} follows offset {offset - 1} of epoch {first.leader_epoch}"
            )
        if batch.is_control:
            break
        batches.append(position)
        position, offset = position + batch.size, batch.next_offset
    types = [record.type for record in decode_control_batch(data, position)]
    if types != [ControlType.SNAPSHOT_FOOTER] or position + batch.size != len(data):
        raise CorruptLogError(
            f"the snapshot is damaged at position {position}: expected the footer and the end of the file"
        )
    return CheckedSnapshot(header.next_offset, first.leader_epoch, header.timestamp_ms, voters, tuple(batches))


def _opening_records(records: Sequence[ControlRecord]) -> tuple[SnapshotHeader, tuple[SnapshotVoter, ...]]:
    types = [record.type for record in records]
    if types != [ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS]:
        raise CorruptLogError(
            "the snapshot must begin with a header, a version and the voters, not with "
            f"{', '.join(each.name for each in types) or 'nothing'}"
        )
    parse_kraft_version(records[1].value)
    return parse_snapshot_header(records[0].value), parse_kraft_voters(records[2].value)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector while a snapshot is decoded. The decoded objects have no cycles and stay in use. The
    garbage collector would free no memory, and would take as long as the decoding."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def decode_snapshot(data: bytes | memoryview) -> tuple[MetadataImage, tuple[SnapshotVoter, ...]]:
    """Decode a snapshot to its image and its voters. Any thread may call ``decode_snapshot``; 100,000 partitions take
    0.2 to 1 s.

    Raises CorruptLogError for a damaged or incomplete snapshot, UnsupportedVersionError for a snapshot that a newer
    Headrace wrote.
    """
    checked = check_snapshot(data)
    try:
        with _collector_paused():
            image = _image_of(checked, data)
    except (CorruptMessageError, InvalidRecordError) as error:
        raise CorruptLogError(f"the snapshot is damaged: {error.message}") from None
    return image, checked.voters


def _image_of(checked: CheckedSnapshot, data: bytes | memoryview) -> MetadataImage:
    builder = ImageBuilder(EMPTY_IMAGE)
    for position in checked.batches:
        for record in decode_batch(data, position):
            builder.replay(decode_record(record.value))
    epoch = checked.epoch if checked.next_offset else EMPTY_IMAGE.epoch
    return builder.finish(checked.next_offset, epoch)[0]
