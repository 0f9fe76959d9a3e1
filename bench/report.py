"""Bars (targets), their verdicts, and the tables of a run: printed at its end, and written into docs/performance.

    report.py bench/results/FILE.json      rewrites the table of its page

A bar is a ratio of medians to a peer's best figure of the same run, or a limit in its unit. A bar without samples is
"not measured".
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import ROOT, Samples, save, table

#: Headrace's flush policy in the bars.
POLICY = "commit"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of one path. ``value`` computes a number from the samples, which must be at least (or at most) the
    limit."""

    path: str
    against: str
    limit: float
    unit: str  # "x" for ratios
    value: Callable[[Samples], float | None]
    at_least: bool = True
    #: Name of the peer's sample in a ratio; the table shows the setting of that sample.
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    bar: Bar
    measured: float | None
    #: The setting of the peer's best figure; empty without settings.
    setting: str = ""

    @property
    def met(self) -> bool | None:
        """The measured value; None if it was not measured."""
        if self.measured is None:
            return None
        return self.measured >= self.bar.limit if self.bar.at_least else self.measured <= self.bar.limit

    @property
    def below_half(self) -> bool:
        """Whether the measured value misses the limit by so much that the design of the path must change."""
        if self.measured is None:
            return False
        if self.bar.at_least:
            return self.measured < self.bar.limit / 2
        return self.measured > self.bar.limit * 2


