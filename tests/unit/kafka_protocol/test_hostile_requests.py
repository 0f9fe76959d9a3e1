"""Legal requests with many items: what they cost the broker is in proportion to their size."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from headrace_core.errors import CoordinatorNotAvailableError, TopicAuthorizationFailedError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata.records import AclRecord
from headrace_core.security.access import Authorization
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorizer import Authorizer
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers.describe_groups import AT_ONCE, few_at_once
from headrace_kafka.handlers.metadata import describe_topic_partitions, metadata
from headrace_kafka.handlers.offsets import offset_fetch
from headrace_kafka.handlers.topics import create_topics
from headrace_kafka.rounds import Rounds
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import request_body
from headrace_protos.v1 import admin_pb2
from tests.worlds.waiting import check_spent


class CountingUpstream:
    """Nodes that refuse every call in the next round of the event loop. ``most``: calls in progress at a time."""

    def __init__(self) -> None:
        self.calls = self.most = self._now = 0

    async def coordinator(self, *_: Any) -> Any:
        self.calls += 1
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        raise CoordinatorNotAvailableError("refused")

    async def own(self, *_: Any) -> Any:
        self.calls += 1
        return admin_pb2.CreateTopicsResponse()


def handled(
    upstream: CountingUpstream,
    handler: Any,
    api: Api,
    version: int,
    authorization: Authorization | None = None,
    **fields: Any,
) -> Any:
    client = Client(host="10.0.0.1", listener="PLAINTEXT")
    settings = KafkaSettings()
    call = Call(
        client,
        api,
        version,
        "",
        Cluster(MetadataState(), authorization or Authorization()),
        cast("Any", upstream),
        settings,
    )
    request = request_body(api, version).read(bytes(request_body(api, version).write(fields)))
    return asyncio.run(handler(call, request))


def test_creating_many_topics_takes_time_in_proportion_to_their_number() -> None:
    """Names were compared each with each: a request of 4 MiB stopped all clients of a broker for a minute."""
    names = [f"{'n' * 200}{number:06}" for number in range(15_000)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    began = time.thread_time()
    answer = handled(CountingUpstream(), create_topics, Api.CREATE_TOPICS, 5, topics=[*topics, topics[0]])
    check_spent(began, 1.5)
    assert [each["name"] for each in answer["topics"] if each.get("error_code") == 42] == names[:1]


@pytest.mark.parametrize(
    ("api", "version", "handler", "more"),
    [
        (Api.METADATA, 9, metadata, {"allow_auto_topic_creation": False}),
        (Api.DESCRIBE_TOPIC_PARTITIONS, 0, describe_topic_partitions, {"response_partition_limit": 2_000}),
    ],
    ids=["Metadata", "DescribeTopicPartitions"],
)
def test_names_of_which_half_are_refused_take_time_in_proportion_to_their_number(
    api: Api, version: int, handler: Any, more: dict[str, Any]
) -> None:
    """Each refused name was looked up in a list, or in a set that was built again for it: a user with one prefixed
    entry stopped all clients of a broker for seconds."""
    entry = AclRecord(
        b"", ResourceType.TOPIC, "mine-", PatternType.PREFIXED, "User:*", "*", Operation.DESCRIBE, Permission.ALLOW
    )
    names = [f"{kind}-{number:06}" for number in range(7_000) for kind in ("mine", "other")]
    authorization = Authorization(Authorizer([entry]))
    topics = [{"name": name} for name in names]
    began = time.thread_time()
    answer = handled(CountingUpstream(), handler, api, version, authorization, topics=topics, **more)
    check_spent(began, 1.0)
    refused = [each["name"] for each in answer["topics"] if each["error_code"] == TopicAuthorizationFailedError.number]
    assert sorted(refused) == sorted(name for name in names if name.startswith("other"))


def test_offsets_of_many_groups_are_asked_for_a_few_at_once() -> None:
    """Each group of an OffsetFetch request was a call at once, so one request opened hundreds of connections."""
    upstream = CountingUpstream()
    groups = [{"group_id": f"g{number}", "topics": None} for number in range(1_000)]
    answer = handled(upstream, offset_fetch, Api.OFFSET_FETCH, 8, groups=groups, require_stable=False)
    assert [each["group_id"] for each in answer["groups"]] == [each["group_id"] for each in groups]
    assert (upstream.calls, upstream.most) == (1_000, AT_ONCE)


def test_many_keys_have_no_task_each() -> None:
    most = 0

    async def one(key: str) -> dict[str, Any]:
        nonlocal most
        most = max(most, len(asyncio.all_tasks()))
        await asyncio.sleep(0)
        return {"key": key}

    keys = [str(number) for number in range(1_000)]
    assert [each["key"] for each in asyncio.run(few_at_once(keys, one))] == keys
    assert most <= AT_ONCE + 1


def test_a_round_of_the_event_loop_starts_few_requests_of_many() -> None:
    async def scenario() -> list[list[int]]:
        rounds, started = Rounds(3), [0]
        for _ in range(8):
            rounds.start(lambda: started.append(0))
        seen = []
        while len(started) < 9:
            seen.append(len(started) - 1)
            await asyncio.sleep(0)
        return [seen, [len(started) - 1]]

    seen, ((total),) = asyncio.run(scenario())
    assert sorted(set(seen)) == [3, 6]
    assert total == 8


def test_work_after_a_quiet_round_starts_at_once() -> None:
    async def scenario() -> None:
        rounds, started = Rounds(1), []
        for number in range(3):
            rounds.start(lambda number=number: started.append(number))  # type: ignore[misc]
            assert started[-1] == number
            for _ in range(3):
                await asyncio.sleep(0)

    asyncio.run(scenario())
