"""Changes of feature levels (KIP-584, KIP-778); headrace_core.metadata.features defines each level.

The feature level of a cluster can be raised if every registered broker and controller supports the new level. A fenced
broker must also support the new feature level, because the broker may return. Brokers that are down and have no
replicas are unregistered, so that they do not block the new level. The cluster's feature level can be lowered only if
no part of the image needs the higher level (Kafka's safe downgrade). An unsafe downgrade of a feature level is refused,
as in Kafka. A node that does not support the current feature level cannot register.

At feature level 1 the metadata log has only records with the tags 1 to 8, and no eligible leader replicas. A record
that needs a higher metadata.version is refused with an error that names the cure. The controller writes no record field
that nodes of the present feature level would ignore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    UnsupportedVersionError,
)
from headrace_core.metadata import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    METADATA_VERSION_MIN,
    ClusterRecord,
    FeatureLevelRecord,
    FeatureRange,
    MetadataImage,
    MetadataRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from headrace_core.metadata.features import level_needed, range_of, understands, what_forbids, without_newer_fields

from .decision import Decision, View
from .requests import FeatureResult, FeatureUpdate, RegisterController, UpdateFeatures, UpgradeType

ID_BYTES = 16
FEATURES_MAX = 100


def update(view: View, request: UpdateFeatures) -> Decision:
    """Returns one FeatureResult for each update; the InvalidUpdateVersionError of a refused update names the
    obstacle."""
    records: list[MetadataRecord] = []
    results = []
    named = Counter(item.name for item in request.updates)
    for item in request.updates:
        try:
            if named[item.name] > 1:
                raise InvalidRequestError(f"feature {item.name[:100]} is named more than once in the request")
            check_update(view, item)
        except HeadraceError as error:
            results.append(FeatureResult(item.name, error))
            continue
        results.append(FeatureResult(item.name))
        if item.level != view.image.metadata_version:
            records.append(FeatureLevelRecord(item.name, item.level))
            if item.level > METADATA_VERSION_MIN:  # level 1 has no record of this kind, and every node supports it
                records += [UnregisterBrokerRecord(*each) for each in _gone_strangers(view, item.level)]
    return Decision(() if request.validate_only else tuple(records), tuple(results))


def check_update(view: View, item: FeatureUpdate) -> None:
    """Raise InvalidUpdateVersionError unless the update may change the feature's level."""
    image = view.image
    now = image.metadata_version
    refused = f"{item.name[:100]} cannot go from level {now} to {item.level}: "
    if item.name != METADATA_VERSION_FEATURE:
        raise InvalidUpdateVersionError(f"unknown feature {item.name[:100]}; must be {METADATA_VERSION_FEATURE}")
    if not METADATA_VERSION_MIN <= item.level <= METADATA_VERSION:
        raise InvalidUpdateVersionError(
            refused + f"this controller supports levels {METADATA_VERSION_MIN} to {METADATA_VERSION}"
        )
    if item.level < now and item.upgrade_type is UpgradeType.UPGRADE:
        raise InvalidUpdateVersionError(
            refused + "the new level is lower; use a safe downgrade (`headrace features downgrade`)"
        )
    if item.level > now and item.upgrade_type is not UpgradeType.UPGRADE:
        raise InvalidUpdateVersionError(
            refused + "the new level is higher; use an upgrade (`headrace features upgrade`)"
        )
    strangers = strangers_to(view, item.level)
    if strangers:
        raise InvalidUpdateVersionError(
            refused
            + (
                f"{', '.join(strangers)} does not support it; upgrade it first (a broker that is gone permanently "
                "no longer counts once it has no replicas)"
            )
        )
    if item.level < now:
        in_the_way = what_forbids(image, item.level)
        if in_the_way and item.upgrade_type is UpgradeType.UNSAFE_DOWNGRADE:
            raise InvalidUpdateVersionError(refused + "an unsafe downgrade is not supported")
        if in_the_way:
            raise InvalidUpdateVersionError(refused + f"the downgrade would lose data: {'; '.join(in_the_way)}")


