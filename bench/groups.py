"""Consumer groups at default settings (`make bench-groups`).

    groups.py [--joins 10] [--restarts 2] [--deaths 20] [--kills 30] [--groups 1000] [--seconds 30] [--smoke]
              [--only join,restart,death,coordinator,heartbeats,commits,lag] [--save]

    join         12 partitions at 1,000 records/s each, 3 member processes; a 4th joins, and leaves: how long each moved
                 partition goes unread, and the longest pause of the others, alternating with equal windows without a
                 join
    restart      static members are restarted one by one: moved partitions (none allowed), and how long one goes unread
    death        kill -9 of a member: until another member reads each of its partitions
    coordinator  10 groups of 10 members that commit all the time; kill -9 of a coordinator: until each of its groups
                 commits again; records read twice or never; the longest pause of any partition
    heartbeats   1,000 groups of 3 members on one coordinator: its processor time, and the latency of a heartbeat
    commits      offsets committed per second on one coordinator
    lag          at 5,000 records/s a consumer that handles 1,000 falls behind; ten of them catch up

Each sample is one JSON object per line; a table of bars follows. Exit 1 when a bar is missed or a case fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from failover import Bar, shown, spread
from measure import PYTHON, ROOT, WORK, Samples, cpu_seconds, emit, machine, peak_rss_mib, save, table
from quorum import percentile

import grpc  # isort: skip

from headrace import Admin, Consumer, LocalCluster, NewTopic, TopicPartition
from headrace.errors import HeadraceError
from headrace_core.metadata.shards import OFFSETS_TOPIC
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 120.0
PARTITIONS, MEMBERS, PER_SECOND = 12, 3, 1_000
#: Length in seconds of the time window in which a case measures pauses, with or without a join in its middle.
WINDOW_S = 8.0

#: On this kind of machine, after a 4th member joins 3 members of Kafka 4.3, each moved partition is unread for 4.0 s.
#: With the cooperative-sticky assignor, each moved partition is unread for 3.0 s.
BARS = {
    "join": (
        Bar("a 4th member joins 3: partitions that move, max", "join.moved", 1.0, 3.0),
        Bar("... each of them unread, max, s", "join.unread", 1.0, 0.5),
        Bar("... each of them unread, p50, s", "join.unread", 0.5, None),
        Bar("pause of those that stay over the control's, medians (0.1: noise)", "join.ratio", 1.0, 1.1),
        Bar("... with a join, p50 of the windows, s", "join.pause", 0.5, None),
        Bar("... without one, p50 of the windows, s", "join.control", 0.5, None),
        Bar("... with a join, max, s", "join.pause", 1.0, None),
        Bar("... without one, max, s", "join.control", 1.0, None),
    ),
    "restart": (
        Bar("static members restarted one by one: partitions that move", "restart.moved", 1.0, 0.0),
        Bar("... a partition unread while its member restarts, p50, s", "restart.unread", 0.5, None),
    ),
    "death": (
        Bar("kill -9 of a member to its partitions read again, p95, s", "death.seconds", 0.95, 3.0),
        Bar("... p50, s", "death.seconds", 0.5, None),
        Bar("... max, s", "death.seconds", 1.0, None),
    ),
    "coordinator": (
        Bar("kill -9 of a coordinator to a group's next commit, p95, s", "coordinator.seconds", 0.95, 5.0),
        Bar("... p50, s", "coordinator.seconds", 0.5, None),
        Bar("... max, s", "coordinator.seconds", 1.0, None),
        Bar("records skipped", "coordinator.skipped", 1.0, 0.0),
        Bar("records read twice that had been committed", "coordinator.repeated", 1.0, 0.0),
        Bar("partitions that moved, or were lost", "coordinator.moved", 1.0, 0.0),
        Bar("longest pause of a partition around a kill, p95, s", "coordinator.pause", 0.95, None),
        Bar("... in as long without one, p95, s", "coordinator.control", 0.95, None),
    ),
    "heartbeats": (
        Bar("3,000 members' heartbeats: coordinator, % of a core", "heartbeats.cpu", 1.0, None),
        Bar("... latency p50, ms", "heartbeats.ms", 0.5, None),
        Bar("... latency p99, ms", "heartbeats.ms", 0.99, None),
        Bar("... coordinator's memory, MiB", "heartbeats.rss", 1.0, None),
    ),
    "commits": (
        Bar("time for 5,000 offsets committed on one coordinator, s", "commits.per_5000", 0.5, 1.0),
        Bar("offsets committed a second, p50 of the rounds", "commits.offsets", 0.5, None),
        Bar("requests of one offset a second, p50 of the rounds", "commits.requests", 0.5, None),
        Bar("... their latency p99, ms", "commits.ms", 0.99, None),
    ),
    "lag": (
        Bar("lag after 10 s of 5,000/s against 1,000/s, records", "lag.grown", 1.0, None),
        Bar("ten members until the lag is below 1,000, s", "lag.seconds", 1.0, None),
    ),
}


class Child:
    """A process of group_member.py or group_streams.py, and its events."""

    def __init__(self, program: str, asked: dict[str, Any], *, waits_for: str = "ready") -> None:
        self.process = subprocess.Popen(
            [PYTHON, str(HERE / program), json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.received: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if waits_for:
            self.wait(lambda line: line.get("event") == waits_for or line.get(waits_for), waits_for)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.received.append(json.loads(line))

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def events(self, *kinds: str, since: float = 0.0) -> list[dict[str, Any]]:
        return [line for line in list(self.received) if line.get("event") in kinds and line["at"] >= since]

    def wait(self, wanted: Callable[[dict[str, Any]], Any], what: str, *, after: int = 0) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            for line in list(self.received)[after:]:
                if wanted(line):
                    return line
            if self.process.poll() is not None and not self._reader.is_alive():
                raise RuntimeError(f"{what}: the process ended with {self.process.returncode}; {self.received[-3:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not after {TIMEOUT_S:g} s; {self.received[-3:]}")
            time.sleep(0.002)

    def report(self) -> list[dict[str, Any]]:
        after = len(self.received)
        self.say("report")
        self.wait(lambda line: line["event"] == "reported", "a report", after=after)
        return [line for line in self.received[after:] if line["event"] == "report"]

    def owned(self) -> dict[str, frozenset[int]]:
        """Partitions by member."""
        found: dict[str, frozenset[int]] = {}
        for line in self.events("assigned", "revoked", "lost"):
            numbers, before = frozenset(line["partitions"]), found.get(line["member"], frozenset())
            found[line["member"]] = before | numbers if line["event"] == "assigned" else before - numbers
        return found

    def kill(self) -> float:
        """kill -9; returns the time."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return at

    def end(self) -> None:
        if self.process.poll() is None:
            try:
                self.say("end")
                self.process.wait(60)
            except (subprocess.TimeoutExpired, OSError):
                self.process.kill()
        self.process.wait()


