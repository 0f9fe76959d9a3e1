"""InitProducerId, of the Produce service: who produces idempotently gets an id, and an epoch (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_core.errors import InvalidRequestError, UnsupportedVersionError
from headrace_protos.v1 import produce_pb2

if TYPE_CHECKING:
    from ..context import BrokerContext


class InitProducerIdHandler:
    """Mixed into ``ProduceService``."""

    _broker: BrokerContext

    async def InitProducerId(self, request: Any, context: Any) -> Any:
        ids = self._broker.producer_ids
        if ids is None:
            raise UnsupportedVersionError("this broker has no controller that gives producer ids")
        has_id, has_epoch = request.HasField("producer_id"), request.HasField("producer_epoch")
        if has_id != has_epoch:
            raise InvalidRequestError("producer_id and producer_epoch belong together: send both, or none")
        if has_id:
            producer_id, epoch = await ids.renewed(request.producer_id, request.producer_epoch)
        else:
            producer_id, epoch = await ids.next_id(), 0
        return produce_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
