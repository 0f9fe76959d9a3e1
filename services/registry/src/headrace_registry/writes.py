"""The commands that wait for the writer, and the transactions whose outcome is not read yet. No I/O.

    submit --> waiting --take--> batch --sent--> in flight --applied--> committed: answered
                  ^                |                 |
                  +--- not_sent ---+                 +----------------> aborted: waiting again, or refused

A batch is decided on a draft of the image, one command after the other. A batch is in flight when its records have
offsets in the topic. The progress of the reader shows the outcome of the batch, because a transaction is atomic. If the
reader reads the last record of the batch, the transaction is committed. If it reads a later record of the topic first,
the transaction is aborted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.errors import RecordTooLargeError

from .state import Decision, Image

T = TypeVar("T")

#: Maximum number of records and bytes in one batch. The last command of a batch may exceed these limits.
BATCH_RECORDS_MAX = 500
BATCH_BYTES_MAX = 512 * 1024


class NotWriterError(Exception):
    """This replica is not the writer, and refuses a write. ``url``: URL of the writer; None if no writer is known."""

    def __init__(self, url: str | None) -> None:
        super().__init__(f"this replica is not the writer; the writer is {url or 'unknown'}")
        self.url = url


@dataclass(slots=True, eq=False)
class Command(Generic[T]):
    """A write of a client. ``result``: the decision on a draft; valid only once the draft's records are
    committed."""

    decide: Callable[[Image], Decision[T]]
    outcome: asyncio.Future[T]
    result: T | Exception | None = None

    def settle(self) -> None:
        """Pass the result to the caller, unless the caller has left."""
        if self.outcome.done():
            return
        if isinstance(self.result, Exception):
            self.outcome.set_exception(self.result)
        else:
            self.outcome.set_result(self.result)  # type: ignore[arg-type]

    def refuse(self, error: Exception) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


@dataclass(slots=True, eq=False)
class Batch:
    """Commands that were decided together, and their records. The records go into one transaction."""

    commands: list[Command[Any]] = field(default_factory=list)
    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """A batch whose last record has the offset ``last``. ``is_committed``: the outcome of the batch's transaction, once
    the reader knows the outcome."""

    last: int
    is_committed: asyncio.Future[bool]
    commands: list[Command[Any]]


class Writes:
    """The commands of one replica. ``record_bytes_max``: limit of a record's key and value together."""

    def __init__(self, record_bytes_max: int) -> None:
        self.record_bytes_max = record_bytes_max
        self._waiting: deque[Command[Any]] = deque()
        self._in_flight: deque[InFlightBatch] = deque()
        self._refusal: NotWriterError | None = None

    def accept(self) -> None:
        """Let commands wait until this replica is the writer."""
        self._refusal = None

    def refuse(self, error: NotWriterError) -> None:
        """Refuse the waiting commands, and from now on commands of aborted transactions. The commands of a transaction
        with an unknown outcome wait until the reader has passed the transaction's offsets."""
        self._refusal = error
        waiting, self._waiting = self._waiting, deque()
        for command in waiting:
            command.refuse(error)

    def submit(self, decide: Callable[[Image], Decision[T]]) -> asyncio.Future[T]:
        """Queue a command; the future gets its answer or its error."""
        command = Command(decide, asyncio.get_running_loop().create_future())
        self._waiting.append(command)
        command.outcome.add_done_callback(lambda _: self._forget(command))
        return command.outcome

    def _forget(self, command: Command[Any]) -> None:
        """Drop a command whose caller has left. While there is no quorum or no coordinator, the command could otherwise
        wait for a batch for a long time."""
        if command in self._waiting:
            self._waiting.remove(command)

    def take(self, image: Image, next_offset: int) -> Batch | None:
        """Decide waiting commands, up to the limits of a batch; returns None if no command waits. ``next_offset``:
        offset after the last record in ``image``. If no command of a batch needs a record, all commands of the batch
        are answered at once."""
        while self._waiting:
            batch = self._decided(image, next_offset)
            if batch.records:
                return batch
            for command in batch.commands:
                command.settle()
        return None

    def _decided(self, image: Image, next_offset: int) -> Batch:
        batch, draft, size = Batch(), image.draft(), 0
        while self._waiting and len(batch.records) < BATCH_RECORDS_MAX and size < BATCH_BYTES_MAX:
            command = self._waiting.popleft()
            if command.outcome.done():  # the caller timed out while the command waited
                continue
            batch.commands.append(command)
            try:
                decision = command.decide(draft)
                self._check(decision.records)
            except Exception as error:  # noqa: BLE001 - also a bug in one command must not stop the others
                command.result = error
                continue
            command.result = decision.answer
            for key, value in decision.records:
                draft.apply(key, value, next_offset + len(batch.records))
                batch.records.append((key, value))
                size += len(key) + len(value or b"")
        return batch

    def _check(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in records:
            if (size := len(key) + len(value or b"")) > self.record_bytes_max:
                raise RecordTooLargeError(
                    f"the schema's record has {size} bytes, and the topic accepts at most {self.record_bytes_max}; "
                    "raise max.message.bytes of the topic and restart the registry"
                )

    def not_sent(self, batch: Batch) -> None:
        """Called when the transaction of the batch ended without a commit: decide its commands again, before all
        others."""
        self._again(batch.commands)

    def sent(self, batch: Batch, last: int) -> InFlightBatch:
        """Called when the batch's records have offsets, before the commit. ``last``: offset of the last record."""
        in_flight = InFlightBatch(last, asyncio.get_running_loop().create_future(), batch.commands)
        self._in_flight.append(in_flight)
        return in_flight

    def applied(self, offset: int) -> None:
        """Called when the reader has applied the committed record at ``offset``."""
        while self._in_flight and self._in_flight[0].last <= offset:
            in_flight = self._in_flight.popleft()
            is_committed = in_flight.last == offset
            if not in_flight.is_committed.done():
                in_flight.is_committed.set_result(is_committed)
            if is_committed:
                for command in in_flight.commands:
                    command.settle()
            else:
                self._again(in_flight.commands)

    def _again(self, commands: list[Command[Any]]) -> None:
        if self._refusal is not None:
            for command in commands:
                command.refuse(self._refusal)
        else:
            self._waiting.extendleft(each for each in reversed(commands) if not each.outcome.done())
