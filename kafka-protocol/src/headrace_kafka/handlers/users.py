"""Users with SCRAM credentials (KIP-554): DescribeUserScramCredentials, AlterUserScramCredentials.
AlterUserScramCredentials contains salted passwords, never the passwords themselves."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import HeadraceError
from headrace_protos.v1 import security_pb2, security_pb2_grpc

from ..call import Call
from ..errors import NONE, kafkas, number
from ..wire.schema import Message
from .topics import change

Fields = dict[str, Any]


async def describe_user_scram_credentials(call: Call, request: Message) -> Fields:
    try:
        call.require_cluster()
    except HeadraceError as error:  # answer as Kafka does, with a result that has no user name
        refused = {"error_code": number(error), "error_message": str(error)}
        return {**refused, "results": [{"user": "", **refused}]}
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.DescribeUserScramCredentialsRequest(
        users=[user.name for user in request.users or ()], timeout_ms=timeout_ms
    )
    answer = await call.own(security_pb2_grpc.SecurityStub, "DescribeUserScramCredentials", asked, timeout_ms)
    return {
        "error_code": NONE,
        "results": [
            {
                "user": found.user,
                "error_code": kafkas(found.error.code),
                "error_message": found.error.message if found.error.code else None,
                "credential_infos": [
                    {"mechanism": each.mechanism, "iterations": each.iterations} for each in found.credentials
                ],
            }
            for found in answer.users
        ],
    }


async def alter_user_scram_credentials(call: Call, request: Message) -> Fields:
    timeout_ms = call.settings.request_timeout_ms
    asked = security_pb2.AlterUserScramCredentialsRequest(timeout_ms=timeout_ms)
    for each in request.upsertions:
        asked.upsertions.add(
            user=each.name,
            mechanism=each.mechanism,
            iterations=each.iterations,
            salt=each.salt,
            salted_password=each.salted_password,
        )
    for each in request.deletions:
        asked.deletions.add(user=each.name, mechanism=each.mechanism)
    try:
        call.require_cluster()
        answer = await change(call, "AlterUserScramCredentials", asked, timeout_ms, security_pb2_grpc.SecurityStub)
    except HeadraceError as error:
        users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
        return {"results": [{"user": user, "error_code": number(error), "error_message": str(error)} for user in users]}
    return {
        "results": [
            {
                "user": found.user,
                "error_code": kafkas(found.error.code),
                "error_message": found.error.message if found.error.code else None,
            }
            for found in answer.results
        ]
    }
