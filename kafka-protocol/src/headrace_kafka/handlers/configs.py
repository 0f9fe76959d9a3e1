"""Configurations: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_core.config.server_keys import SERVER
from headrace_core.config.topic_keys import TOPIC as TOPIC_KEYS
from headrace_core.errors import HeadraceError, InvalidConfigError, InvalidRequestError, from_number
from headrace_core.metadata.configs import parse_broker_id
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.security.acl_types import Operation
from headrace_core.types import check_topic_name
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..access import ALTER_CONFIGS, CLUSTER, CLUSTER_NAME, DESCRIBE_CONFIGS
from ..access import GROUP as GROUP_RESOURCE
from ..access import TOPIC as TOPIC_RESOURCE
from ..call import Call
from ..errors import INVALID_CONFIG, INVALID_REQUEST, NONE, kafkas, number
from ..wire.schema import Message

Fields = dict[str, Any]

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32  #: Kafka's numbers of config resource types.
_TYPES = {TOPIC: admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, BROKER: admin_pb2.CONFIG_RESOURCE_TYPE_BROKER}
_IMAGE_TYPES = {TOPIC: ConfigResourceType.TOPIC, BROKER: ConfigResourceType.BROKER}
#: Maps Headrace's config sources to Kafka's numbers of config sources.
_SOURCES = {
    admin_pb2.CONFIG_SOURCE_DYNAMIC_TOPIC: 1,
    admin_pb2.CONFIG_SOURCE_DYNAMIC_BROKER: 2,
    admin_pb2.CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER: 3,
    admin_pb2.CONFIG_SOURCE_STATIC_BROKER: 4,
    admin_pb2.CONFIG_SOURCE_DEFAULT: 5,
}
_OPERATIONS = {
    0: admin_pb2.AlterConfigOp.KIND_SET,
    1: admin_pb2.AlterConfigOp.KIND_DELETE,
    2: admin_pb2.AlterConfigOp.KIND_APPEND,
    3: admin_pb2.AlterConfigOp.KIND_SUBTRACT,
}
#: Number of resources in one call. Their descriptions take up to 12 ms of the event loop.
DESCRIBED_AT_ONCE = 50
_LIST_OPERATIONS = (admin_pb2.AlterConfigOp.KIND_APPEND, admin_pb2.AlterConfigOp.KIND_SUBTRACT)


def _unbuilt(kind: int) -> HeadraceError:
    what = {BROKER_LOGGER: "log levels", CLIENT_METRICS: "client metrics", GROUP: "configurations of groups"}
    return InvalidRequestError(
        f"{what.get(kind, f'resources of type {kind}')} are not supported: only topics and brokers have configurations"
    )


def _require(call: Call, operation: Operation, resource: Message) -> None:
    """Raise an authorization error unless the client has the operation: on the topic or the group itself; for all other
    resources, on the cluster."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        call.require(operation, TOPIC_RESOURCE, name)
    elif kind == GROUP:
        call.require(operation, GROUP_RESOURCE, name)
    else:
        call.require(operation, CLUSTER, CLUSTER_NAME)


async def describe_configs(call: Call, request: Message) -> Fields:
    results: list[Fields] = []
    wanted: list[tuple[Message, Fields]] = []
    for resource in request.resources:
        fields: Fields = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        results.append(fields)
        try:
            _require(call, DESCRIBE_CONFIGS, resource)
            if resource.resource_type in (GROUP, CLIENT_METRICS):  # a resource without its own settings
                fields |= {"error_code": NONE, "configs": []}
            else:
                _check_described_here(call, resource)
                wanted.append((resource, fields))
        except HeadraceError as error:
            fields |= _failed(error)
    for at in range(0, len(wanted), DESCRIBED_AT_ONCE):
        await _describe(call, request, wanted[at : at + DESCRIBED_AT_ONCE])
    return {"results": results}


def _failed(error: HeadraceError) -> Fields:
    return {"error_code": number(error), "error_message": str(error), "configs": []}


def _check_described_here(call: Call, resource: Message) -> None:
    """Raise an error for a resource that this broker cannot describe: only a broker itself knows its properties
    file."""
    kind, name = resource.resource_type, resource.resource_name
    if kind not in _TYPES:
        raise _unbuilt(kind)
    if kind == TOPIC:
        check_topic_name(name)
    elif name and parse_broker_id(name) != (own := call.cluster.broker_id):
        raise InvalidRequestError(f"unexpected broker id {name}: expected {own} or an empty string")


