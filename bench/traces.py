"""Measure the cost of traces: compare a producer with traces to the same producer without traces, in one run.

    traces.py [--rounds 8] [--seconds 8] [--ratio 0.01] [--per-second 10] [--smoke] [--save]
    traces.py --alone


A producer sends as fast as it can with ``send``, in turns of ``--seconds``: one turn with otel.traces.ratio, and one
without traces, in changing order. All spans go to a collector: the producer's spans by OpenTelemetry's exporter, the
three brokers' spans by their own exporters. The figures are the records per second, and the processor time of all nodes
and of this process per million records. Other work on the machine affects the processor time less. The bar of the
design is 1 %.

The difference between turns is larger than the cost of traces. ``--alone`` measures the paths of traces without a
cluster (traces_alone.py).
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from measure import ROOT, Samples, cpu_seconds, emit, machine, save, table
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from traces_alone import measured

from headrace import Admin, LocalCluster, NewTopic, Producer

_TOPIC = "traced"
_VALUE = b"x" * 100
_PER_LOOK = 1_000  #: Number of sends between two readings of the clock.


def collect(pipe: Any) -> None:
    """A collector in a separate process: it sends its URL, and then the number of its spans for each message."""
    sys.path.insert(0, str(ROOT))
    from tests.worlds.trace_collector import collector

    with collector() as collecting:
        pipe.send(collecting.url)
        while pipe.recv():
            pipe.send(len(collecting.spans()))


@contextmanager
def collecting_process() -> Iterator[tuple[str, Callable[[], int]]]:
    """The URL of a collector, and a function that returns the number of its spans."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=collect, args=(theirs,), daemon=True)
    process.start()

    def count() -> int:
        ours.send(True)
        return int(ours.recv())

    try:
        yield ours.recv(), count
    finally:
        ours.send(False)
        process.join()


def turn(cluster: LocalCluster, seconds: float, settings: dict[str, Any]) -> tuple[float, float, float]:
    """Produce for some seconds; returns records per second, and processor seconds of the nodes and of this process per
    million records."""
    pids = [row["pid"] for row in cluster.ps()]
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5, **settings}) as producer:
        producer.send(_TOPIC, _VALUE).result(60)
        before_s, own_s, begun_s, sent = cpu_seconds(pids), time.process_time(), time.monotonic(), 0
        send = producer.send
        while time.monotonic() < begun_s + seconds:
            for _ in range(_PER_LOOK):
                send(_TOPIC, _VALUE)
            sent += _PER_LOOK
        producer.flush(timeout=60)
        taken_s = time.monotonic() - begun_s
    millions = sent / 1e6
    return sent / taken_s, (cpu_seconds(pids) - before_s) / millions, (time.process_time() - own_s) / millions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--per-second", type=int, default=10)
    parser.add_argument("--smoke", action="store_true", help="one short round, whose figures have no meaning")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--alone", action="store_true", help="measure the paths of traces, without a cluster")
    asked = parser.parse_args()
    if asked.alone:
        with collecting_process() as (url, _):
            alone = measured(url, asked.per_second)
        print(table(alone))
        return 0
    rounds, seconds = (1, 2.0) if asked.smoke else (asked.rounds, asked.seconds)
    samples = Samples()
    emit(machine=machine())
    traced = {
        "otel.traces.enable": True,
        "otel.traces.ratio": asked.ratio,
        "otel.traces.per.second.max": asked.per_second,
    }
    with collecting_process() as (url, count):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
        trace.set_tracer_provider(provider)
        config = {"otel.exporter.otlp.endpoint": url}
        with LocalCluster(controllers=1, brokers=3, coordinators=0, config=config) as cluster:
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                admin.create_topics([NewTopic(_TOPIC, partitions=6)])
            turn(cluster, seconds, {})  # a warm-up
            for number, is_first in itertools.product(range(rounds), (True, False)):
                is_traced = is_first is (number % 2 == 0)
                before = count()
                rate, cpu, own = turn(cluster, seconds, traced if is_traced else {})
                side = "traced" if is_traced else "untraced"
                samples.add(f"{side}.produce", rate, "rec/s")
                samples.add(f"{side}.cpu", cpu, "s/Mrec")
                samples.add(f"{side}.client.cpu", own, "s/Mrec")
                if is_traced:
                    samples.add("spans", (count() - before) / seconds, "1/s")
        provider.shutdown()
    figures = {name: statistics.median(values) for name, values in samples.values.items()}
    costs = {
        "throughput_cost_percent": 100 * (1 - figures["traced.produce"] / figures["untraced.produce"]),
        "cpu_cost_percent": 100 * (figures["traced.cpu"] / figures["untraced.cpu"] - 1),
        "client_cpu_cost_percent": 100 * (figures["traced.client.cpu"] / figures["untraced.client.cpu"] - 1),
    }
    print(table(samples))
    emit(**{name: round(value, 2) for name, value in costs.items()})
    if asked.save and not asked.smoke:
        extra = {"rounds": rounds, "seconds": seconds, "ratio": asked.ratio, **costs}
        print(save(samples, what="traces", extra=extra).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
