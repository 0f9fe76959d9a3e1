"""The claim record, with which a coordinator takes over a shard (a partition of ``__consumer_offsets`` or
``__transaction_state``). Pure.

    key      int16 1000                                       one key, so compaction keeps the last claim only
    value    int16 version, msgpack [shard_epoch, coordinator_id, coordinator_epoch]

The claim is the coordinator's first append under the shard's new epoch. After the claim, the partition's leader refuses
appends with a shard epoch below the claim's epoch. Former owners can therefore add no records after the claim, and a
replay up to the claim is complete. The fields of a claim are for people who read the log; the epoch that fences is in
the batch's header (base_sequence).
"""

from __future__ import annotations

import msgspec

from headrace_core.errors import CorruptLogError

from ..state_machine import RecordKind, ShardRecord, kind_of

_KEY = int(RecordKind.CLAIM).to_bytes(2, "big")
_VERSION = 0


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a shard, and its epoch."""

    shard_epoch: int
    coordinator_id: int
    coordinator_epoch: int


def encode_claim(claim: Claim) -> ShardRecord:
    return ShardRecord(_KEY, _VERSION.to_bytes(2, "big") + msgspec.msgpack.encode(claim))


def is_claim(key: bytes) -> bool:
    return kind_of(key) == RecordKind.CLAIM


def decode_claim(value: bytes) -> Claim:
    """Raises CorruptLogError for an invalid claim. Later versions of the claim only add fields at the end, which this
    decoder skips."""
    try:
        return msgspec.msgpack.decode(value[2:], type=Claim)
    except msgspec.MsgspecError as error:
        raise CorruptLogError(f"cannot read the claim of a shard: {error}") from None
