"""The authorizer of a node follows the node's configuration and its metadata image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace_core.errors import ClusterAuthorizationFailedError, InvalidConfigError, SaslAuthenticationFailedError
from headrace_core.metadata.records import AclRecord, RemoveAclRecord
from headrace_core.metadata.security import SecurityBuilder, SecurityImage
from headrace_core.metadata.sorted_map import SortedMap
from headrace_core.security.access import Access
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.audit import (
    LINES_PER_S_MAX,
    LOGINS_PER_S_MAX,
    UNKNOWN_PER_S_MAX,
    AuditLog,
    audit_log_of,
)
from headrace_core.security.authorization import authorization_of, parse_super_users
from headrace_core.security.caller import Caller
from headrace_core.security.certificates import NodeIdentity
from headrace_core.security.gate import SESSION_KEY, Gate
from headrace_core.security.principal import Principal

ALICE = Caller(Principal("User", "alice"), "10.0.0.1")
READ_ORDERS = AclRecord(
    b"a" * 16, ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)
KEYS = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:root; User:CN=ops,O=Example"}


def test_a_changed_image_applies_to_the_next_check_of_an_open_stream() -> None:
    images = [SecurityImage()]
    access = Access(ALICE, authorization_of(KEYS, lambda: images[-1]))
    assert not access.allows(Operation.READ, ResourceType.TOPIC, "orders")
    before = access.authorization.authorizer
    images.append(SecurityImage(acls={READ_ORDERS.acl_id: READ_ORDERS}))
    assert access.authorization.authorizer is not before
    assert access.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert access.authorization.authorizer is access.authorization.authorizer


def test_a_small_change_of_many_entries_applies_to_the_next_request() -> None:
    def entry(number: int, permission: Permission = Permission.ALLOW) -> AclRecord:
        name = f"t{number // 2}"
        return replace(READ_ORDERS, acl_id=number.to_bytes(16, "big"), resource_name=name, permission=permission)

    images = [SecurityImage(acls=SortedMap({each.acl_id: each for each in map(entry, range(40))}))]
    authorization = authorization_of(KEYS, lambda: images[-1])
    access = Access(ALICE, authorization)
    assert all(access.allows(Operation.READ, ResourceType.TOPIC, f"t{number}") for number in range(20))
    assert access.granted(Operation.READ, ResourceType.TOPIC) == {f"t{number}" for number in range(20)}
    builder = SecurityBuilder(images[-1])
    builder.replay(RemoveAclRecord(entry(6).acl_id))
    builder.replay(entry(9, Permission.DENY))
    builder.replay(replace(READ_ORDERS, resource_name="new"))
    images.append(builder.finish())
    assert access.granted(Operation.READ, ResourceType.TOPIC) == set()
    allowed = {f"t{number}" for number in range(20) if access.allows(Operation.READ, ResourceType.TOPIC, f"t{number}")}
    assert allowed == {f"t{number}" for number in range(20)} - {"t4"}
    assert access.allows(Operation.READ, ResourceType.TOPIC, "new")
    removed = SecurityBuilder(images[-1])
    removed.replay(RemoveAclRecord(entry(7).acl_id))
    images.append(removed.finish())
    assert not access.allows(Operation.READ, ResourceType.TOPIC, "t3")


def test_with_a_sample_no_permission_bypasses_the_audit_log() -> None:
    image = SecurityImage(acls={READ_ORDERS.acl_id: READ_ORDERS})
    seen: list[str | None] = []
    authorization = authorization_of(KEYS, lambda: image, lambda *decision: seen.append(decision[3]), 1)
    access = Access(ALICE, authorization)
    for _ in range(3):
        assert not access.granted(Operation.READ, ResourceType.TOPIC)
        assert access.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert seen == ["orders"] * 3
    assert Access(ALICE, None).granted(Operation.READ, ResourceType.TOPIC) is None


def test_without_an_authorizer_every_caller_may_do_everything() -> None:
    access = Access(ALICE, authorization_of({}, SecurityImage))
    assert access.allows(Operation.ALTER, ResourceType.CLUSTER)
    assert not access.is_limited


def test_super_users_are_separated_by_semicolons() -> None:
    assert parse_super_users(KEYS["super.users"]) == {"User:root", "User:CN=ops,O=Example"}
    with pytest.raises(InvalidConfigError, match=r"super\.users"):
        parse_super_users("root")


def test_refusals_are_observed_and_permissions_are_sampled() -> None:
    image = SecurityImage(acls={READ_ORDERS.acl_id: READ_ORDERS})
    seen: list[tuple[str | None, bool]] = []
    authorization = authorization_of(
        KEYS, lambda: image, lambda caller, operation, kind, name, allowed, method: seen.append((name, allowed)), 10
    )
    access = Access(ALICE, authorization)
    for _ in range(20):
        access.allows(Operation.READ, ResourceType.TOPIC, "orders")
    access.allows(Operation.READ, ResourceType.TOPIC, "secret")
    assert seen == [("orders", True), ("orders", True), ("secret", False)]


def test_the_audit_log_has_a_line_of_json_for_each_refusal_and_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = audit_log_of({"audit.log.path": str(path), "audit.log.max.bytes": 2_000, "audit.log.files": 2})
    access = Access(ALICE, authorization_of(KEYS, SecurityImage, audit), "Fetch/Fetch")
    for _ in range(40):
        access.allows(Operation.READ, ResourceType.TOPIC, "line\nbreak")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {(line["decision"], line["principal"], line["resource"], line["call"]) for line in lines} == {
        ("DENIED", "User:alice", "line\nbreak", "Fetch/Fetch")
    }
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]


def test_a_flood_of_refusals_is_counted_and_not_written() -> None:
    lines: list[str] = []
    now = [100.0]
    audit = AuditLog(lines.append, lambda: now[0])
    for _ in range(LINES_PER_S_MAX + 5):
        audit(ALICE, Operation.READ, ResourceType.TOPIC, "t", False, "Fetch/Fetch")
    assert len(lines) == LINES_PER_S_MAX
    now[0] = 101.0
    audit(ALICE, Operation.READ, ResourceType.TOPIC, "t", False, "Fetch/Fetch")
    assert json.loads(lines[-1])["dropped"] == 5


def test_failed_handshakes_leave_lines_for_refusals() -> None:
    """A handshake costs a client nothing, so a flood of them must not push a refusal out of the log."""
    lines: list[str] = []
    audit = AuditLog(lines.append, lambda: 100.0)
    for _ in range(2 * LINES_PER_S_MAX):
        audit.handshake_failed("10.0.0.7", "SSL", "x" * 10_000)
    assert len(lines) == UNKNOWN_PER_S_MAX
    assert max(map(len, lines)) < 1_000
    audit(ALICE, Operation.READ, ResourceType.TOPIC, "t", False, "Fetch/Fetch")
    assert json.loads(lines[-1]) == {
        "at": "1970-01-01T00:01:40.000Z",
        "decision": "DENIED",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "client_id": "",
        "listener": "",
        "call": "Fetch/Fetch",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource": "t",
        "dropped": 2 * LINES_PER_S_MAX - UNKNOWN_PER_S_MAX,
    }


def test_failed_logins_leave_lines_for_refusals() -> None:
    """A client without a login must not push a refusal out of the log by wrong passwords, not even with handshakes."""
    lines: list[str] = []
    audit = AuditLog(lines.append, lambda: 100.0)
    wrong = SaslAuthenticationFailedError("the credentials are wrong")
    for _ in range(2 * LINES_PER_S_MAX):
        audit.login_refused("10.0.0.7", "", "client", "SCRAM-SHA-512", wrong)
        audit.handshake_failed("10.0.0.7", "SSL", "unknown ca")
    assert len(lines) == LOGINS_PER_S_MAX + UNKNOWN_PER_S_MAX
    audit(ALICE, Operation.READ, ResourceType.TOPIC, "t", False, "Fetch/Fetch")
    found = [json.loads(line) for line in lines]
    assert (found[-1]["principal"], found[-1]["resource"]) == ("User:alice", "t")
    assert len(found) + sum(line.get("dropped", 0) for line in found) == 4 * LINES_PER_S_MAX + 1


def test_a_call_of_an_unknown_caller_leaves_a_line() -> None:
    """A user's certificate at a port for nodes; a session key of another connection; no certificate at all."""
    lines: list[str] = []

    def unknown(pem: bytes) -> NodeIdentity:
        raise SaslAuthenticationFailedError("the certificate of CN=eve is not a node's")

    class Sessions:
        def session_of(self, token: str, peer: str) -> Any:
            raise SaslAuthenticationFailedError("the session does not belong to this connection")

    class Context:
        def __init__(self, pem: bytes | None, *metadata: tuple[str, str]) -> None:
            self.invocation_metadata = lambda: metadata
            self.auth_context = lambda: {} if pem is None else {"x509_pem_cert": [pem]}
            self.peer = lambda: "ipv4:10.0.0.7:4711"

    audit = AuditLog(lines.append)
    sessions: Any = Sessions()
    nodes = Gate("internal", "SSL", node_identity=unknown, on_unknown=audit.call_refused)
    clients = Gate("client", "SASL_SSL", sessions=sessions, on_unknown=audit.call_refused)
    for gate, path, context in (
        (nodes, "/headrace.v1.Raft/Exchange", Context(b"eve")),
        (nodes, "/headrace.v1.Raft/Exchange", Context(None)),
        (clients, "/headrace.v1.Produce/Produce", Context(None, (SESSION_KEY, "stolen-key"))),
        (clients, "/headrace.v1.Produce/Produce", Context(None)),
    ):
        with pytest.raises(SaslAuthenticationFailedError):
            gate.admit(path, context)
    found = [json.loads(line) for line in lines]
    assert [(each["call"], each["listener"], each["why"].split(":")[0]) for each in found] == [
        ("Raft/Exchange", "internal", "the certificate of CN=eve is not a node's"),
        ("Raft/Exchange", "internal", "listener internal accepts only nodes with a certificate"),
        ("Produce/Produce", "client", "the session does not belong to this connection"),
        ("Produce/Produce", "client", "listener client is SASL_SSL, and the connection is not authenticated"),
    ]
    assert {(each["host"], each["principal"], each["error"]) for each in found} == {
        ("10.0.0.7", None, "SASL_AUTHENTICATION_FAILED")
    }
    assert "stolen-key" not in "".join(lines)


