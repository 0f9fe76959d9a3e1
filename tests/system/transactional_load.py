"""Run processes with transactional producers on a cluster with failures."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

from headrace.errors import HeadraceError
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC, shard_of
from headrace_core.testing.verdicts import SafetyViolation
from tests.system.faulty_cluster import TIMEOUT_S, FaultyCluster, eventually
from tests.system.transactional_process import TransactionalProcess

PARTITIONS = 6
TRANSACTION_TIMEOUT_S = 10.0
#: How long a reader may wait for a committed record: the transaction timeout of an abandoned transaction, plus 5 s.
WAIT_S = TRANSACTION_TIMEOUT_S + 5.0


class TransactionalLoad:
    """Runs ``count`` processes of ``module`` and some readers. A subclass defines ``reading``, which the readers run
    until ``stopping_reading`` is set, and the final checks. ``topics``: the topics to which the processes write."""

    module: str
    topics: tuple[str, ...]
    internal_topics: tuple[str, ...] = (TRANSACTIONS_TOPIC,)

    def __init__(self, cluster: FaultyCluster, rng: random.Random, *, count: int, **asked: Any) -> None:
        """``asked``: what the processes get, besides the settings of their producers."""
        self.cluster = cluster
        self.living: list[TransactionalProcess] = []
        self.every: list[TransactionalProcess] = []
        self.stopping_reading = threading.Event()
        self.reading_errors: Counter[str] = Counter()
        self.lock = threading.Lock()
        #: The longest time that a reader waited for a committed record.
        self.longest_wait_s = 0.0
        self._asked = asked
        self._rng = rng
        self._count = count
        self._broken: BaseException | None = None
        self._readers: list[threading.Thread] = []

    def reading(self) -> Sequence[Callable[[], None]]:
        raise NotImplementedError

    def stepped(self, transactional_id: str, life: int, step: list[Any]) -> None:
        """Called when a process has printed a step."""

    def anomalies(self) -> list[str]:
        """Return the anomalies so far; the caller has ``lock``."""
        raise NotImplementedError

    def until_read(self, what: str) -> None:
        """Wait until the readers have read all records that are committed now."""
        raise NotImplementedError

    def summary(self) -> str:
        raise NotImplementedError

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self.open()
        self._readers = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True, name=work.__name__)
            for work in self.reading()
        ]
        for thread in self._readers:
            thread.start()
        self.goes_on("at first")
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopping_reading.set()
        for process in self.living:
            process.send_signal(signal.SIGCONT)
            process.kill()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            self._broken = error
            raise

    # --- processes -------------------------------------------------------------------------------------------------

    def open(self, transactional_id: str | None = None) -> TransactionalProcess:
        """Start a process with a new transactional id, or as the successor of the processes with the given id."""
        name = f"writer-{len(self.every) + 1}"
        transactional_id = transactional_id or f"{self.topics[0]}-{name}"
        life = sum(each.transactional_id == transactional_id for each in self.every)
        process = TransactionalProcess(
            name,
            self.module,
            partial(self.stepped, transactional_id, life),
            partitions=PARTITIONS,
            life=life,
            seed=self._rng.randrange(2**31),
            settings={
                **self.cluster.client,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(TRANSACTION_TIMEOUT_S * 1000),
                "delivery.timeout.ms": int(TIMEOUT_S * 1000),
                "max.block.ms": 30_000,
                "request.timeout.ms": 10_000,
            },
            **self._asked,
        )
        self.cluster.names(name, process.process.pid)  # before its first connection
        self.living.append(process)
        self.every.append(process)
        return process

    def kill(self, process: TransactionalProcess) -> None:
        self.living.remove(process)
        process.kill()

    # --- what a fault waits for ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Fail early."""
        if self._broken is not None:
            raise self._broken
        for process in self.living:
            process.check()
            if process.is_fenced:
                raise SafetyViolation(f"{process.name} is fenced, but has no successor")
        with self.lock:
            if found := self.anomalies():
                raise SafetyViolation(self.report(found))

    def goes_on(self, what: str, processes: Sequence[TransactionalProcess] | None = None, count: int = 5) -> None:
        """Wait until each of these processes (default: all) has committed ``count`` more transactions."""
        wanted = {each: each.committed + count for each in processes or self.living}

        def enough() -> bool:
            self.check()
            return all(each.committed >= number for each, number in wanted.items())

        def lacking() -> str:
            slow = [each for each, number in wanted.items() if each.committed < number]
            return f"commits {what}: {[(each.name, each.transactional_id, each.errors[-3:]) for each in slow]}"

        eventually(enough, lacking)

    def coordinator_of(self, process: TransactionalProcess) -> str:
        """Wait until the process's transactional id has a coordinator; return the coordinator's name."""

        def found() -> int:
            owners = self.cluster.shard_owners(TRANSACTIONS_TOPIC)
            return max(owners[shard_of(process.transactional_id, len(owners))], 0)

        return f"coordinator-{eventually(found, f'no coordinator for {process.transactional_id}')}"

    def shard_leader_of(self, process: TransactionalProcess) -> str:
        """Return the leader of the shard of the process's transactional id."""
        shards = len(self.cluster.shard_owners(TRANSACTIONS_TOPIC))
        return self.cluster.leader(TRANSACTIONS_TOPIC, shard_of(process.transactional_id, shards))

    # --- the end ---------------------------------------------------------------------------------------------------

    def end_processes(self) -> None:
        """Let each process finish its transaction and exit."""
        self.goes_on("in the end")
        for process in self.living:
            process.stop()
        self.living.clear()

    def end_readers(self) -> None:
        self.stopping_reading.set()
        for thread in self._readers:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive(), f"{thread.name} does not end; errors: {self.reading_errors}"
        self.check()

    def polled(self, consumer: Any, wait_s: float) -> list[Any]:
        try:
            return list(consumer.poll(wait_s, 5_000))
        except HeadraceError as error:
            with self.lock:
                self.reading_errors[f"{type(error).__name__}: {str(error)[:200]}"] += 1
            self.stopping_reading.wait(0.1)
            return []

    def insist(self, question: Any) -> Any:
        def answer() -> Any:
            try:
                return (question(),)
            except HeadraceError:
                return None

        return eventually(answer, "no answer about offsets")[0]

    def report(self, found: list[str]) -> str:
        kinds = Counter(each.partition(":")[0] for each in found)
        return "\n".join([f"{len(found)} anomalies {dict(kinds)}", *found[:12], self.summary()])

    def errors(self) -> str:
        errors = Counter(error.partition(":")[0] for each in self.every for error in each.errors)
        return f"errors: {dict(errors)}, reading: {dict(self.reading_errors)}"
