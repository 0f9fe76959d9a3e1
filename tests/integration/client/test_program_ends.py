"""Every way in which a Python program ends, as docs/sdk/producing.md lists them: what becomes of the records of a
producer that the program has not closed.

The producers wait for a minute before they send (``linger.ms``), so a record that is stored was sent by the end of the
program.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, TopicPartition

PRELUDE = """
import asyncio, atexit, gc, multiprocessing, os, signal, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from headrace import AsyncProducer, Producer

servers, topic, broker = *sys.argv[1:3], int(sys.argv[3])

def pause():
    os.kill(broker, signal.SIGSTOP)

def fill(**more):
    producer = Producer(bootstrap_servers=servers, linger_ms=60_000, **more)
    for n in range(100):
        producer.send(topic, b"%d" % n)
    return producer

def local(*_):
    producer = fill()

def kept(*_, **more):
    global producer
    producer = fill(**more)

async def fill_async():
    producer = AsyncProducer(bootstrap_servers=servers, linger_ms=60_000)
    for n in range(100):
        await producer.send(topic, b"%d" % n)
    return producer

def child(method, work=local, **more):
    process = multiprocessing.get_context(method).Process(target=work, **more)
    process.start()
    return process

def fail():
    fill()
    raise ValueError("a bug")

def with_a_thread():
    producer, begins = Producer(bootstrap_servers=servers, linger_ms=60_000), threading.Event()
    def late():
        begins.wait()
        for n in range(100):
            producer.send(topic, b"%d" % n)
    threading.Thread(target=late).start()
    threading.Thread(target=lambda: (threading.main_thread().join(), begins.set())).start()
"""


class Run(NamedTuple):
    code: int
    stderr: str
    stored: int


class World:
    """A cluster, and a topic for each program."""

    def __init__(self, cluster: LocalCluster, path: Path) -> None:
        self.servers, self._cluster, self._path, self._count = cluster.bootstrap_servers, cluster, path, 0
        self._broker = str(next(node["pid"] for node in cluster.ps() if node["role"] == "broker"))
        self._admin = Admin(bootstrap_servers=self.servers)
        self._consumer = Consumer(bootstrap_servers=self.servers)

    def run(self, body: str) -> Run:
        """Run a program, which may pause the broker."""
        self._count += 1
        topic, path = f"t{self._count}", self._path / f"program_{self._count}.py"
        self._admin.create_topics([NewTopic(topic, partitions=1)])
        path.write_text(f"{PRELUDE}\nif __name__ == '__main__':\n    " + body.strip().replace("\n", "\n    "))
        program = [sys.executable, path, self.servers, topic, self._broker]
        try:
            done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
        finally:
            self._cluster.resume("broker", 1)
        partition = TopicPartition(topic, 0)
        return Run(done.returncode, done.stderr, self._consumer.end_offsets([partition])[partition])

    def close(self) -> None:
        self._admin.close()
        self._consumer.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with LocalCluster(brokers=1, controllers=1, coordinators=0) as cluster:
        made = World(cluster, tmp_path_factory.mktemp("programs"))
        yield made
        made.close()


#: name -> (program, exit code)
ACKNOWLEDGED = {
    "a with block": ("with fill(): pass", 0),
    "the end of the script, a global producer": ("producer = fill()", 0),
    "the end of a function, a local producer": ("local()", 0),
    "a producer that was dropped at once": ("fill().send(topic, b'last')", 0),
    "a producer in a reference cycle": ("gc.disable(); cycle = [fill()]; cycle.append(cycle); del cycle", 0),
    "sys.exit": ("local()\nsys.exit(3)", 3),
    "an exception": ("fail()", 1),
    "Ctrl-C": ("signal.signal(2, signal.default_int_handler); p = fill(); os.kill(os.getpid(), 2)", -signal.SIGINT),
    "SIGTERM with a handler": (
        "signal.signal(15, lambda *_: sys.exit(143)); p = fill(); os.kill(os.getpid(), 15)",
        143,
    ),
    "asyncio.run": ("asyncio.run(fill_async())", 0),
    "asyncio.run that is cancelled": (
        """
async def main():
    producer = await fill_async()
    asyncio.current_task().cancel()
    await asyncio.sleep(60)
try:
    asyncio.run(main())
except asyncio.CancelledError:
    pass
""",
        0,
    ),
    "a daemon thread": (
        """
def work():
    producer = fill()
    filled.set()
    threading.Event().wait()
