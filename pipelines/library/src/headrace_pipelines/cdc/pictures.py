"""The chart of a run: the changes of each second, by operation, and the rows of each table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ..charts import charts

#: The names of Debezium's operations in the chart.
OPERATIONS = {"r": "snapshot", "c": "inserts", "u": "updates", "d": "deletes"}
_COLORS = {"c": "#2a9d8f", "u": "#1b6ca8", "d": "#d1495b"}


def draw(events: Mapping[int, Counter[str]], added_s: float, rows: Mapping[str, int], path: Path) -> Path:
    """Write a PNG file. ``events``: number of events by second and operation. ``added_s``: when the column was added.
    Times are in seconds since 1970."""
    changes = {second: each for second, each in events.items() if set(each) - {"r"}}
    first, last = min(changes, default=0), max(changes, default=0)
    seconds = range(first, last + 1)
    with charts(10.5) as plt:
        figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.4), width_ratios=[1.35, 1], layout="constrained")
        left.stackplot(
            [second - first for second in seconds],
            [[changes.get(second, Counter())[code] for second in seconds] for code in _COLORS],
            labels=[OPERATIONS[code] for code in _COLORS],
            colors=list(_COLORS.values()),
            alpha=0.9,
        )
        left.axvline(added_s - first, color="#222222", linestyle="--", linewidth=1)
        left.annotate(
            "ALTER TABLE ADD COLUMN", (added_s - first, 0.97), xycoords=("data", "axes fraction"), fontsize=9,
            xytext=(4, 0), textcoords="offset points", va="top",
        )  # fmt: skip
        left.set_xlabel("seconds")
        left.set_ylabel("changes a second")
        left.margins(x=0, y=0.18)
        left.legend(loc="upper left", frameon=False, ncols=3, bbox_to_anchor=(0, -0.14))
        left.set_title("Changes in PostgreSQL", loc="left", fontweight="bold")
        places = range(len(rows))
        bars = right.barh(places, list(rows.values()), color="#9ec5e8", height=0.65)
        right.bar_label(bars, [f"{count:,}" for count in rows.values()], padding=4)
        right.set_yticks(places, [name.partition(".")[2] for name in rows])
        right.invert_yaxis()
        right.set_xticks([])
        right.tick_params(axis="y", length=0)
        right.margins(x=0.15)
        for side in ("left", "bottom"):
            right.spines[side].set_visible(False)
        right.set_title("Rows, equal in PostgreSQL and both lakes", loc="left", fontweight="bold")
        figure.savefig(path)
        plt.close(figure)
    return path
