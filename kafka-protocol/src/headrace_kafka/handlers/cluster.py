"""DescribeCluster (KIP-700, KIP-919, KIP-1073)."""

from __future__ import annotations

from typing import Any

from ..call import Call
from ..errors import MISMATCHED_ENDPOINT_TYPE, NONE, UNSUPPORTED_ENDPOINT_TYPE
from ..wire.schema import Message
from .operations import NOT_ASKED, cluster_operations

_BROKERS, _CONTROLLERS = 1, 2  #: Values of endpoint_type.


async def describe_cluster(call: Call, request: Message) -> dict[str, Any]:
    kind = request.endpoint_type
    if kind != _BROKERS:
        wrong = MISMATCHED_ENDPOINT_TYPE if kind == _CONTROLLERS else UNSUPPORTED_ENDPOINT_TYPE
        return {
            "error_code": wrong,
            "error_message": "The request was sent to an endpoint of the wrong type: these are brokers"
            if kind == _CONTROLLERS
            else f"Unsupported endpoint type {kind}",
            "endpoint_type": kind,
            "controller_id": -1,
            "cluster_authorized_operations": NOT_ASKED,
        }
    cluster = call.cluster
    brokers = cluster.image.brokers
    return {
        "error_code": NONE,
        "endpoint_type": _BROKERS,
        "cluster_id": cluster.image.cluster_id,
        "controller_id": cluster.controller_id(),
        "brokers": [
            {**node._asdict(), "is_fenced": brokers[node.broker_id].fenced}
            for node in cluster.nodes(call.client.listener, include_fenced=request.include_fenced_brokers)
        ],
        "cluster_authorized_operations": cluster_operations(call, asked=request.include_cluster_authorized_operations),
    }
