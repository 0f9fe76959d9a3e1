"""Delegation tokens under attack on a secured cluster: forged requesters, stolen and changed tokens, sessions that
outlive their token, also by Kafka's protocol."""

from __future__ import annotations

import dataclasses
import json
import logging
import queue
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import grpc
import pytest

from headrace import Admin, DelegationToken, LocalCluster, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.errors import SaslAuthenticationFailedError
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.security.gate import PRINCIPAL_KEY, SESSION_KEY
from headrace_core.security.sasl.scram import SHA_512
from headrace_core.security.sasl.scram_exchange import ScramClient
from headrace_core.security.sasl.tokens import token_hmac
from headrace_kafka.wire.apis import Api
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, security_pb2, security_pb2_grpc
from headrace_tools.certs.authority import USER, Authority, Subject
from tests.integration.security.test_sasl_cluster import PASSWORD, PLAIN, login
from tests.integration.security.test_secrets import holders
from tests.worlds.kafka_protocol import ClosedError, KafkaWire
from tests.worlds.security import Refused, SdkDoor, contents_of, log_in
from tests.worlds.waiting import until

MECHANISM = SHA_512.name
NODES = ("broker-1", "controller-1")  #: The nodes that serve the calls.
#: Kafka's numbers of the errors.
NOT_ALLOWED, SASL_FAILED = 64, 58


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {
        "super.users": "User:root",
        "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
        "listener.name.client.plain.sasl.jaas.config": PLAIN,
        "delegation.token.secret.key": "pl4nted-master-key",
    }
    with LocalCluster(
        brokers=1, controllers=1, coordinators=0, kafka=True, mode="inprocess", secure=True, config=config
    ) as running:
        with Admin(login(running, "PLAIN", "root", "r00t")) as root:
            root.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(each, PASSWORD, ScramMechanism.SCRAM_SHA_512) for each in ("ann", "eve")]
            )
            root.create_topics(["orders", "payroll"])
            root.create_acls(
                [
                    AclBinding(
                        resource_type=ResourceType.TOPIC,
                        resource_name="orders",
                        principal="User:ann",
                        operation=AclOperation.DESCRIBE,
                    )
                ]
            )
        yield running


def user(cluster: LocalCluster, name: str) -> Admin:
    return Admin(login(cluster, MECHANISM, name, PASSWORD))


def ports(cluster: LocalCluster, listener: str) -> dict[str, str]:
    """The address of a gRPC listener at each node that has one."""
    found = {}
    for path in sorted(cluster.directory.glob("*/node.json")):
        addresses = json.loads(path.read_text())["listeners"]
        if listener in addresses and path.parent.name in NODES:
            found[path.parent.name] = addresses[listener]
    return found


def channel(cluster: LocalCluster, address: str, certificate: bytes | None = None) -> grpc.Channel:
    ca = (cluster.directory / "security" / "ca.pem").read_bytes()
    key = chain = None
    if certificate is not None:
        at = certificate.index(b"-----BEGIN CERTIFICATE")
        key, chain = certificate[:at], certificate[at:]
    options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, chain), options)


class Session:
    """A connection of eve, by hand: ``call`` sends what no client of ours would send."""

    def __init__(self, made: grpc.Channel) -> None:
        self._stub = security_pb2_grpc.SecurityStub(made)  # type: ignore[no-untyped-call]
        client = ScramClient(SHA_512, "eve", PASSWORD)
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._sent.put(security_pb2.AuthenticateRequest(mechanism=client.mechanism, data=client.first()))
        # gRPC reads this iterator in a thread of its own, until ``close``.
        requests = iter(self._sent.get, None)
        self._answers = security_pb2_grpc.AuthenticationStub(made).Authenticate(requests)  # type: ignore[no-untyped-call]
        for answer in self._answers:
            step = client.step(answer.data)
            if answer.complete:
                break
            self._sent.put(security_pb2.AuthenticateRequest(data=step))
        self._metadata = ((SESSION_KEY, answer.session_token), (PRINCIPAL_KEY, "User:root"))

    def call(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, metadata=self._metadata, timeout=10)

    def refused(self, method: str, request: Any) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            self.call(method, request)
        return str(caught.value.details())

    def close(self) -> None:
        self._sent.put(None)
        self._answers.cancel()


