"""FindCoordinator (KIP-699): the broker to which a client sends the requests for a group or a transactional id.

Headrace's coordinators are separate processes, and every broker can call them. A client gets the leader of the key's
shard, because Kafka's tools expect this broker as the coordinator. A broker creates the internal topic
(``__consumer_offsets`` or ``__transaction_state``) at the topic's first use.
"""

from __future__ import annotations

from typing import Any

from headrace_core.errors import CoordinatorNotAvailableError, HeadraceError
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace_core.rpc.turns import Turns
from headrace_core.security.acl_types import ResourceType
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc

from ..access import DESCRIBE
from ..access import GROUP as GROUP_RESOURCE
from ..access import TRANSACTIONAL_ID as TRANSACTION_RESOURCE
from ..call import Call
from ..cluster import GROUP, TRANSACTION
from ..errors import INVALID_REQUEST, NONE, number
from ..wire.schema import Message

#: Maps Kafka's key type to the kind of key, the topic of the shards, and Headrace's coordinator type. The broker does
#: not serve key type 2 (share groups).
_KINDS = {
    0: (GROUP, OFFSETS_TOPIC, metadata_pb2.COORDINATOR_TYPE_GROUP),
    1: (TRANSACTION, TRANSACTIONS_TOPIC, metadata_pb2.COORDINATOR_TYPE_TRANSACTION),
}
#: Number of characters of a key that count as one item of work: the time to compute Java's string hash in Python is in
#: proportion to the key's length.
_CHARACTERS_PER_ITEM = 40
_RESOURCES = {GROUP: GROUP_RESOURCE, TRANSACTION: TRANSACTION_RESOURCE}
_BATCH_VERSION = 4  #: First version of FindCoordinator whose requests name several keys.


async def find_coordinator(call: Call, request: Message) -> dict[str, Any]:
    keys = list(dict.fromkeys(request.coordinator_keys)) if call.version >= _BATCH_VERSION else [request.key]
    kind = _KINDS.get(request.key_type)
    if kind is None:
        message = f"the broker does not serve coordinator type {request.key_type}"
        found = [_error(key, INVALID_REQUEST, message) for key in keys]
    else:
        found = await _find(call, keys, *kind)
    if call.version >= _BATCH_VERSION:
        return {"coordinators": found}
    return {name: value for name, value in found[0].items() if name != "key"}


async def _find(call: Call, keys: list[str], kind: str, topic: str, coordinator_type: Any) -> list[dict[str, Any]]:
    cluster = call.cluster
    resource = _RESOURCES[kind]
    allowed = {key for key in keys if call.allows(DESCRIBE, resource, key)}
    if cluster.topic(topic) is None and allowed:
        try:
            await _create(call, next(iter(allowed)), coordinator_type)
        except HeadraceError as error:
            code = CoordinatorNotAvailableError.number
            return [_error(key, code, str(error)) if key in allowed else _refused(call, resource, key) for key in keys]
    found = []
    async with Turns(sum(map(len, keys)) // _CHARACTERS_PER_ITEM + len(keys)) as turns:
        for key in keys:
            found.append(_found(call, kind, key) if key in allowed else _refused(call, resource, key))
            if turns.is_over():
                await turns.next()
    return found


def _found(call: Call, kind: str, key: str) -> dict[str, Any]:
    try:
        call.cluster.owner_address(kind, key)
        node = call.cluster.coordinator_node(call.client.listener, kind, key)
    except HeadraceError as error:
        return _error(key, number(error), str(error))
    return {
        "key": key,
        "error_code": NONE,
        "error_message": None,
        "node_id": node.broker_id,
        "host": node.host,
        "port": node.port,
    }


def _refused(call: Call, resource: ResourceType, key: str) -> dict[str, Any]:
    error = call.refusal(DESCRIBE, resource, key)
    return _error(key, error.number, str(error))


async def _create(call: Call, key: str, coordinator_type: Any) -> None:
    """Make a broker create the topic of the shards, by a FindCoordinator call for ``key``."""
    timeout_ms = call.settings.request_timeout_ms
    request = metadata_pb2.FindCoordinatorRequest(type=coordinator_type, keys=[key])
    answer = await call.own(metadata_pb2_grpc.MetadataStub, "FindCoordinator", request, timeout_ms)
    await call.applied(answer.metadata_offset, timeout_ms)


def _error(key: str, code: int, message: str) -> dict[str, Any]:
    return {"key": key, "error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