def until(condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not after {TIMEOUT_S:g} s: {what() if callable(what) else what}")
        time.sleep(0.005)
    return value


@dataclass(slots=True)
class Bench:
    local: LocalCluster
    samples: Samples
    asked: argparse.Namespace
    _topics: int = 0

    @property
    def bootstrap(self) -> str:
        return self.local.bootstrap_servers

    def topic(self, partitions: int) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(name, partitions=partitions)])
        return name

    def member(self, topic: str, group: str, **more: Any) -> Child:
        return Child("group_member.py", {"bootstrap": self.bootstrap, "topic": topic, "groups": [group], **more})

    @contextmanager
    def feed(self, topic: str, partitions: int, per_second: float) -> Iterator[Child]:
        asked = {"bootstrap": self.bootstrap, "topic": topic, "partitions": partitions, "per_second": per_second}
        child = Child("group_member.py", asked)
        try:
            yield child
        finally:
            child.end()

    def until_shared(self, members: Sequence[Child], partitions: int) -> None:
        """Wait until every partition has one member, and members' counts differ by at most one."""

        def owned() -> list[frozenset[int]]:
            return [numbers for each in members for numbers in each.owned().values()]

        def is_shared() -> bool:
            now = owned()
            counts = [len(numbers) for numbers in now]
            return (
                len(now) == len(members)
                and sum(counts) == partitions
                and frozenset().union(*now) == frozenset(range(partitions))
                and max(counts) - min(counts) <= 1
            )

        until(is_shared, lambda: f"the partitions are not shared: {[sorted(each) for each in owned()]}")

    # -- cases

    def join(self) -> None:
        topic, group = self.topic(PARTITIONS), "joined"
        members = [self.member(topic, group) for _ in range(MEMBERS)]
        fourth = self.member(topic, group)
        try:
            for member in members:
                member.say("go")
            with self.feed(topic, PARTITIONS, PER_SECOND):
                self.until_shared(members, PARTITIONS)
                time.sleep(WINDOW_S)
                for _ in range(self.asked.joins):
                    self._pauses("join.control", members, lambda: frozenset())
                    self._pauses("join.pause", members, lambda: self._fourth_joins(members, fourth))
                    fourth.say("leave")
                    self.until_shared(members, PARTITIONS)
                    time.sleep(1.0)
        finally:
            for member in (*members, fourth):
                member.end()
        pause, control = self.samples.median("join.pause"), self.samples.median("join.control")
        if pause is not None and control is not None:
            self.samples.add("join.ratio", pause / control, "")

    def _pauses(self, name: str, members: Sequence[Child], act: Callable[[], frozenset[int]]) -> None:
        """The longest pause of partitions that ``act`` does not move, within a window."""
        for member in members:
            member.report()
        ends = time.monotonic() + WINDOW_S
        time.sleep(1.0)
        moved = act()
        time.sleep(max(ends - time.monotonic(), 0.0))
        stayed = [
            pause
            for member in members
            for received in member.report()
            for number, pause in received["longest"].items()
            if int(number) not in moved
        ]
        self.samples.add(name, max(stayed), "s")

    def _fourth_joins(self, members: Sequence[Child], fourth: Child) -> frozenset[int]:
        asked = time.monotonic()
        fourth.say("go")
        self.until_shared([*members, fourth], PARTITIONS)
        moved = next(numbers for numbers in fourth.owned().values())

        def first() -> dict[int, float]:
            return {line["partition"]: line["at"] for line in fourth.events("first", since=asked)}

        until(lambda: first().keys() >= moved, "the 4th to read all that it was given")
        last = {
            int(number): at
            for member in members
            for line in member.events("revoked", since=asked)
            for number, at in line["last"].items()
        }
        for number in moved:
            self.samples.add("join.unread", first()[number] - last[number], "s")
        self.samples.add("join.moved", float(len(last)), "")
        self.samples.add("join.seconds", max(first().values()) - asked, "s")
        return moved

    def restart(self) -> None:
        topic, group = self.topic(PARTITIONS), "static"

        def start(number: int) -> Child:
            child = self.member(topic, group, instance=f"i{number}", name=f"i{number}-")
            child.say("go")
            return child

        members = [start(number) for number in range(MEMBERS)]
        try:
            with self.feed(topic, PARTITIONS, PER_SECOND):
                self.until_shared(members, PARTITIONS)
                for member in members:
                    until(partial(self._reads_all, member), "every member to read")
                before = [next(iter(each.owned().values())) for each in members]
                begun = time.monotonic()
                for number in list(range(MEMBERS)) * self.asked.restarts:
                    members[number].end()
                    (left,) = members[number].events("revoked", since=begun)[-1:]
                    members[number] = start(number)
                    self.until_shared(members, PARTITIONS)
                    until(partial(self._reads_all, members[number]), "the member that came back to read")
                    back = min(line["at"] for line in members[number].events("first"))
                    last = [at for at in left["last"].values() if at is not None]
                    self.samples.add("restart.unread", back - max(last), "s")
                    moved = before[number] ^ next(iter(members[number].owned().values()))
                    others = [each for at, each in enumerate(members) if at != number]
                    disturbed = sum(len(each.events("assigned", "revoked", "lost", since=begun)) for each in others)
                    # (Members that were restarted earlier in the case have had one assignment since ``begun``.)
                    expected = sum(each.events("ready")[0]["at"] > begun for each in others)
                    self.samples.add("restart.moved", float(len(moved) + disturbed - expected), "")
        finally:
            for member in members:
                member.end()

    def _reads_all(self, member: Child) -> bool:
        """Whether a restarted member has read from each of its partitions."""
        owned = next(iter(member.owned().values()), frozenset())
        return bool(owned) and {line["partition"] for line in member.events("first")} >= owned

    def death(self) -> None:
        topic, group = self.topic(PARTITIONS), "dying"
        members = [self.member(topic, group) for _ in range(MEMBERS)]
        waiting: Child | None = None
        try:
            for member in members:
                member.say("go")
            with self.feed(topic, PARTITIONS, 100):
                for number in range(self.asked.deaths):
                    self.until_shared(members, PARTITIONS)
                    waiting = self.member(topic, group)
                    victim = members.pop(number % MEMBERS)
                    owned = next(iter(victim.owned().values()))
                    time.sleep(0.5)
                    killed = victim.kill()

                    self._time_takeover(members, owned, killed)
                    waiting.say("go")
                    members.append(waiting)
                    waiting = None
        finally:
            for member in (*members, *([waiting] if waiting else [])):
                member.end()

    def _time_takeover(self, members: Sequence[Child], owned: frozenset[int], killed: float) -> None:
        def read() -> dict[int, float]:
            lines = [line for member in members for line in member.events("first", since=killed)]
            return {line["partition"]: line["at"] for line in lines}

        until(lambda: read().keys() >= owned, "the dead one's partitions to be read")
        for partition in owned:
            self.samples.add("death.seconds", read()[partition] - killed, "s")

    def heartbeats(self) -> None:
        topic = self.topic(MEMBERS)
        address, pid = self._coordinator()
        names = [f"beat-{number}" for number in range(self.asked.groups)]
        children = []
        try:
            for number in range(2):
                asked = {
                    "coordinator": address, "topic": topic, "members": MEMBERS, "groups": names[number::2],
                    "seconds": self.asked.seconds,
                }  # fmt: skip
                children.append(Child("group_streams.py", asked, waits_for=""))
            for child in children:
                received = child.wait(lambda line: line.get("ready"), "everybody to have joined")
                self.samples.add("heartbeats.joining", received["seconds"], "s")
            before, begun = cpu_seconds([pid]), time.monotonic()
            for child in children:
                child.say("measure")
            outcomes = [child.wait(lambda line: "latencies_ms" in line, "the heartbeats") for child in children]
            used = (cpu_seconds([pid]) - before) / (time.monotonic() - begun)
        finally:
            for child in children:
                child.end()
        found = [latency for outcome in outcomes for latency in outcome["latencies_ms"]]
        self._note_many("heartbeats.ms", found)
        self.samples.add("heartbeats.a_second", len(found) / self.asked.seconds, "/s")
        self.samples.add("heartbeats.cpu", used * 100, "%")
        self.samples.add("heartbeats.rss", peak_rss_mib(pid), "MiB")
        for outcome in outcomes:
            if outcome["ended"]:
                self.samples.fail("heartbeats", f"{outcome['ended']} streams ended: {outcome['first']}")

    def commits(self) -> None:
        topic = self.topic(PARTITIONS)
        address, pid = self._coordinator()
        for number in range(3):
            for offsets in (PARTITIONS, 1):
                children = [
                    Child(
                        "group_streams.py",
                        {
                            "coordinator": address, "topic": topic, "offsets": offsets, "at_once": 256, "seconds": 5.0,
                            "groups": [f"commit-{number}-{child}-{group}" for group in range(256)],
                        },
                    )
                    for child in range(2)
                ]  # fmt: skip
                before, begun = cpu_seconds([pid]), time.monotonic()
                outcomes = [child.wait(lambda line: "requests" in line, "the commits") for child in children]
                used = (cpu_seconds([pid]) - before) / (time.monotonic() - begun)
                for child in children:
                    child.end()
                for outcome in outcomes:
                    if outcome["errors"]:
                        self.samples.fail("commits", f"{outcome['errors']} failed: {outcome['first']}")
                rate = sum(outcome["offsets"] / outcome["seconds"] for outcome in outcomes)
                if offsets == 1:
                    self.samples.add("commits.requests", rate, "/s")
                    self.samples.add("commits.cpu", used * 100, "%")
                    self._note_many("commits.ms", [each for outcome in outcomes for each in outcome["latencies_ms"]])
                else:
                    self.samples.add("commits.offsets", rate, "/s")
                    self.samples.add("commits.per_5000", 5_000 / rate, "s")

    def lag(self) -> None:
        """A member that handles 1,000 records per second sleeps 1 ms for each record."""
        topic, group = self.topic(10), "behind"
        members = [
            self.member(topic, group, handling_s=0.001, settings={"auto.commit.interval.ms": 500}) for _ in range(10)
        ]
        everywhere = [TopicPartition(topic, number) for number in range(10)]
        try:
            with (
                self.feed(topic, 10, 500),
                Consumer({"bootstrap.servers": self.bootstrap, "group.id": group}) as consumer,
            ):

                def behind() -> int:
                    committed = consumer.committed(everywhere).values()
                    return sum(consumer.end_offsets(everywhere).values()) - sum(
                        each.offset for each in committed if each is not None
                    )

                begun = time.monotonic()
                members[0].say("go")
                time.sleep(10.0)
                grown = behind()
                self.samples.add("lag.grown", float(grown), "records")
                self.samples.add("lag.growth", grown / (time.monotonic() - begun), "/s")
                for member in members[1:]:
                    member.say("go")
                begun = time.monotonic()
                until(lambda: behind() < 1_000, lambda: f"the lag stays at {behind()}")
                self.samples.add("lag.seconds", time.monotonic() - begun, "s")
        finally:
            for member in members:
                member.end()

    def _coordinator(self) -> tuple[str, int]:
        """host:port and pid of the only coordinator."""
        (found,) = [each for each in self.local.ps() if each["role"] == "coordinator"]
        until(lambda: Groups(self.bootstrap).owner("any") > 0, "a coordinator to own the shards")
        return found["address"], found["pid"]

    def _note_many(self, name: str, values: Sequence[float]) -> None:
        found = sorted(values)
        self.samples.units[name] = "ms"
        self.samples.values.setdefault(name, []).extend(found)
        emit(sample=name, n=len(found), p50=percentile(found, 0.5), p99=percentile(found, 0.99), max=found[-1])

    def coordinator(self) -> None:
        groups, each = [f"resumed-{number}" for number in range(10)], 10
        topic = self.topic(each)
        asked = {
            "bootstrap": self.bootstrap, "topic": topic, "members": each, "commit_s": 0.25,
            "settings": {"fetch.min.bytes": 100_000, "fetch.max.wait.ms": 100},
        }  # fmt: skip
        children = [Child("group_member.py", {**asked, "groups": groups[at : at + 2]}) for at in range(0, 10, 2)]
        coordinators = Groups(self.bootstrap)
        try:
            with self.feed(topic, each, 50) as feed:
                for child in children:
                    child.say("go")
                until(
                    lambda: all(
                        len(child.owned()) == 2 * each and all(len(has) == 1 for has in child.owned().values())
                        for child in children
                    ),
                    "every member of every group to have its partition",
                )
                shared = time.monotonic()
                for _ in range(self.asked.kills):
                    self._kill_a_coordinator(coordinators, groups, children)
                feed.say("end")
                ends = feed.wait(lambda line: line["event"] == "fed", "the feed to end")["ends"]
                runs = until(lambda: self._all_read(children, ends), "everything to be read")
                moves = [each.events("assigned", "revoked", "lost", since=shared) for each in children]
                moved = [line for lines in moves for line in lines]
                self.samples.add("coordinator.moved", float(sum(len(line["partitions"]) for line in moved)), "")
                commits = [line for child in children for line in child.events("commit") if not line["failed"]]
                skipped, repeated, twice = audit(runs, commits, {int(number): end for number, end in ends.items()})
                self.samples.add("coordinator.skipped", float(skipped), "records")
                self.samples.add("coordinator.repeated", float(repeated), "records")
                self.samples.add("coordinator.twice", float(twice), "records")
                failed = [line["failed"] for child in children for line in child.events("commit") if line["failed"]]
                self.samples.add("coordinator.failed_commits", float(len(failed)), "")
                if failed:
                    emit(failed=failed[:5])
        finally:
            for child in children:
                child.end()

    def _all_read(self, children: Sequence[Child], ends: dict[str, int]) -> list[dict[str, Any]] | None:
        """The ranges of offsets that all members have read, once all groups have read all records."""
        received = [line for child in children for line in child.report()]
        far: dict[tuple[str, int], float] = {}
        for line in received:
            for partition, _, end, _ in line["runs"]:
                far[line["group"], int(partition)] = max(far.get((line["group"], int(partition)), 0), end)
        groups = {line["group"] for line in received}
        if any(far.get((group, int(number)), 0) < end for group in groups for number, end in ends.items()):
            return None
        return received

    def _kill_a_coordinator(self, coordinators: Groups, groups: Sequence[str], children: Sequence[Child]) -> None:
        until(lambda: len(coordinators.all_owners()) == 2, "both coordinators to own shards")
        owners = {group: coordinators.owner(group) for group in groups}
        victim = max(set(owners.values()) - {-1}, key=list(owners.values()).count)
        affected = {group for group, owner in owners.items() if owner == victim}
        self._longest(children)
        time.sleep(3.0)
        self.samples.add("coordinator.control", self._longest(children), "s")
        begun = time.monotonic()
        self.local.kill("coordinator", victim)
        gone = time.monotonic()

        def resumed() -> dict[str, float]:
            found: dict[str, float] = {}
            for child in children:
                for line in child.events("commit", since=gone):
                    if line["asked"] >= gone and not line["failed"] and line["group"] in affected:
                        found.setdefault(line["group"], line["at"])
            return found

        until(lambda: resumed().keys() == affected, lambda: f"{affected - resumed().keys()} to commit again")
        for at in resumed().values():
            self.samples.add("coordinator.seconds", at - begun, "s")
        time.sleep(max(3.0 - (time.monotonic() - begun), 0.0))
        self.samples.add("coordinator.pause", self._longest(children), "s")
        self.local.restart("coordinator", victim)

    def _longest(self, children: Sequence[Child]) -> float:
        """The longest pause of any partition in any group since the last call."""
        return max(max(line["longest"].values(), default=0.0) for child in children for line in child.report())


