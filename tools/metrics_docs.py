"""Generate the tables of docs/reference/metrics.md from headrace_core.metrics.catalog.

tools/metrics_docs.py generate    write them
tools/metrics_docs.py check       fail when they do not match the catalog (part of `make check`)
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated_part import keep

from headrace_core.metrics.catalog import ALL, METRICS
from headrace_core.metrics.model import Metric, Source

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"

_TITLES = {
    Source.KAFKA: "Names of Kafka's JMX beans",
    Source.EXPORTER: "Names of kafka_exporter",
    Source.HEADRACE: "Names of Headrace",
    Source.PROMETHEUS: "Names of Prometheus's client libraries",
}


def rendered() -> str:
    parts: list[str] = []
    for source, title in _TITLES.items():
        parts += [f"## {title}", "", "| metric | labels | on | meaning |", "|---|---|---|---|"]
        parts += [_row(metric) for metric in METRICS.values() if metric.source is source]
        parts.append("")
    return "\n".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    roles = "all" if metric.roles == ALL else ", ".join(metric.roles)
    kind = "" if metric.kind in ("gauge", "counter") else f" ({metric.kind})"
    return f"| `{metric.sample_name}`{kind} | {labels} | {roles} | {metric.help} |"


def main(command: str) -> int:
    return keep(
        PAGE, rendered(), tool=Path(__file__).name, source="headrace_core.metrics.catalog declares", command=command
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
