"""Delegation tokens in the metadata (KIP-48, KIP-373).

A token lets its holder act as its owner until it expires. The log has no secret of a token: the holder's password is
the HMAC of the token's id, which nodes compute (core/security/sasl/tokens.py). The rules compare wall-clock times of
the active controller, which each request contains.
"""

from __future__ import annotations

from typing import NoReturn

import msgspec

from headrace_core.errors import (
    DelegationTokenExpiredError,
    DelegationTokenNotFoundError,
    DelegationTokenOwnerMismatchError,
    InvalidPrincipalTypeError,
    InvalidRequestError,
    PolicyViolationError,
    UnsupportedVersionError,
)
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from headrace_core.security.principal import USER, parse_principal

from .decision import Decision, View
from .requests import CreateToken, ExpireToken, RemoveExpiredTokens, RenewToken

#: The first level of metadata.version at which the metadata log may have delegation tokens.
LEVEL = 3
TOKENS_MAX = 10_000  #: Maximum number of tokens: every node keeps all of them in memory.
#: Maximum number of tokens that one principal may request, so that one user cannot use up the limit of the cluster.
TOKENS_OF_REQUESTER_MAX = 1_000
RENEWERS_MAX = 100  #: Maximum number of a token's renewers.
PRINCIPALS_BYTES_MAX = 4_096  #: Maximum bytes of a token's owner and renewers: every node keeps all of them in memory.
TIME_MAX_MS = 2**62  #: Times above this maximum are replaced by the maximum, so that sums fit into 64 bits.


def create(view: View, request: CreateToken) -> Decision:
    """Reply: the token's record."""
    image, settings = view.image, view.settings
    if image.metadata_version < LEVEL:
        raise UnsupportedVersionError(
            f"delegation tokens need metadata.version {LEVEL}, but the cluster has {image.metadata_version}; "
            "upgrade all nodes, then run headrace features upgrade"
        )
    if len(image.security.tokens) >= TOKENS_MAX:
        raise PolicyViolationError(f"a cluster can have at most {TOKENS_MAX} delegation tokens; expire some")
    asked = sum(each.requester == request.requester for each in image.security.tokens.values())
    if asked >= TOKENS_OF_REQUESTER_MAX:
        raise PolicyViolationError(
            f"{request.requester} has requested {asked} delegation tokens, the maximum for one user; the owners of "
            f"these tokens can expire some"
        )
    if len(request.renewers) > RENEWERS_MAX:
        raise InvalidRequestError(
            f"the request names {len(request.renewers)} renewers, a token can have at most {RENEWERS_MAX}; name fewer"
        )
    principals = (request.owner, *request.renewers)
    if (size := sum(len(each.encode()) for each in principals)) > PRINCIPALS_BYTES_MAX:
        raise InvalidRequestError(
            f"the token's owner and renewers have {size} bytes, at most {PRINCIPALS_BYTES_MAX} are allowed; name fewer "
            "renewers"
        )
    for principal in principals:
        _check_user(principal)
    longest_ms = settings.delegation_token_max_lifetime_ms
    lifetime_ms = longest_ms if request.lifetime_ms <= 0 else min(request.lifetime_ms, longest_ms)
    ends_ms = _at(request.at_ms, lifetime_ms)
    record = DelegationTokenRecord(
        request.token_id,
        request.owner,
        request.requester,
        tuple(dict.fromkeys(request.renewers)),
        request.at_ms,
        min(ends_ms, _at(request.at_ms, settings.delegation_token_expiry_time_ms)),
        ends_ms,
    )
    return Decision((record,), record)


def renew(view: View, request: RenewToken) -> Decision:
    """Reply: when the token expires, in milliseconds since 1970."""
    token = _token(view.image, request)
    _check_lives(token, request.at_ms)
    _check_may(token, request)
    default_ms = view.settings.delegation_token_expiry_time_ms
    period_ms = default_ms if request.period_ms <= 0 else min(request.period_ms, default_ms)
    return _expires(token, request.at_ms, period_ms)


def expire(view: View, request: ExpireToken) -> Decision:
    """Reply: when the token expires, in milliseconds since 1970."""
    token = _token(view.image, request)
    _check_may(token, request)
    if request.period_ms < 0:
        return Decision((RemoveDelegationTokenRecord(token.token_id),), request.at_ms)
    _check_lives(token, request.at_ms)
    return _expires(token, request.at_ms, request.period_ms)


def remove_expired(view: View, request: RemoveExpiredTokens) -> Decision:
    """Remove expired tokens, up to the maximum number of records of one request; the reply is the number of removed
    tokens."""
    gone = [each.token_id for each in view.image.security.tokens.values() if each.expires_at_ms < request.at_ms]
    gone = gone[: view.settings.metadata_max_records_per_request]
    return Decision(tuple(map(RemoveDelegationTokenRecord, gone)), len(gone))


def has_expired(image: MetadataImage, at_ms: int) -> bool:
    """Whether ``remove_expired`` has work."""
    return any(each.expires_at_ms < at_ms for each in image.security.tokens.values())


def _expires(token: DelegationTokenRecord, at_ms: int, period_ms: int) -> Decision:
    expires_ms = min(token.max_lifetime_at_ms, _at(at_ms, period_ms))
    return Decision((msgspec.structs.replace(token, expires_at_ms=expires_ms),), expires_ms)


def _at(now_ms: int, later_ms: int) -> int:
    return min(now_ms + later_ms, TIME_MAX_MS)


def _token(image: MetadataImage, request: RenewToken | ExpireToken) -> DelegationTokenRecord:
    found = image.security.tokens.get(request.token_id)
    if found is None:
        raise DelegationTokenNotFoundError("no delegation token has this HMAC; it may have expired")
    return found


def _check_may(token: DelegationTokenRecord, request: RenewToken | ExpireToken) -> None:
    """Raise DelegationTokenOwnerMismatchError unless the requester is the token's owner or one of its renewers. (In
    Kafka 4.3, too, the requester of another user's token cannot renew or expire the token.)"""
    if request.requester not in (token.owner, *token.renewers):
        raise DelegationTokenOwnerMismatchError(
            f"{request.requester} is neither the owner nor a renewer of delegation token {token.token_id}"
        )


def _check_lives(token: DelegationTokenRecord, at_ms: int) -> None:
    if min(token.expires_at_ms, token.max_lifetime_at_ms) < at_ms:
        raise DelegationTokenExpiredError(f"delegation token {token.token_id} has expired; create another one")


def _check_user(principal: str) -> None:
    try:
        kind = parse_principal(principal).kind
    except InvalidRequestError:
        _refuse(principal)
    if kind != USER or not principal.isprintable():
        _refuse(principal)


def _refuse(principal: str) -> NoReturn:
    raise InvalidPrincipalTypeError(
        f"principal {principal[:60]!r}: owners and renewers of delegation tokens are users, such as User:alice"
    )
