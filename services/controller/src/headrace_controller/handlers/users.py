"""SCRAM users over gRPC: DescribeUserScramCredentials and AlterUserScramCredentials of headrace.v1.Security (KIP-554).

SecurityHandler (security.py) has the methods of all calls.
"""

from __future__ import annotations

from typing import Any

from headrace_core.item_errors import error_to_proto
from headrace_core.metadata import MetadataImage
from headrace_protos.v1 import security_pb2

from ..cluster import users
from ..cluster.requests import AlterScramCredentials, ScramDeletion, ScramUpsertion
from ..driver import ControllerDriver


def describe_users(image: MetadataImage, request: Any) -> Any:
    """Answer DescribeUserScramCredentials from an image. Raises InvalidRequestError."""
    return security_pb2.DescribeUserScramCredentialsResponse(
        users=[
            security_pb2.UserScramCredentials(
                user=user,
                error=error_to_proto(error),
                credentials=[
                    security_pb2.ScramCredentialInfo(mechanism=each.mechanism, iterations=each.iterations)  # type: ignore[arg-type]
                    for each in records
                ],
            )
            for user, error, records in users.described(image, list(request.users))
        ]
    )


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
