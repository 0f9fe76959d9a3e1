"""The table of bars: printed at the end of a run, and written into docs/performance/ from a saved result.

report.py bench/results/FILE.json      rewrites the pages between their markers
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bars import Verdict, judge
from measure import ROOT, Samples
from replicated_bars import judge as judge_replicated

PAGES = ROOT / "docs" / "performance"
#: The pages in REFERENCE show every sample of a run; the pages in PAGES show only the required results.
REFERENCE = ROOT / "docs" / "reference"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page between two comments, with its bars."""

    name: str
    page: Path
    judge: Callable[[Samples], list[Verdict]]

    @property
    def begin(self) -> str:
        return f"<!-- {self.name}: begin -->"

    @property
    def end(self) -> str:
        return f"<!-- {self.name}: end -->"


MEASURED = Part("measured", PAGES / "README.md", judge)
REPLICATED = Part("replicated", PAGES / "replicas.md", judge_replicated)
SAMPLES = {MEASURED: REFERENCE / "benchmarks.md", REPLICATED: REFERENCE / "benchmarks-replicas.md"}
GROUPS = Part("groups", PAGES / "groups.md", judge)
IDLE = Part("idle", PAGES / "idle.md", judge)


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
    against = f"{bar.against} ({verdict.setting})" if verdict.setting else bar.against
    return bar.path, against, f"{sign} {number(bar.limit, bar.unit)}", number(verdict.measured, bar.unit), met


def bars_table(samples: Samples) -> str:
    """Markdown: one row per bar of one replica."""
    return verdicts_table(judge(samples))


