"""The quota of controller mutations (KIP-599), on the node that a client calls. The node refuses topics for which the
client is over its quota with THROTTLING_QUOTA_EXCEEDED, and sends the other topics to the controller.

The quota counts the partitions that a request creates, adds or deletes. As in Kafka, a request with ``validate_only``
is not counted, and neither is a topic that the controller refuses. The node counts a topic before it sends the request,
and gives the partitions back after a refusal. If the outcome is unknown, the topic counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace_protos.v1 import admin_pb2

from ..errors import HeadraceError, RequestTimedOutError, ThrottlingQuotaExceededError
from ..item_errors import error_to_proto
from ..metadata import MetadataImage
from ..quotas import ClientLimits

LIMITED = frozenset({"CreateTopics", "DeleteTopics", "CreatePartitions"})  #: The calls of Admin that the quota limits.
#: Maximum number of new partitions that a topic of a request counts. Controllers refuse more new partitions, unless
#: metadata.max.records.per.request is higher than its default. Without a maximum, a client that asks for 2,000,000,000
#: partitions and does not wait for the refusal could use up a quota that it shares with others for years.
COUNTED_MAX = 10_000


async def limited(
    method: str,
    request: Any,
    limits: ClientLimits,
    image: MetadataImage,
    now_s: float,
    send: Callable[[Any], Awaitable[Any]],
    *,
    partitions_default: int = 1,
) -> Any:
    """Answer a call of ``method``, which is in LIMITED. ``send`` gets the request without the topics that the quota
    refuses. ``image`` gives the number of partitions of existing topics. ``partitions_default``: num.partitions."""
    if not limits.has_mutation_quota or getattr(request, "validate_only", False):
        return await send(request)
    refused: dict[int, ThrottlingQuotaExceededError] = {}
    counted: list[int] = []
    for index, topic in enumerate(request.topics):
        partitions = _partitions(method, topic, image, partitions_default)
        try:
            limits.mutated(partitions, now_s)
        except ThrottlingQuotaExceededError as error:
            refused[index] = error
        else:
            counted.append(partitions)

    async def sent(asked: Any) -> Any:
        try:
            answer = await send(asked)
        except RequestTimedOutError:  # the topics may have been changed
            raise
        except HeadraceError:
            limits.not_mutated(sum(counted), now_s)
            raise
        pairs = zip(counted, answer.results, strict=False)  # one result for each topic, in order
        limits.not_mutated(sum(partitions for partitions, result in pairs if result.error.code), now_s)
        return answer

    if not refused:
        return await sent(request)
    topics = list(request.topics)
    answer = getattr(admin_pb2, f"{method}Response")()
    if len(refused) < len(topics):
        rest = type(request)()
        rest.CopyFrom(request)
        del rest.topics[:]
        rest.topics.extend(topic for index, topic in enumerate(topics) if index not in refused)
        answer = await sent(rest)
    results = iter(list(answer.results))
    merged = [
        _refusal(method, topic, refused[index]) if index in refused else next(results)
        for index, topic in enumerate(topics)
    ]
    del answer.results[:]
    answer.results.extend(merged)
    return answer


def _partitions(method: str, topic: Any, image: MetadataImage, partitions_default: int) -> int:
    if method == "CreateTopics":
        asked = len(topic.assignments) or (topic.partitions if topic.partitions > 0 else partitions_default)
        return min(asked, COUNTED_MAX)
    known = image.topic(topic if method == "DeleteTopics" else topic.topic)
    present = 0 if known is None else len(known.partitions)
    return present if method == "DeleteTopics" else min(max(topic.total_count - present, 0), COUNTED_MAX)


def _refusal(method: str, topic: Any, error: ThrottlingQuotaExceededError) -> Any:
    proto = error_to_proto(error)
    if method == "CreateTopics":
        return admin_pb2.CreateTopicResult(name=topic.name, error=proto)
    if method == "DeleteTopics":
        return admin_pb2.DeleteTopicResult(name=topic, error=proto)
    return admin_pb2.CreatePartitionsResult(topic=topic.topic, error=proto)
