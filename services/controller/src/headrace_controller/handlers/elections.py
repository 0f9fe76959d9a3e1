"""Admin.ElectLeaders (KIP-460)."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidRequestError
from headrace_core.rpc.status import error_to_proto
from headrace_protos.v1 import admin_pb2

from ..cluster.requests import ElectionType, ElectLeaders
from ..driver import ControllerDriver


class ElectionCalls:
    """A part of AdminHandler."""

    _driver: ControllerDriver

    async def ElectLeaders(self, request: admin_pb2.ElectLeadersRequest, context: Any) -> Any:
        answer = await self._driver.ask(_asked(request))
        return admin_pb2.ElectLeadersResponse(
            results=[
                admin_pb2.ElectLeadersResult(
                    topic=each.topic, partition=each.partition, error=error_to_proto(each.error)
                )
                for each in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )


def _asked(request: admin_pb2.ElectLeadersRequest) -> ElectLeaders:
    """InvalidRequestError: there is no such election, or it is not said for whom."""
    try:
        kind = ElectionType(request.election_type)
    except ValueError:
        raise InvalidRequestError(f"there is no election type {request.election_type}") from None
    if request.all_partitions:
        if request.partitions:
            raise InvalidRequestError("name partitions, or ask for all of them, not both")
        return ElectLeaders(kind)
    partitions = tuple((each.topic, number) for each in request.partitions for number in each.partitions)
    if not partitions:
        raise InvalidRequestError("no partition is named; name one or more, or ask for all")
    return ElectLeaders(kind, partitions)
