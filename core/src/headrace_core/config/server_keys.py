"""All configuration keys of a server's properties file, for every role.

As with Kafka, one file may configure a controller and a broker. Each role reads its part of ``SERVER`` and ignores the
keys of other roles, but every role refuses unknown keys. Names, defaults and ranges are Kafka's (4.x), except for keys
with the source "Headrace". A key whose scope is not read-only can be changed while brokers run (``headrace configs
alter``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import (
    broker_keys,
    console_keys,
    controller_keys,
    coordinator_keys,
    kafka_keys,
    metrics_keys,
    node_keys,
    registry_keys,
    security_keys,
    trace_keys,
)
from .definition import INT_MAX, ConfigDef, ConfigKey, Conflict, Kind, Scope, at_most, honoured
from .security_keys import PER_LISTENER, PER_LISTENER_PREFIXES
from .topic_keys import COARSE_DEFAULT_KEYS, TOPIC, TOPIC_DEFAULT_KEYS, server_hints


def _topic_default(topic_key: str, name: str) -> ConfigKey:
    key = TOPIC.keys[topic_key]
    doc = f"The value of {topic_key} for topics without a value of their own. {key.doc}"
    return dataclasses.replace(key, name=name, server_key=None, scope=Scope.CLUSTER_WIDE, doc=doc)


_COARSE = [
    honoured(
        name,
        None,
        f"Sets {target} in {name.rpartition('.')[2]}. If both keys are set, {target} has priority.",
        kind=Kind.INT,
        low={"log.roll.hours": 1, "log.roll.jitter.hours": 0}.get(name, -1),
        high=INT_MAX,
    )
    for name, (target, _) in COARSE_DEFAULT_KEYS.items()
]

_TOPIC_DEFAULTS = [_topic_default(topic_key, name) for topic_key, name in TOPIC_DEFAULT_KEYS.items()]

#: Every key of a server's properties file, in the groups of docs/reference/configuration.md.
SERVER_GROUPS: dict[str, tuple[ConfigKey, ...]] = {
    "The node": node_keys.NODE,
    "The cluster": controller_keys.CLUSTER,
    "The broker": broker_keys.BROKER,
    "Upkeep of the logs": broker_keys.UPKEEP,
    "Defaults of topics": (*_TOPIC_DEFAULTS, *_COARSE),
    "Network and threads": node_keys.NETWORK,
    "Replication": broker_keys.REPLICATION,
    "The controllers": controller_keys.QUORUM,
    "Log files": broker_keys.LOGS,
    "Offsets": coordinator_keys.OFFSETS,
    "Groups": coordinator_keys.GROUPS,
    "Transactions": coordinator_keys.TRANSACTIONS,
    "Kafka's clients": kafka_keys.KAFKA,
    "The schema registry": registry_keys.REGISTRY,
    "The console": console_keys.CONSOLE,
    "Tiered storage": broker_keys.TIERED,
    "Metrics": (*metrics_keys.SERVED, *node_keys.METRICS),
    "Traces": trace_keys.TRACES,
    "Security of listeners": security_keys.LISTENERS,
    "TLS": security_keys.TLS,
    "SASL": security_keys.SASL,
    "Delegation tokens": security_keys.DELEGATION_TOKENS,
    "Access control": security_keys.ACCESS,
    "Quotas": security_keys.QUOTAS,
    "What is refused": node_keys.REFUSED,
}

CLEANER_BUFFER_BYTES_MIN = 1_048_576  #: Bytes of memory that a cleaner thread needs to store keys (as in Kafka).


def _room_for_cleaners(values: Mapping[str, Any]) -> Iterator[Conflict]:
    buffer, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
    least = values[threads] * CLEANER_BUFFER_BYTES_MIN
    if values[buffer] < least:
        message = (
            f"{buffer}={values[buffer]} is too little for {threads}={values[threads]}: each thread needs 1 MiB, "
            f"{least} in all"
        )
        yield Conflict((buffer, threads), message)


_heartbeat_below_session = at_most(
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "a broker would be fenced between two heartbeats",
    strictly=True,
)


def _heartbeats_in_time(values: Mapping[str, Any]) -> Iterable[Conflict]:
    """Check that a node's heartbeat interval is below its session timeout. A controller uses only the session timeout,
    so its configuration is not checked."""
    return () if values["process.roles"] == ["controller"] else _heartbeat_below_session(values)


SERVER = ConfigDef(
    [key for group in SERVER_GROUPS.values() for key in group],
    where="server",
    hints=server_hints(),
    checks=(
        _heartbeats_in_time,
        at_most("message.max.bytes", "socket.request.max.bytes", "such a batch would never arrive"),
        at_most("replica.fetch.wait.max.ms", "replica.lag.time.max.ms", "followers of idle partitions would lag"),
        at_most("replica.fetch.wait.max.ms", "replica.socket.timeout.ms", "a follower would give up its leader"),
        at_most(
            "log.cleaner.min.compaction.lag.ms",
            "log.cleaner.max.compaction.lag.ms",
            "a record would have to be kept and deleted at the same time",
        ),
        _room_for_cleaners,
        *coordinator_keys.CHECKS,
    ),
)


def effective(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the keys in milliseconds set from the keys in coarser units (hours, minutes) of ``given``.
    A key that ``given`` sets in milliseconds has priority."""
    result = dict(values)
    fixed = set(given)
    for coarse, (fine, factor) in COARSE_DEFAULT_KEYS.items():  # keys with finer units come first
        value = given.get(coarse)
        if isinstance(value, int) and fine not in fixed:
            result[fine] = value * factor if value >= 0 else value
            fixed.add(fine)
    return result


def listener_values(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return typed values by key; values of ``listener.name.NAME.`` keys replace the values of the general keys. Keys
    of single mechanisms (``listener.name.client.plain.sasl.jaas.config``) are ``plain.sasl.jaas.config`` in the result.
    Raises InvalidConfigError."""
    prefix = f"listener.name.{name}."
    result = dict(values)
    for key, raw in values.items():
        if key.startswith(prefix):
            own = key[len(prefix) :]
            is_known = own in PER_LISTENER or own.startswith(PER_LISTENER_PREFIXES)
            result[own] = SERVER.key(own).parse(raw) if is_known else raw
    return result


def topic_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the topic keys for which a server's settings (typed, without defaults) set a default.

    For example, ``{"log.retention.hours": 1}`` gives ``{"retention.ms": 3600000}``.
    """
    named = effective(given, given)
    return {topic_key: named[name] for topic_key, name in TOPIC_DEFAULT_KEYS.items() if name in named}
