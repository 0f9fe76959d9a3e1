"""Clients and forks: an opened but unused client works in a child, a used client raises an error that says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

_PROGRAM = """
import asyncio, gc, json, os, signal, threading, weakref
from headrace import Admin, AsyncProducer, Consumer, Producer, TopicPartition
TP, out = TopicPartition("t", 0), {}

def in_child(work):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(w, str(answer).encode())
        os._exit(0)
    os.close(w)
    answer = os.read(r, 10_000).decode()
    os.waitpid(pid, 0)
    return answer

def close_after(client, work):
    with client:
        return work(client)

async def sends(client):
    async with client:
        return (await client.send_and_wait("t", b"async")).partition

producer, consumer, admin = Producer(), Consumer(auto_offset_reset="earliest"), Admin()
consumer.assign([TP])
repr(producer), producer.metrics(), consumer.metrics()
asynchronous = AsyncProducer()
out["threads"] = [thread.name for thread in threading.enumerate()]
out["producer"] = in_child(lambda: close_after(producer, lambda p: p.send("t", b"child").result(60).partition))
out["async"] = in_child(lambda: asyncio.run(sends(asynchronous)))
out["consumer"] = in_child(lambda: close_after(consumer, lambda c: c.poll(60)[0].value))
out["admin"] = in_child(lambda: close_after(admin, lambda a: a.describe_cluster().cluster_id))
out["close only"] = in_child(lambda: [client.close() for client in (producer, consumer, admin)])
out["parent"] = producer.send("t", b"parent").result(60).partition
out["used"] = in_child(lambda: producer.send("t", b"x"))
out["beside a used one"] = in_child(lambda: consumer.poll(1))
with producer._core._closing:  # as the I/O thread may hold it at the moment of the fork
    out["closed in the child"] = in_child(lambda: (signal.alarm(20), producer.close())[1])
producer.close(), consumer.close(), admin.close()
unused = Producer()
kept = weakref.ref(unused._core)
del unused
gc.collect()
out["kept"] = kept() is not None
print(json.dumps(out))
"""


def test_client_that_was_not_used_before_the_fork_works_in_the_child(fake: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": fake.bootstrap_servers},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    out = json.loads(done.stdout)
    assert out.pop("threads") == ["MainThread"]
    assert "IllegalStateError: this producer was opened before the process forked" in out.pop("used")
    assert "IllegalStateError: this process was forked from a process with open gRPC" in out.pop("beside a used one")
    assert out == {
        "producer": "0",
        "async": "0",
        "consumer": "b'child'",
        "admin": "fake",
        "close only": "[None, None, None]",
        "parent": 0,
        "closed in the child": "None",
        "kept": False,
    }
