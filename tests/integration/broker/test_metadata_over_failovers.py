"""Metadata reads while controllers crash, hang and return: three real controllers, two real brokers.

Every read reports its maximum age (``metadata_lag_ms``). The test compares each read with the test's own history of the
changes. The read must contain every change that was acknowledged before the start of the read minus its reported age.
All processes share the machine's clock.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from headrace import LocalCluster
from headrace_core.errors import HeadraceError
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.rpc.status import error_from_rpc
from headrace_core.testing.verdicts import NotInTimeError
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, metadata_pb2, metadata_pb2_grpc
from tests.worlds.waiting import until

#: A node that does not respond for this long is dead or hangs. The test still checks a late response.
_TIMEOUT_S = 5.0
#: The maximum time to wait until a write appears at one node.
_READ_S = 1.0


@dataclass(frozen=True)
class Write:
    """A topic that was created: acknowledged at ``at_s``, in the metadata below ``offset``."""

    name: str
    offset: int
    at_s: float
    through: str


@dataclass(frozen=True)
class Read:
    node: str
    began_s: float
    ended_s: float
    offset: int
    lag_ms: int | None


@dataclass
class History:
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    #: Counts reads of records that were just written.
    unread: list[str] = field(default_factory=list)

    def check(self) -> None:
        """No read is older than the age that it reports."""
        acknowledged = sorted(self.writes, key=lambda each: each.at_s)
        for read in self.reads:
            if read.lag_ms is None:
                continue
            promised_s = read.began_s - read.lag_ms / 1_000
            for write in itertools.takewhile(lambda each: each.at_s < promised_s, acknowledged):  # noqa: B023
                assert write.offset <= read.offset, f"{read} does not show {write}"


class Nodes:
    """Every node of a cluster, by name ("broker 1"), and raw calls to the node."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.addresses = {f"{node['role']} {node['id']}": node["address"] for node in cluster.ps()}
        reconnect = ("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 20)
        self._channels = {
            name: grpc.insecure_channel(address, options=[*COMMON_OPTIONS, *reconnect])
            for name, address in self.addresses.items()
        }

    def channel(self, name: str) -> grpc.Channel:
        return self._channels[name]

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()

    def metadata(self, name: str, timeout_s: float = _TIMEOUT_S, **request: Any) -> Any:
        """GetMetadata; HeadraceError."""
        stub = metadata_pb2_grpc.MetadataStub(self._channels[name])
        try:
            return stub.GetMetadata(metadata_pb2.MetadataRequest(**request), timeout=timeout_s)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure, name) from None

    def create(self, name: str, topic: str) -> int:
        """The metadata offset of the creation; raises HeadraceError."""
        stub = admin_pb2_grpc.AdminStub(self._channels[name])
        new = admin_pb2.NewTopic(name=topic, partitions=1, replication_factor=1)
        request = admin_pb2.CreateTopicsRequest(topics=[new], timeout_ms=int(_TIMEOUT_S * 1_000))
        try:
            answer = stub.CreateTopics(request, timeout=_TIMEOUT_S)
        except grpc.RpcError as failure:
            raise error_from_rpc(failure, name) from None
        assert not answer.results[0].error.code, answer.results[0].error
        return int(answer.metadata_offset)

    def lag_ms(self, name: str) -> int | None:
        answer = self.metadata(name)
        return int(answer.metadata_lag_ms) if answer.HasField("metadata_lag_ms") else None

    def leader(self) -> int:
        """The leading controller according to one of the brokers. The controller that is returned has just answered a
        ReadIndex barrier."""

        def led() -> int | None:
            answer = self.metadata("broker 1")
            is_fresh = answer.HasField("metadata_lag_ms") and answer.metadata_lag_ms < 1_000
            return int(answer.controller_id) if is_fresh and answer.controller_id >= 0 else None

        return int(until(led, "a leading controller"))


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with LocalCluster(brokers=2, controllers=3, coordinators=0, mode="process") as cluster:
        nodes = Nodes(cluster)
        try:
            yield nodes
        finally:
            nodes.close()


class Traffic:
    """One thread reads at each node. Another thread writes through each node in turn, and reads its own writes through
    all other nodes."""

    def __init__(self, nodes: Nodes) -> None:
        self.history = History()
        self._nodes = nodes
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        names = list(nodes.addresses)
        works = [(self._read, name) for name in names]
        self._threads = [threading.Thread(target=self._guard, args=work) for work in [*works, (self._write, names)]]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _guard(self, work: Any, argument: Any) -> None:
        try:
            work(argument)
        except Exception as failure:  # noqa: BLE001  (raised in the test's own thread)
            self._failures.append(failure)

    def _read(self, name: str) -> None:
        while not self._over.wait(0.02):
            began_s = time.monotonic()
            try:
                answer = self._nodes.metadata(name)
            except HeadraceError:
                continue
            lag_ms = int(answer.metadata_lag_ms) if answer.HasField("metadata_lag_ms") else None
            self.history.reads.append(Read(name, began_s, time.monotonic(), int(answer.metadata_offset), lag_ms))

    def _write(self, names: list[str]) -> None:
        for number in itertools.count():
            if self._over.wait(0.01):
                return
            through, topic = names[number % len(names)], f"topic-{number}"
            try:
                offset = self._nodes.create(through, topic)
            except HeadraceError as error:
                self.history.refused.append(error.code)
                continue
            self.history.writes.append(Write(topic, offset, time.monotonic(), through))
            for name in names:
                try:
                    answer = self._nodes.metadata(name, _READ_S, topics=[topic], min_metadata_offset=offset)
                except HeadraceError as error:  # it reports its age; it never leaves out a record that was written
                    self.history.unread.append(error.code)
                    continue
                assert not answer.topics[0].error.code, f"{topic}, written through {through}, is not seen at {name}"
                assert answer.metadata_offset >= offset


