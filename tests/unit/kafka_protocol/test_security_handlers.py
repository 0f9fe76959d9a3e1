"""ACLs, users, quotas and delegation tokens: Kafka's requests as calls to nodes, and the answers back. Every message is
written and read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from headrace_core.errors import SecurityDisabledError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.quotas import CONNECTION_CREATION_RATE, REQUEST_PERCENTAGE, QuotaManager
from headrace_core.security.principal import ANONYMOUS, Principal
from headrace_core.security.protocols import SecurityProtocol
from headrace_kafka.call import Call
from headrace_kafka.client import Client
from headrace_kafka.cluster import Cluster
from headrace_kafka.handlers import acls, quotas, tokens, topics, users
from headrace_kafka.quotas import ClientQuotas
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire.apis import VERSIONS, Api
from headrace_kafka.wire.schema import Message, request_body, response_body
from headrace_protos.v1 import access_pb2, admin_pb2, common_pb2, security_pb2

ALICE = Principal("User", "alice")
Handler = Callable[[Call, Message], Awaitable[dict[str, Any] | None]]


class Node:
    """Answers every call with ``answer``, or raises it. ``asked``: the last method and request."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: tuple[str, Any] = ("", None)

    async def own(self, client: Client, stub: Any, method: str, request: Any, timeout_ms: float) -> Any:
        self.asked = (method, request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ask(
    handler: Handler,
    api: Api,
    node: Node,
    version: int | None = None,
    *,
    protocol: SecurityProtocol = SecurityProtocol.SASL_SSL,
    principal: Principal = ALICE,
    token_id: str | None = None,
    has_tokens: bool = True,
    **fields: Any,
) -> Message:
    version = VERSIONS[api].high if version is None else version
    client = Client(host="10.0.0.1", listener="SECURE", principal=principal, protocol=protocol)
    client.token_id = token_id
    settings = KafkaSettings(has_tokens=has_tokens)
    call = Call(client, api, version, "", Cluster(MetadataState()), cast("Any", node), settings)
    request = request_body(api, version).read(bytes(request_body(api, version).write(fields)))
    answer = asyncio.run(cast("Any", handler(call, request)))
    body = response_body(api, version)
    return body.read(bytes(body.write(answer)))


ENTRY = security_pb2.AclEntry(
    resource_type=access_pb2.ACL_RESOURCE_TYPE_TOPIC,
    resource_name="orders",
    pattern_type=access_pb2.ACL_PATTERN_TYPE_PREFIXED,
    principal="User:bob",
    host="*",
    operation=access_pb2.ACL_OPERATION_READ,
    permission=access_pb2.ACL_PERMISSION_ALLOW,
)
FILTER: dict[str, Any] = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:bob",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_described_by_pattern(version: int) -> None:
    node = Node(security_pb2.DescribeAclsResponse(entries=[ENTRY, ENTRY]))
    answer = ask(acls.describe_acls, Api.DESCRIBE_ACLS, node, version, **FILTER)
    method, asked = node.asked
    assert (method, asked.filter.principal, asked.filter.resource_type) == ("DescribeAcls", "User:bob", 2)
    assert not asked.filter.HasField("resource_name")
    assert not asked.filter.HasField("host")
    (pattern,) = answer.resources
    assert (pattern.resource_type, pattern.resource_name, pattern.pattern_type) == (2, "orders", 4)
    assert [(each.principal, each.host, each.operation, each.permission_type) for each in pattern.acls] == [
        ("User:bob", "*", 3, 3)
    ] * 2


def test_acls_are_created_and_removed_one_by_one() -> None:
    creation = {"resource_type": 2, "resource_name": "orders", "resource_pattern_type": 4, "principal": "User:bob",
                "host": "*", "operation": 3, "permission_type": 3}  # fmt: skip
    failed = common_pb2.Error(code=42, message="no")  # type: ignore[arg-type]
    node = Node(security_pb2.CreateAclsResponse(results=[common_pb2.Error(), failed]))
    made = ask(acls.create_acls, Api.CREATE_ACLS, node, creations=[creation, creation])
    assert [(each.error_code, each.error_message) for each in made.results] == [(0, None), (42, "no")]
    assert list(node.asked[1].entries) == [ENTRY, ENTRY]
    node = Node(security_pb2.DeleteAclsResponse(results=[security_pb2.DeleteAclsResult(removed=[ENTRY])]))
    (result,) = ask(acls.delete_acls, Api.DELETE_ACLS, node, filters=[FILTER]).filter_results
    assert [(each.error_code, each.resource_name, each.principal) for each in result.matching_acls] == [
        (0, "orders", "User:bob")
    ]
    node = Node(SecurityDisabledError("no authorizer"))
    assert [each.error_code for each in ask(acls.create_acls, Api.CREATE_ACLS, node, creations=[creation]).results] == [
        54
    ]
    assert ask(acls.delete_acls, Api.DELETE_ACLS, node, filters=[FILTER]).filter_results[0].error_code == 54


def test_users_have_mechanisms_and_iterations_and_no_passwords() -> None:
    user = security_pb2.UserScramCredentials(user="bob")
    user.credentials.add(mechanism=2, iterations=4_096)
    node = Node(security_pb2.DescribeUserScramCredentialsResponse(users=[user]))
    answer = ask(
        users.describe_user_scram_credentials,
        Api.DESCRIBE_USER_SCRAM_CREDENTIALS,
        node,
        users=[{"name": "bob"}],
    )
    assert list(node.asked[1].users) == ["bob"]
    ((info,),) = (each.credential_infos for each in answer.results)
    assert (info.mechanism, info.iterations) == (2, 4_096)
    node = Node(
        security_pb2.AlterUserScramCredentialsResponse(
            results=[security_pb2.AlterUserScramCredentialsResult(user="bob")]
        )
    )
    upsertion = {"name": "bob", "mechanism": 1, "iterations": 5_000, "salt": b"s", "salted_password": b"p"}
    altered = ask(
        users.alter_user_scram_credentials,
        Api.ALTER_USER_SCRAM_CREDENTIALS,
        node,
        upsertions=[upsertion],
        deletions=[{"name": "carol", "mechanism": 2}],
    )
    assert [(each.user, each.error_code) for each in altered.results] == [("bob", 0)]
    (asked,) = node.asked[1].upsertions
    assert (asked.user, asked.mechanism, asked.iterations, asked.salt, asked.salted_password) == (
        "bob", 1, 5_000, b"s", b"p",
    )  # fmt: skip
    assert [(each.user, each.mechanism) for each in node.asked[1].deletions] == [("carol", 2)]


def test_quotas_of_entities_and_their_defaults() -> None:
    entry = security_pb2.QuotaEntry()
    entry.entity.add(type="user")
    entry.entity.add(type="client-id", name="app")
    entry.values.add(key="producer_byte_rate", value=10.5)
    node = Node(security_pb2.DescribeClientQuotasResponse(entries=[entry]))
    components = [
        {"entity_type": "user", "match_type": 1, "match": None},
        {"entity_type": "client-id", "match_type": 0, "match": "app"},
        {"entity_type": "ip", "match_type": 2, "match": None},
    ]
    answer = ask(quotas.describe_client_quotas, Api.DESCRIBE_CLIENT_QUOTAS, node, components=components, strict=True)
    parts = node.asked[1].parts
    assert [part.WhichOneof("match") for part in parts] == ["default", "exact", None]
    (found,) = answer.entries
    assert [(each.entity_type, each.entity_name) for each in found.entity] == [("user", None), ("client-id", "app")]
    assert [(each.key, each.value) for each in found.values] == [("producer_byte_rate", 10.5)]
    node = Node(security_pb2.AlterClientQuotasResponse(results=[common_pb2.Error()]))
    changed = {
        "entity": [{"entity_type": "user", "entity_name": None}],
        "ops": [
            {"key": "request_percentage", "value": 50.0, "remove": False},
            {"key": "producer_byte_rate", "value": 0.0, "remove": True},
        ],
    }
    altered = ask(quotas.alter_client_quotas, Api.ALTER_CLIENT_QUOTAS, node, entries=[changed], validate_only=True)
    (asked,) = node.asked[1].alterations
    assert node.asked[1].validate_only
    assert not asked.entity[0].HasField("name")
    assert [each.HasField("value") for each in asked.operations] == [True, False]
    assert [(each.error_code, each.entity[0].entity_name) for each in altered.entries] == [(0, None)]


TOKEN = security_pb2.DelegationToken(
    token_id="t", owner="User:alice", requester="User:alice", renewers=["User:bob"], issued_at_ms=1, expires_at_ms=2,
    max_lifetime_at_ms=3, hmac=b"h",
)  # fmt: skip


def test_a_token_is_created_and_described() -> None:
    node = Node(security_pb2.CreateDelegationTokenResponse(token=TOKEN))
    renewers = [{"principal_type": "User", "principal_name": "bob"}]
    made = ask(tokens.create_delegation_token, Api.CREATE_DELEGATION_TOKEN, node, renewers=renewers, max_lifetime=-1)
    assert (made.error_code, made.token_id, made.hmac, made.principal_name) == (0, "t", b"h", "alice")
    assert (node.asked[1].owner, list(node.asked[1].renewers), node.asked[1].max_lifetime_ms) == (
        "", ["User:bob"], -1,
    )  # fmt: skip
    node = Node(security_pb2.DescribeDelegationTokensResponse(tokens=[TOKEN]))
    (shown,) = ask(tokens.describe_delegation_token, Api.DESCRIBE_DELEGATION_TOKEN, node, owners=None).tokens
    assert (shown.token_requester_principal_name, shown.renewers[0].principal_name, shown.max_timestamp) == (
        "alice", "bob", 3,
    )  # fmt: skip
    assert ask(tokens.describe_delegation_token, Api.DESCRIBE_DELEGATION_TOKEN, node, owners=[]).tokens == []
    node = Node(security_pb2.RenewDelegationTokenResponse(expires_at_ms=9))
    renewed = ask(tokens.renew_delegation_token, Api.RENEW_DELEGATION_TOKEN, node, hmac=b"h", renew_period=5)
    assert (renewed.error_code, renewed.expiry_timestamp, node.asked[1].period_ms) == (0, 9, 5)


@pytest.mark.parametrize(
    "who",
    [
        {"protocol": SecurityProtocol.PLAINTEXT},
        {"protocol": SecurityProtocol.SSL, "principal": ANONYMOUS},
        {"token_id": "t"},
        {"has_tokens": False, "protocol": SecurityProtocol.PLAINTEXT},
    ],
)
def test_tokens_are_only_for_clients_that_proved_who_they_are(who: dict[str, Any]) -> None:
    node = Node(None)
    not_allowed = 64
    made = ask(tokens.create_delegation_token, Api.CREATE_DELEGATION_TOKEN, node, **who, renewers=[], max_lifetime=-1)
    assert made.error_code == not_allowed
    expired = ask(
        tokens.expire_delegation_token, Api.EXPIRE_DELEGATION_TOKEN, node, **who, hmac=b"h", expiry_time_period=-1
    )
    assert (expired.error_code, expired.expiry_timestamp) == (not_allowed, -1)
    assert node.asked == ("", None)


def test_a_gateway_without_the_secret_has_no_tokens() -> None:
    node = Node(None)
    made = ask(
        tokens.create_delegation_token, Api.CREATE_DELEGATION_TOKEN, node, has_tokens=False, renewers=[], max_lifetime=1
    )
    disabled = 61
    assert made.error_code == disabled
    renewed = ask(
        tokens.renew_delegation_token, Api.RENEW_DELEGATION_TOKEN, node, has_tokens=False, hmac=b"h", renew_period=5
    )
    assert renewed.error_code == disabled
    assert node.asked == ("", None)


def test_a_client_over_its_mutation_quota_learns_how_long_to_wait() -> None:
    text = "user 'alice' with client id '' has exceeded its controller_mutation_rate; retry in 1234 ms"
    error = common_pb2.Error(code=89, message=text)  # type: ignore[arg-type]
    node = Node(admin_pb2.DeleteTopicsResponse(results=[admin_pb2.DeleteTopicResult(name="orders", error=error)]))
    client = Client(host="10.0.0.1", listener="SECURE")
    call = Call(client, Api.DELETE_TOPICS, 6, "", Cluster(MetadataState()), cast("Any", node),
                KafkaSettings())  # fmt: skip
    asyncio.run(topics.change(call, "DeleteTopics", admin_pb2.DeleteTopicsRequest(), 1_000))
    assert call.throttle_ms == 1_234


def test_quotas_of_time_and_of_connections_are_the_brokers() -> None:
    quotas = QuotaManager()
    alice = ClientQuotas(quotas)
    assert not alice.measures_work
    quotas.apply(
        {
            (("user", "alice"),): {REQUEST_PERCENTAGE: 1.0},
            (("ip", None),): {CONNECTION_CREATION_RATE: 1.0},
        }
    )
    assert alice.measures_work
    assert alice.worked_ms("alice", "app", 0.5) > 0
    assert alice.worked_ms("bob", "app", 0.5) == 0
    assert alice.connected_ms("10.0.0.1") == 0
    assert sum(alice.connected_ms("10.0.0.1") for _ in range(5)) > 0
    assert alice.connected_ms("10.0.0.2") == 0
