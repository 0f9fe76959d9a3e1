"""Measure latencies at a steady 500,000 records per second for a minute, through three replicas.

    headline.py --bootstrap HOST:PORT,... --topic T [--rate 500000] [--seconds 60] [--record-bytes 100] [--acks all]

One process sends on a schedule, `send_arrow` of the due records every 5 ms, linger 0; another one reads with
`fetch_arrow`. The first and the last record of every portion have a stamp: the portion's number and the time of its
send. Sender and reader share the machine's clock. The script measures two latencies of every portion:

    acked     from the send until all records of the portion are acknowledged
    received  from the send until the reader has the record; for both stamped records

Prints one JSON object. "Verified" means that every record was acknowledged and read, every stamp was seen once, and no
CRC was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import subprocess
import sys
import threading
import time
from typing import Any

import numpy
import pyarrow
import pyarrow.compute
from measure import PYTHON, emit, percentiles

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition, tune_memory

PORTION_S = 0.005
STALL_S = 30.0
_STAMP = struct.Struct(">QQ")  # (number of the portion, perf_counter_ns when it was sent)
_MAGIC_BYTES = 8


class Portions:
    """Makes tables of one size from random values. Each table has a new stamp (number and time) in its first and its
    last record."""

    def __init__(self, rows: int, size: int, magic: bytes) -> None:
        self.rows, self._size, self._magic = rows, size, magic
        self._blob = os.urandom(rows * size)
        self._offsets = pyarrow.py_buffer(numpy.arange(rows + 1, dtype=numpy.int32) * numpy.int32(size))

    def table(self, number: int) -> Any:
        blob = bytearray(self._blob)
        stamp = self._magic + _STAMP.pack(number, time.perf_counter_ns())
        for at in (0, (self.rows - 1) * self._size):
            blob[at : at + len(stamp)] = stamp
        buffers = [None, self._offsets, pyarrow.py_buffer(blob)]
        return pyarrow.table({"value": pyarrow.Array.from_buffers(pyarrow.binary(), self.rows, buffers)})


def send(asked: argparse.Namespace, magic: bytes) -> dict[str, Any]:
    """Send on schedule after a line on standard input. ``late_ms``: how late each portion was sent."""
    tune_memory()
    portions = Portions(max(2, int(asked.rate * PORTION_S)), asked.record_bytes, magic)
    count = int(asked.seconds / PORTION_S)
    acked: list[float] = []
    late: list[float] = []
    lock = threading.Lock()

    def timed(begun: float) -> Any:
        def done(future: object) -> None:
            with lock:
                acked.append((time.perf_counter() - begun) * 1e3)

        return done

    with Producer({"bootstrap.servers": asked.bootstrap, "acks": asked.acks, "linger.ms": 0}) as producer:
        producer.partitions_for(asked.topic)
        for number in range(200):  # these records warm up connections and caches; nothing measures or reads them
            producer.send_arrow(asked.topic, portions.table(number)).result(timeout=30)
        print("ready", flush=True)
        sys.stdin.readline()
        begun, used = time.perf_counter(), time.process_time()
        futures = []
        for number in range(count):
            due = begun + number * PORTION_S
            left = due - time.perf_counter()
            if left > 0:
                time.sleep(left)
            handed = time.perf_counter()
            late.append((handed - due) * 1e3)
            future = producer.send_arrow(asked.topic, portions.table(number))
            future.add_done_callback(timed(handed))
            futures.append(future)
        producer.flush(timeout=60)
        acknowledged = sum(future.result(timeout=60).record_count for future in futures)
        seconds = time.perf_counter() - begun
        used = time.process_time() - used
    return {
        "records": acknowledged,
        "cpu_s": round(used, 3),
        "wanted": count * portions.rows,
        "seconds": round(seconds, 3),
        "acked_ms": percentiles(acked),
        "late_ms": percentiles(late),
    }


def receive(asked: argparse.Namespace, magic: bytes) -> dict[str, Any]:
    """Read every record from now on, until the last portion has arrived."""
    tune_memory()
    count = int(asked.seconds / PORTION_S)
    wanted = count * max(2, int(asked.rate * PORTION_S))
    seen = bytearray(count)
    latencies: list[float] = []
    records = 0
    with Consumer({"bootstrap.servers": asked.bootstrap, "check.crcs": True}) as consumer:
        partitions = [TopicPartition(asked.topic, each) for each in sorted(consumer.partitions_for(asked.topic))]
        consumer.assign(partitions)
        for partition, end in consumer.end_offsets(partitions).items():
            consumer.seek(partition, end)
        consumer.fetch_arrow(timeout=1.0)  # an empty fetch: the cost of streams and first calls is not measured
        print("ready", flush=True)
        last, used = time.monotonic(), time.process_time()
        while records < wanted:
            table = consumer.fetch_arrow(timeout=1.0)
            now = time.perf_counter_ns()
            if not table.num_rows:
                if time.monotonic() - last > STALL_S:
                    break
                continue
            last = time.monotonic()
            values = table["value"]
            for value in values.filter(pyarrow.compute.starts_with(values, magic)).to_pylist():
                number, sent = _STAMP.unpack_from(value, _MAGIC_BYTES)
                seen[number] += 1
                latencies.append((now - sent) / 1e6)
            records += table.num_rows
        used = time.process_time() - used
    return {
        "records": records,
        "cpu_s": round(used, 3),
        "wanted": wanted,
        "every_stamp_once": seen.count(2) == count,
        "received_ms": percentiles(latencies),
    }


def measure(
    bootstrap: str, topic: str, *, rate: float, seconds: float, acks: str = "all", record_bytes: int = 100
) -> Any:
    """{"records_per_s", "acked_ms", "received_ms", "late_ms", "client_cpu_s", "verified"}; the topic must exist."""
    magic = os.urandom(_MAGIC_BYTES).hex()
    options = ["--bootstrap", bootstrap, "--topic", topic, "--rate", str(rate), "--seconds", str(seconds)]
    options += ["--acks", acks, "--record-bytes", str(record_bytes), "--magic", magic]
    started = []
    try:
        for role in ("send", "receive"):  # the reader starts after the sender's warm-up
            command = [PYTHON, __file__, *options, "--role", role]
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert started[-1].stdout is not None
            if started[-1].stdout.readline().strip() != "ready":
                raise RuntimeError(f"the headline's {role} process did not start; its error is above")
        sender, receiver = started
        sent = json.loads(sender.communicate("go\n", timeout=seconds + 120)[0])
        received = json.loads(receiver.communicate(timeout=STALL_S + 60)[0])
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait()
    whole = sent["records"] == sent["wanted"] == received["records"]
    return {
        "workload": "headline",
        "rate": rate,
        "records": sent["records"],
        "read": received["records"],
        "seconds": sent["seconds"],
        "records_per_s": round(sent["records"] / sent["seconds"], 1),
        "acked_ms": sent["acked_ms"],
        "received_ms": received["received_ms"],
        "late_ms": sent["late_ms"],
        "client_cpu_s": sent["cpu_s"] + received["cpu_s"],
        "verified": whole and received["every_stamp_once"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--rate", type=float, default=500_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--acks", default="all")
    parser.add_argument("--partitions", type=int, default=6, help="partitions of the topic, if it must be created")
    parser.add_argument("--role", choices=("send", "receive"), help=argparse.SUPPRESS)
    parser.add_argument("--magic", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role:
        role = {"send": send, "receive": receive}[asked.role]
        print(json.dumps(role(asked, bytes.fromhex(asked.magic))))
        return 0
    with Admin(bootstrap_servers=asked.bootstrap) as admin:
        if asked.topic not in admin.list_topics():
            admin.create_topics([NewTopic(asked.topic, asked.partitions)])
    found = measure(
        asked.bootstrap,
        asked.topic,
        rate=asked.rate,
        seconds=asked.seconds,
        acks=asked.acks,
        record_bytes=asked.record_bytes,
    )
    emit(**found)
    return 0 if found["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
