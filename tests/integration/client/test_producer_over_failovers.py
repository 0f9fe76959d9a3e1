"""A producer and a consumer use three real brokers, while the test kills, stops and starts the leaders. With the
default settings no acknowledged record is lost, no record is duplicated, and the order stays."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import until

WAIT_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(controllers=1, brokers=3, coordinators=0) as running:
        yield running


class Stream:
    """Sends numbers to partition 0 until it is stopped, at most 2,000 a second, and keeps every outcome."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.futures: list[Any] = []
        self.acknowledged = 0
        self._stop = threading.Event()
        self._producer = Producer(bootstrap_servers=bootstrap)
        self._topic = topic
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            for _ in range(10):
                future = self._producer.send(self._topic, b"%09d" % len(self.futures), partition=0)
                future.add_done_callback(self._done)
                self.futures.append(future)

    def _done(self, future: Any) -> None:
        self.acknowledged += future.exception() is None

    def wait_for(self, more: int) -> None:
        wanted, deadline = self.acknowledged + more, time.monotonic() + WAIT_S
        while self.acknowledged < wanted:
            if time.monotonic() >= deadline:
                raise NotInTimeError(f"{wanted - self.acknowledged} of {more} acknowledgements did not come")
            self._stop.wait(0.01)

    def stop(self) -> list[Any]:
        """The outcome of every record: an exception or the offset."""
        self._stop.set()
        self._thread.join()
        outcomes = [future.exception(WAIT_S) or future.result(0).offset for future in self.futures]
        self._producer.close()
        return outcomes


def leader_of(admin: Admin, topic: str) -> int:
    return int(admin.describe_topics([topic])[0].partitions[0].leader)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_leader_that_dies_or_stands_still_costs_no_record(cluster: LocalCluster, how: str) -> None:
    bootstrap, topic = cluster.bootstrap_servers, f"over-{how}"
    with Admin(bootstrap_servers=bootstrap) as admin, Consumer(bootstrap_servers=bootstrap) as inp:
        admin.create_topics([NewTopic(topic, partitions=1, replication_factor=3)])
        inp.assign([TopicPartition(topic, 0)])
        inp.seek_to_beginning()
        stream = Stream(bootstrap, topic)
        found: list[bytes] = []
        victims = []
        for _ in range(2 if how == "kill" else 1):
            stream.wait_for(300)
            victims.append(leader_of(admin, topic))
            (cluster.kill if how == "kill" else cluster.pause)("broker", victims[-1])
            # (acknowledgements of the former leader may still be on their way)
            until(lambda: leader_of(admin, topic) not in (-1, victims[-1]), "another leader", WAIT_S)
            stream.wait_for(300)
            (cluster.restart if how == "kill" else cluster.resume)("broker", victims[-1])
            found += [bytes(record.value) for record in inp.poll(1)]
        stream.wait_for(300)
        outcomes = stream.stop()
        wanted = [b"%09d" % number for number in range(len(outcomes))]
        found += [bytes(record.value) for record in read_to_end(inp, WAIT_S)]
    assert outcomes == list(range(len(outcomes))), [outcome for outcome in outcomes if not isinstance(outcome, int)][:3]
    assert found == wanted
