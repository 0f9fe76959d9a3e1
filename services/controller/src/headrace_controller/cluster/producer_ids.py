"""Allocation of producer ids, a thousand in each block (KIP-730). Each producer id is allocated once in the lifetime of
a cluster. The end of the last block of producer ids is in the metadata log. A request for a block is answered only when
the block's record is committed. If the leader resigns before the commit, the next controller may allocate the same
block; then only the next controller's allocation is answered."""

from __future__ import annotations

from headrace_core.errors import UnknownServerError
from headrace_core.metadata import MetadataImage, ProducerIdsRecord

from . import brokers, shards
from .decision import Decision, View
from .requests import AllocateProducerIds, ProducerIdBlock

BLOCK = 1_000
_ID_MAX = 2**63 - 1


def allocate(view: View, request: AllocateProducerIds) -> Decision:
    """Returns a ProducerIdBlock. Raises BrokerIdNotRegisteredError, StaleBrokerEpochError, and UnknownServerError if
    all producer ids are used."""
    if request.coordinator is not None:
        shards.known(view.image, *request.coordinator)
    else:
        brokers.known(view.image, request.broker_id, request.broker_epoch)
    first = next_free(view.image)
    if first > _ID_MAX - BLOCK:
        raise UnknownServerError("all producer ids (2^63) are in use")
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, first + BLOCK)
    return Decision((record,), ProducerIdBlock(first, BLOCK))


def next_free(image: MetadataImage) -> int:
    """Guard: read the speculative image, because blocks of decisions in flight are already allocated."""
    return image.ledger.next_producer_id
