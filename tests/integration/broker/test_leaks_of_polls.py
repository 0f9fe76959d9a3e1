"""Abandoned long polls and dropped streams leak no resources in the broker.

By default the counts are small, but they show a leak of one descriptor or some KiB of memory per round.
HEADRACE_FULL_LEAKS=1 runs the required counts (100,000 polls, 10,000 streams), as `make verify` does.
"""

from __future__ import annotations

import os
import queue
from typing import Any

import pytest

from headrace_protos.v1 import fetch_pb2_grpc, metadata_pb2, produce_pb2_grpc
from tests.worlds.broker_world import Cluster, batch, fetch_partition, fetch_request, produce_partition, produce_request
from tests.worlds.waiting import until

IS_FULL = os.environ.get("HEADRACE_FULL_LEAKS", "0") not in ("", "0")
MIB = 1024 * 1024
FOREVER_MS = 600_000


def counts(small: int, full: int) -> Any:
    """Pairs for a test's parameters: the number of rounds, and the broker's allowed growth. The growth is in MiB, after
    the first tenth of the rounds."""
    return pytest.mark.parametrize(("rounds", "growth_max_mib"), [(full, 5.0) if IS_FULL else (small, 2.0)])


class Use:
    """The broker's resources at one moment."""

    def __init__(self, cluster: Cluster) -> None:
        self.rss = cluster.rss_bytes()
        self.descriptors = cluster.descriptors()
        self.threads = cluster.threads()


class Opened:
    """A call with a long poll that surely waits, because the broker has answered an earlier request on the stream."""

    def __init__(self, method: Any, *requests: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = method(iter(self._requests.get, None))
        for request in requests:
            self._requests.put(request)

    def send(self, request: Any) -> None:
        self._requests.put(request)

    def drop(self) -> None:
        self.call.cancel()
        self._requests.put(None)


def check(cluster: Cluster, before: Use, growth_max_mib: float) -> None:
    grown = (cluster.rss_bytes() - before.rss) / MIB
    assert grown < growth_max_mib, f"the broker grew by {grown:.2f} MiB"
    until(lambda: cluster.descriptors() <= before.descriptors, "descriptors to be as many as before")
    # gRPC's pool of threads grows while all its threads are busy. Idle threads end later. A leak would add a thread
    # every few rounds.
    until(lambda: cluster.threads() <= before.threads + 4, lambda: f"{cluster.threads()} threads")
    print(f"grew by {grown:.2f} MiB")


@counts(10_000, 100_000)
@pytest.mark.timeout(600)
def test_polls_ended_by_a_newer_one_leave_nothing_behind(make_cluster, rounds, growth_max_mib):
    cluster = make_cluster()
    cluster.topic("idle", 6)
    fetch = fetch_pb2_grpc.FetchStub(cluster.channel).Fetch
    stream = Opened(fetch, fetch_request(0, *[fetch_partition("idle", partition=number) for number in range(6)]))
    before = Use(cluster)
    for number in range(1, rounds + 1):
        stream.send(fetch_request(number, max_wait_ms=FOREVER_MS))
        assert next(stream.call).correlation_id == number - 1
        if number == rounds // 10:
            before = Use(cluster)
    check(cluster, before, growth_max_mib)
    stream.drop()


@counts(2_000, 10_000)
@pytest.mark.timeout(600)
def test_streams_dropped_while_they_wait_leave_nothing_behind(make_cluster, rounds, growth_max_mib):
    cluster = make_cluster()
    cluster.topic("idle", 6)
    fetch = fetch_pb2_grpc.FetchStub(cluster.channel).Fetch
    partitions = [fetch_partition("idle", partition=number) for number in range(6)]
    before = Use(cluster)
    for number in range(1, rounds + 1):
        stream = Opened(fetch, fetch_request(0, *partitions, max_wait_ms=0), fetch_request(1, max_wait_ms=FOREVER_MS))
        next(stream.call)
        stream.drop()
        if number == rounds // 10:
            before = Use(cluster)
    check(cluster, before, growth_max_mib)


@counts(1_000, 5_000)
@pytest.mark.timeout(600)
def test_streams_dropped_in_the_midst_of_bulk_leave_nothing_behind(make_cluster, rounds, growth_max_mib):
    """Each round opens two streams: a fetch stream with unread responses, and a produce stream with unanswered
    requests. Each stream leaks about 0.3 KiB inside grpc.aio, which loses a pending write when its call is cancelled
    (gRPC issue 43360). A server cannot avoid this leak. 10,000 streams must therefore leak less than 5 MiB.
    """
    cluster = make_cluster(**{"log.flush": "os"})
    orders = cluster.topic("orders")
    bulk = batch(*[b"x" * 1000] * 250)
    for _ in range(8):
        orders.append(bulk)
    fetch = fetch_pb2_grpc.FetchStub(cluster.channel).Fetch
    produce = produce_pb2_grpc.ProduceStub(cluster.channel).Produce
    small = produce_request(2, produce_partition("orders", batch(b"x" * 20_000)))
    before = Use(cluster)
    for number in range(1, rounds + 1):
        reading = Opened(
            fetch, *[fetch_request(each, fetch_partition("orders", max_bytes=300_000)) for each in range(4)]
        )
        writing = Opened(produce, small, small, small)
        next(reading.call)
        next(writing.call)
        reading.drop()
        writing.drop()
        if number == max(rounds // 10, 200):  # buffers have reached their size by then
            before = Use(cluster)
    check(cluster, before, growth_max_mib)


@counts(1_500, 20_000)
@pytest.mark.timeout(600)
def test_watches_of_the_metadata_that_are_dropped_leave_nothing_behind(make_cluster, rounds, growth_max_mib):
    """The task of the call does not write, because gRPC leaks the memory of a pending write when the task is
    cancelled."""
    cluster = make_cluster()
    cluster.topic("wide", 500)
    request = metadata_pb2.MetadataRequest(all_topics=True)
    before = None
    for number in range(rounds):
        if number == rounds // 10:
            before = Use(cluster)
        call = cluster.metadata.WatchMetadata(request, timeout=60)
        if number % 2:
            assert len(next(call).topics) == 1
        call.cancel()
    assert cluster.metadata.GetMetadata(request, timeout=60).metadata_offset
    check(cluster, before, growth_max_mib)
