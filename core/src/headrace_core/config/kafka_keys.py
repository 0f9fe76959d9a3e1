"""Configuration keys of a broker's listeners for Kafka's clients."""

from __future__ import annotations

from .definition import Kind, honoured

KAFKA = (
    honoured(
        "queued.max.request.bytes",
        -1,
        "Maximum number of bytes of requests of Kafka's clients in the broker's memory. At this limit the broker reads "
        "no further ones; -1 means 64 MiB.",
        low=-1,
        kind=Kind.LONG,
    ),
    honoured(
        "connections.max.idle.ms",
        600_000,
        "How long a Kafka client's connection may be idle before the broker closes it; -1 means no limit.",
        low=-1,
        kind=Kind.LONG,
    ),
    honoured(
        "max.request.partition.size.limit",
        2_000,
        "Maximum number of partitions in the response to one DescribeTopicPartitions request.",
        low=1,
        source="KIP-966",
    ),
    honoured(
        "max.incremental.fetch.session.cache.slots",
        1_000,
        "Maximum number of incremental fetch sessions of Kafka's clients that a broker keeps.",
        low=0,
        source="KIP-227",
    ),
)
