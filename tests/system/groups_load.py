"""Groups under load on a cluster with failures, and the checks that must hold in any case.

Every group reads all records of a steady producer. The members of a group commit processed records, and record three
things: what they read, which commits were acknowledged, and which partitions they got and lost. ``GroupsLoad.judge``
then finds

    skipped     a record that no member of a group has read
    repeated    a member began to read before an offset whose commit was already acknowledged
    jumped      between two callbacks, a member read offsets of a partition out of order or with gaps
    shared      two members read a partition at the same time
    lost        an acknowledged commit is missing
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from headrace_core.metadata.shards import OFFSETS_TOPIC, shard_of
from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation
from tests.system.faulty_cluster import FaultyCluster, eventually
from tests.system.process_reader import ProcessReader
from tests.worlds.readers import Change, Commit, Feed, Read, Reader, Readers, Watcher, new_name

COMMIT_EVERY_S = 0.1
#: Many members in few processes: they may get many records at a time.
SETTINGS = {"fetch.min.bytes": 100_000, "fetch.max.wait.ms": 50}


class GroupsLoad:
    """Runs ``groups`` groups of ``members`` members, on a topic with one partition per member (or with ``partitions``
    partitions)."""

    def __init__(
        self,
        cluster: FaultyCluster,
        *,
        groups: int | Sequence[str],
        members: int,
        partitions: int | None = None,
        per_second: float = 100,
        processes: int = 0,
    ) -> None:
        """``groups``: number of groups, or their names. ``processes``: number of members of the first group that run in
        their own process."""
        self.cluster = cluster
        self.partitions = partitions or members
        self.topic = new_name("groups")
        cluster.make_topic(self.topic, self.partitions)
        self.groups = [
            Readers(
                cluster.everybody, name, self.topic, self.partitions, commit_every_s=COMMIT_EVERY_S,
                settings=SETTINGS | cluster.login,
            )
            for name in ([new_name("g") for _ in range(groups)] if isinstance(groups, int) else groups)
        ]  # fmt: skip
        self._members, self._processes = members, processes
        self._feed = Feed(cluster.everybody, self.topic, self.partitions, per_second, settings=cluster.login)
        self._shared_at = 0.0

    def __enter__(self) -> Self:
        self._feed.__enter__()
        for number, group in enumerate(self.groups):
            own = self._processes if number == 0 else 0
            for _ in range(own):
                self.add_process(group)
            group.add(self._members - own)
        self.until_shared()
        self.goes_on("at first")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:  # a cut-off process cannot leave
            self.cluster.network.heal()
        self._feed.stop()
        for group in self.groups:
            group.stop(*group.living, quietly=True)

    def add_process(self, group: Readers) -> ProcessReader:
        """Add a member in its own process, named "member" in the rules of the network; there may be only one."""
        made = ProcessReader(
            bootstrap=group.bootstrap, group=group.group, topic=group.topic, commit_every_s=COMMIT_EVERY_S,
            settings=SETTINGS | self.cluster.login,
        )  # fmt: skip
        self.cluster.names("member", made.pid)  # before its first connection
        group.living.append(made)  # type: ignore[arg-type]
        group.every.append(made)  # type: ignore[arg-type]
        return made

    def until_shared(self) -> None:
        for group in self.groups:
            group.until_shared()
        self._shared_at = time.monotonic()

    # -- while something is broken

    def goes_on(self, what: str, groups: list[Readers] | None = None) -> float:
        """Wait until every group reads and commits records that are sent from now on; return how many seconds the last
        group needed."""
        now = time.monotonic()

        def does(group: Readers) -> bool:
            for reader in group.living:
                reader.check()
            return any(each.asked > now for reader in group.living for each in reader.commits[-20:]) and any(
                each.at > now for reader in group.living for each in reader.read[-20:]
            )

        for group in groups or self.groups:
            eventually(lambda group=group: does(group), f"{group.group} does not go on {what}: {self._errors(group)}")
        return time.monotonic() - now

    def reads_on(self, *, for_s: float) -> None:
        """Check that every member reads records that are sent while no commit is possible, and that the members still
        read after ``for_s`` seconds."""
        now = time.monotonic()
        members = [reader for group in self.groups for reader in group.living]
        eventually(
            lambda: all(any(each.at > now + for_s for each in reader.read[-20:]) for reader in members),
            f"reading does not go on for {for_s:g} s",
        )

    def _errors(self, group: Readers) -> list[Any]:
        return [reader.failed_commits[-1:] for reader in group.living if isinstance(reader, Reader)]

    def changes(self) -> list[Change]:
        """The rebalance callbacks of the members since all partitions were shared out."""
        every = [reader for group in self.groups for reader in group.every]
        return [change for reader in every for change in reader.changes if change.at > self._shared_at]

    # -- who coordinates

    def owners(self) -> list[int]:
        """Return the coordinator of each shard; -1: the shard has no coordinator."""
        return self.cluster.shard_owners(OFFSETS_TOPIC)

    def shard_of(self, group: Readers) -> int:
        return shard_of(group.group, len(self.owners()))

    def coordinator_of(self, group: Readers) -> str:
        """The name of the group's coordinator; waits until there is one."""
        number = eventually(lambda: max(self.owners()[self.shard_of(group)], 0), f"{group.group} has no coordinator")
        return f"coordinator-{number}"

    def until_all_coordinate(self) -> None:
        wanted = len(self.cluster.coordinator_ids)
        eventually(
            lambda: -1 not in (owners := self.owners()) and len(set(owners)) == wanted,
            lambda: f"not every coordinator has shards: {self.owners()}",
        )

    # -- the verdict

    def judge(self) -> None:
        """The final checks, after all faults are repaired."""
        self.goes_on("in the end")
        self._feed.stop()
        assert self._feed.error is None, self._feed.error
        ends = self._feed.ends()
        found: list[str] = []
        for group in self.groups:
            try:
                group.until_read(ends)
            except NotInTimeError as never:  # the members have read later records, but not this one
                raise SafetyViolation(f"skipped: {never}") from never
            # First the acknowledged commits, then what is committed: the members still commit what they read last.
            every = [commit for reader in group.every for commit in reader.commits]
            place = (group.bootstrap, group.group, group.topic, self.partitions)
            with Watcher(*place, settings=self.cluster.login) as watcher:
                committed = watcher.committed()
            lost = [each for each in every if committed[each.partition] < each.offset]
            found += [f"lost: {each}, and {committed[each.partition]} is committed" for each in lost]
            found += anomalies(group)
        if found:
            raise SafetyViolation(f"{len(found)} anomalies: {found[:12]}")


