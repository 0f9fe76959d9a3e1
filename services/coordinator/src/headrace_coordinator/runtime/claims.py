"""The claim: the record by which a coordinator takes a shard over. Pure.

    key      int16 1000                                       one key, so compaction keeps the last claim only
    value    int16 version, msgpack [shard_epoch, coordinator_id, coordinator_epoch]

Its append is the first under the new epoch: from then on the partition's leader refuses every smaller one. So the log
before it is all that former owners will ever have written, and a replay up to it is complete. The fields are for people
who read the log; the epoch that counts is in the batch's header (base_sequence).
"""

from __future__ import annotations

import msgspec

from headrace_core.errors import CorruptLogError

from ..state_machine import RecordKind, ShardRecord, kind_of

_KEY = int(RecordKind.CLAIM).to_bytes(2, "big")
_VERSION = 0


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Owner of the shard, and its epoch."""

    shard_epoch: int
    coordinator_id: int
    coordinator_epoch: int


def encode_claim(claim: Claim) -> ShardRecord:
    return ShardRecord(_KEY, _VERSION.to_bytes(2, "big") + msgspec.msgpack.encode(claim))


def is_claim(key: bytes) -> bool:
    return kind_of(key) == RecordKind.CLAIM


def decode_claim(value: bytes) -> Claim:
    """CorruptLogError: an invalid claim. Later versions only add fields at the end, which are skipped."""
    try:
        return msgspec.msgpack.decode(value[2:], type=Claim)
    except msgspec.MsgspecError as error:
        raise CorruptLogError(f"cannot read the claim of a shard: {error}") from None
