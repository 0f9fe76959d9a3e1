"""100,000 partitions in the metadata image: the cost of creating, deciding, snapshots, loading and following.

    metadata.py [--partitions 100000] [--rounds 1] [--smoke] [--layouts 100,1] [--save]

The benchmark runs the controller's core and storage on a real disk, without a network and without a cluster. The
metadata has 30 brokers and replication factor 3, once with 100 partitions per topic and once with 1. Each case is a
separate process, so that its memory can be measured:

    create     CreateTopics requests of the largest size allowed (metadata.max.records.per.request), each decided,
               appended and forced; then a snapshot, made in a thread beside the event loop; then single topics, without
               a disk; then one of the 30 brokers stops its heartbeats
    load       a start: open the storage, check the snapshot, make its image
    follow     an empty observer: reads the log, applies batch after batch
    install    an observer that lags: the delta between its image and that of a snapshot

Prints one JSON document. Exit 1 when a bar is missed or a case fails.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measure import PYTHON, ROOT, WORK, Samples, commit, machine, peak_rss_mib, rss_mib, run_json, save, settle

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import (
    Bootstrap,
    CreateTopics,
    FenceSilentBrokers,
    Heartbeat,
    NewTopic,
    RegisterBroker,
    Registered,
    Request,
)
from headrace_controller.control_records import encode_control
from headrace_controller.raft import Entry, EntryKind, HardState, Place, ReplicaKey, VoterSet
from headrace_controller.storage import MetadataStorage, SnapshotJob
from headrace_core.clock import SystemClock
from headrace_core.log.files import RealFileSystem
from headrace_core.metadata import EMPTY_IMAGE, BrokerEndpoint, MetadataDelta, MetadataImage
from headrace_core.metadata.codec import encode_decision
from headrace_core.node.meta_properties import format_directories

CLUSTER = "bench"
BROKERS = 30
FACTOR = 3
TERM = 1
#: The number of topics that are created one by one, and the number of missed heartbeats of a broker.
SINGLE = 2_000
SESSION_MS = 9_000

#: sample -> (description of the limit, upper limit)
BARS = {
    "decide_us": ("one decision among all partitions, us (2,000 writes a second leave 500)", 250.0),
    "fence_ms": ("deciding the changes after a broker's death, ms", 1_000.0),
    "snapshot_s": ("making a snapshot, s", 5.0),
    "stall_ms": ("longest stall of the event loop during the snapshot, ms", 100.0),
    "load_s": ("a start from the snapshot, s", 5.0),
    "follow_s": ("following the log from its beginning, s", 10.0),
}


class Bench:
    """A controller without raft: decisions are appended, forced and committed."""

    def __init__(self, root: Path) -> None:
        self.storage = open_storage(root)
        self.rng = random.Random(7)
        settings = ClusterSettings(broker_session_timeout_ms=SESSION_MS)
        self.core = ClusterCore(settings, new_id=lambda: self.rng.randbytes(16))
        self.now_ms = 1_000.0

    def begin(self) -> None:
        voters = VoterSet.of([ReplicaKey(1, self.storage.directory_id)])
        self.storage.save_hard_state(HardState(TERM, voters.keys[0]))
        data = encode_control(EntryKind.LEADER_CHANGE, TERM, 0, 1, voters, 0)
        self.storage.append([Entry(EntryKind.LEADER_CHANGE, TERM, 0, 1, data)])
        self.core.lead(self.now_ms)
        self.core.skip(1, TERM)
        self.core.commit(1)
        self.ask(Bootstrap(CLUSTER))
        for number in range(1, BROKERS + 1):
            registered = self.ask(
                RegisterBroker(
                    cluster_id=CLUSTER,
                    incarnation_id=self.rng.randbytes(16),
                    directory_ids=(self.rng.randbytes(16),),
                    endpoints=(BrokerEndpoint("client", f"broker-{number}", 9092),),
                    rack=f"rack-{number % 3}",
                )
            )
            self.heartbeat(registered)

    def heartbeat(self, registered: Registered) -> None:
        self.ask(
            Heartbeat(
                broker_id=registered.broker_id,
                broker_epoch=registered.broker_epoch,
                metadata_offset=self.core.committed.next_offset,
            )
        )

    def ask(self, request: Request, *, to_disk: bool = True) -> Any:
        decision = self.core.decide(request, self.now_ms)
        if decision.failure is not None:
            raise RuntimeError(f"{type(request).__name__}: {decision.failure.message}")
        base = self.core.speculative.next_offset
        end = base + len(decision.records)
        if decision.records and to_disk:
            data = encode_decision(decision.records, timestamp_ms=1, base_offset=base, epoch=TERM)
            self.storage.append([Entry(EntryKind.DATA, TERM, base, len(decision.records), data)])
        self.core.accept(decision, end, TERM)
        self.core.commit(end)
        return decision.reply


def open_storage(root: Path) -> MetadataStorage:
    return MetadataStorage.open(RealFileSystem(), str(root), clock=SystemClock(), cluster_id=CLUSTER, node_id=1)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = action()
    return time.perf_counter() - begun, found


def cpu(name: str, begun: float) -> dict[str, float]:
    """Processor time of this process since ``begun``, independent of other load."""
    return {f"{name}_cpu_s": time.process_time() - begun}


def rss() -> float:
    gc.collect()
    return rss_mib(os.getpid())


# ---------------------------------------------------------------------------------------------- the cases


def create(root: Path, partitions: int, per_topic: int) -> dict[str, float]:
    before = rss()
    bench = Bench(root)
    bench.begin()
    topics = partitions // per_topic
    room = bench.core.settings.metadata_max_records_per_request
    step = max(room // (per_topic + 1), 1)
    requests = [
        CreateTopics(
            tuple(
                NewTopic(name=f"topic-{number:06}", partitions=per_topic, replication_factor=FACTOR)
                for number in range(first, min(first + step, topics))
            )
        )
        for first in range(0, topics, step)
    ]
    begun = time.process_time()
    times = [timed(functools.partial(bench.ask, request))[0] for request in requests]
    used = cpu("create", begun)
    image = bench.core.committed
    if image.partition_count() != partitions:
        raise RuntimeError(f"{image.partition_count()} partitions instead of {partitions}")
    found = {
        "create_s": sum(times),
        "create_longest_request_ms": max(times) * 1_000,
        "log_mib": sum(path.stat().st_size for path in root.glob("*/*.log")) / 2**20,
        "image_rss_mib": rss() - before,
    }
    found |= used
    found |= asyncio.run(snapshot(bench))
    found["decide_us"] = single_decisions(bench)
    found["fence_ms"], found["fence_records"] = fence_one(bench)
    bench.storage.close()
    return found


async def snapshot(bench: Bench) -> dict[str, float]:
    """Make a snapshot in a thread, while the loop measures its longest stall."""
    image = bench.core.committed
    voters = VoterSet.of([ReplicaKey(1, bench.storage.directory_id)])
    job: SnapshotJob = bench.storage.snapshot_job(image, Place(image.next_offset, TERM), voters)
    loop = asyncio.get_running_loop()
    begun = last = time.perf_counter()
    running = loop.run_in_executor(None, job.run)
    stall = 0.0
    while not running.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        stall, last = max(stall, now - last), now
    await running
    taken = time.perf_counter() - begun
    finishing, _ = timed(lambda: bench.storage.finish_snapshot(job))
    return {
        "snapshot_s": taken,
        "snapshot_mib": job.size / 2**20,
        "snapshot_finish_ms": finishing * 1_000,
        "stall_ms": stall * 1_000,
    }


def single_decisions(bench: Bench) -> float:
    requests = [
        CreateTopics((NewTopic(name=f"single-{number}", partitions=1, replication_factor=FACTOR),))
        for number in range(SINGLE)
    ]
    begun = time.process_time()  # CPU time of this process only, independent of other load
    for request in requests:
        bench.ask(request, to_disk=False)
    return (time.process_time() - begun) / SINGLE * 1e6


def fence_one(bench: Bench) -> tuple[float, float]:
    """Fence one broker, after all other brokers have just sent heartbeats. Return the time in ms and the records."""
    image = bench.core.committed
    silent = max(image.brokers)
    bench.now_ms += SESSION_MS + 1
    for broker in image.brokers.values():
        if broker.broker_id != silent:
            bench.heartbeat(Registered(broker.broker_id, broker.broker_epoch))
    begun, records = time.perf_counter(), 0
    while (decision := bench.core.decide(FenceSilentBrokers(), bench.now_ms)).records:
        end = bench.core.speculative.next_offset + len(decision.records)
        bench.core.accept(decision, end, TERM)
        bench.core.commit(end)
        records += len(decision.records)
    return (time.perf_counter() - begun) * 1_000, float(records)


def load(root: Path) -> dict[str, float]:
    before = rss()

    def start() -> tuple[MetadataStorage, MetadataImage]:
        storage = open_storage(root)
        image = storage.load_image()
        for batch in storage.batches(image.next_offset):
            image = image.apply(batch.records, batch.next_offset, batch.epoch)
        return storage, image

    begun = time.process_time()
    taken, (storage, image) = timed(start)
    used = cpu("load", begun)
    found = {"load_s": taken, **used, "load_rss_mib": rss() - before, "load_peak_rss_mib": peak_rss_mib(os.getpid())}
    partitions = image.partition_count()
    storage.close()
    return found | {"partitions": float(partitions)}


def follow(root: Path) -> dict[str, float]:
    before = rss()
    storage = open_storage(root)

    def apply_all() -> MetadataImage:
        image = EMPTY_IMAGE
        for batch in storage.batches():
            image, _ = image.apply_with_delta(batch.records, batch.next_offset, batch.epoch)
        return image

    begun = time.process_time()
    taken, image = timed(apply_all)
    used = cpu("follow", begun)
    found = {"follow_s": taken, **used, "follow_rss_mib": rss() - before, "partitions": float(image.partition_count())}
    storage.close()
    return found


def install(root: Path) -> dict[str, float]:
    """An observer that followed until shortly before the end, and then gets a snapshot."""
    storage = open_storage(root)
    older = EMPTY_IMAGE
    for batch in storage.batches():
        if batch.next_offset > storage.log_end_offset * 9 // 10:
            break
        older = older.apply(batch.records, batch.next_offset, batch.epoch)
    newer = storage.load_image()
    taken, delta = timed(lambda: MetadataDelta.between(older, newer))
    storage.close()
    return {
        "between_ms": taken * 1_000,
        "partitions": float(newer.partition_count()),
        "changed": float(len(delta.partitions)),
    }


CASES: Mapping[str, Callable[[Path], dict[str, float]]] = {"load": load, "follow": follow, "install": install}


# ---------------------------------------------------------------------------------------------- the run

UNITS = {"_s": "s", "_ms": "ms", "_us": "us", "_mib": "MiB"}


def unit(name: str) -> str:
    return next((text for ending, text in UNITS.items() if name.endswith(ending)), "")


def measured(work: Path, partitions: int, per_topic: int) -> dict[str, float]:
    """One layout, each case in a separate process on the same directory."""
    root = work / f"metadata-{per_topic}"
    shutil.rmtree(root, ignore_errors=True)
    format_directories([str(root)], cluster_id=CLUSTER, node_id=1)
    found: dict[str, float] = {}
    try:
        for case in ("create", *CASES):
            command = [PYTHON, __file__, "--case", case, "--root", str(root)]
            command += ["--partitions", str(partitions), "--layouts", str(per_topic)]
            some = run_json(command, timeout_s=300)
            if some.pop("partitions", partitions) != partitions:
                raise RuntimeError(f"{case}: some partitions are missing")
            found |= some
            settle()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found


def verdicts(samples: Samples) -> list[dict[str, Any]]:
    found = []
    for name, values in sorted(samples.values.items()):
        layout, _, sample = name.partition(".")
        if sample in BARS:
            what, most = BARS[sample]
            worst = max(values)
            found.append({"what": f"{layout}: {what}", "bar": most, "measured": round(worst, 4), "met": worst <= most})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--layouts", default="100,1", help="partitions per topic")
    parser.add_argument("--work", type=Path, default=WORK, help="directory of the data during the run")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    parser.add_argument("--case", choices=["create", *CASES], help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    partitions = 2_000 if asked.smoke else asked.partitions
    layouts = [int(each) for each in asked.layouts.split(",")]
    if asked.case:
        case = asked.case
        print(
            json.dumps(
                create(asked.root, asked.partitions, layouts[0]) if case == "create" else CASES[case](asked.root)
            )
        )
        return 0
    samples = Samples()
    for _ in range(asked.rounds):
        for per_topic in layouts:
            layout = f"{partitions // per_topic}x{per_topic}"
            try:
                found = measured(asked.work, partitions, per_topic)
            except (RuntimeError, OSError) as failure:
                samples.failures.append(f"{layout}: {failure}")
                continue
            for name, value in found.items():
                samples.units[f"{layout}.{name}"] = unit(name)
                samples.values.setdefault(f"{layout}.{name}", []).append(value)
    bars = verdicts(samples)
    medians = {name: round(samples.median(name) or 0.0, 4) for name in sorted(samples.values)}
    document = {
        "machine": machine(),
        "commit": commit(),
        "partitions": partitions,
        "brokers": BROKERS,
        "replication_factor": FACTOR,
        "medians": medians,
        "bars": bars,
        "failures": samples.failures,
    }
    print(json.dumps(document, indent=1))
    if asked.save:
        extra = {"partitions": partitions, "brokers": BROKERS, "replication_factor": FACTOR, "bars": bars}
        print(save(samples, what="metadata", extra=extra).relative_to(ROOT), file=sys.stderr)
    return 1 if samples.failures or not all(bar["met"] for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
