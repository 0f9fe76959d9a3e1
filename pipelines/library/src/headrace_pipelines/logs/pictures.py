"""The picture of a run: requests and failures of each host by window, and the alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..charts import charts

NO_REQUEST, ALERT = "#f2f2f2", "#d1495b"


def draw(rates: list[Any], alerts: list[Any], directory: Path) -> Path:
    """Write logs.png to ``directory``; returns its path. ``rates`` and ``alerts``: rows of schema.RATE."""
    path = directory / "logs.png"
    windows = sorted({row["window"] for row in rates})
    hosts = sorted({row["host"] for row in rates})
    share = [[float("nan")] * len(windows) for _ in hosts]
    places = {name: at for at, name in enumerate(windows)}
    rows = {name: at for at, name in enumerate(hosts)}
    for row in rates:
        if row["requests"]:
            share[rows[row["host"]]][places[row["window"]]] = row["errors"] / row["requests"]
    with charts(9) as plt:
        figure, axes = plt.subplots(figsize=(10, 6.2), layout="constrained")
        colors = plt.get_cmap("YlOrRd").with_extremes(bad=NO_REQUEST)
        if rates:  # a log may have no request
            image = axes.imshow(share, aspect="auto", cmap=colors, vmin=0, vmax=1, interpolation="nearest")
            figure.colorbar(image, ax=axes, label="share of errors (status 400 and above)", fraction=0.03)
        for row in alerts:
            at = (places[row["window"]], rows[row["host"]])
            axes.add_patch(plt.Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, fill=False, edgecolor="#222222", lw=1.4))
        axes.set_yticks(range(len(hosts)), hosts, fontsize=6)
        every = max(1, len(windows) // 10)
        axes.set_xticks(range(0, len(windows), every), [f"{each:%d %b\n%H:%M}" for each in windows[::every]])
        title = (
            f"{sum(row['requests'] for row in rates):,} requests of {len(hosts)} hosts; frames: {len(alerts)} alerts"
        )
        axes.set_title(title, loc="left", fontweight="bold")
        figure.savefig(path)
        plt.close(figure)
    return path
