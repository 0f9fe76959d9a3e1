"""Describe and alter users of SCRAM (KIP-554). The code runs on the I/O thread, except ``wanted_changes``, which checks
arguments in the caller's thread, salts passwords there, and raises InvalidArgumentError."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.item_errors import error_of
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.security.sasl.scram import ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES, SCRAM, salted_password
from headrace_protos.v1 import security_pb2

from .. import arguments
from ..scram_models import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from .calls import AdminCalls, raise_failures

_PAGE = limit_of("Security/AlterUserScramCredentials", "upsertions") // 2
_BY_NUMBER = {SCRAM[each.value].number: each for each in ScramMechanism}


def wanted_changes(changes: Iterable[Any]) -> list[Any]:
    """The changes as protobuf messages."""
    found: list[Any] = []
    for change in arguments.items("changes", changes, "changes of credentials"):
        if not isinstance(change, UserScramCredentialUpsertion | UserScramCredentialDeletion):
            raise InvalidArgumentError("changes: must be UserScramCredentialUpsertion or UserScramCredentialDeletion")
        arguments.text("user", change.user, empty=False)
        mechanism = SCRAM[ScramMechanism(change.mechanism).value]
        if isinstance(change, UserScramCredentialDeletion):
            found.append(security_pb2.ScramDeletion(user=change.user, mechanism=mechanism.number))  # type: ignore[arg-type]
            continue
        if not isinstance(change.password, str) or not change.password:
            raise InvalidArgumentError(f"user {change.user!r}: the password is empty")
        if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
            raise InvalidArgumentError(
                f"user {change.user!r}: iterations={change.iterations} must be {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        salt = secrets.token_bytes(SALT_BYTES) if change.salt is None else change.salt
        found.append(
            security_pb2.ScramUpsertion(
                user=change.user,
                mechanism=mechanism.number,  # type: ignore[arg-type]
                iterations=change.iterations,
                salt=salt,
                salted_password=salted_password(mechanism, change.password, salt, change.iterations),
            )
        )
    return found


async def describe_user_scram_credentials(
    calls: AdminCalls, users: list[str], timeout: float | None
) -> dict[str, list[ScramCredentialInfo]]:
    request = security_pb2.DescribeUserScramCredentialsRequest(users=users)
    answer = await calls.call(
        "DescribeUserScramCredentials", request, timeout, sees_own_writes=True, service="security"
    )
    for each in answer.users:
        error = error_of(each.error)
        if error is not None:
            raise error
    return {
        each.user: [ScramCredentialInfo(_BY_NUMBER[one.mechanism], one.iterations) for one in each.credentials]
        for each in answer.users
    }


async def alter_user_scram_credentials(calls: AdminCalls, changes: list[Any], timeout: float | None) -> None:
    results: list[tuple[str, Any]] = []
    for page in pages(changes, _PAGE):
        request = security_pb2.AlterUserScramCredentialsRequest(
            upsertions=[each for each in page if isinstance(each, security_pb2.ScramUpsertion)],
            deletions=[each for each in page if isinstance(each, security_pb2.ScramDeletion)],
        )
        answer = await calls.change("AlterUserScramCredentials", request, timeout, service="security")
        results += [(each.user, each.error) for each in answer.results]
    raise_failures(results)
