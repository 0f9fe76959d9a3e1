"""Convert the messages of a replication stream between protobuf and ``partition/messages.py``.

    request = hello_to_proto(Hello(...)) ; hello_of(request)          a stream's first request
    request = request_to_proto(Request(...)) ; request_of(request)    every later one
    response = response_to_proto(Response(...)) ; response_of(response)

Incoming messages are checked only for their shape (InvalidRequestError); LeaderLane and FollowerLane check their
meaning.
"""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidRequestError
from headrace_core.item_errors import error_to_proto
from headrace_core.rpc.status import error_of
from headrace_protos.v1 import replication_pb2

from ..partition.messages import (
    Ack,
    Divergence,
    Ended,
    Hello,
    Join,
    Joined,
    Lane,
    OffsetsUpdate,
    Push,
    PushTrace,
    Request,
    Response,
)

#: Maximum number of items in a request; a request with more items is invalid, because it would block the event loop for
#: seconds.
ITEMS_MAX = 200_000

_LANES = {
    Lane.LIVE: replication_pb2.REPLICATION_LANE_LIVE,
    Lane.CATCH_UP: replication_pb2.REPLICATION_LANE_CATCH_UP,
}
_LANES_OF = {number: lane for lane, number in _LANES.items()}


def hello_to_proto(hello: Hello) -> Any:
    return replication_pb2.FollowRequest(
        hello=replication_pb2.FollowHello(
            cluster_id=hello.cluster_id,
            broker_id=hello.broker_id,
            broker_epoch=hello.broker_epoch,
            leader_id=hello.leader_id,
            lane=_LANES[hello.lane],
            window_bytes=hello.window_bytes,
            sends_heartbeats=hello.sends_heartbeats,
        )
    )


def hello_of(request: Any) -> Hello:
    """Parse a stream's first request. Raises InvalidRequestError if the first request has no valid hello."""
    if not request.HasField("hello"):
        raise InvalidRequestError("a Follow stream must begin with a hello message")
    hello = request.hello
    lane = _LANES_OF.get(hello.lane)
    if lane is None:
        raise InvalidRequestError(
            f"the first request of broker {hello.broker_id} on a Follow stream has the unknown lane {hello.lane}: it "
            "must be 1 (LIVE) or 2 (CATCH_UP)"
        )
    if request.joins or request.leaves or request.acks:
        raise InvalidRequestError(f"the hello of broker {hello.broker_id} has fields that a hello must not have")
    return Hello(
        hello.cluster_id,
        hello.broker_id,
        hello.broker_epoch,
        hello.leader_id,
        lane,
        hello.window_bytes,
        hello.sends_heartbeats,
    )


def request_to_proto(request: Request) -> Any:
    message = replication_pb2.FollowRequest()
    for join in request.joins:
        message.joins.add(
            handle=join.handle,
            topic_id=join.topic_id,
            partition=join.partition,
            leader_epoch=join.leader_epoch,
            log_start=join.log_start,
            log_end=join.log_end,
            last_epoch=join.last_epoch,
            durable_end=join.durable_end,
            window_bytes=join.window_bytes,
        )
    message.leaves.extend(request.leaves)
    message.cannot_append.extend(request.cannot_append)
    add = message.acks.add
    for handle, durable_end, log_end, log_start in request.acks:
        add(handle=handle, durable_end=durable_end, log_end=log_end, log_start=log_start)
    return message


def request_of(message: Any) -> Request:
    """Parse a request of a stream after the first request. Raises InvalidRequestError for a request with a hello, or
    with more than ITEMS_MAX items."""
    if message.HasField("hello"):
        raise InvalidRequestError("a Follow stream has a second hello")
    count = len(message.joins) + len(message.leaves) + len(message.acks) + len(message.cannot_append)
    if count > ITEMS_MAX:
        raise InvalidRequestError(
            f"the request has {count} joins, leaves and acknowledgements, at most {ITEMS_MAX} are allowed"
        )
    joins = tuple(
        Join(
            handle=join.handle,
            topic_id=join.topic_id,
            partition=join.partition,
            leader_epoch=join.leader_epoch,
            log_start=join.log_start,
            log_end=join.log_end,
            last_epoch=join.last_epoch,
            durable_end=join.durable_end,
            window_bytes=join.window_bytes,
        )
        for join in message.joins
    )
    acks = tuple([Ack(ack.handle, ack.durable_end, ack.log_end, ack.log_start) for ack in message.acks])
    return Request(None, joins, tuple(message.leaves), acks, frozenset(message.cannot_append))


def response_to_proto(response: Response) -> Any:
    """Encode a response. Records are written into their final message, because adding a finished submessage would copy
    them."""
    message = replication_pb2.FollowResponse()
    for joined in response.joined:
        message.joined.add(
            handle=joined.handle,
            error=error_to_proto(joined.error),
            high_watermark=joined.high_watermark,
            log_start=joined.log_start,
            log_end=joined.log_end,
            diverging=_divergence_to_proto(joined.diverging),
            out_of_range=joined.out_of_range,
            other_lane=joined.other_lane,
            producers=joined.producers,
        )
    push = message.pushes.add
    for handle, records, high_watermark, log_start, traces in response.pushes:
        pushed = push(handle=handle, records=records, high_watermark=high_watermark, log_start=log_start)
        for base_offset, traceparent in traces:
            pushed.traces.add(base_offset=base_offset, traceparent=traceparent)
    add = message.updates.add
    for handle, high_watermark, log_start in response.updates:
        add(handle=handle, high_watermark=high_watermark, log_start=log_start)
    for ended in response.ended:
        message.ended.add(handle=ended.handle, error=error_to_proto(ended.error), other_lane=ended.other_lane)
    if response.sends_heartbeats:
        message.sends_heartbeats = True
    return message


def response_of(message: Any) -> Response:
    """Parse a response. The records of a push are a separate bytes object, so they keep no other part of the message in
    memory."""
    return Response(
        tuple([_joined_of(joined) for joined in message.joined]),
        tuple(
            [
                Push(push.handle, push.records, push.high_watermark, push.log_start, _traces_of(push.traces))
                for push in message.pushes
            ]
        ),
        tuple([OffsetsUpdate(update.handle, update.high_watermark, update.log_start) for update in message.updates]),
        tuple([Ended(ended.handle, error_of(ended.error), ended.other_lane) for ended in message.ended]),
        message.sends_heartbeats,
    )


def _traces_of(traces: Any) -> tuple[PushTrace, ...]:
    return tuple([PushTrace(each.base_offset, each.traceparent) for each in traces]) if traces else ()


def _joined_of(joined: Any) -> Joined:
    parts = joined.diverging if joined.HasField("diverging") else None
    return Joined(
        handle=joined.handle,
        error=error_of(joined.error),
        high_watermark=joined.high_watermark,
        log_start=joined.log_start,
        log_end=joined.log_end,
        diverging=None if parts is None else Divergence(parts.epoch, parts.end_offset),
        out_of_range=joined.out_of_range,
        other_lane=joined.other_lane,
        producers=joined.producers,
    )


def _divergence_to_proto(diverging: Divergence | None) -> Any:
    if diverging is None:
        return None
    return replication_pb2.FollowDivergence(epoch=diverging.epoch, end_offset=diverging.end_offset)
