"""Programs with Kafka clients: a group of three with one member killed, copies in transactions, and the verdicts.

client_events.py says what the programs print. Every program is a process of its own.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace import Admin, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.errors import HeadraceError
from headrace_core.testing.verdicts import NotInTimeError
from tests.integration.kafka_protocol import client_events
from tests.worlds.waiting import until

PARTITIONS = 6
#: The cluster's configuration: members are missed after seconds.
CONFIG = {
    "group.initial.rebalance.delay.ms": 500,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.session.timeout.ms": 6_000,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 500,
}
PROGRAM_S = 90.0
_TAIL = 60


class Read(NamedTuple):
    at_ns: int
    partition: int
    offset: int
    key: str
    value: str
    header: str

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


class Commit(NamedTuple):
    """A committed offset that was known at ``at_ns``."""

    at_ns: int
    partition: int
    offset: int


class Sent(NamedTuple):
    partition: int
    offset: int
    key: str
    value: str

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


class Program:
    """A running program; its output is in ``directory``."""

    def __init__(self, directory: Path, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._out, self._err = directory / f"{name}.out", directory / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err)

    def lines(self, kind: str) -> list[list[str]]:
        """The words of each whole line that begins with ``kind``, without that word. The last line may be cut."""
        assert self._process.poll() in (None, 0, -9), f"{self.name} ended: {self._process.returncode}\n{self.errors()}"
        text = self._out.read_text()
        found = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
        return [words for first, *words in found if first == kind]

    def reads(self) -> list[Read]:
        return [Read(int(at), int(number), int(offset), *text) for at, number, offset, *text in self.lines("read")]

    def commits(self) -> list[Commit]:
        return [Commit(*map(int, words)) for words in self.lines("committed")]

    def sent(self) -> list[Sent]:
        return [Sent(int(number), int(offset), *text) for number, offset, *text in self.lines("sent")]

    def owned(self) -> set[int]:
        """The partitions of the last records."""
        return {each.partition for each in self.reads()[-_TAIL:]}

    def errors(self) -> str:
        return self._err.read_text(errors="replace")[-3_000:]

    def finish(self) -> None:
        """Close the standard input, and wait until the program has ended well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.wait()

    def wait(self) -> None:
        try:
            code = self._process.wait(PROGRAM_S)
        except subprocess.TimeoutExpired as late:
            raise NotInTimeError(f"{self.name} does not end\n{self.errors()}") from late
        assert code == 0, f"{self.name} ended with {code}\n{self.errors()}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(30)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def make_topics(cluster: LocalCluster, *names: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS, replication_factor=3) for name in names])


def committed_offsets(admin: Admin, group: str) -> list[Commit]:
    """The group's committed offsets as the SDK sees them."""
    offsets = admin.list_group_offsets(group)
    at_ns = time.time_ns()
    return [Commit(at_ns, place.partition, found.offset) for place, found in offsets.items() if found is not None]


def is_served(admin: Admin, group: str) -> bool:
    try:
        committed_offsets(admin, group)
    except HeadraceError as error:
        if not error.retriable:
            raise
        return False
    return True


class GroupRun(NamedTuple):
    """What happened to a group of three: ``ends`` are the group's committed offsets after the last member left."""

    sent: list[Sent]
    reads: list[Read]
    commits: list[Commit]
    ends: dict[int, int]


def run_group(
    cluster: LocalCluster, directory: Path, topic: str, client: Sequence[str], protocol: str, victim: int
) -> GroupRun:
    """Three members read ``topic`` while a producer writes; member ``victim`` is killed with SIGKILL.

    ``client``: the command of a program with the commands ``produce`` and ``group``. Returns when the two members that
    are left have read every record and have left the group. Raises NotInTimeError.
    """
    make_topics(cluster, topic)
    group = f"{topic}-group"
    where = cluster.kafka_bootstrap_servers
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(Admin(bootstrap_servers=cluster.bootstrap_servers))

        def started(name: str, *command: str) -> Program:
            program = Program(directory, f"{topic}-{name}", [*client, *command])
            stack.callback(program.kill)
            return program

        # franz-go's program ends with the error of a join while the shard is loaded for the first time.
        until(lambda: is_served(admin, group), f"{group}: its shard is loaded", PROGRAM_S)
        members = [started(f"member-{each}", "group", where, topic, group, protocol) for each in range(3)]
        producer = started("producer", "produce", where, topic, "0")
        commits: list[Commit] = []

        def shared(among: list[Program]) -> bool:
            commits.extend(committed_offsets(admin, group))
            size = PARTITIONS // len(among)
            return sorted(len(each.owned()) for each in among) == [size] * len(among) and (
                len(set[int]().union(*(each.owned() for each in among))) == PARTITIONS
            )

        def state() -> str:
            return "\n".join(
                [f"{topic}: each partition is read by one member", *(f"{each.owned()}" for each in members)]
                + [f"{each.name}: {each.lines('refused')[-3:]} {each.errors()}" for each in (*members, producer)]
            )

        until(lambda: shared(members), state, PROGRAM_S, pause_s=0.2)
        members[victim].kill()
        commits += committed_offsets(admin, group)
        left = [each for number, each in enumerate(members) if number != victim]
        until(lambda: shared(left), state, PROGRAM_S, pause_s=0.2)
        producer.finish()
        sent = producer.sent()

        def reads() -> list[Read]:
            return [each for member in members for each in member.reads()]

        def missing() -> str:
            places = {each.place for each in reads()}
            lost = [each for each in sent if each.place not in places]
            return f"{topic}: {len(lost)} of {len(sent)} records were not read: {lost[:5]}\n{state()}" if lost else ""

        until(lambda: not missing(), missing, PROGRAM_S, pause_s=0.2)
        for member in left:
            member.finish()
        commits += [each for member in members for each in member.commits()]
        ends = {each.partition: each.offset for each in committed_offsets(admin, group)}
        return GroupRun(sent, reads(), commits, ends)


