"""Messages of replication streams with positional fields: (handle, ...) as in replication.proto."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from headrace_broker.partition.push_stream import LIVE
from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_to_proto
from headrace_protos.v1.replication_pb2 import (
    FollowAck,
    FollowDivergence,
    FollowEnded,
    FollowHello,
    FollowJoin,
    FollowJoined,
    FollowOffsetsUpdate,
    FollowPush,
    FollowRequest,
    FollowTrace,
    ReplicationLane,
)

M = TypeVar("M", bound=Message)


def a_hello(
    cluster_id: str,
    broker_id: int,
    broker_epoch: int,
    leader_id: int,
    kind: ReplicationLane = LIVE,
    window_bytes: int = 32 << 20,
) -> FollowHello:
    return FollowHello(
        cluster_id=cluster_id,
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        leader_id=leader_id,
        lane=kind,
        window_bytes=window_bytes,
    )


def a_join(
    handle: int,
    topic_id: bytes,
    partition: int,
    leader_epoch: int,
    log_start: int,
    log_end: int,
    last_epoch: int,
    durable_end: int,
    window_bytes: int,
) -> FollowJoin:
    return FollowJoin(
        handle=handle,
        topic_id=topic_id,
        partition=partition,
        leader_epoch=leader_epoch,
        log_start=log_start,
        log_end=log_end,
        last_epoch=last_epoch,
        durable_end=durable_end,
        window_bytes=window_bytes,
    )


def an_ack(handle: int, durable_end: int, log_end: int, log_start: int) -> FollowAck:
    return FollowAck(handle=handle, durable_end=durable_end, log_end=log_end, log_start=log_start)


def a_request(
    joins: Iterable[FollowJoin] = (),
    leaves: Sequence[int] = (),
    acks: Iterable[FollowAck] = (),
    cannot_append: Iterable[int] = (),
) -> FollowRequest:
    return FollowRequest(joins=joins, leaves=leaves, acks=acks, cannot_append=cannot_append)


def a_divergence(epoch: int, end_offset: int) -> FollowDivergence:
    return FollowDivergence(epoch=epoch, end_offset=end_offset)


def an_answer(
    handle: int,
    error: HeadraceError | None = None,
    high_watermark: int = 0,
    log_start: int = 0,
    log_end: int = 0,
    diverging: FollowDivergence | None = None,
    out_of_range: bool = False,
    other_lane: bool = False,
    producers: bytes = b"",
) -> FollowJoined:
    """The leader's answer to a join."""
    return FollowJoined(
        handle=handle,
        error=error_to_proto(error),
        high_watermark=high_watermark,
        log_start=log_start,
        log_end=log_end,
        diverging=diverging,
        out_of_range=out_of_range,
        other_lane=other_lane,
        producers=producers,
    )


def follows(answer: FollowJoined) -> bool:
    """Whether the logs match, so that pushes follow."""
    return not (answer.error.code or answer.HasField("diverging") or answer.out_of_range or answer.other_lane)


def a_push(
    handle: int, records: bytes, high_watermark: int, log_start: int, traces: Iterable[FollowTrace] = ()
) -> FollowPush:
    return FollowPush(handle=handle, records=records, high_watermark=high_watermark, log_start=log_start, traces=traces)


def an_update(handle: int, high_watermark: int, log_start: int) -> FollowOffsetsUpdate:
    return FollowOffsetsUpdate(handle=handle, high_watermark=high_watermark, log_start=log_start)


def an_end(handle: int, error: HeadraceError | None = None, other_lane: bool = False) -> FollowEnded:
    return FollowEnded(handle=handle, error=error_to_proto(error), other_lane=other_lane)


def replaced(message: M, **fields: Any) -> M:
    """A copy of a message with other values of some fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy
