"""Count the functions and handoffs of one record: producer, leader, followers, consumer.

    tools/trace_record.py              the counts
    tools/trace_record.py --list       also every function and every handoff, in order of process
    tools/trace_record.py --json FILE
    tools/trace_record.py --check      fails if the way is longer than bench/record_way.txt
    tools/trace_record.py --save       writes bench/record_way.txt; a longer list needs its reason in the commit

The tool starts a local cluster (three brokers, three controllers) in which every process runs under ``sys.setprofile``.
The tool sends records one at a time with acks=all and waits for each record at a consumer. The tool counts a function
if the processes call it at least once for every second record. The tool subtracts the calls of an idle cluster from the
counts.

* *functions*: distinct functions of the product (generated protobuf code and compiled modules are not seen).
* *files*: the files that contain them.
* *handoffs*: places where another thread, task, callback or process takes over: a function that the event loop or a
  thread starts or resumes. The count of functions leaves out the thread that calls ``send``, and includes the thread
  that polls.

The two followers do the same work, so the tool counts only one of them.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WARM_UP, RECORDS = 300, 200
#: A function counts as called if it has at least this number of calls per record. The number is below 1, because two
#: records in one batch share a call.
CALLS_MIN = 0.5
#: The functions of the way as of the last ``--save``. Some have about CALLS_MIN calls per record, and come and go.
WAY = ROOT / "bench" / "record_way.txt"
BY_CHANCE = 3

OFF, IDLE, BUSY, DUMP = 0, 1, 2, 3
#: Functions of Python's standard library that start or resume Headrace's code.
_SCHEDULERS = (
    "/asyncio/events.py",
    "/asyncio/base_events.py",
    "/asyncio/runners.py",
    "/threading.py",
    "/concurrent/futures/thread.py",
)
_LOOP_CALLS = {"run_forever", "run_until_complete"}
_COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>")


class Recorder:
    """Counts the calls of one process in each phase. The current phase of the trace is one byte of a file that all
    processes map."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with (directory / "phase").open("r+b") as file:
            self._phase = mmap.mmap(file.fileno(), 1)
        self._calls: dict[int, Counter[CodeType]] = {IDLE: Counter(), BUSY: Counter()}
        self._starts: dict[int, Counter[str]] = {IDLE: Counter(), BUSY: Counter()}
        self._names: dict[CodeType, str | None] = {}
        self._dumping = threading.Lock()

    def install(self) -> None:
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        phase = self._phase[0]
        if phase == OFF:
            return
        if phase == DUMP:
            if self._dumping.acquire(blocking=False):
                self.dump()
            return
        code = frame.f_code
        if self._name(code) is None:
            return
        self._calls[phase][code] += 1
        if (start := self._start_of(frame)) is not None:
            self._starts[phase][f"{threading.current_thread().name}: {start}"] += 1

    def _name(self, code: CodeType) -> str | None:
        """The name ``file:function`` of a function in our code; None for other code."""
        try:
            return self._names[code]
        except KeyError:
            path = code.co_filename
            is_ours = "/src/headrace" in path and not path.endswith(("_pb2.py", "_pb2_grpc.py"))
            name = path[path.index("/src/") + 5 :] if is_ours and code.co_name not in _COMPREHENSIONS else None
            self._names[code] = found = f"{name}:{code.co_qualname}" if name is not None else None
            return found

    def _start_of(self, frame: FrameType) -> str | None:
        """The function that the event loop or a thread started, if ``frame`` is the frame of that function."""
        caller = frame.f_back
        while caller is not None:
            code = caller.f_code
            if code.co_filename == __file__:
                return "caller"
            if code.co_filename.endswith(_SCHEDULERS) or _LOOP_CALLS.intersection(code.co_names):
                break
            if self._name(code) is not None:
                return None
            caller = caller.f_back
        return self._name(frame.f_code)

    def dump(self) -> None:
        sys.setprofile(None)
        command = Path("/proc/self/cmdline").read_bytes().replace(b"\0", b" ").decode()
        found = {
            "command": command,
            "calls": {phase: {self._name(code): n for code, n in self._calls[phase].items()} for phase in (IDLE, BUSY)},
            "starts": self._starts,
        }
        part = self._directory / f"{os.getpid()}.part"
        part.write_text(json.dumps(found))
        part.rename(part.with_suffix(".json"))


def record(directory: Path) -> Recorder:
    recorder = Recorder(directory)
    recorder.install()
    return recorder


_HOOK = """
import importlib.util
spec = importlib.util.spec_from_file_location("trace_record", {tool!r})
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)
from pathlib import Path
tool.record(Path({directory!r}))
"""


