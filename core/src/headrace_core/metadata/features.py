"""Feature levels (KIP-584): the level of ``metadata.version`` that each record needs, and the supported levels.

    1   tags 1 to 8, partitions without eligible leader replicas and without reassignments
    2   tags 9 to 24, and all fields of partitions
    3   tags 25 to 31: access control entries, credentials, quotas, delegation tokens

A cluster is formatted at the newest level. A log that an older release formatted stays at its level until an operator
raises the level (UpdateFeatures). Until an operator raises the level, controllers write only records that a node of the
old level can read. A record with an unknown tag would stop an old node. An old node would skip an unknown trailing
field of a record, and the node's image would differ from all other images.

Fields that only make elections and truncations more careful (``RegisterBrokerRecord.writes_epochs`` and the fields
after it, ``PartitionRecord.clean_since``) need no level: a node that has not got them is as careful as before.
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
from .security import SecurityImage

#: Features that this version of Headrace supports, with their levels.
SUPPORTED_FEATURES = (FeatureRange(METADATA_VERSION_FEATURE, METADATA_VERSION_MIN, METADATA_VERSION),)

_FIRST_TAGS_MAX, _SECOND_TAGS_MAX = 8, 24
_PARTITION_FIELDS = ("elr", "last_known_elr", "adding", "removing", "recovering")


def range_of(features: Iterable[FeatureRange], name: str = METADATA_VERSION_FEATURE) -> FeatureRange:
    """Return a node's supported levels of a feature; a node that reports no levels supports only metadata.version 1."""
    for each in features:
        if each.name == name:
            return each
    return FeatureRange(name, 1, 1) if name == METADATA_VERSION_FEATURE else FeatureRange(name, 0, 0)


def understands(features: Iterable[FeatureRange], level: int) -> bool:
    """Whether a node with the given features can read and write a log at ``level`` of metadata.version."""
    found = range_of(features)
    return found.min_level <= level <= found.max_level


def level_needed(record: MetadataRecord) -> int:
    """Return the lowest level of metadata.version at which a record can be written. The record that raises the level
    can be written at any level, because all nodes already know the new level."""
    if isinstance(record, FeatureLevelRecord):
        return METADATA_VERSION_MIN
    tag = type(record).__struct_config__.tag
    if tag > _SECOND_TAGS_MAX:  # type: ignore[operator]
        return 3
    if tag > _FIRST_TAGS_MAX:  # type: ignore[operator]
        return 2
    if isinstance(record, PartitionRecord | PartitionChangeRecord) and any(
        getattr(record, field) for field in _PARTITION_FIELDS
    ):
        return 2
    return 1


def without_newer_fields(record: MetadataRecord) -> MetadataRecord:
    """Return a partition's record for a log of level 1, without the optional eligible leader replicas. A reassignment
    is never left out of a record, because level 1 refuses to begin a reassignment."""
    if isinstance(record, PartitionRecord):
        return msgspec.structs.replace(record, elr=(), last_known_elr=(), recovering=False)
    if isinstance(record, PartitionChangeRecord):
        return msgspec.structs.replace(record, elr=None, last_known_elr=None, recovering=None)
    return record


def what_forbids(image: MetadataImage, level: int) -> list[str]:
    """Name the parts of the image that need a metadata.version above ``level``. An error message lists them."""
    found = [] if level >= 3 else [what for what, is_there in _of_level_3(image.security) if is_there]
    if level >= 2:
        return found
    found += [what for what, is_there in _of_level_2(image.ledger) if is_there]
    found += [f"broker {broker.broker_id} is drained" for broker in image.brokers.values() if broker.draining]
    for topic in image.topics.values():
        if any(partition.elr or partition.last_known_elr or partition.recovering for partition in topic.partitions):
            return [*found, f"eligible leader replicas (of topic {topic.name}, perhaps of others)"]
    return found


def _of_level_3(security: SecurityImage) -> list[tuple[str, bool]]:
    return [
        ("access control entries exist", bool(security.acls)),
        ("users have credentials", bool(security.scram)),
        ("clients have quotas", bool(security.quotas)),
        ("delegation tokens exist", bool(security.tokens)),
    ]


def _of_level_2(ledger: Ledger) -> list[tuple[str, bool]]:
    return [
        ("producer ids were assigned", ledger.next_producer_id > 0),
        ("coordinators are registered", bool(ledger.coordinators)),
        ("shards have owners", bool(ledger.shards)),
        ("partitions are being reassigned", bool(ledger.reassigning or ledger.queued)),
        ("reassignments are throttled", ledger.throttle.bytes_per_s > 0),
    ]
