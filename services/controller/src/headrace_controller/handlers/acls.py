"""Access control entries over gRPC: DescribeAcls, CreateAcls and DeleteAcls of headrace.v1.Security.

SecurityHandler (security.py) has the methods of all calls.
"""

from __future__ import annotations

from typing import Any

from headrace_core.item_errors import error_to_proto
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import AclRecord
from headrace_core.security.acl import AclFilter
from headrace_protos.v1 import common_pb2, security_pb2

from ..cluster.requests import CreateAcls, DeleteAcls
from ..driver import ControllerDriver

_NO_ID = b""


def describe_acls(image: MetadataImage, request: Any) -> Any:
    """Answer DescribeAcls from an image. Raises InvalidRequestError."""
    wanted = _filter(request.filter)
    wanted.check()
    return security_pb2.DescribeAclsResponse(
        entries=[_message(each) for each in image.security.acls.values() if wanted.matches(each)]
    )


async def create_acls(driver: ControllerDriver, request: Any) -> Any:
    """Answer CreateAcls on the active controller. Raises the errors of ``ControllerDriver.ask``."""
    answer = await driver.ask(CreateAcls(tuple(_record(each) for each in request.entries)))
    return security_pb2.CreateAclsResponse(
        results=[error_to_proto(result.error) or common_pb2.Error() for result in answer.reply],
        metadata_offset=answer.metadata_offset,
    )


async def delete_acls(driver: ControllerDriver, request: Any) -> Any:
    """Answer DeleteAcls on the active controller. Raises the errors of ``ControllerDriver.ask``."""
    answer = await driver.ask(DeleteAcls(tuple(_filter(each) for each in request.filters)))
    return security_pb2.DeleteAclsResponse(
        results=[
            security_pb2.DeleteAclsResult(
                error=error_to_proto(result.error), removed=[_message(each) for each in result.removed]
            )
            for result in answer.reply
        ],
        metadata_offset=answer.metadata_offset,
    )


def _record(message: Any) -> AclRecord:
    return AclRecord(
        _NO_ID,
        message.resource_type,
        message.resource_name,
        message.pattern_type,
        message.principal,
        message.host,
        message.operation,
        message.permission,
    )


def _message(entry: AclRecord) -> Any:
    return security_pb2.AclEntry(
        resource_type=entry.resource_type,  # type: ignore[arg-type]
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,  # type: ignore[arg-type]
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,  # type: ignore[arg-type]
        permission=entry.permission,  # type: ignore[arg-type]
    )


def _filter(message: Any) -> AclFilter:
    return AclFilter(
        resource_type=message.resource_type,
        resource_name=message.resource_name if message.HasField("resource_name") else None,
        pattern_type=message.pattern_type,
        principal=message.principal if message.HasField("principal") else None,
        host=message.host if message.HasField("host") else None,
        operation=message.operation,
        permission=message.permission,
    )