async def _describe(call: Call, request: Message, items: Sequence[tuple[Message, Fields]]) -> None:
    """Describe resources with one call, and put the results into their fields."""
    asked = admin_pb2.DescribeConfigsRequest(
        resources=[
            admin_pb2.ConfigResource(type=_TYPES[each.resource_type], name=each.resource_name) for each, _ in items
        ],
        include_synonyms=True,
    )
    stub, timeout_ms = admin_pb2_grpc.AdminStub, call.settings.request_timeout_ms
    try:
        answer = await call.own(stub, "DescribeConfigs", asked, timeout_ms)
    except HeadraceError as error:
        for _, fields in items:
            fields |= _failed(error)
        return
    #: Entries that resources with equal settings share: most topics have the same settings.
    described: dict[tuple[bytes, tuple[str, ...]], list[Fields]] = {}
    for (resource, fields), found in zip(items, answer.results, strict=True):
        if found.error.code:
            fields |= _failed(_of(found.error))
            continue
        fields["error_code"] = NONE
        found.resource.ClearField("name")
        settings = found.SerializeToString(), tuple(resource.configuration_keys or ())
        if settings not in described:
            described[settings] = described_entries(
                found,
                resource.configuration_keys,
                synonyms=request.include_synonyms,
                documentation=request.include_documentation,
            )
        fields["configs"] = described[settings]


def _of(error: Any) -> HeadraceError:

    return from_number(error.code, error.message)


def described_entries(found: Any, keys: list[str] | None, *, synonyms: bool, documentation: bool) -> list[Fields]:
    """The entries of a described resource in Kafka's format. ``keys``: the wanted keys; None or an empty list means all
    keys. A topic's keys without a value are left out: Kafka's topics have no such keys, and clients that send all
    entries back with AlterConfigs cannot send a null."""
    wanted = set(keys or ())
    leaves_out = found.resource.type == admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC
    return [
        {
            "name": entry.name,
            "value": None if entry.is_sensitive or _is_unset(entry, entry) else entry.value,
            "read_only": entry.read_only,
            "config_source": _SOURCES.get(entry.source, 5),
            "is_sensitive": entry.is_sensitive,
            "config_type": int(entry.type),
            "documentation": entry.documentation if documentation else None,
            "synonyms": [
                {
                    "name": each.name,
                    "value": None if entry.is_sensitive else each.value,
                    "source": _SOURCES.get(each.source, 5),
                }
                for each in (entry.synonyms if synonyms else ())
                if not _is_unset(entry, each)
            ],
        }
        for entry in found.entries
        if (not wanted or entry.name in wanted) and not (leaves_out and _is_unset(entry, entry))
    ]


def _is_unset(entry: Any, value: Any) -> bool:
    """Whether a key is unset and has no default; Kafka then returns null. An empty list counts as a value."""
    is_list = entry.type == admin_pb2.CONFIG_TYPE_LIST
    return value.source == admin_pb2.CONFIG_SOURCE_DEFAULT and not (value.value or is_list)


async def alter_configs(call: Call, request: Message) -> Fields:
    """Replace the whole configuration of each resource. Keys that the request does not name get their defaults
    again."""

    def operations(resource: Message) -> list[Any]:
        names = [config.name for config in resource.configs]
        if len(names) > len(set(names)):
            raise InvalidRequestError("the request sets a configuration key twice; name each key once")
        for config in resource.configs:
            if config.value is None:
                raise InvalidRequestError(f"{config.name}: the value is null; leave the key out for its default")
        given = {config.name: config.value for config in resource.configs}
        kind = _IMAGE_TYPES[resource.resource_type]
        before = call.cluster.image.config(kind, resource.resource_name)
        delete, put = admin_pb2.AlterConfigOp.KIND_DELETE, admin_pb2.AlterConfigOp.KIND_SET
        gone = [admin_pb2.AlterConfigOp(kind=delete, name=name) for name in before if name not in given]
        return gone + [admin_pb2.AlterConfigOp(kind=put, name=name, value=value) for name, value in given.items()]

    return await _alter(call, request, operations)


