"""What a change of the metadata says about brokers and levels, in the words of the event vocabulary. Said by the leader
alone."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_core.metadata import METADATA_VERSION_FEATURE, MetadataDelta, MetadataImage
from headrace_core.node.ids import id_to_text
from headrace_core.telemetry import (
    BrokerDirectoriesOffline,
    BrokerDrained,
    BrokerDraining,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    BrokerUnregistered,
    Event,
    FeatureLevelChanged,
)

from .cluster.balancing import is_drained


def events_of(delta: MetadataDelta, before: MetadataImage, image: MetadataImage) -> Iterator[Event]:
    """What became of the brokers and of the cluster's level between two images."""
    for broker_id in sorted(delta.brokers):
        if broker_id in image.brokers:
            yield from _of_broker(broker_id, before, image)
        elif broker_id in before.brokers:
            yield BrokerUnregistered(broker_id=broker_id)
    if delta.brokers or image.loads is not before.loads:
        for broker_id, broker in image.brokers.items():
            if broker.draining and is_drained(image, broker_id) and not is_drained(before, broker_id):
                yield BrokerDrained(broker_id=broker_id)
    if image.metadata_version != before.metadata_version:
        yield FeatureLevelChanged(feature=METADATA_VERSION_FEATURE, level=image.metadata_version)


def _of_broker(broker_id: int, before: MetadataImage, image: MetadataImage) -> Iterator[Event]:
    old, new = before.brokers.get(broker_id), image.brokers[broker_id]
    if old is None or old.broker_epoch != new.broker_epoch:
        yield BrokerRegistered(broker_id=broker_id, broker_epoch=new.broker_epoch)
        if not new.fenced:
            yield BrokerUnfenced(broker_id=broker_id)
    elif new.fenced and not old.fenced:
        reason = "controlled shutdown, silent for broker.session.timeout.ms, or disconnected for longer than the grace"
        if not new.online_directories:
            reason = "none of its log directories works"
        yield BrokerFenced(broker_id=broker_id, reason=reason)
    elif old.fenced and not new.fenced:
        yield BrokerUnfenced(broker_id=broker_id)
    if new.draining and not (old is not None and old.draining) and broker_id in image.loads:
        yield BrokerDraining(broker_id=broker_id, replicas=image.loads[broker_id].replicas)
    failed = set(new.offline_directories) - (set() if old is None else set(old.offline_directories))
    if failed:
        yield BrokerDirectoriesOffline(broker_id=broker_id, directory_ids=tuple(sorted(map(id_to_text, failed))))
