"""Topics: CreateTopics, DeleteTopics, CreatePartitions. The broker answers once it has applied the change to its
metadata, so the client's next Metadata request shows the change."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    ThrottlingQuotaExceededError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.membership.config_messages import config_entries
from headrace_core.metadata import ConfigRecord, ConfigResourceType
from headrace_core.metadata.configs import describe_topic
from headrace_core.rpc.turns import DESCRIPTION_ITEMS, Turns
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..access import ALTER, CLUSTER, CLUSTER_NAME, CREATE, DELETE, DESCRIBE, DESCRIBE_CONFIGS, TOPIC
from ..call import Call
from ..errors import NONE, kafkas, number
from ..wire.schema import NO_UUID, Message
from .configs import DESCRIBED_AT_ONCE, described_entries

Fields = dict[str, Any]

_CONFIGS_VERSION = 5  #: The version of CreateTopics whose answers have the topics' configurations (KIP-525).
_BY_ID_VERSION = 6  #: The version of DeleteTopics that names topics by id (KIP-516).
_NOT_ANSWERED = -1
_RETRY_IN = re.compile(r"retry in (\d{1,9}) ms")
_RETRY_MS = 1_000  #: Milliseconds that a client over its quota must wait if the node's error does not say how long.
#: Fields of a created topic in the answer to a client that is not authorized to describe the topic's configuration
#: (KIP-525).
_UNDESCRIBED: Fields = {
    "topic_config_error_code": TopicAuthorizationFailedError.number,
    "num_partitions": _NOT_ANSWERED,
    "replication_factor": _NOT_ANSWERED,
    "configs": None,
}


async def change(
    call: Call, method: str, request: Any, timeout_ms: int, stub: Callable[..., Any] = admin_pb2_grpc.AdminStub
) -> Any:
    """Send a change to the controllers by any broker, and wait until this broker has applied it. ``timeout_ms``: the
    client's timeout; 0 and negative numbers mean the broker's own."""
    timeout_ms = timeout_ms if timeout_ms > 0 else call.settings.request_timeout_ms
    request.timeout_ms = timeout_ms
    answer = await call.own(stub, method, request, timeout_ms)
    if answer.metadata_offset:
        await call.applied(answer.metadata_offset, timeout_ms)
    for found in getattr(answer, "results", ()):
        error = getattr(found, "error", None)
        if error is not None and error.code == ThrottlingQuotaExceededError.number:
            call.throttle_ms = max(call.throttle_ms, _wait_of(error.message))
    return answer


def _wait_of(text: str) -> int:
    """The milliseconds that a client over its controller_mutation_rate must wait (KIP-599). The error of the node has
    no field for this time, so the function reads the time from the text of the error's message."""
    found = _RETRY_IN.search(text)
    return int(found[1]) if found is not None else _RETRY_MS


async def create_topics(call: Call, request: Message) -> Fields:
    results: dict[str, Fields] = {}
    asked = admin_pb2.CreateTopicsRequest(validate_only=request.validate_only)
    names = Counter(topic.name for topic in request.topics)
    may_create_all = call.sees(CREATE, CLUSTER, CLUSTER_NAME)
    for topic in request.topics:
        results[topic.name] = {"name": topic.name}
        if names[topic.name] > 1:
            results[topic.name] |= _failed(InvalidRequestError(f"topic {topic.name!r} is named twice in the request"))
            continue
        if not may_create_all and not call.allows(CREATE, TOPIC, topic.name):
            results[topic.name] |= _failed(call.refusal(CREATE, TOPIC, topic.name))
            continue
        refused = _unsendable(topic)
        if refused is not None:
            results[topic.name] |= _failed(refused)
            continue
        new = asked.topics.add(
            name=topic.name,
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            configs={config.name: config.value for config in topic.configs},
        )
        for assignment in topic.assignments:
            new.assignments.add(partition=assignment.partition_index, broker_ids=assignment.broker_ids)
    created: list[str] = []
    if asked.topics:
        try:
            answer = await change(call, "CreateTopics", asked, request.timeout)
        except HeadraceError as error:
            for new in asked.topics:
                results[new.name] |= _failed(error)
        else:
            for found in answer.results:
                results[found.name] |= {
                    "topic_id": found.topic_id or NO_UUID,
                    "error_code": kafkas(found.error.code),
                    "error_message": found.error.message if found.error.code else None,
                    "num_partitions": _NOT_ANSWERED if found.error.code else found.partitions,
                    "replication_factor": _NOT_ANSWERED if found.error.code else found.replication_factor,
                    "configs": [],
                }
                if not found.error.code:
                    created.append(found.name)
    if call.version >= _CONFIGS_VERSION:
        for name, fields in results.items():
            if not fields.get("error_code") and not call.allows(DESCRIBE_CONFIGS, TOPIC, name):
                fields |= _UNDESCRIBED
        shown = [name for name in created if not results[name].get("topic_config_error_code")]
        if request.validate_only:
            found_configs = await _configs_checked(call, shown, {new.name: new.configs for new in asked.topics})
        else:
            found_configs = await _configs_of(call, shown)
        for name, fields in found_configs.items():
            results[name] |= fields
    return {"topics": list(results.values())}


