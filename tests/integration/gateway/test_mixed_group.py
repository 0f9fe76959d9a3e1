"""One KIP-848 group with a member of Kafka's Java client and one of the SDK."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, Producer, RecordMetadata
from tests.integration.gateway import client_events
from tests.integration.gateway.group_of_three import (
    CONFIG,
    PARTITIONS,
    PROGRAM_S,
    Commit,
    GroupRun,
    Program,
    Read,
    Sent,
    committed_offsets,
    judge_group,
    make_topics,
)
from tests.integration.gateway.java_programs import JavaPrograms
from tests.worlds.waiting import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
TOPIC, GROUP = "mixed", "mixed-group"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JavaPrograms:
    return JavaPrograms(tmp_path_factory.mktemp("classes"), "4.3.0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, gateways=2, config=CONFIG) as running:
        make_topics(running, TOPIC)
        yield running


class Ours:
    """A member of the SDK, and a producer that writes while the member reads."""

    def __init__(self, consumer: Consumer, producer: Producer) -> None:
        self._consumer, self._producer = consumer, producer
        self._is_member = False
        self._pending: list[Future[RecordMetadata]] = []
        self._next: dict[int, int] = {}
        self.reads: list[Read] = []
        self.commits: list[Commit] = []

    def sent(self) -> list[Sent]:
        """All records; waits until they are acknowledged."""
        acknowledged = [each.result(timeout=PROGRAM_S) for each in self._pending]
        records = [client_events.record(number) for number in range(len(acknowledged))]
        return [
            Sent(each.partition, each.offset, key.decode(), value.decode())
            for each, (key, value, _) in zip(acknowledged, records, strict=True)
        ]

    def join(self) -> None:
        self._consumer.subscribe([TOPIC])
        self._is_member = True

    def leave(self) -> None:
        self._consumer.unsubscribe()
        self._is_member = False

    def owned(self) -> set[int]:
        return {each.partition for each in self._consumer.assignment()}

    def step(self, *, write: bool = True) -> None:
        """Write 20 records, read what has arrived, and commit it."""
        for _ in range(20 if write else 0):
            key, value, headers = client_events.record(len(self._pending))
            self._pending.append(self._producer.send(TOPIC, value, key=key, headers=headers))
        if not self._is_member:
            time.sleep(0.02)  # the pace of the writes
            return
        for each in self._consumer.poll(0.02):
            text = [(part or b"").decode() for part in (each.key, each.value, dict(each.headers)[client_events.HEADER])]
            self.reads.append(Read(time.time_ns(), each.partition, each.offset, *text))
            self._next[each.partition] = each.offset + 1
        self._consumer.commit()
        owned = self.owned()
        self.commits += [Commit(time.time_ns(), *place) for place in self._next.items() if place[0] in owned]


def test_partitions_move_both_ways_and_only_uncommitted_records_are_read_twice(
    programs: JavaPrograms, cluster: LocalCluster, tmp_path: Path
) -> None:
    half = PARTITIONS // 2
    with contextlib.ExitStack() as stack:
        where = cluster.bootstrap_servers
        admin = stack.enter_context(Admin(bootstrap_servers=where))
        producer = stack.enter_context(Producer(bootstrap_servers=where))
        consumer = stack.enter_context(
            Consumer(bootstrap_servers=where, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False)
        )
        ours = Ours(consumer, producer)
        ours.join()

        def member(name: str) -> Program:
            arguments = [cluster.kafka_bootstrap_servers, TOPIC, GROUP, "group.protocol=consumer"]
            program = Program(tmp_path, name, programs.command("GroupMember", *arguments))
            stack.callback(program.kill)
            return program

        def owned(program: Program) -> int:
            lines = program.lines("owned")
            return len(lines[-1]) if lines else 0

        def stepping(condition: Callable[[], bool], *, write: bool = True) -> None:
            def stepped() -> bool:
                ours.step(write=write)
                return condition()

            until(stepped, "the partitions have moved", PROGRAM_S)

        stepping(lambda: len(ours.owned()) == PARTITIONS and bool(ours.reads))
        first = member("first")
        stepping(lambda: (len(ours.owned()), owned(first)) == (half, half))
        before = len(first.reads())
        stepping(lambda: len(first.reads()) > before)
        ours.leave()
        stepping(lambda: owned(first) == PARTITIONS)
        ours.join()
        stepping(lambda: (len(ours.owned()), owned(first)) == (half, half))
        first.finish()
        stepping(lambda: len(ours.owned()) == PARTITIONS)
        second = member("second")
        stepping(lambda: (len(ours.owned()), owned(second)) == (half, half))
        before = len(second.reads())
        stepping(lambda: len(second.reads()) > before)
        second.kill()
        commits = committed_offsets(admin, GROUP)
        stepping(lambda: len(ours.owned()) == PARTITIONS)
        sent = ours.sent()

        def reads() -> list[Read]:
            return ours.reads + first.reads() + second.reads()

        stepping(lambda: len({each.place for each in reads()}) == len(sent), write=False)
        commits += ours.commits + first.commits() + second.commits()
        ends = {each.partition: each.offset for each in committed_offsets(admin, GROUP)}
        judge_group(GroupRun(sent, reads(), commits, ends))
