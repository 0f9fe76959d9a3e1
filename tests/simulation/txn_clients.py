"""Models of producers and readers for the simulation of transactions. Each process runs as asyncio code on an event
loop of virtual time, so the simulator can kill, pause and resume the process.

A transactional id has one producer at a time, unless a fault starts a second producer. A producer follows the SDK's
rules: it initializes, sends batches with sequence numbers (from 0 in each epoch under version 2), waits for all
answers, and ends the transaction. A request without an answer is repeated. A producer writes its observations into the
history (``txn_checker``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.records import BatchBuilder, decode_batch, iterate_headers, read_header, without_aborted
from headrace_core.testing.clock import EPOCH_MS
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2
from tests.simulation.broker_loop import SimLoop
from tests.simulation.sim_checks import Violation
from tests.simulation.txn_checker import Reader, Result, Transacted
from tests.simulation.txn_hosts import Carriage

if TYPE_CHECKING:
    from headrace_broker.leader_replica import LeaderReplica
    from headrace_core.log import ReadResult
    from tests.simulation.txn_sim_world import TxnWorld

ANSWER_S = 0.35
#: A batch that is not acknowledged within this time fails its transaction (delivery.timeout.ms).
DELIVERY_S = 1.2
FETCH_BYTES = 1_500
#: Errors of a batch that fail its transaction. After an error of this list the producer aborts; the answer to the abort
#: shows whether the producer is fenced.
_FAILS_THE_TRANSACTION = frozenset(
    {
        "INVALID_PRODUCER_EPOCH",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TXN_STATE",
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "PRODUCER_FENCED",
        "TRANSACTION_ABORTABLE",
    }
)
#: Errors after which a batch is sent again, although they are not retriable in general.
_TRY_AGAIN = frozenset({"REQUEST_TIMED_OUT", "FENCED_BROKER", "CORRUPT_LOG"})


class Over(Exception):
    """Ends the producer's process."""


