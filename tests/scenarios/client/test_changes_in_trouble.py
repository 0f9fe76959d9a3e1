"""A change whose response is lost: its outcome is unknown, so the client does not repeat it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from headrace import Admin
from headrace.errors import HeadraceError
from headrace_core.rpc.status import ERROR_CODE_KEY


def _refuse(context: Any, status: grpc.StatusCode, details: str, number: int = 0) -> None:
    if number:
        context.set_trailing_metadata(((ERROR_CODE_KEY, str(number)),))
    context.abort(status, details)


@pytest.mark.parametrize(
    ("status", "details", "number"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", 0),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "REQUEST_TIMED_OUT: the lead was lost", 7),
    ],
)
def test_a_topic_whose_answer_was_lost_is_not_created_again(
    fake_cluster: Any, status: grpc.StatusCode, details: str, number: int
) -> None:
    cluster = fake_cluster(2)
    cluster.on_create = lambda context: _refuse(context, status, details, number)
    servers = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
    with Admin(bootstrap_servers=servers) as admin, pytest.raises(HeadraceError) as failed:
        admin.create_topics(["orders"], timeout=20)
    assert failed.value.code == "REQUEST_TIMED_OUT"
    assert failed.value.retriable  # by the caller's choice
    assert cluster.creations_asked == 1


def test_a_node_that_knows_no_leader_is_left_for_another(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)

    def first_refuses(context: Any) -> None:
        if cluster.creations_asked == 1:
            cluster.partitions.clear()  # it was not made
            _refuse(context, grpc.StatusCode.UNAVAILABLE, "NOT_CONTROLLER: nobody leads", 41)

    cluster.on_create = first_refuses
    servers = ",".join(f"127.0.0.1:{port}" for port in cluster.ports)
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics(["orders"], timeout=20)
    assert cluster.creations_asked == 2
