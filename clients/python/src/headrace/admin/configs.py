"""Describe and alter configurations (KIP-133, KIP-226, KIP-339). The code runs on the I/O thread, except the
``wanted_*`` functions, which check arguments in the caller's thread and raise InvalidArgumentError.

Only a broker knows its own properties file, so the request for its configuration is sent to that broker. For a broker
that is not live, any node returns the dynamic values and the defaults.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import BrokerIdNotRegisteredError, InvalidArgumentError
from headrace_core.rpc.limits import limit_of, pages
from headrace_protos.v1 import admin_pb2

from .. import arguments
from ..cluster_models import AppendConfig, ConfigEntry, ConfigResource, ConfigSynonym, ConfigValue, SubtractConfig
from ..engine.connections import call
from .calls import AdminCalls, raise_failures

_RESOURCE_TYPES = {
    "topic": admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC,
    "broker": admin_pb2.CONFIG_RESOURCE_TYPE_BROKER,
}
_DESCRIBED_MAX = limit_of("Admin/DescribeConfigs", "resources")
_RESOURCE_NAMES = {number: name for name, number in _RESOURCE_TYPES.items()}


def wanted_resources(resources: Iterable[ConfigResource]) -> list[ConfigResource]:
    what = "ConfigResource(type, name)"
    if isinstance(resources, ConfigResource):
        raise arguments.wrong("resources", resources, f"must be a list of {what}")
    return [_checked(each) for each in arguments.items("resources", resources, what)]


def wanted_changes(
    changes: Mapping[ConfigResource, Mapping[str, ConfigValue]],
) -> dict[ConfigResource, dict[str, ConfigValue]]:
    found: dict[ConfigResource, dict[str, ConfigValue]] = {}
    for resource, values in arguments.mapping("changes", changes, "ConfigResource: {key: value}").items():
        of_one = found[_checked(resource)] = dict(arguments.mapping(f"changes of {resource}", values, "key: value"))
        for key, value in of_one.items():
            arguments.text("configuration key", key)
            arguments.text(key, _op(value)[1])
    return found


def _checked(resource: ConfigResource) -> ConfigResource:
    if not isinstance(resource, tuple) or len(resource) != 2 or resource[0] not in ("topic", "broker"):
        raise InvalidArgumentError(f"configuration resource {resource!r:.80}: its type must be 'topic' or 'broker'")
    return ConfigResource(resource[0], arguments.text("ConfigResource.name", str(resource[1])))


async def describe_configs(
    calls: AdminCalls, resources: list[ConfigResource], include_synonyms: bool, timeout: float | None
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    """Returns entries in the order of ``resources``."""
    wanted = [_resource(item) for item in resources]
    deadline = calls.engine.deadline(timeout)
    by_broker: dict[int | None, list[Any]] = {}
    for resource in wanted:
        by_broker.setdefault(_broker_of(resource), []).append(resource)
    groups = [
        _describe(calls, broker_id, list(page), include_synonyms, deadline)
        for broker_id, group in by_broker.items()
        for page in pages(group, _DESCRIBED_MAX)
    ]
    results = [result for answer in await asyncio.gather(*groups) for result in answer]
    raise_failures((_shown(item.resource), item.error) for item in results)
    found = {(item.resource.type, item.resource.name): item for item in results}
    return {
        ConfigResource(_RESOURCE_NAMES[item.type], item.name): {
            entry.name: _entry(entry) for entry in found[(item.type, item.name)].entries
        }
        for item in wanted
    }


async def alter_configs(
    calls: AdminCalls,
    changes: Mapping[ConfigResource, Mapping[str, ConfigValue]],
    timeout: float | None,
    validate_only: bool,
) -> None:
    """Change either all keys of a resource or none of them. Keys that ``changes`` does not name keep their values."""
    results: list[Any] = []
    for page in pages(list(changes.items())):
        request = admin_pb2.AlterConfigsRequest(validate_only=validate_only)
        for resource, values in page:
            item = request.resources.add(resource=_resource(resource))
            for name, value in values.items():
                kind, text = _op(value)
                item.ops.add(kind=kind, name=name, value=text)
        results += (await calls.change("AlterConfigs", request, timeout)).results
    raise_failures((_shown(item.resource), item.error) for item in results)


async def _describe(
    calls: AdminCalls, broker_id: int | None, resources: list[Any], include_synonyms: bool, deadline: float
) -> list[Any]:
    request = admin_pb2.DescribeConfigsRequest(resources=resources, include_synonyms=include_synonyms)

    async def ask(broker: int, address: str, timeout_s: float) -> Any:
        return await call(calls.engine.connections.admin(address).DescribeConfigs, request, address, timeout_s)

    if broker_id is not None:
        if broker_id not in calls.engine.metadata.snapshot.brokers:
            await calls.engine.metadata.refresh([], deadline=deadline)
        if broker_id in calls.engine.metadata.snapshot.brokers:
            try:
                return list((await calls.at_broker(broker_id, ask, deadline)).results)
            except BrokerIdNotRegisteredError:
                pass  # the broker went offline during the call
    left_s = max(deadline - time.monotonic(), 0.01)
    return list((await calls.call("DescribeConfigs", request, left_s, sees_own_writes=True)).results)


def _broker_of(resource: Any) -> int | None:
    """The id of the broker that must receive the request; None if any node can answer. For an invalid broker id the
    result is also None, and the server then refuses the request."""
    if resource.type != admin_pb2.CONFIG_RESOURCE_TYPE_BROKER or not (
        resource.name.isascii() and resource.name.isdigit() and len(resource.name) <= 10
    ):
        return None
    return int(resource.name)


def _op(value: ConfigValue) -> tuple[Any, str]:
    if value is None:
        return admin_pb2.AlterConfigOp.KIND_DELETE, ""
    if isinstance(value, AppendConfig):
        return admin_pb2.AlterConfigOp.KIND_APPEND, value.items
    if isinstance(value, SubtractConfig):
        return admin_pb2.AlterConfigOp.KIND_SUBTRACT, value.items
    return admin_pb2.AlterConfigOp.KIND_SET, str(value)


def _entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=_source(entry.source),
        read_only=entry.read_only,
        documentation=entry.documentation,
        type=admin_pb2.ConfigType.Name(entry.type).removeprefix("CONFIG_TYPE_").lower(),
        is_sensitive=entry.is_sensitive,
        allowed=entry.allowed,
        synonyms=tuple(ConfigSynonym(item.name, item.value, _source(item.source)) for item in entry.synonyms),
    )


def _source(number: Any) -> str:
    return str(admin_pb2.ConfigSource.Name(number)).removeprefix("CONFIG_SOURCE_").lower()


def _resource(resource: ConfigResource) -> Any:
    kind = _RESOURCE_TYPES.get(resource[0])
    if kind is None:
        raise InvalidArgumentError(f"configuration resource type {resource[0]!r}: must be 'topic' or 'broker'")
    return admin_pb2.ConfigResource(type=kind, name=str(resource[1]))


def _shown(resource: Any) -> str:
    """The name of a resource in error messages: ``topic orders``, ``broker 1``, ``all brokers``."""
    kind = _RESOURCE_NAMES.get(resource.type, "resource")
    return f"{kind} {resource.name}" if resource.name or kind != "broker" else "all brokers"
