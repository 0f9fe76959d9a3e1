"""Configuration keys of the metrics that every node serves."""

from __future__ import annotations

from .definition import HEADRACE, honoured

SERVED = (
    honoured(
        "metrics.listener",
        "http://127.0.0.1:0",
        "The address at which a node serves /metrics for Prometheus, as http://host:port or https://host:port. Port 0 "
        "selects a free port, which is in the runtime state file and in `headrace ps`. An empty host means all "
        "addresses; an empty value serves no metrics.",
        source=HEADRACE,
    ),
    honoured(
        "metrics.partitions.max",
        2_000,
        "The largest number of partitions for which a node reports metrics of single partitions. A node with more "
        "partitions, or with more pairs of group and partition, reports topics and groups only. A node with more "
        "topics or groups than this number reports only its totals.",
        source=HEADRACE,
        low=0,
        high=100_000,
    ),
)
