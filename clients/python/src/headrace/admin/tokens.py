"""Create, renew, expire and describe delegation tokens (KIP-48). The code runs on the I/O thread, except the functions
that check arguments in the caller's thread and raise InvalidArgumentError."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_protos.v1 import security_pb2

from .. import arguments
from ..token_models import DelegationToken
from .calls import AdminCalls

#: The period that the client sends if the caller gives none. For a new token, the server then uses the maximum
#: lifetime; for a renewal, its default period. An expiry with this period takes effect at once.
_DEFAULT = -1


def wanted_principals(name: str, principals: Iterable[str]) -> list[str]:
    found = arguments.texts(name, principals)
    for each in found:
        if ":" not in each:
            raise InvalidArgumentError(f"{name}: {each!r} is not a principal; write User:{each}")
    return found


def wanted_owners(owners: Iterable[str] | None) -> list[str]:
    return [] if owners is None else wanted_principals("owners", owners)


def wanted_period(name: str, period_ms: int | None) -> int:
    """Return ``period_ms``, or -1 for None: in Kafka's protocol, -1 means the default."""
    return _DEFAULT if period_ms is None else arguments.whole(name, period_ms, _DEFAULT)


def wanted_hmac(hmac: bytes) -> bytes:
    if not isinstance(hmac, bytes) or not hmac:
        raise InvalidArgumentError("hmac: must be the bytes of a DelegationToken's hmac")  # without the secret
    return hmac


async def create(
    calls: AdminCalls, renewers: list[str], owner: str, lifetime_ms: int, timeout: float | None
) -> DelegationToken:
    request = security_pb2.CreateDelegationTokenRequest(owner=owner, renewers=renewers, max_lifetime_ms=lifetime_ms)
    answer = await calls.change("CreateDelegationToken", request, timeout, service="security")
    return _token(answer.token)


async def renew(calls: AdminCalls, hmac: bytes, period_ms: int, timeout: float | None) -> int:
    request = security_pb2.RenewDelegationTokenRequest(hmac=hmac, period_ms=period_ms)
    answer = await calls.change("RenewDelegationToken", request, timeout, service="security")
    return int(answer.expires_at_ms)


async def expire(calls: AdminCalls, hmac: bytes, period_ms: int, timeout: float | None) -> int:
    request = security_pb2.ExpireDelegationTokenRequest(hmac=hmac, period_ms=period_ms)
    answer = await calls.change("ExpireDelegationToken", request, timeout, service="security")
    return int(answer.expires_at_ms)


async def describe(calls: AdminCalls, owners: list[str], timeout: float | None) -> list[DelegationToken]:
    request = security_pb2.DescribeDelegationTokensRequest(owners=owners)
    answer = await calls.call("DescribeDelegationTokens", request, timeout, sees_own_writes=True, service="security")
    return [_token(each) for each in answer.tokens]


def _token(found: Any) -> DelegationToken:
    return DelegationToken(
        found.token_id,
        found.hmac,
        found.owner,
        found.requester,
        tuple(found.renewers),
        found.issued_at_ms,
        found.expires_at_ms,
        found.max_lifetime_at_ms,
    )
