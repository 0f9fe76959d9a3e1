"""Every kind of client that a process has used when it forks, and everything that a child may do: the child ends as it
would without the client, and the parent goes on (docs/sdk/README.md has the table)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic

PRELUDE = """
import asyncio, gc, json, multiprocessing, os, signal, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from headrace import (
    Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, LocalCluster, Producer, TopicPartition)
from headrace.fetch import OffsetRange, RangeReader
from headrace.schemas import SchemaRegistry

servers, registry, topic = sys.argv[1:4]
P0 = TopicPartition(topic, 0)

def other():
    with Producer(bootstrap_servers=servers) as producer:
        return producer.send(topic, b"of a child", partition=1).result(20).partition

def serves(cluster):
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        return len(admin.list_topics()) == 0

def other_registry():
    with SchemaRegistry(registry) as fresh:
        return len(fresh.subjects())

def consumer(kind=Consumer, **more):
    made = kind(bootstrap_servers=servers, auto_offset_reset="earliest", **more)
    made.assign([P0])
    return made

def processing():
    made = Consumer(bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest")
    made.subscribe([topic])
    begun = threading.Event()
    threading.Thread(target=made.process, args=[lambda _: begun.set()], daemon=True).start()
    begun.wait(60)
    return made
"""

#: kind -> (program that makes ``client``, expression that uses it, expression with another client)
KINDS = {
    "Producer": ("Producer(bootstrap_servers=servers)", "client.send(topic, b'x').result(20).topic", "other()"),
    "transactional Producer": (
        "Producer(bootstrap_servers=servers, transactional_id=topic, enable_idempotence=True)",
        "client.begin_transaction() or client.send(topic, b'x', partition=1) and client.commit_transaction()",
        "other()",
    ),
    "AsyncProducer": (
        "AsyncProducer(bootstrap_servers=servers)",
        "asyncio.run(client.send_and_wait(topic, b'x')).topic",
        "other()",
    ),
    "Consumer": ("consumer()", "client.poll(20) and client.seek(P0, 0)", "other()"),
    "Consumer in a group": (
        "Consumer(bootstrap_servers=servers, group_id=topic, auto_offset_reset='earliest'); client.subscribe([topic])",
        "client.poll(0.2) and client.commit()",
        "other()",
    ),
    "AsyncConsumer": (
        "consumer(AsyncConsumer)",
        "asyncio.run(client.poll(20)) and client.seek(P0, 0)",
        "other()",
    ),
    "RangeReader": (
        "RangeReader([OffsetRange(topic, 0, 0, 10**6)], bootstrap_servers=servers)",
        "len(next(client.slices()).records) and client._core.reading.seek(P0, 0)",
        "other()",
    ),
    "Admin": ("Admin(bootstrap_servers=servers)", "len(client.list_topics()) > 0", "other()"),
    "AsyncAdmin": ("AsyncAdmin(bootstrap_servers=servers)", "len(asyncio.run(client.list_topics())) > 0", "other()"),
    "SchemaRegistry": ("SchemaRegistry(registry)", "len(client.subjects())", "other_registry()"),
    "processing": ("processing()", "client.metrics()['assigned-partitions'] == 2", "other()"),
    "LocalCluster": (
        "LocalCluster(brokers=1, controllers=1, coordinators=0).start()",
        "serves(client)",
        "other()",
    ),
    "LocalCluster in this process": (
        "LocalCluster(brokers=1, controllers=1, coordinators=0, mode='inprocess').start()",
        "serves(client)",
        "other()",
    ),
}

_FORKED = "before the process forked, and connections do not survive a fork"
_NO_GRPC = "this process was forked from a process with open gRPC connections, and gRPC does not work in a forked child"
#: child -> a part of what it takes down, for all kinds but those of ``WORKS``
NOTES = {
    "leaves its with block": "None",
    "uses the client": _FORKED,
    "makes its own client": _NO_GRPC,
    "is a multiprocessing child (forkserver)": "1",
    "is a multiprocessing child (spawn)": "1",
}
WORKS = {
    ("SchemaRegistry", "uses the client"): "0",
    ("SchemaRegistry", "makes its own client"): "0",
    ("SchemaRegistry", "is a multiprocessing child (forkserver)"): "0",
    ("SchemaRegistry", "is a multiprocessing child (spawn)"): "0",
    ("processing", "uses the client"): "True",  # it has metrics; another poll is refused in the parent, too
    ("LocalCluster", "uses the client"): "True",
    ("LocalCluster", "makes its own client"): "1",
    ("LocalCluster in this process", "uses the client"): _NO_GRPC,
}

#: what the child does -> (program, exit code); ``note`` takes an outcome down
CHILDREN = {
    "ends": ("pass", 0),
    "calls sys.exit": ("sys.exit(3)", 3),
    "raises": ("raise ValueError('a bug')", 1),
    "calls os._exit": ("os._exit(7)", 7),
    "uses threads": ("with ThreadPoolExecutor(4) as pool: list(pool.map(str, range(10)))", 0),
    "drops the client": ("del client; gc.collect()", 0),
    "collects garbage": ("gc.collect()", 0),
    "leaves its with block": (
        "note(lambda: asyncio.run(client.__aexit__(None, None, None)) if 'Async' in kind"
        " else client.__exit__(None, None, None))",
        0,
    ),
    "uses the client": ("note(lambda: {use})", 0),
    "makes its own client": ("note(lambda: {other})", 0),
    "forks again": (
        "pid = os.fork()\nif pid: assert os.waitpid(pid, 0)[1] == 0\nelse: del client; gc.collect()",
        0,
    ),
    "runs a program": ("assert subprocess.run([sys.executable, '-c', ''], preexec_fn=int).returncode == 0", 0),
    "is a multiprocessing child (fork)": ("spawned('fork', nothing)", 0),
    "is a multiprocessing child (forkserver)": ("spawned('forkserver', its_own)", 0),
    "is a multiprocessing child (spawn)": ("spawned('spawn', its_own)", 0),
}

PROGRAM = """
def note(work):
    try:
        found = repr(work())
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    with open(os.environ["NOTES"], "w") as notes:
        notes.write(found)

def nothing():
    signal.alarm(30)

def its_own():
    signal.alarm(30)
    note(lambda: OTHER)

def spawned(method, work):
    process = multiprocessing.get_context(method).Process(target=work)
    process.start()
    process.join(60)
    outcomes[name] = process.exitcode

def main():
    global client, name
    client = CLIENT
    USE
    for name, program in CHILDREN.items():
        os.environ["NOTES"] = sys.argv[4] + "/" + name
        if "multiprocessing" in name:
            exec(program, globals())
            continue
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            exec(program, globals())
            return
        status = os.waitpid(pid, 0)[1]
        outcomes[name] = os.waitstatus_to_exitcode(status)
    USE  # the parent's client works
    client = None
    gc.collect()
    print(json.dumps(outcomes))

if __name__ == "__main__":
    outcomes = {}
    main()
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, tuple[int, str]]]]:
    """The exit code of each child of the process that used a kind of client, and what the child took down. One process
    for each kind, which forks all the children."""
    path = tmp_path_factory.mktemp("forks")
    found: dict[str, dict[str, tuple[int, str]]] = {}
    with LocalCluster(brokers=1, controllers=1, registries=1) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(f"t{number}", partitions=2) for number in range(len(KINDS))])

        def of(kind: str) -> dict[str, tuple[int, str]]:
            if kind not in found:
                found[kind] = _run(kind, cluster, path / kind)
            return found[kind]

        yield of


