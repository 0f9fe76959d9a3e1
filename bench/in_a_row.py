"""Runs in a row on one cluster of three brokers: does it become slower? `make bench-in-a-row`.

    in_a_row.py [--runs 10] [--records 5000000] [--seconds 20] [--warm-gib 12] [--save]

Each run writes to a new topic with three replicas and acks=all, first at full speed with ``send_arrow``, then 1,000
records/s, and deletes the topics. The deleted files leave the disk before the next run. The last run is compared with
the first one, and the median of the last three runs with that of the first three, because the p99 of one run varies.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import ours
from measure import WORK, Samples, emit, machine, save, settle, table, warm_memory


def one_run(cluster: ours.Headrace, records: int, seconds: float) -> dict[str, float]:
    with cluster.topic("commit") as topic:
        settle()
        words = ["--api", "arrow", "--records", str(records), "--acks", "all"]
        fast = cluster.bench("produce", topic, *words, timeout_s=300)
    with cluster.topic("commit") as topic:
        settle()
        words = ["--records", str(int(1_000 * seconds)), "--rate", "1000", "--acks", "all"]
        paced = cluster.bench("latency", topic, *words)
    return {"rate": fast["records_per_s"], "p50": paced["latency_ms"]["p50"], "p99": paced["latency_ms"]["p99"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds at 1,000 records/s")
    parser.add_argument("--warm-gib", type=float, default=12.0)
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    if asked.runs < 6:
        parser.error("--runs: the first three runs are compared with the last three: at least 6")
    emit(machine=machine())
    emit(warmed_gib=asked.warm_gib, seconds=round(warm_memory(asked.warm_gib), 1))
    samples = Samples()
    runs = []
    with ours.Headrace(WORK / "in-a-row", ours.SMOKE, brokers=3, controllers=3, coordinators=1) as cluster:
        for number in range(1, asked.runs + 1):
            found = one_run(cluster, asked.records, asked.seconds)
            emit(run=number, **{name: round(value, 2) for name, value in found.items()})
            runs.append(found)
            for name, unit in (("rate", "rec/s"), ("p50", "ms"), ("p99", "ms")):
                samples.add(f"headrace.in-a-row.{number:02}.{name}", found[name], unit)
    for name in ("rate", "p50", "p99"):
        values = [each[name] for each in runs]
        ends = statistics.median(values[-3:]) / statistics.median(values[:3])
        samples.add(f"headrace.in-a-row.last-of-first.{name}", values[-1] / values[0], "x")
        samples.add(f"headrace.in-a-row.last-three-of-first-three.{name}", ends, "x")
    print(table(samples))
    if asked.save:
        print(f"saved: {save(samples, what='in-a-row', extra={'runs': asked.runs}).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