def strangers_to(view: View, level: int) -> list[str]:
    """Guard: return the nodes that do not support the new level, except the nodes that the same update unregisters."""
    image = view.image
    gone = {broker_id for broker_id, _ in _gone_strangers(view, level)}
    found = [
        f"broker {each.broker_id}"
        for each in image.brokers.values()
        if not understands(each.features, level) and each.broker_id not in gone
    ]
    found += [
        f"controller {each.controller_id}"
        for each in image.ledger.controllers.values()
        if not understands(each.features, level)
    ]
    return found


def _gone_strangers(view: View, level: int) -> list[tuple[int, int]]:
    """Brokers (id, epoch) that do not support the new level, are down and have no replicas. A broker that is down may
    never return, and level 1 has no record to unregister it, so the broker would block the new level forever."""
    image = view.image
    awaited = {target for queued in image.ledger.queued.values() for target in queued.targets}
    return [
        (each.broker_id, each.broker_epoch)
        for each in image.brokers.values()
        if not understands(each.features, level)
        and each.fenced
        and each.broker_id not in image.loads
        and each.broker_id not in awaited
        and not view.sessions.lives(each.broker_id, each.broker_epoch, view.now_ms)
    ]


def check_node(image: MetadataImage, features: Iterable[FeatureRange], who: str) -> None:
    """Raise UnsupportedVersionError unless the registering node supports the current level. Raises InvalidRequestError
    for invalid features."""
    said = tuple(features)
    if len(said) > FEATURES_MAX or len({each.name for each in said}) != len(said):
        raise InvalidRequestError(f"{who} names {len(said)} features: name at most {FEATURES_MAX}, and each only once")
    found = range_of(said)
    if not found.min_level <= image.metadata_version <= found.max_level:
        raise UnsupportedVersionError(
            f"{who} supports {METADATA_VERSION_FEATURE} {found.min_level} to {found.max_level}, but the cluster is "
            f"at level {image.metadata_version}; run a version of Headrace that supports that level"
        )


def register_controller(view: View, request: RegisterController) -> Decision:
    """Raises UnsupportedVersionError and InvalidRequestError. At metadata.version 1 the registration of a controller
    writes no record, because this version has no record type for controllers."""
    if len(request.directory_id) != ID_BYTES or request.controller_id < 0:
        raise InvalidRequestError(
            f"controller {request.controller_id}: its id must be 0 or more, and its directory id 16 bytes"
        )
    check_node(view.image, request.features, f"controller {request.controller_id}")
    record = RegisterControllerRecord(request.controller_id, request.directory_id, request.features)
    known = view.image.ledger.controllers.get(request.controller_id)
    if known is not None and (known.directory_id, known.features) == (record.directory_id, record.features):
        return Decision()
    return Decision((record,) if view.image.metadata_version >= level_needed(record) else ())


def at_level(image: MetadataImage, decision: Decision) -> Decision:
    """Guard: return the decision if a log of the current level can contain its records, else a failure that names the
    cure."""
    level = image.metadata_version
    if level >= METADATA_VERSION or not decision.records:
        return decision
    records: list[MetadataRecord] = []
    for each in decision.records:
        record = each if level > METADATA_VERSION_MIN else without_newer_fields(each)
        if level_needed(record) > max(level, METADATA_VERSION_MIN):
            return Decision(
                failure=UnsupportedVersionError(
                    f"{type(record).__name__} needs {METADATA_VERSION_FEATURE} {level_needed(record)}, and the "
                    f"cluster is at {level}: upgrade all nodes to the controller's version, then raise the "
                    "level (`headrace features upgrade`, UpdateFeatures)"
                )
            )
        if isinstance(record, FeatureLevelRecord):  # the level is in force from the next record on
            level = record.level
        elif isinstance(record, ClusterRecord):  # the first record of a new cluster
            level = record.metadata_version
        records.append(record)
    return msgspec.structs.replace(decision, records=tuple(records))
