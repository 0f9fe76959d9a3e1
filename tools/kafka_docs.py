"""Generate the table of docs/kafka-compatibility.md from the request types that a broker serves.

tools/kafka_docs.py generate    write it
tools/kafka_docs.py check       fail when it does not match its tables (part of `make check`)
"""

from __future__ import annotations

import sys
from pathlib import Path

from generated_part import keep

from headrace_kafka.handlers.table import FAST, HANDLERS
from headrace_kafka.wire.apis import VERSIONS, Api, title

PAGE = Path(__file__).parent.parent / "docs" / "kafka-compatibility.md"


def rendered() -> str:
    """One row for each request type that Kafka 4.3 serves to clients, except for share groups and groups of Streams."""
    lines = ["| key | request type | versions |", "|---|---|---|"]
    for api in sorted(Api):
        versions = VERSIONS[api]
        is_served = api in HANDLERS or api in FAST
        lines.append(f"| {int(api)} | {title(api)} | {_range(versions.low, versions.high) if is_served else 'no'} |")
    return "\n".join([*lines, ""])


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def main(command: str) -> int:
    return keep(PAGE, rendered(), tool=Path(__file__).name, source="a broker serves", command=command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
