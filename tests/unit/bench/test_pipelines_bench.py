"""bench/pipelines.py against clusters and drivers in memory: what it sends, what it counts, and what it refuses."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("pipelines")


class Side:
    """A cluster with topics in memory, and a driver that answers at once."""

    def __init__(self, name: str, rows: int = 7) -> None:
        self.name, self.log, self.driver = name, self, SimpleNamespace(ready=lambda: SimpleNamespace(pid=os.getpid()))
        self.rows, self.cluster = rows, [os.getpid()]
        self.topics: dict[str, list[Any]] = {}
        self.asked: list[tuple[str, ...]] = []

    def create(self, topics: list[str]) -> None:
        for topic in topics:
            assert topic not in self.topics
            self.topics[topic] = []

    def delete(self, topics: list[str]) -> None:
        for topic in topics:
            del self.topics[topic]

    @contextmanager
    def producer(self) -> Iterator[Callable[[str, Any], None]]:
        yield lambda topic, sent: self.topics[topic].append(sent)

    def read(self, topic: str, ended: Event, take: Callable[[bytes], None]) -> None:
        """Each line of the log is a request at once."""
        lines = self.topics[topic.replace("clickstream.requests", "clickstream.log")]
        done = 0
        while not ended.wait(0.001):
            for sent in lines[done:]:
                take(b'{"line":"%s"}' % sent.headers[0][1])
                done += 1

    def ask(self, *words: str) -> dict[str, Any]:
        self.asked.append(words)
        if words[0] == "backlog":
            return {"seconds": 2.0, "counts": {"rows": self.rows}, "batches": {}}
        if words[0] == "start":
            return {}
        batches = {}
        for topic, every in self.topics.items():
            if topic.startswith("run-") and every:
                ends = {str(number): sum(sent.partition == number for sent in every) for number in (0, 1)}
                name = {"log": "requests"}.get(topic.rpartition(".")[2], topic.rpartition(".")[2])
                batches[name] = [{"end": ends, "rows": len(every), "ms": {"addBatch": 5}, "visible": time.time()}]
        return {"batches": batches}


def asked(only: str = "", **changes: Any) -> argparse.Namespace:
    settings = {"rounds": 1, "copies": 1, "rate": 500.0, "seconds": 0.08, "warm_up_s": 0.02, "smoke": False}
    return argparse.Namespace(**{**settings, "only": only, **changes})


def measured(bench: Any, flags: argparse.Namespace, **sides: Side) -> Any:
    samples = bench.Samples()
    bench._measure(bench.Bench(samples, sides, flags), samples, flags)
    return samples


def test_each_side_processes_the_same_records_and_the_first_round_does_not_count(bench: Any) -> None:
    sides = {name: Side(name) for name in ("kafka", "headrace")}
    samples = measured(bench, asked(only="clickstream"), **sides)
    assert samples.failures == []
    assert samples.values["kafka.clickstream.backlog"] == [5_000.0]  # 10,000 lines in 2 s
    assert samples.values["headrace.clickstream.backlog"] == [5_000.0]
    assert len(samples.values["headrace.at-least-once.clickstream.steady.p99"]) == 1
    assert sides["kafka"].topics == sides["headrace"].topics
    assert {topic: len(every) for topic, every in sides["kafka"].topics.items() if every} == {
        "clickstream.log": 10_000,
        "warm-up.clickstream.log": 2_500,
    }
    assert [words[:4] for words in sides["kafka"].asked if words[0] == "backlog"] == [
        ("backlog", "clickstream", "at-least-once", "warm-up."),
        ("backlog", "clickstream", "at-least-once", ""),
    ]


def test_sides_with_different_results_are_a_failure(bench: Any) -> None:
    sides = {"kafka": Side("kafka"), "headrace": Side("headrace", rows=8)}
    samples = measured(bench, asked(only="^(kafka|headrace).clickstream.backlog"), **sides)
    assert [failure.partition(":")[0] for failure in samples.failures] == [
        "kafka.clickstream.backlog",  # the warm-up begins with Headrace
        "headrace.clickstream.backlog",
    ]
    assert "another run had" in samples.failures[0]


def batch(visible: float, *ends: int) -> dict[str, Any]:
    return {"end": {str(number): end for number, end in enumerate(ends)}, "rows": 1, "ms": {}, "visible": visible}


def flights(bench: Any, batches: list[dict[str, Any]], partitions: list[int], warm_up: int = 0) -> list[float]:
    """The latencies of flights whose driver had these batches."""
    side = Side("headrace")
    side.create(["lake.flights"])
    side.ask = lambda *words: {"batches": {"flights": batches}}  # type: ignore[method-assign]
    sent = [bench.Sent(partition, None, b"", [], None) for partition in partitions]
    found: list[float] = bench._of_flights(side, "", sent, argparse.Namespace(rate=1e6, warm_up_s=warm_up / 1e6))
    return found


def test_a_flight_is_late_by_the_end_of_its_batch_and_the_warm_up_does_not_count(bench: Any) -> None:
    now = time.time()
    taken = flights(bench, [batch(now + 100, 1, 1), batch(now + 200, 2, 1), batch(now + 300, 2, 2)], [0, 1, 0, 1], 1)
    assert [round(each / 100) for each in taken] == [1, 2, 3]


def test_flights_that_no_batch_has_are_an_error(bench: Any) -> None:
    with pytest.raises(RuntimeError, match="1 of 2 flights were processed"):
        flights(bench, [batch(time.time(), 1)], [0, 1])