def judge_sent(sent: Iterable[Sent]) -> None:
    """Every number was acknowledged once, offsets have no holes, and the records of a key are in order."""
    in_log = sorted(sent)
    numbers = sorted(int(each.value[1:]) for each in in_log)
    assert numbers == [*range(len(numbers))]
    by_partition: dict[int, list[int]] = {}
    by_key: dict[str, list[tuple[int, int]]] = {}
    for each in in_log:
        by_partition.setdefault(each.partition, []).append(each.offset)
        by_key.setdefault(each.key, []).append((each.partition, int(each.value[1:])))
    assert all(offsets == [*range(len(offsets))] for offsets in by_partition.values()), "a hole or a double"
    assert all(places == sorted(places) and len({at for at, _ in places}) == 1 for places in by_key.values())


def ends_of(sent: Iterable[Sent]) -> dict[int, int]:
    """The end of each partition's log."""
    return {partition: offset + 1 for partition, offset in sorted(each.place for each in sent)}


def judge_reads(sent: Sequence[Sent], reads: Iterable[Read], commits: Iterable[Commit]) -> int:
    """Judge what a group read; return how many reads were repetitions.

    The group reads each partition from its first to its last record, in order. It reads a record again only if no
    committed offset lies behind the record at that time.
    """
    log = {each.place: (each.key, each.value, each.value[1:]) for each in sent}
    ends = ends_of(sent)
    first: dict[int, list[int]] = {partition: [] for partition in ends}
    known = sorted(commits)
    repeated = []
    for each in sorted(reads, key=lambda one: one.at_ns):  # lines of one program with the same time keep their order
        assert (each.key, each.value, each.header) == log.get(each.place), f"{each} is not the record that was sent"
        if each.offset < len(first[each.partition]):
            repeated.append(each)
        else:
            first[each.partition].append(each.offset)
    assert first == {partition: [*range(end)] for partition, end in ends.items()}, "lost or out of order"
    for each in repeated:
        behind = [one for one in known if one.partition == each.partition and one.offset > each.offset]
        assert not behind or behind[0].at_ns >= each.at_ns, f"{each} was read again after {behind[0]}"
    return len(repeated)


def judge_group(run: GroupRun) -> None:
    """Nothing is lost, doubled or out of order, but for the records after the killed member's last commit."""
    judge_sent(run.sent)
    judge_reads(run.sent, run.reads, run.commits)
    assert run.ends == ends_of(run.sent), "the committed offsets that the SDK sees are the ends of the log"


def judge_copy(
    cluster: LocalCluster, directory: Path, topic: str, client: Sequence[str], protocol: str, count: int = 2_000
) -> None:
    """Copy a topic in transactions, the first of which is aborted. Readers of committed records see each record once;
    other readers also see the aborted ones."""
    target, group, where = f"{topic}-copy", f"{topic}-group", cluster.kafka_bootstrap_servers
    make_topics(cluster, topic, target)

    def ran(name: str, *command: str) -> Program:
        program = Program(directory, f"{topic}-{name}", [*client, *command])
        try:
            program.wait()
        except BaseException:
            program.kill()
            raise
        return program

    sent = ran("producer", "produce", where, topic, str(count)).sent()
    judge_sent(sent)
    assert len(sent) == count
    copy = ran("copy", "copy", where, topic, target, group, f"{topic}-id", str(count), protocol)
    (aborted,) = copy.lines("aborted")
    assert sum(int(size) for (size,) in copy.lines("copied")) == count
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for partition in range(PARTITIONS):
            producer.send(target, value=client_events.END, partition=partition).result(timeout=PROGRAM_S)
    committed, everything = (
        ran(isolation, "read", where, target, isolation, str(PARTITIONS)).reads()
        for isolation in ("read_committed", "read_uncommitted")
    )
    expected = sorted((each.key, each.value.upper(), each.value[1:]) for each in sent)
    assert sorted((each.key, each.value, each.header) for each in committed) == expected, "each record once"
    assert len(everything) == count + int(aborted[0]), "the aborted records are in the log"
    assert {each.place for each in committed} < {each.place for each in everything}
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        found = admin.list_group_offsets(group, places, require_stable=True)
    assert sum(each.offset for each in found.values() if each is not None) == count
