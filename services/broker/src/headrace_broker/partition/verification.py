"""Transactional appends that wait until the coordinator has confirmed their transaction (KIP-890). Pure.

A leader appends a producer's first batch of a transaction only if the coordinator knows that the partition belongs to
the transaction. Without this knowledge of the coordinator, no marker would end the transaction in the partition. Under
version 2 the leader adds the partition to the transaction; under version 1 the producer has added the partition, and
the leader only verifies. A request to add or to verify a partition is called a verification. While a verification is
pending, the appends of its producer epoch wait in order; all other appends of the partition continue.

    from       to         when
    (none)     PENDING    the first append of a producer epoch arrives, and the log has no open transaction of it
    PENDING    VERIFIED   the coordinator has confirmed: the waiting appends continue, and later appends pass
    PENDING    (none)     the coordinator has refused, the time is over, or a marker arrived: the waiting appends fail
    VERIFIED   (none)     the last verified append has ended, so the log shows the open transaction; or a marker arrived

A marker cancels the verifications of the transaction that it ends. The coordinator may have answered a verification
before it wrote the marker. A batch after the marker would begin a transaction that no marker ends. The log checks each
batch again when it is appended (headrace_core.log.transactions).

Verifications are separate for each epoch of a producer: a client with a wrong epoch, which the coordinator will refuse,
does not disturb the producer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from headrace_core.errors import ServerBusyError

T = TypeVar("T")

#: Maximum number of appends of one producer epoch that wait in one partition.
WAITING_MAX = 64
#: Maximum number and bytes of waiting appends of a broker; see ``WaitingRoom``.
ROOM_APPENDS_MAX = 10_000
ROOM_BYTES_MAX = 16 * 1024 * 1024
#: Maximum number of producer epochs of one partition whose first sequences are remembered.
FIRST_SEQUENCES_MAX = 1_000


class WaitingRoom:
    """The waiting appends of a broker. A single append may be larger than ``bytes_max``."""

    __slots__ = ("appends", "appends_max", "bytes", "bytes_max")

    def __init__(self, appends_max: int = ROOM_APPENDS_MAX, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.appends_max = appends_max
        self.bytes_max = bytes_max
        self.appends = 0
        self.bytes = 0

    def enter(self, size: int) -> None:
        """Raises ServerBusyError."""
        if self.appends and (self.appends >= self.appends_max or self.bytes + size > self.bytes_max):
            raise ServerBusyError(
                f"too many appends wait for their transactions' coordinators ({self.appends}, with {self.bytes} "
                "bytes): nothing was written; retry"
            )
        self.appends += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        self.appends -= 1
        self.bytes -= size
        assert self.bytes >= 0, "more bytes left the room than entered it"


class Verification(Generic[T]):
    """The verification of one producer epoch in one partition."""

    __slots__ = ("appending", "epoch", "is_verified", "producer_id", "waiting")

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.is_verified = False
        self.waiting: deque[tuple[T, int]] = deque()  #: Waiting appends as (append, bytes), oldest first.
        self.appending = 0  #: Number of verified appends that have not ended.


class Verifications(Generic[T]):
    """The verifications of one partition under one leader epoch. The caller must call ``ended`` when an append has
    ended that ``confirmed`` returned or that the caller counted in ``appending``."""

    __slots__ = ("_first_sequences", "_of", "_room")

    def __init__(self, room: WaitingRoom) -> None:
        self._room = room
        #: The smallest sequence that each producer epoch has sent. Kept until a batch of the epoch is appended, or a
        #: marker arrives. The last producer epoch that sent a batch comes last.
        self._first_sequences: dict[tuple[int, int], int] = {}
        self._of: dict[tuple[int, int], Verification[T]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def find(self, producer_id: int, epoch: int) -> Verification[T] | None:
        return self._of.get((producer_id, epoch))

    def first_sequence(self, producer_id: int, epoch: int, sequence: int) -> int:
        """Record the sequence of an append that the log cannot assign to an open transaction. Returns the smallest
        sequence that the producer epoch has sent."""
        key = producer_id, epoch
        first = min(sequence, self._first_sequences.pop(key, sequence))
        if len(self._first_sequences) >= FIRST_SEQUENCES_MAX:
            del self._first_sequences[next(iter(self._first_sequences))]
        self._first_sequences[key] = first
        return first

    def wait(self, producer_id: int, epoch: int, append: T, size: int) -> Verification[T] | None:
        """Let the append wait for the verification of its producer epoch. Returns the verification if it is new: the
        caller then asks the coordinator, and calls ``confirmed`` or ``refused``. Raises ServerBusyError if too many
        appends wait, and then does not queue the append."""
        found = self._of.get((producer_id, epoch))
        if found is not None and len(found.waiting) >= WAITING_MAX:
            raise ServerBusyError(
                f"{WAITING_MAX} batches of producer {producer_id}, the maximum, already wait for the coordinator of "
                "its transaction; this batch was not written; retry"
            )
        self._room.enter(size)
        verification = found or Verification(producer_id, epoch)
        verification.waiting.append((append, size))
        if found is not None:
            return None
        self._of[producer_id, epoch] = verification
        return verification

    def confirmed(self, verification: Verification[T]) -> list[T]:
        """Called when the coordinator has confirmed the transaction. Returns the waiting appends, which now continue as
        verified appends; empty if the verification was cancelled."""
        verification.is_verified = True
        appends = self._leave(verification)
        verification.appending += len(appends)
        return appends

    def refused(self, verification: Verification[T]) -> list[T]:
        """Called when the coordinator has refused the verification, or did not answer in time. Returns the appends that
        must fail. The result is empty if the verification was cancelled."""
        self._forget(verification)
        return self._leave(verification)

    def ended(self, verification: Verification[T], *, is_appended: bool) -> None:
        """Record that a verified append has ended."""
        if is_appended:
            self._first_sequences.pop((verification.producer_id, verification.epoch), None)
        verification.appending -= 1
        if not verification.appending:
            self._forget(verification)

    def cancelled_by_marker(self, producer_id: int, last_epoch: int) -> list[T]:
        """Called before a marker is appended that ends transactions of epochs up to ``last_epoch``. Returns the appends
        that fail, because they wait for one of these transactions. Verifications of later epochs continue."""
        for key in [key for key in self._first_sequences if key[0] == producer_id and key[1] <= last_epoch]:
            del self._first_sequences[key]
        ended = [each for each in self._of.values() if each.producer_id == producer_id and each.epoch <= last_epoch]
        return list(self._cancelled(ended))

    def cancelled(self) -> list[T]:
        """Called when the leadership has ended: returns all waiting appends."""
        return list(self._cancelled(list(self._of.values())))

    def _cancelled(self, verifications: list[Verification[T]]) -> Iterator[T]:
        for each in verifications:
            self._forget(each)
            yield from self._leave(each)

    def _forget(self, verification: Verification[T]) -> None:
        key = verification.producer_id, verification.epoch
        if self._of.get(key) is verification:
            del self._of[key]

    def _leave(self, verification: Verification[T]) -> list[T]:
        waiting, verification.waiting = verification.waiting, deque()
        for _, size in waiting:
            self._room.leave(size)
        return [append for append, _ in waiting]