def _unsendable(topic: Message) -> HeadraceError | None:
    """Return the error for a new topic that a gRPC request to the controllers cannot describe; None if it can. In the
    gRPC request, 0 partitions or replicas mean the default (-1 in Kafka's protocol), and no value is null."""
    for config in topic.configs:
        if config.value is None:
            return InvalidConfigError(f"{config.name}: the value is null; leave the key out for its default")
    if topic.assignments and 0 in (topic.num_partitions, topic.replication_factor):
        return InvalidRequestError("with assignments, num_partitions and replication_factor must be -1")
    if topic.num_partitions == 0:
        return InvalidPartitionsError("num_partitions is 0: must be at least 1, or -1 for the default")
    if topic.replication_factor == 0:
        return InvalidReplicationFactorError("replication_factor is 0: must be at least 1, or -1 for the default")
    return None


async def _configs_of(call: Call, names: Sequence[str]) -> dict[str, Fields]:
    """The fields of each new topic with its configuration, or with the error that prevented reading it. Equal
    configurations are one object."""
    fields: dict[str, Fields] = {}
    described: dict[bytes, list[Fields]] = {}
    for at in range(0, len(names), DESCRIBED_AT_ONCE):
        some = names[at : at + DESCRIBED_AT_ONCE]
        asked = admin_pb2.DescribeConfigsRequest(
            resources=[admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=name) for name in some]
        )
        try:
            answer = await call.own(
                admin_pb2_grpc.AdminStub, "DescribeConfigs", asked, call.settings.request_timeout_ms
            )
        except HeadraceError as error:
            fields |= {name: {"topic_config_error_code": number(error)} for name in some}
            continue
        for name, found in zip(some, answer.results, strict=True):
            if found.error.code:
                fields[name] = {"topic_config_error_code": kafkas(found.error.code)}
                continue
            found.resource.ClearField("name")
            settings = found.SerializeToString()
            if settings not in described:
                described[settings] = _created_entries(found)
            fields[name] = {"configs": described[settings]}
    return fields


async def _configs_checked(
    call: Call, names: Sequence[str], given: Mapping[str, Mapping[str, str]]
) -> dict[str, Fields]:
    """The fields of each topic with the configuration that it would have after a request that only checks it, by the
    cluster's dynamic settings. Equal configurations are one object."""
    fields: dict[str, Fields] = {}
    described: dict[frozenset[tuple[str, str]], list[Fields]] = {}
    async with Turns(len(names) * DESCRIPTION_ITEMS) as turns:
        for name in names:
            if turns.is_over():
                await turns.next()
            settings = frozenset(given[name].items())
            if settings not in described:
                described[settings] = _checked_entries(call, name, given[name])
            fields[name] = {"configs": described[settings]}
    return fields


def _checked_entries(call: Call, name: str, given: Mapping[str, str]) -> list[Fields]:
    image = call.cluster.image
    records = [ConfigRecord(int(ConfigResourceType.TOPIC), name, key, value) for key, value in given.items()]
    if records:
        image = image.apply(records, image.next_offset, image.epoch)
    resource = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name=name)
    entries = config_entries(describe_topic(image, name), include_synonyms=False)
    return _created_entries(admin_pb2.DescribeConfigsResult(resource=resource, entries=entries))


