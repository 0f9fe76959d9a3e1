"""Error numbers in the answers about the membership in a group: a consumer of Kafka ends after any number that it does
not expect."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    HeadraceError,
    NotCoordinatorError,
    RequestTimedOutError,
    ServerBusyError,
    ServerShuttingDownError,
    StorageError,
    UnknownMemberIdError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.membership.metadata_state import MetadataState
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.classic_groups import heartbeat, join_group, sync_group
from headrace_kafka.handlers.consumer_groups import consumer_group_heartbeat
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import request_body, response_body
from headrace_protos.v1 import groups_pb2

LOADING, NOT_AVAILABLE, NOT_COORDINATOR, UNKNOWN_MEMBER, REBALANCE = 14, 15, 16, 25, 27
ANSWERS = {
    "JoinGroup": groups_pb2.JoinGroupResponse,
    "SyncGroup": groups_pb2.SyncGroupResponse,
    "ClassicHeartbeat": groups_pb2.ClassicHeartbeatResponse,
    "Heartbeat": groups_pb2.HeartbeatResponse,
}


class Coordinator:
    """Refuses each call with the error: as the call's error, or in its answer."""

    def __init__(self, error: HeadraceError, *, in_answer: bool) -> None:
        self.error = error
        self.in_answer = in_answer

    async def coordinator(self, client: Any, kind: str, key: str, stub: Any, method: str, *_: Any) -> Any:
        if not self.in_answer:
            raise self.error
        return ANSWERS[method](error=error_to_proto(self.error))


@pytest.mark.parametrize("in_answer", [False, True])
@pytest.mark.parametrize(
    ("handler", "api", "version", "while_loading"),
    [
        (join_group, Api.JOIN_GROUP, 9, LOADING),
        (sync_group, Api.SYNC_GROUP, 5, REBALANCE),
        (heartbeat, Api.HEARTBEAT, 4, 0),
        (consumer_group_heartbeat, Api.CONSUMER_GROUP_HEARTBEAT, 1, LOADING),
    ],
    ids=["JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat"],
)
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (ServerBusyError, NOT_AVAILABLE),
        (RequestTimedOutError, NOT_AVAILABLE),
        (ServerShuttingDownError, NOT_COORDINATOR),
        (StorageError, NOT_COORDINATOR),
        (NotCoordinatorError, NOT_COORDINATOR),
        (UnknownMemberIdError, UNKNOWN_MEMBER),
        (CoordinatorLoadInProgressError, LOADING),
    ],
)
def test_a_member_gets_only_numbers_after_which_it_goes_on(
    error: type[HeadraceError],
    seen: int,
    handler: Any,
    api: Api,
    version: int,
    while_loading: int,
    in_answer: bool,
) -> None:
    body, answer = request_body(api, version), response_body(api, version)
    call = Call(
        Client(host="10.0.0.1", listener="PLAINTEXT"),
        api,
        version,
        "",
        Cluster(MetadataState()),
        cast("Any", Coordinator(error("refused"), in_answer=in_answer)),
        KafkaSettings(),
    )
    request = body.read(bytes(body.write({"group_id": "g", "member_id": "m"})))
    found = answer.read(bytes(answer.write(asyncio.run(handler(call, request)))))
    assert found.error_code == (while_loading if seen == LOADING else seen)
