"""Replication messages survive the wire unchanged, and invalid ones are refused."""

from __future__ import annotations

import pytest

from headrace_broker.partition.messages import (
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
from headrace_broker.replication import wire
from headrace_core.errors import FencedLeaderEpochError, InvalidRequestError, NotLeaderOrFollowerError
from headrace_protos.v1 import replication_pb2


@pytest.mark.parametrize("lane", list(Lane))
def test_a_hello_comes_out_as_it_went_in(lane: Lane):
    hello = Hello("cluster", 3, 2**40, 1, lane, 1 << 25)
    sent = replication_pb2.FollowRequest.FromString(wire.hello_to_proto(hello).SerializeToString())
    assert wire.hello_of(sent) == hello


def test_a_request_comes_out_as_it_went_in():
    request = Request(
        joins=(
            Join(7, b"t" * 16, 2, 5, 100, 2**50, 4, 2**50 - 1, 1 << 20),
            Join(8, b"u" * 16, 0, 0, 0, 0, -1, 0, 1),
        ),
        leaves=(1, 2, 2**32 - 1),
        acks=(Ack(7, 10, 20, 0), Ack(3, 0, 0, 0)),
    )
    sent = replication_pb2.FollowRequest.FromString(wire.request_to_proto(request).SerializeToString())
    assert wire.request_of(sent) == request


def test_a_response_comes_out_as_it_went_in():
    response = Response(
        joined=(
            Joined(1, None, 5, 0, 9),
            Joined(2, diverging=Divergence(3, 77), log_end=80),
            Joined(3, diverging=Divergence(-1, 0)),
            Joined(4, out_of_range=True, log_start=7, producers=b"producers"),
            Joined(5, other_lane=True),
        ),
        pushes=(
            Push(1, b"records", 5, 1),
            Push(6, b"\0" * 3, 2**60, 0, (PushTrace(2**50, "00-one"), PushTrace(3, "00-two"))),
        ),
        updates=(OffsetsUpdate(9, 4, 2),),
        ended=(Ended(9), Ended(10, None, True)),
    )
    sent = replication_pb2.FollowResponse.FromString(wire.response_to_proto(response).SerializeToString())
    assert wire.response_of(sent) == response


def test_errors_keep_their_kind_and_their_words():
    response = Response(
        joined=(Joined(1, FencedLeaderEpochError("epoch 4 is over")),),
        ended=(Ended(2, NotLeaderOrFollowerError("broker 2 leads it")),),
    )
    found = wire.response_of(wire.response_to_proto(response))
    (joined,), (ended,) = found.joined, found.ended
    assert isinstance(joined.error, FencedLeaderEpochError)
    assert joined.error.message == "epoch 4 is over"
    assert isinstance(ended.error, NotLeaderOrFollowerError)


def test_what_is_no_beginning_of_a_stream_is_refused():
    ack = wire.request_to_proto(Request(acks=(Ack(1, 0, 0, 0),)))
    hello = wire.hello_to_proto(Hello("c", 1, 1, 2, Lane.LIVE, 1))
    no_lane = replication_pb2.FollowRequest(hello=replication_pb2.FollowHello(cluster_id="c", broker_id=1))
    both = replication_pb2.FollowRequest(hello=hello.hello, acks=ack.acks)
    for wrong in (ack, no_lane, both):
        with pytest.raises(InvalidRequestError):
            wire.hello_of(wrong)


def test_what_no_follower_says_later_is_refused():
    with pytest.raises(InvalidRequestError, match="a second hello"):
        wire.request_of(wire.hello_to_proto(Hello("c", 1, 1, 2, Lane.LIVE, 1)))
    many = replication_pb2.FollowRequest(leaves=range(wire.ITEMS_MAX + 1))
    with pytest.raises(InvalidRequestError, match="at most"):
        wire.request_of(many)
