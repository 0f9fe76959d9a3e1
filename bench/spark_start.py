"""Measure the first sink query of a Spark session, with Spark's worker daemon and with ours (headrace_spark.daemon).

    python bench/spark_start.py [ROUNDS]

Each round starts a new driver for each daemon, in turn. ``cpu`` is the processor time of all Python processes below the
driver: daemons and workers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import psutil

from headrace import Admin, LocalCluster, NewTopic

DAEMONS = ("pyspark.daemon", "headrace_spark.daemon")


def python_cpu_s() -> float:
    processes = psutil.Process().children(recursive=True)
    times = [process.cpu_times() for process in processes if "python" in process.name()]
    return float(sum(each.user + each.system for each in times))


def measure(bootstrap: str, daemon: str) -> dict[str, float]:
    """Measure the first and the second write of a new process, each with 4 tasks on 2 cores."""
    import headrace_spark

    spark = headrace_spark.session("start", master="local[2]", spark_python_daemon_module=daemon)
    frame = spark.range(0, 4_000, 1, 4).selectExpr("string(id) value")
    frame.count()  # run one job first: the JVM's own start-up is not measured
    found = {}
    for name in ("first", "second"):
        cpu, begun = python_cpu_s(), time.perf_counter()
        writer = frame.write.format("headrace").option("headrace.bootstrap.servers", bootstrap)
        writer.option("topic", "out").mode("append").save()
        found[f"{name} s"] = time.perf_counter() - begun
        found[f"{name} cpu s"] = python_cpu_s() - cpu
    spark.stop()
    return found


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
        return
    found: dict[str, list[dict[str, Any]]] = {daemon: [] for daemon in DAEMONS}
    with LocalCluster(brokers=1, controllers=1, coordinators=0) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("out", partitions=2, replication_factor=1)])
        for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
            for daemon in DAEMONS if number % 2 else reversed(DAEMONS):
                command = [sys.executable, __file__, cluster.bootstrap_servers, daemon]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                found[daemon].append(json.loads(done.stdout.splitlines()[-1]))
                print(daemon, found[daemon][-1], flush=True)
    for daemon, rounds in found.items():
        print(daemon, {key: round(statistics.median(each[key] for each in rounds), 2) for key in rounds[0]})


if __name__ == "__main__":
    main()
