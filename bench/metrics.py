"""Measure the cost of scrapes: compare a cluster that is scraped each second with the same cluster without scrapes, in
one run.

    metrics.py [--rounds 6] [--seconds 10] [--partitions 200] [--smoke] [--save]

A producer sends as fast as it can to a topic with many partitions, in turns of ``--seconds``: one turn with scrapes of
every node each second, and one without, in changing order. The figures are the records per second, and the processor
time of all nodes for each million records. The difference between turns is larger than the cost of scrapes. So the
processor time of scrapes is also measured alone, on nodes without clients. ``scrape.cpu`` is the processor time of one
scrape of all nodes. ``scrape_share_percent`` is its share of the nodes' time under load, for one scrape per second. The
bar of the design is 1 %. Connections stay open between scrapes, and the text is OpenMetrics, as for Prometheus.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import statistics
import sys
import threading
import time
import urllib.parse

from measure import ROOT, Samples, cpu_seconds, emit, machine, running_seconds, save, table

from headrace import Admin, LocalCluster, NewTopic, Producer

_TOPIC = "scraped"
_VALUES = [b"x" * 100] * 500


class Target:
    """A node's /metrics, on a connection that stays open, as Prometheus scrapes it."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        self._path = parts.path
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=10)

    def scrape(self) -> int:
        """The number of bytes of the text."""
        self._connection.request("GET", self._path, headers={"Accept": "application/openmetrics-text"})
        return len(self._connection.getresponse().read())


class Scraper:
    """Scrapes every node each second, in a thread of its own."""

    def __init__(self, targets: list[Target]) -> None:
        self._targets = targets
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.bytes = self.scrapes = 0

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1.0):
            for target in self._targets:
                self.bytes += target.scrape()
                self.scrapes += 1


def turn(cluster: LocalCluster, seconds: float) -> tuple[float, float]:
    """Produce for some seconds; returns records per second, and processor seconds of the nodes per million records."""
    pids = [row["pid"] for row in cluster.ps()]
    before_s, begun_s, sent = cpu_seconds(pids), time.monotonic(), 0
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        while time.monotonic() < begun_s + seconds:
            producer.send_many(_TOPIC, _VALUES)
            sent += len(_VALUES)
        producer.flush(timeout=60)
    taken_s = time.monotonic() - begun_s
    return sent / taken_s, (cpu_seconds(pids) - before_s) / sent * 1e6


def cost_of_scrapes(targets: list[Target], pids: list[int], scrapes: int) -> float:
    """Processor seconds of all nodes for one scrape of each, minus the processor time of idle nodes."""

    def spent(*, is_scraped: bool) -> float:
        before_s = running_seconds(pids)
        for _ in range(scrapes):
            time.sleep(1.0)  # once per second, like Prometheus; a scrape soon after another one gets the same text
            for target in targets if is_scraped else []:
                target.scrape()
        return running_seconds(pids) - before_s

    idle_s = spent(is_scraped=False)
    return (spent(is_scraped=True) - idle_s) / scrapes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--smoke", action="store_true", help="one short round, whose figures have no meaning")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    rounds, seconds = (1, 2.0) if asked.smoke else (asked.rounds, asked.seconds)
    samples = Samples()
    emit(machine=machine())
    with LocalCluster(controllers=1, brokers=3, coordinators=1) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(_TOPIC, partitions=asked.partitions)])
        targets = [Target(row["metrics"]) for row in cluster.ps()]
        turn(cluster, seconds)  # a warm-up
        for number, is_first in itertools.product(range(rounds), (True, False)):
            is_scraped = is_first is (number % 2 == 0)
            if is_scraped:
                with Scraper(targets) as scraper:
                    rate, cpu = turn(cluster, seconds)
                samples.add("scrape.bytes", scraper.bytes / max(scraper.scrapes, 1), "B")
            else:
                rate, cpu = turn(cluster, seconds)
            side = "scraped" if is_scraped else "quiet"
            samples.add(f"{side}.produce", rate, "rec/s")
            samples.add(f"{side}.cpu", cpu, "s/Mrec")
        pids = [row["pid"] for row in cluster.ps()]
        for _ in range(rounds):
            samples.add("scrape.cpu", 1_000 * cost_of_scrapes(targets, pids, 2 if asked.smoke else 10), "ms")
    figures = {name: statistics.median(values) for name, values in samples.values.items()}
    costs = {
        "throughput_cost_percent": 100 * (1 - figures["scraped.produce"] / figures["quiet.produce"]),
        "cpu_cost_percent": 100 * (figures["scraped.cpu"] / figures["quiet.cpu"] - 1),
        "scrape_share_percent": 0.1 * figures["scrape.cpu"] / (figures["quiet.cpu"] * figures["quiet.produce"] / 1e6),
    }
    print(table(samples))
    emit(**{name: round(value, 2) for name, value in costs.items()})
    if asked.save and not asked.smoke:
        extra = {"rounds": rounds, "seconds": seconds, "partitions": asked.partitions, **costs}
        print(save(samples, what="metrics", extra=extra).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