class Groups:
    """The coordinators of groups, from any broker."""

    def __init__(self, bootstrap: str) -> None:
        stub_of: Any = metadata_pb2_grpc.MetadataStub
        self._stub = stub_of(grpc.insecure_channel(bootstrap.split(",")[0]))

    def owner(self, group: str) -> int:
        """The id of the coordinator that owns a group; -1 if the group has no owner."""
        answer = self._stub.FindCoordinator(metadata_pb2.FindCoordinatorRequest(keys=[group]), timeout=20)
        return -1 if answer.coordinators[0].error.code else int(answer.coordinators[0].coordinator_id)

    def all_owners(self) -> set[int]:
        """The owners of all shards; -1 for a shard without an owner."""
        answer = self._stub.GetMetadata(metadata_pb2.MetadataRequest(topics=[OFFSETS_TOPIC]), timeout=20)
        return {each.coordinator_id for each in answer.topics[0].partitions}


def audit(
    reports: Sequence[dict[str, Any]], commits: Sequence[dict[str, Any]], ends: dict[int, int]
) -> tuple[int, int, int]:
    """(records that no member of a group read, records read again after an acknowledged commit, records read again)."""
    skipped = repeated = twice = 0
    for group in {report["group"] for report in reports}:
        committed: dict[int, list[tuple[float, int]]] = {}
        for line in commits:
            if line["group"] == group:
                for number, offset in line["offsets"].items():
                    committed.setdefault(int(number), []).append((line["at"], offset))
        for partition, end in ends.items():
            runs = sorted(
                (at, int(first), int(until_))
                for report in reports
                if report["group"] == group
                for number, first, until_, at in report["runs"]
                if int(number) == partition
            )
            reached = 0
            for at, first, until_ in runs:
                skipped += max(first - reached, 0)
                twice += max(min(reached, until_) - first, 0)
                acknowledged = max((offset for when, offset in committed.get(partition, []) if when < at), default=0)
                repeated += max(min(acknowledged, until_) - first, 0)
                reached = max(reached, until_)
            skipped += max(end - reached, 0)
    return skipped, repeated, twice


