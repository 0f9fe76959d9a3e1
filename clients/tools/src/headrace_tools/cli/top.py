"""The command ``top``: a live view of a cluster: throughput, lag, leaders, and partitions with problems."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import HeadraceError
from headrace_core.plurals import counted
from headrace_core.visible import one_line

from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, admin
from .output import Output, OutputFormat, note, print_table, rich_table
from .times import duration

if TYPE_CHECKING:
    from ..top.frames import Frame
    from ..top.sampling import Sampling

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]


def register(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    interval: Annotated[float, duration("--interval", "-i", least_s=0.2, help="Time between two updates.")] = 2.0,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many updates.")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print once, after one interval, and stop (the same as --count 1).")
    ] = False,
    rows: Annotated[
        int, typer.Option("--rows", min=1, help="Number of topics and groups to show; -o json shows all.")
    ] = 15,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Watch a cluster: records and bytes per second, leaders, lag, and partitions with problems.

    A terminal shows one picture, which is updated until Ctrl-C. In a pipe the pictures are printed one after the other;
    with -o json each picture is one JSON document on its own line. --count also counts a picture for which no node
    answered; except in the live view, the exit code is then 1. Changes nothing.

    \b
    Examples:
      headrace top
      headrace top -i 5 --rows 40
      headrace top --once
      headrace top -n 60 -o json | jq .records_per_s
    """
    from ..top.sampling import Sampling

    with admin(bootstrap, properties) as client:
        frames = _frames(Sampling(client), interval, 1 if once else count)
        if output is OutputFormat.JSON:
            code = _in_a_pipe(frames, lambda frame: print(json.dumps(dataclasses.asdict(frame)), flush=True))
        elif sys.stdout.isatty() and not once:
            _live(frames, rows)
            code = 0
        else:
            numbers = itertools.count()
            code = _in_a_pipe(frames, lambda frame: _print(frame, rows, is_first=next(numbers) == 0))
    if code:
        raise typer.Exit(code)


def _frames(sampling: Sampling, interval_s: float, count: int | None) -> Iterator[Frame | HeadraceError]:
    """Iterate over frames; a failed sample gives its error in place of a frame. If no node answers at the start, the
    error is raised; later the command waits for the cluster, within ``count`` samples, so that a limited run ends."""
    from ..top.frames import LagHistory, frame_of

    before, looks, history = sampling.sample(), 0, LagHistory()
    due_s = time.monotonic() + interval_s
    while count is None or looks < count:
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s = max(due_s + interval_s, time.monotonic())
        looks += 1
        try:
            now = sampling.sample()
        except HeadraceError as error:
            yield error
            continue
        yield history.add(frame_of(before, now))
        before = now


def _in_a_pipe(frames: Iterator[Frame | HeadraceError], show: Callable[[Frame], None]) -> int:
    """Print frames one after the other. Return 1 if a frame is missing because no node answered, and 0 if all frames
    were printed."""
    code = 0
    for frame in frames:
        if isinstance(frame, HeadraceError):
            note(f"headrace: {frame.message} [{frame.code}]")
            code = 1
        else:
            show(frame)
    return code


def _live(frames: Iterator[Frame | HeadraceError], rows: int) -> None:
    """Show frames on the terminal's alternate screen, which is always closed at the end. While no node answers, the
    last frame stays on the screen, with the time and the reason."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    shown: list[Any] = []
    with Live(Text("looking ..."), console=console, screen=True, auto_refresh=False) as live:
        for frame in frames:
            if isinstance(frame, HeadraceError):
                since = time.strftime("%H:%M:%S")
                why = one_line(f"{frame.message} [{frame.code}]")
                old = Text(f"no answer at {since}; the figures below are older: {why}", style="bold")
                live.update(Group(old, *shown), refresh=True)
                continue
            shown = [Text(_head(frame))]
            shown += [rich_table(columns, cells) for columns, cells in _tables(frame, rows)]
            shown += [Text(f"not known: {one_line(error)}") for error in frame.errors]
            live.update(Group(*shown), refresh=True)


def _print(frame: Frame, rows: int, *, is_first: bool) -> None:
    if not is_first:
        print()
    print(_head(frame))
    for columns, cells in _tables(frame, rows):
        print()
        print_table(columns, cells)
    for error in frame.errors:
        note(f"not known: {error}")


def _head(frame: Frame) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(frame.timestamp_ms / 1_000))
    leader = "no controller leads" if frame.controller_id < 0 else f"controller {frame.controller_id}"
    return (
        f"{at}  cluster {frame.cluster_id}, {leader}; {_rate(frame.records_per_s)} records/s, "
        f"{_bytes(frame.bytes_per_s)}/s; {counted(frame.partitions, 'partition')}, "
        f"{frame.under_replicated} under replicated, {frame.offline} offline; lag {frame.total_lag}"
    )


def _tables(frame: Frame, rows: int) -> Iterator[Table]:
    yield (
        ("BROKER", "ADDRESS", "STATE", "LEADERS", "REPLICAS", "NOT IN SYNC", "RECORDS/S", "BYTES/S"),
        [
            (
                row.id,
                row.address,
                ("fenced" if row.fenced else "live") + (", draining" if row.draining else ""),
                row.leaders,
                row.replicas,
                row.not_in_sync,
                _rate(row.records_per_s),
                _bytes(row.bytes_per_s),
            )
            for row in frame.brokers
        ],
    )
    yield (
        ("TOPIC", "PARTITIONS", "RECORDS/S", "BYTES/S", "UNDER REPLICATED", "OFFLINE"),
        [
            (
                row.topic,
                row.partitions,
                _known(row.records_per_s, _rate),
                _known(row.bytes_per_s, _bytes),
                row.under_replicated,
                row.offline,
            )
            for row in frame.topics[:rows]
        ],
    )
    if frame.groups:
        yield (
            ("GROUP", "STATE", "MEMBERS", "RECORDS/S", "LAG", "LAG S", "STATUS", "LAG OVER TIME"),
            [
                (
                    row.group,
                    row.state,
                    row.members,
                    _known(row.records_per_s, _rate),
                    row.lag,
                    None if row.lag_ms is None else f"{row.lag_ms / 1_000:.1f}",
                    row.status,
                    spark(row.lag_history),
                )
                for row in frame.groups[:rows]
            ],
        )


_BARS = "▁▂▃▄▅▆▇█"
_BARS_MAX = 20  #: Number of bars in the picture of the lag over time, which shows the newest lags.


def spark(values: Sequence[int]) -> str | None:
    """A line of bars, one for each of the last values; the highest bar is the largest value. Returns None for fewer
    than two values."""
    shown = values[-_BARS_MAX:]
    if len(shown) < 2:
        return None
    most = max(shown) or 1
    return "".join(_BARS[value * (len(_BARS) - 1) // most] for value in shown)


def _known(value: float | None, words: Callable[[float], str]) -> str | None:
    return None if value is None else words(value)


def _rate(per_s: float) -> str:
    return f"{per_s:.1f}" if per_s < 100 else f"{per_s:.0f}"


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_024
    return f"{count:.1f} GiB"
