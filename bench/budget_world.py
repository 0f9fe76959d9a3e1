"""The world of bench/budget.py: a cluster whose processes are counted, and the paths that run on it.

Two passes run the same paths on the same cluster. The first pass counts Python frames (bench/budget_frames.py) and
context switches. The second pass runs under strace, and counts system calls and the bytes that they return. One pass
for both would count strace's stops as context switches.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from budget import PATHS, ROWS, BudgetError, BudgetPath, Counts, calls_by_phase, mean, without_idle
from measure import ROOT

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition

sys.path.append(str(ROOT / "tools"))  # trace_record
import budget_frames
from budget_frames import DUMP, FIRST_PATH, IDLE
from trace_record import OFF

IDLE_S = 2.0
#: Operations before the first count of each path.
WARM_UP = 5
DEADLINE_S = 60.0
#: Partition that the consumers read; a consumer reads all of it, so that nothing is fetched in advance.
READ, READ_BATCHES = TopicPartition("read", 0), 20
FLOOR_BYTES = {"floor-record": 100, "floor-batch": 880_000}
_HOOK = """
import sys
sys.path[:0] = {folders!r}
from pathlib import Path
import budget_frames
del sys.path[:{count}]
budget_frames.record(Path({directory!r}))
"""


class World:
    """The running cluster, its clients, and the process of each hop."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        cluster = stack.enter_context(
            LocalCluster(
                coordinators=1,
                kafka=True,
                data=directory / "cluster",
                # The scrubber would read the data of earlier paths at unpredictable times.
                config={"transaction.state.log.num.partitions": 1, "log.scrub.bytes.per.second": 0},
            )
        )
        servers = cluster.bootstrap_servers
        nodes = {(node["role"], node["id"]): int(node["pid"]) for node in cluster.ps()}
        self.pids = [os.getpid(), *nodes.values()]

        self.transactional = stack.enter_context(
            Producer(bootstrap_servers=servers, transactional_id="budget", linger_ms=0)
        )
        self.transactional.init_transactions()
        admin = stack.enter_context(Admin(bootstrap_servers=servers))
        state = admin.describe_topics(["__transaction_state"])[0].partitions[0].leader
        brokers = sorted(number for role, number in nodes if role == "broker")
        others = [number for number in brokers if number != state]
        replicas = [others[0], state, others[1]]
        admin.create_topics(
            [NewTopic(name, assignments={0: replicas}) for name in ("batches", "records", "transactions", "kafka")]
            + [NewTopic(name, assignments={0: replicas[:1]}) for name in ("single", "read")]
        )
        leader, state_leader, follower = (nodes["broker", number] for number in replicas)
        self.hops: dict[str, list[int]] = {
            "client": [os.getpid()],
            "leader": [leader],
            "follower": [state_leader, follower],
            "coordinator": [pid for (role, _), pid in nodes.items() if role == "coordinator"],
        }
        self.transaction_hops = {**self.hops, "state leader": [state_leader], "follower": [follower]}
        floor_server = stack.enter_context(_program("echo.py", "floor"))
        self.floor = stack.enter_context(_program("echo.py", "command", _line(floor_server)))
        self.floor_hops = {"client": [self.floor.pid], "server": [floor_server.pid]}
        self.pids += [self.floor.pid, floor_server.pid]

        self.one = stack.enter_context(Producer(bootstrap_servers=servers, acks="1"))
        self.all = stack.enter_context(Producer(bootstrap_servers=servers, acks="all"))
        self.consumers = {}
        for name in ("arrow", "poll"):
            consumer = stack.enter_context(Consumer(bootstrap_servers=servers))
            consumer.assign([READ])
            consumer.pause(READ)
            self.consumers[name] = consumer
        self.kafka = _kafka_producer(cluster.kafka_bootstrap_servers, stack)

        random = Random(27)
        self.value = random.randbytes(100)
        self.table = pa.table({"value": pa.array([random.randbytes(100) for _ in range(ROWS)], pa.binary())})
        for _ in range(READ_BATCHES):
            self.one.send_arrow(READ.topic, self.table).result(DEADLINE_S)

    def hops_of(self, path: BudgetPath) -> dict[str, list[int]]:
        """The processes of each hop. Counts of a hop are the mean of its processes."""
        return {"transaction": self.transaction_hops, "floor": self.floor_hops}.get(
            path.name.partition("-")[0], self.hops
        )

    def run(self, path: BudgetPath, operations: int) -> None:
        """Run the operations one after the other; each is acknowledged before the next one begins."""
        if path.name.startswith("consume"):
            for _ in range(max(operations // READ_BATCHES, 1)):
                self._consume(self.consumers[path.name.removeprefix("consume-")], path)
            return
        if path.name in FLOOR_BYTES:
            self.run_floor(operations, FLOOR_BYTES[path.name])
            return
        operation = self._operations()[path.name]
        for _ in range(operations):
            operation()

    def run_floor(self, operations: int, size: int) -> None:
        assert self.floor.stdin is not None
        self.floor.stdin.write(f"{operations} {size}\n")
        self.floor.stdin.flush()
        _line(self.floor)

    def _operations(self) -> dict[str, Callable[[], Any]]:
        one, both, value, table = self.one, self.all, self.value, self.table
        return {
            "produce-rf1-arrow": lambda: one.send_arrow("single", table).result(DEADLINE_S),
            "produce-rf3-arrow": lambda: both.send_arrow("batches", table).result(DEADLINE_S),
            "produce-rf3-record": lambda: both.send("records", value).result(DEADLINE_S),
            "transaction-record": self._transaction,
            "kafka-record": lambda: self.kafka.send("kafka", value).get(DEADLINE_S),
        }

    def _transaction(self) -> None:
        with self.transactional.transaction():
            self.transactional.send("transactions", self.value)

    @staticmethod
    def _consume(consumer: Consumer, path: BudgetPath) -> None:
        consumer.seek(READ, 0)
        consumer.resume(READ)
        wanted = READ_BATCHES * path.records
        seen, deadline = 0, time.monotonic() + DEADLINE_S
        while seen < wanted:
            if time.monotonic() > deadline:
                raise BudgetError(f"{path.name}: {seen} of {wanted} records after {DEADLINE_S:.0f} s")
            seen += consumer.fetch_arrow().num_rows if path.name == "consume-arrow" else len(consumer.poll())
        consumer.pause(READ)  # so that the idle consumer sends no requests


def _kafka_producer(servers: str, stack: ExitStack) -> Any:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=False, linger_ms=0)
    stack.callback(producer.close)
    return producer


@contextmanager
def _program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of this folder, with pipes; it ends when its standard input closes."""
    command = [sys.executable, str(ROOT / "bench" / name), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not (line := process.stdout.readline().strip()):
        raise BudgetError("the program echo.py ended; its error is above")
    return line


# -- phases ------------------------------------------------------------------------------------------------------------


@contextmanager
def hooked(directory: Path) -> Iterator[mmap.mmap]:
    """Let this process and every node that starts in the block count its frames; the phase is the map's only byte."""
    (directory / "phase").write_bytes(bytes([OFF]))
    folders = [str(ROOT / "bench"), str(ROOT / "tools")]
    hook = directory / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_HOOK.format(folders=folders, count=len(folders), directory=str(directory)))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hook), before)))
    try:
        budget_frames.record(directory)
        with (directory / "phase").open("r+b") as file, mmap.mmap(file.fileno(), 1) as phase:
            yield phase
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


