"""The sequence numbers of an idempotent producer in one partition (KIP-98, KIP-360). Pure.

A batch gets its number (producer id, epoch, base sequence) when it is sent for the first time and keeps it for all its
tries, so that a broker knows a batch that it has. A broker takes the next number and nothing else: when one batch
fails, those in flight behind it are refused as OUT_OF_ORDER, and all are tried again, oldest first.

    state      how many on their way   left by
    probing    one                     an acknowledgement (flowing)
    flowing    five                    a failure, or a long silence (probing); a batch that is given up (broken)
    broken     only what has a number  all numbers being settled: none was lost (probing), or some may be (renewing)
    renewing   none                    a new epoch, in which numbers begin at 0 (probing)

Why one at first: a broker that knows nothing of a producer takes any number from it (its records may have been deleted
long ago). Were the first batch refused for a moment and the second one in flight, the second would be taken as the
first. After an acknowledgement the broker knows. It remembers the last five batches of a producer, so no more than five
are without an outcome.

**What is never done.** A batch that may have been written keeps its number or is given up: under another number it
could be in the log twice (KAFKA-18579). A new number is given only to what every try of was refused.

**Gaps.** A batch is *given up* when its time is over or its refusal is final. Its number may be missing in the log, so
nothing new is numbered until those behind it are settled. When the last number was acknowledged, the broker has all of
them, and no number is missing; otherwise numbers begin anew under the next epoch, which also fences what is still
somewhere on its way under the old one.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

B = TypeVar("B", bound=Hashable)

#: Batches of one partition without an outcome: so many a broker remembers of each producer.
WINDOW = 5

#: A broker may forget a producer that is silent for so long (seconds; producer.id.expiration.ms is a day by default).
SILENCE_S = 600.0

_SEQUENCES = 2**31

_UNKNOWN_TO_BROKER = frozenset(("OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"))
_FENCED = "INVALID_PRODUCER_EPOCH"

#: Answered so, a batch is in the log for sure.
DUPLICATE = "DUPLICATE_SEQUENCE_NUMBER"


class Identity(NamedTuple):
    """What InitProducerId gave."""

    producer_id: int
    epoch: int


class Stamp(NamedTuple):
    """What goes into the header of a batch; the sequence is that of its first record, below 2^31."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class Verdict(Enum):
    """What becomes of a batch that failed."""

    RETRY = "again, under its number if it has one"
    RENUMBER = "again, under a new number: it was surely not written"
    FAIL = "for good: it was surely not written"
    UNKNOWN = "for good: it may or may not have been written"


class _Number:
    __slots__ = ("count", "given_up", "identity", "maybe_written", "place", "sequence")

    def __init__(self, identity: Identity, place: int, sequence: int, count: int) -> None:
        self.identity = identity
        self.place = place  # among all batches that were numbered
        self.sequence = sequence  # not wrapped
        self.count = count
        self.maybe_written = False
        self.given_up = False  # it has its outcome; an answer may still come


