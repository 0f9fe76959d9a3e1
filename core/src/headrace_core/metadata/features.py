"""Feature levels (KIP-584): the level of ``metadata.version`` that each record needs, and the supported levels.

    1   tags 1 to 8, partitions without eligible leader replicas and without reassignments
    2   everything else

A cluster is formatted at the newest level; an older log stays at its level until an operator raises it
(UpdateFeatures), and until then nothing is written that a node of that level could not read. An unknown tag would stop
an old node; an unknown trailing field it would skip, and then differ from the others, which is worse.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .image import MetadataImage
from .ledger import Ledger
from .records import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_MIN,
    FeatureLevelRecord,
    FeatureRange,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
)

#: Features supported by this version of Headrace.
SUPPORTED_FEATURES = (FeatureRange(METADATA_VERSION_FEATURE, METADATA_VERSION_MIN, METADATA_VERSION),)

_FIRST_TAGS_MAX = 8
_PARTITION_FIELDS = ("elr", "last_known_elr", "adding", "removing", "recovering")


def range_of(features: Iterable[FeatureRange], name: str = METADATA_VERSION_FEATURE) -> FeatureRange:
    """The supported levels of a feature; a node without them supports only metadata.version 1."""
    for each in features:
        if each.name == name:
            return each
    return FeatureRange(name, 1, 1) if name == METADATA_VERSION_FEATURE else FeatureRange(name, 0, 0)


def understands(features: Iterable[FeatureRange], level: int) -> bool:
    """Whether a node with these features can read and write a log at this level of metadata.version."""
    found = range_of(features)
    return found.min_level <= level <= found.max_level


def level_needed(record: MetadataRecord) -> int:
    """The least level of metadata.version for a record. The record that raises the level needs none: all nodes know the
    new level by then."""
    if isinstance(record, FeatureLevelRecord):
        return METADATA_VERSION_MIN
    if type(record).__struct_config__.tag > _FIRST_TAGS_MAX:  # type: ignore[operator]
        return 2
    if isinstance(record, PartitionRecord | PartitionChangeRecord) and any(
        getattr(record, field) for field in _PARTITION_FIELDS
    ):
        return 2
    return 1


def without_newer_fields(record: MetadataRecord) -> MetadataRecord:
    """A partition's record for an old log, without eligible leader replicas, which are optional. A reassignment is
    never left out: it is refused before it begins."""
    if isinstance(record, PartitionRecord):
        return msgspec.structs.replace(record, elr=(), last_known_elr=(), recovering=False)
    if isinstance(record, PartitionChangeRecord):
        return msgspec.structs.replace(record, elr=None, last_known_elr=None, recovering=None)
    return record


def what_needs(image: MetadataImage, level: int) -> list[str]:
    """Parts of the image that need ``level`` of metadata.version, for people."""
    if level < 2:
        return []
    ledger = image.ledger
    found = [what for what, is_there in _of_level_2(ledger) if is_there]
    found += [f"broker {broker.broker_id} is drained" for broker in image.brokers.values() if broker.draining]
    for topic in image.topics.values():
        if any(partition.elr or partition.last_known_elr or partition.recovering for partition in topic.partitions):
            return [*found, f"eligible leader replicas (of topic {topic.name}, perhaps of others)"]
    return found


def _of_level_2(ledger: Ledger) -> list[tuple[str, bool]]:
    return [
        ("producer ids were given out", ledger.next_producer_id > 0),
        ("coordinators are registered", bool(ledger.coordinators)),
        ("shards have owners", bool(ledger.shards)),
        ("partitions are being reassigned", bool(ledger.reassigning or ledger.queued)),
        ("reassignments are throttled", ledger.throttle.bytes_per_s > 0),
    ]
