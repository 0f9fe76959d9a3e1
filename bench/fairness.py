"""Live traffic beside bulk traffic on one broker: the effect on the live records' latency. `make bench-fairness`

    fairness.py [--rounds 3] [--seconds 4] [--only REGEX] [--bulk-gib 2] [--rate 1000] [--save]

One broker, one controller, factor 1. One process sends ``--rate`` records a second (acks=1, flushed to the disk) to a
topic and reads them. Slices without another client (quiet) alternate with slices with one bulk client:

    cold-arrow, cold-poll   a reader of ``--bulk-gib`` GiB that are not in the page cache: it catches up
    warm-arrow, warm-poll   the same from the page cache
    produce                 a producer that sends as fast as it can, to a topic of its own

Each pair of slices is one quiet slice and one slice beside the bulk client; ``ratio`` compares the medians of the
rounds. For the readers of cold data a third pair has the disk alone, without a broker: one process writes and flushes
one record at a time at the same rate (``disk.quiet``), then beside a process that reads from the disk as many bytes a
second as the broker did (``disk.cold-arrow``). This pair shows which part of a latency comes from the disk.

The bars: beside a reader of cold data, p50 is at most twice and p99 at most three times the value of the quiet slices.
The exit code is 1 if a workload failed; a missed bar is only printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import floors
import ours
import report
from bars import Bar, verdicts
from measure import PYTHON, WORK, Samples, cpu_seconds, emit, machine, save, table

MIB = 1 << 20
#: Bulk client -> (workload of `headrace bench`, API, whether the bytes leave the page cache first).
BULK = {
    "cold-arrow": ("consume", "arrow", True),
    "cold-poll": ("consume", "object", True),
    "warm-arrow": ("consume", "arrow", False),
    "warm-poll": ("consume", "object", False),
    "produce": ("produce", "arrow", False),
}
RECORD_BYTES = 100


def beside_quiet(name: str, quantile: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.ratio(f"beside.{name}.{quantile}", f"quiet.{name}.{quantile}")


BARS = tuple(
    Bar(f"{name}: {quantile} of live traffic", "without the bulk client", most, "x", beside_quiet(name, quantile),
        at_least=False, peer=f"quiet.{name}.{quantile}")
    for name in BULK
    for quantile, most in (("p50", 2.0), ("p99", 3.0))
)  # fmt: skip


class Fairness:
    def __init__(self, cluster: ours.Headrace, samples: Samples, asked: argparse.Namespace) -> None:
        self.cluster, self.samples, self.asked = cluster, samples, asked
        self.live = cluster.new_topic("commit")
        self.bulk = cluster.new_topic("os")
        self.records = int(asked.bulk_gib * 1024 * MIB / RECORD_BYTES)

    def fill(self) -> None:
        self.cluster.bench("produce", self.bulk, "--api", "arrow", "--records", str(self.records), timeout_s=300)

    def slices(self, name: str) -> None:
        self._slice(f"quiet.{name}")
        with self._bulk_client(name) as pid, mock.patch.dict(os.environ, HEADRACE_BENCH_SETTLE="0"):
            before, cpu, read = time.monotonic(), cpu_seconds([self.cluster.broker_pid]), self._bytes_read()
            self._slice(f"beside.{name}")
            taken_s = time.monotonic() - before
            share = (cpu_seconds([self.cluster.broker_pid]) - cpu) / taken_s
            rate = (self._bytes_read() - read) / taken_s
            self.samples.add(f"beside.{name}.broker-cores", share, "cores")
            if not Path(f"/proc/{pid}").exists():
                raise RuntimeError(f"{name}: the bulk client ended before the slice did: enlarge --bulk-gib")
        if BULK[name][2]:
            self._disk_alone(name, rate)

    def _disk_alone(self, name: str, bytes_per_s: float) -> None:
        """Measure the time of the disk to flush records without a broker: alone, and beside a reader at this rate."""
        self.samples.add(f"beside.{name}.disk", bytes_per_s / MIB, "MiB/s")
        self._flushes(f"disk.quiet.{name}")
        reader = multiprocessing.get_context("spawn").Process(
            target=floors.read_at_rate, args=(self._bulk_files(), bytes_per_s), daemon=True
        )
        reader.start()
        try:
            self._flushes(f"disk.{name}")
        finally:
            reader.kill()
            reader.join()

    def _flushes(self, label: str) -> None:
        found = floors.forced_portions(
            self.cluster.directory, size=RECORD_BYTES, every_s=1 / self.asked.rate, seconds=self.asked.seconds, files=1
        )
        for quantile in ("p50", "p99"):
            self.samples.add(f"{label}.{quantile}", found[quantile], "ms")

    def _bytes_read(self) -> int:
        """Bytes that the broker has read from the disk (``read_bytes`` in proc(5))."""
        text = Path(f"/proc/{self.cluster.broker_pid}/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])

    def _bulk_files(self) -> list[Path]:
        return sorted(self.cluster.directory.rglob(f"{self.bulk}-*/*.log"))

    def _slice(self, label: str) -> None:
        records = str(int(self.asked.seconds * self.asked.rate))
        found = self.cluster.bench("latency", self.live, "--records", records, "--rate", str(self.asked.rate),
                                   "--acks", "1", "--no-warm")  # fmt: skip
        for quantile in ("p50", "p99"):
            self.samples.add(f"{label}.{quantile}", found["latency_ms"][quantile], "ms")

    @contextmanager
    def _bulk_client(self, name: str) -> Iterator[int]:
        workload, api, is_cold = BULK[name]
        if is_cold:
            self._forget_pages()
        topic = self.cluster.new_topic("os") if workload == "produce" else self.bulk
        script = (
            "import subprocess, sys\n"
            "while not subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode: pass\n"
        )
        command = [PYTHON, "-m", "headrace_tools", "bench", workload, "--topic", topic, "--api", api, "--no-warm"]
        command += ["--records", str(self.records), "-b", self.cluster.bootstrap, "-o", "json"]
        process = subprocess.Popen([PYTHON, "-c", script, *command], start_new_session=True)
        try:
            self._until_it_works(name)
            yield process.pid
        finally:
            os.killpg(process.pid, 9)
            process.wait()
            if workload == "produce":
                self.cluster.delete_topic(topic)

    def _until_it_works(self, name: str) -> None:
        """Wait until the broker uses a fifth of a core: the bulk client reads or writes."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            before = cpu_seconds([self.cluster.broker_pid])
            time.sleep(0.25)
            if cpu_seconds([self.cluster.broker_pid]) - before > 0.05:
                return
        raise RuntimeError(f"{name}: the bulk client causes no load on the broker")

    def _forget_pages(self) -> None:
        for path in self._bulk_files():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each slice")
    parser.add_argument("--only", default="", help="only the bulk clients whose name matches this regular expression")
    parser.add_argument("--bulk-gib", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=1_000, help="live records per second")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    samples = Samples()
    emit(machine=machine())
    with ours.Headrace(WORK / "fairness", ours.FULL) as cluster:
        fairness = Fairness(cluster, samples, asked)
        fairness.fill()
        for number in range(asked.rounds):
            for name in BULK:
                if re.search(asked.only, name):
                    try:
                        fairness.slices(name)
                    except (RuntimeError, KeyError) as failure:
                        samples.fail(name, str(failure))
            emit(round=number)
    print(table(samples))
    print(report.verdicts_table(verdicts(samples, BARS)))
    for failed in samples.failures:
        print(f"failed: {failed}")
    if asked.save:
        emit(saved=str(save(samples, what="fairness", extra={"rounds": asked.rounds})))
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
