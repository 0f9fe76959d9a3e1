"""Configuration keys of a gateway, which speaks Kafka's protocol to clients."""

from __future__ import annotations

from .definition import HEADRACE, Kind, honoured

GATEWAY = (
    honoured(
        "kafka.listeners",
        ["PLAINTEXT://127.0.0.1:9092"],
        "The addresses at which the gateway listens for Kafka's clients (their bootstrap servers), as "
        "NAME://host:port. You may choose any NAME. Port 0 selects a free port; an empty host means all addresses.",
        source=HEADRACE,
    ),
    honoured(
        "kafka.advertised.listeners",
        [],
        "The addresses that the gateway returns to clients, as NAME://host:port, if they differ from kafka.listeners. "
        "Clients also use the host of an advertised address, with other ports, to reach the brokers "
        "(kafka.broker.ports).",
        source=HEADRACE,
    ),
    honoured(
        "kafka.broker.ports",
        [],
        "The ports that stand for brokers, as NAME:BASE with a name of kafka.listeners. On the listener NAME, clients "
        "reach the broker with id B through the gateway's port BASE + B. For a listener without NAME:BASE, the gateway "
        "selects free ports.",
        source=HEADRACE,
    ),
    honoured(
        "queued.max.request.bytes",
        -1,
        "Maximum number of bytes of requests in a gateway's memory. At this limit the gateway reads no further "
        "requests; -1 means 64 MiB.",
        low=-1,
        kind=Kind.LONG,
    ),
    honoured(
        "connections.max.idle.ms",
        600_000,
        "How long a client's connection to a gateway may be idle before the gateway closes it; -1 means no limit.",
        low=-1,
        kind=Kind.LONG,
    ),
    honoured(
        "max.request.partition.size.limit",
        2_000,
        "Maximum number of partitions in a gateway's response to one DescribeTopicPartitions request.",
        low=1,
        source="KIP-966",
    ),
    honoured(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        "Maximum number of incremental fetch sessions that a gateway keeps.",
        low=0,
        source="KIP-227",
    ),
)
