"""Pipelines and Spark drivers as processes that a test may kill; the true alerts of the fraud pipeline; and whether
memory, state and checkpoints stay flat in a long run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pandas as pd
import psutil
import pytest

from headrace import Admin, Consumer, LocalCluster, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError
from headrace_pipelines.testing import kill_session
from tests.worlds.waiting import until

LONG_S = 600.0
NUMBER = re.compile(r"(?:lines|payments|records|commands): ([\d,]+) of ")


def kinds_to_kill(kinds: Sequence[str]) -> tuple[str, ...]:
    """The kinds of processes that a run of the tests kills: all in `make verify` (HEADRACE_PIPELINES_KILLED=all). CI
    runs each of the long files every sixth day, and kills the next kind each time."""
    if os.environ.get("HEADRACE_PIPELINES_KILLED") == "all":
        return tuple(kinds)
    return (kinds[int(os.environ["HEADRACE_TEST_SEED"]) // 6 % len(kinds)],)


class Run:
    """The command in its own process session. The run writes its summary to DIRECTORY/summary and its progress to
    DIRECTORY/said."""

    def __init__(self, pipeline: str, directory: Path, flags: list[str]) -> None:
        self._directory = directory
        command = [sys.executable, "-m", "headrace_pipelines", "run", pipeline, "--out", str(directory / "out")]
        with (directory / "summary").open("wb") as summary, (directory / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [*command, "-o", "json", *flags], stdout=summary, stderr=said, start_new_session=True
            )

    def said(self) -> str:
        return (self._directory / "said").read_text(errors="replace")

    def progress(self) -> int:
        """The number of records that the run has processed, of all releases."""
        total = last = 0
        for number in (int(found.replace(",", "")) for found in NUMBER.findall(self.said())):
            total += max(0, number - last) if number >= last else number
            last = number
        return total

    def wait_for(self, processed: int) -> int:
        """Wait until the run has processed this number of records; return the current number."""
        deadline = time.monotonic() + LONG_S
        while (done := self.progress()) < processed:
            if time.monotonic() > deadline:
                raise NotInTimeError(f"the run has not processed {processed} records: {self.said()[-2000:]}")
            try:
                code = self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"the run ended with {code} before {processed} records: {self.said()[-3000:]}")
        return done

    def outlives(self, cluster: LocalCluster, role: str, node: int) -> None:
        """Kill a node, and start it again when the run has continued without it: other brokers lead the broker's
        partitions, and the run has processed more records (or has ended). The first line of progress after the kill may
        count only records from before the kill."""
        with cluster.killed(role, node):
            if role == "broker":
                with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                    until(lambda: _has_leaders(admin, node), f"other brokers to lead the partitions of broker {node}")
            for _ in range(2):
                done = self.progress()
                until(lambda done=done: self._is_beyond(done), "the run to continue", LONG_S, pause_s=0.05)  # type: ignore[misc]

    def _is_beyond(self, done: int) -> bool:
        return self.progress() > done or self.process.poll() is not None

    def summary(self) -> dict[str, Any]:
        assert self.process.wait(LONG_S) == 0, self.said()[-3000:]
        return dict(json.loads((self._directory / "summary").read_text()))

    def kill(self) -> None:
        """kill -9 for the command and all its processes: its JVM, its executors, its workers."""
        if self.process.poll() is None:
            kill_session(self.process.pid)
            self.process.wait()

    def executors(self) -> list[psutil.Process]:
        found = []
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie, for which its parent has not waited
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in each.cmdline():
                    found.append(each)
        return found


def processes(run: Run, role: str) -> list[psutil.Process]:
    """The run's processes with a role, such as "handler"."""
    found = []
    for each in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has ended
            found += [each] if role in each.cmdline() else []
    return found


def _has_leaders(admin: Admin, dead: int) -> bool:
    return all(part.leader != dead for topic in admin.describe_topics() for part in topic.partitions)


DRIVER_S = 240.0
_ROOT = Path(__file__).resolve().parents[2]


class SparkDriver:
    """Run ``script`` with ``arguments``; its output goes to DIRECTORY/driver.log."""

    def __init__(self, script: Path, directory: Path, *arguments: str) -> None:
        self._log = directory / "driver.log"
        # Spark's workers must be able to import tests.…
        paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths},
            )

    def kill(self) -> None:
        """kill -9 for all processes of the driver: its Python, its JVM, its workers."""
        if self.process.poll() is not None:
            return
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(timeout=60)
        psutil.wait_procs(family, timeout=60)

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + DRIVER_S
        while not condition():
            if self.process.poll() is not None:
                pytest.fail(f"the driver ended before {what}: {self.output()}")
            if time.monotonic() >= deadline:
                raise NotInTimeError(f"never: {what}")
            time.sleep(0.05)  # this polls a condition, and does not wait for a guessed time

    def wait_ended(self) -> None:
        assert self.process.wait(timeout=DRIVER_S) == 0, self.output()

    def output(self) -> str:
        return self._log.read_text()[-3_000:]


YEARS = pd.Timestamp("2020-01-01"), pd.Timestamp("2040-01-01")

BURSTS = """
    SELECT payment, CASE WHEN is_small THEN 'testing' ELSE 'velocity' END
    FROM judged
    WINDOW
        four AS (PARTITION BY customer, account, is_small ORDER BY position ROWS 3 PRECEDING),
        six AS (PARTITION BY customer, account, is_small ORDER BY position ROWS 5 PRECEDING)
    QUALIFY CASE WHEN is_small
        THEN count(*) OVER four = 4 AND max(time_ms) OVER four - min(time_ms) OVER four < 20 * 60000
        ELSE count(*) OVER six = 6 AND max(time_ms) OVER six - min(time_ms) OVER six < 10 * 60000
    END
"""


