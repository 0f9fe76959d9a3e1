"""Events that must not break a client: callbacks that exit, closed loops, brokers that move, damage, races."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from headrace import Admin, AsyncConsumer, AsyncProducer, Consumer, Producer, TopicPartition
from headrace.errors import ClosedError, HeadraceError, InvalidArgumentError
from headrace_core.records import encode_batch
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.waiting import until

T0 = TopicPartition("t", 0)


def producer(cluster: Any, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **{"retry_backoff_ms": 5, **settings})


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 200, **settings}
    return Consumer(bootstrap_servers=cluster.bootstrap_servers, **given)


def fill(cluster: Any, count: int, *, topic: str = "t", partition: int = 0, value: bytes = b"v") -> None:
    cluster.append(topic, partition, encode_batch([(n, None, value, None) for n in range(count)]))


def read(inp: Consumer, count: int) -> list[Any]:
    out: list[Any] = []
    deadline = time.monotonic() + 60
    while len(out) < count:
        if time.monotonic() >= deadline:
            raise NotInTimeError(f"only {len(out)} of {count} records came")
        out += inp.poll(0.5)
    return out


# --- callbacks and loops --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_callback_that_exits_does_not_take_the_io_thread_along(fake: Any, leave: type[BaseException]) -> None:
    def on_delivery(metadata: Any, error: Any) -> None:
        raise leave

    with producer(fake) as out:
        out.send("t", b"1", on_delivery=on_delivery).result(60)
        assert out.send("t", b"2").result(60).offset == 1


def test_loop_that_ended_while_a_send_waited_for_room_harms_nobody(fake: Any) -> None:
    out = AsyncProducer(bootstrap_servers=fake.bootstrap_servers, buffer_memory=2_000, batch_size=500)

    async def stuck() -> None:
        first = await out.send("t", b"0")
        await first
        fake.hold_answers(True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    await out.send("t", b"x" * 400)

    async def after() -> int:
        fake.hold_answers(False)
        sent = await out.send("t", b"last")
        return int((await sent).offset)

    asyncio.run(stuck())
    assert asyncio.run(asyncio.wait_for(after(), 60)) > 0
    asyncio.run(out.close())


def test_loop_that_ended_while_a_poll_waited_harms_nobody(fake: Any) -> None:
    inp = AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest")
    inp.assign([T0])

    async def stuck() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(inp.poll(60), 0.3)

    async def after() -> int:
        return len(await inp.poll(5, max_records=3))

    asyncio.run(stuck())
    fill(fake, 3)
    until(lambda: inp._core.reading.inbox.slices)
    fill(fake, 3)
    assert [asyncio.run(after()), asyncio.run(after())] == [3, 3]
    asyncio.run(inp.close())


def test_ctrl_c_between_append_and_wake_stalls_nobody(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with producer(fake) as out:
        out.send("t", b"0").result(60)
        engine = out._core.engine
        call = engine.call

        def interrupted(*arguments: Any) -> None:
            monkeypatch.setattr(engine, "call", call)
            raise KeyboardInterrupt

        monkeypatch.setattr(engine, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            out.send("t", b"1")
        assert out.send("t", b"2").result(60).offset == 2


# --- brokers that move ----------------------------------------------------------------------------------------------


def test_broker_that_moves_is_followed_while_its_old_address_still_answers(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t", 4, leader=1)
    four = [TopicPartition("t", number) for number in range(4)]
    with producer(cluster, metadata_max_age_ms=50) as out, consumer(cluster, metadata_max_age_ms=50) as inp:
        inp.assign(four)
        for number in range(4):
            out.send("t", b"before", partition=number).result(60)
        assert len(read(inp, 4)) == 4
        cluster.hold_answers(True)
        pending = [out.send("t", b"during", partition=number) for number in range(4)]
        until(lambda: len(cluster.produced) >= 5)
        old_port, cluster.ports[1] = cluster.ports[1], 0
        cluster.servers.append(cluster._serve(1))
        until(lambda: out._core.engine.metadata.snapshot.brokers[1].port != old_port)
        pending.append(out.send("t", b"while its answers are awaited", partition=0))
        until(lambda: all(f":{old_port}" not in link.address for link in out._core.sender.links.values()))
        until(lambda: all(f":{old_port}" not in link.address for link in inp._core.reading.fetcher.links.values()))
        cluster.hold_answers(False)
        for future in pending:
            future.result(60)
        after = [out.send("t", b"after", partition=number).result(60) for number in range(4)]
        wanted = sum(metadata.offset + 1 for metadata in after) - 4  # what was in flight may be there twice
        assert len(read(inp, wanted)) == wanted
        until(lambda: [t.get_name() for t in out._core.engine.io._tasks].count("headrace-produce-1") == 1)


def test_broker_that_moves_twice_gets_the_batches_that_waited_for_its_second_address(fake_cluster: Any) -> None:
    """The leader epoch stays the same, and nothing else is sent that could wake the sender."""
    cluster = fake_cluster(2)
    cluster.create("t", 1, leader=1)
    with producer(cluster, metadata_max_age_ms=50) as out, consumer(cluster, metadata_max_age_ms=50) as inp:
        inp.assign([T0])
        out.send("t", b"before").result(60)
        assert len(read(inp, 1)) == 1
        port = cluster.ports[1]
        with socket.socket() as unused:  # bound, and not listening: connections are refused
            unused.bind(("127.0.0.1", 0))
            cluster.ports[1] = unused.getsockname()[1]
            until(lambda: out._core.engine.metadata.snapshot.brokers[1].port != port)
            pending = out.send("t", b"while it is between two addresses")
            until(lambda: out._core.sender.links[1].last_error is not None)
            assert not pending.done()
            cluster.ports[1] = port
            assert pending.result(60).offset == 1
            assert len(read(inp, 1)) == 1


def test_nothing_is_opened_by_what_is_reported_after_close(fake: Any) -> None:
    out = producer(fake)
    out.send("t", b"1").result(60)
    core = out._core
    queues = core.accumulator.topics["t"].queues
    fake.hold_answers(True)
    out.send("t", b"2")
    with pytest.warns(RuntimeWarning, match="unacknowledged"):
        out.close(0.05)
    core.engine.io.run(asyncio.sleep(0))
    before = len(core.engine.connections._pool._by_address)
    core.sender.unroute(queues)
    core.engine.io.call(core.sender.wake)
    core.engine.io.call(core.sender.route_again)
    core.engine.io.run(asyncio.sleep(0.05))
    assert not core.sender.links
    assert len(core.engine.connections._pool._by_address) == before == 0


def test_answer_that_makes_no_sense_fails_nobody(fake: Any) -> None:
    with producer(fake) as out:
        out.send("t", b"0").result(60)
        wrong = iter([True])
        fake.on_answer = lambda answer: next(wrong, False) and answer.results.add(topic="t", partition=7)
        assert out.send("t", b"1").result(60).offset in (1, 2)
        assert out.send("t", b"2").result(60).offset in (2, 3)


def test_topic_made_anew_with_fewer_partitions_gets_no_records_beyond_them(fake: Any) -> None:
    fake.create("t", 8)
    with producer(fake, metadata_max_age_ms=50, linger_ms=1) as out:
        for n in range(50):
            out.send("t", b"old", key=b"%d" % n).result(60)
        with fake.changed:
            fake.topic_ids["t"] = b"u" * 16
            fake.partitions["t"] = 2
        until(lambda: out.partitions_for("t") == [0, 1])
        new = [out.send("t", b"new", key=b"%d" % n) for n in range(50)] + [out.send("t", b"new") for _ in range(50)]
        assert {future.result(60).partition for future in new} == {0, 1}
        with pytest.raises(InvalidArgumentError, match="has 2 partitions"):
            out.send("t", b"new", partition=5)


# --- the end --------------------------------------------------------------------------------------------------------


def test_compressed_records_are_sent_when_the_process_ends_without_close(fake: Any) -> None:
    program = (
        "import sys; from headrace import Producer\n"
        "out = Producer(bootstrap_servers=sys.argv[1], compression_type='lz4', linger_ms=60000)\n"
        "for n in range(3): out.send('t', b'%d' % n)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, fake.bootstrap_servers], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 0
    assert "unacknowledged" not in ended.stderr, ended.stderr
    assert len(fake.records("t")) == 3


def test_send_that_close_overtakes_in_its_serializer_is_refused_or_has_an_outcome(fake: Any) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(topic: str, value: Any) -> bytes:
        if value == b"slow":
            inside.set()
            go_on.wait(60)
        return bytes(value)

    out = producer(fake, value_serializer=slow)
    out.send("t", b"first").result(60)
    outcome: list[Any] = []

    def send() -> None:
        try:
            outcome.append(out.send("t", b"slow").exception(5))
        except (HeadraceError, TimeoutError) as error:
            outcome.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert inside.wait(60)
    out.close()
    go_on.set()
    thread.join(60)
    assert isinstance(outcome[0], ClosedError), outcome


def test_topic_that_is_slow_to_make_is_asked_for_once(fake: Any) -> None:
    """If the client repeated the request after request.timeout.ms, the cluster would report that the topic already
    exists, although the client's own first request creates the topic."""
    fake.creations_held = True

    def release() -> None:
        with fake.changed:
            fake.creations_held = False
            fake.changed.notify_all()

    later = threading.Timer(0.8, release)
    later.start()
    try:
        with Admin(bootstrap_servers=fake.bootstrap_servers, request_timeout_ms=200) as admin:
            (made,) = admin.create_topics(["slow"], timeout=15)
    finally:
        later.join()
    assert made.name == "slow"
    assert fake.creations_asked == 1