@pytest.mark.parametrize("node", NODES)
def test_no_node_believes_the_requester_in_a_clients_request(cluster: LocalCluster, node: str) -> None:
    at = ports(cluster, "client")[node]
    with user(cluster, "ann") as ann, channel(cluster, at) as made, closing(Session(made)) as eve:
        token = ann.create_delegation_token()
        forged = eve.call("CreateDelegationToken", security_pb2.CreateDelegationTokenRequest(requester="User:root"))
        assert (forged.token.owner, forged.token.requester) == ("User:eve", "User:eve")
        root = security_pb2.CreateDelegationTokenRequest(owner="User:root", requester="User:root")
        assert "User:eve is not authorized to CREATE_TOKENS user 'User:root'" in eve.refused(
            "CreateDelegationToken", root
        )
        for method, kind in (
            ("RenewDelegationToken", security_pb2.RenewDelegationTokenRequest),
            ("ExpireDelegationToken", security_pb2.ExpireDelegationTokenRequest),
        ):
            request = kind(hmac=token.hmac, period_ms=-1, requester="User:ann")
            assert "User:eve is neither the owner nor a renewer" in eve.refused(method, request)
        seen = eve.call("DescribeDelegationTokens", security_pb2.DescribeDelegationTokensRequest(owners=["User:ann"]))
        assert list(seen.tokens) == []
        assert token.token_id in {each.token_id for each in ann.describe_delegation_token()}


def test_a_users_certificate_says_nothing_at_the_ports_of_nodes(cluster: LocalCluster) -> None:
    pem = Authority(cluster.directory / "security").issue(Subject(USER, "eve"), force=True).path.read_bytes()
    request = security_pb2.CreateDelegationTokenRequest(requester="User:root")
    expected = {None: grpc.StatusCode.UNAVAILABLE, pem: grpc.StatusCode.UNAUTHENTICATED}
    for certificate, code in expected.items():
        with channel(cluster, ports(cluster, "internal")["controller-1"], certificate) as made:
            stub = security_pb2_grpc.SecurityStub(made)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError) as caught:
                stub.CreateDelegationToken(request, metadata=((PRINCIPAL_KEY, "User:root"),), timeout=10)
            assert caught.value.code() is code, caught.value


def test_the_secret_of_another_cluster_opens_nothing(cluster: LocalCluster) -> None:
    with user(cluster, "ann") as ann:
        token = ann.create_delegation_token()
    forged = [token_hmac(secret, token.token_id) for secret in ("another cluster's key", "", "pl4nted-master-ke")]
    changed = bytes([token.hmac[0] ^ 1]) + token.hmac[1:]
    for wrong in (
        *(dataclasses.replace(token, hmac=each) for each in (*forged, changed, token.hmac[:-1])),
        dataclasses.replace(token, token_id="another-cluster's"),
    ):
        config = login(cluster, MECHANISM, "", "") | {"sasl.jaas.config": wrong.jaas_config}
        del config["sasl.username"], config["sasl.password"]
        with Admin(config) as stranger, pytest.raises(SaslAuthenticationFailedError) as caught:
            stranger.list_topics()
        assert wrong.password not in str(caught.value)


def test_the_hmac_is_in_no_file_and_no_log(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    with user(cluster, "ann") as ann:
        token = ann.create_delegation_token()
        ann.renew_delegation_token(token.hmac)
        ann.describe_delegation_token()
        ann.expire_delegation_token(token.hmac)
        with pytest.raises(Exception, match="no delegation token") as caught:
            ann.renew_delegation_token(token.hmac)
    printed = capfd.readouterr()
    shown = [caplog.text, printed.out, printed.err, repr(caught.value), repr(token)]
    for secret in (token.password, token.hmac.hex()):
        assert [each for each in shown if secret in each] == []
        assert holders(cluster.directory, secret) == []
    assert [path for path, content in contents_of(cluster.directory).items() if token.hmac in content] == []


def test_a_removed_token_ends_its_sessions_and_their_streams(cluster: LocalCluster) -> None:
    """The thief of a token has a session already; the owner removes the token."""
    with user(cluster, "ann") as ann, SdkDoor(cluster) as thief, SdkDoor(cluster) as owner:
        token, other = ann.create_delegation_token(), ann.create_delegation_token()
        until(lambda: _opens_at_node(cluster, token) and _opens_at_node(cluster, other), "the node has both tokens")
        log_in(thief, ScramClient(SHA_512, token.token_id, token.password, is_token=True))
        log_in(owner, ScramClient(SHA_512, other.token_id, other.password, is_token=True))
        stub = metadata_pb2_grpc.MetadataStub(thief.channel)  # type: ignore[no-untyped-call]
        session = [(SESSION_KEY, thief.token)]
        stream = stub.WatchMetadata(metadata_pb2.MetadataRequest(), metadata=session, timeout=30)
        next(stream)
        ann.expire_delegation_token(token.hmac)
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert "the delegation token has been removed" in caught.value.details()
        with pytest.raises(Refused) as refused:
            thief.topics()
        assert refused.value.code == SaslAuthenticationFailedError.code
        assert owner.topics() == ["orders"]


def _opens_at_node(cluster: LocalCluster, token: DelegationToken) -> bool:
    with SdkDoor(cluster) as door, suppress(Refused):
        log_in(door, ScramClient(SHA_512, token.token_id, token.password, is_token=True))
    return door.is_open


# -- by Kafka's protocol
# ------------------------------------------------------------------------------------------------------


def by_token(cluster: LocalCluster, token: DelegationToken) -> tuple[KafkaWire, Any]:
    """A connection to the broker that has logged in with the token, and the last answer of the login."""
    context = ssl.create_default_context(cafile=str(cluster.directory / "security" / "ca.pem"))
    wire = KafkaWire(cluster.kafka_bootstrap_servers, tls=context)
    assert wire.ask(Api.SASL_HANDSHAKE, mechanism=MECHANISM).error_code == 0
    client = ScramClient(SHA_512, token.token_id, token.password, is_token=True)
    first = wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=client.first())
    if first.error_code:
        return wire, first
    return wire, wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=client.step(first.auth_bytes))