class Process:
    """A client's process; for ``SimLoop`` it is a host."""

    def __init__(self, world: TxnWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.number = next(world.numbers)
        self.rng = random.Random(f"{world.plan.seed} {name}")
        self.loop = SimLoop(self)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    def loop_delay_ms(self) -> float:
        return self.rng.uniform(0.02, 0.3)

    def turned(self) -> None:
        pass

    def task_failed(self, error: BaseException) -> None:
        self.world.stumbled(self, error)

    def kill(self) -> None:
        self.loop.die()

    def pause(self) -> None:
        self.loop.is_paused = True

    def resume(self) -> None:
        if self.loop.is_paused and not self.loop.is_dead:
            self.loop.resume()

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _within(self, seconds: float, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        """Send a request with ``begin``, and return its answer. Raises the error in the answer, and
        RequestTimedOutError."""
        answer: asyncio.Future[Any] = self.loop.create_future()

        def answered(outcome: Any) -> None:
            if answer.done():
                return
            if isinstance(outcome, HeadraceError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        begin(lambda outcome: self.loop.run(answered, outcome))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise RequestTimedOutError("no answer") from None

    def _carry(
        self, host: Any, deliver: Callable[[Any], None], answered: Callable[[Any], None], late: str, *, in_order: bool
    ) -> Callable[[Any], None]:
        """Deliver a request to a process, and return the function that delivers the answer. ``late``: the fault under
        which a copy arrives much later; ``in_order``: no copy and no delay (version 1)."""
        world, rng = self.world, self.rng
        life = host.life
        link = self.name, world.address_of(host)

        def back(outcome: Any) -> None:
            delay_ms = world.message_delay_ms((link[1], link[0]))
            if delay_ms is not None:
                world.scheduler.after(delay_ms, answered, outcome)

        def arrive() -> None:
            if host.life == life and host.loop is not None and not host.loop.is_dead:
                host.loop.run(deliver, back)

        if not host.is_up:
            world.scheduler.after(rng.uniform(0.2, 10.0), answered, NetworkError("connection refused"))
            return back
        delay_ms = world.message_delay_ms(link)
        if delay_ms is None:
            return back
        world.in_order(("client", *link, life), delay_ms, arrive)
        if in_order:
            return back
        if world.link_faults.is_on(late) and rng.random() < 0.6:
            world.count("link", late)
            world.scheduler.after(delay_ms + rng.choice([rng.uniform(5.0, 100.0), rng.uniform(20.0, 1_200.0)]), arrive)
        elif world.quality.doubling and rng.random() < world.quality.doubling:
            world.scheduler.after(delay_ms + rng.random() * 60.0, arrive)
        return back


class Producer(Process):
    """A producer process with a transactional id."""

    def __init__(self, world: TxnWorld, transactional_id: str, version: int, life: int) -> None:
        super().__init__(world, f"{transactional_id}.{life}")
        self.transactional_id = transactional_id
        self.version = version
        self.keeps_prepared = version > 1 and self.rng.random() < 0.5
        #: The next sequence number of each partition, for the present identity.
        self._sequences: dict[int, int] = {}
        self._identity = (-1, -1)
        self._count = 0
        self._current: Transacted | None = None
        #: Partitions that the producer has added to the open transaction (version 1).
        self._added: set[int] = set()
        self.must_stop = False
        self.prepares_next = False
        self.commits = 0

    def begin(self) -> None:
        self.loop.run(lambda: self.loop.create_task(self.run()))

    async def run(self) -> None:
        try:
            await self._init()
            while not self.must_stop:
                await self._transaction()
                await asyncio.sleep(self.rng.expovariate(1.0 / self.world.plan.rest_ms) / 1_000)
        except Over as why:
            self.world.count("producer", f"ends: {why}")
        self.world.producer_ended(self)

    # -- requests to the coordinator ---------------------------------------------------------------------------------

    async def _coordinator(self, method: str, request: Any) -> Any:
        """Call the coordinator until it answers; raises errors that are not retriable."""
        while True:
            try:
                return await self._within(
                    ANSWER_S, lambda answered: self.world.call_coordinator(self, method, request, answered)
                )
            except HeadraceError as error:
                self.world.count("refusal", error.code)
                if not error.retriable and error.code != "REQUEST_TIMED_OUT":
                    raise
            await asyncio.sleep(self.rng.uniform(0.005, 0.05))

    async def _init(self, expected: tuple[int, int] | None = None) -> None:
        """Initialize the producer, and use the new identity from now on. ``expected``: the present identity of this
        process, which keeps its producer id (KIP-360)."""
        request = transactions_pb2.InitProducerRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self.world.plan.timeout_ms,
            keep_prepared=self.keeps_prepared and expected is None,
        )
        if expected is not None:
            request.producer_id, request.producer_epoch = expected
        try:
            response = await self._coordinator("InitProducer", request)
        except HeadraceError as error:
            raise self._over(error) from None
        self._become((response.producer_id, response.producer_epoch))
        self.world.tell(self, f"is producer {self._identity[0]} with epoch {self._identity[1]}")
        if response.HasField("prepared"):
            self.world.count("transaction", "prepared one kept")
            token = response.prepared
            known = self.world.prepared.get((token.producer_id, token.producer_epoch))
            if known is None:
                raise Violation("prepared", f"the token of {self} is {token}, which no producer has prepared")
            self._current, commit = known
            await self._end(commit)

    def _over(self, error: HeadraceError) -> Over:
        if error.code == "PRODUCER_FENCED":
            self.world.checks.fenced(self)
        return Over(error.code)

    def _become(self, identity: tuple[int, int]) -> None:
        if identity != self._identity:
            if identity[0] != self._identity[0] and self._identity[0] >= 0:
                self.world.count("transaction", "new producer id")
            self._identity = identity
            self._sequences = {}

    async def _end(self, commit: bool) -> None:
        """End the open transaction, and take the identity of the next transaction. Raises Over."""
        transaction = self._current
        assert transaction is not None
        if commit and transaction.commit_asked is None:
            transaction.commit_asked = self.world.scheduler.now_ms
        request = transactions_pb2.EndTransactionRequest(
            transactional_id=self.transactional_id,
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            commit=commit,
            transaction_version=self.version,
            wait_for_markers=self.rng.random() < 0.1,
        )
        try:
            response = await self._coordinator("EndTransaction", request)
        except HeadraceError as error:
            self.world.count("end refused", error.code)
            if commit and error.code == "TRANSACTION_ABORTABLE":
                self.world.ended(transaction, Result.ABORTED)
                await self._end(False)
                return
            raise self._over(error) from None
        self.world.ended(transaction, Result.COMMITTED if commit else Result.ABORTED)
        self._current = None
        self.commits += commit
        self._become((response.producer_id, response.producer_epoch))

    # -- transactions ------------------------------------------------------------------------------------------------

    async def _transaction(self) -> None:
        world, rng, plan = self.world, self.rng, self.world.plan
        self._count += 1
        self._added = set()
        self._current = transaction = world.begun(f"{self.name}/{self._count}")
        if rng.random() < 0.15:
            await self._read_some(transaction)
        partitions = rng.sample(range(plan.partitions), rng.randrange(1, plan.partitions + 1))
        sending = []
        is_slow = rng.random() < 0.3
        for number in partitions:
            sending.append(self.loop.create_task(self._send(transaction, number)))
            if is_slow:
                await sending[-1]
                await asyncio.sleep(rng.expovariate(1.0 / 20.0) / 1_000)
        failures = [error for error in await asyncio.gather(*sending) if error is not None]
        if rng.random() < 0.08:
            await asyncio.sleep(rng.uniform(0.0, 1.2 * plan.timeout_ms) / 1_000)
        for error in failures:
            world.count("send failed", error.code)
        if failures:
            # (A batch whose outcome is unknown may be written later, until the transaction ends.)
            await self._end(False)
            if self.version < 2:
                await self._init(self._identity)
            return
        if self.version > 1 and (self.prepares_next or rng.random() < plan.prepares):
            self.prepares_next = False
            await self._prepare(transaction)
        else:
            await self._end(rng.random() >= plan.aborts)

    async def _send(self, transaction: Transacted, number: int) -> HeadraceError | None:
        """Send the batches of a transaction to a partition, up to two at a time. Returns the error that fails the
        transaction."""
        if self.version < 2:
            try:
                await self._add_partition(number)
            except HeadraceError as error:
                return error
        flying: list[asyncio.Task[HeadraceError | None]] = []
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            flying.append(self.loop.create_task(self._send_batch(transaction, number)))
            await asyncio.sleep(self.rng.choice([0.0, 0.002, 0.01]))
            if self.rng.random() < 0.5:
                await flying[-1]
        return next((error for error in await asyncio.gather(*flying) if error is not None), None)

    async def _send_batch(self, transaction: Transacted, number: int) -> HeadraceError | None:
        world, count = self.world, self.rng.choice([1, 1, 2])
        values = [f"{transaction.name}-{len(transaction.sent) + index}" for index in range(count)]
        transaction.sent.update(dict.fromkeys(values, number))
        sequence = self._sequences.get(number, 0)
        self._sequences[number] = sequence + count
        builder = BatchBuilder(10_000)
        for value in values:
            builder.append(EPOCH_MS, None, value.encode())
        producer_id, epoch = self._identity
        data = builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        until_s = self.loop.time() + DELIVERY_S
        leader = world.leader_of(number)
        while True:
            try:
                result = await self._within(ANSWER_S, partial(self._produce, leader, number, data))
            except HeadraceError as error:
                world.count("refusal", error.code)
                failure = error
                if error.code in _FAILS_THE_TRANSACTION:
                    return failure
                if not error.retriable and error.code not in _TRY_AGAIN:
                    raise Violation("producers", f"{self} receives {error!r}") from None
            else:
                transaction.acknowledged.update(values)
                world.checks.acknowledged_in_transaction(number, values, result.base_offset)
                return None
            if self.loop.time() >= until_s:
                return failure
            await asyncio.sleep(self.rng.uniform(0.01, 0.04))
            leader = world.leader_of(number)

    def _produce(self, leader: int, number: int, data: bytes, answered: Callable[[Any], None]) -> None:
        world, host = self.world, self.world.host_of(leader)
        if host is None:
            world.scheduler.after(10.0, answered, NetworkError("there is no leader"))
            return
        partition = TopicPartition("orders", number)

        def deliver(back: Callable[[Any], None]) -> None:
            if host.broker is not None:
                produce_in_transaction(host.broker, partition, data, self.transactional_id, self.version, back)

        self._carry(host, deliver, answered, "produce_late", in_order=self.version < 2)

    async def _add_partition(self, number: int) -> None:
        """Ask the coordinator to add a partition, as clients of version 1 do."""
        request = transactions_pb2.AddPartitionsRequest(
            transactional_id=self.transactional_id,
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            transaction_version=1,
            partitions=[groups_pb2.PartitionName(topic="orders", partition=number)],
        )
        while True:
            try:
                answer = await self._within(ANSWER_S, lambda answered: self._carry_addition(request, answered))
                if not answer.error.code:
                    return
                error: HeadraceError = self.world.error_of(answer.error)
            except HeadraceError as failure:
                error = failure
            if not error.retriable and error.code != "REQUEST_TIMED_OUT":
                raise error
            await asyncio.sleep(self.rng.uniform(0.005, 0.05))

    def _carry_addition(self, request: Any, answered: Callable[[Any], None]) -> None:
        address = self.world.coordinator_address(self.transactional_id)
        if address is None:
            self.world.scheduler.after(10.0, answered, NetworkError("there is no coordinator"))
        else:
            Carriage(self, address, request, answered)

    async def _read_some(self, transaction: Transacted) -> None:
        """Read a few committed records, on which this transaction then depends."""
        world = self.world
        number = self.rng.randrange(world.plan.partitions)
        reader = world.readers[number]
        position = max(reader.reader.position - 10, 0)
        try:
            found = await reader.poll_as(self, number, position, committed=True)
        except HeadraceError:
            return
        transaction.read += [value for _, value in found[0]]
        world.count("transaction", "reads others' records")

    # -- prepared ----------------------------------------------------------------------------------------------------

    async def _prepare(self, transaction: Transacted) -> None:
        world, rng = self.world, self.rng
        commit = rng.random() >= world.plan.aborts
        world.prepared[self._identity] = transaction, commit
        request = transactions_pb2.PrepareTransactionRequest(
            transactional_id=self.transactional_id, producer_id=self._identity[0], producer_epoch=self._identity[1]
        )
        try:
            response = await self._coordinator("PrepareTransaction", request)
        except HeadraceError as error:
            world.count("prepare refused", error.code)
            # (The cause may also be a timeout that has aborted the transaction; the answer to the end of the
            # transaction shows the cause.)
            await self._end(False)
            return
        world.count("transaction", "prepared")
        token = (response.token.producer_id, response.token.producer_epoch)
        if rng.random() < 0.5 or world.link_faults.is_on("hand_over_prepared"):
            world.complete_elsewhere(self.transactional_id, token)
            if rng.random() < 0.6:
                self._current = None
                raise Over("has prepared")
        await asyncio.sleep(rng.expovariate(1.0 / 40.0) / 1_000)
        await self._end(commit)


class Completer(Process):
    """A client that completes a prepared transaction of another process by its token, one to three times."""

    def __init__(self, world: TxnWorld, transactional_id: str, token: tuple[int, int]) -> None:
        super().__init__(world, f"completer of {transactional_id} {token}")
        self.transactional_id = transactional_id
        self.token = token
        self.loop.run(lambda: self.loop.create_task(self._run()))

    async def _run(self) -> None:
        world = self.world
        transaction, commit = world.prepared[self.token]
        request = transactions_pb2.CompleteTransactionRequest(commit=commit, wait_for_markers=self.rng.random() < 0.5)
        request.token.transactional_id = self.transactional_id
        request.token.producer_id, request.token.producer_epoch = self.token
        await asyncio.sleep(self.rng.choice([0.0, 0.02, 0.2, 0.8, 1.5]))
        if commit and transaction.commit_asked is None:
            transaction.commit_asked = world.scheduler.now_ms
        for _ in range(self.rng.choice([1, 2, 3])):
            try:
                await self._until_answered(request)
            except HeadraceError as error:
                world.count("complete refused", error.code)
            else:
                world.count("transaction", "completed elsewhere")
                world.ended(transaction, Result.COMMITTED if commit else Result.ABORTED)
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        self.loop.die()

    async def _until_answered(self, request: Any) -> None:
        while True:
            try:
                await self._within(
                    1.0, lambda answered: self.world.call_coordinator(self, "CompleteTransaction", request, answered)
                )
                return
            except HeadraceError as error:
                if not error.retriable and error.code != "REQUEST_TIMED_OUT":
                    raise
            await asyncio.sleep(self.rng.uniform(0.01, 0.1))


class ReaderProcess(Process):
    """A reader of one partition from its start, with read_committed or read_uncommitted, at the leader or another
    replica."""

    def __init__(self, world: TxnWorld, number: int, *, committed: bool) -> None:
        super().__init__(world, f"{'committed' if committed else 'plain'} reader {number}")
        self.partition = number
        self.committed = committed
        self.reader = Reader(self.name, number)

    def begin(self) -> None:
        self.loop.run(lambda: self.loop.create_task(self.run()))

    async def run(self) -> None:
        while True:
            try:
                found, position = await self.poll_as(
                    self, self.partition, self.reader.position, committed=self.committed
                )
            except HeadraceError as error:
                self.world.count("read refused", error.code)
            else:
                now_ms = self.world.scheduler.now_ms
                self.reader.seen += [(now_ms, offset, value) for offset, value in found]
                self.reader.position = position
                self.world.count("read", "records" if found else "nothing")
            await asyncio.sleep(self.rng.uniform(0.01, 0.05))

    async def poll_as(
        self, process: Process, number: int, position: int, *, committed: bool
    ) -> tuple[list[tuple[int, str]], int]:
        """(offset, value) of the next records, and the next position."""
        world = self.world
        host = world.host_of(world.leader_of(number))
        if host is None or process.rng.random() < 0.3:
            host = process.rng.choice(world.hosts)
        target = host

        def deliver(back: Callable[[Any], None]) -> None:
            if target.broker is not None:
                fetch(target.broker, TopicPartition("orders", number), position, committed, back)

        found = await process._within(
            ANSWER_S, lambda answered: void(process._carry(target, deliver, answered, "", in_order=True))
        )
        if found is None:
            return [], position
        return values_of(found, position), max(found.next_offset, position)


def void(_: object) -> None:
    pass


def values_of(found: ReadResult, position: int) -> list[tuple[int, str]]:
    """(offset, value) of all records of producers from an offset on, without aborted transactions."""
    values = []
    aborted = [(each.producer_id, each.first_offset) for each in found.aborted]
    for part in without_aborted(found.records, aborted):
        for at, header in iterate_headers(part):
            if not header.is_control:
                values += [
                    (record.offset, bytes(record.value or b"").decode())
                    for record in decode_batch(part, at)
                    if record.offset >= position
                ]
    return values


def produce_in_transaction(
    broker: Any,
    partition: TopicPartition,
    data: bytes,
    transactional_id: str,
    version: int,
    reply: Callable[[Any], None],
) -> None:
    """Append as the Produce service does."""
    try:
        header = read_header(data)
        transaction = broker.verifier.transaction(transactional_id, header.producer_id, header.producer_epoch, version)
        replica: LeaderReplica = broker.partitions.leader(partition)
        broker.world.append(broker.host, replica, data, -1, broker.host.clock.now_ms(), reply, transaction=transaction)
        if replica._verifications is not None and len(replica._verifications):
            broker.world.count("transaction", "batch waits for its coordinator")
    except HeadraceError as error:
        reply(error)


def fetch(broker: Any, partition: TopicPartition, position: int, committed: bool, reply: Callable[[Any], None]) -> None:
    """Fetch as the Fetch service does, from any readable replica."""
    try:
        replica = broker.partitions.readable(partition)
        high_watermark = replica.reads.high_watermark
        end = replica.last_stable_offset if committed else high_watermark
        if end < high_watermark:
            broker.world.count("read", "held back by a transaction")
        if position >= end:
            reply(None)
            return
        found = replica.read(position, FETCH_BYTES, high_watermark, committed=committed)
        if found is not None:
            reply(found)
        elif getattr(replica, "leader", None) is None:
            reply(None)
        else:
            reading = replica.threads.run(
                partial(replica.read_cold, position, FETCH_BYTES, high_watermark, committed=committed)
            )
            reading.add_done_callback(lambda done: reply(done.exception() or done.result()))
    except HeadraceError as error:
        reply(error)
