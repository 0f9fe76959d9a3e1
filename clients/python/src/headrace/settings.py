"""Every configuration key of the clients: Kafka's names, honoured, accepted with a note, or refused with the reason.

A client takes a dict with dotted names, snake_case keywords, or both; ``HEADRACE_BOOTSTRAP_SERVERS`` stands in for
``bootstrap.servers``. Defaults that differ from Kafka's say so where they are declared.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.config import HEADRACE, INT_MAX, LONG_MAX, ConfigDef, ConfigKey, Kind
from headrace_core.errors import InvalidConfigError, UnsupportedVersionError

logger = logging.getLogger("headrace")
logger.addHandler(logging.NullHandler())  # here, which every client imports; the package's own file imports nothing

DEFAULT_BOOTSTRAP = "127.0.0.1:9095"
BOOTSTRAP_VARIABLE = "HEADRACE_BOOTSTRAP_SERVERS"

_COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


_METRICS = "has no effect: ask the client itself (metrics())"
_SOCKETS = "has no effect: gRPC and the operating system size the buffers of connections"
_CONNECTING = "has no effect: gRPC connects by itself; bootstrap.timeout.ms and request.timeout.ms bound the waiting"
_PROVIDERS = "values are taken as they stand, ${...} is not replaced; put the value into the dict"
_JAVA = "a class of Java's cannot be loaded here; leave it out"
_TLS = "TLS is not built yet: reach the cluster over loopback or a tunnel, and leave this key out"
_SASL = "authentication is not built yet: the servers ask nobody who they are; leave this key out"


def _key(name: str, kind: Kind, default: Any, doc: str, **more: Any) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc, **more)


_COMMON = (
    _key("bootstrap.servers", Kind.LIST, None, "host:port of some nodes, to find the cluster by."),
    _key("client.id", Kind.STRING, "headrace", "A name for this client, in logs and metrics."),
    _key("client.rack", Kind.STRING, "", "The rack or zone of this client."),
    _key(
        "client.dns.lookup",
        Kind.STRING,
        "use_all_dns_ips",
        "How names are resolved.",
        choices=("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        note="gRPC resolves names and tries every address of a name, as use_all_dns_ips does",
    ),
    _key(
        "bootstrap.timeout.ms",
        Kind.INT,
        10_000,
        "How long the bootstrap servers are tried before BootstrapError.",
        low=0,
        source=HEADRACE,
    ),
    _key("request.timeout.ms", Kind.INT, 30_000, "How long one request may go unanswered.", low=1),
    _key("default.api.timeout.ms", Kind.INT, 60_000, "How long one call of the client may take in all.", low=1),
    _key("retry.backoff.ms", Kind.LONG, 100, "The pause before the first retry.", low=0),
    _key("retry.backoff.max.ms", Kind.LONG, 1_000, "The longest pause between retries; it doubles each time.", low=0),
    _key(
        "reconnect.backoff.ms",
        Kind.LONG,
        50,
        "The pause before a connection is tried again.",
        low=0,
        note="gRPC reconnects by itself, after 50 ms at first",
    ),
    _key(
        "reconnect.backoff.max.ms",
        Kind.LONG,
        1_000,
        "The longest pause before a connection is tried again.",
        low=0,
        note="gRPC reconnects by itself, after 1 s at most",
    ),
    _key(
        "connections.max.idle.ms",
        Kind.LONG,
        540_000,
        "When an idle connection is closed.",
        note="connections stay open: each carries one stream",
    ),
    _key("metadata.max.age.ms", Kind.LONG, 300_000, "How old the metadata may become before it is read again.", low=1),
    _key(
        "security.protocol",
        Kind.STRING,
        "PLAINTEXT",
        "How to talk to the servers.",
        refusal="only PLAINTEXT is built so far (TLS and SASL come later)",
    ),
    _key(
        "sasl.mechanism",
        Kind.STRING,
        None,
        "How to authenticate.",
        refusal="SASL is not built yet",
    ),
    _key(
        "allow.auto.create.topics",
        Kind.BOOLEAN,
        True,
        "Create a topic that is named and does not exist (the brokers must allow it too).",
    ),
    _key("metrics.sample.window.ms", Kind.LONG, 30_000, "The length of one window of a rate.", low=100),
    _key("metrics.num.samples", Kind.INT, 2, "How many windows a rate looks at.", low=1),
    _key("metrics.recording.level", Kind.STRING, "INFO", "How much is measured.", note=_METRICS),
    _key("metric.reporters", Kind.LIST, [], "Java classes that report metrics.", note=_METRICS),
    _key("auto.include.jmx.reporter", Kind.BOOLEAN, True, "Report by JMX (until Kafka 4).", note=_METRICS),
    _key(
        "enable.metrics.push",
        Kind.BOOLEAN,
        True,
        "Send metrics to the brokers.",
        note="has no effect: a client sends no metrics",
        source="KIP-714",
    ),
    _key(
        "metadata.recovery.strategy",
        Kind.STRING,
        "rebootstrap",
        "What to do when no known broker answers.",
        note="the bootstrap servers are tried again",
        source="KIP-899",
    ),
    _key(
        "metadata.recovery.rebootstrap.trigger.ms",
        Kind.LONG,
        300_000,
        "When that is done.",
        low=0,
        note="it is done at once",
        source="KIP-1102",
    ),
    _key("receive.buffer.bytes", Kind.INT, -1, "SO_RCVBUF; -1: the system's.", low=-1, note=_SOCKETS),
    _key("send.buffer.bytes", Kind.INT, -1, "SO_SNDBUF; -1: the system's.", low=-1, note=_SOCKETS),
    _key("socket.connection.setup.timeout.ms", Kind.LONG, 10_000, "How long connecting may take.", note=_CONNECTING),
    _key(
        "socket.connection.setup.timeout.max.ms",
        Kind.LONG,
        30_000,
        "How long connecting may take after several failures.",
        note=_CONNECTING,
    ),
    _key(
        "config.providers",
        Kind.LIST,
        [],
        "Where ${...} in values is looked up.",
        refusal=_PROVIDERS,
        source="KIP-297",
    ),
    _key("config.providers.*", Kind.PASSWORD, None, "Settings of such a provider.", refusal=_PROVIDERS),
    _key("security.providers", Kind.STRING, None, "Java classes with security algorithms.", refusal=_JAVA),
    _key("ssl.*", Kind.PASSWORD, None, "TLS: certificates, protocols, ciphers.", refusal=_TLS),
    _key("sasl.*", Kind.PASSWORD, None, "SASL: logins, tokens.", refusal=_SASL),
)

PRODUCER = ConfigDef(
    (
        *_COMMON,
        _key("acks", Kind.STRING, "all", "Who must hold a record: all (-1), 1, 0.", choices=("all", "-1", "1", "0")),
        _key(
            "linger.ms",
            Kind.DOUBLE,
            0,
            "How long a record may wait for company. 0 (Kafka 4: 5): at once when nothing is on its way to the broker; "
            "while a request is under way records gather, until its answer comes, a batch is full or 5 ms are over.",
            low=0,
            high=LONG_MAX,
        ),
        _key(
            "batch.size",
            Kind.INT,
            1_048_576,
            "The most uncompressed bytes of a batch (Kafka: 16384). A message costs the same whatever it carries, and "
            "a batch's memory grows with its content, so a large limit costs nothing when it is idle.",
            low=0,
        ),
        _key("buffer.memory", Kind.LONG, 33_554_432, "The most bytes of records not yet acknowledged.", low=1),
        _key("max.block.ms", Kind.LONG, 60_000, "How long a send may wait for buffer space or metadata.", low=0),
        _key("max.request.size", Kind.INT, 1_048_576, "The largest request, and so the largest record.", low=1),
        _key(
            "max.in.flight.requests.per.connection",
            Kind.INT,
            5,
            "How many requests may be unanswered at each broker.",
            low=1,
        ),
        _key("delivery.timeout.ms", Kind.INT, 120_000, "From send to the outcome, retries included.", low=1),
        _key("retries", Kind.INT, INT_MAX, "How often a batch is tried again within delivery.timeout.ms.", low=0),
        _key("compression.type", Kind.STRING, "none", "How batches are compressed.", choices=_COMPRESSIONS),
        _key("compression.gzip.level", Kind.INT, -1, "Level of gzip; -1 is its default.", low=-1, high=9),
        _key("compression.lz4.level", Kind.INT, 9, "Level of lz4.", low=1, high=17),
        _key("compression.zstd.level", Kind.INT, 3, "Level of zstd.", low=-131072, high=22),
        _key(
            "enable.idempotence",
            Kind.BOOLEAN,
            True,
            "No duplicates and no other order by retries. Needs acks=all, retries above 0 and at most 5 requests in "
            "flight; where one of these is set otherwise and this key is not, it is off.",
            source="KIP-98",
        ),
        _key(
            "transactional.id",
            Kind.STRING,
            None,
            "The identity of a transactional producer.",
            note="any value is an error until transactions are built",
            source="KIP-98",
        ),
        _key(
            "transaction.timeout.ms",
            Kind.INT,
            60_000,
            "How long a transaction may stay open.",
            note="has no effect: transactions are not built yet",
        ),
        _key("key.serializer", Kind.CLASS, None, "Callable (topic, key) -> bytes, or an object with serialize()."),
        _key("value.serializer", Kind.CLASS, None, "Callable (topic, value) -> bytes, or an object with serialize()."),
        _key(
            "partitioner.class", Kind.CLASS, None, "A class, object or callable (topic, key, value, count) -> number."
        ),
        _key(
            "partitioner.ignore.keys",
            Kind.BOOLEAN,
            False,
            "Spread records with keys like those without.",
            source="KIP-794",
        ),
        _key(
            "partitioner.adaptive.partitioning.enable",
            Kind.BOOLEAN,
            True,
            "Give records without a key to partitions whose queue is short.",
            source="KIP-794",
        ),
        _key(
            "partitioner.availability.timeout.ms",
            Kind.LONG,
            0,
            "When a partition that does not move counts as unavailable.",
            low=0,
            source="KIP-794",
            note="a partition without a leader, or with a longer queue, already gets no records without a key",
        ),
        _key(
            "interceptor.classes",
            Kind.LIST,
            [],
            "Classes that see each record before it is sent.",
            refusal="interceptors are not supported; use the serializers, or on_delivery",
        ),
        _key(
            "transaction.two.phase.commit.enable",
            Kind.BOOLEAN,
            False,
            "Let somebody else decide about a prepared transaction.",
            refusal="transactions are not built yet; leave it out",
            source="KIP-939",
        ),
        _key(
            "metadata.max.idle.ms",
            Kind.LONG,
            300_000,
            "When the metadata of a topic that is not written to is forgotten.",
            low=5_000,
            note="a topic's metadata is kept until the producer is closed",
        ),
    ),
    where="producer",
)

CONSUMER = ConfigDef(
    (
        *_COMMON,
        _key(
            "group.id", Kind.STRING, None, "The consumer group: who shares work, and commits offsets, under this name."
        ),
        _key(
            "group.instance.id",
            Kind.STRING,
            None,
            "A static member's name: a restart within the session's time-out moves no partitions.",
            source="KIP-345",
        ),
        _key(
            "group.protocol",
            Kind.STRING,
            "consumer",
            "The group protocol.",
            choices=("consumer", "classic"),
            note="there is one, KIP-848's; both values mean it",
        ),
        _key(
            "group.remote.assignor",
            Kind.STRING,
            None,
            "The server-side assignor: uniform, range or sticky; the group's, when most members name none.",
        ),
        _key(
            "partition.assignment.strategy",
            Kind.LIST,
            [],
            "Client-side assignors.",
            note="the server assigns (group.remote.assignor)",
        ),
        _key(
            "auto.offset.reset",
            Kind.STRING,
            "latest",
            "Where to begin when there is no position, or it is out of range.",
            choices=("earliest", "latest", "none"),
        ),
        _key(
            "enable.auto.commit",
            Kind.BOOLEAN,
            True,
            "A subscribed consumer commits the positions of what was handed out and come back from, by itself.",
        ),
        _key(
            "auto.commit.interval.ms",
            Kind.INT,
            5_000,
            "How often positions are committed by itself; also when partitions go, and at close.",
            low=0,
        ),
        _key(
            "isolation.level",
            Kind.STRING,
            "read_uncommitted",
            "Which records may be read.",
            choices=("read_uncommitted", "read_committed"),
        ),
        _key(
            "max.poll.interval.ms",
            Kind.INT,
            300_000,
            "The longest time that a group's member may do nothing with its consumer (each step of an iteration "
            "counts); then it leaves, and others have its partitions. Also the rebalance time-out.",
            low=1,
        ),
        _key("max.poll.records", Kind.INT, 500, "The most records that one poll returns.", low=1),
        _key(
            "session.timeout.ms",
            Kind.INT,
            45_000,
            "When a silent member is gone.",
            note="the server's group.consumer.session.timeout.ms decides",
        ),
        _key(
            "heartbeat.interval.ms",
            Kind.INT,
            3_000,
            "How often a member reports.",
            note="the server's group.consumer.heartbeat.interval.ms decides",
        ),
        _key("fetch.min.bytes", Kind.INT, 1, "A fetch is answered when so many bytes are there.", low=0),
        _key("fetch.max.wait.ms", Kind.INT, 500, "A fetch is answered when this time is over, at the latest.", low=0),
        _key("fetch.max.bytes", Kind.INT, 52_428_800, "The most bytes of one answer.", low=1),
        _key("max.partition.fetch.bytes", Kind.INT, 1_048_576, "The most bytes of one partition in an answer.", low=1),
        _key(
            "fetch.queue.max.bytes",
            Kind.LONG,
            33_554_432,
            "The most bytes fetched ahead and not yet handed out (not a key of Kafka's). One batch may always pass.",
            low=1,
            high=LONG_MAX,
        ),
        _key("check.crcs", Kind.BOOLEAN, True, "Check the CRC-32C of every batch."),
        _key("key.deserializer", Kind.CLASS, None, "Callable (topic, bytes) -> key, or an object with deserialize()."),
        _key(
            "value.deserializer", Kind.CLASS, None, "Callable (topic, bytes) -> value, or an object with deserialize()."
        ),
        _key(
            "exclude.internal.topics",
            Kind.BOOLEAN,
            True,
            "Patterns do not match internal topics.",
            note="patterns never match them; name them to read them",
        ),
        _key(
            "interceptor.classes",
            Kind.LIST,
            [],
            "Classes that see each record before it is handed out.",
            refusal="interceptors are not supported; use the deserializers",
        ),
        _key("share.*", Kind.STRING, None, "Share groups.", refusal="share groups are not built", source="KIP-932"),
    ),
    where="consumer",
)

ADMIN = ConfigDef(
    (
        *_COMMON,
        _key(
            "bootstrap.controllers",
            Kind.LIST,
            [],
            "Controllers to find the cluster by, when no broker answers.",
            note="has no effect: bootstrap.servers may name controllers as well",
            source="KIP-919",
        ),
        _key(
            "retries",
            Kind.INT,
            INT_MAX,
            "How often a call is tried again.",
            low=0,
            note="has no effect: a call is tried again until default.api.timeout.ms is over",
        ),
    ),
    where="admin",
)


def resolve(definition: ConfigDef, config: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Typed values by dotted name, from a dict and keywords (a key in both is an error), with defaults filled in.

    Raises InvalidConfigError, with a "did you mean" for an unknown key. Notes of accepted keys are logged at INFO.
    """
    if config is not None and not isinstance(config, Mapping):
        raise InvalidConfigError(
            f"a {definition.where} takes a dict with dotted keys, or keywords such as "
            f"bootstrap_servers='127.0.0.1:9095', not {config!r}"
        )
    given = dict(config or {})
    for name in (*given, *settings):
        _check_owner(definition, name)
    for name, value in settings.items():
        dotted = definition.key(name).name
        if any(definition.key(other).name == dotted for other in given):
            raise InvalidConfigError(f"{definition.where} configuration key {dotted!r} is given twice")
        given[dotted] = value
    values = definition.parse({name: value for name, value in given.items() if value is not None})
    if values["bootstrap.servers"] is None:
        values["bootstrap.servers"] = os.environ.get(BOOTSTRAP_VARIABLE) or DEFAULT_BOOTSTRAP
    values["bootstrap.servers"] = _addresses(values["bootstrap.servers"])
    for note in definition.notes(given):
        logger.info("%s", note)
    if definition is PRODUCER:
        _check_producer(given, values)
    return values


