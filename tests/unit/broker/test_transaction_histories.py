"""Random histories of transactions through a leader, and the same histories with one guard of the leader removed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import pytest

from headrace_broker import storage
from headrace_broker.handlers.transactions import MarkersStream
from headrace_broker.leader_replica import LeaderReplica, ProducerTransaction
from headrace_broker.partition.verification import Verifications
from headrace_coordinator.state_machine import Decision
from headrace_coordinator.transaction.messages import (
    AbortTransaction,
    AddPartitions,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    ProducerIdReply,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import PREPARING, ProducerIdentity, TransactionState
from headrace_coordinator.transaction.transactions import TransactionSettings, TransactionsStateMachine
from headrace_core.errors import ConcurrentTransactionsError, HeadraceError, InvalidProducerEpochError
from headrace_core.log import group, transactions
from headrace_core.log.producer_state import ProducerEntry
from headrace_core.log.transactions import Marker, TransactionalAppend
from headrace_core.log.turns import Turn
from headrace_core.log.writer import DirectoryWriter, _nothing
from headrace_core.records import decode_batch, encode_batch, read_header, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2
from tests.worlds.solo_broker import BROKER_ID, FakeStream, PlayedCoordinator, SoloBroker, Verification, produce

T = TypeVar("T")

#: The share of disk operations that would run on the directory's thread because the disk is slow.
ON_THREAD = 0.2
LOOP_TURNS_MAX = 4


class ThreadlessLoop(asyncio.SelectorEventLoop):
    """Runs a thread's work in the event loop, some iterations later. The same seed gives the same history."""

    def __init__(self, seed: object) -> None:
        super().__init__()
        self.rng = random.Random(f"threads {seed}")

    def later(self, act: Callable[[], object]) -> None:
        """Call ``act`` after some iterations of the loop."""
        self._wait(self.rng.randint(1, LOOP_TURNS_MAX), act)

    def _wait(self, turns: int, act: Callable[[], object]) -> None:
        self.call_soon(act if turns == 1 else lambda: self._wait(turns - 1, act))

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

        self.later(work)
        return future


class LaterThread:
    """Stands for one of the writer's threads: a turn writes some iterations of the loop later, and flushes after some
    more."""

    def __init__(self, writer: ThreadlessWriter) -> None:
        self._writer = writer

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def put(self, turn: Turn) -> None:
        self._writer._loop.later(lambda: self._writer.write_now(turn))


class ThreadlessWriter(DirectoryWriter):
    """The product's writer. The seed, and not the duration of a flush or the size of a turn, determines which turns run
    on the "thread". While a turn of appends is there, the next turns may run beside it."""

    _loop: ThreadlessLoop

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._thread = LaterThread(self)  # type: ignore[assignment]
        self._thread_beside = LaterThread(self)  # type: ignore[assignment]
        self._room_above_bytes = 0

    def write_now(self, turn: Turn) -> None:
        self._write(turn)
        if turn.written:
            self._loop.call_soon_threadsafe(self._tell_advanced, turn.written, _nothing)
        self._loop.later(lambda: self.flush_now(turn))

    def flush_now(self, turn: Turn) -> None:
        self._flush(turn)
        self._end_turn(turn)

    def _needs_thread(self, turn: Turn) -> bool:
        return super()._needs_thread(turn) or self._loop.rng.random() < ON_THREAD

    def _flush(self, turn: Turn) -> None:
        super()._flush(turn)
        turn.sync_ms = 0.0


