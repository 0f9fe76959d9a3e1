"""Leaders fail, move, hang and return. Clients follow at once, without a burst of retries, and with clear errors."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Consumer, Producer, TopicPartition
from headrace.errors import DeliveryTimeoutError, UnknownOutcomeError
from headrace_core.records import encode_batch
from headrace_core.rpc.stream import pause
from tests.worlds.waiting import until

NOT_LEADER, NOT_ENOUGH_REPLICAS = 6, 19
T0 = TopicPartition("t", 0)


def producer(cluster: Any, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, **{"retry_backoff_ms": 20, **settings})


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "retry_backoff_ms": 20, "fetch_max_wait_ms": 100, **settings}
    found = Consumer(bootstrap_servers=cluster.bootstrap_servers, **given)
    found.assign([T0])
    return found


@contextlib.contextmanager
def silence() -> Iterator[tuple[int, list[Any], Callable[[], None]]]:
    """A port that accepts connections and never answers, like a machine that is gone. Returns the port, its
    connections, and a function to close it."""
    listener = socket.create_server(("127.0.0.1", 0), reuse_port=True)  # so that a server may take the port over
    taken: list[Any] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(listener.accept()[0])

    thread = threading.Thread(target=accept)
    thread.start()

    def end() -> None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in taken:
            connection.close()

    try:
        yield listener.getsockname()[1], taken, end
    finally:
        end()


@pytest.mark.parametrize("idempotent", [True, False])
def test_records_for_a_leader_that_never_connects_go_to_the_next_one(fake_cluster: Any, idempotent: bool) -> None:
    """A write that waits for a connection does not notice that its call is cancelled (grpc.aio 1.85): it waits for
    ever."""
    cluster = fake_cluster(2)
    cluster.create("t", leader=1)
    with silence() as (port, taken, _):
        cluster.ports[1] = port
        with producer(cluster, request_timeout_ms=200, enable_idempotence=idempotent) as out:
            sent = out.send("t", b"v")
            until(lambda: taken and 1 in out._core.sender.links)  # (the first connection may be for metadata)
            link = out._core.sender.links[1]
            link.check_silence(float("inf"), 0.2)
            cluster.move("t", 0, 0)
            out._core.engine.io.call(out._core.engine.metadata.invalidate)
            assert sent.result(60).offset == 0
            assert not link.in_flight, "nothing was on its way, so nothing can be there twice"


@pytest.mark.parametrize("what", ["producer", "consumer"])
def test_broker_that_stood_still_while_it_was_connected_to_is_used_when_it_is_back(
    fake_cluster: Any, what: str
) -> None:
    cluster = fake_cluster(2)
    cluster.create("t", leader=1)
    cluster.append("t", 0, encode_batch([(0, None, b"first", None)]))
    with silence() as (port, taken, end):
        cluster.ports[1] = port
        settings = {"request_timeout_ms": 1_000}
        with (
            producer(cluster, **settings, enable_idempotence=True) as out,
            consumer(cluster, **settings, auto_offset_reset="none") as inp,
        ):
            if what == "producer":
                sent = out.send("t", b"v")
            else:
                inp.seek(T0, 0)
                assert inp.poll(0.01) == []
            until(lambda: taken)
            if what == "consumer":
                core = inp._core
                until(lambda: any(link.duplex is not None for link in core.reading.fetcher.links.values()))
                core.engine.io.call(
                    lambda: [link.duplex.cancel() for link in core.reading.fetcher.links.values()]
                )  # as its watchdog does
            else:
                core = out._core
                until(lambda: 1 in core.sender.links and core.sender.links[1].duplex is not None)
                core.engine.io.call(lambda: core.sender.links[1].duplex.cancel())
            core.engine.io.run(core.engine.metadata.refresh(["t"], deadline=float("inf")))
            cluster.servers[1] = cluster._serve(1)  # while the test still holds the port
            end()
            if what == "producer":
                assert sent.result(60).offset == 1
            else:
                assert [record.value for record in inp.poll(60)] == [b"first"]


def test_new_leader_is_known_without_asking(fake_cluster: Any) -> None:
    cluster = fake_cluster(3)
    cluster.watchable = True
    cluster.create("t", leader=1)
    with producer(cluster) as out:
        out.send("t", b"0").result(60)
        until(lambda: cluster.watches)
        asked = len(cluster.metadata_asked)
        cluster.move("t", 0, 2)
        until(lambda: out._core.engine.metadata.snapshot.topics["t"].partitions[0].leader == 2)
        assert out.send("t", b"1").result(60).offset == 1
        assert len(cluster.metadata_asked) == asked
        assert {request.correlation_id for broker, request in cluster.produced if broker == 1} == {1}


def test_watch_follows_the_topics_that_are_used_and_brokers_that_end(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.watchable = True
    cluster.create("t")
    cluster.create("u")
    with producer(cluster) as out:
        out.send("t", b"0").result(60)
        until(lambda: cluster.watches == 1)  # (a later watch would have both topics at once)
        out.send("u", b"0").result(60)
        until(lambda: cluster.watches >= 2)
        cluster.servers[1].stop(0)
        cluster.move("u", 0, -1)
        until(lambda: out._core.engine.metadata.snapshot.topics["u"].partitions[0].leader == -1)
        cluster.move("u", 0, 0)
        assert out.send("u", b"1").result(60).offset == 1


def test_batches_at_a_leader_that_stands_still_go_to_the_next_one_before_the_request_times_out(
    fake_cluster: Any,
) -> None:
    """A broker is stopped by SIGSTOP. The stopped broker's session ends, another broker leads, and the old connections
    stay open."""
    cluster = fake_cluster(2)
    cluster.watchable = True
    cluster.create("t", leader=1)
    with producer(cluster, enable_idempotence=True, request_timeout_ms=60_000, delivery_timeout_ms=120_000) as out:
        out.send("t", b"0").result(60)
        cluster.on_produce = lambda broker, item: "silent" if broker == 1 else 0  # written, and replicated
        sent = [out.send("t", b"%d" % number) for number in range(1, 4)]
        until(lambda: len(cluster.produced) >= 2)
        cluster.move("t", 0, 0)
        assert [future.result(60).offset for future in sent] == [1, 2, 3]
    assert [record.value for record in cluster.records("t")] == [b"0", b"1", b"2", b"3"]


def test_leaders_that_stand_still_one_after_the_other_are_left(fake_cluster: Any) -> None:
    """The producer has no connection to the new leader yet when the partition leaves the old leader. The producer must
    also notice if the second leader does not answer."""
    cluster = fake_cluster(3)
    cluster.watchable = True
    cluster.create("t", leader=0)
    with producer(cluster, enable_idempotence=True, request_timeout_ms=60_000, delivery_timeout_ms=120_000) as out:
        out.send("t", b"0").result(60)
        for silent in (0, 1):
            count = len(cluster.produced)
            cluster.on_produce = lambda broker, item, silent=silent: "silent" if broker == silent else 0
            sent = out.send("t", b"%d" % (silent + 1))
            until(lambda count=count: len(cluster.produced) > count)
            cluster.move("t", 0, silent + 1)
            assert sent.result(20).offset == silent + 1
    assert [record.value for record in cluster.records("t")] == [b"0", b"1", b"2"]


def test_hint_is_followed_at_once_though_failures_before_made_the_backoff_long(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.watchable = True
    cluster.create("t", leader=0)
    cluster.on_produce = lambda broker, item: NOT_ENOUGH_REPLICAS if broker == 0 else 0
    with producer(cluster, retry_backoff_ms=600_000, retry_backoff_max_ms=600_000, delivery_timeout_ms=900_000) as out:
        sent = out.send("t", b"v")
        until(lambda: cluster.produced)
        cluster.move("t", 0, 1)
        assert sent.result(60).offset == 0


def test_dead_leader_is_tried_once_for_each_backoff(fake_cluster: Any, unused_port: int) -> None:
    cluster = fake_cluster(2)
    cluster.create("t", leader=1)
    cluster.servers[1].stop(0)
    cluster.ports[1] = unused_port
    with producer(cluster, retry_backoff_ms=200, retry_backoff_max_ms=200) as out:
        sent = out.send("t", b"v")
        core = out._core
        opened: list[str] = []
        stream = core.engine.connections.produce_stream
        core.engine.connections.produce_stream = lambda address: (opened.append(address), stream(address))[1]
        until(lambda: len(opened) >= 4)
        asked = len(cluster.metadata_asked)
        until(lambda: len(opened) >= 8)
        assert len(cluster.metadata_asked) - asked <= 12
        cluster.move("t", 0, 0)
        assert sent.result(60).offset == 0
    assert not any(link for link in core.sender.links.values() if link.in_flight)


@pytest.mark.parametrize("what", ["producer", "consumer", "consumer placed again"])
def test_broker_that_was_dead_is_dialed_at_once_when_it_leads_anew(
    fake_cluster: Any, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The earlier state of a connection (a long pause, gRPC's back-off after refused connections) must not delay the
    producer. `make bench-failover` found this delay of producers: one failover in fifteen took a second longer."""
    pauses: list[float] = []

    async def long_pause(seconds: float, news: asyncio.Event) -> None:
        pauses.append(seconds)
        await pause(600.0 if len(pauses) == 4 else seconds, news)

    monkeypatch.setattr("headrace_core.rpc.stream.pause", long_pause)
    cluster = fake_cluster(2, restarts=True)
    cluster.watchable = True
    cluster.create("t", leader=1)
    cluster.append("t", 0, encode_batch([(0, None, b"first", None)]))
    with producer(cluster) as out, consumer(cluster) as inp:
        if what == "producer":
            assert out.send("t", b"v").result(60).offset == 1
        else:
            assert [record.value for record in inp.poll(60)] == [b"first"]
        cluster.servers[1].stop(0).wait()
        if what == "producer":
            sent = out.send("t", b"v")
        until(lambda: len(pauses) > 3)
        if what == "consumer placed again":  # the pause continues at a replica from the earlier metadata
            until(lambda: T0 in inp._core.reading.fetcher.placed)
        cluster.servers[1] = cluster._serve(1)
        cluster.append("t", 0, encode_batch([(0, None, b"second", None)]))
        cluster.move("t", 0, 1)
        if what == "producer":
            assert sent.result(60).offset == 3
        else:
            assert [record.value for record in inp.poll(60)] == [b"second"]