class _OfNode:
    """The context of a call from a node with a certificate."""

    def __init__(self, **metadata: str) -> None:
        self._metadata = tuple((key.replace("_", "-"), value) for key, value in metadata.items())

    def peer(self) -> str:
        return "ipv4:10.1.1.1:5"

    def auth_context(self) -> dict[str, Any]:
        return {"x509_pem_cert": [b"pem"]}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._metadata


ALICES = {"headrace_principal": "User:alice", "headrace_client_host": "10.9.9.9", "headrace_client_id": "app"}


def _internal(role: str, takes_clients_of: str = "broker") -> Gate:
    return Gate(
        "internal",
        "SSL",
        authorization_of(KEYS, SecurityImage),
        node_identity=lambda pem: NodeIdentity(role, 7),
        takes_clients_of=takes_clients_of,
    )


def test_a_broker_calls_a_coordinator_for_the_client_that_it_names() -> None:
    access = _internal("broker").admit("/headrace.v1.Groups/JoinGroup", _OfNode(**ALICES))
    assert access.caller == Caller(Principal("User", "alice"), "10.9.9.9", "app", "internal")
    assert access.is_limited, "with the client's rights, not the broker's"


@pytest.mark.parametrize(("role", "takes"), [("coordinator", "broker"), ("controller", "broker"), ("broker", "")])
def test_no_other_node_calls_for_a_client_and_only_a_coordinator_takes_it(role: str, takes: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError, match=f"a {role} may not call for a client"):
        _internal(role, takes).admit("/headrace.v1.Groups/JoinGroup", _OfNode(**ALICES))


@pytest.mark.parametrize("path", ["/headrace.v1.TransactionMarkers/WriteMarkers", "/headrace.v1.Unknown/Call"])
def test_a_broker_may_not_make_the_calls_of_nodes_for_a_client(path: str) -> None:
    with pytest.raises(ClusterAuthorizationFailedError):
        _internal("broker").admit(path, _OfNode(**ALICES))


def test_without_a_client_a_broker_is_a_node_and_calls_no_group() -> None:
    with pytest.raises(ClusterAuthorizationFailedError, match="a broker is not authorized to call Groups"):
        _internal("broker").admit("/headrace.v1.Groups/JoinGroup", _OfNode())


@pytest.mark.parametrize("named", ["Node:broker:1", "alice", "User:" + "a" * 5_000])
def test_a_broker_calls_only_for_users(named: str) -> None:
    with pytest.raises(SaslAuthenticationFailedError):
        _internal("broker").admit("/headrace.v1.Groups/JoinGroup", _OfNode(headrace_principal=named))
