"""`make soak MINUTES=120`: a real cluster under mixed load for hours, with one kill -9 per minute.

The soak shows that no acknowledged record is lost, duplicated or reordered, and that no process grows. docs/soak.md
lists all criteria. The soak leaves these files in build/soak: samples.csv, summary.json, soak.png, the logs of the
nodes, and the data if a criterion was missed. The last line of the output is the summary. Exit code 1 means that a
criterion was missed; a failed check is not repeated.

    .venv/bin/python -m tests.system.soak.soak --minutes 120 [--seed 1] [--save]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace import Admin, LocalCluster, NewTopic
from headrace.errors import HeadraceError
from tests.system.soak import soak_clients
from tests.system.soak.soak_clients import COMPACTED, RATES, TOPICS
from tests.system.soak.soak_history import Anomalies, judge, judge_compacted
from tests.system.soak.soak_picture import draw, write_page
from tests.system.soak.soak_samples import Process, Sampler, beyond_bounds, compare

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "soak"
MIB = 1 << 20

#: Nodes that are killed in turn, one a minute. The first node of each role is never killed: its growth is judged.
VICTIMS = (
    ("broker", 2), ("controller", 2), ("coordinator", 2), ("broker", 3), ("controller", 3), ("coordinator", 2)
)  # fmt: skip
#: How long a victim stays dead.
DOWN_S = (5.0, 15.0)
#: Retention by size keeps the records of about this many seconds, so the logs are full before the early window begins.
#: A record takes some 60 bytes beside its value.
KEPT_S, RECORD_BYTES = 300, 260
#: The number of segments that hold the retained bytes; retention deletes whole segments.
SEGMENTS = 6
CONFIG = {
    "log.retention.check.interval.ms": "10000",
    "log.segment.delete.delay.ms": "5000",
    "log.cleaner.backoff.ms": "5000",
    "producer.id.expiration.ms": "600000",
    "offsets.topic.segment.bytes": str(MIB),
}
#: The limit of disk space: all partitions' logs on three brokers, segments that wait for their deletion,
#: __consumer_offsets, and the metadata log.
DISK_MIB_MAX = 1_500
#: Timeout for the end of a client: records in flight get an outcome, and the logs are read.
END_S = 600.0


def topic_config(topic: str) -> dict[str, str]:
    if topic == COMPACTED:
        # At the rate of the compacted topic, one or two records stay in the active segment for minutes, so segments are
        # also rolled by time.
        return {
            "cleanup.policy": "compact", "segment.bytes": str(MIB // 4), "segment.ms": "60000",
            "min.cleanable.dirty.ratio": "0.2",
        }  # fmt: skip
    kept = RATES[topic] // TOPICS[topic] * RECORD_BYTES * KEPT_S
    return {"retention.bytes": str(kept), "segment.bytes": str(kept // SEGMENTS)}


class ClientProcess:
    """A client process of soak_clients.py."""

    def __init__(self, name: str, bootstrap: str, seed: int) -> None:
        self.name = name
        self._log = (OUT / "clients" / f"{name}.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", soak_clients.__name__, name, bootstrap, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> dict[str, Any]:
        """Ask the process to finish its work; return its report."""
        try:
            output, _ = self._process.communicate("stop\n", timeout=END_S)
            return dict(json.loads(output.splitlines()[-1]))
        except (subprocess.TimeoutExpired, ValueError, IndexError, OSError) as error:
            return {"ended": f"{self.name} left no report: {error!r}; see {self._log.name}"}
        finally:
            self.end()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Soak:
    """One soak, from its start to its summary."""

    def __init__(self, minutes: float, seed: int, data: Path) -> None:
        self.minutes, self.seed, self.data = minutes, seed, data
        self.rng = random.Random(seed)
        self.misses: list[str] = []
        self.kills: list[tuple[float, str]] = []
        self.disk_mib = 0.0
        self._clients: list[ClientProcess] = []

    def run(self) -> dict[str, Any]:
        cluster = LocalCluster(brokers=3, controllers=3, coordinators=2, data=self.data, config=CONFIG)
        with cluster:
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                admin.create_topics(
                    [NewTopic(name, partitions=n, config=topic_config(name)) for name, n in TOPICS.items()]
                )
            looker = Admin(bootstrap_servers=cluster.bootstrap_servers)
            sampler = Sampler(lambda: self._processes(cluster, looker), OUT / "samples.csv")
            try:
                for name in soak_clients.CLIENTS:
                    self._clients.append(ClientProcess(name, cluster.bootstrap_servers, self.seed))
                sampler.start()
                self._break(cluster, sampler)
                sampler.stop()
                reports = {client.name: client.finish() for client in self._in_order()}
            finally:
                for client in self._clients:
                    client.end()
                looker.close()
            if sampler.error is not None:
                self.misses.append(f"the sampler ended: {sampler.error!r}")
            self._look_at_disk()
            logs = self._node_logs(cluster)
        return self._summary(sampler, reports, logs)

    def _in_order(self) -> Iterator[ClientProcess]:
        """The client processes in the order in which they must end: producers first, so that consumers can read to the
        end."""
        yield from self._clients

    def _processes(self, cluster: LocalCluster, looker: Admin) -> Iterator[Process]:
        """The processes to sample now; no controllers while the active one is unknown."""
        active = None
        with contextlib.suppress(HeadraceError):
            active = looker.describe_quorum(timeout=2).leader_id
        for node in cluster.ps():
            role, node_id = node["role"], node["id"]
            if node["pid"] is None or (role == "controller" and active is None):
                continue
            state = "" if role != "controller" else "active" if node_id == active else "follower"
            yield Process(f"{role}-{node_id}", role, node["pid"], (role, node_id) not in VICTIMS, state)
        for client in self._clients:
            yield Process(client.name, "client", client.pid, kept=True)

    # -- what breaks

    def _break(self, cluster: LocalCluster, sampler: Sampler) -> None:
        """Kill a node every minute, and start it again some seconds later."""
        number = 0
        while sampler.minute < self.minutes and not self._somebody_ended():
            # (The node that is killed last serves again half a minute before the end.)
            if sampler.minute >= number + 0.5 and sampler.minute < self.minutes - 0.5:
                role, node_id = VICTIMS[number % len(VICTIMS)]
                number += 1
                self._kill(cluster, role, node_id, sampler)
            self._look_at_disk()
            time.sleep(1.0)

    def _kill(self, cluster: LocalCluster, role: str, node_id: int, sampler: Sampler) -> None:
        if role == "controller" and self.rng.random() < 0.5:
            self._let_lead(cluster, node_id)
        down_s = self.rng.uniform(*DOWN_S)
        self.kills.append((sampler.minute, f"{role}-{node_id}"))
        print(f"soak: minute {sampler.minute:.1f}: kill -9 {role} {node_id} for {down_s:.0f} s", flush=True)
        cluster.kill(role, node_id)
        time.sleep(down_s)
        cluster.restart(role, node_id)

    def _let_lead(self, cluster: LocalCluster, node_id: int) -> None:
        """Transfer the leadership to a controller: otherwise the controller that is never killed would always lead."""
        try:
            with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                admin.transfer_leadership(node_id, timeout=10)
        except HeadraceError as error:
            print(f"soak: controller {node_id} does not take over: {error}", flush=True)

    def _somebody_ended(self) -> bool:
        dead = [client.name for client in self._clients if not client.is_alive]
        self.misses += [f"the client {name} ended before its time" for name in dead]
        return bool(dead)

    def _look_at_disk(self) -> None:
        self.disk_mib = max(self.disk_mib, bytes_in(self.data) / MIB)

    def _node_logs(self, cluster: LocalCluster) -> dict[str, int]:
        """Count the tracebacks in each node's log; the logs are kept."""
        found = {}
        for node in cluster.ps():
            text = cluster.log(node["role"], node["id"])
            name = f"{node['role']}-{node['id']}"
            (OUT / "nodes" / f"{name}.log").write_text(text)
            if count := text.count("Traceback (most recent call last)"):
                found[name] = count
        return found

    # -- the verdict

    def _summary(self, sampler: Sampler, reports: dict[str, dict[str, Any]], logs: dict[str, int]) -> dict[str, Any]:
        rows = compare(sampler.samples, self.minutes)
        self.misses += [miss for row in rows for miss in row["misses"]]
        self.misses += beyond_bounds(sampler.samples)
        if self.disk_mib > DISK_MIB_MAX:
            self.misses.append(f"{self.disk_mib:.0f} MiB on the disk, bound {DISK_MIB_MAX}")
        self.misses += [f"{name}: {count} tracebacks in its log" for name, count in logs.items()]
        anomalies = self._anomalies(reports)
        self.misses += anomalies.quoted
        producing = reports["producers"]
        summary = {
            "minutes": self.minutes,
            "seed": self.seed,
            "kills": len(self.kills),
            "acknowledged": sum(producing.get("acknowledged", {}).values()),
            "read": sum(reports["readers"].get("read", {}).values()),
            "group_read": reports["group"].get("read", 0),
            "group_members_came": reports["group"].get("came", 0),
            "admin_calls": sum(reports["admin"].get("done", {}).values()),
            **{kind: anomalies.counts.get(kind, 0) for kind in ("lost", "doubled", "reordered")},
            "other_anomalies": {
                kind: count for kind, count in anomalies.counts.items() if kind not in ("lost", "doubled", "reordered")
            },
            "failed_sends": sum(producing.get("failed", {}).values()),
            "longest_silence_s": max(producing.get("longest_silence_s", {}).values(), default=None),
            "disk_mib": round(self.disk_mib),
            "processes": rows,
            "errors": {name: report.get("errors", {}) for name, report in reports.items()},
            "misses": self.misses,
            "ok": not self.misses,
        }
        (OUT / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        draw(sampler.samples, self.kills, self.minutes, OUT / "soak.png")
        return summary

    def _anomalies(self, reports: dict[str, dict[str, Any]]) -> Anomalies:
        found = Anomalies()
        for name, report in reports.items():
            for key in ("ended", "broken", "late", "left"):
                if report.get(key):
                    self.misses.append(f"{name}: {key}: {report[key]}")
        if self.misses and any("ended" in report for report in reports.values()):
            return found  # nothing to compare
        producing, reading = reports["producers"], reports["readers"]
        for claims, followed in zip(producing["claims"], reading["followed"], strict=True):
            found.merge(judge(claims, followed).report())
        for again in reading["again"]:
            if again["missing"]:
                found.add("lost", f"{again['topic']}, read again: {again['missing'][:5]}", len(again["missing"]))
            found.merge(again)
        found.merge(judge_compacted(producing["latest_of_key"], reading["latest_of_key"]).report())
        found.merge(reports["group"]["anomalies"])
        if failed := sum(producing["failed"].values()):
            self.misses.append(f"{failed} sends failed though one node at a time was dead: {producing['errors']}")
        for topic, count in producing["acknowledged"].items():
            if count < 30 * self.minutes:
                self.misses.append(f"{topic}: {count} records acknowledged in {self.minutes:g} minutes: no load")
        return found


def bytes_in(directory: Path) -> int:
    """The disk space of the files in a directory; files may appear and disappear during the count."""
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name), follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description="A cluster under mixed load, with one kill -9 a minute.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("HEADRACE_TEST_SEED") or 1))
    parser.add_argument("--save", action="store_true", help="write the plot and the table into docs")
    arguments = parser.parse_args()
    shutil.rmtree(OUT, ignore_errors=True)
    for name in ("clients", "nodes"):
        (OUT / name).mkdir(parents=True)
    data = OUT / "data"
    print(f"soak: {arguments.minutes:g} minutes, seed {arguments.seed}, data in {data}", flush=True)
    summary = Soak(arguments.minutes, arguments.seed, data).run()
    if summary["ok"]:
        shutil.rmtree(data)
    if arguments.save:
        write_page(summary, OUT / "soak.png", ROOT / "docs")
    for miss in summary["misses"]:
        print(f"soak: MISS: {miss}")
    print(json.dumps(summary))
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
