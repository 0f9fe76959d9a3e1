"""Consume, transform, produce on a cluster with failures. A group of processes writes an output for each input, in
transactions with the group's offsets. A reader with read_committed checks that each input has its output exactly
once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace import Consumer, TopicPartition
from headrace_core.metadata.shards import SHARD_TOPICS
from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation
from tests.system.faulty_cluster import SECURE, SLOW_MACHINE, FaultyCluster, eventually
from tests.system.transactional_load import PARTITIONS, WAIT_S, TransactionalLoad
from tests.worlds.readers import Feed

INPUT, OUTPUT, GROUP = "input", "output", "transform"
#: Inputs a second. A machine of two cores with a load of 13 handles 60 to 100 a second, with TLS 40.
PER_SECOND = 30 if SECURE else 60


class Transform(TransactionalLoad):
    """Runs three group members, a producer of inputs, and a reader. The outputs of an input partition must be its
    offsets 0, 1, 2, ... A smaller offset than expected is a repeated output; a larger offset means that an output is
    lost."""

    module = "tests.system.transform_worker"
    topics = (OUTPUT, INPUT)
    internal_topics = SHARD_TOPICS

    def __init__(self, cluster: FaultyCluster, rng: random.Random) -> None:
        super().__init__(cluster, rng, count=3, input=INPUT, output=OUTPUT, group=GROUP, login=cluster.login)
        for topic in self.topics:
            cluster.make_topic(topic, PARTITIONS, **{"segment.bytes": str(1 << 20)})
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        self._found: list[str] = []
        #: Commits whose outputs the reader has not read yet: (time of the acknowledgement, committed offset of each
        #: input partition).
        self._unread: list[tuple[float, dict[int, int]]] = []
        self._feed = Feed(cluster.everybody, INPUT, PARTITIONS, PER_SECOND, settings=cluster.login)

    def __enter__(self) -> Transform:
        self._feed.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: object) -> None:
        self._feed.stop()
        super().__exit__(*exception)

    def reading(self) -> Sequence[Callable[[], None]]:
        return (self._follow,)

    def anomalies(self) -> list[str]:
        return self._found

    def stepped(self, transactional_id: str, life: int, step: list[Any]) -> None:
        if step[0] == "committed":
            _, ends, at_s = step
            with self.lock:
                self._unread.append((at_s, {int(partition): end for partition, end in ends.items()}))

    def _follow(self) -> None:
        with Consumer(self.cluster.client, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(OUTPUT, number) for number in range(PARTITIONS)])
            while not self.stopping_reading.is_set():
                records = self.polled(consumer, 0.2)
                with self.lock:
                    for record in records:
                        self._check(record)
                    self._note_waits(time.monotonic())

    def _note_waits(self, now: float) -> None:
        self.longest_wait_s = max([self.longest_wait_s, *(now - at_s for at_s, _ in self._unread)])
        self._unread = [
            (at_s, ends)
            for at_s, ends in self._unread
            if any(self._next[partition] < end for partition, end in ends.items())
        ]

    def _check(self, record: Any) -> None:
        expected = self._next[record.partition]
        partition, offset = map(int, (record.value or b"").split(b":"))
        if (partition, offset) != (record.partition, expected):
            kind = "repeated" if offset < expected else "lost"
            self._found.append(
                f"{kind}: output {partition}:{offset} at offset {record.offset} of partition {record.partition}, "
                f"where the output of input {expected} was expected"
            )
        self._next[record.partition] = offset + 1

    def until_read(self, what: str) -> None:
        """Wait until the reader has the outputs of all inputs that exist now."""
        whole, rest = divmod(self._feed.sent, PARTITIONS)
        ends = {partition: whole + (partition < rest) for partition in range(PARTITIONS)}

        def has_all() -> bool:
            self.check()
            return all(self._next[partition] >= end for partition, end in ends.items())

        eventually(has_all, lambda: f"the output {what}: {self._next} of {ends}; {self.errors()}")

    def judge(self) -> None:
        """Do the final checks, after all faults are repaired."""
        self.goes_on("in the end")
        self._feed.stop()
        assert self._feed.error is None, self._feed.error
        ends = self._feed.ends()
        try:
            eventually(lambda: self.check() or self._next == ends, within_s=2 * WAIT_S * SLOW_MACHINE)
        except NotInTimeError as never:
            raise SafetyViolation(f"lost: outputs {self._next}, inputs {ends}; {self.summary()}") from never
        for process in self.living:
            process.stop()
        self.living.clear()
        self.end_readers()
        print(self.summary())
        assert self._next == ends
        assert self._feed.sent >= 100

    def summary(self) -> str:
        return (
            f"{self._feed.sent} inputs, {sum(self._next.values())} outputs, by {len(self.every)} processes with "
            f"{sum(each.committed for each in self.every)} commits; longest wait for a committed output: "
            f"{self.longest_wait_s:.2f} s; {self.errors()}"
        )
