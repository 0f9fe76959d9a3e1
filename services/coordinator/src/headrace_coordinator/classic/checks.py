"""Checks of requests of the classic protocol."""

from __future__ import annotations

from headrace_core.errors import (
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
)

from .messages import Join
from .settings import ClassicSettings


def check_group_id(group_id: str, bytes_max: int) -> None:
    """Raise InvalidGroupIdError for an empty or too long group id."""
    if not group_id:
        raise InvalidGroupIdError("the group id is empty: set group.id")
    if (size := len(group_id.encode())) > bytes_max:
        raise InvalidGroupIdError(f"the group id is too long: {size} bytes, at most {bytes_max} are allowed")


def check_join(request: Join, settings: ClassicSettings) -> None:
    """Check the fields of the request without looking at the group. Raises InvalidGroupIdError, InvalidRequestError,
    InvalidSessionTimeoutError, InconsistentGroupProtocolError."""
    check_group_id(request.group_id, settings.name_bytes_max)
    for what, value in (
        ("member_id", request.member_id),
        ("group_instance_id", request.instance_id or ""),
        ("client_id", request.client_id),
        ("client_host", request.client_host),
        ("protocol_type", request.protocol_type),
        *(("a protocol's name", name) for name, _ in request.protocols),
    ):
        if len(value.encode()) > 4 * settings.name_bytes_max:
            raise InvalidRequestError(f"{what} has more than {4 * settings.name_bytes_max} bytes; shorten it")
    if request.instance_id == "":
        raise InvalidRequestError("group_instance_id is empty: leave it out, or set group.instance.id")
    low, high = settings.session_timeout_min_ms, settings.session_timeout_max_ms
    if not low <= request.session_timeout_ms <= high:
        raise InvalidSessionTimeoutError(
            f"session.timeout.ms={request.session_timeout_ms}: must be from {low} to {high} "
            "(group.min.session.timeout.ms, group.max.session.timeout.ms of the coordinators)"
        )
    if not request.protocols or not request.protocol_type:
        raise InconsistentGroupProtocolError("a member needs a protocol type and at least one protocol")


def rebalance_timeout_ms(request: Join) -> int:
    """Milliseconds that a rebalance waits for the member. JoinGroup version 0 has only a session timeout, which is used
    instead."""
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms
