"""The security of a node: which configurations refuse to start, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace_core.errors import InvalidConfigError, ServerBusyError
from headrace_core.metadata.image import MetadataImage
from headrace_core.node.config import NodeConfig
from headrace_core.node.security import NodeSecurity
from headrace_core.rpc import PLAINTEXT
from headrace_core.security.access import Access
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.security.caller import Caller
from headrace_core.security.certificates import NodeIdentity
from headrace_core.security.principal import USER, Principal
from headrace_core.security.protocols import SecurityProtocol
from tests.worlds.security import TestAuthority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


def security(authority: TestAuthority, role: str = "broker", node_id: int = 1, **keys: Any) -> NodeSecurity:
    values = {
        "node.id": str(node_id),
        "log.dirs": "/data",
        "listeners": "client://127.0.0.1:9095,internal://127.0.0.1:19095",
        "listener.security.protocol.map": "CLIENT:SSL,INTERNAL:SSL",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "ssl.truststore.location": str(authority.ca),
    } | {key.replace("_", "."): str(value) for key, value in keys.items()}
    return NodeSecurity(NodeConfig.from_properties(values, role=role))


def own(authority: TestAuthority, *uris: str) -> Path:
    return authority.issue("own.pem", uris=uris)


def test_a_node_has_the_identity_of_its_certificate(authority: TestAuthority) -> None:
    found = security(authority, ssl_keystore_location=own(authority, "headrace:broker:1"))
    assert found.identity == NodeIdentity("broker", 1)
    assert found.channels.credentials is found.listeners["internal"].tls
    assert found.listeners["internal"].requires_certificate
    assert not found.listeners["client"].requires_certificate  # as in Kafka: ssl.client.auth=none
    any_id = security(authority, "coordinator", -1, ssl_keystore_location=own(authority, "headrace:coordinator"))
    assert any_id.identity == NodeIdentity("coordinator", None)


def test_until_a_node_has_read_its_metadata_only_super_users_may_do_anything(authority: TestAuthority) -> None:
    found = security(
        authority,
        ssl_keystore_location=own(authority, "headrace:broker:1"),
        authorizer_class_name="StandardAuthorizer",
        super_users="User:ops",
    )
    image = MetadataImage()
    found.follow(lambda: image)
    alice, ops = (Access(Caller(Principal(USER, name), "127.0.0.1"), found.authorization) for name in ("alice", "ops"))
    for ask in (alice.allows, alice.sees):
        with pytest.raises(ServerBusyError, match="does not know the ACLs yet; retry"):
            ask(Operation.READ, ResourceType.TOPIC, "orders")
    with pytest.raises(ServerBusyError):
        alice.allows_any(Operation.READ, ResourceType.TOPIC)
    assert ops.allows(Operation.READ, ResourceType.TOPIC, "orders")
    image = MetadataImage(next_offset=1)
    assert not alice.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert ops.allows(Operation.READ, ResourceType.TOPIC, "orders")


def test_an_open_node_needs_no_files(authority: TestAuthority) -> None:
    found = security(authority, listener_security_protocol_map="", ssl_keystore_location="/nowhere.pem")
    assert found.channels is PLAINTEXT
    assert found.identity is None
    assert found.credentials("client") is None


@pytest.mark.parametrize(
    ("uris", "words"),
    [
        (["headrace:broker:2"], "the certificate headrace:broker:2 is not for broker 1"),
        (["headrace:controller:1"], "the certificate headrace:controller:1 is not for broker 1"),
        ([], "is not a node's"),
    ],
)
def test_the_certificate_of_another_node_is_refused(authority: TestAuthority, uris: list[str], words: str) -> None:
    with pytest.raises(InvalidConfigError, match=rf"listener internal: .*{words}"):
        security(authority, ssl_keystore_location=own(authority, *uris))


def test_a_key_of_one_listener_has_priority(authority: TestAuthority, tmp_path: Path) -> None:
    outside = TestAuthority(tmp_path)
    found = security(
        authority,
        ssl_keystore_location=own(authority, "headrace:broker:1"),
        **{
            "listener.name.client.ssl.truststore.location": outside.ca,
            "listener.name.client.ssl.client.auth": "required",
            "listener.name.client.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        },
    )
    client, internal = found.listeners["client"], found.listeners["internal"]
    assert client.requires_certificate
    assert client.tls is not None
    assert internal.tls is not None
    assert client.tls.material.roots == outside.ca.read_bytes()
    assert internal.tls.material.roots == authority.ca.read_bytes()
    user = outside.issue("user.pem", name="alice", hosts=()).read_bytes()
    assert str(client.principal_of(user)) == "User:alice"
    assert str(internal.principal_of(user)) == "User:CN=alice"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"ssl.keystore.location": ""}, "listener .*: no certificate: set ssl.keystore.location"),
        ({"ssl.truststore.location": ""}, "listener internal: no trusted authority"),
        (
            {"ssl.client.auth": "requested"},
            "listener .*: ssl.client.auth=requested: gRPC supports only required and none",
        ),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "gRPC always offers TLSv1.2 and TLSv1.3"),
        ({"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}, "lacks TLS_AES_128_GCM_SHA256"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "the rule 'RULE:x' is not valid"),
        ({"ssl.keystore.type": "PKCS12"}, "not a PKCS12 file, or ssl.keystore.password does not open it"),
    ],
)
def test_what_cannot_be_honoured_refuses_to_start(authority: TestAuthority, keys: dict[str, str], words: str) -> None:
    given = {"ssl.keystore.location": str(own(authority, "headrace:broker:1"))} | keys
    with pytest.raises(InvalidConfigError, match=words):
        security(authority, **given)


def test_on_the_way_to_tls_the_internal_listener_takes_both(authority: TestAuthority) -> None:
    certificate = own(authority, "headrace:broker:1")
    for mode, encrypts, takes_both in (("allow", False, True), ("prefer", True, True), ("require", True, False)):
        found = security(authority, ssl_keystore_location=certificate, internal_tls_mode=mode)
        assert (found.channels.credentials is not None) == encrypts
        assert found.port_options("internal")["takes_plaintext"] == takes_both
        assert not found.port_options("client")["takes_plaintext"]
        judged_as = SecurityProtocol.PLAINTEXT if takes_both else SecurityProtocol.SSL
        assert found.listeners["internal"].protocol is judged_as


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        ({"listener_security_protocol_map": ""}, "set internal:SSL"),
        ({"internal_tls_mode": "prefer"}, "set internal.tls.mode=require"),
        ({}, ""),
    ],
)
def test_an_authorizer_beside_an_open_internal_listener_is_warned_of(
    authority: TestAuthority, caplog: pytest.LogCaptureFixture, keys: dict[str, str], advice: str
) -> None:
    own_file = own(authority, "headrace:broker:1")
    security(authority, ssl_keystore_location=own_file, authorizer_class_name="StandardAuthorizer", **keys)
    warned = [record.getMessage() for record in caplog.records if "trusts every caller" in record.getMessage()]
    assert len(warned) == (1 if advice else 0)
    assert all(advice in each for each in warned)
    caplog.clear()
    security(authority, ssl_keystore_location=own_file, **keys)
    assert "trusts every caller" not in caplog.text