def test_a_session_of_kafkas_protocol_ends_with_its_token(cluster: LocalCluster) -> None:
    with user(cluster, "ann") as ann:
        token = ann.create_delegation_token()
        until(lambda: _opens(cluster, token), "the broker has the token")

        def short_session() -> tuple[KafkaWire, float, float] | None:
            """A session that ends with the token, and when it ends at the earliest and at the latest; None while the
            broker does not know that the token ends."""
            ann.expire_delegation_token(token.hmac, period_ms=2_500)
            began_s = time.monotonic()
            wire, answer = by_token(cluster, token)
            lifetime_s = answer.session_lifetime / 1_000
            if 0 < lifetime_s <= 2.5:
                return wire, began_s + lifetime_s, time.monotonic() + lifetime_s
            wire.__exit__(None, None, None)
            return None

        wire, earliest_s, latest_s = until(short_session, "a session that ends with the token")
        with wire:
            asked, asked_s = 0, time.monotonic()
            while (found := _metadata(wire)) is not None:
                assert [each.name for each in found.topics] == ["orders"], "ann sees one topic"
                assert asked_s < latest_s + 1, "the session outlives its token"
                asked += 1
                time.sleep(0.05)
                asked_s = time.monotonic()
            assert asked > 0
            assert time.monotonic() >= earliest_s - 0.2
        assert by_token(cluster, token)[1].error_code == SASL_FAILED


def test_a_removed_token_ends_its_connections_by_kafkas_protocol(cluster: LocalCluster) -> None:
    with user(cluster, "ann") as ann:
        token = ann.create_delegation_token()
        until(lambda: _opens(cluster, token), "the broker has the token")
        with by_token(cluster, token)[0] as busy, by_token(cluster, token)[0] as waiting:
            assert _metadata(busy) is not None
            ann.expire_delegation_token(token.hmac)
            until(lambda: _metadata(busy) is None, "the next request ends the connection", within_s=30)
            with pytest.raises(ConnectionError):  # a client that asks nothing: no bytes, but the end
                waiting._read(1)


def test_a_token_makes_no_tokens_by_kafkas_protocol(cluster: LocalCluster) -> None:
    with user(cluster, "ann") as ann:
        token = ann.create_delegation_token()
        until(lambda: _opens(cluster, token), "the broker has the token")
        with by_token(cluster, token)[0] as wire:
            asks: tuple[Callable[[], Any], ...] = (
                lambda: wire.ask(
                    Api.CREATE_DELEGATION_TOKEN,
                    owner_principal_type="",
                    owner_principal_name="",
                    renewers=[],
                    max_lifetime=-1,
                ),
                lambda: wire.ask(Api.RENEW_DELEGATION_TOKEN, hmac=token.hmac, renew_period=-1),
                lambda: wire.ask(Api.EXPIRE_DELEGATION_TOKEN, hmac=token.hmac, expiry_time_period=-1),
                lambda: wire.ask(Api.DESCRIBE_DELEGATION_TOKEN, owners=None),
            )
            assert [ask().error_code for ask in asks] == [NOT_ALLOWED] * 4
        ann.expire_delegation_token(token.hmac)
        until(lambda: not _opens(cluster, token), "the broker has removed the token")
        assert by_token(cluster, token)[1].error_code == SASL_FAILED


def _metadata(wire: KafkaWire) -> Any:
    """The topics that the client sees; None: the broker has closed the connection."""
    try:
        return wire.ask(Api.METADATA, topics=None, allow_auto_topic_creation=False)
    except ClosedError:
        return None


def _opens(cluster: LocalCluster, token: DelegationToken) -> bool:
    wire, answer = by_token(cluster, token)
    with wire:
        return bool(answer.error_code == 0)