def run_without_threads(seed: object, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Like ``asyncio.run(main())``."""
    with (
        mock.patch.object(storage, "DirectoryWriter", ThreadlessWriter),
        asyncio.Runner(loop_factory=lambda: ThreadlessLoop(seed)) as runner,
    ):
        return runner.run(main())


PARTITIONS = 2
TIMEOUT_MS = 1_000
EPOCH_MAX = 6


class QueuedMarker(NamedTuple):
    """A marker in transit to the leader."""

    wanted: WriteMarkers
    coordinator_epoch: int
    partition: TopicPartition


class Producer:
    """A producer's process. ``name`` is the name of the instance's open transaction, or "" if none is open."""

    def __init__(self, transactional_id: str, number: int) -> None:
        self.transactional_id = transactional_id
        self.number = number
        self.identity: ProducerIdentity | None = None
        self.name = ""
        self.transactions = 0
        self.values: list[str] = []
        self.sequences: dict[int, int] = {}
        self.unanswered = 0
        self.has_failed = False
        self.is_over = False


class TransactionsWorld:
    """A real leader and the real state machine of a coordinator. The network between them delays and repeats every
    message where the protocol's version allows it; coordinators change, and markers of former ones still arrive;
    transactions time out, replaced producers continue as zombies, leader epochs begin. After ``settle``, ``check``:
    each transaction has the outcome that its producer received, in all partitions; each record of a committed one is
    in the log once; none stays open in a log."""

    def __init__(self, broker: SoloBroker, seed: int, version: int) -> None:
        self.broker = broker
        self.version = version
        self.rng = random.Random(f"{seed} {version}")
        self.coordinator = PlayedCoordinator()
        broker.context.verifier = self.coordinator  # type: ignore[assignment]
        self.now_ms = 1_700_000_000_000
        self.counts: dict[str, int] = {}
        self._log: list[tuple[bytes, bytes | None]] = []
        self._coordinator_epoch = 0
        self._producer_ids = iter(range(100, 100_000))
        self.machine = self._loaded()
        self.producers = [Producer(f"id-{number}", 0) for number in range(3)]
        self._zombies: list[Producer] = []
        self._markers: list[QueuedMarker] = []
        self._marker_stream = FakeStream()
        self._marker_handler = MarkersStream(broker.context, self._marker_stream)  # type: ignore[arg-type]
        self._markers_sent: dict[int, QueuedMarker] = {}
        self._marker_number = 0
        self._answers: list[tuple[Verification, HeadraceError | None]] = []
        self._sent: list[Any] = []
        self._handler, self._stream = broker.producer()
        self._copies, _ = broker.producer()
        self._requests: dict[int, Producer] = {}
        self._ends: list[EndTransaction] = []
        self._committed: set[str] = set()

    # -- the coordinator ---------------------------------------------------------------------------------------------

    def _loaded(self) -> TransactionsStateMachine:
        """A new coordinator, of the next epoch."""
        self._coordinator_epoch += 1
        machine = TransactionsStateMachine(
            lambda: next(self._producer_ids),
            TransactionSettings(timeout_ms_max=TIMEOUT_MS, epoch_max=EPOCH_MAX),
        )
        for key, value in self._log:
            machine.replay(key, value, self.now_ms)
        self.machine = machine
        if self._coordinator_epoch > 1:
            self._decided(machine.loaded(self.now_ms))
        return machine

    def _decided(self, decision: Decision) -> object:
        self._log += [(record.key, record.value) for record in decision.records]
        for push in decision.pushes:
            if isinstance(push, WriteMarkers):
                self._markers += [QueuedMarker(push, self._coordinator_epoch, each) for each in sorted(push.partitions)]
        if isinstance(decision.reply, HeadraceError):
            raise decision.reply
        return decision.reply

    def ask(self, request: object) -> Any:
        return self._decided(self.machine.handle(request, self.now_ms))

    # -- steps -------------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        steps: list[tuple[float, Callable[[], None]]] = [
            (12.0, self._act),
            (4.0, self._verify),
            (4.0, self._answer),
            (3.0, self._deliver_marker),
            (0.5, self._send_copy),
            (0.15, self._replace),
            (0.2, self._time_out),
            (0.5, self._hand_over),
        ]
        if self.version >= 2:
            steps.append((0.3, self._end_late))
        if self.rng.random() < 0.01:
            self._count("leader epoch")
            await self._next_leader_epoch()
        (act,) = self.rng.choices([act for _, act in steps], [weight for weight, _ in steps])
        act()
        await self._turn()

    async def _turn(self) -> None:
        """Let the broker work, and read its answers."""
        for _ in range(self.rng.choice((1, 2, 8))):
            await asyncio.sleep(0)
        for answer in self._stream.sent:
            producer = self._requests.pop(answer.correlation_id)
            producer.unanswered -= 1
            if answer.results[0].error.code:
                self._count("refused")
                producer.has_failed = True
        self._stream.sent.clear()
        for answer in self._marker_stream.sent:
            marker = self._markers_sent.pop(answer.correlation_id)
            code = answer.results[0].error.code
            if marker.coordinator_epoch != self._coordinator_epoch:
                continue  # the answer is for a coordinator that no longer exists
            if code in (0, InvalidProducerEpochError.number):
                wanted = marker.wanted
                self.ask(MarkersWritten(wanted.transactional_id, wanted.identity, frozenset([marker.partition])))
            else:
                self._markers.append(marker)
        self._marker_stream.sent.clear()

    async def _next_leader_epoch(self) -> None:
        topic = self.broker.image.topic("t")
        assert topic is not None
        await self.broker.new_leader("t", BROKER_ID, topic.partitions[0].leader_epoch + 1)

    def _verify(self) -> None:
        """A verification reaches the coordinator."""
        if not self.coordinator.asked:
            return
        asked = self.coordinator.asked.pop(self.rng.randrange(len(self.coordinator.asked)))
        transactional_id, producer_id, epoch, version, _ = asked.what
        request = AddPartitions(
            transactional_id,
            ProducerIdentity(producer_id, epoch),
            frozenset([asked.partition]),
            version,
            verify_only=version < 2,
        )
        try:
            self.ask(request)
        except ConcurrentTransactionsError:
            self._count("concurrent")
            self.coordinator.asked.append(asked)  # the broker sends the request again
        except HeadraceError as error:
            self._answers.append((asked, error))
        else:
            self._answers.append((asked, None))

    def _answer(self) -> None:
        """The coordinator's answer reaches the leader."""
        if self._answers:
            asked, error = self._answers.pop(self.rng.randrange(len(self._answers)))
            asked.done(error)

    def _deliver_marker(self) -> None:
        if not self._markers:
            return
        marker = self._markers.pop(self.rng.randrange(len(self._markers)))
        if self.rng.random() < 0.3:
            self._count("repeated marker")
            if self.version >= 2:
                self._markers.append(marker)
            else:  # allowed only before the next transaction (KAFKA-17754)
                self._send_marker(marker)
        self._send_marker(marker)

    def _send_marker(self, marker: QueuedMarker) -> None:
        self._marker_number += 1
        number = self._marker_number
        self._markers_sent[number] = marker
        self._count("marker")
        request = transactions_pb2.WriteMarkersRequest(
            correlation_id=number,
            producer_id=marker.wanted.identity.producer_id,
            producer_epoch=marker.wanted.identity.epoch,
            commit=marker.wanted.commit,
            transaction_version=self.version,
            coordinator_epoch=marker.coordinator_epoch,
            partitions=[groups_pb2.PartitionName(topic="t", partition=marker.partition.partition)],
        )
        self._marker_handler.on_request(transactions_pb2.WriteMarkersRequests(requests=[request]))

    def _send_copy(self) -> None:
        """A produce request arrives again, late."""
        if self._sent:
            self._copies.on_request(self.rng.choice(self._sent))

    def _end_late(self) -> None:
        """An EndTransaction arrives again, perhaps beyond the next transaction (KAFKA-17754)."""
        if self._ends:
            self._count("late end")
            try:
                self.ask(self.rng.choice(self._ends))
            except HeadraceError:
                return

    def _replace(self) -> None:
        """A new process takes a transactional id; the former process continues as a zombie."""
        index = self.rng.randrange(len(self.producers))
        old = self.producers[index]
        if old.identity is not None:
            self._zombies = [*self._zombies[-2:], old]
            self.producers[index] = Producer(old.transactional_id, old.number + 1)

    def _time_out(self) -> None:
        self.now_ms += TIMEOUT_MS
        self._count("time-out")
        self._decided(self.machine.tick(self.now_ms))

    def _hand_over(self) -> None:
        self._count("hand-over")
        self._loaded()

    # -- producers ---------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        producer = self.rng.choice([*self.producers, *self.producers, *self._zombies])
        if producer.is_over:
            if producer in self.producers:
                self.producers[self.producers.index(producer)] = Producer(
                    producer.transactional_id, producer.number + 1
                )
            return
        try:
            self._act_as(producer)
        except ConcurrentTransactionsError:
            self._count("concurrent")
        except HeadraceError:
            producer.is_over = True

    def _act_as(self, producer: Producer) -> None:
        if producer.identity is None:
            reply: ProducerIdReply = self.ask(InitProducerId(producer.transactional_id, TIMEOUT_MS))
            producer.identity = reply.identity
        elif not producer.name:
            producer.transactions += 1
            producer.name = f"{producer.transactional_id}/{producer.number}/{producer.transactions}"
            producer.values, producer.has_failed = [], False
        elif len(producer.values) < 5 and not producer.has_failed and self.rng.random() < 0.75:
            self._send(producer)
        elif producer.values and (not producer.unanswered or producer.has_failed):
            self._end(producer)
        elif producer.unanswered and self.rng.random() < 0.2:
            producer.has_failed = True  # the producer stops waiting

    def _send(self, producer: Producer) -> None:
        assert producer.identity is not None
        partition = self.rng.randrange(PARTITIONS)
        if self.version < 2:
            self.ask(
                AddPartitions(
                    producer.transactional_id, producer.identity, frozenset([TopicPartition("t", partition)]), 1
                )
            )
        value = f"{producer.name}:{len(producer.values)}"
        sequence = producer.sequences.get(partition, 0)
        records = encode_batch(
            [(1000, None, value.encode(), [])],
            producer_id=producer.identity.producer_id,
            producer_epoch=producer.identity.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = produce(len(self._sent), "t", records, partition)
        request.transactional_id, request.transaction_version = producer.transactional_id, self.version
        producer.values.append(value)
        producer.sequences[partition] = sequence + 1
        producer.unanswered += 1
        self._requests[len(self._sent)] = producer
        self._sent.append(request)
        self._count("send")
        self._handler.on_request(request)

    def _end(self, producer: Producer) -> None:
        assert producer.identity is not None
        commit = not producer.has_failed and self.rng.random() < 0.7
        request = EndTransaction(producer.transactional_id, producer.identity, commit, self.version)
        identity: ProducerIdentity = self.ask(request)
        self._ends.append(request)
        self._count("commit" if commit else "abort")
        if commit:
            self._committed.update(producer.values)
        if identity != producer.identity or producer.has_failed:
            producer.sequences = {}
        if identity == producer.identity and producer.has_failed:  # version 1: the sequences are unknown
            producer.is_over = True
        producer.identity, producer.name = identity, ""

    # -- the end -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Deliver everything, and end every transaction."""
        self.producers, self._zombies = [], []
        for _ in range(2_000):
            for transactional_id, transaction in list(self.machine.transactions.items()):
                if transaction.state is TransactionState.ONGOING:
                    self.ask(AbortTransaction(transactional_id))
            self._verify()
            self._answer()
            self._deliver_marker()
            await self._turn()
            waiting = self._markers, self._markers_sent, self.coordinator.asked, self._answers, self._requests
            if not any(waiting) and not self._unfinished():
                return
        raise AssertionError("the simulated nodes still have work after the maximum number of rounds")

    def check(self) -> None:
        committed: list[str] = []
        written: list[str] = []
        for number in range(PARTITIONS):
            replica = self.broker.partitions.leader(TopicPartition("t", number))
            opened: dict[int, list[str]] = {}
            for header, values in _batches(replica.log):
                if header.is_control:
                    ended = opened.pop(header.producer_id, [])
                    if _is_commit(values):
                        committed += ended
                else:
                    texts = [value.decode() for value in values]
                    written += texts
                    opened.setdefault(header.producer_id, []).extend(texts)
            assert not opened, f"partition {number}: transactions stay open: {opened}"
            assert replica.last_stable_offset == replica.log.log_end_offset
        twice = sorted({value for value in written if written.count(value) > 1})
        assert not twice, f"written twice: {twice}"
        lost, wrong = self._committed.difference(committed), set(committed).difference(self._committed)
        assert not lost, f"committed and lost: {sorted(lost)}"
        assert not wrong, f"not committed, but visible: {sorted(wrong)}"

    def _unfinished(self) -> list[str]:
        return [
            transactional_id
            for transactional_id, transaction in self.machine.transactions.items()
            if transaction.state in (TransactionState.ONGOING, *PREPARING)
        ]

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _batches(log: Any) -> list[tuple[Any, list[bytes]]]:
    found = []
    offset = 0
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20, log.log_end_offset)
        for span in split_batches(result.records):
            header = read_header(result.records, span.position)
            records = decode_batch(result.records, span.position)
            found.append((header, [(record.key if header.is_control else record.value) or b"" for record in records]))
        offset = result.next_offset
    return found


def _is_commit(keys: list[bytes]) -> bool:
    return keys[0][3] == 1


STEPS = 400


def history(seed: int, version: int, steps: int = STEPS) -> dict[str, int]:
    """Run and check a history; returns how often each event happened."""

    async def run() -> dict[str, int]:
        async with asyncio.timeout(120), SoloBroker(CrashingFileSystem(keep_trace=False)) as broker:
            await broker.topic("t", PARTITIONS)
            world = TransactionsWorld(broker, seed, version)
            for _ in range(steps):
                await world.step()
            await world.settle()
            world.check()
            return world.counts

    return run_without_threads(seed, run)


def test_a_seed_is_one_history() -> None:
    assert history(3, 2) == history(3, 2)
    assert history(3, 2) != history(4, 2)


@pytest.mark.parametrize("version", [1, 2])
def test_each_transaction_has_one_outcome_and_ends(version: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(12):
        counts.update(history(seed, version))
    assert min(counts[what] for what in ("commit", "abort", "hand-over", "time-out", "leader epoch")) > 5
    assert counts["marker"] > 100


_must_append = transactions.must_append


def _accept_late_markers(marker: Marker, entry: ProducerEntry | None, partition: TopicPartition) -> bool:
    """An equal epoch ends the open transaction also under version 2."""
    return _must_append(marker._replace(version=1), entry, partition)


def _accept_former_coordinators(marker: Marker, entry: ProducerEntry | None, partition: TopicPartition) -> bool:
    return _must_append(marker._replace(coordinator_epoch=1 << 30), entry, partition)


def _verify_nothing(self: LeaderReplica, append: Any, transaction: ProducerTransaction) -> bool:
    append.transaction = TransactionalAppend(transaction.version, is_verified=True)
    return True


def _cancel_nothing(self: Any, producer_id: int, last_epoch: int) -> list[Any]:
    return []


@pytest.mark.parametrize(
    ("place", "name", "guardless", "version"),
    [
        (group, "must_append", _accept_late_markers, 2),
        (group, "must_append", _accept_former_coordinators, 1),
        (LeaderReplica, "_is_verified", _verify_nothing, 2),
        (Verifications, "cancelled_by_marker", _cancel_nothing, 1),
    ],
)
def test_a_leader_without_a_guard_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, guardless: Callable[..., Any], version: int
) -> None:
    monkeypatch.setattr(place, name, guardless)
    for seed in range(60):
        try:
            history(seed, version)
        except AssertionError:
            return
    raise AssertionError(f"60 histories do not detect that {name} is replaced by {guardless.__name__}")
