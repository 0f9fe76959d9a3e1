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
        "host:port of some brokers of the cluster that stores the schemas of a registry.",
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
        "The compacted topic with one partition in which a registry stores schemas, levels and modes.",
        source=CONFLUENT,
    ),
    honoured(
        "kafkastore.topic.replication.factor",
        3,
        "Replicas of kafkastore.topic when a registry creates it. With fewer brokers, each broker has a replica.",
        source=CONFLUENT,
        low=1,
        high=32_767,
    ),
    honoured(
        "kafkastore.timeout.ms",
        10_000,
        "How long a request to a registry may wait until its write is durable. Confluent's default is 500, which is "
        "shorter than an election of the writer.",
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
        "The consumer group by which replicas of a registry elect the writer; also the writer's transactional.id.",
        source=CONFLUENT,
    ),
    honoured(
        "leader.eligibility",
        True,
        "Whether this replica of a registry may become the writer. With false, the replica only answers reads and "
        "forwards writes.",
        source=CONFLUENT,
    ),
    honoured(
        "schema.compatibility.level",
        "BACKWARD",
        "The compatibility level of a registry whose global level was never set.",
        source=CONFLUENT,
        choices=LEVELS,
    ),
    honoured(
        "mode.mutability",
        True,
        "Whether clients may change the mode of a registry or of a subject.",
        source=CONFLUENT,
    ),
)
