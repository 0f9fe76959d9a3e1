"""Configuration keys of a gateway, which speaks Kafka's protocol to clients."""

from __future__ import annotations

from .definition import HEADRACE, INT_MAX, Kind, honoured

GATEWAY = (
    honoured(
        "kafka.listeners",
        ["PLAINTEXT://127.0.0.1:9092"],
        "The bootstrap addresses for Kafka's clients, as NAME://host:port. The names are free. Port 0 selects a free "
        "port; an empty host means all addresses.",
        source=HEADRACE,
    ),
    honoured(
        "kafka.advertised.listeners",
        [],
        "The addresses of kafka.listeners that clients get, if they differ from the bound addresses. The host is also "
        "the host of every broker id's port.",
        source=HEADRACE,
    ),
    honoured(
        "kafka.broker.ports",
        [],
        "The ports of the broker ids, as NAME:BASE for each name in kafka.listeners: broker id B has the port "
        "BASE + B. Listeners that are not named use free ports.",
        source=HEADRACE,
    ),
    honoured(
        "queued.max.request.bytes",
        -1,
        "How many bytes of requests a gateway holds in memory before it reads no more requests; -1: 64 MiB.",
        low=-1,
        kind=Kind.LONG,
    ),
    honoured(
        "max.connections.per.ip",
        INT_MAX,
        "Maximum number of connections that a gateway accepts from one address.",
        low=0,
        source="KIP-308",
    ),
    honoured(
        "connections.max.idle.ms",
        600_000,
        "How long a connection of a gateway may be idle before the gateway closes it; -1: no limit.",
        low=-1,
        kind=Kind.LONG,
    ),
    honoured(
        "max.request.partition.size.limit",
        2_000,
        "Maximum number of partitions in one response to DescribeTopicPartitions of a gateway.",
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
