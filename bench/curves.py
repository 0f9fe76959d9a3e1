"""Curves of throughput and p99 of Headrace and of Kafka 4.3, each along one axis.

    curves.py [--axes partitions,producers,bytes,groups,brokers] [--rounds 1] [--seconds 5] [--short] [--save]
    curves.py --draw FILE       draw the pictures of a saved run into docs/pictures

    partitions  1 to 5,000 partitions of a topic: full speed; then 1,000 records/s from send to receipt
    producers   1 to 500 producers with one record in flight each: requests/s, and the time of a request
    bytes       records of 100 bytes to 1 MB: full speed in MiB/s; then at most 1,000 records/s and 10 MB/s
    groups      1 to 50 groups that read the same topic: records/s of all groups together; then 1,000 records/s
    brokers     1 to 6 brokers with up to three replicas and acks=all: full speed; then 1,000 records/s

Headrace flushes every write; Kafka has its defaults, so it flushes no write. Full speed is ``send_arrow`` for Headrace,
and for Kafka the best of three settings of Kafka's own producer-perf (kafka_settings.py). On the axis ``groups`` both
have Python clients, each with threads in one process (curve_groups.py). The two take turns at each point.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import connections
import ours
from kafka_node import KafkaNode
from kafka_settings import SETTINGS, SMOKE_WARM_UP_S, Setting
from measure import (
    PYTHON,
    ROOT,
    WORK,
    Samples,
    emit,
    machine,
    run_json,
    save,
    settle,
    table,
    wait_until_idle,
    warm_memory,
)

SETTINGS_AT_SPEED: tuple[Setting, ...] = SETTINGS[1:]  #: Kafka's default batches of 16 KiB are never the fastest.
WARM_UP_S = 30.0
PICTURES = ROOT / "docs" / "pictures"
RECORD_BYTES, PARTITIONS, RATE, BYTES_PER_S = 100, 6, 1_000, 10_000_000
NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Sizes:
    records: int  # of 100 bytes, at full speed
    deliveries: int  # records that all groups read together
    seconds: float
    kafka_warm_up_s: float
    warm_gib: float


@dataclass(frozen=True, slots=True)
class Axis:
    """``rate``: the label of the first panel of the picture."""

    name: str
    values: tuple[int, ...]
    short: tuple[int, ...]
    label: str
    rate: str = "records/s"


AXES = (
    Axis("partitions", (1, 10, 100, 1_000, 5_000), (1, 20), "partitions of the topic"),
    Axis("producers", (1, 10, 50, 200, 500), (1, 5), "producers with one record in flight", "requests/s"),
    Axis("bytes", (100, 1_000, 10_000, 100_000, 1_000_000), (100, 10_000), "bytes of a record", "MiB/s"),
    Axis("groups", (1, 5, 20, 50), (1, 3), "groups that read the topic"),
    Axis("brokers", (1, 2, 3, 6), (1, 2), "brokers (at most three replicas, acks=all)"),
)


@dataclass(slots=True)
class Pair:
    """Headrace and Kafka side by side, with the same number of brokers."""

    samples: Samples
    headrace: ours.Headrace
    kafka: KafkaNode
    sizes: Sizes
    acks: str = "1"

    # -- one point of each axis

    def partitions(self, point: str, partitions: int) -> None:
        self._full_speed(point, partitions)
        self._paced(point, partitions)

    def bytes(self, point: str, size: int) -> None:
        self._full_speed(point, PARTITIONS, size=size)
        self._paced(point, PARTITIONS, size=size)

    def brokers(self, point: str, brokers: int) -> None:
        self._full_speed(point, PARTITIONS * brokers)
        self._paced(point, PARTITIONS * brokers)

    def producers(self, point: str, producers: int) -> None:
        seconds = self.sizes.seconds
        with self._measured(f"{point}.headrace", PARTITIONS) as topic:
            settle()
            found = connections.measure(self.headrace.bootstrap, topic, connections=producers, seconds=seconds)
            self._add(f"{point}.headrace", found["requests_per_s"], "req/s", found)
        with self._measured(f"{point}.kafka", PARTITIONS) as topic:
            found = self.kafka.sync_producers(topic, producers, seconds)
            self._add(f"{point}.kafka", found["requests_per_s"], "req/s", found)

    def groups(self, point: str, groups: int) -> None:
        records = min(self.sizes.records, self.sizes.deliveries // groups)
        for system, bootstrap in (("headrace", self.headrace.bootstrap), ("kafka", self.kafka.bootstrap)):
            with self._measured(f"{point}.{system}", PARTITIONS) as topic:
                if system == "kafka":
                    self.kafka.producer_perf(topic, records, setting=SETTINGS[1])
                else:
                    self.headrace.bench("produce", topic, "--api", "arrow", "--records", str(records), "--acks", "1")
                script = str(Path(__file__).with_name("curve_groups.py"))
                arguments = [system, bootstrap, topic, str(groups), str(records), str(self.sizes.seconds)]
                found = run_json([PYTHON, script, *arguments], timeout_s=240)
                self._add(f"{point}.{system}", found["records_per_s"], "rec/s", found)

    # -- parts of points

    def _full_speed(self, point: str, partitions: int, *, size: int = RECORD_BYTES) -> None:
        """Measure the rate at full speed: in MiB/s on the axis of sizes, otherwise in records/s."""
        records = max(200, self.sizes.records * RECORD_BYTES // size)
        unit, factor = ("MiB/s", size / (1 << 20)) if point.startswith("bytes.") else ("rec/s", 1.0)
        with self._measured(f"{point}.headrace.rate", partitions) as topic:
            words = ["--api", "arrow", "--records", str(records), "--record-bytes", str(size), "--acks", self.acks]
            found = self.headrace.bench("produce", topic, *words, "-X", f"max.request.size={8 << 20}")
            self.samples.add(f"{point}.headrace.rate", factor * found["records_per_s"], unit)
        for setting in SETTINGS_AT_SPEED:
            setting = replace(setting, buffer_bytes=256 << 20)
            with self._measured(f"{point}.kafka.rate@{setting.name}", partitions) as topic:
                rate = self.kafka.producer_perf(topic, records, setting=setting, acks=self.acks, record_bytes=size)
                self.samples.add(f"{point}.kafka.rate@{setting.name}", factor * rate, unit)

    def _paced(self, point: str, partitions: int, *, size: int = RECORD_BYTES) -> None:
        """The time from send to receipt at a rate far below the limit."""
        rate = min(RATE, BYTES_PER_S // size)
        with self._measured(f"{point}.headrace", partitions) as topic:
            words = ["--records", str(int(rate * self.sizes.seconds)), "--rate", str(rate), "--acks", self.acks]
            found = self.headrace.bench("latency", topic, *words, "--record-bytes", str(size))
            self._latency(f"{point}.headrace", found)
        with self._measured(f"{point}.kafka", partitions) as topic:
            found = self.kafka.end_to_end(
                topic, rate=rate, seconds=self.sizes.seconds, acks=self.acks, record_bytes=size
            )
            self._latency(f"{point}.kafka", found)

    @contextmanager
    def _measured(self, name: str, partitions: int) -> Iterator[str]:
        """A topic of the system that ``name`` contains. A failure in the block is a failed sample."""
        topic = f"curve-{next(NUMBERS)}"
        try:
            if ".kafka" in name:
                self.kafka.create_topic(topic, partitions=partitions)
                try:
                    yield topic
                finally:
                    self.kafka.delete_topic(topic)
            else:
                with self.headrace.topic("commit", partitions=partitions) as topic:
                    yield topic
        except (RuntimeError, KeyError, ValueError, TimeoutError) as failure:
            self.samples.fail(name, str(failure) or type(failure).__name__)

    def _add(self, name: str, rate: float, unit: str, found: dict[str, Any]) -> None:
        self.samples.add(f"{name}.rate", rate, unit)
        self._latency(name, found)

    def _latency(self, name: str, found: dict[str, Any]) -> None:
        for quantile in ("p50", "p99"):
            self.samples.add(f"{name}.{quantile}", found["latency_ms"][quantile], "ms")


@contextmanager
def pair(samples: Samples, sizes: Sizes, brokers: int = 1) -> Iterator[Pair]:
    """Start both systems, and then touch memory: the heaps of six JVMs take memory that was touched before."""
    with ExitStack() as stack:
        node = ours.Headrace(WORK / "curves", ours.SMOKE, brokers=brokers, coordinators=1)
        headrace = stack.enter_context(node)
        kafka = KafkaNode(WORK / "curves-kafka", nodes=brokers, warm_up_s=sizes.kafka_warm_up_s)
        stack.enter_context(kafka)
        kafka.warm()
        wait_until_idle()
        if sizes.warm_gib:
            emit(warmed_gib=sizes.warm_gib, seconds=round(warm_memory(sizes.warm_gib), 1))
        yield Pair(samples, headrace, kafka, sizes, acks="1" if brokers == 1 else "all")


def measured(samples: Samples, axes: list[tuple[Axis, tuple[int, ...]]], sizes: Sizes, rounds: int) -> None:
    for number in range(rounds):
        emit(round=number + 1, of=rounds)
        alone = [(axis, values) for axis, values in axes if axis.name != "brokers"]
        if alone:
            with pair(samples, sizes) as both:
                for axis, values in alone:
                    at: Callable[[str, int], None] = getattr(both, axis.name)
                    for value in values:
                        at(f"{axis.name}.{value}", value)
        for axis, values in axes:
            for brokers in values if axis.name == "brokers" else ():
                with pair(samples, sizes, brokers) as both:
                    both.acks = "all"
                    both.brokers(f"{axis.name}.{brokers}", brokers)


# -- the pictures ------------------------------------------------------------------------------------------------------


def curve(saved: dict[str, Any], axis: str, system: str, measure: str) -> list[tuple[int, float]]:
    """The points of a curve, in the order of the axis: value and median. Kafka's best setting counts."""
    figures = saved["medians"] | {name: each["median"] for name, each in saved["best"].items()}
    points = []
    for name, median in figures.items():
        words = name.split(".")
        if words[0] == axis and words[2:] == [system, measure]:
            points.append((int(words[1]), median))
    return sorted(points)


