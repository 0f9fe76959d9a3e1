"""Configuration: every key of every component, declared once.

    definition         keys, sets of keys, parsing of text, errors
    fields             fields of settings objects that take their values from keys
    topic_keys         TOPIC, and the server keys that set the defaults of topic keys
    client_keys        PRODUCER, CONSUMER, ADMIN
    node_keys          every node: identity, listeners, refused keys
    controller_keys    the cluster, the metadata quorum
    broker_keys        the broker, its logs, replication
    coordinator_keys   groups, offsets, transactions
    security_keys, kafka_keys, registry_keys, console_keys, metrics_keys, trace_keys
    server_keys        SERVER: all keys of a server's properties file, from the modules above except client_keys

docs/reference/configuration.md is generated from here. A new key needs one declaration, and one field (``from_key``) in
the settings object that uses the key.
"""

from .definition import (
    HEADRACE,
    INT_MAX,
    LONG_MAX,
    NAME_CHARACTERS_MAX,
    VALUE_CHARACTERS_SHOWN,
    ConfigDef,
    ConfigKey,
    Conflict,
    CrossCheck,
    Kind,
    Scope,
    Status,
    accepted,
    at_most,
    honoured,
    refused,
)
from .fields import fields_from, from_key, key_of

__all__ = [
    "HEADRACE", "INT_MAX", "LONG_MAX", "NAME_CHARACTERS_MAX", "VALUE_CHARACTERS_SHOWN",
    "ConfigDef", "ConfigKey", "Conflict", "CrossCheck", "Kind", "Scope", "Status",
    "accepted", "at_most", "fields_from", "from_key", "honoured", "key_of", "refused",
]  # fmt: skip
