"""The picture of a run: the number of events in the live tables and in the tables of the rebuild, over time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from ..charts import FAINT, charts
from .projecting import Look

LIVE, REBUILD = "#1b6ca8", "#d1495b"


def draw(looks: list[Look], rebuilt: list[tuple[float, int]], summary: dict[str, Any], directory: Path) -> Path:
    """Write orders.png to ``directory``; returns its path. ``rebuilt``: seconds since 1970, events of the rebuild."""
    path = directory / "orders.png"
    began_s = looks[0].at_s
    with charts() as plt:
        figure, axes = plt.subplots(figsize=(10, 4.2), layout="constrained")
        at = [each.at_s - began_s for each in looks]
        axes.plot(at, [each.live for each in looks], color=LIVE, linewidth=2, label="live tables")
        times, events = [at_s - began_s for at_s, _ in rebuilt], [position for _, position in rebuilt]
        axes.plot(times, events, color=REBUILD, linewidth=2, marker=".", label="tables of the rebuild, by batches")
        for earlier, later in itertools.pairwise(looks):
            if earlier.generation is not None and later.generation != earlier.generation:
                switch = later.at_s - began_s
                axes.axvline(switch, color=FAINT, linewidth=1, linestyle="--")
                axes.annotate("switch ", (switch, 0.06), xycoords=("data", "axes fraction"), ha="right", color=FAINT)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds")
        axes.set_ylabel("events in the tables")
        axes.legend(frameon=False)
        title = f"{summary['orders']:,} orders: all tables are rebuilt while the live tables stay in use"
        axes.set_title(title, loc="left", fontweight="bold")
        figure.savefig(path)
        plt.close(figure)
    return path
