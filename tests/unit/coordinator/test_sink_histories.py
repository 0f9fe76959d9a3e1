"""Random histories of an exactly-once sink: one transaction shard, drivers, their tasks and the leaders, in memory. A
seed determines the order of events."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace_coordinator.state_machine import Decision
from headrace_coordinator.transaction import transactions
from headrace_coordinator.transaction.messages import (
    AbortSinkBatch,
    AbortTransaction,
    AddPartitions,
    CommitSinkBatch,
    CompleteTransaction,
    DescribeSink,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    ProducerIdReply,
    SinkState,
    TransactionEnded,
    WriteMarkers,
)
from headrace_coordinator.transaction.sinks import SinkRecord
from headrace_coordinator.transaction.state import ProducerIdentity, TransactionState
from headrace_coordinator.transaction.transactions import TransactionSettings, TransactionsStateMachine
from headrace_core.errors import CoordinatorLoadInProgressError, HeadraceError
from headrace_core.sinks import SinkTransaction, parse_sink_transaction, sink_id
from headrace_core.types import TopicPartition

EPOCH_MAX = 6
TASK_TIMEOUT_MS, SINK_TIMEOUT_MS = 1_000, 3_000
PARTITIONS = 3
SINK = sink_id("query", "target")


class LostAnswerError(Exception):
    """The response was lost; the request may have taken effect."""


@dataclass(eq=False)
class Task:
    """One attempt of a task. ``token`` is set when its transaction is prepared; ``is_drained`` when it has learned that
    its batch is already decided."""

    batch: int
    partition: int
    number: int
    transaction: SinkTransaction | None = None
    identity: ProducerIdentity | None = None
    has_written: bool = False
    token: tuple[SinkTransaction, ProducerIdentity] | None = None
    is_drained: bool = False
    is_over: bool = False

    @property
    def is_done(self) -> bool:
        return self.token is not None or self.is_drained


@dataclass(eq=False)
class Driver:
    batch: int
    tasks: list[Task] = field(default_factory=list)
    generation: int = 0


class SinkWorld:
    """Drivers run the sink's batches as Spark does: each partition's task reads the sink's state, writes, prepares
    and sends its token to the driver, which commits the batch or aborts it. A driver dies, and another one repeats
    its batch while tasks of the first continue; tasks run twice; answers are lost; an append ends in the middle of a
    decision; the shard moves; an operator aborts; prepared transactions wait too long. ``check`` and the assertions:
    the rows of each batch are committed once and completely, as its first decision names them; an answered decision
    does not change; no identity is given twice; no transaction stays open."""

    def __init__(self, seed: int, *, machine_class: type[TransactionsStateMachine] = TransactionsStateMachine) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.counts: Counter[str] = Counter()
        #: The driver that Spark runs, and dead drivers whose requests may still arrive.
        self.drivers: list[Driver] = []
        #: Tasks whose driver is dead.
        self.zombies: list[Task] = []
        #: The markers in the partitions of each transaction.
        self.outcomes: dict[str, set[bool]] = {}
        self.written: set[str] = set()
        #: Maps a batch to the transactions that its decision names; set at the first append of the decision.
        self.decisions: dict[int, frozenset[str]] = {}
        self.answered: set[int] = set()
        self.given: dict[ProducerIdentity, str] = {}
        self.epochs: dict[int, int] = {}
        self.markers: list[WriteMarkers] = []
        self._numbers = 0
        self._last_producer_id = 0
        self._machine_class = machine_class
        self.machine = self._loaded()

    # -- the shard ---------------------------------------------------------------------------------------------------

    def _producer_id(self) -> int:
        if self.random.random() < 0.1:
            raise CoordinatorLoadInProgressError("no producer id is left")
        self._last_producer_id += 1
        return self._last_producer_id

    def _loaded(self) -> TransactionsStateMachine:
        settings = TransactionSettings(
            epoch_max=EPOCH_MAX,
            timeout_ms_max=TASK_TIMEOUT_MS,
            sink_timeout_ms=SINK_TIMEOUT_MS,
            expiration_interval_ms=SINK_TIMEOUT_MS,
        )
        machine = self._machine_class(self._producer_id, settings)
        for key, value in self.log:
            machine.replay(key, value, self.now_ms)
        self.machine = machine
        self.markers.clear()
        self._commit(machine.loaded(self.now_ms))
        return machine

    def _commit(self, decision: Decision) -> None:
        self.log += [(record.key, record.value) for record in decision.records]
        for push in decision.pushes:
            if isinstance(push, WriteMarkers):
                self.markers.append(push)
            elif isinstance(push, TransactionEnded) and push.transactional_id == SINK:
                assert not self.machine.is_ending(SINK), "the sink has all its markers"

    def move(self) -> None:
        """A new coordinator loads the shard."""
        before = self.machine.transactions, self.machine.sinks
        self._loaded()
        self.counts["moves"] += 1
        assert self.machine.transactions.keys() == before[0].keys()
        assert self.machine.sinks == before[1]

    def ask(self, request: object) -> object:
        """Send a request and return the answer. Raises LostAnswerError if the append failed (perhaps in the middle), or
        if the answer was lost."""
        if isinstance(request, CommitSinkBatch):
            undecided = self.machine.sinks.get(SINK) is None or self.machine.sinks[SINK].batch < request.batch
        decision = self.machine.handle(request, self.now_ms)
        if isinstance(decision.reply, HeadraceError):
            self._commit(decision)
            raise decision.reply
        fate = self.random.random()
        if fate < (0.25 if isinstance(request, CommitSinkBatch) else 0.03) and decision.records:
            kept = 0 if decision.is_atomic else self.random.randrange(len(decision.records))
            self.log += [(record.key, record.value) for record in decision.records[:kept]]
            if isinstance(request, CommitSinkBatch) and undecided and kept:
                self._decided(request)
            self.counts["append failed" if not kept else "append cut off"] += 1
            self._loaded()
            raise LostAnswerError
        if isinstance(request, CommitSinkBatch) and undecided:
            self._decided(request)
        self._commit(decision)
        if fate > 0.9:
            self.counts["answers lost"] += 1
            raise LostAnswerError
        return decision.reply

    def _decided(self, request: CommitSinkBatch) -> None:
        assert request.batch not in self.decisions, "a batch is decided once"
        assert not self.decisions or request.batch > max(self.decisions), "batches are decided in order"
        self.decisions[request.batch] = frozenset(str(transaction) for transaction, _ in request.tokens)
        self.counts["decisions"] += 1

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_ms += self.random.randrange(20)
        act = self.random.choices(
            [self._drive, self._work, self._zombie, self._mark, self._crash, self.move, self._wait, self._operate],
            [15, 40, 6, 20, 0.3, 0.4, 0.1, 0.2],
        )[0]
        with contextlib.suppress(LostAnswerError):
            act()

    def _wait(self) -> None:
        self.now_ms += self.random.choice([TASK_TIMEOUT_MS, SINK_TIMEOUT_MS])
        self.counts["waits"] += 1
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and due_ms <= self.now_ms:
            self._commit(self.machine.tick(self.now_ms))

    def _drive(self) -> None:
        if not self.drivers:
            # A restarted driver begins with the batch after the last answered commit, or repeats the batch of that
            # commit.
            batch = max(self.answered, default=0) + (self.random.random() < 0.7 if self.answered else 0)
            self.drivers.append(Driver(int(batch)))
        driver = self.random.choice(self.drivers)
        if not driver.tasks:
            for partition in range(PARTITIONS):
                for _ in range(1 + (self.random.random() < 0.2)):  # a speculative second attempt
                    driver.tasks.append(self._task(driver.batch, partition))
            return
        done = {task.partition: task for task in self.random.sample(driver.tasks, len(driver.tasks)) if task.is_done}
        failed = len({task.partition for task in driver.tasks if not task.is_over}) < PARTITIONS
        if len(done) == PARTITIONS and self.random.random() < 0.9:
            self._decide(driver, list(done.values()))
        elif failed or self.random.random() < 0.01:
            self._abort(driver, list(done.values()))

    def _decide(self, driver: Driver, tasks: list[Task]) -> None:
        tokens = tuple(task.token for task in tasks if task.token is not None)
        try:
            state = self.ask(CommitSinkBatch(SINK, driver.batch, tokens))
        except HeadraceError as error:
            self.counts[f"refused decision: {error.code}"] += 1
            self._abort(driver, tasks)
            return
        assert isinstance(state, SinkState)
        assert state.batch >= driver.batch
        self.answered.add(driver.batch)
        self.counts["answered"] += 1
        self.zombies += driver.tasks
        if self.random.random() < 0.1:  # the driver dies before Spark's commit log, and repeats the batch
            driver.tasks = []
            self.counts["repeated batches"] += 1
        else:
            driver.batch, driver.tasks = driver.batch + 1, []

    def _abort(self, driver: Driver, tasks: list[Task]) -> None:
        generations = [task.token[0].generation for task in tasks if task.token is not None]
        self.counts["aborts"] += 1
        self.zombies += driver.tasks
        driver.tasks = []
        if generations:
            self.ask(AbortSinkBatch(SINK, driver.batch, max(generations)))

    def _crash(self) -> None:
        """The driver dies, or it only seems to be dead and then two drivers run."""
        if not self.drivers:
            return
        driver = self.random.choice(self.drivers)
        self.counts["crashes"] += 1
        if self.random.random() < 0.5 or len(self.drivers) > 1:
            self.drivers.remove(driver)
            self.zombies += driver.tasks
        else:
            self.drivers.append(Driver(max(self.answered, default=0)))

    def _task(self, batch: int, partition: int) -> Task:
        self._numbers += 1
        return Task(batch, partition, self._numbers)

    def _work(self) -> None:
        if self.drivers:
            driver = self.random.choice(self.drivers)
            if driver.tasks:
                task = self.random.choice(driver.tasks)
                self._advance(task)
                if task.is_over and self.random.random() < 0.7:  # Spark retries the task
                    driver.tasks.append(self._task(task.batch, task.partition))

    def _zombie(self) -> None:
        if self.zombies:
            task = self.random.choice(self.zombies)
            self._advance(task)
            if task.is_done or task.is_over:
                self.zombies.remove(task)

    def _advance(self, task: Task) -> None:
        """Send the next request of a task. A task gives up after an error, and repeats a request without an answer."""
        if task.is_over or task.is_done:
            return
        if self.random.random() < 0.03:
            task.is_over = True
            if task.identity is not None and self.random.random() < 0.5:
                assert task.transaction is not None
                name = str(task.transaction)
                owner = self._try(task, EndTransaction(name, task.identity, commit=False))
                if isinstance(owner, ProducerIdentity):
                    assert self.given.setdefault(owner, name) == name, f"{owner} is given twice"
            return
        if task.transaction is None:
            state = self.ask(DescribeSink(SINK))
            assert isinstance(state, SinkState)
            if state.batch >= task.batch:
                task.is_drained = True
                self.counts["drained"] += 1
            else:
                task.transaction = SinkTransaction(
                    SINK, task.batch, state.generation, task.partition, f"{task.number:x}"
                )
            return
        name = str(task.transaction)
        if task.identity is None:
            reply = self._try(task, InitProducerId(name, TASK_TIMEOUT_MS))
            if isinstance(reply, ProducerIdReply):
                assert self.given.setdefault(reply.identity, name) == name, f"{reply.identity} is given twice"
                producer_id, epoch = reply.identity
                assert epoch > self.epochs.get(producer_id, -1), "epochs grow"
                self.epochs[producer_id] = epoch
                task.identity = reply.identity
        elif not task.has_written:
            partition = TopicPartition("t", task.partition)
            if self._try(task, AddPartitions(name, task.identity, frozenset({partition}))) is not False:
                task.has_written = True
                self.written.add(name)
        else:
            token = self._try(task, PrepareTransaction(name, task.identity))
            if isinstance(token, ProducerIdentity):
                task.token = task.transaction, token
                self.counts["prepared"] += 1
                if self.random.random() < 0.05:
                    # refused: only the decision of the batch can commit it
                    self._try(task, CompleteTransaction(name, token, commit=True))

    def _try(self, task: Task, request: object) -> object:
        """Return the answer, or False if the request was refused. A refusal ends the task unless the error is
        retriable."""
        try:
            return self.ask(request)
        except HeadraceError as error:
            self.counts[f"refused {type(request).__name__}: {error.code}"] += 1
            task.is_over |= not error.retriable
            return False

    def _mark(self) -> None:
        if self.markers:
            marker = self.markers.pop(self.random.randrange(len(self.markers)))
            name = marker.transactional_id
            self.outcomes.setdefault(name, set()).add(marker.commit)
            transaction = parse_sink_transaction(name)
            assert transaction is not None
            if marker.commit:
                assert name in self.decisions.get(transaction.batch, ()), f"{name} is committed without a decision"
            elif transaction.batch in self.decisions:
                assert name not in self.decisions[transaction.batch], f"{name} is decided, and aborted"
            self._commit(self.machine.handle(MarkersWritten(name, marker.identity, marker.partitions), self.now_ms))

    def _operate(self) -> None:
        open_ones = [name for name, each in self.machine.transactions.items() if each.state is TransactionState.ONGOING]
        if open_ones:
            with contextlib.suppress(CoordinatorLoadInProgressError):
                self._commit(self.machine.handle(AbortTransaction(self.random.choice(open_ones)), self.now_ms))
                self.counts["aborted by an operator"] += 1

    # -- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """From now on no failure occurs and no driver runs; the coordinator must end all open transactions."""
        self.drivers.clear()
        self.zombies.clear()
        for _ in range(100):
            while self.markers:
                self._mark()
            self.now_ms += SINK_TIMEOUT_MS
            self._commit(self.machine.tick(self.now_ms))

    def check(self) -> None:
        for batch, names in self.decisions.items():
            assert len({parse_sink_transaction(name).partition for name in names}) == len(names)  # type: ignore[union-attr]
            for name in names:
                assert self.outcomes.get(name) == {True}, f"batch {batch}: {name} has {self.outcomes.get(name)}"
        for name in self.written:
            assert len(self.outcomes.get(name, {False})) == 1, f"{name} is torn"
            assert True not in self.outcomes.get(name, ()) or any(name in names for names in self.decisions.values())
        for batch in self.answered:
            assert batch in self.decisions, f"batch {batch} was answered, and has no decision"
        assert not self.machine.transactions, "all ids are tombstoned"


HISTORIES, STEPS = 60, 500


def run(seed: int) -> SinkWorld:
    world = SinkWorld(seed)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world


def test_every_batch_is_committed_once_and_whole_or_not_at_all() -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    counts: collections.Counter[str] = collections.Counter()
    wanted = (
        "decisions",
        "answered",
        "repeated batches",
        "drained",
        "aborts",
        "append failed",
        "append cut off",
        "answers lost",
        "moves",
        "aborted by an operator",
        "refused decision: INVALID_TXN_STATE",
        "refused PrepareTransaction: PRODUCER_FENCED",
        "refused CompleteTransaction: INVALID_TXN_STATE",
    )
    for number in range(4 * HISTORIES):
        # (by chance, one in a hundred runs of HISTORIES had too few of the rarest)
        if number >= HISTORIES and all(counts[what] >= 10 for what in wanted):
            break
        counts.update(run(first + number).counts)
    happened = dict(counts)
    for what in wanted:
        assert counts[what] >= 10, f"{what} hardly happened: {happened}"


_Patch = Callable[[pytest.MonkeyPatch], None]


def _replaced(owner: object, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> _Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def _always(value: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda _: lambda *args, **named: value


def _an_epoch_back(self: Any, free: str | None) -> str | None:
    if free is not None:
        before = self.transactions[free]
        self.transactions[free] = before._replace(producer_epoch=before.producer_epoch - 1)
    return free


def _decides_again(commit: Callable[..., Any]) -> Callable[..., Any]:
    def later_decision_replaces_the_first(self: Any, request: CommitSinkBatch, now_ms: int) -> Any:
        record = self.sinks.get(request.sink)
        if record is not None and record.batch == request.batch:
            self.sinks[request.sink] = SinkRecord(request.batch - 1, record.generation)
        return commit(self, request, now_ms)

    return later_decision_replaces_the_first


MUTANTS: dict[str, _Patch] = {
    "a later decision replaces the first": lambda monkeypatch: monkeypatch.setitem(
        transactions._RULES, CommitSinkBatch, _decides_again(TransactionsStateMachine._commit_sink)
    ),
    "a decision names transactions that are not prepared": _replaced(
        TransactionsStateMachine, "_is_prepared", _always(True)
    ),
    "a new owner does not finish a decision": _replaced(
        TransactionsStateMachine,
        "loaded",
        lambda loaded: lambda self, now_ms: _without(self, lambda: loaded(self, now_ms)),
    ),
    "a transaction may be committed alone": _replaced(transactions, "has_ended_so", _always(False)),
    "a producer id keeps its epoch for the next task": _replaced(
        TransactionsStateMachine, "_free_id", lambda free_id: lambda self: _an_epoch_back(self, free_id(self))
    ),
    "prepared transactions wait for ever": _replaced(
        TransactionsStateMachine,
        "_watch",
        lambda watch: lambda self, name, each, now_ms: None if each.is_prepared else watch(self, name, each, now_ms),
    ),
}


def _without(machine: Any, loaded: Callable[[], Any]) -> Any:
    sinks, machine.sinks = machine.sinks, {}
    try:
        return loaded()
    finally:
        machine.sinks = sinks


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_sink_with_a_guard_less_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(AssertionError):
        collections.deque(map(run, range(300)), maxlen=0)
