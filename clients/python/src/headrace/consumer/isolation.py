"""Remove the batches of aborted transactions from fetched records, by headers, before any record is decoded. Pure.

The algorithm is Kafka's (KIP-98, CompletedFetch). A fetch result names every aborted transaction among its records by
producer id and first offset. From an aborted transaction's first offset up to the producer's ABORT marker, the
producer's transactional batches are skipped. Each fetch result names all of its aborted transactions, so the consumer
remembers nothing between two results.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import itemgetter

from headrace_core.errors import CorruptMessageError, InvalidRecordError
from headrace_core.records import ABORT, HEADER_BYTES, check_batch, decode_batch
from headrace_core.records.types import CONTROL_BIT, LENGTH_PREFIX_BYTES, TRANSACTIONAL_BIT

#: The fields of a batch header that the filter reads: base offset, batch length, attributes, last offset delta and
#: producer id. Decoding a whole BatchHeader takes ten times as long as reading the fields of _FIELDS.
_FIELDS = struct.Struct(">qi9xhi16xq")


def without_aborted(data: bytes, aborted: Iterable[tuple[int, int]], *, check_crc: bool) -> bytes:
    """``data`` (whole batches) without the batches of ``aborted``: (producer id, first offset) of each transaction.

    A damaged batch and all batches after it are kept: the decoder raises the error when it reaches that batch. With
    ``check_crc`` a removed batch counts as damaged if its CRC is wrong, since its header may name the wrong producer.
    """
    coming = sorted(aborted, key=itemgetter(1), reverse=True)
    skipping: set[int] = set()
    view = memoryview(data)
    kept: list[memoryview] = []
    kept_to = position = 0
    try:
        while position + HEADER_BYTES <= len(data) and (coming or skipping):
            base_offset, length, attributes, last_delta, producer_id = _FIELDS.unpack_from(data, position)
            end = position + LENGTH_PREFIX_BYTES + length
            if end < position + HEADER_BYTES or end > len(data):
                break
            while coming and coming[-1][1] <= base_offset + last_delta:
                skipping.add(coming.pop()[0])
            if producer_id in skipping:
                if attributes & CONTROL_BIT:
                    if _is_abort_marker(data, position, check_crc):
                        skipping.discard(producer_id)
                elif attributes & TRANSACTIONAL_BIT:
                    if check_crc:
                        check_batch(data, position)
                    kept.append(view[kept_to:position])
                    kept_to = end
            position = end
    except CorruptMessageError:
        pass
    return b"".join([*kept, view[kept_to:]]) if kept else data


def _is_abort_marker(data: bytes, position: int, check_crc: bool) -> bool:
    """Whether the control batch at ``position``, which is of a producer with an aborted transaction, is the
    transaction's ABORT marker. A control batch with a correct CRC and unreadable records ends no transaction, as in the
    broker. Without ``check_crc`` a damaged control batch counts as the marker: the next control batch of the producer
    can only be the marker."""
    try:
        records = decode_batch(data, position)
    except InvalidRecordError:
        return False
    except CorruptMessageError:
        if check_crc:
            raise
        return True
    key = records[0].key if records else None
    return key is not None and len(key) >= 4 and int.from_bytes(key[2:4], "big") == ABORT
