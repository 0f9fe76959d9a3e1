"""The chart of a run: delays and storms by day, manufacturers, and the data files before and after compaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..charts import charts

DEPARTURE, ARRIVAL, RAIN, MAKERS = "#1b6ca8", "#d1495b", "#9ec5e8", "#2a9d8f"
#: Inches of rain in an hour that mark a day as wet.
WET_INCHES = 0.1


def draw(days: pa.Table, makers: Mapping[str, int], files: Mapping[str, tuple[int, int]], path: Path) -> Path:
    """Write a PNG file. ``files``: data files before and after compaction, by format."""
    with charts(10.5) as plt:
        figure = plt.figure(figsize=(13, 7.4))
        grid = figure.add_gridspec(2, 2, height_ratios=[1.5, 1], width_ratios=[1.6, 1], hspace=0.5, wspace=0.28)
        _delays(figure.add_subplot(grid[0, :]), days)
        _bars(figure.add_subplot(grid[1, 0]), makers)
        _files(figure.add_subplot(grid[1, 1]), files)
        figure.savefig(path, bbox_inches="tight")
        plt.close(figure)
    return path


def _delays(axes: Any, days: pa.Table) -> None:
    when = days["day"].to_pylist()
    for day, rain in zip(when, days["precip"].to_pylist(), strict=True):
        if rain is not None and rain >= WET_INCHES:
            axes.axvspan(day, day + timedelta(days=1), color=RAIN, alpha=0.45, linewidth=0)
    axes.plot(when, days["departure"].to_pylist(), color=DEPARTURE, linewidth=1.3, label="departure")
    arrival = [float("nan") if each is None else each for each in days["arrival"].to_pylist()]
    axes.plot(when, arrival, color=ARRIVAL, linewidth=1.1, label="arrival (a column since release 2)")
    axes.set_ylabel("mean delay, minutes")
    axes.margins(x=0.005)
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.legend(loc="upper right", frameon=False, ncols=2)
    axes.set_title(
        f"Delays at New York's airports in 2013; blue days had {WET_INCHES:g} inches of rain in an hour",
        loc="left", fontweight="bold",
    )  # fmt: skip


def _bars(axes: Any, makers: Mapping[str, int]) -> None:
    places = range(len(makers))
    bars = axes.barh(places, list(makers.values()), color=MAKERS, height=0.7)
    axes.bar_label(bars, [f"{count:,}" for count in makers.values()], padding=4, fontsize=9.5)
    axes.set_yticks(places, [name.title() for name in makers], fontsize=9.5)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.set_title("Flights by the plane's manufacturer", loc="left", fontweight="bold")


def _files(axes: Any, files: Mapping[str, tuple[int, int]]) -> None:
    places = range(len(files))
    for shift, (what, color) in enumerate((("before", "#c9ced6"), ("after", DEPARTURE))):
        counts = [each[shift] for each in files.values()]
        bars = axes.bar([place + 0.38 * shift for place in places], counts, width=0.36, color=color, label=what)
        axes.bar_label(bars, padding=2, fontsize=9.5)
    axes.set_xticks([place + 0.19 for place in places], list(files))
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.margins(y=0.15)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.3, 1.0))
    axes.set_title("Data files and compaction", loc="left", fontweight="bold")