def test_errors_say_who_led_last_and_whether_it_may_be_written(fake: Any) -> None:
    fake.watchable = True
    with producer(fake, request_timeout_ms=100, delivery_timeout_ms=2_000) as out:
        out.send("t", b"0").result(60)
        fake.move("t", 0, -1)
        until(lambda: out._core.engine.metadata.snapshot.topics["t"].partitions[0].leader == -1)
        error = out.send("t", b"v").exception(60)
        assert isinstance(error, DeliveryTimeoutError)
        assert not isinstance(error, UnknownOutcomeError), "it was never sent"
        assert "t-0 has no leader; broker 0 led it last (epoch 0)" in error.message
        fake.move("t", 0, 0)
        fake.on_produce = lambda broker, item: NOT_ENOUGH_REPLICAS
        error = out.send("t", b"v").exception(60)
        assert isinstance(error, DeliveryTimeoutError)
        assert not isinstance(error, UnknownOutcomeError), "it was refused each time"
        assert "NOT_ENOUGH_REPLICAS: an error set by the test" in error.message
        fake.on_produce = lambda broker, item: "silent"
        error = out.send("t", b"v").exception(60)
        assert isinstance(error, UnknownOutcomeError)


def test_new_leader_is_found_though_the_broker_that_is_watched_stands_still(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t", leader=1)
    with producer(cluster, enable_idempotence=True, request_timeout_ms=60_000) as out, consumer(cluster) as inp:
        out.send("t", b"0").result(60)
        assert len(inp.poll(60)) == 1
        cluster.on_produce = lambda broker, item: "silent" if broker == 1 else 0
        sent = out.send("t", b"1")
        until(lambda: len(cluster.produced) >= 2)
        cluster.move("t", 0, 0)  # without a notice to the client
        assert sent.result(60).offset == 1