async def incremental_alter_configs(call: Call, request: Message) -> Fields:
    def operations(resource: Message) -> list[Any]:
        made = []
        for config in resource.configs:
            kind = _OPERATIONS.get(config.config_operation)
            if kind is None:
                raise InvalidRequestError(f"{config.name}: operation {config.config_operation}: must be from 0 to 3")
            if config.value is None and kind != admin_pb2.AlterConfigOp.KIND_DELETE:
                raise InvalidRequestError(f"{config.name}: the value is null; give a value, or delete the key")
            if kind != admin_pb2.AlterConfigOp.KIND_DELETE or _is_known(call, resource, config.name):
                made.append(admin_pb2.AlterConfigOp(kind=kind, name=config.name, value=config.value or ""))
        return made

    return await _alter(call, request, operations)


def _is_known(call: Call, resource: Message, key: str) -> bool:
    """Whether ``key`` is declared, or set on the resource. To delete any other key succeeds in Kafka: the key is unset
    afterwards."""
    declared = TOPIC_KEYS if resource.resource_type == TOPIC else SERVER
    try:
        declared.key(key)
    except InvalidConfigError:
        return key in call.cluster.image.config(_IMAGE_TYPES[resource.resource_type], resource.resource_name)
    return True


async def _alter(call: Call, request: Message, operations: Any) -> Fields:
    responses: list[Fields] = []
    asked = admin_pb2.AlterConfigsRequest(validate_only=request.validate_only)
    sent: list[Fields] = []
    for resource in request.resources:
        fields: Fields = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        responses.append(fields)
        try:
            _require(call, ALTER_CONFIGS, resource)
            if resource.resource_type not in _TYPES:
                raise _unbuilt(resource.resource_type)
            if resource.resource_type == TOPIC:
                if not resource.resource_name:
                    raise InvalidRequestError("the topic's name is empty")
                check_topic_name(resource.resource_name)
            if resource.resource_type == BROKER and resource.resource_name:
                parse_broker_id(resource.resource_name)
            asked.resources.add(
                resource=admin_pb2.ConfigResource(type=_TYPES[resource.resource_type], name=resource.resource_name),
                ops=operations(resource),
            )
            sent.append(fields)
        except HeadraceError as error:
            fields |= {"error_code": number(error), "error_message": str(error)}
    if sent:
        timeout_ms = call.settings.request_timeout_ms
        try:
            answer = await call.own(admin_pb2_grpc.AdminStub, "AlterConfigs", asked, timeout_ms)
            if answer.metadata_offset:
                await call.applied(answer.metadata_offset, timeout_ms)
        except HeadraceError as error:
            for fields in sent:
                fields |= {"error_code": number(error), "error_message": str(error)}
        else:
            for fields, item, found in zip(sent, asked.resources, answer.results, strict=True):
                fields["error_code"] = _altered(item, kafkas(found.error.code))
                fields["error_message"] = found.error.message if found.error.code else None
    return {"responses": responses}


def _altered(item: Any, code: int) -> int:
    """Kafka's error number for an alteration that failed with ``code``. Kafka answers INVALID_REQUEST to an invalid
    value and to a read-only key of a broker. Kafka answers INVALID_CONFIG for topics, for list operations (append,
    subtract) on a broker's key, and for min.insync.replicas of a single broker."""
    if code != INVALID_CONFIG or item.resource.type != admin_pb2.CONFIG_RESOURCE_TYPE_BROKER:
        return code
    is_one = bool(item.resource.name)
    stays = any(op.kind in _LIST_OPERATIONS or (is_one and op.name == "min.insync.replicas") for op in item.ops)
    return code if stays else INVALID_REQUEST


async def list_config_resources(call: Call, request: Message) -> Fields:
    """The resources that can have a configuration (KIP-1142). Version 0 lists only client metrics resources, and the
    cluster has none."""
    call.require_cluster()
    kinds = set(request.resource_types) or {TOPIC, BROKER}
    resources: list[Fields] = []
    if call.version >= 1:
        image = call.cluster.image
        if TOPIC in kinds:
            resources += [{"resource_name": name, "resource_type": TOPIC} for name in image.topic_ids]
        if BROKER in kinds:
            resources += [{"resource_name": str(broker), "resource_type": BROKER} for broker in image.brokers]
    return {"error_code": NONE, "config_resources": resources}
