"""The dashboard of a run: a device at three grains, the fleet's readings, the silent devices, the twins' age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ..charts import FAINT, charts
from .grains import WIDTHS
from .schema import GRAINS, SILENT, Alarm

COLORS = ("#8fb8de", "#2e6f9e", "#d1495b")
ALERT = "#d1495b"


class Shown(NamedTuple):
    """The data of the picture: a device, its rows of each grain, and the (window, readings) of the whole fleet by
    minute."""

    device: str
    grains: Mapping[str, Sequence[Any]]
    minutes: Sequence[tuple[datetime, int]]


def draw(
    shown: Shown, alarms: Sequence[Alarm], twins: Mapping[str, int], end_ms: int, summary: Mapping[str, Any],
    directory: Path,
) -> Path:  # fmt: skip
    """Write telemetry.png to ``directory``; returns its path. ``twins``: the time (ms) of each twin's reading."""
    path = directory / "telemetry.png"
    with charts(9) as plt:
        figure, ((device, fleet), (silent, age)) = plt.subplots(2, 2, figsize=(11, 6.4), layout="constrained")
        _device(device, shown, [each for each in alarms if each.device == shown.device])
        fleet.bar([window for window, _ in shown.minutes], [count for _, count in shown.minutes],
                  width=timedelta(seconds=50), align="edge", color=COLORS[0])  # fmt: skip
        fleet.set_title("good readings by minute", loc="left", fontweight="bold")
        _silent(silent, alarms, end_ms)
        ages_s = [(end_ms - time_ms) / 1000 for time_ms in twins.values()]
        age.hist(ages_s, bins=40, log=True, color=COLORS[1])
        age.set_title(f"age of {len(twins):,} twins at the end, in seconds", loc="left", fontweight="bold")
        age.set_ylabel("devices")
        for axes in (device, fleet, silent):
            axes.xaxis.set_major_formatter(plt.matplotlib.dates.DateFormatter("%H:%M"))
        figure.suptitle(
            f"{summary['readings']:,} readings of {len(twins):,} devices: {summary['minutes']:,} minutes, "
            f"{summary['fives']:,} times five, {summary['quarters']:,} times fifteen",
            x=0.01, ha="left",
        )  # fmt: skip
        figure.savefig(path)
        plt.close(figure)
    return path


def _device(axes: Any, shown: Shown, alarms: Sequence[Alarm]) -> None:
    """The means of one device at each grain, the range of its minutes, and its silences."""
    for topic, width, color in zip(GRAINS, WIDTHS, COLORS, strict=True):
        length = timedelta(minutes=int(width.split()[0]))
        for row in shown.grains[topic]:
            began, mean = row["window"], row["total"] / row["readings"] / 100
            label = width if row is shown.grains[topic][0] else None
            axes.hlines(mean, began, began + length, color=color, lw=2.2, label=label)
            if topic == GRAINS[0]:
                axes.fill_between([began, began + length], row["low"] / 100, row["high"] / 100, color=color, alpha=0.3)
    in_order = sorted(alarms, key=lambda each: each.at_ms)
    for began, ended in zip(in_order[::2], in_order[1::2], strict=False):
        axes.axvspan(_time(began.last_ms), _time(ended.at_ms), color=FAINT, alpha=0.15)
    axes.set_title(f"{shown.device}: degrees at three grains; gray: silent", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=8)


def _silent(axes: Any, alarms: Sequence[Alarm], end_ms: int) -> None:
    """The number of devices that are silent at a time."""
    steps = sorted((each.at_ms, 1 if each.alarm == SILENT else -1) for each in alarms)
    times, counts = [], [0]
    for at_ms, change in steps:
        times.append(_time(at_ms))
        counts.append(counts[-1] + change)
    if times:
        axes.step([*times, _time(end_ms)], [*counts[1:], counts[-1]], where="post", color=ALERT)
    axes.set_ylim(bottom=0)
    axes.set_title(f"silent devices; {sum(each.alarm == SILENT for each in alarms):,} alarms", loc="left",
                   fontweight="bold")  # fmt: skip


def _time(ms: int) -> datetime:
    """The time in UTC without a zone, like the timestamps from Spark in this module."""
    return datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)
