"""Configuration of topics and brokers: incremental changes (KIP-339), checked against the declared keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from headrace_core.config import ConfigDef, ConfigKey, Kind, Scope
from headrace_core.config.server_keys import SERVER
from headrace_core.config.topic_keys import TOPIC
from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import ConfigRecord, ConfigResource, ConfigResourceType, MetadataImage, MetadataRecord
from headrace_core.metadata.configs import (
    broker_topic_defaults,
    broker_values,
    parse_broker_id,
    topic_config,
    topic_value,
)

from . import elections, internal_topics
from .decision import Decision, View
from .requests import AlterConfigs, AlterResource, ConfigOp, ConfigResult, OpKind

#: Maximum length of a configuration value: a longer value is an attack or a mistake, and every node keeps every value
#: in memory.
VALUE_CHARACTERS_MAX = 10_000
#: Maximum bytes of settings in one request, because the request becomes one entry of the metadata log (as in Kafka).
SETTINGS_BYTES_MAX = 8 << 20


def topic_entries(given: Mapping[str, str], image: MetadataImage) -> dict[str, str]:
    """Return the configuration entries of a new topic: each key with its value as canonical text. Raises
    InvalidConfigError for an invalid entry, and for entries that contradict each other or the brokers' dynamic
    defaults."""
    if not given:
        return {}
    for name, text in given.items():
        _check_length(name, text)
    values = TOPIC.parse(given, defaults=False)
    TOPIC.check_together(TOPIC.parse(broker_topic_defaults(image, -1, {})) | values, touched=values)
    return {name: TOPIC.keys[name].format(value) for name, value in values.items()}


def alter(view: View, request: AlterConfigs) -> Decision:
    """Returns one ConfigResult for each resource; a resource is altered completely or not at all."""
    records: list[MetadataRecord] = []
    results = []
    counts = Counter(item.resource for item in request.resources)
    size = 0
    for item in request.resources:
        try:
            if counts[item.resource] > 1:
                raise InvalidRequestError(
                    f"{_shown(item.resource)} is named {counts[item.resource]} times in the request"
                )
            made = _alter_one(view.image, item)
            if len(records) + len(made) > view.settings.metadata_max_records_per_request:
                raise PolicyViolationError("the request alters too many keys; split it into several requests")
            size = add_size(size, made)
        except HeadraceError as error:
            results.append(ConfigResult(item.resource, error))
        else:
            records += made
            results.append(ConfigResult(item.resource))
    # A lower min.insync.replicas may make a partition's ISR large enough to commit records again. The change of
    # min.insync.replicas also empties the partition's ELR, because the leader then commits records that members of the
    # ELR lack.
    records += elections.after_min_insync_changed(view, records)
    return Decision(() if request.validate_only else tuple(records), tuple(results))


def add_size(before: int, made: Iterable[MetadataRecord]) -> int:
    """Bytes of the settings that the request has set so far, including ``made``. PolicyViolationError: too many."""
    size = before + sum(
        len(each.resource_name) + len(each.key) + len(each.value or "")
        for each in made
        if isinstance(each, ConfigRecord)
    )
    if size > SETTINGS_BYTES_MAX:
        raise PolicyViolationError(
            f"the request sets more than {SETTINGS_BYTES_MAX >> 20} MiB of configuration; split it into several "
            "requests"
        )
    return size


def check_resource(image: MetadataImage, resource: ConfigResource) -> None:
    """Raise UnknownTopicOrPartitionError or InvalidRequestError unless the configured topic or broker exists."""
    kind, name = resource
    if kind is ConfigResourceType.TOPIC:
        if name not in image.topic_ids:
            raise UnknownTopicOrPartitionError(f"topic {name[:249]!r} does not exist")
    elif name and parse_broker_id(name) not in image.brokers:
        raise InvalidRequestError(f"broker {name} is not registered")


def _alter_one(image: MetadataImage, item: AlterResource) -> list[MetadataRecord]:
    check_resource(image, item.resource)
    kind, name = item.resource
    declared = TOPIC if kind is ConfigResourceType.TOPIC else SERVER
    own = image.config(kind, name)
    records: list[MetadataRecord] = []
    changes: dict[str, str | None] = {}
    for op in item.ops:
        gone = op.kind is OpKind.DELETE
        # A configuration entry can always be removed, even if its value is invalid now.
        key = None if gone and op.name in own else _altered_key(declared, op, item.resource)
        key_name = op.name if key is None else key.name
        if key_name in changes:
            raise InvalidRequestError(f"{_shown(item.resource)}: {key_name} is altered twice in the request")
        changes[key_name] = None if gone or key is None else _new_value(image, item.resource, key, op)
    if kind is ConfigResourceType.TOPIC:
        internal_topics.check_policy(name, changes)
    for changed, value in changes.items():
        if value != own.get(changed):
            records.append(ConfigRecord(int(kind), name, changed, value))
    _check_together(image, item.resource, changes)
    return records


def _check_together(image: MetadataImage, resource: ConfigResource, changes: Mapping[str, str | None]) -> None:
    """Raise InvalidConfigError if the settings after the change contradict each other. The controller does not know the
    brokers' properties files."""
    kind, name = resource
    records = [ConfigRecord(int(kind), name, key, value) for key, value in changes.items()]
    after = image.apply(records, image.next_offset, image.epoch) if records else image
    if kind is ConfigResourceType.TOPIC:
        TOPIC.check_together(topic_config(after, name), touched=changes)
        return
    # Check the settings that all brokers share against the settings of each single broker.
    own = (int(broker) for of, broker in after.configs if of is ConfigResourceType.BROKER and broker)
    for broker_id in (int(name),) if name else (-1, *own):
        SERVER.check_together(broker_values(after, broker_id, {}), touched=changes)