def longest_silence_s(group: Readers, since: float, until: float) -> float:
    """The group's longest time without an acknowledged commit, between these two times (of time.monotonic())."""
    times = [each.at for reader in group.every for each in list(reader.commits) if since < each.at < until]
    return max(after - before for before, after in itertools.pairwise([since, *sorted(times), until]))


def anomalies(group: Readers) -> list[str]:
    """The anomalies ``repeated``, ``jumped`` and ``shared`` of a group."""
    found: list[str] = []
    commits = [commit for reader in group.every for commit in reader.commits]
    tenures: dict[int, list[tuple[float, float]]] = {}
    for reader in group.every:
        for partition, taken_at, reads in _tenures(reader):
            first = reads[0].offset
            acknowledged = max(
                (each.offset for each in commits if each.partition == partition and each.at < taken_at), default=0
            )
            if first < acknowledged:
                found.append(f"repeated: partition {partition} from {first}, {acknowledged} was committed")
            if [each.offset for each in reads] != list(range(first, first + len(reads))):
                found.append(
                    f"jumped: partition {partition} from {first} to {reads[-1].offset} in {len(reads)} records"
                )
            tenures.setdefault(partition, []).append((reads[0].at, reads[-1].at))
    for partition, spans in tenures.items():
        spans.sort()
        for (_, end), (begin, _) in itertools.pairwise(spans):
            if begin < end:
                found.append(
                    f"shared: partition {partition}, read by one until {end - begin:.3f} s after another one began"
                )
    return [f"{group.group}: {each}" for each in found]


def _tenures(reader: Reader) -> Iterator[tuple[int, float, list[Read]]]:
    """(partition, since when it was the reader's, what it read of it), for each time that it had something to read."""
    reads = sorted(reader.read, key=lambda each: each.at)
    for index, change in enumerate(reader.changes):
        if change.what != "assigned":
            continue
        for partition in change.partitions:
            ends = (later.at for later in reader.changes[index + 1 :] if partition in later.partitions)
            end = next(ends, float("inf"))
            own = [each for each in reads if each.partition == partition and change.at <= each.at <= end]
            if own:
                yield partition, change.at, own


__all__ = ["Change", "Commit", "GroupsLoad", "Read", "Readers", "anomalies", "longest_silence_s"]
