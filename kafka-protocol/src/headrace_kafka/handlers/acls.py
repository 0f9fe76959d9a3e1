"""Access control lists: DescribeAcls, CreateAcls, DeleteAcls. The controllers check and store the entries; Kafka's
numbers of types and operations are Headrace's numbers."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import HeadraceError
from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..call import Call
from ..errors import NONE, kafkas, number
from ..wire.schema import Message
from .topics import change

Fields = dict[str, Any]


async def describe_acls(call: Call, request: Message) -> Fields:
    call.require_cluster()
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.DescribeAclsRequest(filter=_filter(request), timeout_ms=timeout_ms)
    answer = await call.own(security_pb2_grpc.SecurityStub, "DescribeAcls", asked, timeout_ms)
    patterns: dict[tuple[int, str, int], list[Fields]] = {}
    for entry in answer.entries:
        pattern = entry.resource_type, entry.resource_name, entry.pattern_type
        patterns.setdefault(pattern, []).append(
            {
                "principal": entry.principal,
                "host": entry.host,
                "operation": entry.operation,
                "permission_type": entry.permission,
            }
        )
    return {
        "error_code": NONE,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": pattern, "acls": entries}
            for (kind, name, pattern), entries in patterns.items()
        ],
    }


async def create_acls(call: Call, request: Message) -> Fields:
    """Add entries; each entry is added or refused separately."""
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.CreateAclsRequest(timeout_ms=timeout_ms)
    for each in request.creations:
        asked.entries.add(
            resource_type=each.resource_type,
            resource_name=each.resource_name,
            pattern_type=each.resource_pattern_type,
            principal=each.principal,
            host=each.host,
            operation=each.operation,
            permission=each.permission_type,
        )
    try:
        call.require_cluster()
        answer = await change(call, "CreateAcls", asked, timeout_ms, security_pb2_grpc.SecurityStub)
    except HeadraceError as error:
        return {"results": [_failed(error) for _ in request.creations]}
    return {"results": [_outcome(error) for error in answer.results]}


async def delete_acls(call: Call, request: Message) -> Fields:
    """Remove the entries that match each filter."""
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.DeleteAclsRequest(filters=map(_filter, request.filters), timeout_ms=timeout_ms)
    try:
        call.require_cluster()
        answer = await change(call, "DeleteAcls", asked, timeout_ms, security_pb2_grpc.SecurityStub)
    except HeadraceError as error:
        return {"filter_results": [{**_failed(error), "matching_acls": []} for _ in request.filters]}
    return {
        "filter_results": [
            {
                **_outcome(result.error),
                "matching_acls": [
                    {
                        "error_code": NONE,
                        "resource_type": entry.resource_type,
                        "resource_name": entry.resource_name,
                        "pattern_type": entry.pattern_type,
                        "principal": entry.principal,
                        "host": entry.host,
                        "operation": entry.operation,
                        "permission_type": entry.permission,
                    }
                    for entry in result.removed
                ],
            }
            for result in answer.results
        ]
    }


def _filter(request: Message) -> security_pb2.AclFilter:
    """The filter of a DescribeAcls request, or one filter of a DeleteAcls request."""
    return security_pb2.AclFilter(
        resource_type=request.resource_type_filter,
        resource_name=request.resource_name_filter,
        pattern_type=request.pattern_type_filter,
        principal=request.principal_filter,
        host=request.host_filter,
        operation=request.operation,
        permission=request.permission_type,
    )


def _outcome(error: Any) -> Fields:
    return {"error_code": kafkas(error.code), "error_message": error.message if error.code else None}


def _failed(error: HeadraceError) -> Fields:
    return {"error_code": number(error), "error_message": str(error)}
