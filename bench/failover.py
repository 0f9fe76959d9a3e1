"""Measure how long writes are blocked by leader failures at default settings, beside Kafka's figure (`make
bench-failover`).

    failover.py [--kills 60] [--stops 5] [--moves 60] [--controllers 10] [--smoke] [--only REGEX] [--save]

Three brokers and three controllers are real processes. A topic has one partition with three replicas. One producer with
the SDK's defaults (acks=all, idempotent, linger 0) sends a record every 2 ms. Four cases:

    kill        kill -9 of the partition's leader, to the first acknowledgement of a record that was sent after it; the
                dead broker is restarted, and is in sync before the next kill
    stop        SIGSTOP of the leader (a long pause, a frozen disk), measured likewise; then SIGCONT
    move        a graceful handover: another order of the replicas, then an election, to an acknowledgement of a record
                sent once the new leader was known; and the latencies of all records sent meanwhile
    controller  kill -9 of the active controller: no produce may fail

At the end the script reads the log. The log must have every acknowledged record once, at its offset. Each sample is one
JSON object per line; a table of bars follows. Exit 1 when a bar is missed or a case fails.
"""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import WORK, Samples, begin, emit, flags, quantile
from report import finish

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import HeadraceError

TOPIC = "failover"
PARTITION = TopicPartition(TOPIC, 0)
PACE_S = 0.002
TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Bar:
    """``percentile`` of a sample's values must be at most ``limit``. If ``limit`` is None, the value is only
    reported."""

    what: str
    sample: str
    percentile: float
    limit: float | None


#: Kafka 4.3 at its defaults on this kind of machine: median 10.1 s, at most 11.0 s (10 kills).
BARS = {
    "kill": (
        Bar("kill -9 of the leader to an acknowledged write, p50, s", "kill.seconds", 0.5, None),
        Bar("kill -9 of the leader to an acknowledged write, p95, s", "kill.seconds", 0.95, 1.0),
        Bar("kill -9 of the leader to an acknowledged write, max, s", "kill.seconds", 1.0, None),
        Bar("kill -9: longest time without an acknowledgement, p95, s", "kill.gap", 0.95, None),
        Bar("the dead one in sync again after its start, p95, s", "kill.in_sync", 0.95, None),
    ),
    "stop": (Bar("SIGSTOP of the leader to an acknowledged write, max, s", "stop.seconds", 1.0, None),),
    "move": (
        Bar("graceful move to a write that the new leader acknowledged, p95, s", "move.seconds", 0.95, 0.3),
        Bar("graceful move: longest time without an acknowledgement, p95, s", "move.gap", 0.95, None),
        Bar("produce during graceful moves, p99.9, ms", "move.produce_ms", 0.999, None),
    ),
    "controller": (
        Bar("produces that fail while the active controller dies", "controller.failed", 1.0, 0.0),
        Bar("produce while the active controller dies, p99.9, ms", "controller.produce_ms", 0.999, None),
    ),
}