def verdicts(samples: Samples, cases: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for bar in (bar for case in cases for bar in BARS[case]):
        values = samples.values.get(bar.sample)
        value = percentile(values, bar.percentile) if values else None
        met = value is not None and (bar.limit is None or value <= bar.limit)
        found.append({"what": bar.what, "sample": bar.sample, "bar": bar.limit, "measured": value, "met": met})
    return found


#: Cases that share a cluster: (coordinators, brokers, cases).
CLUSTERS = ((1, 1, ("join", "restart", "death", "heartbeats", "commits", "lag")), (2, 1, ("coordinator",)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--joins", type=int, default=10)
    parser.add_argument("--restarts", type=int, default=2, help="restarts of each static member")
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds in which heartbeats are measured")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default=",".join(BARS))
    parser.add_argument("--work", type=Path, default=WORK, help="directory of the clusters during the run")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    if asked.smoke:
        asked.joins, asked.restarts, asked.deaths, asked.kills, asked.groups, asked.seconds = 1, 1, 1, 1, 50, 6.0
    wanted = asked.only.split(",")
    samples = Samples()
    emit(machine=machine())
    for coordinators, brokers, cases in CLUSTERS:
        chosen = [case for case in cases if case in wanted]
        if not chosen:
            continue
        directory = asked.work / "groups"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            with LocalCluster(
                brokers=brokers, controllers=1, coordinators=coordinators, data=directory, start_timeout_s=60
            ) as local:
                bench = Bench(local, samples, asked)
                for case in chosen:
                    try:
                        getattr(bench, case)()
                    except (RuntimeError, OSError, HeadraceError) as failure:
                        samples.fail(case, str(failure)[:1_000])
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    bars = verdicts(samples, [case for case in BARS if case in wanted])
    summary = spread(samples)
    emit(bars=bars, spread=summary)
    print(table(samples))
    print(shown(bars))
    if asked.save:
        for name in [name for name in samples.values if name.endswith(".ms")]:
            del samples.values[name], samples.units[name]  # too many values: one per request
        print(save(samples, what="groups", extra={"bars": bars, "spread": summary}).relative_to(ROOT))
    for failed in samples.failures:
        print(f"failed: {failed}")
    return 1 if samples.failures or not all(bar["met"] for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
