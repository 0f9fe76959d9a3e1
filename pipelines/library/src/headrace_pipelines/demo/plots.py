"""The demo's result as tables and charts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from ..charts import FAINT, INK, charts
from .pipeline import Answer

AIRPORTS = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}
#: Least number of departures whose mean the line chart shows.
FEWEST = 100
COLORS = {"EWR": "#1b6ca8", "JFK": "#d1495b", "LGA": "#2a9d8f"}


def tables(answer: Answer, names: Mapping[str, str]) -> tuple[Table, Table]:
    """The demo's result as tables for the terminal: airports, and carriers ranked by mean delay."""
    carriers = Table(title="Carriers by mean departure delay, worst first", title_justify="left")
    for header, justify in (("", "right"), ("carrier", "left"), ("scheduled", "right"), ("left", "right")):
        carriers.add_column(header, justify=justify)  # type: ignore[arg-type]
    carriers.add_column("mean delay (min)", justify="right")
    for rank, row in enumerate(answer.by_carrier, 1):
        carriers.add_row(
            str(rank), f"{row.name} {names.get(row.name, '')}", f"{row.departures:,}", f"{row.departed:,}",
            f"{row.mean_departure_delay_min:.2f}",
        )  # fmt: skip
    airports = Table(title="Airports", title_justify="left")
    for header in ("airport", "scheduled", "left", "mean delay (min)", "worst hour (New York time)"):
        airports.add_column(header, justify="left" if header == "airport" else "right")
    for row in answer.by_origin:
        hours: list[Any] = [(m, h) for (o, h), (_, m) in answer.by_hour.items() if o == row.name and m is not None]
        worst, hour = max(hours)
        airports.add_row(
            row.name, f"{row.departures:,}", f"{row.departed:,}", f"{row.mean_departure_delay_min:.2f}",
            f"{hour:02d} h, {worst:.1f} min",
        )  # fmt: skip
    return airports, carriers


def draw(answer: Answer, names: Mapping[str, str], directory: Path) -> list[Path]:
    """Write two PNG files to ``directory``; returns their paths."""
    with charts() as plt:
        return [
            _by_hour(plt, answer, directory / "delay_by_hour.png"),
            _carriers(plt, answer, names, directory / "worst_carriers.png"),
        ]


def _by_hour(plt, answer: Answer, path: Path) -> Path:  # type: ignore[no-untyped-def]
    figure, (delays, counts) = plt.subplots(
        2, 1, figsize=(10, 6.4), sharex=True, gridspec_kw={"height_ratios": [3, 1], "hspace": 0.08}
    )
    hours = sorted({hour for (_, hour), (_, mean) in answer.by_hour.items() if mean is not None})
    hours = list(range(hours[0], hours[-1] + 1))
    for index, origin in enumerate(sorted({origin for origin, _ in answer.by_hour})):
        found = [(h, answer.by_hour[origin, h]) for h in hours if (origin, h) in answer.by_hour]
        points = [(hour, mean) for hour, (departures, mean) in found if mean is not None and departures >= FEWEST]
        delays.plot(
            *zip(*points, strict=True),
            color=COLORS.get(origin),
            marker="o",
            markersize=4,
            linewidth=2,
            label=f"{AIRPORTS.get(origin, origin)} ({origin})",
        )
        width = 0.26
        counts.bar(
            [hour + (index - 1) * width for hour, _ in found],
            [departures / 1000 for _, (departures, _) in found],
            width=width,
            color=COLORS.get(origin),
        )
    delays.annotate(
        f"points of fewer than {FEWEST} departures are left out",
        (0.995, 0.02),
        xycoords="axes fraction",
        ha="right",
        fontsize=8.5,
        color=FAINT,
    )
    delays.legend(loc="upper left", frameon=False)
    delays.axhline(0, color=FAINT, linewidth=0.8)
    delays.set_ylabel("mean departure delay (minutes)")
    delays.grid(axis="y", color="#e6e6e6")
    delays.set_title(
        f"Delays pile up over the day: {answer.departures:,} departures scheduled from New York, 2013",
        loc="left",
        fontweight="bold",
        pad=14,
    )
    counts.set_ylabel("scheduled\n(thousands)")
    counts.set_xlabel("hour of scheduled departure (New York time)")
    counts.set_xticks(hours, [f"{hour:02d}" for hour in hours])
    counts.grid(axis="y", color="#e6e6e6")
    for axes in (delays, counts):
        axes.set_axisbelow(True)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path


def _carriers(plt, answer: Answer, names: Mapping[str, str], path: Path) -> Path:  # type: ignore[no-untyped-def]
    rows = list(reversed(answer.by_carrier))
    figure, axes = plt.subplots(figsize=(10, 6.4))
    overall = sum(row.delay_min for row in rows) / sum(row.departed for row in rows)
    bars = axes.barh(
        [f"{names.get(row.name, row.name)}  {row.name}" for row in rows],
        [row.mean_departure_delay_min for row in rows],
        color=["#d1495b" if row.mean_departure_delay_min > overall else "#9db4c0" for row in rows],
        height=0.72,
    )
    axes.bar_label(
        bars,
        [f"{row.mean_departure_delay_min:.1f}  ({row.departures:,} departures)" for row in rows],
        padding=6,
        fontsize=9.5,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )
    axes.axvline(overall, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0.5)
    axes.annotate(
        f"all carriers: {overall:.1f} min",
        (overall, -0.9),
        xytext=(6, 0),
        textcoords="offset points",
        fontsize=9.5,
        va="center",
        annotation_clip=False,
    )
    axes.set_xlim(0, max(row.mean_departure_delay_min for row in rows) * 1.28)
    axes.set_ylim(-1.3, len(rows) - 0.4)
    axes.set_xlabel("mean departure delay of those that left (minutes)")
    axes.set_title(
        "Carriers from New York in 2013, ranked by mean departure delay", loc="left", fontweight="bold", pad=12
    )
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
    return path
