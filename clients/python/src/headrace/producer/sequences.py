"""The sequence numbers of an idempotent producer in one partition (KIP-98, KIP-360). Pure.

A batch gets its number (producer id, epoch, base sequence) at its first attempt. All attempts to send a batch use the
same number, so that the broker recognizes duplicates. A broker accepts only the next number: when a batch fails, the
batches in flight behind it are refused with OUT_OF_ORDER_SEQUENCE_NUMBER. The failed batch and the batches refused
behind it are retried, oldest first.

    state      batches in flight       left by
    probing    one                     an acknowledgement (flowing)
    flowing    five                    a failure, or a long silence (probing); an expired batch (broken)
    broken     only numbered ones      all numbers being settled: none was lost (probing), or some may be (renewing)
    renewing   none                    a new epoch, in which numbers begin at 0 (probing)

In the state "probing" one batch is in flight, because a broker accepts any number from an unknown producer. A broker
does not know a producer, for example, after the producer's records were deleted. With two batches in flight, a broker
that temporarily refused the first batch would accept the second one as the producer's first batch. After an
acknowledgement the broker knows the producer, so more batches may be in flight. A broker remembers the last five
batches of a producer, so at most five batches may be without an outcome.

**Invariant.** A batch that may have been written keeps its number until it has an outcome. With another number, the
batch could be in the log twice (KAFKA-18579). A batch gets a new number only if every attempt was refused.

**Gaps.** A batch is *given up* when its time is over or when an error is not retriable. The number of a given-up batch
may be missing in the log. Therefore no new batch is numbered until all batches behind the given-up batch have an
outcome. If the batch with the last number was acknowledged, no number is missing. If the batch with the last number was
not acknowledged, numbers restart at 0 in the next epoch. A new producer epoch fences requests of the old epoch that are
still in flight.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

B = TypeVar("B", bound=Hashable)

#: Maximum number of batches without an outcome in one partition: a broker remembers this many batches of a producer.
WINDOW = 5

#: Seconds of silence after which a broker may have forgotten a producer (producer.id.expiration.ms is a day by
#: default).
SILENCE_S = 600.0

_SEQUENCES = 2**31

_UNKNOWN_TO_BROKER = frozenset(("OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"))
_FENCED = "INVALID_PRODUCER_EPOCH"

#: Errors after which a batch may still be in the log, because the broker may have appended the batch before it returned
#: the error.
UNKNOWN_OUTCOMES = frozenset(
    (
        "REQUEST_TIMED_OUT",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "FENCED_BROKER",
        "KAFKA_STORAGE_ERROR",
        "SERVER_SHUTTING_DOWN",
        "UNKNOWN_SERVER_ERROR",
    )
)

#: Errors that say that the client's metadata are old, or may soon be.
STALE_METADATA = frozenset(
    (
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "KAFKA_STORAGE_ERROR",
        "FENCED_BROKER",
        "SERVER_SHUTTING_DOWN",
        "NETWORK_EXCEPTION",
    )
)

#: The error DUPLICATE_SEQUENCE_NUMBER means that the batch is certainly in the log.
DUPLICATE = "DUPLICATE_SEQUENCE_NUMBER"


class Identity(NamedTuple):
    producer_id: int
    epoch: int


class Stamp(NamedTuple):
    """Header fields of a batch; ``base_sequence`` is the sequence number of its first record, below 2^31."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class Verdict(Enum):
    """The ways to handle a failed batch."""

    RETRY = "retry with its number, if it has one"
    RENUMBER = "retry with a new number: it was certainly not written"
    FAIL = "fail: it was certainly not written"
    UNKNOWN = "fail: it may or may not have been written"


class _Number:
    __slots__ = ("count", "given_up", "identity", "maybe_written", "place", "sequence")

    def __init__(self, identity: Identity, place: int, sequence: int, count: int) -> None:
        self.identity = identity
        self.place = place  # the batch's number among all numbered batches
        self.sequence = sequence  # not wrapped
        self.count = count
        self.maybe_written = False
        self.given_up = False  # True: the batch has its outcome, but a response may still come


