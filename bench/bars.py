"""The targets of the first release for each path, and their check against the samples of one run.

A bar is a ratio of medians to a peer's best figure of the same run, or a limit in its unit. A bar without samples is
"not measured".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from measure import Samples

#: The flush policy of Headrace in the required results (bars).
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

BARS: tuple[Bar, ...] = (
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


def judge(samples: Samples) -> list[Verdict]:
    return verdicts(samples, BARS)


def verdicts(samples: Samples, bars: Iterable[Bar]) -> list[Verdict]:
    """The bars with measured values and the setting of the peer's best figure."""
    found = []
    for bar in bars:
        best = None if bar.peer is None else samples.best(bar.peer)
        found.append(Verdict(bar, bar.value(samples), "" if best is None else best.setting))
    return found