@contextmanager
def traced(pids: list[int], output: Path) -> Iterator[None]:
    """Trace all threads of the processes with strace, from the beginning of the block to its end."""
    command = ["strace", "-f", "-qq", "-s", "1", "-e", "signal=none", "-o", str(output), "-p", ",".join(map(str, pids))]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        while not all(_is_traced(task) for pid in pids for task in _tasks(pid)):
            if process.poll() is not None:
                raise BudgetError(f"strace ended: {process.communicate()[1].strip()}; ptrace must be allowed here")
            if time.monotonic() > deadline:
                raise BudgetError("strace did not attach to every thread within 20 s")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def _status(task: Path) -> str:
    try:
        return (task / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return ""


def _is_traced(task: Path) -> bool:
    return "TracerPid:\t0" not in _status(task)


def switches(pid: int) -> int:
    """Context switches of the process's living threads, voluntary and other."""
    text = "".join(_status(task) for task in _tasks(pid))
    return sum(int(count) for count in re.findall(r"ctxt_switches:\s+(\d+)", text))


class Passes:
    """Runs the paths twice, and returns their counts per operation."""

    def __init__(self, world: World, directory: Path, phase: mmap.mmap, paths: tuple[BudgetPath, ...]) -> None:
        self._world, self._directory, self._phase, self._paths = world, directory, phase, paths
        self._switches: dict[str, Counter[int]] = {}

    def counts(self) -> dict[str, dict[str, Counts]]:
        for path in self._paths:
            self._world.run(path, WARM_UP)
        took_frames = self._phases(self._frames_phase)
        output = self._directory / "strace"
        process_of = {int(task.name): pid for pid in self._world.pids for task in _tasks(pid)}
        with traced(self._world.pids, output):
            took_calls = self._phases(_trace_phase)
        self._phase[0] = DUMP
        self._world.run_floor(1, 1)  # calls a function in this process, and in each process without timers
        frames = self._dumped()
        with output.open() as lines:
            calls = calls_by_phase(lines, process_of)
        return {
            path.name: {hop: self._hop(path, hop, frames, calls, took_frames, took_calls) for hop in path.hops}
            for path in self._paths
        }

    def _phases(self, phase: Callable[[str, int], Any]) -> dict[str, float]:
        """Run the idle phase and every path; returns the seconds of each."""
        took = {}
        # Last, because a new node still prepares itself in its first seconds.
        names = {path.name: number for number, path in enumerate(self._paths, FIRST_PATH)} | {"idle": IDLE}
        for name, number in names.items():
            phase(name, number)
            began = time.monotonic()
            if number == IDLE:
                time.sleep(IDLE_S)
            else:
                path = self._paths[number - FIRST_PATH]
                self._world.run(path, path.operations)
            took[name] = time.monotonic() - began
            phase("", OFF)
        return took

    def _frames_phase(self, name: str, number: int) -> None:
        self._phase[0] = OFF
        now = Counter({pid: switches(pid) for pid in self._world.pids})
        if name:
            self._now, self._name = now, name
        else:
            self._switches[self._name] = Counter({pid: now[pid] - self._now[pid] for pid in now})
        self._phase[0] = number

    def _dumped(self) -> dict[int, dict[str, Counter[str]]]:
        deadline = time.monotonic() + 30
        while len(files := list(self._directory.glob("*.json"))) < len(self._world.pids):
            if time.monotonic() > deadline:
                raise BudgetError(f"{len(files)} of {len(self._world.pids)} processes wrote their frames within 30 s")
            time.sleep(0.05)
        names = ("", "idle", *(path.name for path in self._paths))
        return {
            int(file.stem): {
                names[int(number)]: Counter(found) for number, found in json.loads(file.read_text())["phases"].items()
            }
            for file in files
        }

    def _hop(
        self,
        path: BudgetPath,
        hop: str,
        frames: Mapping[int, Mapping[str, Counter[str]]],
        calls: Mapping[str, Mapping[int, Counts]],
        took_frames: Mapping[str, float],
        took_calls: Mapping[str, float],
    ) -> Counts:
        hops = self._world.hops_of(path)
        of_each = []
        for pid in hops[hop]:
            first = {
                name: Counts(functions=frames[pid].get(name, Counter()), switches=self._switches[name][pid])
                for name in ("idle", path.name)
            }
            second = {name: calls.get(name, {}).get(pid, Counts()) for name in ("idle", path.name)}
            parts = [
                without_idle(part[path.name], took[path.name], part["idle"], took["idle"], path.operations)
                for part, took in ((first, took_frames), (second, took_calls))
            ]
            of_each.append(parts[0].added(parts[1]))
        return mean(of_each)


def _trace_phase(name: str, _: int) -> None:
    os.access(f"/headrace-budget/{name}", os.F_OK)


def measured(directory: Path, paths: tuple[BudgetPath, ...] = PATHS) -> dict[str, dict[str, Counts]]:
    """path -> hop -> counts per operation, on a new cluster in ``directory``. Raises BudgetError."""
    if shutil.which("strace") is None:
        raise BudgetError("strace is not installed; install the Debian package strace")
    with hooked(directory) as phase, ExitStack() as stack:
        return Passes(World(directory, stack), directory, phase, paths).counts()
