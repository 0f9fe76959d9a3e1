"""Generate the tables of docs/performance/budget.md from bench/budget.json.

tools/budget_docs.py generate    write them
tools/budget_docs.py check       fail when they do not match the baseline (part of `make check`)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated_part import keep

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance" / "budget.md"
#: Number of functions and system calls that the page names for each hop.
NAMED = 3


def rendered(baseline: dict[str, Any]) -> str:
    """The generated part: for each path a section with two tables, the counts and the largest costs of each hop."""
    lines: list[str] = []
    for path in baseline["paths"].values():
        what = f"per {path['operation']}"
        if path["records"] > 1:
            what += f" of {path['records']:,} records"
        lines += [
            "",
            f"### {path['title'][0].upper()}{path['title'][1:]}",
            "",
            f"The first table has counts {what}.",
            "",
        ]
        lines += [
            "| hop | frames | system calls | bytes copied | wake-ups | futex | context switches |",
            "|---|---|---|---|---|---|---|",
        ]
        for hop, counts in path["hops"].items():
            reported = counts["reported"]
            lines.append(
                f"| {hop} | {counts['frames']:,.0f} | {counts['syscalls']:,.1f} | {counts['bytes']:,.0f} "
                f"| {reported['wake_ups']:,.1f} | {reported['futex']:,.0f} | {reported['context_switches']:,.0f} |"
            )
        lines += ["", "| hop | most frequent functions | most frequent system calls |", "|---|---|---|"]
        for hop, counts in path["hops"].items():
            functions, calls = (_named(counts[f"largest_{kind}"]) for kind in ("functions", "syscalls"))
            lines.append(f"| {hop} | {functions} | {calls} |")
    return "\n".join([*lines, "", ""])


def _named(counts: dict[str, float]) -> str:
    return ", ".join(f"`{name}` {count:,.1f}" for name, count in list(counts.items())[:NAMED])


def main(command: str) -> int:
    baseline = json.loads((ROOT / "bench" / "budget.json").read_text())
    return keep(PAGE, rendered(baseline), tool=Path(__file__).name, source="bench/budget.json says", command=command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "check"))
