"""Configuration keys of the traces that nodes export."""

from __future__ import annotations

from .definition import HEADRACE, Kind, honoured

TRACES = (
    honoured(
        "otel.exporter.otlp.endpoint",
        "",
        "The URL of the collector to which brokers, coordinators and gateways send OpenTelemetry spans by OTLP over "
        "HTTP, such as http://127.0.0.1:4318 (extra otel). They make spans only for records and calls that clients "
        "trace. An empty value exports no traces. A gateway with a value looks for contexts in uncompressed batches "
        "of Kafka's clients.",
        source=HEADRACE,
    ),
    honoured(
        "otel.exporter.otlp.headers",
        None,
        "HTTP headers for the collector, as name=value pairs with commas between them.",
        kind=Kind.PASSWORD,
        source=HEADRACE,
    ),
    honoured(
        "otel.exporter.otlp.timeout.ms",
        5_000,
        "The time limit of one request to the collector, and of the last request when the node stops.",
        source=HEADRACE,
        low=1,
        high=60_000,
    ),
)
