"""Run a bank on a cluster with failures: processes that transfer money in transactions, and readers with
read_committed. ``bank_history`` checks the result; docs/faults-transactions.md describes the test."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace import Consumer, TopicPartition
from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation
from tests.system.bank_history import BankHistory, Entry, Read, Transfer, decode
from tests.system.faulty_cluster import SLOW_MACHINE, TIMEOUT_S, FaultyCluster, eventually
from tests.system.transactional_load import PARTITIONS, WAIT_S, TransactionalLoad

TOPIC = "bank"
#: Pause between two passes over the whole log.
PASS_EVERY_S = 2.0
_PARTITIONS = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


class Bank(TransactionalLoad):
    """Runs four producers of transfers, and two readers."""

    module = "tests.system.bank_writer"
    topics = (TOPIC,)

    def __init__(self, cluster: FaultyCluster, rng: random.Random) -> None:
        super().__init__(cluster, rng, count=4, topic=TOPIC, pause_s=0.02)
        self.history = BankHistory(WAIT_S * SLOW_MACHINE)
        self.incomplete: Counter[int] = Counter()
        self.passes = 0
        cluster.make_topic(TOPIC, PARTITIONS, **{"segment.bytes": str(1 << 20)})

    def reading(self) -> Sequence[Callable[[], None]]:
        return self._follow, self._pass_again_and_again

    def anomalies(self) -> list[str]:
        return self.history.found

    def stepped(self, transactional_id: str, life: int, step: list[Any]) -> None:
        kind, *fields, at_s = step
        with self.lock:
            if kind == "ready":
                self.history.ready(transactional_id, life, at_s)
            elif kind in ("begins", "commits", "committed", "aborted"):
                transfer = Transfer(transactional_id, life, fields[0])
                if kind == "begins":
                    _, places, is_doomed = fields
                    entries = [
                        Entry(transfer, index, len(places), *place, is_doomed) for index, place in enumerate(places)
                    ]
                    self.history.begins(transfer, entries, at_s)
                elif kind == "commits":
                    self.history.commits(transfer, at_s)
                else:
                    self.history.ended(transfer, at_s, is_committed=kind == "committed")

    # --- readers ---------------------------------------------------------------------------------------------------

    def _consumer(self, isolation: str = "read_committed") -> Consumer:
        consumer = Consumer(self.cluster.client, isolation_level=isolation, auto_offset_reset="earliest")
        consumer.assign(_PARTITIONS)
        return consumer

    def _read(self, consumer: Consumer, wait_s: float) -> list[Read]:
        records = self.polled(consumer, wait_s)
        try:
            return [Read(each.partition, each.offset, decode(each.value)) for each in records]
        except ValueError as error:
            raise SafetyViolation(f"a record is no entry of a transfer: {records!r:.500}") from error

    def _follow(self) -> None:
        with self._consumer() as consumer:
            while not self.stopping_reading.is_set():
                reads = self._read(consumer, 0.2)
                with self.lock:
                    self.history.reads(reads, time.monotonic())
                    self.longest_wait_s = self.history.longest_wait[0]

    def _pass_again_and_again(self) -> None:
        while not self.stopping_reading.wait(PASS_EVERY_S):
            self._pass()

    def _pass(self, *, is_last: bool = False) -> None:
        """Read the whole log, with a new consumer."""
        with self._consumer() as consumer:
            began_s, ends = self.insist(lambda: (time.monotonic(), consumer.end_offsets(_PARTITIONS)))
            reads: list[Read] = []
            deadline = time.monotonic() + TIMEOUT_S
            while any(self.insist(partial(consumer.position, each)) < end for each, end in ends.items()):
                if self.stopping_reading.is_set() and not is_last:
                    return
                if time.monotonic() > deadline:
                    raise NotInTimeError(f"the log is not readable up to {ends}; errors: {self.reading_errors}")
                reads += self._read(consumer, 0.5)
        with self.lock:
            self.incomplete[self.history.passes(reads, began_s, time.monotonic(), is_last=is_last)] += 1
            self.passes += 1

    def until_read(self, what: str) -> None:
        """Wait until a pass that began after this call has ended."""
        wanted = self.passes + 2

        def passed() -> bool:
            self.check()
            return self.passes >= wanted

        eventually(passed, f"two passes of a reader {what}; errors: {self.reading_errors}")

    # --- the verdict -----------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Do the final checks, after all faults are repaired."""
        self.end_processes()
        self._until_nothing_is_open()
        self.end_readers()
        self._pass(is_last=True)
        print(self.summary())
        if found := self.history.ends():
            raise SafetyViolation(self.report(found))
        assert self.history.committed >= 50

    def _until_nothing_is_open(self) -> None:
        """Check that every transaction has ended and has all markers, so readers with read_committed get all
        records."""
        with self._consumer() as committed, self._consumer("read_uncommitted") as everything:

            def ends() -> list[Any]:
                return [self.insist(partial(each.end_offsets, _PARTITIONS)) for each in (committed, everything)]

            def are_equal() -> bool:
                stable, all_ = ends()
                return bool(stable == all_)

            try:
                eventually(are_equal, "", within_s=WAIT_S * SLOW_MACHINE)
            except NotInTimeError as never:
                raise SafetyViolation(
                    f"a transaction hangs: the last stable offsets and the end offsets are {ends()}"
                ) from never

    def summary(self) -> str:
        history = self.history
        wait_s, partition = history.longest_wait
        return (
            f"{history.committed} transfers committed, {history.aborted} aborted, by {len(self.every)} writers; "
            f"{history.read} entries read, {self.passes} passes, incomplete transfers in a pass: "
            f"{dict(self.incomplete)}; longest wait for a committed transfer: {wait_s:.2f} s in partition {partition}; "
            f"{self.errors()}"
        )
