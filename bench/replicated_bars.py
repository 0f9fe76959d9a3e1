"""The bars of three replicas beside Kafka's three, computed from the samples of one run."""

from __future__ import annotations

from collections.abc import Callable

from bars import Bar, Verdict, verdicts
from measure import Samples

#: Our flush policy of the bars.
POLICY = "commit"


def _ratio(ours: str, theirs: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.ratio(ours, theirs)


def _median(name: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.median(name)


def _throughput(path: str, name: str, theirs: str, limit: float) -> Bar:
    peer = f"kafka.rf3.{theirs}.default"
    value = _ratio(f"headrace.{name}.{POLICY}", peer)
    return Bar(path, "Kafka, RF 3, acks=all, no fsync", limit, "x", value, peer=peer)


def _latency(rate: str, path: str) -> tuple[Bar, ...]:
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


def _of_one(api: str, label: str) -> Bar:
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


BARS: tuple[Bar, ...] = (
    _throughput("produce, `send_arrow`", "rf3.arrow", "produce", 5),
    _throughput("produce, `send()`, one outcome per record", "rf3.object", "produce", 2.5),
    _throughput("produce, 1 KiB values, lz4, objects", "rf3.large", "large", 2),
    _throughput("produce, 100 partitions, objects", "rf3.partitions-100", "partitions-100", 5),
    _throughput("produce, 1,000 partitions, objects", "rf3.partitions-1000", "partitions-1000", 5),
    Bar(
        "200 connections, unbatched", "Kafka, RF 3, acks=all, no fsync", 3, "x",
        _ratio(f"headrace.connections.raw.{POLICY}.acks-all", "kafka.rf3.connections.default"),
    ),
    *_latency("alone", "end to end, one record in flight"),
    *_latency("1k", "end to end at 1,000 rec/s"),
    *_latency("10k", "end to end at 10,000 rec/s"),
    *_latency("50k", "end to end at 50,000 rec/s"),
    _of_one("arrow", "`send_arrow`"),
    _of_one("object", "`send()`"),
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


def judge(samples: Samples) -> list[Verdict]:
    return verdicts(samples, BARS)
