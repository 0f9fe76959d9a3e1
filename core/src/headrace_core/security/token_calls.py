"""Calls about delegation tokens at the node that a client calls: the client's identity, and the tokens that the client
may see.

The active controller answers these calls, and the node that the client calls forwards them. Only the node that the
client calls knows the client, so that node writes the client's principal into the request. The controller trusts a
forwarding node because the node's certificate has a role; on an internal listener without TLS it trusts no caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import DelegationTokenRequestNotAllowedError
from .access import current_access
from .acl_types import Operation, ResourceType
from .caller import current_caller
from .gate import INTERNAL
from .principal import ANONYMOUS

#: The calls of headrace.v1.Security that this module handles.
TOKEN_CALLS = frozenset(
    {"CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationTokens"}
)

_DESCRIBE = "DescribeDelegationTokens"


async def call(method: str, request: Any, send: Callable[[Any], Awaitable[Any]]) -> Any:
    """Answer a call of headrace.v1.Security with ``send``, which gets the answer of the active controller; calls that
    do not concern tokens are sent unchanged. Raises the errors of ``of_client``."""
    if method not in TOKEN_CALLS:
        return await send(request)
    answer = await send(of_client(request))
    return seen_by_client(answer) if method == _DESCRIBE else answer


def of_client(request: Any) -> Any:
    """The request with the principal of the current caller, a client. Raises DelegationTokenRequestNotAllowedError for
    a client that has not authenticated, or has authenticated by a token. Raises DelegationTokenAuthorizationFailedError
    for a client that is not authorized to create tokens of the owner in the request."""
    caller = current_caller()
    if caller.role is not None:  # a node forwards the call of its client
        return request
    if caller.principal == ANONYMOUS or caller.token_id is not None:
        raise DelegationTokenRequestNotAllowedError(
            "requests for delegation tokens need a client that has authenticated by a certificate or by SASL, and not "
            "by a delegation token"
        )
    if "requester" not in request.DESCRIPTOR.fields_by_name:
        return request
    asked = type(request)()
    asked.CopyFrom(request)
    asked.requester = str(caller.principal)
    owner = getattr(request, "owner", "")
    if owner and owner != asked.requester:
        current_access().require(Operation.CREATE_TOKENS, ResourceType.USER, owner)
    return asked


def check_caller_is_node() -> None:
    """Check, in the active controller, that a call on the internal listener comes from a node with a certificate.
    Raises DelegationTokenRequestNotAllowedError if not. The calls of clients that call the active controller on its
    other listeners pass the check, too."""
    caller = current_caller()
    if caller.role is None and caller.listener in ("", INTERNAL):
        raise DelegationTokenRequestNotAllowedError(
            "delegation tokens need internal listeners with TLS: listener.security.protocol.map=...,internal:SSL, and "
            "internal.tls.mode=require"
        )


def seen_by_client(answer: Any) -> Any:
    """Remove from the answer to DescribeDelegationTokens the tokens that the current caller is not authorized to see. A
    caller sees the tokens that it owns, has requested, may renew or may DESCRIBE, and tokens of users on whom it has
    DESCRIBE_TOKENS."""
    caller, access = current_caller(), current_access()
    if caller.role is not None:
        return answer
    who = str(caller.principal)
    seen = [
        token
        for token in answer.tokens
        if who in (token.owner, token.requester, *token.renewers)
        or access.sees(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or access.sees(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    ]
    return type(answer)(tokens=seen)
