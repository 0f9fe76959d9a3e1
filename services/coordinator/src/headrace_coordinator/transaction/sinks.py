"""The records of exactly-once sinks in ``__transaction_state``, which commit the batches of the sinks. Pure.

    key      int16 1010 | sink id: string (see headrace_core.sinks)
    value    int16 version, then a msgpack array of the fields of SinkRecord; fields are only ever added at the end

Kafka's readers skip record kinds from 1000 on.

Each task of a sink writes its rows in a separate prepared transaction. The record of the sink commits a batch: it names
the transactions that are committed. All other transactions of the sink, up to the committed batch, are aborted. The
transactions of a sink are in the shard of the sink's record. One step of the state machine therefore writes the sink's
record first, and then the records that end the transactions. If the log lacks some of the records that end the
transactions, a new owner of the shard writes them.

The *generation* of a sink grows when a batch is aborted. A transaction of an older generation is never committed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace_core.errors import (
    CorruptLogError,
    HeadraceError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from headrace_core.sinks import NONCE_BYTES_MAX, SINK_BYTES_MAX, SinkTransaction, is_sink_id

from ..kafka_fields import FieldReader
from ..state_machine import RecordKind
from .codec import RECORD_BYTES_MAX
from .messages import CommitSinkBatch, CompleteTransaction, EndTransaction
from .state import ProducerIdentity

NO_BATCH = -1
_VERSION = 0
_KIND = int(RecordKind.SINK).to_bytes(2, "big")


class SinkRecord(msgspec.Struct, frozen=True, array_like=True):
    """``batch``: the last committed batch, NO_BATCH before the first commit. ``tokens``: the committed transactions of
    ``batch``, as (last part of the transactional id, producer id, epoch). ``generation``: a later commit may name only
    transactions of this generation. ``is_final``: no batch follows, so the record expires after
    transaction.sink.timeout.ms without use; without ``is_final``, after transactional.id.expiration.ms without use."""

    batch: int = NO_BATCH
    generation: int = 0
    tokens: tuple[tuple[str, int, int], ...] = ()
    is_final: bool = False
    updated_ms: int = 0

    def is_over(self, transaction: SinkTransaction) -> bool:
        """Whether this record determines the transaction's outcome, by its committed batch or by a newer generation."""
        return transaction.batch <= self.batch or transaction.generation < self.generation

    def names(self, transaction: SinkTransaction, identity: ProducerIdentity) -> bool:
        """Whether the record's batch commits the transaction."""
        return transaction.batch == self.batch and (transaction.nonce, *identity) in self.tokens


#: The state of a sink that has no record yet.
NO_RECORD = SinkRecord()


def encode_sink_key(sink: str) -> bytes:
    name = sink.encode()
    return _KIND + len(name).to_bytes(2, "big") + name


def decode_sink_key(key: bytes) -> str:
    """Return the sink id in a key of RecordKind.SINK. Raises CorruptLogError."""
    reader = FieldReader(key, 2, "the key of a sink")
    sink = reader.string(reader.int16())
    reader.end()
    return sink


def encode_sink_value(record: SinkRecord) -> bytes:
    return _VERSION.to_bytes(2, "big") + msgspec.msgpack.encode(record)


def decode_sink_value(value: bytes) -> SinkRecord:
    """Inverse of encode_sink_value. Raises CorruptLogError, and UnsupportedVersionError for a newer version."""
    version = int.from_bytes(value[:2], "big", signed=True)
    if version != _VERSION:
        raise UnsupportedVersionError(
            f"the record of a sink has version {version}, which this node does not know: upgrade this node"
        )
    try:
        return msgspec.msgpack.decode(value[2:], type=SinkRecord)
    except msgspec.MsgspecError as error:
        raise CorruptLogError(f"the value of a sink is damaged: {error}") from None


def checked_sink(sink: str) -> str:
    """Return ``sink`` if it is the id of a sink. Raises InvalidRequestError if ``sink`` is no id of a sink, or is too
    long."""
    if not is_sink_id(sink):
        raise InvalidRequestError(
            f"{sink!r:.200} is not the id of a sink: an id has the form __headrace_sink/QUERY/TARGET"
        )
    size = len(sink.encode())
    if size > SINK_BYTES_MAX:
        raise InvalidRequestError(
            f"the id of the sink {sink[:100]!r}... has {size} bytes, at most {SINK_BYTES_MAX} are allowed: choose a "
            "shorter name of the query or application"
        )
    return sink


