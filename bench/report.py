"""The table of bars: printed at the end of a run, and written into docs/performance.md from a saved result.

report.py bench/results/FILE.json      rewrites the part of docs/performance.md between its markers
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bars import Verdict, judge
from measure import ROOT, Samples

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def number(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    shown = f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"
    return f"{shown}x" if unit == "x" else f"{shown} {unit}"


def _row(verdict: Verdict) -> tuple[str, str, str, str, str]:
    bar = verdict.bar
    sign = ">=" if bar.at_least else "<="
    met = {True: "yes", False: "**no**", None: "-"}[verdict.met]
    if verdict.below_half:
        met = "**below half**"
    return bar.path, bar.against, f"{sign} {number(bar.limit, bar.unit)}", number(verdict.measured, bar.unit), met


def bars_table(samples: Samples) -> str:
    """Markdown: one row per bar."""
    rows = [("path", "against", "bar", "measured", "met"), *(_row(verdict) for verdict in judge(samples))]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def medians_table(result: dict[str, Any]) -> str:
    """Markdown: every median of a saved result, with its spread."""
    lines = ["| sample | median | unit | lowest .. highest | rounds |", "|---|---|---|---|---|"]
    for name, values in result["samples"].items():
        unit = result["units"][name]
        spread = f"{min(values):,.4g} .. {max(values):,.4g}"
        lines.append(f"| `{name}` | {result['medians'][name]:,.4g} | {unit} | {spread} | {len(values)} |")
    return "\n".join(lines)


def load(path: Path) -> tuple[Samples, dict[str, Any]]:
    """A saved result as samples, and whole."""
    result: dict[str, Any] = json.loads(path.read_text())
    return Samples(units=result["units"], values=result["samples"], failures=result["failures"]), result


def rewrite(path: Path) -> None:
    samples, result = load(path)
    machine = result["machine"]
    shown = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
    facts = (
        f"Measured {result['date']} at commit {result['commit']} on {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gib']} GiB, kernel {machine['kernel']}, Python {machine['python']}; "
        f"{result.get('rounds', '?')} rounds, medians; `{shown}`."
    )
    failures = "".join(f"\n* failed: {failure}" for failure in result["failures"])
    middle = f"{facts}\n\n{bars_table(samples)}\n{failures}\n\n### Every figure of that run\n\n{medians_table(result)}"
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{middle}\n{END}{after}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    rewrite(Path(sys.argv[1]))
