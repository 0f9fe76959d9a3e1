"""Draw the samples of a soak, and put the picture and the table into docs/soak.md."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.system.soak.soak_samples import EARLY, JUDGED, Sample, windows

BEGIN, END = "<!-- soak: begin, written by --save -->", "<!-- soak: end -->"
#: The picture has one point for this many minutes: the median of the samples.
BIN_MINUTES = 0.5
TITLES = {"rss_mib": "RSS, MiB", "descriptors": "descriptors", "threads": "threads"}
COLORS = {"controller": "#1b6ca8", "broker": "#d1495b", "coordinator": "#2a9d8f", "client": "#8a6d3b"}


def binned(samples: Iterable[Sample], figure: str) -> dict[str, tuple[list[float], list[float]]]:
    """For each process: the minutes, and the medians around them."""
    bins: dict[str, dict[int, list[float]]] = {}
    for sample in samples:
        at = int(sample.minute / BIN_MINUTES)
        bins.setdefault(sample.name, {}).setdefault(at, []).append(getattr(sample, figure))
    return {
        name: ([at * BIN_MINUTES for at in sorted(found)], [statistics.median(found[at]) for at in sorted(found)])
        for name, found in bins.items()
    }


def draw(samples: Sequence[Sample], kills: Sequence[tuple[float, str]], minutes: float, path: Path) -> None:
    """Draw one panel for each figure with a limit. Thick lines are processes that are never killed; ticks at the bottom
    are kills."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    first = {sample.name: sample for sample in samples}
    style: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 110}
    with plt.rc_context(style):
        figure, axes = plt.subplots(len(JUDGED), 1, figsize=(10, 9), sharex=True)
        for axis, name in zip(axes, JUDGED, strict=True):
            seen: dict[str, int] = {}
            for process, (x, y) in sorted(binned(samples, name).items()):
                role, kept = first[process].role, first[process].kept
                line = ("-", "--", ":", "-.")[seen.setdefault(role, 0) % 4]
                seen[role] += 1
                axis.plot(
                    x, y, line, color=COLORS[role], linewidth=1.8 if kept else 0.6, alpha=1 if kept else 0.6,
                    label=process,
                )  # fmt: skip
            for window in windows(minutes) or ():
                axis.axvspan(*window, color="#000000", alpha=0.05, linewidth=0)
            axis.plot([at for at, _ in kills], [0] * len(kills), "|", color="#222222", markersize=5)
            axis.set_ylim(bottom=0)
            axis.set_ylabel(TITLES[name])
        axes[0].legend(ncol=4, fontsize=7, loc="upper left", bbox_to_anchor=(0, 1.35), frameon=False)
        axes[-1].set_xlabel("minute (ticks: kill -9; grey: the windows compared)")
        figure.savefig(path, bbox_inches="tight")
        plt.close(figure)


def write_page(summary: Mapping[str, Any], picture: Path, docs: Path) -> None:
    """Copy the picture to docs/pictures, and replace the text between the marks in docs/soak.md."""
    shutil.copy(picture, docs / "pictures" / "soak.png")
    page = docs / "soak.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{text_of(summary)}\n{END}{after}")


def text_of(summary: Mapping[str, Any]) -> str:
    lines = [
        f"The run took {summary['minutes']:g} minutes, with seed {summary['seed']} and {summary['kills']} kills. "
        f"The producers wrote {summary['acknowledged']:,} acknowledged records; the checker read "
        f"{summary['read']:,} records, and the group {summary['group_read']:,}. "
        f"The run had {summary['lost']} lost, {summary['doubled']} doubled and {summary['reordered']} reordered "
        f"records, and {summary['failed_sends']} failed sends. "
        f"The longest silence took {summary['longest_silence_s']} s. "
        f"The nodes used at most {summary['disk_mib']} MiB on the disk.",
        "",
        "![RSS, descriptors and threads of every process](pictures/soak.png)",
        "",
        f"The table has medians of minutes {EARLY[0]:g} to {EARLY[1]:g}, and of the last hour:",
        "",
        "| process | RSS, MiB | descriptors | threads | judged |",
        "|---|---|---|---|---|",
    ]
    for row in summary["processes"]:
        cells = [_cell(row[figure]) for figure in JUDGED]
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {'yes' if row['judged'] else 'no'} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, Any]) -> str:
    if "median" in found:
        return f"{found['median']:g}"
    if found["early"] is None or found["late"] is None or found["growth"] is None:
        return "–"
    return f"{found['early']:g} → {found['late']:g} ({found['growth']:+.1%})"
