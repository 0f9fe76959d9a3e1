"""The meaning of a failed call when gRPC, not the server, reports the error."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError, UnknownServerError
from headrace_core.rpc import error_from_rpc


def failed(code: grpc.StatusCode, details: str) -> HeadraceError:
    nothing = grpc.aio.Metadata()
    return error_from_rpc(grpc.aio.AioRpcError(code, nothing, nothing, details=details), "there:1")


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", NetworkError),
        (grpc.StatusCode.CANCELLED, "", NetworkError),
        # In an early version, a member whose coordinator was killed during a heartbeat got the error "Internal error
        # from Core", and left its group permanently.
        (grpc.StatusCode.INTERNAL, "Internal error from Core", NetworkError),
        (grpc.StatusCode.INTERNAL, "somebody's bug", UnknownServerError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", RequestTimedOutError),
    ],
)
def test_what_grpc_says_by_itself(code: grpc.StatusCode, details: str, kind: type[HeadraceError]) -> None:
    error = failed(code, details)
    assert type(error) is kind
    assert "there:1" in error.message


def test_what_broke_in_the_midst_of_a_write_may_have_arrived() -> None:
    error = failed(grpc.StatusCode.INTERNAL, "Internal error from Core")
    assert isinstance(error, NetworkError)
    assert error.retriable
    assert error.was_sent
