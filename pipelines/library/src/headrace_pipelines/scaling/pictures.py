"""The picture of a run: the lag over time of each scene, and of the Spark job that reads the first scene's topic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..charts import FAINT, charts
from .playing import Played
from .scenes import PARTITIONS, Scene

LAG, SPARK, MEMBERS = "#1b6ca8", "#d1495b", "#2e933c"
COLUMNS = 3


def draw(played: Mapping[Scene, Played], directory: Path) -> Path:
    """Write scaling.png to ``directory``; returns its path."""
    path = directory / "scaling.png"
    rows = -(-len(played) // COLUMNS)
    with charts(9) as plt:
        size = (12, 0.6 + 2.6 * rows)
        figure, grid = plt.subplots(rows, COLUMNS, figsize=size, layout="constrained", squeeze=False)
        panels = list(grid.flat)
        for axes, (scene, each) in zip(panels, played.items(), strict=False):
            _draw_lag(axes, each)
            if each.scaled:
                _draw_members(axes.twinx(), each)
            axes.set_title(f"{scene.name}\n{scene.about}", loc="left", fontsize=8.5, fontweight="bold")
        for axes in panels[len(played) :]:
            axes.set_visible(False)
        figure.supxlabel("seconds since the start of the scene", color=FAINT)
        figure.supylabel("lag in records", color=FAINT)
        figure.savefig(path)
        plt.close(figure)
    return path


def _draw_lag(axes: Any, played: Played) -> None:
    at = [look.at_s for look in played.looks]
    lag = [look.end - look.handled for look in played.looks]
    axes.plot(at, lag, color=LAG, linewidth=2, label="consumer group")
    axes.fill_between(at, lag, color=LAG, alpha=0.15)
    if any(look.spark_lag for look in played.looks):
        axes.plot(at, [look.spark_lag for look in played.looks], color=SPARK, linewidth=2, label="Spark job")
        axes.legend(frameon=False)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)


def _draw_members(axes: Any, played: Played) -> None:
    at, members = zip(*played.scaled, strict=True)
    axes.step(at, members, where="post", color=MEMBERS, linewidth=1.5)
    axes.set_ylim(0, PARTITIONS + 1)
    axes.set_ylabel("members", color=MEMBERS)
