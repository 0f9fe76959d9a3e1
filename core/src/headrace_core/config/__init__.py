"""Configuration: every key of every component, declared once.

    definition         what a key and the keys of a component are; text to typed values; errors
    fields             fields of settings objects that take their values from keys
    topic_keys         TOPIC, and the servers' names for its defaults
    client_keys        PRODUCER, CONSUMER, ADMIN
    node_keys          every node: who it is, where it listens, what it refuses
    controller_keys    the cluster, the metadata quorum
    broker_keys        the broker, its logs, replication
    coordinator_keys   groups, offsets, transactions
    server_keys        the keys of the four files before, together: SERVER

docs/reference/configuration.md is generated from here. A new key is one declaration; a settings object that wants it
gets one field (``from_key``).
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
