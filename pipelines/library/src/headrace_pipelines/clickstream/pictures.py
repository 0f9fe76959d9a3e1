"""The charts of a clickstream run: requests by hour, the most viewed pages, and the funnel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..charts import charts

PEOPLE, CRAWLERS, ERRORS = "#1b6ca8", "#c9ced6", "#d1495b"
PAGES = 12


def draw(requests: DataFrame, counts: DataFrame, summary: dict[str, Any], directory: Path) -> list[Path]:
    """Write two PNG files to ``directory``; returns their paths."""
    hours = (
        requests.where("address IS NOT NULL")
        .groupBy(F.date_trunc("hour", "time").alias("hour"))
        .agg(
            F.count_if(~F.col("is_crawler")).alias("people"),
            F.count_if("is_crawler").alias("crawlers"),
            F.count_if(F.col("status") >= 400).alias("errors"),
        )
        .orderBy("hour")
        .collect()
    )
    sites = counts.where("kind = 'referrer' AND name != '-'").groupBy("name").agg(F.sum("views").alias("views"))
    referrers = sites.orderBy(F.col("views").desc(), F.col("name")).limit(PAGES).collect()
    with charts() as plt:
        return [
            _traffic(plt, hours, summary, directory / "traffic.png"),
            _visits(plt, [(row["name"], row["views"]) for row in referrers], summary, directory / "visits.png"),
        ]


def _traffic(plt, hours: list[Any], summary: dict[str, Any], path: Path) -> Path:  # type: ignore[no-untyped-def]
    from matplotlib import dates

    ticks: Any = dates
    figure, axes = plt.subplots(figsize=(10, 4.6))
    times = [row["hour"] for row in hours]
    people, crawlers = [row["people"] for row in hours], [row["crawlers"] for row in hours]
    width = 0.036
    axes.bar(times, people, width=width, color=PEOPLE, label="people")
    axes.bar(times, crawlers, width=width, bottom=people, color=CRAWLERS, label="crawlers and feed readers")
    axes.plot(times, [row["errors"] for row in hours], color=ERRORS, linewidth=1.6, label="errors (400 and above)")
    axes.xaxis.set_major_locator(ticks.HourLocator(byhour=(0, 12)))
    axes.xaxis.set_major_formatter(ticks.DateFormatter("%d %b\n%H:%M"))
    axes.set_ylabel("requests in an hour")
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", frameon=False, ncols=3, bbox_to_anchor=(-0.01, 0.99))
    share = summary["crawler_requests"] / summary["requests"] if summary["requests"] else 0
    axes.set_title(
        f"{summary['requests']:,} requests of {summary['visitors']:,} visitors; {share:.0%} come from crawlers",
        loc="left", fontweight="bold", pad=34,
    )  # fmt: skip
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def _visits(plt, referrers: list[tuple[str, int]], summary: dict[str, Any], path: Path) -> Path:  # type: ignore[no-untyped-def]
    figure, (pages, sites, funnel) = plt.subplots(
        1, 3, figsize=(15, 4.8), gridspec_kw={"width_ratios": [1.5, 1.2, 1], "wspace": 0.95}
    )
    most = list(summary["views_by_page"].items())[:PAGES]
    _bars(pages, most, PEOPLE, "Most viewed pages")
    _bars(sites, referrers, "#2a9d8f", "Most frequent referrers")
    _bars(funnel, list(summary["funnel"].items()), "#e9a23b", f"Funnel of {summary['sessions']:,} sessions")
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def _bars(axes, rows: list[tuple[str, int]], color: str, title: str) -> None:  # type: ignore[no-untyped-def]
    names = [name if len(name) <= 34 else f"...{name[-31:]}" for name, _ in rows]
    places = range(len(rows))
    bars = axes.barh(places, [value for _, value in rows], color=color, height=0.72)
    axes.bar_label(bars, [f"{value:,}" for _, value in rows], padding=4, fontsize=9.5)
    axes.set_yticks(places, names, fontsize=9.5)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.margins(x=0.14)
    axes.set_title(title, loc="left", fontweight="bold")