def measure(directory: Path) -> tuple[float, float]:
    """Run the cluster and the two clients; returns the seconds of the idle and of the busy phase."""
    phase_file = directory / "phase"
    phase_file.write_bytes(bytes([OFF]))
    hook = directory / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_HOOK.format(tool=str(Path(__file__).resolve()), directory=str(directory)))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hook), os.environ.get("PYTHONPATH"))))
    recorder = record(directory)

    from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition

    with LocalCluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("traced", 1)])
        with (
            Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer,
            Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer,
            phase_file.open("r+b") as file,
            mmap.mmap(file.fileno(), 1) as phase,
        ):
            consumer.assign([TopicPartition("traced", 0)])

            arrived = threading.Semaphore(0)
            ended = threading.Event()

            def consume() -> None:
                while not ended.is_set():
                    if records := consumer.poll(timeout=1):
                        arrived.release(len(records))

            def one() -> None:
                producer.send("traced", b"one crate", key=b"customer 7").result(timeout=30)
                if not arrived.acquire(timeout=30):
                    raise SystemExit("trace_record: a record did not arrive within 30 s")

            consuming = threading.Thread(target=consume, name="consumer", daemon=True)
            consuming.start()
            for _ in range(WARM_UP):
                one()
            phase[0] = IDLE
            began = time.monotonic()
            time.sleep(5)
            idle_s = time.monotonic() - began
            phase[0] = BUSY
            began = time.monotonic()
            for _ in range(RECORDS):
                one()
            busy_s = time.monotonic() - began
            phase[0] = DUMP
            ended.set()
            consuming.join()
            recorder.dump()
            deadline = time.monotonic() + 30
            while len(list(directory.glob("*.json"))) < 7 and time.monotonic() < deadline:
                time.sleep(0.2)
    return idle_s, busy_s


def on_the_way(counts: dict[str, dict[str, int]], idle_s: float, busy_s: float) -> dict[str, float]:
    """The number of calls per record, minus the calls of an idle process."""
    idle, busy = counts[str(IDLE)], counts[str(BUSY)]
    rates = {name: (calls - idle.get(name, 0) * busy_s / idle_s) / RECORDS for name, calls in busy.items()}
    return {name: rate for name, rate in rates.items() if rate >= CALLS_MIN}


def role(command: str) -> str:
    for name in ("broker", "controller", "coordinator"):
        if f"headrace_{name}" in command:
            return name
    return "client"


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the functions and handoffs of one record.")
    parser.add_argument("--list", action="store_true", help="print every function and every handoff")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    parser.add_argument("--check", action="store_true", help=f"fail if the way is longer than {WAY.name}")
    parser.add_argument("--save", action="store_true", help=f"write {WAY.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trace-record-") as name:
        directory = Path(name)
        idle_s, busy_s = measure(directory)
        found = [json.loads(path.read_text()) for path in directory.glob("*.json")]

    ways = [
        (role(each["command"]), on_the_way(each["calls"], idle_s, busy_s), on_the_way(each["starts"], idle_s, busy_s))
        for each in found
    ]
    brokers = sorted((way for way in ways if way[0] == "broker"), key=lambda way: len(way[1]))
    named = [("leader", *brokers[-1][1:]), ("follower", *brokers[0][1:]), *(way for way in ways if way[0] != "broker")]
    named = [way for way in sorted(named, key=lambda way: way[0]) if way[1]]

    functions = {name for _, calls, _ in named for name in calls}
    files = {name.partition(":")[0] for name in functions}
    handoffs = sum(len(starts) for *_, starts in named) - 1
    for who, calls, starts in named:
        print(f"{who}: {len(calls)} functions, {sum(calls.values()):.0f} calls, {len(starts)} starts")
        if arguments.list:
            for function, rate in sorted(calls.items()):
                print(f"    {rate:6.1f}  {function}")
            for start, rate in sorted(starts.items()):
                print(f"    {rate:6.1f}  started: {start}")
    counted = {"functions": len(functions), "files": len(files), "handoffs": handoffs}
    print(f"one record's way: {len(functions)} functions in {len(files)} files, {handoffs} handoffs")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({**counted, "ways": named}, indent=1) + "\n")
    if arguments.save:
        WAY.write_text("".join(f"{name}\n" for name in sorted(functions)))
    if arguments.check:
        known = set(WAY.read_text().split())
        if len(functions) > len(known) + BY_CHANCE:
            added = "\n    ".join(sorted(functions - known))
            raise SystemExit(f"trace_record: {WAY.name} has {len(known)} functions; these are not in it:\n    {added}")


if __name__ == "__main__":
    main()