def _run(kind: str, cluster: LocalCluster, path: Path) -> dict[str, tuple[int, str]]:
    path.mkdir(exist_ok=True)
    made, use, other = KINDS[kind]
    children = {name: program.format(use=use, other=other) for name, (program, _) in CHILDREN.items()}
    body = PROGRAM.replace("CHILDREN", repr(children)).replace("CLIENT", made).replace("USE", use)
    program = path / "program.py"
    program.write_text(f"{PRELUDE}\nkind = {kind!r}\n{body.replace('OTHER', other)}")
    topic = f"t{list(KINDS).index(kind)}"
    with_a_record(cluster, topic)
    arguments = [cluster.bootstrap_servers, cluster.registry_urls, topic, str(path)]
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    codes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    notes = {name: (path / name).read_text() if (path / name).exists() else "" for name in codes}
    return {name: (code, notes[name]) for name, code in codes.items()}


def with_a_record(cluster: LocalCluster, topic: str) -> None:
    from headrace import Producer

    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send(topic, b"for a consumer", partition=0).result(20)


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("kind", KINDS)
def test_the_child_of_a_process_with_a_used_client(
    outcomes: Callable[[str], dict[str, tuple[int, str]]], kind: str, child: str
) -> None:
    code, note = outcomes(kind)[child]
    assert code == CHILDREN[child][1]
    assert WORKS.get((kind, child), NOTES.get(child, "")) in note