def _altered_key(declared: ConfigDef, op: ConfigOp, resource: ConfigResource) -> ConfigKey:
    key = declared.key(op.name)
    if key.refusal is not None and op.kind is not OpKind.DELETE:
        key.parse(op.value)  # raise an error, unless the key already has this value
    if not key.dynamic:
        raise InvalidConfigError(
            f"{key.name} cannot be altered while brokers run; set it in their properties files and restart them"
        )
    if key.name == "min.insync.replicas" and resource[0] is ConfigResourceType.BROKER and resource[1]:
        raise InvalidConfigError(
            "min.insync.replicas must be the same on all brokers, because otherwise an eligible leader could lack "
            "records (KIP-966); set the key for all brokers, or for a topic"
        )
    if key.scope is Scope.PER_BROKER and resource == (ConfigResourceType.BROKER, ""):
        raise InvalidConfigError(f"{key.name} can be set for one broker, not for all; name the broker")
    if op.kind in (OpKind.APPEND, OpKind.SUBTRACT) and key.kind is not Kind.LIST:
        raise InvalidConfigError(f"{key.name} is not a list, and APPEND and SUBTRACT need a list: use SET or DELETE")
    return key


def _new_value(image: MetadataImage, resource: ConfigResource, key: ConfigKey, op: ConfigOp) -> str:
    _check_length(key.name, op.value)
    value = key.parse(op.value) if op.kind is OpKind.SET else _changed_list(image, resource, key, op)
    text = key.format(key.parse(value))
    _check_length(key.name, text)
    return text


def _check_length(name: str, text: str) -> None:
    if len(text) > VALUE_CHARACTERS_MAX:
        raise InvalidConfigError(
            f"{name[:100]}: a value of {len(text)} characters, at most {VALUE_CHARACTERS_MAX} are allowed; "
            "shorten the value"
        )


def _changed_list(image: MetadataImage, resource: ConfigResource, key: ConfigKey, op: ConfigOp) -> list[str]:
    """The value of a list key after appending to the current value or subtracting from it; the current value may be a
    default."""
    kind, name = resource
    if kind is ConfigResourceType.TOPIC:
        now = list(topic_value(image, name, key.name))
    else:
        now = list(broker_values(image, int(name) if name else -1, {})[key.name])
    items = _items(op.value)
    if op.kind is OpKind.APPEND:
        return now + [item for item in items if item not in now]
    return [item for item in now if item not in items]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _shown(resource: ConfigResource) -> str:
    kind, name = resource
    if kind is ConfigResourceType.BROKER:
        return f"broker {name}" if name else "the default of all brokers"
    return f"topic {name}"