def _created_entries(found: Any) -> list[Fields]:
    """The entries of a new topic's configuration in an answer of CreateTopics."""
    return [
        {key: entry[key] for key in ("name", "value", "read_only", "config_source", "is_sensitive")}
        for entry in described_entries(found, None, synonyms=False, documentation=False)
    ]


async def delete_topics(call: Call, request: Message) -> Fields:
    by_id = call.version >= _BY_ID_VERSION
    wanted: list[tuple[str | None, bytes]] = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if by_id
        else [(name, NO_UUID) for name in request.topic_names]
    )
    may_delete_all = call.sees(DELETE, CLUSTER, CLUSTER_NAME)
    responses: list[Fields] = []
    named: dict[str, list[Fields]] = {}
    twice = InvalidRequestError("the request names the topic twice; name each topic once")
    counts = Counter(wanted)
    for name, topic_id in counts:
        fields: Fields = {"name": name, "topic_id": topic_id, "error_code": NONE}
        responses.append(fields)
        if (name is None) == (topic_id == NO_UUID):
            fields |= _failed(InvalidRequestError("send a topic's name or its topic id, and not both"))
            continue
        if counts[name, topic_id] > 1:
            fields |= _failed(twice)
            continue
        if name is None:
            found = call.cluster.topic_by_id(topic_id)
            if found is None:
                fields |= _failed(UnknownTopicIdError("no topic has the requested topic id"))
                continue
            name = found.name
            if not may_delete_all and not call.allows(DELETE, TOPIC, name):
                if call.allows(DESCRIBE, TOPIC, name):
                    fields["name"] = name
                fields |= _failed(call.refusal(DELETE, TOPIC, name))
                continue
            fields["name"] = name
        elif not may_delete_all and not call.allows(DELETE, TOPIC, name):
            error = call.refusal(DELETE, TOPIC, name)
            if call.cluster.topic(name) is None and call.sees(DESCRIBE, TOPIC, name):
                error = UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
            fields |= _failed(error)
            continue
        else:
            image = call.cluster.topic(name)
            fields["topic_id"] = NO_UUID if image is None else image.topic_id
        named.setdefault(name, []).append(fields)
    for name in [name for name, each in named.items() if len(each) > 1]:  # by its name and by its id
        for fields in named.pop(name):
            fields |= _failed(twice)
    if named:
        try:
            answer = await change(
                call,
                "DeleteTopics",
                admin_pb2.DeleteTopicsRequest(topics=list(named)),
                request.timeout,
            )
        except HeadraceError as error:
            for (fields,) in named.values():
                fields |= _failed(error)
        else:
            for result in answer.results:
                (fields,) = named[result.name]
                fields["error_code"] = kafkas(result.error.code)
                fields["error_message"] = result.error.message if result.error.code else None
    return {"responses": responses}


async def create_partitions(call: Call, request: Message) -> Fields:
    asked = admin_pb2.CreatePartitionsRequest(validate_only=request.validate_only)
    hidden = {topic.name for topic in request.topics if not call.allows(ALTER, TOPIC, topic.name)}
    refused = [{"name": name, **_failed(call.refusal(ALTER, TOPIC, name))} for name in sorted(hidden)]
    wanted = [topic for topic in request.topics if topic.name not in hidden]
    if not wanted:
        return {"results": refused}
    for topic in wanted:
        new = asked.topics.add(topic=topic.name, total_count=topic.count)
        image = call.cluster.topic(topic.name)
        first = 0 if image is None else len(image.partitions)
        for at, assignment in enumerate(topic.assignments or ()):
            new.assignments.add(partition=first + at, broker_ids=assignment.broker_ids)
    try:
        answer = await change(call, "CreatePartitions", asked, request.timeout)
    except HeadraceError as error:
        return {"results": [{"name": topic.name, **_failed(error)} for topic in wanted] + refused}
    return {
        "results": [
            {
                "name": found.topic,
                "error_code": kafkas(found.error.code),
                "error_message": found.error.message if found.error.code else None,
            }
            for found in answer.results
        ]
        + refused
    }


def _failed(error: HeadraceError) -> Fields:
    return {"error_code": number(error), "error_message": str(error)}