def draw(saved: dict[str, Any], directory: Path) -> list[Path]:
    """Draw ``curve-AXIS.png`` for each axis of a saved run."""
    from matplotlib.ticker import EngFormatter, LogLocator

    from headrace_pipelines.charts import charts

    made = []
    for axis in AXES:
        if not curve(saved, axis.name, "headrace", "p99"):
            continue
        with charts() as plt:
            figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
            for panel, measure, label in zip(panels, ("rate", "p99"), (axis.rate, "p99 in ms"), strict=True):
                for system, colour in (("headrace", "#0b6e99"), ("kafka", "#c05a1c")):
                    points = curve(saved, axis.name, system, measure)
                    name = {"headrace": "Headrace, flushed", "kafka": "Kafka 4.3, not flushed"}[system]
                    panel.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
                panel.set(xscale="log", yscale="log", xlabel=axis.label, ylabel=label)
                panel.set_xticks(axis.values, [f"{value:,}" for value in axis.values])
                panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.yaxis.set_major_formatter(EngFormatter())
                panel.minorticks_off()
            panels[0].legend(frameon=False)
            made.append(directory / f"curve-{axis.name}.png")
            figure.savefig(made[-1])
            plt.close(figure)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [axis.name for axis in AXES]
    parser.add_argument("--axes", default=",".join(names))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of each measurement with a fixed time")
    parser.add_argument(
        "--short", action="store_true", help="two points of each axis, which only show whether the tool works"
    )
    parser.add_argument("--warm-gib", type=float, default=6.0)
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    parser.add_argument("--draw", type=Path, metavar="FILE", help="only draw the pictures of a saved run")
    asked = parser.parse_args()
    if asked.draw:
        for path in draw(json.loads(asked.draw.read_text()), PICTURES):
            print(path.relative_to(ROOT))
        return 0
    wanted = asked.axes.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"--axes: {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    axes = [(axis, axis.short if asked.short else axis.values) for axis in AXES if axis.name in wanted]
    full = Sizes(3_000_000, 4_000_000, asked.seconds, WARM_UP_S, asked.warm_gib)
    sizes = Sizes(20_000, 20_000, 1.0, SMOKE_WARM_UP_S, 0.0) if asked.short else full
    samples = Samples()
    emit(machine=machine())
    measured(samples, axes, sizes, 1 if asked.short else asked.rounds)
    print(table(samples))
    for failure in samples.failures:
        print(f"failed: {failure}")
    if asked.save:
        path = save(samples, what="curves", extra={"rounds": asked.rounds, "seconds": asked.seconds})
        print(f"saved: {path.relative_to(ROOT)}")
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
