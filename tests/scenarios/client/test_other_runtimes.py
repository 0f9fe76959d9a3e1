"""Programs whose threads are not threads (gevent, eventlet), and event loops that are not asyncio's (trio, also under
anyio): a client works, or says at once what to do instead. It never stops the program."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from headrace_core.records import encode_batch

_GEVENT = """
from headrace import Admin, Consumer, Producer, TopicPartition
from headrace.errors import HeadraceError, IllegalStateError
import gevent

ran = []
gevent.spawn(ran.append, "another greenlet")
producer = Producer(linger_ms=0)
first = producer.send("t", b"first")  # waits for metadata without end: no timer keeps gevent's loop alive
assert first.result().offset == 0
assert ran == ["another greenlet"]
jobs = [gevent.spawn(lambda n=n: producer.send("t", b"%d" % n).result(20)) for n in range(20)]
gevent.joinall(jobs, raise_error=True)
assert sorted(job.value.offset for job in jobs) == list(range(1, 21))

refused = []
def callback(*_):
    try:
        producer.flush()
    except IllegalStateError as error:
        refused.append(str(error))
future = producer.send("t", b"with a callback")
future.add_done_callback(callback)
future.result()
producer.flush()
while not refused:
    gevent.sleep(0.001)
assert "cannot wait in the callback" in refused[0], refused

with Admin() as admin:
    assert admin.describe_cluster().cluster_id == "fake"
with Consumer(auto_offset_reset="earliest") as consumer:
    consumer.assign([TopicPartition("t", 0)])
    found = []
    while len(found) < 22:
        found += consumer.poll(20)
    ran.clear()
    gevent.spawn(ran.append, "during a poll")
    assert consumer.poll(0.01) == []
    assert ran == ["during a poll"]
    assert consumer.position(TopicPartition("t", 0)) == 22
with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200, bootstrap_timeout_ms=200) as nobody:
    try:
        nobody.send("t", b"x").result(5)
    except HeadraceError as error:
        assert "connection refused" in str(error), error
    else:
        raise AssertionError("no error")
slow = Producer(linger_ms=60_000)
for n in range(10):
    slow.send("t", b"at the end")
print("done")
"""
_PATCH = "from gevent import monkey; monkey.patch_all()\n"

_EVENTLET = """
import eventlet; eventlet.monkey_patch()
import headrace
from headrace.errors import IllegalStateError
for kind in (headrace.Producer, headrace.Consumer, headrace.Admin, headrace.AsyncProducer, headrace.AsyncConsumer,
             headrace.AsyncAdmin):
    try:
        kind()
    except IllegalStateError as error:
        assert "gunicorn -k gthread" in str(error) and "thread=False" in str(error), error
    else:
        raise AssertionError(kind)
print("done")
"""

_EVENTLET_LATE = """
from headrace import Producer
from headrace.errors import IllegalStateError
producer = Producer()
import eventlet; eventlet.monkey_patch()
try:
    producer.send("t", b"x").result(5)
except IllegalStateError as error:
    assert "eventlet" in str(error), error
    print("done")
"""

_EVENTLET_WITHOUT_THREADS = """
import eventlet; eventlet.monkey_patch(thread=False)
from headrace import Producer
with Producer() as producer:
    assert producer.send("t", b"x").result(20).offset == 0
print("done")
"""

_TRIO = """
import trio
import headrace
from headrace.errors import IllegalStateError

outside = [headrace.AsyncProducer(), headrace.AsyncAdmin(), headrace.AsyncConsumer()]

async def main():
    for kind in (headrace.AsyncProducer, headrace.AsyncConsumer, headrace.AsyncAdmin):
        try:
            kind()
        except IllegalStateError as error:
            assert "trio.to_thread.run_sync" in str(error), error
        else:
            raise AssertionError(kind)
    for client in outside:
        for call in (client.start, client.close):
            try:
                with trio.fail_after(20):
                    await call()
            except (IllegalStateError, RuntimeError, TypeError) as error:
                assert "asyncio" in str(error) or "event loop" in str(error), error
            else:
                raise AssertionError(client)
    with headrace.Producer() as producer:
        sent = await trio.to_thread.run_sync(lambda: producer.send("t", b"x").result(20))
    assert sent.offset == 0

RUN
print("done")
"""


def run(fake: Any, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "HEADRACE_BOOTSTRAP_SERVERS": fake.bootstrap_servers},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("done", 0), done.stderr


@pytest.mark.parametrize("order", ["patched first", "patched after the import"])
def test_clients_work_under_gevent_and_their_waits_let_other_greenlets_run(fake: Any, order: str) -> None:
    pytest.importorskip("gevent")
    fake.create("t")
    run(fake, _PATCH + _GEVENT if order == "patched first" else "import headrace\n" + _PATCH + _GEVENT)
    assert fake.ends["t", 0] == 32, "the program's last records were sent at its end"


@pytest.mark.parametrize("program", [_EVENTLET, _EVENTLET_LATE, _EVENTLET_WITHOUT_THREADS])
def test_clients_under_eventlet_name_the_remedy_which_works(fake: Any, program: str) -> None:
    pytest.importorskip("eventlet")
    fake.create("t")
    run(fake, program)


@pytest.mark.parametrize("runner", ["trio.run(main)", "import anyio; anyio.run(main, backend='trio')"])
def test_asyncio_clients_under_trio_name_the_remedy_which_works(fake: Any, runner: str) -> None:
    pytest.importorskip("trio")
    fake.create("t")
    run(fake, _TRIO.replace("RUN", runner))


def test_asyncio_clients_work_under_anyio_on_asyncio(fake: Any) -> None:
    anyio = pytest.importorskip("anyio")
    fake.create("t")
    fake.append("t", 0, encode_batch([(1, None, b"x", None)]))
    program = """
import anyio, headrace
async def main():
    async with headrace.AsyncProducer() as producer, anyio.create_task_group() as group:
        group.start_soon(producer.send_and_wait, "t", b"x")
        group.start_soon(producer.send_and_wait, "t", b"x")
anyio.run(main)
print("done")
"""
    run(fake, program)
    assert anyio
    assert fake.ends["t", 0] == 3