filled = threading.Event()
threading.Thread(target=work, daemon=True).start()
filled.wait()
""",
        0,
    ),
    "a thread that outlasts the main thread": ("with_a_thread()", 0),
    "a worker of a ThreadPoolExecutor": ("ThreadPoolExecutor(1).submit(local)", 0),
    "a child of multiprocessing (fork)": ("child('fork').join()", 0),
    "a child of multiprocessing (forkserver)": ("child('forkserver').join()", 0),
    "a child of multiprocessing (spawn)": ("child('spawn').join()", 0),
    "a child of multiprocessing that fails": (
        "process = child('fork', fail); process.join(); sys.exit(process.exitcode)",
        1,
    ),
    "a child of multiprocessing with a thread": ("child('fork', with_a_thread).join()", 0),
    "a worker of a ProcessPoolExecutor": (
        "with ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as pool: pool.submit(local)",
        0,
    ),
    "a worker of a Pool that is closed": (
        "pool = multiprocessing.get_context('fork').Pool(1); pool.map(local, [0]); pool.close(); pool.join()",
        0,
    ),
    "a child of os.fork that ends": (
        """
if os.fork() == 0:
    local()
    sys.exit(0)
os.wait()
""",
        0,
    ),
}


@pytest.mark.parametrize("name", ACKNOWLEDGED)
def test_records_are_acknowledged(world: World, name: str) -> None:
    body, code = ACKNOWLEDGED[name]
    run = world.run(body)
    assert (run.code, run.stored) == (code, 100 + ("last" in body)), run.stderr
    assert "unacknowledged" not in run.stderr
    if name not in ("an exception", "Ctrl-C", "a child of multiprocessing that fails"):
        assert run.stderr == ""


#: name -> (program, the program with the remedy); none of Python's exit handlers runs in the first.
LOST = {
    "os._exit": ("p = fill(); os._exit(0)", "p = fill(); p.close(); os._exit(0)"),
    "SIGKILL": ("p = fill(); os.kill(os.getpid(), 9)", "p = fill(); p.flush(); os.kill(os.getpid(), 9)"),
    "SIGTERM": (
        "p = fill(); os.kill(os.getpid(), 15)",
        "signal.signal(15, lambda *_: sys.exit(143)); p = fill(); os.kill(os.getpid(), 15)",
    ),
    "os.exec": (
        "p = fill(); os.execv(sys.executable, [sys.executable, '-c', ''])",
        "p = fill(); p.close(); os.execv(sys.executable, [sys.executable, '-c', ''])",
    ),
    "a Pool that is terminated": (
        "with multiprocessing.get_context('fork').Pool(1) as pool: pool.map(kept, [0])",
        "with multiprocessing.get_context('fork').Pool(1) as pool: pool.map(kept, [0]); pool.close(); pool.join()",
    ),
    "a daemon process": (
        "r, w = os.pipe()\n"
        "child('fork', lambda: (kept(), os.write(w, b'.'), signal.pause()), daemon=True); os.read(r, 1)",
        "child('fork', daemon=True).join()",
    ),
    "Process.terminate": (
        "r, w = os.pipe()\n"
        "process = child('fork', lambda: (kept(), os.write(w, b'.'), signal.pause()))\n"
        "os.read(r, 1); process.terminate()",
        "child('fork', kept).join()",
    ),
    "a child of os.fork that calls os._exit": (
        """
if os.fork() == 0:
    local()
    os._exit(0)
os.wait()
""",
        """
if os.fork() == 0:
    fill().close()
    os._exit(0)
os.wait()
""",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_records_are_lost_without_the_remedy(world: World, name: str) -> None:
    body, remedy = LOST[name]
    assert world.run(body).stored == 0
    assert world.run(remedy).stored == 100


WARNED = {
    "a global producer": "producer = fill(close_timeout_ms=300); pause()",
    "two producers that are dropped": "a, b = (fill(close_timeout_ms=300) for _ in '12'); pause(); del a, b",
    "a child of multiprocessing": "child('fork', lambda: (kept(close_timeout_ms=300), pause())).join()",
    "warnings as errors": "import warnings; warnings.simplefilter('error'); kept(close_timeout_ms=300); pause()",
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_not_acknowledged_in_time_is_counted(world: World, name: str) -> None:
    run = world.run(WARNED[name])
    warnings = re.findall(r"topics t\d+\) was open at the end of the process, which leaves 100 records", run.stderr)
    assert len(warnings) == (2 if "two" in name else 1), run.stderr


def test_ctrl_c_at_the_end_gives_up_and_counts(world: World) -> None:
    run = world.run(
        "kept(close_timeout_ms=60_000); pause(); signal.signal(14, signal.default_int_handler)\n"
        "atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.2)"
    )
    assert "which leaves 100 records unacknowledged" in run.stderr


def test_a_client_that_is_first_used_after_the_end_says_so(world: World) -> None:
    """``atexit`` calls this function after Headrace has closed its clients, because it was registered before."""
    late = "lambda: Producer(bootstrap_servers=servers).send('t1', b'late')"
    body = f"import atexit\natexit.register({late})\nfrom headrace import Producer\nservers = {world.servers!r}"
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, check=False)
    assert "IllegalStateError: the process is ending" in done.stderr