class Load:
    """Sends a record every 2 ms, and keeps the times at which each record was sent and acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        #: (send time, acknowledgement time, number, offset), in the order of the acknowledgements
        self.acknowledged: list[tuple[float, float, int, int]] = []
        self.failed: list[tuple[float, HeadraceError]] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._producer.flush(timeout=60)
        finally:
            self._producer.close()

    def _run(self) -> None:
        number = 0
        begun = time.perf_counter()
        while not self._stop.is_set():
            left = begun + number * PACE_S - time.perf_counter()
            if left > 0:
                time.sleep(left)
            future = self._producer.send(TOPIC, b"%d" % number, partition=0)
            future.add_done_callback(self._noting(number, time.perf_counter()))
            number += 1

    def _noting(self, number: int, sent: float) -> Callable[[Any], None]:
        def note(future: Any) -> None:
            try:
                self.acknowledged.append((sent, time.perf_counter(), number, future.result(timeout=0).offset))
            except HeadraceError as error:
                self.failed.append((sent, error))

        return note

    def first_after(self, moment: float, *, within_s: float = TIMEOUT_S) -> float:
        """Seconds from ``moment`` to the first acknowledgement of a record that was sent after ``moment``."""
        start = len(self.acknowledged)
        while time.perf_counter() - moment < within_s:
            for sent, acked, _, _ in self.acknowledged[start:]:
                if sent > moment:
                    return acked - moment
            start = max(0, len(self.acknowledged) - 1_000)
            time.sleep(0.001)
        raise RuntimeError(f"nothing that was sent since was acknowledged within {within_s:g} s")

    def latencies_ms(self, begun: float) -> list[float]:
        return [(acked - sent) * 1e3 for sent, acked, _, _ in list(self.acknowledged) if sent >= begun]

    def longest_gap(self, begun: float) -> float:
        """The longest time without an acknowledgement since ``begun``."""
        moments = [begun, *(acked for _, acked, _, _ in list(self.acknowledged) if acked >= begun)]
        return max((later - earlier for earlier, later in itertools.pairwise(moments)), default=0.0)


class Bench:
    def __init__(self, local: LocalCluster, admin: Admin, load: Load, samples: Samples) -> None:
        self.local, self.admin, self.load, self.samples = local, admin, load, samples

    def partition(self) -> Any:
        return self.admin.describe_topics([TOPIC])[0].partitions[0]

    def until(self, condition: Callable[[], bool], what: str) -> float:
        """Wait for ``condition``; returns the seconds."""
        begun = time.perf_counter()
        while True:
            try:
                if condition():
                    return time.perf_counter() - begun
            except HeadraceError as error:
                emit(waiting_for=what, error=str(error))
            if time.perf_counter() - begun > TIMEOUT_S:
                raise RuntimeError(f"{what}: not after {TIMEOUT_S:g} s; {self.partition()}")
            time.sleep(0.02)

    def whole(self) -> float:
        return self.until(lambda: len(self.partition().isr) == 3, "three replicas in sync")

    # -- cases

    def kill(self, count: int) -> None:
        for _ in range(count):
            self.whole()
            leader = self.partition().leader
            self.load.first_after(time.perf_counter())
            begun = time.perf_counter()
            self.local.kill("broker", leader)
            killed = time.perf_counter()
            self.samples.add("kill.seconds", self.load.first_after(killed), "s")
            self.samples.add("kill.gap", self.load.longest_gap(begun), "s")
            started = time.perf_counter()
            self.local.restart("broker", leader)
            self.whole()
            self.samples.add("kill.in_sync", time.perf_counter() - started, "s")

    def stop(self, count: int) -> None:
        for _ in range(count):
            self.whole()
            leader = self.partition().leader
            self.load.first_after(time.perf_counter())
            self.local.pause("broker", leader)
            try:
                self.samples.add("stop.seconds", self.load.first_after(time.perf_counter()), "s")
            finally:
                self.local.resume("broker", leader)
            self.samples.add("stop.in_sync", self.whole(), "s")

    def move(self, count: int) -> None:
        """Reorder the replicas, which copies nothing, then elect the first replica."""
        self.whole()
        begun = time.perf_counter()
        for _ in range(count):
            before = self.partition()
            others = [each for each in before.replicas if each != before.leader]
            self.admin.alter_partition_reassignments({PARTITION: [*others, before.leader]})
            asked = time.perf_counter()
            outcome = self.admin.elect_leaders("preferred", [PARTITION])[PARTITION]
            if outcome is not None and outcome.code != "ELECTION_NOT_NEEDED":
                raise outcome
            self.until(lambda old=before.leader: self.partition().leader not in (-1, old), "another leader")  # type: ignore[misc]
            self.load.first_after(time.perf_counter())  # acknowledgements of the old leader do not count
            self.samples.add("move.seconds", time.perf_counter() - asked, "s")
            self.samples.add("move.gap", self.load.longest_gap(asked), "s")
            self.whole()
        self.note_latencies("move.produce_ms", begun)

    def controller(self, count: int) -> None:
        begun = time.perf_counter()
        failed = len(self.load.failed)
        for _ in range(count):
            leader = self.admin.describe_quorum().leader_id
            self.local.kill("controller", leader)
            killed = time.perf_counter()
            self.load.first_after(killed)
            self.until(lambda old=leader: self.admin.describe_quorum().leader_id not in (-1, old), "a new one")  # type: ignore[misc]
            self.samples.add("controller.seconds", time.perf_counter() - killed, "s")
            self.local.restart("controller", leader)
            self.until(
                lambda: all(each.lag is not None for each in self.admin.describe_quorum().voters), "three voters"
            )
        self.samples.add("controller.failed", float(len(self.load.failed) - failed), "")
        self.note_latencies("controller.produce_ms", begun)

    def note_latencies(self, name: str, begun: float) -> None:
        found = sorted(self.load.latencies_ms(begun))
        self.samples.units[name] = "ms"
        self.samples.values.setdefault(name, []).extend(found)
        emit(sample=name, records=len(found), p50=quantile(found, 0.5), p999=quantile(found, 0.999), max=found[-1])


def check(bootstrap: str, load: Load) -> dict[str, int]:
    """Compare the log with the acknowledgements: {"acknowledged", "lost", "duplicates", "failed"}."""
    offsets: dict[int, list[int]] = {}
    with Consumer({"bootstrap.servers": bootstrap}) as consumer:
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, 0)
        end = consumer.end_offsets([PARTITION])[PARTITION]
        deadline = time.monotonic() + TIMEOUT_S
        while consumer.position(PARTITION) < end:
            for record in consumer.poll(timeout=1.0, max_records=50_000):
                offsets.setdefault(int(record.value or b"-1"), []).append(record.offset)
            if time.monotonic() > deadline:
                raise RuntimeError(f"the log cannot be read to its end, {end}")
    lost = sum(offset not in offsets.get(number, ()) for _, _, number, offset in load.acknowledged)
    return {
        "acknowledged": len(load.acknowledged),
        "lost": lost,
        "duplicates": sum(len(found) - 1 for found in offsets.values()),
        "failed": len(load.failed),
    }


def verdicts(samples: Samples, cases: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for bar in (bar for case in cases for bar in BARS[case]):
        values = samples.values.get(bar.sample)
        value = quantile(values, bar.percentile) if values else None
        met = bar.limit is None if value is None else bar.limit is None or value <= bar.limit
        found.append({"what": bar.what, "bar": bar.limit, "measured": value, "met": met and value is not None})
    return found


def shown(bars: Sequence[dict[str, Any]]) -> str:
    lines = []
    for bar in bars:
        value = "not measured" if bar["measured"] is None else f"{bar['measured']:.3g}"
        limit = "reported" if bar["bar"] is None else f"<= {bar['bar']:g}"
        lines.append(f"{'yes' if bar['met'] else 'NO':<4}{bar['what']:<66}{limit:<12}{value}")
    return "\n".join(lines)


def spread(samples: Samples) -> dict[str, dict[str, float]]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {
        name: {"n": len(values), **{label: round(quantile(values, share), 4) for label, share in shares.items()}}
        for name, values in samples.values.items()
    }


def run(samples: Samples, local: LocalCluster, counts: dict[str, int]) -> dict[str, int]:
    with Admin(bootstrap_servers=local.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(TOPIC, partitions=1, replication_factor=3)])
        with Load(local.bootstrap_servers) as load:
            load.first_after(time.perf_counter())
            bench = Bench(local, admin, load, samples)
            for case, count in counts.items():
                try:
                    getattr(bench, case)(count)
                except (RuntimeError, OSError, HeadraceError) as failure:
                    samples.fail(case, str(failure))
        found = check(local.bootstrap_servers, load)
    for what in ("lost", "duplicates"):
        if found[what]:
            samples.fail("check", f"{found[what]} {what}: {found}")
    for sent, error in load.failed[:5]:
        emit(failed_at=round(sent, 3), error=f"{error.code}: {error.message}"[:300])
    return found


def main() -> int:
    parser = flags(__doc__, warm_gib=0.0)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--moves", type=int, default=60)
    parser.add_argument("--controllers", type=int, default=10)
    parser.add_argument("--work", type=Path, default=WORK, help="directory of the cluster during the run")
    asked = parser.parse_args()
    if asked.smoke:
        asked.kills, asked.stops, asked.moves, asked.controllers = 2, 1, 3, 1
    every = {"kill": asked.kills, "stop": asked.stops, "move": asked.moves, "controller": asked.controllers}
    counts = {case: count for case, count in every.items() if re.search(asked.only, case)}
    samples = begin(asked)
    directory = asked.work / "failover"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        with LocalCluster(brokers=3, controllers=3, data=directory, start_timeout_s=60, stop_timeout_s=60) as local:
            found = run(samples, local, counts)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    bars = verdicts(samples, list(counts))
    summary = spread(samples)
    for name in [name for name in samples.values if name.endswith("produce_ms")]:
        del samples.values[name], samples.units[name]  # too many values to print and to save: one per record
    code = finish(samples, asked, what="failover", extra={"bars": bars, "spread": summary, "log": found})
    print(shown(bars))
    print(f"log: {found}")
    return code or (0 if all(bar["met"] for bar in bars) else 1)


if __name__ == "__main__":
    sys.exit(main())
