"""A producer's transactions: the program's calls, and the requests to the coordinator. Runs on the I/O thread.

The leaders of partitions add their partitions to the transaction, so the producer asks the coordinator only to end the
transaction (transaction version 2, KIP-890). The producer sends a group's offsets to the group's coordinator (KIP-447).
A commit waits until every record is acknowledged. An abort does not wait: it drops the records without an
acknowledgement. The coordinator's answer contains a new identity, so brokers fence late batches of the dropped records.

The next transaction may begin as soon as the coordinator has answered, while the markers of the previous transaction
are written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_core.errors import (
    HeadraceError,
    IllegalStateError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
    TransactionAbortableError,
    TransactionAbortedError,
)
from headrace_core.plurals import counted
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import transactions_pb2

from ..engine.client import Engine
from ..engine.coordinators import ATTEMPT_TIMEOUT_S, GROUP_OFFSETS, TRANSACTIONS, Coordinators, raise_first
from ..engine.transactions import complete_transaction, token_of
from ..group.commits import GroupOffsets, next_number, none_in_flight
from ..models import OffsetAndMetadata, TransactionToken
from .sequences import Identity, PartitionSequences
from .transaction_state import Call, ProducerTransaction, State

if TYPE_CHECKING:
    from ..accumulator import SendBatch

logger = logging.getLogger("headrace")

#: The client's transaction version (KIP-890, part 2).
TRANSACTION_VERSION = 2

#: The states in which the end of a ``transaction()`` block, or the producer's close, aborts the transaction.
_OPEN_STATES = (State.OPEN, State.SEALED, State.FAILED, State.PREPARING, State.ABORTING)


class Transactions:
    """The transactions of one producer. Calls of the program run one after the other. ``hold(is_held)`` forbids or
    allows sends. ``flush()`` waits until every record has an outcome. ``drop(why)`` fails the records without an
    outcome. ``renewed()`` is called with each new identity. ``traceparent()`` returns the context of the program's
    current span; None without traces."""

    def __init__(
        self,
        engine: Engine,
        config: dict[str, Any],
        *,
        hold: Callable[[bool], None],
        flush: Callable[[], Awaitable[None]],
        drop: Callable[[Callable[[SendBatch], HeadraceError]], None],
        renewed: Callable[[], None],
        traceparent: Callable[[], str | None],
    ) -> None:
        self.transactional_id: str = config["transactional.id"]
        self.producer = ProducerTransaction(self.transactional_id)
        self.last_error: HeadraceError | None = None  # the last error, under the same name as in a ProducerIdentity
        self._engine = engine
        self._coordinators = Coordinators(engine, TRANSACTIONS)
        self._timeout_ms: int = config["transaction.timeout.ms"]
        self._max_block_s: float = config["max.block.ms"] / 1000
        self._hold, self._flush, self._drop, self._renewed = hold, flush, drop, renewed
        self._traceparent = traceparent
        self._group_coordinators = Coordinators(engine, GROUP_OFFSETS)
        self._lock = asyncio.Lock()
        #: The number of requests with consumer offsets that the producer has sent in the open transaction.
        self._offset_requests = 0
        #: The partitions in which the open transaction has batches with sequence numbers.
        self._numbered: list[PartitionSequences[SendBatch]] = []
        #: The number of transactions that the producer has begun.
        self._begun = 0
        #: The task that waits for the answer to a commit or an abort.
        self._ending: asyncio.Task[Any] | None = None
        #: Whether the program wants to keep a prepared transaction, also after an interrupted init.
        self._keep_prepared = False

    # --- the sender's identity -------------------------------------------------------------------------------------

    @property
    def current(self) -> Identity | None:
        return self.producer.identity

    def numbered(self, sequences: PartitionSequences[SendBatch]) -> None:
        """Note that a partition assigns its first sequence number in the open transaction."""
        self.producer.sent()
        self._numbered.append(sequences)

    def ask(self) -> None:
        """Fail the open transaction, because a partition needs a new producer epoch for its next batch, and only the
        next transaction has one."""
        self.record_failed(
            OutOfOrderSequenceNumberError("a sequence number is missing in a partition of the transaction")
        )

    def record_failed(self, error: HeadraceError) -> None:
        if self.producer.record_failed(error):
            self._hold(True)
            self._engine.io.loop.call_soon(self._drop, _aborted("an earlier record of its transaction failed", error))

    # --- calls of the program --------------------------------------------------------------------------------------

    async def init(self, *, keep_prepared: bool) -> TransactionToken | None:
        async with self._lock:
            self.producer.check(Call.INIT)
            self._keep_prepared = keep_prepared
            await self._init()
            return self.producer.token

    async def begin(self) -> int:
        """Begin a transaction, and return its number, for ``interruption``."""
        async with self._lock:
            self.producer.check(Call.BEGIN)
            if self.producer.state in (State.COMMITTING, State.ABORTING):
                await self._finish()
            elif self.producer.state is State.NEW:
                await self._init()
                if self.producer.token is not None:
                    self.producer.interrupted(Call.INIT, has_ended=True)
                    raise IllegalStateError(
                        f"a transaction of {self.transactional_id!r} is prepared: call "
                        "init_transactions(keep_prepared=True), which was interrupted, again, and complete its token"
                    )
            self.producer.begin()
            self._begun += 1
            self._offset_requests = 0
            self._hold(False)
            return self._begun

    async def send_offsets(self, sent: GroupOffsets) -> None:
        """Commit offsets in the open transaction. If the request fails, the transaction fails, because the coordinator
        may have only some of the offsets. A commit of the failed transaction would lose the offsets that the
        coordinator lacks."""
        async with self._lock:
            self.producer.check(Call.SEND_OFFSETS)
            try:
                if sent.refusal is not None:
                    raise sent.refusal
                await self._end_commits(sent)
                most = limit_of("Transactions/CommitTransactionOffsets", "offsets")
                for page in pages(list(sent.offsets.items()), most) if sent.offsets else ():
                    await self._send_offsets(sent, page)
            except HeadraceError as error:
                self.record_failed(error)
                self.producer.check(Call.SEND_OFFSETS)
                raise
            except BaseException:
                self.record_failed(RequestTimedOutError("send_offsets() was interrupted"))
                raise

    async def _end_commits(self, sent: GroupOffsets) -> None:
        """Wait for the consumer's commits in flight: one that arrived after the transaction's offsets would set the
        committed offsets back."""
        try:
            async with asyncio.timeout(self._max_block_s):
                await (none_in_flight(sent.group) if sent.end_auto_commits is None else sent.end_auto_commits())
        except TimeoutError:
            raise RequestTimedOutError(
                f"transactional id {self.transactional_id!r}: send_offsets() of group {sent.group.group_id!r}: timed "
                "out after max.block.ms waiting for an earlier commit of the consumer; check the coordinators with "
                "`headrace doctor`"
            ) from None

    async def _send_offsets(self, sent: GroupOffsets, page: Sequence[tuple[TopicPartition, OffsetAndMetadata]]) -> None:
        group = sent.group
        self.producer.sent()
        self._offset_requests += 1
        request = transactions_pb2.CommitTransactionOffsetsRequest(
            **self._who(),
            transaction_version=TRANSACTION_VERSION,
            group_id=group.group_id,
            member_id=group.member_id,
            member_epoch=group.generation_id,
            instance_id=group.group_instance_id,
            sequence=self._offset_requests,
            commit_sequence=next_number(group.member_id),
        )
        for tp, offset in page:
            request.offsets.add(
                topic=tp.topic,
                partition=tp.partition,
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
                topic_id=sent.topic_ids.get(tp, b""),
            )
        await self._group_coordinators.call(
            group.group_id,
            "CommitTransactionOffsets",
            request,
            self._engine.deadline(self._max_block_s),
            f"transactional id {self.transactional_id!r}: send_offsets() of group {group.group_id!r}",
            lambda answer: raise_first(answer.results, f"group {group.group_id!r}"),
            attempt_timeout_s=ATTEMPT_TIMEOUT_S,
            traceparent=self._traceparent(),
        )

    async def commit(self) -> None:
        async with self._lock:
            await self._commit()

    async def abort(self) -> None:
        async with self._lock:
            await self._abort()

    async def prepare(self) -> TransactionToken:
        async with self._lock:
            self.producer.check(Call.PREPARE)
            await self._seal()
            self.producer.prepares()
            request = transactions_pb2.PrepareTransactionRequest(**self._who())
            answer = await self._ask("PrepareTransaction", request, "prepare() (repeat it, or abort)")
            token = token_of(answer.token)
            self.producer.prepared(token)
            return token

    async def complete(self, token: TransactionToken, *, commit: bool) -> None:
        async with self._lock:
            if self.producer.completes(token, commit=commit):
                await self._end(commit=commit, wait_for_markers=True)
                return
        deadline = self._engine.deadline(self._max_block_s)
        await complete_transaction(
            self._coordinators, token, commit=commit, deadline=deadline, traceparent=self._traceparent()
        )

    async def leave(self, failure: BaseException | None) -> None:
        """End a ``transaction()`` block: commit, or abort because of ``failure``, which the caller raises again. If the
        commit fails, abort and raise the error of the commit. If another producer has taken the transactional id, raise
        the error that names this cause. If the block itself has ended or prepared the transaction, do nothing."""
        async with self._lock:
            state = self.producer.state
            if failure is None and state not in (State.READY, State.PREPARED, State.ABORTING):
                try:
                    await self._commit()
                except HeadraceError as error:
                    if self.producer.state in (State.FAILED, State.PREPARING):
                        await self._abort_after(error)
                    raise
            elif state in _OPEN_STATES:
                try:
                    await self._abort()
                except HeadraceError as error:
                    if self.producer.state is State.DEAD and isinstance(failure, TransactionAbortableError):
                        raise error from failure
                    text = f"the abort of the transaction of {self.transactional_id!r} failed, too: {error.message}"
                    if failure is not None:
                        failure.add_note(text)
                    logger.warning("%s", text)

    # --- calls that the program interrupts -------------------------------------------------------------------------

    def interruption(self, call: Call | None) -> Callable[[asyncio.Task[Any]], None]:
        """What happens when the program stops waiting for ``call`` (a timeout, Ctrl-C); None: the end of a block.

        A commit or abort that has been sent is finished in the background. Any other call is cancelled: a cancelled
        begin, abort or end of a block aborts the transaction, and cancelled offsets fail it. After a cancelled
        ``commit_transaction`` or ``prepare``, the program repeats the call, or aborts. The lock is fair, so the
        program's next call waits for all this."""
        number = self._begun

        def interrupted(task: asyncio.Task[Any]) -> None:
            io = self._engine.io
            if self._ending is not task:
                io.loop.call_soon(
                    task.cancel
                )  # after its first step, because a task that never began cleans up nothing
            io.spawn(self._clean_up(call, task, number), "headrace-interrupted")

        return interrupted

    async def _clean_up(self, call: Call | None, task: asyncio.Task[Any], number: int | None) -> None:
        async with self._lock:
            has_ended = task.done() and not task.cancelled() and task.exception() is None
            if call is Call.BEGIN and has_ended:
                number = task.result()
            if number != self._begun:
                return
            if call is Call.SEND_OFFSETS:
                self.record_failed(RequestTimedOutError("send_offsets() was interrupted"))
                return
            is_open = self.producer.state in _OPEN_STATES and self.producer.state is not State.ABORTING
            if is_open and (call in (None, Call.ABORT) or (call is Call.BEGIN and has_ended)):
                await self._abort_or_warn()
            self.producer.interrupted(call or Call.ABORT, has_ended=has_ended)

    async def close(self) -> None:
        """Abort the open transaction when the producer is closed, or finish an interrupted commit. A prepared
        transaction stays prepared."""
        async with self._lock:
            if self.producer.state in _OPEN_STATES:
                logger.warning(
                    "aborting the open transaction of %r: the producer is being closed", self.transactional_id
                )
                await self._abort_or_warn()
            elif self.producer.has_interrupted_commit:
                with contextlib.suppress(HeadraceError):
                    await self._finish()

    async def _abort_or_warn(self) -> None:
        try:
            await self._abort()
        except HeadraceError as error:
            logger.warning(
                "the abort of the open transaction of %r failed, so its coordinator aborts it after "
                "transaction.timeout.ms: %s",
                self.transactional_id,
                error.message,
            )

    # --- requests --------------------------------------------------------------------------------------------------

    async def _init(self) -> None:
        request = transactions_pb2.InitProducerRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            keep_prepared=self._keep_prepared,
        )
        answer = await self._ask("InitProducer", request, "init_transactions()")
        prepared = token_of(answer.prepared) if answer.HasField("prepared") else None
        self.producer.initialized(Identity(answer.producer_id, answer.producer_epoch), prepared)
        self._renewed()

    async def _commit(self) -> None:
        self.producer.check(Call.COMMIT)
        await self._seal()
        if self.producer.commits():
            await self._end(commit=True)

    async def _abort(self) -> None:
        asks = self.producer.aborts()
        self._hold(True)
        self._drop(_aborted("its transaction was aborted"))
        if asks:
            await self._end(commit=False)

    async def _finish(self) -> None:
        """Finish the abort or the interrupted commit of the last transaction."""
        try:
            await self._end(commit=self.producer.state is State.COMMITTING)
        except HeadraceError:
            if self.producer.state is not State.FAILED:
                raise
            await self._abort()

    async def _abort_after(self, error: HeadraceError) -> None:
        try:
            await self._abort()
        except HeadraceError as failure:
            if self.producer.state is State.DEAD:
                raise failure from error
            logger.warning("the abort failed; the next begin_transaction() repeats the abort: %s", failure.message)

    async def _seal(self) -> None:
        self.producer.seal()
        self._hold(True)
        if self.producer.state is State.SEALED:
            await self._flush()

    async def _end(self, *, commit: bool, wait_for_markers: bool = False) -> None:
        request = transactions_pb2.EndTransactionRequest(
            **self._who(), commit=commit, transaction_version=TRANSACTION_VERSION, wait_for_markers=wait_for_markers
        )
        what = "commit (it may have taken effect; repeat it)" if commit else "abort (begin_transaction() repeats it)"
        self._ending = asyncio.current_task()
        try:
            answer = await self._ask("EndTransaction", request, what)
        finally:
            self._ending = None
        self.producer.ended(Identity(answer.producer_id, answer.producer_epoch))
        for sequences in self._numbered:
            sequences.retire()
        self._numbered.clear()
        self._renewed()

    def _who(self) -> dict[str, Any]:
        assert self.producer.identity is not None
        producer_id, epoch = self.producer.identity
        return {"transactional_id": self.transactional_id, "producer_id": producer_id, "producer_epoch": epoch}

    async def _ask(self, method: str, request: Any, what: str) -> Any:
        try:
            return await self._coordinators.call(
                self.transactional_id,
                method,
                request,
                self._engine.deadline(self._max_block_s),
                f"transactional id {self.transactional_id!r}: {what}",
                attempt_timeout_s=ATTEMPT_TIMEOUT_S,
                traceparent=self._traceparent(),
            )
        except HeadraceError as error:
            self.producer.refused(error)
            raise


def _aborted(why: str, cause: HeadraceError | None = None) -> Callable[[SendBatch], HeadraceError]:
    """The error of a dropped batch."""
    detail = "" if cause is None else f": {cause.code}: {cause.message}"

    def error(batch: SendBatch) -> HeadraceError:
        queue = batch.queue
        return TransactionAbortedError(
            f"{queue.topic.name}-{queue.partition}: {counted(batch.count, 'record')} dropped: {why}{detail}"
        )

    return error
