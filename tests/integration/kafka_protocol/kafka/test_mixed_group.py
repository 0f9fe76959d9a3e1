"""Groups with members of Kafka's Java clients, of both group protocols, and one of the SDK."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, Producer, RecordMetadata
from tests.integration.kafka_protocol import client_events
from tests.integration.kafka_protocol.group_of_three import (
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
from tests.integration.kafka_protocol.java_programs import JavaPrograms
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JavaPrograms:
    return JavaPrograms(tmp_path_factory.mktemp("classes"), "4.3.0")


@pytest.fixture(scope="module")
def old_programs(tmp_path_factory: pytest.TempPathFactory) -> JavaPrograms:
    return JavaPrograms(tmp_path_factory.mktemp("classes"), "3.5.0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=2, kafka=True, config=CONFIG) as running:
        yield running


class Ours:
    """A member of the SDK, and a producer that writes while the member reads."""

    def __init__(self, consumer: Consumer, producer: Producer, topic: str) -> None:
        self._consumer, self._producer, self._topic = consumer, producer, topic
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
        self._consumer.subscribe([self._topic])
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
            self._pending.append(self._producer.send(self._topic, value, key=key, headers=headers))
        if not self._is_member:
            self._pending[-1].result(timeout=PROGRAM_S)  # the pace of the writes
            return
        for each in self._consumer.poll(0.02):
            text = [(part or b"").decode() for part in (each.key, each.value, dict(each.headers)[client_events.HEADER])]
            self.reads.append(Read(time.time_ns(), each.partition, each.offset, *text))
            self._next[each.partition] = each.offset + 1
        self._consumer.commit()
        owned = self.owned()
        self.commits += [Commit(time.time_ns(), *place) for place in self._next.items() if place[0] in owned]


class Mixed:
    """A group of Java programs and a member of ours, which writes the records."""

    def __init__(self, cluster: LocalCluster, directory: Path, name: str, stack: contextlib.ExitStack) -> None:
        make_topics(cluster, name)
        self.topic = self.group = name
        self._cluster, self._directory, self._stack = cluster, directory, stack
        where = cluster.bootstrap_servers
        self.admin = stack.enter_context(Admin(bootstrap_servers=where))
        producer = stack.enter_context(Producer(bootstrap_servers=where))
        consumer = Consumer(
            bootstrap_servers=where, group_id=name, auto_offset_reset="earliest", enable_auto_commit=False
        )
        self.ours = Ours(stack.enter_context(consumer), producer, name)
        self.members: list[Program] = []

    def start(self, programs: JavaPrograms, name: str, *properties: str) -> Program:
        arguments = [self._cluster.kafka_bootstrap_servers, self.topic, self.group, *properties]
        program = Program(self._directory, f"{self.group}-{name}", programs.command("GroupMember", *arguments))
        self._stack.callback(program.kill)
        self.members.append(program)
        return program

    def until(self, condition: Callable[[], bool], *, write: bool = True) -> None:
        def stepped() -> bool:
            self.ours.step(write=write)
            return condition()

        until(stepped, lambda: f"the partitions have moved: {self.owned(*self.members)}", PROGRAM_S)

    def owned(self, *programs: Program) -> list[int]:
        """How many partitions each program has."""
        found = []
        for program in programs:
            lines = program.lines("owned")
            found.append(len(lines[-1]) if lines else 0)
        return found

    def until_read(self, program: Program) -> None:
        before = len(program.reads())
        self.until(lambda: len(program.reads()) > before)

    def protocols(self) -> tuple[str, list[bool]]:
        """The group's type, and whether each of its members uses the classic protocol."""
        (found,) = self.admin.describe_groups([self.group])
        return found.type, sorted(each.is_classic for each in found.members)

    def judge(self, commits: list[Commit]) -> None:
        sent = self.ours.sent()

        def reads() -> list[Read]:
            return self.ours.reads + [each for member in self.members for each in member.reads()]

        self.until(lambda: len({each.place for each in reads()}) == len(sent), write=False)
        commits = commits + self.ours.commits + [each for member in self.members for each in member.commits()]
        ends = {each.partition: each.offset for each in committed_offsets(self.admin, self.group)}
        judge_group(GroupRun(sent, reads(), commits, ends))


def test_partitions_move_both_ways_and_only_uncommitted_records_are_read_twice(
    programs: JavaPrograms, cluster: LocalCluster, tmp_path: Path
) -> None:
    half = PARTITIONS // 2
    with contextlib.ExitStack() as stack:
        mixed = Mixed(cluster, tmp_path, "mixed", stack)
        ours, protocol = mixed.ours, "group.protocol=consumer"
        ours.join()
        mixed.until(lambda: len(ours.owned()) == PARTITIONS and bool(ours.reads))
        first = mixed.start(programs, "first", protocol)
        mixed.until(lambda: [len(ours.owned()), *mixed.owned(first)] == [half, half])
        mixed.until_read(first)
        ours.leave()
        mixed.until(lambda: mixed.owned(first) == [PARTITIONS])
        ours.join()
        mixed.until(lambda: [len(ours.owned()), *mixed.owned(first)] == [half, half])
        first.finish()
        mixed.until(lambda: len(ours.owned()) == PARTITIONS)
        second = mixed.start(programs, "second", protocol)
        mixed.until(lambda: [len(ours.owned()), *mixed.owned(second)] == [half, half])
        mixed.until_read(second)
        second.kill()
        commits = committed_offsets(mixed.admin, mixed.group)
        mixed.until(lambda: len(ours.owned()) == PARTITIONS)
        mixed.judge(commits)


def test_members_of_older_clients_are_rolled_to_the_new_protocol_and_back(
    old_programs: JavaPrograms, programs: JavaPrograms, cluster: LocalCluster, tmp_path: Path
) -> None:
    half, third = PARTITIONS // 2, PARTITIONS // 3
    quick = ("heartbeat.interval.ms=500", "session.timeout.ms=6000")
    with contextlib.ExitStack() as stack:
        mixed = Mixed(cluster, tmp_path, "rolled", stack)
        cooperative = "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        old = [mixed.start(old_programs, f"old-{number}", *quick, cooperative) for number in range(2)]
        mixed.until(lambda: mixed.owned(*old) == [half, half])
        assert mixed.protocols() == ("classic", [True, True])
        new = mixed.start(programs, "new", "group.protocol=consumer")
        mixed.until(lambda: mixed.owned(*old, new) == [third, third, third])
        mixed.until_read(new)
        assert mixed.protocols() == ("consumer", [False, True, True])
        old[0].finish()
        mixed.until(lambda: mixed.owned(old[1], new) == [half, half])
        old[1].kill()
        commits = committed_offsets(mixed.admin, mixed.group)
        mixed.until(lambda: mixed.owned(new) == [PARTITIONS])
        back = mixed.start(programs, "back", "group.protocol=classic", *quick)  # an eager assignor comes first
        mixed.until(lambda: mixed.owned(back, new) == [half, half])
        mixed.until_read(back)
        new.finish()
        mixed.until(lambda: mixed.owned(back) == [PARTITIONS])
        assert mixed.protocols() == ("classic", [True])
        mixed.judge(commits)
