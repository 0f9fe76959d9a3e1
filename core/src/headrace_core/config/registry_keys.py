"""Configuration keys of a schema registry. The names are Confluent's, except for the registry's listeners, because the
key ``listeners`` belongs to gRPC nodes."""

from __future__ import annotations

from .definition import CONFLUENT, HEADRACE, Kind, honoured

#: The compatibility levels, as in requests to ``/config``.
LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)

REGISTRY = (
    honoured(
        "registry.listeners",
        ["http://127.0.0.1:8081"],
        "The addresses at which a registry serves HTTP, as http://host:port. Port 0 selects a free port; an empty host "
        "means all addresses.",
        source=HEADRACE,
    ),
    honoured(
        "registry.advertised.url",
        None,
        "The URL at which the other replicas reach this registry, to forward writes. The default is the first "
        "listener, with the machine's host name in place of a wildcard address.",
        source=HEADRACE,
    ),
    honoured(
        "kafkastore.bootstrap.servers",
        [],
        "The addresses (host:port) of some brokers of the cluster that stores the schemas of a registry.",
        source=CONFLUENT,
    ),
    honoured(
        "kafkastore.security.protocol",
        "PLAINTEXT",
        "The security protocol of a registry's connections to the brokers.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        source=CONFLUENT,
    ),
    honoured(
        "kafkastore.ssl.*",
        None,
        "A key of TLS for a registry's connections to the brokers, such as kafkastore.ssl.truststore.location.",
        kind=Kind.PASSWORD,
        source=CONFLUENT,
    ),
    honoured(
        "kafkastore.sasl.*",
        None,
        "A key of SASL for a registry's connections to the brokers, such as kafkastore.sasl.jaas.config.",
        kind=Kind.PASSWORD,
        source=CONFLUENT,
    ),
    honoured(
        "kafkastore.topic",
        "_schemas",
        "The compacted topic, with one partition, in which a registry stores schemas, compatibility levels and modes.",
        source=CONFLUENT,
    ),
    honoured(
        "kafkastore.topic.replication.factor",
        3,
        "The number of replicas with which a registry creates kafkastore.topic. If the cluster has fewer brokers, "
        "each broker gets a replica.",
        source=CONFLUENT,
        low=1,
        high=32_767,
    ),
    honoured(
        "kafkastore.timeout.ms",
        10_000,
        "How long a registry waits until the cluster has stored the schema, level or mode of a request. Confluent's "
        "default is 500, which is too short for the election of another writer among the registry's replicas.",
        source=CONFLUENT,
        low=1,
    ),
    honoured(
        "kafkastore.init.timeout.ms",
        60_000,
        "How long a starting registry may take to create or read kafkastore.topic.",
        source=CONFLUENT,
        low=1,
    ),
    honoured(
        "schema.registry.group.id",
        "schema-registry",
        "The consumer group in which the replicas of a registry elect the writer, the replica that writes to "
        "kafkastore.topic. The writer uses the same name as its transactional.id.",
        source=CONFLUENT,
    ),
    honoured(
        "leader.eligibility",
        True,
        "Whether this replica of a registry may become the writer (schema.registry.group.id). With false, the replica "
        "only answers reads and forwards writes to the writer.",
        source=CONFLUENT,
    ),
    honoured(
        "schema.compatibility.level",
        "BACKWARD",
        "The global compatibility level of a registry, until a client sets another level.",
        source=CONFLUENT,
        choices=LEVELS,
    ),
    honoured(
        "mode.mutability",
        True,
        "Whether clients may change the mode (such as READWRITE or READONLY) of a registry or of a subject.",
        source=CONFLUENT,
    ),
)
