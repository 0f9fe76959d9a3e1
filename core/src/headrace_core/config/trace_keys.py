"""Configuration keys of the traces that nodes export."""

from __future__ import annotations

from .definition import HEADRACE, Kind, honoured

TRACES = (
    honoured(
        "otel.exporter.otlp.endpoint",
        "",
        "The URL of the collector to which brokers and coordinators send OpenTelemetry spans by OTLP over "
        "HTTP, such as http://127.0.0.1:4318 (extra otel). Nodes make spans only for records and calls that a client "
        "traces. With an empty value, a node sends no spans. With a URL, a broker looks for trace contexts in the "
        "headers of records from Kafka's clients; it does not decompress batches to find them.",
        source=HEADRACE,
    ),
    honoured(
        "otel.exporter.otlp.headers",
        None,
        "Headers of the HTTP requests to the collector, as name=value pairs with commas between them.",
        kind=Kind.PASSWORD,
        source=HEADRACE,
    ),
    honoured(
        "otel.exporter.otlp.timeout.ms",
        5_000,
        "The timeout of one request to the collector. When a node stops, it waits at most this time for its last "
        "request.",
        source=HEADRACE,
        low=1,
        high=60_000,
    ),
)