class Found(NamedTuple):
    """``alerts``: payment and kind. ``letters``: the positions of payment records that are invalid or have no
    account."""

    alerts: Counter[tuple[int, str]]
    letters: Counter[tuple[int, int]]


def records_of(servers: str, topic: str) -> list[Any]:
    """All committed records of a topic, by partition and offset."""
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            found += consumer.poll(1.0)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def calculated(servers: str) -> Found:
    """The alerts and dead letters that the pipeline must write for the records in its input topics, by other formulas
    and without its code.

    DuckDB calculates the bursts. Velocity: the last six payments of 200 cents or more lie within ten minutes. Card
    testing: the last four payments below 200 cents lie within twenty minutes. The other rules skip the payments that
    they find, so loops compute them. Impossible travel: more than 100 km, and faster than 1,000 km/h, from the last
    place that was reachable. Unusual amount: the logarithm of the amount is more than four standard deviations above
    the mean of the usual amounts' logarithms; the account's usual amount counts as five payments with a deviation of
    one half.
    """
    by_customer = defaultdict(list)
    for topic in ("fraud.accounts", "fraud.payments"):
        for record in records_of(servers, topic):
            by_customer[record.key].append(record)
    letters: Counter[tuple[int, int]] = Counter()
    alerts: Counter[tuple[int, str]] = Counter()
    judged: list[dict[str, Any]] = []
    for records in by_customer.values():
        records.sort(key=lambda record: (record.timestamp_ms, record.topic, record.offset))
        usual: float | None = None
        newest: float | None = None  # the usual amount of the newest account
        accounts = 0
        until_ms = 0
        waiting: list[Any] = []
        of_account: list[dict[str, Any]] = []
        for record in records:
            if record.topic == "fraud.accounts":
                if record.value is None:
                    alerts.update(_of_account(usual, of_account))
                    usual, newest, accounts, of_account = None, None, accounts + 1, []
                    continue
                newest = math.log(json.loads(record.value)["usual_cents"])
                if not of_account:  # the usual amount counts when the first payment is judged
                    usual = newest
            else:
                waiting.append(record)
            if usual is not None:
                for each in waiting:
                    payment = _payment(each)
                    if payment is None:
                        letters[each.partition, each.offset] += 1
                    else:
                        if of_account and each.timestamp_ms >= until_ms:  # ten minutes after the previous payment
                            alerts.update(_of_account(usual, of_account))
                            usual, accounts, of_account = newest, accounts + 1, []
                        until_ms = max(until_ms if of_account else 0, each.timestamp_ms + 600_000)
                        of_account.append({**payment, "account": accounts, "position": len(judged)})
                        judged.append({**of_account[-1], "is_small": payment["cents"] < 200})
                waiting = []
        alerts.update(_of_account(usual, of_account))
        letters.update((each.partition, each.offset) for each in waiting)
    if judged:
        with duckdb.connect() as connection:
            connection.register("judged", pd.DataFrame(judged).drop(columns="place"))
            alerts.update(connection.execute(BURSTS).fetchall())
    return Found(alerts, letters)


def _payment(record: Any) -> dict[str, Any] | None:
    try:
        payment = json.loads(record.value)
    except ValueError:
        return None
    first, end = YEARS
    is_right = payment and first <= pd.Timestamp(payment["time_ms"], unit="ms") < end
    return payment if is_right else None


def written(servers: str) -> Found:
    """The alerts and dead letters that the pipeline has written."""
    alerts = [json.loads(record.value) for record in records_of(servers, "fraud.alerts")]
    letters: Counter[tuple[int, int]] = Counter()
    for record in records_of(servers, "fraud.payments.dead-letters"):
        headers = dict(record.headers)
        position = (int(headers[f"headrace.dead-letter.{name}"]) for name in ("partition", "offset"))
        letters[tuple(position)] += 1
    return Found(Counter((alert["payment"], alert["kind"]) for alert in alerts), letters)


def _of_account(usual: float | None, payments: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Find unusual amounts and impossible travel."""
    alerts = []
    logs: list[float] = []
    last: tuple[tuple[float, float], int] | None = None
    for payment in payments:
        assert usual is not None
        number, now, cents, place = (payment[name] for name in ("payment", "time_ms", "cents", "place"))
        if cents >= 200:
            weight = len(logs) + 5
            mean = (math.fsum(logs) + 5 * usual) / weight
            square = (math.fsum(each**2 for each in logs) + 5 * (0.5**2 + usual**2)) / weight
            if math.log(cents) > mean + 4 * math.sqrt(square - mean**2):
                alerts.append((number, "amount"))
            else:
                logs.append(math.log(cents))
        if place is not None:
            far = 0.0 if last is None else _kilometres(last[0], place)
            if last is not None and now >= last[1] and far > 100 and far > 1_000 * (now - last[1]) / 3_600_000:
                alerts.append((number, "travel"))
            else:
                last = place, now
    return alerts


def _kilometres(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The angle between two vectors from the centre of the earth."""
    vectors = []
    for north, east in (one, other):
        north, east = math.radians(north), math.radians(east)
        vectors.append((math.cos(north) * math.cos(east), math.cos(north) * math.sin(east), math.sin(north)))
    return 6_371 * math.acos(max(-1.0, min(1.0, sum(a * b for a, b in zip(*vectors, strict=True)))))


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