def _ratio(ours: str, theirs: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.ratio(ours, theirs)


def _median(name: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.median(name)


def verdicts(samples: Samples, bars: Iterable[Bar]) -> list[Verdict]:
    """The bars with measured values and the setting of the peer's best figure."""
    found = []
    for bar in bars:
        best = None if bar.peer is None else samples.best(bar.peer)
        found.append(Verdict(bar, bar.value(samples), "" if best is None else best.setting))
    return found


# -- one replica: peers.py --------------------------------------------------------------------------------------------


def _produce(api: str, limit: float, peer: str, label: str) -> Bar:
    value = _ratio(f"headrace.produce.{api}.{POLICY}", peer)
    return Bar(f"produce, {label}", _PEERS[peer], limit, "x", value, peer=peer)


def _consume(api: str, limit: float, peer: str, label: str) -> Bar:
    value = _ratio(f"headrace.consume.{api}.{POLICY}", peer)
    return Bar(f"consume, {label}", _PEERS[peer], limit, "x", value, peer=peer)


def _codec(ours: str, theirs: str) -> Callable[[Samples], float | None]:
    return _ratio(f"headrace.codec.{ours}", f"aiokafka.codec.{theirs}")


def _of_ceiling(workload: str, kind: str, label: str) -> Bar:
    share = _ratio(f"headrace.{workload}.arrow.{POLICY}.mib", f"grpc.{kind}")
    return Bar(f"{workload}, Arrow", label, 0.5, "x", share)


def _of_ready_made(form: str) -> Bar:
    share = _ratio(f"headrace.spark.{form}", f"spark.ready_made.{form}")
    return Bar(f"Spark {form} read", "a data source with the Arrow batches ready-made", 0.6, "x", share)


def _of_dropping(name: str, label: str) -> Bar:
    share = _ratio(f"headrace.spark.{name}", f"spark.dropping.{name}")
    return Bar(label, "a Python sink that drops its Arrow batches", 0.5, "x", share)


def _at_most(path: str, limit: float, unit: str, name: str) -> Bar:
    return Bar(path, "absolute", limit, unit, _median(name), at_least=False)


_PEERS = {
    "kafka.producer-perf": "Kafka producer-perf",
    "kafka.consumer-perf": "Kafka consumer-perf",
    "confluent.produce": "confluent-kafka, delivery callbacks",
    "confluent.consume": "confluent-kafka, tuned",
    "aiokafka.produce": "aiokafka",
    "aiokafka.consume": "aiokafka",
}

OF_ONE_REPLICA: tuple[Bar, ...] = (
    _produce("arrow", 6, "kafka.producer-perf", "`send_arrow`"),
    _produce("many", 4, "kafka.producer-perf", "`send_many`"),
    _produce("object", 2.5, "kafka.producer-perf", "`send()`, one outcome per record"),
    _produce("object", 2, "confluent.produce", "`send()`, one outcome per record"),
    _consume("arrow", 2, "kafka.consumer-perf", "`fetch_arrow`"),
    _consume("object", 0.8, "kafka.consumer-perf", "objects, `.value` read"),
    _consume("object", 4, "confluent.consume", "objects, `.value` read"),
    _produce("async", 10, "aiokafka.produce", "`await send()`"),
    _consume("async", 4, "aiokafka.consume", "`async for`"),
    Bar("codec, objects in", "aiokafka, compiled", 1.5, "x", _codec("encode", "encode")),
    Bar("codec, objects out", "aiokafka, compiled", 1.5, "x", _codec("decode", "decode")),
    Bar("codec, Arrow in", "aiokafka, compiled", 8, "x", _codec("encode_arrow", "encode")),
    Bar("codec, Arrow out", "aiokafka, compiled", 5, "x", _codec("decode_arrow", "decode")),
    _of_ceiling("produce", "echo", "raw gRPC echo"),
    _of_ceiling("consume", "echo", "raw gRPC echo"),
    _of_ceiling("produce", "up", "raw gRPC, one way up (stricter)"),
    _of_ceiling("consume", "down", "raw gRPC, one way down (stricter)"),
    _at_most("end to end at 1,000 rec/s, p50", 1, "ms", f"headrace.latency.p50.{POLICY}"),
    _at_most("end to end at 1,000 rec/s, p99", 3, "ms", f"headrace.latency.p99.{POLICY}"),
    Bar(
        "200 connections, unbatched", "Kafka, SyncProducers.java", 1.5, "x",
        _ratio(f"headrace.connections.raw.{POLICY}", "kafka.sync-producers"),
    ),
    Bar(
        "200 connections, unbatched", "raw gRPC, 200 connections", 0.5, "x",
        _ratio(f"headrace.connections.raw.{POLICY}", "grpc.connections"),
    ),
    Bar("Spark batch read, aggregate", "absolute", 2.5e6, "rows/s", _median("headrace.spark.batch")),
    Bar("Spark AvailableNow stream, aggregate", "absolute", 1.2e6, "rows/s", _median("headrace.spark.stream")),
    _of_ready_made("batch"),
    _of_ready_made("stream"),
    Bar("Spark sink, acks=all", "absolute", 1e6, "rows/s", _median("headrace.spark.sink")),
    _of_dropping("sink", "Spark sink"),
    _of_dropping("copy", "Spark, topic to topic"),
    _at_most("broker RSS, idle", 90, "MiB", "headrace.rss.idle"),
    _at_most("broker RSS, most under load", 400, "MiB", "headrace.rss.loaded"),
    _at_most("start to first acknowledged record", 1.5, "s", "headrace.start"),
)  # fmt: skip


# -- three replicas: replicated.py ------------------------------------------------------------------------------------


def _throughput_rf3(path: str, name: str, theirs: str, limit: float) -> Bar:
    peer = f"kafka.rf3.{theirs}.default"
    value = _ratio(f"headrace.{name}.{POLICY}", peer)
    return Bar(path, "Kafka, RF 3, acks=all, no fsync", limit, "x", value, peer=peer)


def _latency_rf3(rate: str, path: str) -> tuple[Bar, ...]:
    ours = f"headrace.rf3.latency.{rate}"
    theirs = f"kafka.rf3.latency.{rate}"
    against = "Kafka with every write forced"
    return (
        Bar(f"{path}, p50", against, 1.0, "x", _ratio(f"{ours}.p50.{POLICY}", f"{theirs}.p50.flushed"), at_least=False),
        Bar(f"{path}, p99", against, 0.3, "x", _ratio(f"{ours}.p99.{POLICY}", f"{theirs}.p99.flushed"), at_least=False),
        Bar(
            f"{path}, p99", "Kafka, no fsync", 0.3, "x", _ratio(f"{ours}.p99.{POLICY}", f"{theirs}.p99.default"),
            at_least=False,
        ),
    )  # fmt: skip


def _of_acks_one(api: str, label: str) -> Bar:
    share = _ratio(f"headrace.rf3.{api}.{POLICY}", f"headrace.rf3.{api}.{POLICY}.acks-1")
    return Bar(f"acks=all, {label}", "acks=1", 0.7, "x", share)


def _extra_of_all(samples: Samples) -> float | None:
    """Extra cost of acks=all over acks=1 at 1,000 records per second, minus one forced write and one round trip."""
    names = ("1k.p50." + POLICY, "1k.p50." + POLICY + ".acks-1")
    every, one = (samples.median(f"headrace.rf3.latency.{name}") for name in names)
    floors = [samples.median(f"floor.{each}") for each in ("fdatasync", "echo")]
    if every is None or one is None or None in floors:
        return None
    return every - one - sum(floor for floor in floors if floor is not None)


OF_THREE_REPLICAS: tuple[Bar, ...] = (
    _throughput_rf3("produce, `send_arrow`", "rf3.arrow", "produce", 5),
    _throughput_rf3("produce, `send()`, one outcome per record", "rf3.object", "produce", 2.5),
    _throughput_rf3("produce, 1 KiB values, lz4, objects", "rf3.large", "large", 2),
    _throughput_rf3("produce, 100 partitions, objects", "rf3.partitions-100", "partitions-100", 5),
    _throughput_rf3("produce, 1,000 partitions, objects", "rf3.partitions-1000", "partitions-1000", 5),
    Bar(
        "200 connections, unbatched", "Kafka, RF 3, acks=all, no fsync", 3, "x",
        _ratio(f"headrace.connections.raw.{POLICY}.acks-all", "kafka.rf3.connections.default"),
    ),
    *_latency_rf3("alone", "end to end, one record in flight"),
    *_latency_rf3("1k", "end to end at 1,000 rec/s"),
    *_latency_rf3("10k", "end to end at 10,000 rec/s"),
    *_latency_rf3("50k", "end to end at 50,000 rec/s"),
    _of_acks_one("arrow", "`send_arrow`"),
    _of_acks_one("object", "`send()`"),
    Bar(
        "acks=all at 1,000 rec/s, p50", "acks=1 + one fdatasync + one round trip", 0, "ms", _extra_of_all,
        at_least=False,
    ),
    Bar("headline: steady for 60 s", "absolute", 495_000, "rec/s", _median(f"headrace.rf3.headline.{POLICY}")),
    Bar(
        "headline, send to acknowledged, p99", "absolute", 10, "ms",
        _median(f"headrace.rf3.headline.{POLICY}.acked.p99"), at_least=False,
    ),
    Bar(
        "headline, end to end, p99", "absolute", 10, "ms", _median(f"headrace.rf3.headline.{POLICY}.received.p99"),
        at_least=False,
    ),
    Bar(
        "CPU of all nodes for a million records, `send()`", "Kafka, RF 3, acks=all, no fsync", 1.0, "x",
        _ratio(f"headrace.rf3.object.{POLICY}.cpu", "kafka.rf3.produce.default.cpu"), at_least=False,
        peer="kafka.rf3.produce.default.cpu",
    ),
)  # fmt: skip


# -- tables -----------------------------------------------------------------------------------------------------------


def number(value: float | None, unit: str) -> str:
    if value is None:
        return "not measured"
    shown = f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"
    return f"{shown}x" if unit == "x" else f"{shown} {unit}"


def _row(verdict: Verdict) -> tuple[str, str, str, str, str]:
    bar = verdict.bar
    sign = ">=" if bar.at_least else "<="
    met = {True: "yes", False: "**no**", None: "-"}[verdict.met]
    if verdict.below_half:
        met = "**below half**"
    against = f"{bar.against} ({verdict.setting})" if verdict.setting else bar.against
    return bar.path, against, f"{sign} {number(bar.limit, bar.unit)}", number(verdict.measured, bar.unit), met


def verdicts_table(verdicts: Iterable[Verdict]) -> str:
    """Markdown: one row per bar."""
    rows = [("path", "against", "bar", "measured", "met"), *(_row(verdict) for verdict in verdicts)]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def settings_table(samples: Samples) -> str:
    """Markdown: the peers' figures under several settings, and the best setting."""
    names = samples.names_with_settings()
    if not names:
        return ""
    found = {name: samples.by_setting(name) for name in names}
    settings = sorted({setting for medians in found.values() for setting in medians})
    lines = [
        f"| peer's figure | {' | '.join(settings)} | unit | best |",
        "|---" * (len(settings) + 3) + "|",
    ]
    for name, medians in found.items():
        best = samples.best(name)
        cells = [f"{medians[setting]:,.4g}" if setting in medians else "-" for setting in settings]
        unit = next(unit for each, unit in samples.units.items() if each.partition("@")[0] == name)
        lines.append(f"| `{name}` | {' | '.join(cells)} | {unit} | {best.setting if best else '-'} |")
    return "\n".join(lines)


def finish(
    samples: Samples,
    asked: argparse.Namespace,
    *,
    what: str,
    bars: Sequence[Bar] = (),
    extra: dict[str, Any] | None = None,
) -> int:
    """Print the medians, bars and failures; with --save write the result, and its page's table. Returns the exit
    code: 1 when a workload failed."""
    print(table(samples))
    if shown := [each for each in verdicts(samples, bars) if each.measured is not None or not asked.only]:
        print(verdicts_table(shown))
    if settings := settings_table(samples):
        print(settings)
    for failure in samples.failures:
        print(f"failed: {failure}")
    if asked.save and not asked.smoke:
        path = save(samples, what=what, extra={"rounds": asked.rounds, **(extra or {})})
        print(f"saved: {path.relative_to(ROOT)}")
        if what in PARTS:
            rewrite(path)
    return 1 if samples.failures else 0


# -- pages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page between two comments, with its bars."""

    name: str
    page: Path
    bars: tuple[Bar, ...]


PAGES = ROOT / "docs" / "performance"
#: The end of a saved file's name, and the part of a page that has its table.
PARTS = {
    "peers": Part("measured", PAGES / "README.md", OF_ONE_REPLICA),
    "replicated": Part("replicated", PAGES / "replicas.md", OF_THREE_REPLICAS),
}


def load(path: Path) -> tuple[Samples, dict[str, Any]]:
    result: dict[str, Any] = json.loads(path.read_text())
    samples = Samples(failures=result["failures"])
    for name, found in result["samples"].items():
        samples.units[name], samples.values[name] = found["unit"], found["values"]
    return samples, result


def _facts(path: Path, result: dict[str, Any]) -> str:
    machine = result["machine"]
    shown = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
    rounds = ""
    if "rounds" in result:
        rounds = " in one round" if result["rounds"] == 1 else f" as medians of {result['rounds']} rounds"
    facts = (
        f"We measured these figures{rounds} on {result['date']} at commit {result['commit']}, with {machine['cores']} "
        f"cores ({machine['cpu']}), {machine['memory_gib']} GiB, kernel {machine['kernel']} and Python "
        f"{machine['python']}. The saved file is `{shown}`."
    )
    return textwrap.fill(facts, 120, break_on_hyphens=False)


def failures_list(result: dict[str, Any]) -> str:
    """A list item for the beginning of each failure; the saved file has the whole failure."""
    return "".join(f"\n* failed: {textwrap.shorten(each, 80, placeholder=' ...')}" for each in result["failures"])


def rewrite(path: Path) -> None:
    """Write a saved result into its part of its page; bars that were not measured are left out."""
    part = PARTS[path.stem.rpartition("-")[2]]
    samples, result = load(path)
    bars = verdicts_table(each for each in verdicts(samples, part.bars) if each.measured is not None)
    settings = settings_table(samples)
    settings = f"\n### Which setting was Kafka's best\n\n{settings}\n" if settings else ""
    begin, end = f"<!-- {part.name}: begin -->", f"<!-- {part.name}: end -->"
    before, begins, rest = part.page.read_text().partition(begin)
    _, ends, after = rest.partition(end)
    if not (begins and ends):
        raise SystemExit(f"{part.page}: there is no {begin} ... {end} in it")
    middle = f"{_facts(path, result)}\n\n{bars}\n{failures_list(result)}{settings}"
    part.page.write_text(f"{before}{begin}\n{middle}\n{end}{after}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    rewrite(Path(sys.argv[1]))
