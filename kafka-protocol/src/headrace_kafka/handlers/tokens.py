"""Delegation tokens (KIP-48, KIP-373): CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken,
DescribeDelegationToken.

As in Kafka, only a client that has authenticated by a certificate or by SASL can request tokens; a client that has
authenticated by a token cannot.
"""

from __future__ import annotations

from typing import Any

from headrace_core.errors import (
    DelegationTokenAuthDisabledError,
    DelegationTokenRequestNotAllowedError,
    HeadraceError,
)
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.security.principal import ANONYMOUS, USER, Principal
from headrace_core.security.protocols import SecurityProtocol
from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..call import Call
from ..errors import NONE, number
from ..wire.schema import Message
from .topics import change

Fields = dict[str, Any]

_NO_TIME = -1  #: The timestamp in the answer to a failed request.


def _check_client(call: Call) -> None:
    """Raise DelegationTokenRequestNotAllowedError unless the client has authenticated by a certificate or by SASL
    without a token."""
    client = call.client
    is_unknown = client.protocol is SecurityProtocol.SSL and client.principal == ANONYMOUS
    if client.token_id is not None or client.protocol is SecurityProtocol.PLAINTEXT or is_unknown:
        raise DelegationTokenRequestNotAllowedError(
            "requests for delegation tokens need a client that has authenticated by a certificate or by SASL, and not "
            "by a delegation token"
        )


def _check_tokens(call: Call) -> None:
    """Raise DelegationTokenAuthDisabledError if this broker could not authenticate a token."""
    if not call.settings.has_tokens:
        raise DelegationTokenAuthDisabledError(
            "delegation tokens are disabled on this broker: set delegation.token.secret.key on all nodes"
        )


async def create_delegation_token(call: Call, request: Message) -> Fields:
    requester = call.client.principal
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or USER, request.owner_principal_name)
    fields: Fields = {
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.kind,
        "token_requester_principal_name": requester.name,
        "issue_timestamp": _NO_TIME,
        "expiry_timestamp": _NO_TIME,
        "max_timestamp": _NO_TIME,
    }
    timeout_ms = call.settings.request_timeout_ms
    try:
        _check_client(call)
        if owner != requester:
            call.require(Operation.CREATE_TOKENS, ResourceType.USER, str(owner))
        _check_tokens(call)
        asked = security_pb2.CreateDelegationTokenRequest(
            owner="" if owner == requester else str(owner),
            renewers=[str(Principal(each.principal_type, each.principal_name)) for each in request.renewers],
            max_lifetime_ms=request.max_lifetime,
            timeout_ms=timeout_ms,
        )
        answer = await change(call, "CreateDelegationToken", asked, timeout_ms, security_pb2_grpc.SecurityStub)
    except HeadraceError as error:
        return {**fields, "error_code": number(error)}
    token = answer.token
    return {
        **fields,
        "error_code": NONE,
        "issue_timestamp": token.issued_at_ms,
        "expiry_timestamp": token.expires_at_ms,
        "max_timestamp": token.max_lifetime_at_ms,
        "token_id": token.token_id,
        "hmac": token.hmac,
    }


async def renew_delegation_token(call: Call, request: Message) -> Fields:
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.RenewDelegationTokenRequest(
        hmac=request.hmac, period_ms=request.renew_period, timeout_ms=timeout_ms
    )
    return await _expiry(call, "RenewDelegationToken", asked, timeout_ms)


async def expire_delegation_token(call: Call, request: Message) -> Fields:
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.ExpireDelegationTokenRequest(
        hmac=request.hmac, period_ms=request.expiry_time_period, timeout_ms=timeout_ms
    )
    return await _expiry(call, "ExpireDelegationToken", asked, timeout_ms)


async def _expiry(call: Call, method: str, asked: Any, timeout_ms: int) -> Fields:
    try:
        _check_client(call)
        _check_tokens(call)
        answer = await change(call, method, asked, timeout_ms, security_pb2_grpc.SecurityStub)
    except HeadraceError as error:
        return {"error_code": number(error), "expiry_timestamp": _NO_TIME}
    return {"error_code": NONE, "expiry_timestamp": answer.expires_at_ms}


async def describe_delegation_token(call: Call, request: Message) -> Fields:
    """The tokens that the client owns, or is authorized to renew or to describe. Owners null means the tokens of all
    owners; an empty list of owners means no tokens."""
    _check_client(call)
    _check_tokens(call)
    timeout_ms = call.settings.request_timeout_ms
    owners = request.owners
    asked = security_pb2.DescribeDelegationTokensRequest(
        owners=[str(Principal(each.principal_type, each.principal_name)) for each in owners or ()],
        timeout_ms=timeout_ms,
    )
    answer = await call.own(security_pb2_grpc.SecurityStub, "DescribeDelegationTokens", asked, timeout_ms)
    is_none = owners is not None and not owners
    return {"error_code": NONE, "tokens": [] if is_none else [_described(token) for token in answer.tokens]}


def _described(token: Any) -> Fields:
    (kind, name), (requester_kind, requester) = _parts(token.owner), _parts(token.requester or token.owner)
    return {
        "principal_type": kind,
        "principal_name": name,
        "token_requester_principal_type": requester_kind,
        "token_requester_principal_name": requester,
        "issue_timestamp": token.issued_at_ms,
        "expiry_timestamp": token.expires_at_ms,
        "max_timestamp": token.max_lifetime_at_ms,
        "token_id": token.token_id,
        "hmac": token.hmac,
        "renewers": [
            dict(zip(("principal_type", "principal_name"), _parts(each), strict=True)) for each in token.renewers
        ],
    }


def _parts(principal: str) -> tuple[str, str]:
    kind, _, name = principal.partition(":")
    return kind, name
