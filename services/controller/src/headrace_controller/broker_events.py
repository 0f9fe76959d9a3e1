"""What a change of the metadata says about brokers, in the words of the event vocabulary. Said by the leader alone."""

from __future__ import annotations

from collections.abc import Iterator

from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.node.ids import id_to_text
from headrace_core.telemetry import BrokerDirectoriesOffline, BrokerFenced, BrokerRegistered, BrokerUnfenced, Event


def events_of(delta: MetadataDelta, before: MetadataImage, image: MetadataImage) -> Iterator[Event]:
    """What became of the brokers between two images."""
    for broker_id in sorted(delta.brokers):
        if broker_id in image.brokers:
            yield from _of_broker(broker_id, before, image)


def _of_broker(broker_id: int, before: MetadataImage, image: MetadataImage) -> Iterator[Event]:
    old, new = before.brokers.get(broker_id), image.brokers[broker_id]
    if old is None or old.broker_epoch != new.broker_epoch:
        yield BrokerRegistered(broker_id=broker_id, broker_epoch=new.broker_epoch)
        if not new.fenced:
            yield BrokerUnfenced(broker_id=broker_id)
    elif new.fenced and not old.fenced:
        reason = "controlled shutdown, or silent for broker.session.timeout.ms"
        if not new.online_directories:
            reason = "none of its log directories works"
        yield BrokerFenced(broker_id=broker_id, reason=reason)
    elif old.fenced and not new.fenced:
        yield BrokerUnfenced(broker_id=broker_id)
    failed = set(new.offline_directories) - (set() if old is None else set(old.offline_directories))
    if failed:
        yield BrokerDirectoriesOffline(broker_id=broker_id, directory_ids=tuple(sorted(map(id_to_text, failed))))
