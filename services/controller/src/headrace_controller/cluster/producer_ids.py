"""Producer ids, a thousand at a time (KIP-730). Each id is allocated once in the life of a cluster: the end of the last
block is in the log, and a block is answered only when its record is committed. After a resignation in between, the next
controller may allocate the same block, and only that answer is ever sent."""

from __future__ import annotations

from headrace_core.errors import UnknownServerError
from headrace_core.metadata import MetadataImage, ProducerIdsRecord

from . import brokers
from .decision import Decision, View
from .requests import AllocateProducerIds, ProducerIdBlock

BLOCK = 1_000
_ID_MAX = 2**63 - 1


def allocate(view: View, request: AllocateProducerIds) -> Decision:
    """A ProducerIdBlock. BrokerIdNotRegisteredError, StaleBrokerEpochError; UnknownServerError: all ids are used."""
    broker = brokers.known(view.image, request.broker_id, request.broker_epoch)
    first = next_free(view.image)
    if first > _ID_MAX - BLOCK:
        raise UnknownServerError("all producer ids (2^63) are in use")
    record = ProducerIdsRecord(broker.broker_id, broker.broker_epoch, first + BLOCK)
    return Decision((record,), ProducerIdBlock(first, BLOCK))


def next_free(image: MetadataImage) -> int:
    """Guard: use the speculative image, for decisions in flight count."""
    return image.ledger.next_producer_id
