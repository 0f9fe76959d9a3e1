"""Errors of single items as messages (headrace.v1.Error): the failure of one item in a request."""

from __future__ import annotations

from headrace_protos.v1 import common_pb2

from .errors import HeadraceError, from_number

#: Maximum number of characters of an error message in a response. gRPC sends a call's error in trailing metadata, of
#: which clients accept 8 KiB.
MESSAGE_CHARS_MAX = 2_000


def error_to_proto(error: HeadraceError | None) -> common_pb2.Error | None:
    """Convert one item's error to a message; None stays None, and assigning None leaves a protobuf field unset."""
    if error is None:
        return None
    return common_pb2.Error(code=error.number, message=shortened(error.message))  # type: ignore[arg-type]


def error_of(message: common_pb2.Error) -> HeadraceError | None:
    """Return the exception for an item's ``Error`` message; None for the code NONE."""
    return from_number(message.code, message.message) if message.code else None


def shortened(message: str) -> str:
    """Shorten an error's text, which may contain long names from the request."""
    return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 3] + "..."
