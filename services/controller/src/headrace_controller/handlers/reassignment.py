"""The calls of headrace.v1.Admin that move replicas: reassignments (KIP-455), drains, brokers that are gone."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidRequestError
from headrace_core.rpc.status import error_to_proto
from headrace_protos.v1 import admin_pb2

from ..cluster import reassignment
from ..cluster.ledger_requests import AlterPartitionReassignments, DrainBroker, Reassignment, UnregisterBroker
from ..driver import ControllerDriver


class ReassignmentCalls:
    """A part of AdminHandler."""

    _driver: ControllerDriver

    async def AlterPartitionReassignments(
        self, request: admin_pb2.AlterPartitionReassignmentsRequest, context: Any
    ) -> Any:
        throttle = request.throttle_bytes_per_s if request.HasField("throttle_bytes_per_s") else None
        answer = await self._driver.ask(
            AlterPartitionReassignments(
                reassignments=tuple(_reassignment(item) for item in request.reassignments),
                allow_replication_factor_change=not request.keep_replication_factor,
                throttle_bytes_per_s=throttle,
            )
        )
        return admin_pb2.AlterPartitionReassignmentsResponse(
            results=[
                admin_pb2.PartitionReassignmentResult(
                    topic=result.topic, partition=result.partition, error=error_to_proto(result.error)
                )
                for result in answer.reply
            ],
            metadata_offset=answer.metadata_offset,
        )

    async def ListPartitionReassignments(
        self, request: admin_pb2.ListPartitionReassignmentsRequest, context: Any
    ) -> Any:
        wanted = [(each.topic, partition) for each in request.partitions for partition in each.partitions]
        return admin_pb2.ListPartitionReassignmentsResponse(
            reassignments=[
                admin_pb2.OngoingReassignment(
                    topic=each.topic,
                    partition=each.partition,
                    replicas=each.replicas,
                    adding_replicas=each.adding,
                    removing_replicas=each.removing,
                    waits=each.waits,
                )
                for each in reassignment.listed(self._driver.image, wanted if request.partitions else None)
            ]
        )

    async def DrainBroker(self, request: admin_pb2.DrainBrokerRequest, context: Any) -> Any:
        answer = await self._driver.ask(DrainBroker(request.broker_id, draining=not request.cancel))
        return admin_pb2.DrainBrokerResponse(
            replicas_left=answer.reply.replicas_left, metadata_offset=answer.metadata_offset
        )

    async def UnregisterBroker(self, request: admin_pb2.UnregisterBrokerRequest, context: Any) -> Any:
        answer = await self._driver.ask(UnregisterBroker(request.broker_id))
        return admin_pb2.UnregisterBrokerResponse(metadata_offset=answer.metadata_offset)


def _reassignment(item: admin_pb2.PartitionReassignment) -> Reassignment:
    if item.cancel and item.replicas:
        raise InvalidRequestError(f"{item.topic[:249]}-{item.partition}: either replicas, or cancel, not both")
    return Reassignment(item.topic, item.partition, None if item.cancel else tuple(item.replicas))