class PartitionSequences(Generic[B]):
    """The sequence numbers of one partition. ``B`` is the type of a batch. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self._retired_id: int | None = None
        self._numbers: dict[B, _Number] = {}  # oldest first
        self._next = 0
        self._places = 0
        self._acked = 0  # the sequence number after the last number that is certainly in the log
        self.is_broken = False  # a given-up batch may have left a gap: see ``regroup``
        self._is_lost = False  # the broker lacks an earlier batch: only a new epoch helps
        self._flowing_until = float("-inf")

    # --- sending ---------------------------------------------------------------------------------------------------

    def may_send(self, batch: B, in_flight: int, now: float) -> bool:
        """Whether the partition's next batch may be sent while ``in_flight`` other batches of the partition are in
        flight."""
        if in_flight and (in_flight >= WINDOW or now > self._flowing_until):
            return False
        if batch in self._numbers:
            return True
        if self.identity is None or self.is_broken:
            return False
        oldest = next(iter(self._numbers.values()), None)  # the broker must still remember it after one more batch
        return oldest is None or self._places - oldest.place < WINDOW

    def number(self, batch: B, count: int) -> Stamp:
        """Assign a number to a batch of ``count`` records that is about to be sent, the same number for each
        attempt."""
        found = self._numbers.get(batch)
        if found is None:
            assert self.identity is not None, "nothing is numbered without a producer id"
            assert not self.is_broken, "nothing new is numbered while a number may be missing"
            assert len(self._numbers) < WINDOW, "brokers remember no more batches than that"
            found = self._numbers[batch] = _Number(self.identity, self._places, self._next, count)
            self._next += count
            self._places += 1
        return Stamp(*found.identity, found.sequence % _SEQUENCES)

    # --- outcomes --------------------------------------------------------------------------------------------------

    def acknowledged(self, batch: B, now: float) -> None:
        number = self._numbers.pop(batch, None)
        if number is not None and number.identity == self.identity:
            self._acked = max(self._acked, number.sequence + number.count)
            self._flowing_until = now + SILENCE_S

    def failed(self, batch: B, code: str, *, retriable: bool, unknown: bool) -> Verdict:
        """Handle an attempt that failed with the error ``code``. ``unknown``: whether the batch may have been written
        in spite of the error.

        After RETRY the caller may still give up the batch (``give_up``). After FAIL and UNKNOWN the batch is given up.
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
                return Verdict.RETRY  # an earlier batch failed and must be sent first
            self.is_broken = self._is_lost = True
            if not number.maybe_written:
                del self._numbers[batch]
                return Verdict.RENUMBER
        elif code == _FENCED:
            self._is_lost = True
        elif retriable:
            return Verdict.RETRY
        del self._numbers[batch]
        self.is_broken = True
        return Verdict.UNKNOWN if number.maybe_written else Verdict.FAIL

    def give_up(self, batch: B, *, in_flight: bool) -> bool:
        """Give up a batch whose time is over: the batch gets its outcome at once. ``in_flight``: whether an attempt has
        no response yet. ``give_up`` returns whether the batch may have been written."""
        number = self._numbers.get(batch)
        if number is None:
            return False
        self.is_broken = number.given_up = True
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
        """Drop the numbers of given-up batches; call ``regroup`` when no batch is in flight. Returns the batches that
        must not be retried: they may have been written, and a retry would need a new number. ``regroup`` gives up the
        returned batches (UNKNOWN)."""
        if not self.is_broken:
            return []
        hopeless: list[B] = []
        for batch, number in list(self._numbers.items()):
            if self._is_lost or number.given_up:
                del self._numbers[batch]
                if not number.given_up and number.maybe_written:
                    hopeless.append(batch)
        if not self._is_lost and not self._numbers and self._acked == self._next:
            self.is_broken = False
        return hopeless

    @property
    def needs_identity(self) -> bool:
        """Whether a new producer id or epoch is needed to continue. Ask after ``regroup``."""
        return self.identity is None or (self.is_broken and not self._numbers)

    def renew(self, identity: Identity) -> None:
        """Restart the numbers from 0 with the new ``identity``."""
        assert identity != self.identity, "the old numbers are used up"
        assert not self._numbers, "what has a number keeps it"
        if self.is_broken or identity.producer_id != self._retired_id:
            self._flowing_until = float("-inf")
        self.identity = identity
        self._next = self._acked = 0
        self.is_broken = self._is_lost = False

    def retire(self) -> None:
        """Number no more batches until ``renew``: the transaction that used the identity has ended. The partition stays
        in the state "flowing", because a broker that knows the producer accepts only 0 as the first number of the next
        epoch."""
        if self.identity is not None:
            self._retired_id, self.identity = self.identity.producer_id, None