def test_reads_are_never_older_than_they_say_and_writes_are_read_through_any_role(nodes: Nodes) -> None:
    cluster = nodes.cluster
    with Traffic(nodes) as traffic:
        history = traffic.history

        def writes_go_on(count: int = 5) -> None:
            enough = len(history.writes) + count
            until(lambda: len(history.writes) >= enough, f"{count} more writes")

        writes_go_on(20)
        paused = nodes.leader()
        cluster.pause("controller", paused)
        writes_go_on()
        assert nodes.leader() != paused
        cluster.resume("controller", paused)
        writes_go_on()
        killed = nodes.leader()
        cluster.kill("controller", killed)
        writes_go_on()
        cluster.restart("controller", killed)
        writes_go_on()
        until(lambda: (lag := nodes.lag_ms(f"controller {paused}")) is not None and lag < 1_000, "the paused one")

        def has_history(name: str) -> bool:
            aged = sum(read.node == name and read.lag_ms is not None for read in history.reads.copy())
            return aged > 20 and any(write.through == name for write in history.writes.copy())

        with suppress(NotInTimeError):  # checked after the history
            until(lambda: all(map(has_history, nodes.addresses)), "reads and writes through each node")
    history.check()
    if lacking := [name for name in nodes.addresses if not has_history(name)]:
        raise NotInTimeError(f"too few reads or writes through {lacking}")
    print(f"{len(history.reads)} reads, {len(history.writes)} writes, refused: {history.refused}")
    assert set(history.refused) <= {"REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "NOT_CONTROLLER"}
    assert set(history.unread) <= {"REQUEST_TIMED_OUT", "NETWORK_EXCEPTION"}


def test_without_a_majority_the_lag_grows_and_later_metadata_is_refused_until_it_is_back(nodes: Nodes) -> None:
    cluster = nodes.cluster
    leader = nodes.leader()
    others = [number for number in (1, 2, 3) if number != leader]
    offset = nodes.create("broker 1", "before")
    names = ("broker 1", "broker 2", f"controller {leader}")
    # A moment at which each node's metadata was up to date. An age is at most the time since then, plus two roundings.
    current_at_s: dict[str, float] = {}
    for name in names:
        began_s = time.monotonic()
        (age_ms,) = until(lambda: (age := nodes.lag_ms(name)) is not None and [age], f"the age of {name}")  # noqa: B023
        current_at_s[name] = began_s - age_ms / 1_000
    for number in others:
        cluster.pause("controller", number)
    try:
        for name in names:
            lag_ms = until(lambda: (lag := nodes.lag_ms(name)) and lag > 1_500 and lag, f"the lag of {name} to grow")  # noqa: B023
            assert lag_ms <= (time.monotonic() - current_at_s[name]) * 1_000 + 2
            answer = nodes.metadata(name, topics=["before"], min_metadata_offset=offset)
            assert not answer.topics[0].error.code  # the node returns the applied metadata, with its age
            with pytest.raises(HeadraceError) as failed:
                nodes.metadata(name, 0.5, min_metadata_offset=offset + 1_000)
            assert failed.value.code == "REQUEST_TIMED_OUT"
    finally:
        for number in others:
            cluster.resume("controller", number)
    for name in nodes.addresses:
        until(lambda: (lag := nodes.lag_ms(name)) is not None and lag < 1_000, f"{name} to be current")  # noqa: B023
    brokers = nodes.metadata("broker 1").brokers
    assert {broker.broker_id for broker in brokers} == {1, 2}  # no broker was fenced by it

    def shown() -> dict[int, int]:
        """The metadata age of each broker as the leader reports it. The request goes through a broker."""
        stub = admin_pb2_grpc.AdminStub(nodes.channel("broker 2"))
        quorum = stub.DescribeQuorum(admin_pb2.DescribeQuorumRequest(), timeout=_TIMEOUT_S)
        return {each.broker_id: each.metadata_lag_ms for each in quorum.brokers if each.HasField("metadata_lag_ms")}

    ages = until(lambda: set(found := shown()) == {1, 2} and found, "both brokers to be described")
    assert max(ages.values()) < 10_000
