"""Encode and decode transactions as Kafka does, so that Kafka's tools can read ``__transaction_state``. Pure.

Sources: TransactionLogKey.json and TransactionLogValue.json of Kafka 4.3, and the bytes that Kafka's generated code
writes.

    key     int16 0 | transactional id: string
    value   int16 version
        0   producer id: int64 | epoch: int16 | timeout, ms: int32 | status: int8 | partitions | updated, ms: int64
            | started, ms: int64
        1   as 0, strings and arrays compact | tagged fields: 0 previous producer id: int64, 1 next producer id: int64,
            2 the client's transaction version: int16, 3 next epoch: int16
            and ours, which Kafka's readers skip: 1000 prepared: int8, 1001 last epoch: int16, 1002 age, ms: int64

    partitions   null in EMPTY; else topics: topic, its partitions: int32 each

A tagged field is left out of a record if the field has its default value.
"""

from __future__ import annotations

import struct

from headrace_core.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from headrace_core.types import TopicPartition

from ..kafka_fields import FieldReader, varint
from .state import BUMPING_VERSION, NO_EPOCH, NO_PRODUCER_ID, Transaction, TransactionState

TRANSACTION_KIND = 0  #: The kind of the key of a transaction's record: the number in the key's first two bytes.
ID_BYTES_MAX = 0x7FFF  #: Maximum bytes of a transactional id, because the length of a string is an int16.
#: Maximum bytes of a record's value; the coordinator refuses a transaction whose partitions do not fit into the record.
RECORD_BYTES_MAX = 512 * 1024
_PREPARED_TAG, _LAST_EPOCH_TAG, _OPEN_TAG = 1000, 1001, 1002

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")


def encode_key(transactional_id: str) -> bytes:
    """The record key of a transactional id. Raises InvalidRequestError if the id is too long for a key."""
    name = transactional_id.encode()
    if len(name) > ID_BYTES_MAX:
        raise InvalidRequestError(
            f"the transactional id has {len(name)} bytes, at most {ID_BYTES_MAX} are allowed: shorten the id"
        )
    return _INT16.pack(TRANSACTION_KIND) + _INT16.pack(len(name)) + name


def decode_key(key: bytes) -> str:
    """The transactional id of a key of TRANSACTION_KIND. Raises CorruptLogError if the bytes are not a key of a
    transactional id."""
    reader = FieldReader(key, 2, "the key of a transaction")
    transactional_id = reader.string(reader.int16())
    reader.end()
    return transactional_id


def encode_value(transaction: Transaction) -> bytes:
    """The record value of a transaction, in version 1."""
    head = _HEAD.pack(1, transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, transaction.state)
    times = _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    return head + _partitions(transaction) + times + _tagged_fields(transaction)


def _partitions(transaction: Transaction) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return varint(0)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in transaction.partitions:
        by_topic.setdefault(topic, []).append(partition)
    out = [varint(len(by_topic) + 1)]
    for topic in sorted(by_topic):
        name, partitions = topic.encode(), sorted(by_topic[topic])
        out += (varint(len(name) + 1), name, varint(len(partitions) + 1))
        out += (struct.pack(f">{len(partitions)}i", *partitions), varint(0))
    return b"".join(out)


def _tagged_fields(transaction: Transaction) -> bytes:
    fields = [
        (0, _INT64, transaction.previous_producer_id, NO_PRODUCER_ID),
        (1, _INT64, transaction.next_producer_id, NO_PRODUCER_ID),
        (2, _INT16, transaction.version, 0),
        (3, _INT16, transaction.next_producer_epoch, NO_EPOCH),
        (_PREPARED_TAG, _INT8, int(transaction.is_prepared), 0),
    ]
    out = [_tagged(tag, form, value) for tag, form, value, default in fields if value != default]
    if transaction.version >= BUMPING_VERSION or transaction.last_producer_epoch != NO_EPOCH:
        # Under version 2, write the last epoch even if it is -1. A reader takes a record without this field for Kafka's
        # record, and computes another last epoch.
        out.append(_tagged(_LAST_EPOCH_TAG, _INT16, transaction.last_producer_epoch))
    if transaction.open_ms:
        out.append(_tagged(_OPEN_TAG, _INT64, transaction.open_ms))
    return varint(len(out)) + b"".join(out)


def _tagged(tag: int, form: struct.Struct, value: int) -> bytes:
    return varint(tag) + varint(form.size) + form.pack(value)


def decode_value(value: bytes) -> Transaction:
    """Inverse of encode_value, for versions 0 and 1. Raises CorruptLogError, and UnsupportedVersionError for a value of
    a newer Kafka.

    Kafka does not write the last epoch of a transaction. Under transaction version 2, Kafka and this function take the
    present epoch minus 1 as the last epoch."""
    reader = FieldReader(value, 0, "the value of a transaction")
    form = reader.int16()
    if form not in (0, 1):
        raise UnsupportedVersionError(
            f"a transaction record has version {form}, which this node does not know: upgrade this node"
        )
    is_compact = form == 1
    producer_id, epoch, timeout_ms, status = reader.int64(), reader.int16(), reader.int32(), reader.int8()
    try:
        state = TransactionState(status)
    except ValueError:
        raise CorruptLogError(f"the record of a transaction is damaged: the status {status} is unknown") from None
    partitions: list[TopicPartition] = []
    for _ in range(reader.varint() - 1 if is_compact else reader.int32()):
        topic = reader.string(reader.varint() - 1 if is_compact else reader.int16())
        count = reader.varint() - 1 if is_compact else reader.int32()
        partitions += [TopicPartition(topic, reader.int32()) for _ in range(count)]
        if is_compact:
            list(reader.tagged())
    updated_ms, started_ms = reader.int64(), reader.int64()
    transaction = Transaction(producer_id, epoch, timeout_ms, state, frozenset(partitions), updated_ms, started_ms)
    if is_compact:
        transaction = _with_tagged_fields(transaction, reader)
    reader.end()
    return transaction


def _with_tagged_fields(transaction: Transaction, reader: FieldReader) -> Transaction:
    found: dict[int, int] = {}
    for tag, field in reader.tagged():
        if tag in _READ:
            found[tag] = _READ[tag](field)
            field.end()
    version = found.get(2, 0)
    last_epoch = found.get(_LAST_EPOCH_TAG, NO_EPOCH)
    if (
        _LAST_EPOCH_TAG not in found
        and version >= BUMPING_VERSION
        and transaction.state not in (TransactionState.EMPTY, TransactionState.ONGOING)
    ):
        has_new_id = transaction.state in _COMPLETE and transaction.producer_epoch == 0
        last_epoch = _KAFKA_LAST_EPOCH if has_new_id else transaction.producer_epoch - 1
    return transaction._replace(
        previous_producer_id=found.get(0, NO_PRODUCER_ID),
        next_producer_id=found.get(1, NO_PRODUCER_ID),
        version=version,
        next_producer_epoch=found.get(3, NO_EPOCH),
        is_prepared=bool(found.get(_PREPARED_TAG)),
        last_producer_epoch=last_epoch,
        open_ms=found.get(_OPEN_TAG, 0),
    )


_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_KAFKA_LAST_EPOCH = 32_766  #: The last epoch that Kafka assigns to a producer.
_READ = {
    0: FieldReader.int64,
    1: FieldReader.int64,
    2: FieldReader.int16,
    3: FieldReader.int16,
    _PREPARED_TAG: FieldReader.int8,
    _LAST_EPOCH_TAG: FieldReader.int16,
    _OPEN_TAG: FieldReader.int64,
}
