"""Convert errors to and from protobuf messages and gRPC statuses.

The failure of one item in a request is an ``Error`` message. The failure of a call is a gRPC status with the details
"CODE: message". The number of the error code is in the trailing metadata, so that clients in any language can read it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from headrace_protos.v1 import common_pb2

from ..errors import (
    BY_CODE,
    ClientError,
    HeadraceError,
    InvalidRequestError,
    NetworkError,
    NotControllerError,
    RequestTimedOutError,
    UnknownServerError,
    UnsupportedVersionError,
    from_number,
)
from ..item_errors import shortened

ERROR_CODE_KEY = "headrace-error-code"
#: Metadata key of NOT_CONTROLLER errors; the value is the leader as "id epoch host:port".
LEADER_KEY = "headrace-controller-leader"
#: gRPC's text for a connection that was never established, so that no request was sent.
_NO_CONNECTION = "failed to connect to all addresses"
#: gRPC's text for a message that is refused by its announced length, before it is received.
_TOO_LARGE = "SERVER: Received message larger than max"
#: Details with which grpc.aio reports, as status INTERNAL, a write on a stream that broke or has ended.
BROKE_INSIDE = "Internal error from Core"

_STATUS = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_CONFIG": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_REQUIRED_ACKS": grpc.StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED_VERSION": grpc.StatusCode.UNIMPLEMENTED,
    "REQUEST_TIMED_OUT": grpc.StatusCode.DEADLINE_EXCEEDED,
    "SERVER_BUSY": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CLUSTER_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "TOPIC_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "GROUP_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "SASL_AUTHENTICATION_FAILED": grpc.StatusCode.UNAUTHENTICATED,
    "UNSUPPORTED_SASL_MECHANISM": grpc.StatusCode.UNAUTHENTICATED,
    "ILLEGAL_SASL_STATE": grpc.StatusCode.UNAUTHENTICATED,
    "UNKNOWN_SERVER_ERROR": grpc.StatusCode.INTERNAL,
}


def raise_proto_error(message: common_pb2.Error) -> None:
    """Raise the exception for an item's ``Error`` message, unless its code is NONE."""
    if message.code:
        raise from_number(message.code, message.message)


def status_of(error: HeadraceError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return the gRPC status, details and trailing metadata for the failure of a call."""
    if isinstance(error, ClientError):  # a client's error inside a server is a bug, and must not look like an answer
        error = UnknownServerError(f"{error.code}: {error.message}")
    default = grpc.StatusCode.UNAVAILABLE if error.retriable else grpc.StatusCode.FAILED_PRECONDITION
    status = _STATUS.get(error.code, default)
    metadata: tuple[tuple[str, str], ...] = ((ERROR_CODE_KEY, str(error.number)),)
    if isinstance(error, NotControllerError) and error.leader is not None:
        metadata += ((LEADER_KEY, "{} {} {}".format(*error.leader)),)
    return status, f"{error.code}: {shortened(error.message)}", metadata


def was_never_sent(failure: grpc.RpcError) -> bool:
    """Whether a call failed before its request left this process, so that the call certainly had no effect."""
    return failure.code() is grpc.StatusCode.UNAVAILABLE and (failure.details() or "").startswith(_NO_CONNECTION)


def error_from_rpc(failure: grpc.RpcError, address: str) -> HeadraceError:
    """Return the error of a failed gRPC call; the message names ``address``."""
    details = failure.details() or ""
    code, _, message = details.partition(": ")
    cls = BY_CODE.get(code)
    if cls is NotControllerError:
        return NotControllerError(f"{message} (from {address})", leader=_leader_in(failure))
    if cls is not None:
        return cls(f"{message} (from {address})")
    status = failure.code()
    broke_inside = status is grpc.StatusCode.INTERNAL and details == BROKE_INSIDE
    if broke_inside or status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        lost = NetworkError(f"{address}: {details or 'connection lost'}")
        lost.was_sent = not was_never_sent(failure)
        return lost
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOutError(f"{address}: no answer before the timeout")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedVersionError(f"{address} does not serve this call: {details}")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in details:
        return InvalidRequestError(f"{address}: {details}; send smaller requests, or raise socket.request.max.bytes")
    if status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return InvalidRequestError(f"{address}: {details}")
    return UnknownServerError(f"{address}: {status.name if status else 'no status'}: {details}")


def _leader_in(failure: grpc.RpcError) -> tuple[int, int, str] | None:
    """Read the leading controller from the trailing metadata; None when the controller is missing or unreadable
    there."""
    leaders = [value for key, value in failure.trailing_metadata() or () if key == LEADER_KEY]
    try:
        node_id, epoch, address = str(leaders[0]).split(" ")
        return int(node_id), int(epoch), address
    except (IndexError, ValueError):
        return None


async def abort(context: Any, error: HeadraceError) -> None:
    """End a server's call with ``error``; the function always raises."""
    status, details, metadata = status_of(error)
    await context.abort(status, details, metadata)
    raise asyncio.CancelledError  # pragma: no cover  (abort raises)
