"""Check that the memory, the state and the checkpoint of a pipeline do not grow during a long run."""

from __future__ import annotations

import contextlib
import json
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

SAMPLE_S = 1.0
#: Maximum growth of a figure in the last three quarters of a run (by its slope) for a figure that counts as flat.
GROWTH_MAX = 0.1

CHECKPOINT = "checkpoint in MB"

_LINE = re.compile(r"\w+: ([\d,]+) of .* ([\d,]+) records to read, .*state ([\d,]+) rows ([\d.]+) MB")


class Flat(NamedTuple):
    """``figures``: the samples of each figure; ``behind``: the numbers of unread records that the run has printed."""

    summary: dict[str, Any]
    figures: dict[str, list[float]]
    behind: list[float]

    @property
    def grown(self) -> dict[str, float]:
        return {
            what: round((growth_of_peaks if what == CHECKPOINT else growth)(values), 3)
            for what, values in self.figures.items()
        }


def followed(command: Sequence[str], directory: Path, checkpoint: Path) -> Flat:
    """Run the command of a pipeline (with ``-o json``) in ``directory``, and sample it until its end. The samples are
    kept in ``directory``, also if the run fails."""
    samples: list[tuple[int, int]] = []
    with (directory / "summary").open("w") as summed_up, (directory / "said").open("w") as output:
        process = subprocess.Popen(command, cwd=directory, stdout=summed_up, stderr=output)
        try:
            while process.poll() is None:
                samples.append((_memory(process.pid), _size(checkpoint)))
                time.sleep(SAMPLE_S)  # the time between two samples, not a wait for an event
        finally:
            process.kill()
            (directory / "samples.json").write_text(json.dumps(samples))
    said = (directory / "said").read_text()
    assert process.returncode == 0, said[-3000:]
    shown = [[float(each.replace(",", "")) for each in line] for line in _LINE.findall(said) if line[0] != "0"]
    behind, rows, size_mb = ([line[number] for line in shown] for number in (1, 2, 3))
    figures = {
        "memory of the run in MB": [memory / 1e6 for memory, _ in samples if memory],
        CHECKPOINT: [size / 1e6 for _, size in samples if size],
        "rows of state": rows,
        "MB of state": size_mb,
    }
    return Flat(json.loads((directory / "summary").read_text()), figures, behind)


def growth(values: list[float]) -> float:
    """The growth of a figure over the last three quarters of the run, by the figure's slope, as a fraction of its
    mean."""
    steady = values[len(values) // 4 :]
    assert len(steady) > 2, values
    slope = statistics.linear_regression(range(len(steady)), steady).slope
    return slope * len(steady) / statistics.fmean(steady)


def growth_of_peaks(values: list[float]) -> float:
    """The growth of a figure that goes up and down: twice the growth of its maximum from the first to the second half
    of the last three quarters of the run, which is as strict as ``growth`` for a figure that grows steadily.

    The size of a checkpoint goes up and down each minute, when Spark removes old versions of the state. The peaks go up
    and down, too: in an hour of the fraud pipeline they were 233 MB in minute 22, 177 in 31, 244 in 37, 213 in 46 and
    247 in 54. (Spark writes a snapshot about every 65 s there, and removes versions every 60 s; the two meet about
    every 15 minutes. That this is the cause is a guess.) The slope of such a figure says at which point of the cycle
    the run has ended."""
    steady = values[len(values) // 4 :]
    assert len(steady) > 2, values
    half = len(steady) // 2
    return 2 * (max(steady[half:]) / max(steady[:half]) - 1)


def _memory(pid: int) -> int:
    """Resident bytes of a process and its children: the driver, its JVM, its workers."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
    return total


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