class PartitionSequences(Generic[B]):
    """One partition's book. ``B`` is whatever stands for a batch. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self._numbers: dict[B, _Number] = {}  # oldest first
        self._next = 0
        self._places = 0
        self._acked = 0  # one past the last number that is known to be in the log
        self._is_broken = False
        self._is_lost = False  # the broker does not know what came before: only a new epoch helps
        self._flowing_until = float("-inf")

    # --- sending ---------------------------------------------------------------------------------------------------

    def may_send(self, batch: B, in_flight: int, now: float) -> bool:
        """May the partition's next batch go now, beside ``in_flight`` others of the partition?"""
        if in_flight and (in_flight >= WINDOW or now > self._flowing_until):
            return False
        if batch in self._numbers:
            return True
        return self.identity is not None and not self._is_broken and self._is_remembered()

    def number(self, batch: B, count: int) -> Stamp:
        """The number of a batch of ``count`` records that is about to be sent; the same each time."""
        found = self._numbers.get(batch)
        if found is None:
            assert self.identity is not None, "nothing is numbered without a producer id"
            assert not self._is_broken, "nothing new is numbered while a number may be missing"
            assert self._is_remembered(), "brokers remember no more batches than that"
            found = self._numbers[batch] = _Number(self.identity, self._places, self._next, count)
            self._next += count
            self._places += 1
        return Stamp(*found.identity, found.sequence % _SEQUENCES)

    def _is_remembered(self) -> bool:
        """Does the oldest batch without an outcome stay among the last five, when one more is numbered?"""
        oldest = next(iter(self._numbers.values()), None)
        return oldest is None or self._places - oldest.place < WINDOW

    # --- outcomes --------------------------------------------------------------------------------------------------

    def acknowledged(self, batch: B, now: float) -> None:
        """The batch is in the log."""
        number = self._numbers.pop(batch, None)
        if number is not None and number.identity == self.identity:
            self._acked = max(self._acked, number.sequence + number.count)
            self._flowing_until = now + SILENCE_S

    def failed(self, batch: B, code: str, *, retriable: bool, unknown: bool) -> Verdict:
        """A try of the batch failed with the error ``code``. ``unknown``: it may have been written nevertheless.

        The caller may still give up what is to be tried again (``give_up``). After FAIL and UNKNOWN it has.
        """
        self._flowing_until = float("-inf")
        number = self._numbers.get(batch)
        if number is None:
            return Verdict.RETRY if retriable else Verdict.FAIL
        number.maybe_written = number.maybe_written or unknown
        if number.given_up:
            del self._numbers[batch]
            return Verdict.UNKNOWN if number.maybe_written else Verdict.FAIL
        if unknown:
            if retriable:
                return Verdict.RETRY
        elif code in _UNKNOWN_TO_BROKER:
            if self._has_older(batch):
                return Verdict.RETRY  # that one failed, and comes first
            self._is_broken = self._is_lost = True
            if not number.maybe_written:
                del self._numbers[batch]
                return Verdict.RENUMBER
        elif code == _FENCED:
            self._is_lost = True
        elif retriable:
            return Verdict.RETRY
        del self._numbers[batch]
        self._is_broken = True
        return Verdict.UNKNOWN if number.maybe_written else Verdict.FAIL

    def give_up(self, batch: B, *, in_flight: bool) -> bool:
        """The batch's time is over: it gets its outcome now, whatever is answered later (``in_flight``: to a try that
        is under way). Returns whether it may have been written."""
        number = self._numbers.get(batch)
        if number is None:
            return False
        self._is_broken = number.given_up = True
        if not in_flight:
            del self._numbers[batch]
        return in_flight or number.maybe_written

    def _has_older(self, batch: B) -> bool:
        for other, number in self._numbers.items():
            if other == batch:
                return False
            if not number.given_up:
                return True
        return False

    # --- gaps ------------------------------------------------------------------------------------------------------

    def regroup(self) -> list[B]:
        """Nothing is in flight: forget what is settled. Returns the batches that may not be tried again, for they may
        have been written and could only go under a new number; they are given up (UNKNOWN)."""
        if not self._is_broken:
            return []
        hopeless: list[B] = []
        for batch, number in list(self._numbers.items()):
            if self._is_lost or number.given_up:
                del self._numbers[batch]
                if not number.given_up and number.maybe_written:
                    hopeless.append(batch)
        if not self._is_lost and not self._numbers and self._acked == self._next:
            self._is_broken = False
        return hopeless

    @property
    def needs_identity(self) -> bool:
        """It cannot go on without a (new) producer id or epoch. To be asked after ``regroup``."""
        return self.identity is None or (self._is_broken and not self._numbers)

    def renew(self, identity: Identity) -> None:
        """Number from 0 on under ``identity``, another one than before."""
        assert identity != self.identity, "the old numbers are used up"
        assert not self._numbers, "what has a number keeps it"
        self.identity = identity
        self._next = self._acked = 0
        self._is_broken = self._is_lost = False
        self._flowing_until = float("-inf")
