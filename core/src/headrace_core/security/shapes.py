"""Calls about several items: each refused item gets an error, and the handler gets the other items.

A *shape* stands between the gate and the handler of one method. ``Items`` takes the refused items out of the request,
calls the handler with the other items, and puts errors in the places of the refused items' results. Most other shapes
remove from an answer the parts that the caller is not authorized to see. ``HANDLED`` are the methods whose handlers
check their items themselves, because they are streams, or because the check needs the node's state.

A name that the caller is not authorized to use gets the same error whether the resource exists or not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace_protos.v1 import admin_pb2, groups_pb2, metadata_pb2, offsets_pb2, transactions_pb2

from ..errors import HeadraceError, TopicAuthorizationFailedError
from ..item_errors import error_to_proto
from ..types import OFFSETS_TOPIC
from .access import Access
from .acl_types import CLUSTER_NAME, Operation, ResourceType
from .refusals import refusal
from .rules import MethodAccess, Rule, values_at

Handler = Callable[[Any], Awaitable[Any]]
Shape = Callable[[Access, MethodAccess, Any, Handler], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Items:
    """The shape of a request with a repeated field of items, and an answer with a repeated field of results.

    ``field``, ``results``: the names of the two fields. ``result`` makes the entry of ``results`` for a refused item.
    ``concerns``: whether a rule applies to an item of this request; without it, every rule applies to every item.
    """

    field: str
    results: str
    result: Callable[[Any, Any], Any]
    answer: Callable[[], Any]
    concerns: Callable[[Rule, Any, Any], bool] | None = None

    async def __call__(self, access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
        items = getattr(request, self.field)
        errors = self._errors(access, found, request, items)
        if not errors:
            return await handler(request)
        rest = type(request)()
        rest.CopyFrom(request)
        kept = getattr(rest, self.field)
        for index in sorted(errors, reverse=True):
            del kept[index]
        answer = await handler(rest) if kept else self.answer()
        results = getattr(answer, self.results)
        in_order = list(results)
        del results[:]
        allowed = iter(in_order if len(in_order) == len(kept) else ())
        for index, item in enumerate(items):
            error = errors.get(index)
            if error is not None:
                results.append(self.result(item, error_to_proto(error)))
            elif (result := next(allowed, None)) is not None:
                results.append(result)
        if len(in_order) != len(kept):  # the handler groups or orders the results itself
            results.extend(in_order)
        return answer

    def _errors(self, access: Access, found: MethodAccess, request: Any, items: Any) -> dict[int, HeadraceError]:
        rules = [rule for rule in found.rules if rule.each and not rule.alternative]
        either = found.alternatives
        of_call = [rule for rule in either if not rule.each]
        if either and any(access.sees(rule.operation, rule.resource, CLUSTER_NAME) for rule in of_call):
            either = ()
        either = tuple(rule for rule in either if rule.each)
        errors: dict[int, HeadraceError] = {}
        for index, item in enumerate(items):
            error = self._error(access, rules, request, item) or (
                self._error(access, either, request, item) if either else None
            )
            if error is not None:
                errors[index] = error
        return errors

    def _error(self, access: Access, rules: Iterable[Rule], request: Any, item: Any) -> HeadraceError | None:
        for rule in rules:
            if self.concerns is not None and not self.concerns(rule, request, item):
                continue
            for name in _names(rule, item):
                if not access.allows(rule.operation, rule.resource, name):
                    return refusal(rule.operation, rule.resource, name, access.caller.principal)
        return None


def _names(rule: Rule, item: Any) -> Iterable[str]:
    """The names in one item; the rule's path begins with the repeated field itself."""
    if not rule.path:
        return (CLUSTER_NAME,)
    return (item,) if len(rule.path) == 1 else values_at(item, rule.path[1:])


# -- configurations ----------------------------------------------------------------------------------------------------


def _config_kind(rule: Rule, request: Any, item: Any) -> bool:
    resource = item.resource if isinstance(item, admin_pb2.AlterConfigsResource) else item
    is_topic = resource.type == admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC
    return bool(is_topic == (rule.resource is ResourceType.TOPIC))


