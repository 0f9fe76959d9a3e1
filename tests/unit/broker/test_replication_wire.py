"""Invalid requests on a replication stream are refused."""

from __future__ import annotations

import pytest

from headrace_broker.partition.push_stream import CATCH_UP, LIVE, REQUEST_ITEMS_MAX, hello_of
from headrace_core.errors import InvalidRequestError
from headrace_protos.v1.replication_pb2 import FollowHello, FollowRequest, ReplicationLane
from tests.worlds.replication_leaders import LeadingBroker
from tests.worlds.replication_messages import a_hello, an_ack


@pytest.mark.parametrize("kind", [LIVE, CATCH_UP])
def test_a_stream_begins_with_a_hello(kind: ReplicationLane):
    hello = a_hello("cluster", 3, 2**40, 1, kind, 1 << 25)
    assert hello_of(FollowRequest.FromString(FollowRequest(hello=hello).SerializeToString())) == hello


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (FollowRequest(acks=[an_ack(1, 0, 0, 0)]), "must begin with a hello"),
        (FollowRequest(hello=FollowHello(cluster_id="c", broker_id=1)), "the unknown lane 0"),
        (FollowRequest(hello=FollowHello(lane=3)), "the unknown lane 3"),  # type: ignore[arg-type]
        (FollowRequest(hello=a_hello("c", 1, 1, 2), acks=[an_ack(1, 0, 0, 0)]), "fields that a hello must not have"),
        (FollowRequest(hello=a_hello("c", 1, 1, 2), leaves=[1]), "fields that a hello must not have"),
    ],
)
def test_what_is_no_beginning_of_a_stream_is_refused(wrong: FollowRequest, why: str):
    with pytest.raises(InvalidRequestError, match=why):
        hello_of(wrong)


def test_what_no_follower_says_later_is_refused():
    stream = LeadingBroker().stream()
    with pytest.raises(InvalidRequestError, match="a second hello"):
        stream.received(FollowRequest(hello=a_hello("c", 1, 1, 2)))
    with pytest.raises(InvalidRequestError, match="at most"):
        stream.received(FollowRequest(leaves=range(REQUEST_ITEMS_MAX + 1)))
    with pytest.raises(InvalidRequestError, match="at most"):
        stream.received(FollowRequest(leaves=[1], cannot_append=range(REQUEST_ITEMS_MAX)))
