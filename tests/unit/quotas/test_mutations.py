"""The quota of controller mutations on the calls of Admin (KIP-599)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_core.errors import HeadraceError, NotControllerError, PolicyViolationError, RequestTimedOutError
from headrace_core.membership.mutation_quota import COUNTED_MAX, limited
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import MetadataRecord, PartitionRecord, TopicRecord
from headrace_core.quotas import ClientLimits, QuotaManager
from headrace_protos.v1 import admin_pb2

EXCEEDED = 89


def limits_of_rate(rate: float) -> ClientLimits:
    manager = QuotaManager(windows=1)
    manager.apply({(("user", "alice"),): {"controller_mutation_rate": rate}})
    return ClientLimits(manager, "alice", "app")


def image_with(topic: str, partitions: int) -> MetadataImage:
    topic_id = b"i" * 16
    records: list[MetadataRecord] = [
        TopicRecord(topic, topic_id),
        *(PartitionRecord(topic_id, number, (1,), (1,), 1, 0, 0) for number in range(partitions)),
    ]
    return MetadataImage().apply(records, len(records))


def ask(
    method: str, request: Any, limits: ClientLimits, image: MetadataImage | None = None, now_s: float = 0.0
) -> tuple[Any, list[Any]]:
    """(the answer, the requests that went on to the controller)."""
    sent = []

    async def send(rest: Any) -> Any:
        sent.append(rest)
        answer = getattr(admin_pb2, f"{method}Response")(metadata_offset=7)
        for topic in rest.topics:
            name = topic if isinstance(topic, str) else getattr(topic, "name", None) or topic.topic
            answer.results.add(**{"topic" if method == "CreatePartitions" else "name": name})
        return answer

    answer = asyncio.run(limited(method, request, limits, image or MetadataImage(), now_s, send, partitions_default=3))
    return answer, sent


def test_topics_over_the_quota_are_refused_and_the_others_are_created() -> None:
    limits = limits_of_rate(4.0)
    request = admin_pb2.CreateTopicsRequest(timeout_ms=5)
    for name, partitions in (("a", 3), ("b", -1), ("c", 1), ("d", 1)):
        request.topics.add(name=name, partitions=partitions)
    answer, (sent,) = ask("CreateTopics", request, limits)
    assert [topic.name for topic in sent.topics] == ["a", "b"], "3 + 3 partitions of a burst of 4"
    assert sent.timeout_ms == 5
    assert [(each.name, each.error.code) for each in answer.results] == [("a", 0), ("b", 0), ("c", 89), ("d", 89)]
    assert "retry in 500 ms" in answer.results[2].error.message
    assert answer.metadata_offset == 7
    answer, sent_again = ask("CreateTopics", request, limits, now_s=0.4)
    assert sent_again == []
    assert [each.error.code for each in answer.results] == [EXCEEDED] * 4
    answer, _ = ask("CreateTopics", request, limits, now_s=0.5)
    assert [each.error.code for each in answer.results] == [0, EXCEEDED, EXCEEDED, EXCEEDED]


def test_deleted_and_added_partitions_count() -> None:
    image = image_with("big", 20)
    limits = limits_of_rate(10.0)
    answer, _ = ask("DeleteTopics", admin_pb2.DeleteTopicsRequest(topics=["none", "big", "big"]), limits, image)
    assert [each.error.code for each in answer.results] == [0, 0, EXCEEDED]
    limits = limits_of_rate(10.0)
    more = admin_pb2.CreatePartitionsRequest()
    more.topics.add(topic="big", total_count=31)
    more.topics.add(topic="big", total_count=40)
    answer, (sent,) = ask("CreatePartitions", more, limits, image)
    assert [each.total_count for each in sent.topics] == [31]
    assert [(each.topic, each.error.code) for each in answer.results] == [("big", 0), ("big", EXCEEDED)]


def test_a_request_that_only_validates_counts_nothing() -> None:
    limits = limits_of_rate(1.0)
    request = admin_pb2.CreateTopicsRequest(validate_only=True)
    request.topics.add(name="a", partitions=100)
    for _ in range(3):
        answer, _ = ask("CreateTopics", request, limits)
        assert [each.error.code for each in answer.results] == [0]


def test_without_the_quota_the_request_itself_goes_on() -> None:
    request = admin_pb2.DeleteTopicsRequest(topics=["a"])
    _, (sent,) = ask("DeleteTopics", request, ClientLimits(QuotaManager(), "alice", "app"))
    assert sent is request


def test_refused_topics_count_nothing() -> None:
    """A wrong number of partitions must not use up a quota, which all users of a client id may share."""
    limits = limits_of_rate(10.0)

    def create(partitions: int, error: int | HeadraceError = 0) -> list[int]:
        async def send(rest: Any) -> Any:
            if isinstance(error, HeadraceError):
                raise error
            answer = admin_pb2.CreateTopicsResponse()
            for topic in rest.topics:
                answer.results.add(name=topic.name).error.code = error  # type: ignore[assignment]
            return answer

        request = admin_pb2.CreateTopicsRequest()
        for name in ("a", "b"):
            request.topics.add(name=name, partitions=partitions)
        answer = asyncio.run(limited("CreateTopics", request, limits, MetadataImage(), 0.0, send))
        return [each.error.code for each in answer.results]

    refused = PolicyViolationError.number
    for _ in range(3):
        assert create(7, refused) == [refused] * 2
        assert create(2**31 - 1, refused) == [refused, EXCEEDED]
        with pytest.raises(NotControllerError):
            create(7, NotControllerError("there is no leader"))
    assert create(6) == [0, 0]
    assert create(1) == [EXCEEDED] * 2


def test_a_client_that_does_not_wait_for_the_refusal_waits_no_years() -> None:
    async def send(rest: Any) -> Any:
        raise RequestTimedOutError("the outcome is unknown")

    for method, name in (("CreateTopics", "name"), ("CreatePartitions", "topic")):
        limits = limits_of_rate(10.0)
        request = getattr(admin_pb2, f"{method}Request")()
        many = "partitions" if method == "CreateTopics" else "total_count"
        request.topics.add(**{name: "a", many: 2**31 - 1})
        with pytest.raises(RequestTimedOutError):
            asyncio.run(limited(method, request, limits, MetadataImage(), 0.0, send))
        for now_s, code in ((0.0, EXCEEDED), (COUNTED_MAX / 10, 0)):  # the topic may exist, so it counts at first
            answer, _ = ask(method, request, limits, now_s=now_s)
            assert [each.error.code for each in answer.results] == [code]