def _coordinator_kind(rule: Rule, request: Any, item: Any) -> bool:
    is_transaction = request.type == metadata_pb2.COORDINATOR_TYPE_TRANSACTION
    return bool(is_transaction == (rule.resource is ResourceType.TRANSACTIONAL_ID))


# -- groups ------------------------------------------------------------------------------------------------------------


def _sees_topic(access: Access, name: str) -> bool:
    return access.sees(Operation.DESCRIBE, ResourceType.TOPIC, name)


async def _fetch_offsets(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    """Refuse groups and named partitions one by one; if a request asks for a whole group, leave refused topics out of
    the answer."""
    refused_groups: dict[int, HeadraceError] = {}
    refused_partitions: dict[int, list[Any]] = {}
    rest = groups_pb2.FetchOffsetsRequest(require_stable=request.require_stable)
    for index, group in enumerate(request.groups):
        if not access.allows(Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
            refused_groups[index] = refusal(
                Operation.DESCRIBE, ResourceType.GROUP, group.group_id, access.caller.principal
            )
            continue
        kept = rest.groups.add()
        kept.CopyFrom(group)
        if group.HasField("partitions"):
            named = kept.partitions.partitions
            topics = access.refused((each.topic for each in named), Operation.DESCRIBE, ResourceType.TOPIC)
            if topics:
                refused_partitions[index] = [each for each in group.partitions.partitions if each.topic in topics]
                allowed = [each for each in group.partitions.partitions if each.topic not in topics]
                del named[:]
                named.extend(allowed)
    answer = await handler(rest) if rest.groups else groups_pb2.FetchOffsetsResponse()
    served = iter(list(answer.groups))
    result = groups_pb2.FetchOffsetsResponse()
    for index, group in enumerate(request.groups):
        if index in refused_groups:
            result.groups.add(group_id=group.group_id, error=error_to_proto(refused_groups[index]))
            continue
        shown = result.groups.add()
        shown.CopyFrom(next(served))
        if not group.HasField("partitions"):
            _keep(shown.offsets, lambda each: _sees_topic(access, each.topic))
        for partition in refused_partitions.get(index, ()):
            error = refusal(Operation.DESCRIBE, ResourceType.TOPIC, partition.topic, access.caller.principal)
            shown.offsets.add(
                topic=partition.topic,
                partition=partition.partition,
                error=error_to_proto(error),
                offset=-1,
                leader_epoch=-1,
            )
    return result


def hide_assignment(access: Access, response: Any) -> None:
    """If a member's assignment has a topic that the member is not authorized to describe, replace the assignment by an
    error, as Kafka does since KAFKA-18813. A subscription with a pattern thus does not reveal the names of topics."""
    for each in response.assignment.topics:
        if not _sees_topic(access, each.topic):
            response.ClearField("assignment")
            response.error.CopyFrom(
                error_to_proto(
                    TopicAuthorizationFailedError(
                        f"the group assigns topics that {access.caller.principal} is not authorized to DESCRIBE; "
                        "allow DESCRIBE on these topics, or narrow the subscription's pattern"
                    )
                )
            )
            return


async def _heartbeat(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    answer = await handler(request)
    hide_assignment(access, answer)
    return answer


async def _list_groups(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    answer = await handler(request)
    if not access.sees(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        _keep(answer.groups, lambda each: access.sees(Operation.DESCRIBE, ResourceType.GROUP, each.group_id))
    return answer


def _assigned_topics(member: Any) -> Iterable[str]:
    for partitions in (member.assigned, member.revoking, member.target):
        for each in partitions.topics:
            yield each.topic


async def _describe_groups(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    """Describe groups; a group whose members have topics that the caller is not authorized to describe gets an error,
    as in Kafka since KAFKA-18813. Pending offsets of such topics are left out: Kafka describes a group without them."""
    answer = await _GROUPS_DESCRIBED(access, found, request, handler)
    for group in answer.groups:
        if group.error.code:
            continue
        topics = {topic for member in group.members for topic in _assigned_topics(member)}
        if not all(_sees_topic(access, topic) for topic in topics if topic):
            error = TopicAuthorizationFailedError(
                f"group {group.group_id!r} reads topics that {access.caller.principal} is not authorized to DESCRIBE"
            )
            described = groups_pb2.DescribedGroup(group_id=group.group_id, error=error_to_proto(error))
            group.CopyFrom(described)
        _keep(group.pending_offsets, lambda each: _sees_topic(access, each.topic))
        for pending in group.pending_offsets:
            if not access.sees(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, pending.transactional_id):
                pending.transactional_id = ""
    return answer


async def _describe_lag(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    answer = await _LAGS_DESCRIBED(access, found, request, handler)
    for group in answer.groups:
        before = len(group.partitions)
        _keep(group.partitions, lambda each: _sees_topic(access, each.topic))
        if len(group.partitions) != before:
            group.total_lag = sum(each.lag for each in group.partitions if each.HasField("lag"))
    return answer


async def _explain_group(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    answer = await handler(request)
    for rebalance in answer.rebalances:
        _keep(rebalance.moved, lambda each: _sees_topic(access, each.topic))
    return answer


# -- transactions ------------------------------------------------------------------------------------------------------


async def _init_producer(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    """A transaction that may stay open without a time limit needs a separate right (KIP-939)."""
    if request.enable_two_phase_commit:
        access.require(Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    return await handler(request)


async def _add_transaction_partitions(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    """Check all partitions together, because the transaction gets all of them or none. A shard of __consumer_offsets
    joins a transaction before the offsets of a group do (Kafka's AddOffsetsToTxn). The request does not name the group,
    so READ on any group is enough; CommitTransactionOffsets then checks the group itself."""
    topics = dict.fromkeys(each.topic for each in request.partitions)
    if OFFSETS_TOPIC in topics:
        del topics[OFFSETS_TOPIC]
        if not access.allows_any(Operation.READ, ResourceType.GROUP):
            raise refusal(Operation.READ, ResourceType.GROUP, "*", access.caller.principal)
    for topic in topics:
        access.require(Operation.WRITE, ResourceType.TOPIC, topic)
    return await handler(request)


async def _list_transactions(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    """List the visible transactional ids of a page. The caller asks for the next page by the last id that it sees, so a
    page without a visible id is skipped."""
    asked, loading = request, 0
    while True:
        answer = await handler(asked)
        loading = answer.loading_shards = max(loading, answer.loading_shards)
        last = answer.transactions[-1].transactional_id if answer.has_more else ""
        _keep(
            answer.transactions,
            lambda each: access.sees(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, each.transactional_id),
        )
        if answer.transactions or not answer.has_more:
            return answer
        asked = type(request)()
        asked.CopyFrom(request)
        asked.after = last


async def _describe_transactions(access: Access, found: MethodAccess, request: Any, handler: Handler) -> Any:
    answer = await _TRANSACTIONS_DESCRIBED(access, found, request, handler)
    for transaction in answer.transactions:
        _keep(transaction.partitions, lambda each: _sees_topic(access, each.topic))
    return answer


def _keep(items: Any, wanted: Callable[[Any], bool]) -> None:
    """Remove the elements of a repeated field that are not wanted."""
    kept = [each for each in items if wanted(each)]
    if len(kept) != len(items):
        copies = [type(each).FromString(each.SerializeToString()) for each in kept]
        del items[:]
        items.extend(copies)


def _topic_partition(make: Callable[..., Any], **more: Any) -> Callable[[Any, Any], Any]:
    return lambda item, error: make(topic=item.topic, partition=item.partition, error=error, **more)


_GROUPS_DESCRIBED = Items(
    "group_ids",
    "groups",
    lambda item, error: groups_pb2.DescribedGroup(group_id=item, error=error),
    groups_pb2.DescribeGroupsResponse,
)
_LAGS_DESCRIBED = Items(
    "group_ids",
    "groups",
    lambda item, error: groups_pb2.LagOfGroup(group_id=item, error=error),
    groups_pb2.DescribeLagResponse,
)
_TRANSACTIONS_DESCRIBED = Items(
    "transactional_ids",
    "transactions",
    lambda item, error: transactions_pb2.DescribedTransaction(transactional_id=item, error=error, started_at_ms=-1),
    transactions_pb2.DescribeTransactionsResponse,
)

#: Maps "Service/Method" to the shape of the method's request and answer.
SHAPES: dict[str, Shape] = {
    "Admin/CreateTopics": Items(
        "topics",
        "results",
        lambda item, error: admin_pb2.CreateTopicResult(name=item.name, error=error),
        admin_pb2.CreateTopicsResponse,
    ),
    "Admin/DeleteTopics": Items(
        "topics",
        "results",
        lambda item, error: admin_pb2.DeleteTopicResult(name=item, error=error),
        admin_pb2.DeleteTopicsResponse,
    ),
    "Admin/CreatePartitions": Items(
        "topics",
        "results",
        lambda item, error: admin_pb2.CreatePartitionsResult(topic=item.topic, error=error),
        admin_pb2.CreatePartitionsResponse,
    ),
    "Admin/DescribeConfigs": Items(
        "resources",
        "results",
        lambda item, error: admin_pb2.DescribeConfigsResult(resource=item, error=error),
        admin_pb2.DescribeConfigsResponse,
        _config_kind,
    ),
    "Admin/AlterConfigs": Items(
        "resources",
        "results",
        lambda item, error: admin_pb2.AlterConfigsResult(resource=item.resource, error=error),
        admin_pb2.AlterConfigsResponse,
        _config_kind,
    ),
    "Metadata/FindCoordinator": Items(
        "keys",
        "coordinators",
        lambda item, error: metadata_pb2.CoordinatorOfKey(
            key=item, error=error, shard=-1, coordinator_id=-1, shard_epoch=-1
        ),
        metadata_pb2.FindCoordinatorResponse,
        _coordinator_kind,
    ),
    "Offsets/ListOffsets": Items(
        "partitions",
        "results",
        _topic_partition(offsets_pb2.ListOffsetsResult, offset=-1, timestamp_ms=-1, leader_epoch=-1),
        offsets_pb2.ListOffsetsResponse,
    ),
    "Offsets/OffsetForLeaderEpoch": Items(
        "partitions",
        "results",
        _topic_partition(offsets_pb2.OffsetForLeaderEpochResult, leader_epoch=-1, end_offset=-1),
        offsets_pb2.OffsetForLeaderEpochResponse,
    ),
    "Offsets/DeleteRecords": Items(
        "partitions",
        "results",
        _topic_partition(offsets_pb2.DeleteRecordsResult, low_watermark=-1),
        offsets_pb2.DeleteRecordsResponse,
    ),
    "Producers/DescribeProducers": Items(
        "partitions",
        "partitions",
        _topic_partition(transactions_pb2.ProducersOfPartition),
        transactions_pb2.DescribeProducersResponse,
    ),
    "Groups/CommitOffsets": Items(
        "offsets", "results", _topic_partition(groups_pb2.PartitionOutcome), groups_pb2.CommitOffsetsResponse
    ),
    "Groups/DeleteOffsets": Items(
        "partitions", "results", _topic_partition(groups_pb2.PartitionOutcome), groups_pb2.DeleteOffsetsResponse
    ),
    "Groups/DeleteGroups": Items(
        "group_ids",
        "results",
        lambda item, error: groups_pb2.GroupOutcome(group_id=item, error=error),
        groups_pb2.DeleteGroupsResponse,
    ),
    "Groups/Heartbeat": _heartbeat,
    "Groups/FetchOffsets": _fetch_offsets,
    "Groups/ListGroups": _list_groups,
    "Groups/DescribeGroups": _describe_groups,
    "Groups/DescribeLag": _describe_lag,
    "Groups/ExplainGroup": _explain_group,
    "Transactions/InitProducer": _init_producer,
    "Transactions/AddTransactionPartitions": _add_transaction_partitions,
    "Transactions/CommitTransactionOffsets": Items(
        "offsets",
        "results",
        _topic_partition(groups_pb2.PartitionOutcome),
        transactions_pb2.CommitTransactionOffsetsResponse,
    ),
    "Transactions/ListTransactions": _list_transactions,
    "Transactions/DescribeTransactions": _describe_transactions,
}

#: Methods whose handlers check single items themselves, with ``current_access()``.
HANDLED = frozenset(
    {
        "Produce/Produce",
        "Produce/ProduceMany",
        "Fetch/Fetch",
        "Groups/Membership",
        "Metadata/GetMetadata",
        "Metadata/WatchMetadata",
    }
)