def check_names(transaction: SinkTransaction) -> None:
    """Check the lengths of the names in a transactional id of a sink. Raises InvalidRequestError."""
    checked_sink(transaction.sink)
    size = len(transaction.nonce.encode())
    if size > NONCE_BYTES_MAX:
        raise InvalidRequestError(
            f"the last part of the transactional id {str(transaction)[:200]!r}... has {size} bytes, at most "
            f"{NONCE_BYTES_MAX} are allowed: shorten it"
        )


def decided(request: CommitSinkBatch, record: SinkRecord, now_ms: int) -> SinkRecord:
    """Return the record that commits the batch of ``request``. Raises InvalidRequestError: a token belongs to another
    sink or batch, or there are too many tokens. ProducerFencedError: the request or a token has an older
    generation."""
    if request.generation not in (None, record.generation):
        raise ProducerFencedError(
            f"batch {request.batch} of {request.sink!r} was written under generation {request.generation}, but "
            f"its sink has generation {record.generation}: the batch was aborted meanwhile; write the batch again"
        )
    seen: set[int] = set()
    for transaction, _ in request.tokens:
        if (transaction.sink, transaction.batch) != (request.sink, request.batch):
            raise InvalidRequestError(
                f"token {str(transaction)!r} does not belong to batch {request.batch} of {request.sink!r}"
            )
        if transaction.partition in seen:
            raise InvalidRequestError(
                f"the request has two tokens for partition {transaction.partition} of batch {request.batch}"
            )
        seen.add(transaction.partition)
        if transaction.generation != record.generation:
            raise old_generation(transaction, record)
    tokens = tuple((transaction.nonce, *identity) for transaction, identity in request.tokens)
    made = SinkRecord(request.batch, record.generation, tokens, request.is_final, now_ms)
    if len(encode_sink_value(made)) > RECORD_BYTES_MAX:
        raise InvalidRequestError(
            f"batch {request.batch} of {request.sink!r} has {len(tokens)} tasks with rows, more than fit into a record "
            f"of {RECORD_BYTES_MAX} bytes: use fewer tasks (coalesce)"
        )
    return made


def check_open(transaction: SinkTransaction, record: SinkRecord) -> None:
    """Check that a later request may commit the transaction. Raises InvalidTxnStateError and ProducerFencedError."""
    if transaction.batch <= record.batch:
        raise InvalidTxnStateError(
            f"batch {transaction.batch} of {transaction.sink!r} is already committed (the last committed batch is "
            f"{record.batch}): do not write its rows again"
        )
    if transaction.generation != record.generation:
        raise old_generation(transaction, record)


def old_generation(transaction: SinkTransaction, record: SinkRecord) -> HeadraceError:
    return ProducerFencedError(
        f"transaction {str(transaction)!r} has generation {transaction.generation}, but its sink has generation "
        f"{record.generation}: batch {transaction.batch} was aborted meanwhile; write the batch again"
    )


def unprepared(transactions: Iterable[str]) -> HeadraceError:
    """Return the error for a commit that names transactions that are not prepared."""
    names = ", ".join(map(repr, list(transactions)[:3]))
    return InvalidTxnStateError(
        f"the transactions {names} are not prepared: an operator has aborted a transaction, or the batch was "
        "not committed within transaction.sink.timeout.ms; write the batch again"
    )


def has_ended_so(sink: SinkTransaction, record: SinkRecord, request: EndTransaction | CompleteTransaction) -> bool:
    """Whether a sink's transaction has already ended with the requested outcome. Raises InvalidTxnStateError if the
    transaction ended with the opposite outcome, or if the request would commit the transaction without its batch.
    Raises ProducerFencedError if the transaction's outcome is no longer known."""
    if not record.is_over(sink):
        if request.commit:
            raise InvalidTxnStateError(
                f"transaction {str(sink)!r} can be committed only together with its batch (CommitSinkBatch); "
                "an abort is possible, and makes the batch fail"
            )
        return False
    if sink.batch < record.batch:
        raise ProducerFencedError(
            f"transaction {str(sink)!r} has ended, and its outcome is no longer known: the sink has committed "
            f"the later batch {record.batch}"
        )
    is_committed = record.names(sink, request.identity)
    if is_committed != request.commit:
        raise InvalidTxnStateError(
            f"transaction {str(sink)!r} is already {'committed' if is_committed else 'aborted'} and cannot be changed"
        )
    return True
