"""SCRAM users over gRPC: DescribeUserScramCredentials and AlterUserScramCredentials of headrace.v1.Security (KIP-554).

SecurityHandler (security.py) has the methods of all calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_to_proto
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.records import ScramCredentialRecord
from headrace_core.rpc.turns import Turns
from headrace_protos.v1 import security_pb2

from ..cluster import users
from ..cluster.requests import AlterScramCredentials, ScramDeletion, ScramUpsertion
from ..driver import ControllerDriver


async def describe_users(image: MetadataImage, request: Any) -> Any:
    """Answer DescribeUserScramCredentials from an image, in turns. Raises InvalidRequestError."""

    def described(each: tuple[str, HeadraceError | None, Sequence[ScramCredentialRecord]]) -> Any:
        user, error, records = each
        return security_pb2.UserScramCredentials(
            user=user,
            error=error_to_proto(error),
            credentials=[
                security_pb2.ScramCredentialInfo(mechanism=each.mechanism, iterations=each.iterations)  # type: ignore[arg-type]
                for each in records
            ],
        )

    found = list(users.described(image, list(request.users)))
    async with Turns(len(found)) as turns:
        return security_pb2.DescribeUserScramCredentialsResponse(users=await turns.each(found, described))


async def alter_users(driver: ControllerDriver, request: Any) -> Any:
    """Answer AlterUserScramCredentials on the active controller. Raises the errors of ``ControllerDriver.ask``."""
    answer = await driver.ask(
        AlterScramCredentials(
            tuple(
                ScramUpsertion(each.user, each.mechanism, each.iterations, each.salt, each.salted_password)
                for each in request.upsertions
            ),
            tuple(ScramDeletion(each.user, each.mechanism) for each in request.deletions),
        )
    )
    return security_pb2.AlterUserScramCredentialsResponse(
        results=[
            security_pb2.AlterUserScramCredentialsResult(user=each.user, error=error_to_proto(each.error))
            for each in answer.reply
        ],
        metadata_offset=answer.metadata_offset,
    )