def verdicts_table(verdicts: Iterable[Verdict]) -> str:
    """Markdown: one row per bar."""
    rows = [("path", "against", "bar", "measured", "met"), *(_row(verdict) for verdict in verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def settings_table(samples: Samples) -> str:
    """Markdown: the peers' figures under several settings, and the best setting."""
    names = samples.names_with_settings()
    if not names:
        return ""
    found = {name: samples.by_setting(name) for name in names}
    settings = sorted({setting for medians in found.values() for setting in medians})
    lines = [
        f"| peer's figure | {' | '.join(settings)} | unit | best |",
        "|---" * (len(settings) + 3) + "|",
    ]
    for name, medians in found.items():
        best = samples.best(name)
        cells = [f"{medians[setting]:,.4g}" if setting in medians else "-" for setting in settings]
        unit = next(unit for each, unit in samples.units.items() if each.partition("@")[0] == name)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {unit} | {best.setting if best else '-'} |")
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
    result: dict[str, Any] = json.loads(path.read_text())
    return Samples(units=result["units"], values=result["samples"], failures=result["failures"]), result


def _facts(path: Path, result: dict[str, Any], *, with_rounds: bool = True) -> str:
    machine = result["machine"]
    shown = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
    rounds = ""
    if "rounds" in result and with_rounds:
        rounds = " in one round" if result["rounds"] == 1 else f" as medians of {result['rounds']} rounds"
    facts = (
        f"We measured these figures{rounds} on {result['date']} at commit {result['commit']}, with {machine['cores']} "
        f"cores ({machine['cpu']}), {machine['memory_gib']} GiB, kernel {machine['kernel']} and Python "
        f"{machine['python']}. The saved file is `{shown}`."
    )
    return textwrap.fill(facts, 120, break_on_hyphens=False)


def groups_table(result: dict[str, Any]) -> str:
    """Markdown: bench/groups.py's verdicts, with the number of values of each verdict."""
    lines = ["| what | bar | measured | n | met |", "|---|---|---|---|---|"]
    for bar in result["bars"]:
        limit = "" if bar["bar"] is None else f"<= {bar['bar']:g}"
        measured = "not measured" if bar["measured"] is None else f"{bar['measured']:,.3g}"
        met = "" if bar["bar"] is None else "yes" if bar["met"] else "**no**"
        values = result["spread"].get(bar["sample"], {}).get("n", 0)
        lines.append(f"| {bar['what']} | {limit} | {measured} | {values:,} | {met} |")
    return "\n".join(lines)


def failures_list(result: dict[str, Any]) -> str:
    """A list item for the beginning of each failure; the saved file has the whole failure."""
    return "".join(f"\n* failed: {textwrap.shorten(each, 80, placeholder=' ...')}" for each in result["failures"])


def rewrite(path: Path, part: Part = MEASURED) -> None:
    """Write a saved result into its part of its page, and its samples into the reference."""
    samples, result = load(path)
    failures = failures_list(result)
    bars = verdicts_table(part.judge(samples))
    settings = settings_table(samples)
    settings = f"\n### Which setting was Kafka's best\n\n{settings}\n" if settings else ""
    _put(part, part.page, f"{_facts(path, result)}\n\n{bars}\n{failures}{settings}")
    _put(part, SAMPLES[part], f"{_facts(path, result)}\n\n{medians_table(result)}")


def rewrite_groups(path: Path) -> None:
    _, result = load(path)
    failures = failures_list(result)
    facts = _facts(path, result)
    _put(GROUPS, GROUPS.page, f"{facts}\n\n{groups_table(result)}\n{failures}")


def idle_table(result: dict[str, Any]) -> str:
    """Markdown: bench/idle.py's verdicts; then each process of the idle cluster; then the times."""
    lines = ["| what | bar | measured | n | met |", "|---|---|---|---|---|"]
    for bar in result["bars"]:
        measured = "not measured" if bar["measured"] is None else f"{bar['measured']:,.3g}"
        met = "yes" if bar["met"] else "**no**"
        lines.append(f"| {bar['what']} | <= {bar['bar']:g} | {measured} | {bar['n']} | {met} |")
    clusters = (
        f"The next table has medians of {result['clusters']} idle clusters, each watched for {result['window_s']:g} s:"
    )
    lines += ["", clusters, ""]
    lines += ["| process, idle | PSS, new / worked with | % of a core | sleeps/s |", "|---|---|---|---|"]
    medians = result["medians"]
    names = [name.removeprefix("new.pss.") for name in result["samples"] if name.startswith("new.pss.")]
    for name in sorted(names, key=lambda name: name == "all"):  # a stable sort: the sum comes last
        pss, cpu, sleeps = (
            [medians.get(f"{state}.{kind}.{name}", float("nan")) for state in ("new", "used")]
            for kind in ("pss", "cpu", "sleeps")
        )
        shown = (
            f"{pss[0]:.0f} / {pss[1]:.0f} MiB",
            f"{cpu[0]:.2f} / {cpu[1]:.2f}",
            f"{sleeps[0]:.0f} / {sleeps[1]:.0f}",
        )
        lines.append(f"| {name} | {' | '.join(shown)} |")
    times = {name: values for name, values in result["samples"].items() if result["units"][name] == "s"}
    if times:
        lines += ["", "| seconds | median | lowest .. highest | n |", "|---|---|---|---|"]
    for name, values in times.items():
        lines.append(f"| `{name}` | {medians[name]:.2f} | {min(values):.2f} .. {max(values):.2f} | {len(values)} |")
    return "\n".join(lines)


def rewrite_idle(path: Path) -> None:
    _, result = load(path)
    failures = failures_list(result)
    facts = _facts(path, result, with_rounds=False)
    _put(IDLE, IDLE.page, f"{facts}\n\n{idle_table(result)}\n{failures}")


def _put(part: Part, page: Path, middle: str) -> None:
    text = page.read_text()
    before, begin, rest = text.partition(part.begin)
    _, end, after = rest.partition(part.end)
    if not (begin and end):
        raise SystemExit(f"{page}: there is no {part.begin} ... {part.end} in it")
    page.write_text(f"{before}{part.begin}\n{middle}\n{part.end}{after}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = Path(sys.argv[1])
    if found.stem.endswith("-groups"):
        rewrite_groups(found)
    elif found.stem.endswith("-idle"):
        rewrite_idle(found)
    else:
        rewrite(found, REPLICATED if found.stem.endswith("-replicated") else MEASURED)
