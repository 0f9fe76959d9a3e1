"""The chart of a run: the latency of the alerts over time, and precision and recall by kind of fraud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..charts import INK, charts
from .schema import KINDS
from .traffic import Seen

P50, P99, PRECISION, RECALL = "#1b6ca8", "#d1495b", "#2a9d8f", "#e9a23b"
NAMES = {"velocity": "velocity", "travel": "impossible travel", "testing": "card testing", "amount": "unusual amount"}


def draw(seen: list[Seen], began_ms: float, summary: dict[str, Any], directory: Path) -> Path:
    """Write fraud.png to ``directory``; returns its path. Alerts of payments before ``began_ms``, which an earlier run
    sent, have no latency."""
    path = directory / "fraud.png"
    with charts() as plt:
        figure, (times, bars) = plt.subplots(1, 2, figsize=(12.5, 4.2), width_ratios=(1.25, 1), layout="constrained")
        _latency(times, seen, began_ms, summary)
        _scores(bars, summary["by_kind"])
        figure.savefig(path)
        plt.close(figure)
    return path


def _latency(axes: Any, seen: list[Seen], began_ms: float, summary: dict[str, Any]) -> None:
    recent = [each for each in seen if each.alert.sent_ms >= began_ms]
    at = [(each.alert.sent_ms - began_ms) / 1000 for each in recent]
    axes.scatter(at, [(each.seen_ms - each.alert.sent_ms) / 1000 for each in recent], s=6, color=P50, alpha=0.5)
    for name, color in (("p50", INK), ("p99", P99)):
        value = summary["event_to_alert_ms"][name]
        if value is not None:
            axes.axhline(value / 1000, color=color, linewidth=1)
            axes.text(max(at), value / 1000, f" {name} {value:,} ms", color=color, va="bottom", ha="right")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds since the first payment")
    axes.set_ylabel("seconds from payment to alert")
    title = f"{summary['payments']:,} payments, {summary['payments_per_s']:,.0f} a second: {len(seen):,} alerts"
    axes.set_title(title, loc="left", fontweight="bold")


def _scores(axes: Any, by_kind: dict[str, dict[str, Any]]) -> None:
    for number, kind in enumerate(KINDS):
        for shift, name, color in ((-0.2, "precision", PRECISION), (0.2, "recall", RECALL)):
            value = by_kind[kind][name]
            bars = axes.barh(number + shift, value or 0, height=0.36, color=color, label=name if not number else None)
            axes.bar_label(bars, ["no alert" if value is None else f"{value:.1%}"], padding=4, fontsize=9.5)
    axes.set_yticks(range(len(KINDS)), [f"{NAMES[kind]}\n{by_kind[kind]['planted']} planted" for kind in KINDS])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18)
    axes.set_xticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=2, frameon=False)
    axes.set_title("Against the planted fraud", loc="left", fontweight="bold")