def _check_owner(definition: ConfigDef, name: str) -> None:
    """A key that another client has is no typing mistake: say whose it is."""
    dotted = name.replace("_", ".")
    if dotted in definition.keys or any(dotted.startswith(prefix) for prefix in definition.families):
        return
    owners = [other.where for other in (PRODUCER, CONSUMER) if dotted in other.keys]
    if owners:
        raise InvalidConfigError(f"{name!r} is a configuration key of the {owners[0]}, not of the {definition.where}")


def _addresses(raw: str | Iterable[str]) -> list[str]:
    """["host:port", ...], checked; raises InvalidConfigError naming what is wrong."""
    items = raw.split(",") if isinstance(raw, str) else list(raw)
    addresses = [item.strip().removeprefix("PLAINTEXT://") for item in items if item.strip()]
    if not addresses:
        raise InvalidConfigError("bootstrap.servers is empty: give host:port, such as 127.0.0.1:9095")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        is_number = port.isascii() and port.isdigit() and len(port) <= 5
        if not (colon and host and is_number and 0 < int(port) < 65536):
            raise InvalidConfigError(f"bootstrap.servers: {address!r} is not host:port (such as 127.0.0.1:9095)")
    return list(dict.fromkeys(addresses))


def _check_producer(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """What only several keys together can tell."""
    _check_idempotence(given, values)
    if values["transactional.id"]:
        raise UnsupportedVersionError("transactional.id: transactions are not built yet; leave it out")
    least = min(values["linger.ms"] + values["request.timeout.ms"], INT_MAX)  # (as much as the key can hold; so Kafka)
    if values["delivery.timeout.ms"] < least:
        if any(PRODUCER.key(name).name == "delivery.timeout.ms" for name in given):
            raise InvalidConfigError(
                f"delivery.timeout.ms={values['delivery.timeout.ms']}: must be at least linger.ms + request.timeout.ms "
                f"({least:g})"
            )
        values["delivery.timeout.ms"] = int(least)


def _check_idempotence(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Switch it off, or refuse it when it was asked for, where the other keys rule it out (as Kafka does)."""
    if not values["enable.idempotence"]:
        return
    most = "max.in.flight.requests.per.connection"
    conflicts = [
        text
        for wrong, text in (
            (values["acks"] not in ("all", "-1"), f"acks={values['acks']} (it needs all)"),
            (values["retries"] == 0, "retries=0 (it needs 1 or more)"),
            (values[most] > 5, f"{most}={values[most]} (it needs 5 or less: brokers know the last 5 batches)"),
        )
        if wrong
    ]
    if not conflicts:
        return
    if any(PRODUCER.key(name).name == "enable.idempotence" for name in given):
        raise InvalidConfigError(
            f"enable.idempotence=true does not go with {' and '.join(conflicts)}: change that, or leave it out"
        )
    values["enable.idempotence"] = False
    logger.info("enable.idempotence is off, since a retry cannot be made safe with %s", " and ".join(conflicts))
