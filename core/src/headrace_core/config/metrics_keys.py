"""Configuration keys of the metrics that every node serves."""

from __future__ import annotations

from .definition import HEADRACE, honoured

SERVED = (
    honoured(
        "metrics.listener",
        "http://127.0.0.1:0",
        "The address at which a node serves /metrics for Prometheus, as http://host:port or https://host:port. Port 0 "
        "selects a free port, which the runtime state file and `headrace ps` show. An empty host means all addresses. "
        "With an empty value the node serves no metrics.",
        source=HEADRACE,
    ),
    honoured(
        "metrics.partitions.max",
        2_000,
        "The largest number of partitions for which a node serves metrics of single partitions. A node with more "
        "partitions, or with more pairs of group and partition, serves only metrics of topics and groups. A node with "
        "more topics or groups than this number serves only its totals.",
        source=HEADRACE,
        low=0,
        high=100_000,
    ),
)
