"""Attacks on a secured cluster, each at the door of the SDK and at the door of Kafka's clients.

docs/security-attacks.md lists every attack with its test. Floods are in test_floods.py; delegation tokens in
test_token_attacks.py.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.x509.oid import NameOID
from joserfc import jws
from joserfc.jwk import OctKey, RSAKey

from headrace import Admin, LocalCluster, NewTopic, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.errors import (
    ClusterAuthorizationFailedError,
    DelegationTokenAuthorizationFailedError,
    GroupAuthorizationFailedError,
    HeadraceError,
    InvalidRequestError,
    InvalidTopicError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from headrace_core.config.server_keys import SERVER
from headrace_core.rpc.channel import ChannelPurpose, Channels
from headrace_core.rpc.server import Listener
from headrace_core.security.access import Authorization
from headrace_core.security.caller import current_caller
from headrace_core.security.gate import CLIENT_ID_KEY, HOST_KEY, PRINCIPAL_KEY, SESSION_KEY, Gate
from headrace_core.security.mapping import PrincipalMapper, user_principal
from headrace_core.security.sasl.oauthbearer import OAuthBearerClient
from headrace_core.security.sasl.plain import PlainClient
from headrace_core.security.sasl.scram import SHA_256, SHA_512, encoded
from headrace_core.security.sasl.scram import ScramMechanism as Mechanism
from headrace_core.security.sasl.scram_exchange import ScramClient
from headrace_core.security.tls import TlsSettings, TlsSource
from headrace_kafka.tls import ListenerTls
from headrace_kafka.wire.apis import Api
from headrace_kafka.wire.schema import NO_UUID
from headrace_protos.v1 import (
    metadata_pb2,
    metadata_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    raft_pb2,
    raft_pb2_grpc,
    security_pb2,
    security_pb2_grpc,
)
from headrace_tools.local.security import MAPPING_RULES
from tests.integration.kafka_protocol.authorization_cases import cases, outline
from tests.integration.kafka_protocol.authorization_cases import codes as error_codes
from tests.integration.security.test_sasl_cluster import login
from tests.worlds.security import (
    CLOSED,
    FAILED,
    ILLEGAL,
    UNSUPPORTED,
    Door,
    KafkaDoor,
    Refused,
    SdkDoor,
    TestAuthority,
    channel,
    log_in,
    topics_of,
)
from tests.worlds.waiting import check_in_time

PASSWORD = "pl4nted-s3cret"
REFUSALS = {
    each.number
    for each in (
        TopicAuthorizationFailedError,
        GroupAuthorizationFailedError,
        ClusterAuthorizationFailedError,
        TransactionalIdAuthorizationFailedError,
        DelegationTokenAuthorizationFailedError,
    )
}
TOO_LARGE = InvalidRequestError.code  #: The SDK's door refuses messages above 64 KiB before it looks at them.
#: Users of SCRAM-SHA-512 beside ann. Their names look like the super user's, or mean something in an entry.
STRANGE = ("*", "User:admin", "User:*", "аdmin", "Admin", "admin,x", "admin=2Cx", "../admin", "ALLOW", "{}")
AUTHORITY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
ATTACKER = RSAKey.generate_key(2048, {"kid": "one"})


@pytest.fixture(scope="module")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The nodes share one file: each writes whole lines."""
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, audit_log: Path) -> Iterator[LocalCluster]:
    keys = tmp_path_factory.mktemp("authority") / "jwks.json"
    keys.write_text(json.dumps({"keys": [AUTHORITY.as_dict(private=False)]}))
    config = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "headrace",
        "connection.failed.authentication.delay.ms": "20",
        "audit.log.path": str(audit_log),
    }
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess", secure=True, config=config
    ) as running:
        with administrator(running) as admin:
            admin.create_topics([NewTopic("orders"), NewTopic("payroll")])
            wanted = [(name, ScramMechanism.SCRAM_SHA_512) for name in ("ann", *STRANGE)]
            admin.alter_user_scram_credentials(
                [
                    UserScramCredentialUpsertion(name, PASSWORD, mechanism)
                    for name, mechanism in (*wanted, ("bea", ScramMechanism.SCRAM_SHA_256))
                ]
            )
            admin.create_acls([allowed("User:ann", "orders"), allowed("User:ann", "payroll", "10.1.2.3")])
        yield running


def administrator(cluster: LocalCluster) -> Admin:
    return Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers)


def allowed(principal: str, topic: str, host: str = "*") -> AclBinding:
    return AclBinding(
        resource_type=ResourceType.TOPIC,
        resource_name=topic,
        principal=principal,
        operation=AclOperation.DESCRIBE,
        host=host,
    )


@pytest.fixture(params=[SdkDoor, KafkaDoor], ids=["sdk", "kafka"])
def door(request: pytest.FixtureRequest) -> Callable[[LocalCluster], Door]:
    return request.param  # type: ignore[no-any-return]


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(Refused) as caught:
        work()
    return caught.value.code


def ann(mechanism: Mechanism = SHA_512, password: str = PASSWORD) -> ScramClient:
    return ScramClient(mechanism, "ann", password)


def test_the_doors_open_for_the_right_password(cluster: LocalCluster, door: Callable[[LocalCluster], Door]) -> None:
    """Without this, every refusal below would prove nothing."""
    for client in (ann(), PlainClient("ann", PASSWORD), OAuthBearerClient(token("ann"))):
        with door(cluster) as made:
            log_in(made, client)
            assert made.topics() == ["orders"]


# -- SCRAM -----------------------------------------------------------------------------------------------------------


def test_a_replayed_exchange_opens_nothing(cluster: LocalCluster, door: Callable[[LocalCluster], Door]) -> None:
    with door(cluster) as made:
        first, final = log_in(made, ann())
    with door(cluster) as made:
        made.begin("SCRAM-SHA-512", first)
        assert refusal(lambda: made.proceed(final)) == FAILED
        assert not made.is_open
    with door(cluster) as made:  # the old proof under the new nonce
        nonce = made.begin("SCRAM-SHA-512", first).split(b",")[0]
        proof = final.rpartition(b",p=")[2]
        assert refusal(lambda: made.proceed(b"c=biws," + nonce + b",p=" + proof)) == FAILED
        assert not made.is_open
    with door(cluster) as made:  # without the first message
        assert refusal(lambda: made.begin("SCRAM-SHA-512", final)) == FAILED


def test_the_nonce_must_be_the_servers_whole_one(cluster: LocalCluster, door: Callable[[LocalCluster], Door]) -> None:
    """CVE-2024-56128: a server must compare the nonce with the one that it sent."""
    changes: tuple[Callable[[str, str], str], ...] = (
        lambda nonce, own: own,  # only the client's part
        lambda nonce, own: nonce + "x",
        lambda nonce, own: nonce[:-1],
        lambda nonce, own: nonce[len(own) :],  # only the server's part
        lambda nonce, own: nonce.swapcase(),
    )
    for change in changes:
        client = ann()
        with door(cluster) as made:
            challenge = made.begin(client.mechanism, client.first()).decode()
            own = client.first().decode().partition(",r=")[2]
            nonce, rest = challenge[2:].split(",", 1)
            client_final = client.step(f"r={nonce},{rest}".encode())
            assert client_final is not None
            forged = client_final.decode().replace(f"r={nonce}", f"r={change(nonce, own)}", 1)
            assert forged != client_final.decode()
            assert refusal(lambda made=made, forged=forged: made.proceed(forged.encode())) == FAILED  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "ANONYMOUS", "EXTERNAL", "GSSAPI", "scram-sha-512"]
)
def test_a_mechanism_that_is_not_enabled_is_refused(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door], name: str
) -> None:
    with door(cluster) as made:
        assert refusal(lambda: made.begin(name, b"n,,n=ann,r=abc")) == UNSUPPORTED
        assert not made.is_open


def test_a_credential_of_one_hash_is_worthless_for_the_other(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door]
) -> None:
    for user, own, other in (("ann", SHA_512, SHA_256), ("bea", SHA_256, SHA_512)):
        with door(cluster) as made:
            log_in(made, ScramClient(own, user, PASSWORD))
        with door(cluster) as made:
            assert refusal(lambda: log_in(made, ScramClient(other, user, PASSWORD))) == FAILED  # noqa: B023
        with door(cluster) as made:  # messages of one hash under the other's name
            client = ScramClient(own, user, PASSWORD)
            challenge = made.begin(other.name, client.first())
            assert refusal(lambda: made.proceed(client.step(challenge) or b"")) == FAILED  # noqa: B023


def test_an_exchange_cannot_change_its_mechanism(cluster: LocalCluster, door: Callable[[LocalCluster], Door]) -> None:
    client = ann()
    with door(cluster) as made:
        made.begin(client.mechanism, client.first())
        code = refusal(lambda: made.begin("PLAIN", PlainClient("ann", PASSWORD).first()))
        assert code in (ILLEGAL, CLOSED)
        assert not made.is_open


@pytest.mark.parametrize(
    "first",
    [
        "n,a=admin,n=ann,r=abc",  # ann's password, admin's name
        "p=tls-exporter,,n=ann,r=abc",
        "n,,m=must,n=ann,r=abc",
        "n,,n=ann=3,r=abc",
        "n,,n=ann\0admin,r=abc",
        "n,,n=ann\n,r=abc",
        "n,,n=,r=abc",
        f"n,,n={'a' * 10_000},r=abc",
        f"n,,n=ann,r={'a' * 10_000}",
        "n,,r=abc,n=ann",
        "",
        "n" * 100_000,
    ],
)
def test_a_first_message_with_tricks_is_refused(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door], first: str
) -> None:
    with door(cluster) as made:
        assert refusal(lambda: made.begin("SCRAM-SHA-512", first.encode())) in (FAILED, TOO_LARGE)


def test_a_second_name_in_the_message_changes_nothing(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door]
) -> None:
    client = ann()
    client._bare += ",n=admin,a=admin"  # as an extension, which the proof covers
    with door(cluster) as made:
        log_in(made, client)
        assert made.topics() == ["orders"], "still ann"


@pytest.mark.parametrize(
    "message",
    [f"admin\0ann\0{PASSWORD}", f"\0admin\0x\0ann\0{PASSWORD}", f"\0ann\0{PASSWORD}\0", "\0admin\0", "\0\0", "a"],
)
def test_plain_takes_no_other_name_than_the_passwords(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door], message: str
) -> None:
    with door(cluster) as made:
        assert refusal(lambda: made.begin("PLAIN", message.encode())) == FAILED


# -- servers in the middle ---------------------------------------------------------------------------------------------


class FalseServer(security_pb2_grpc.AuthenticationServicer):
    """Answers a client's first message with ``challenge``, and its second one with a made-up signature."""

    def __init__(self, challenge: Callable[[str], str], *, at_once: bool = False) -> None:
        self._challenge, self._at_once = challenge, at_once
        self.seen: list[bytes] = []

    def Authenticate(self, requests: Any, context: Any) -> Iterator[Any]:
        for request in requests:
            self.seen.append(request.data)
            done = self._at_once or len(self.seen) > 1
            data = f"v={encoded(bytes(64))}" if len(self.seen) > 1 else self._challenge(request.data.decode())
            answer = security_pb2.AuthenticateResponse(data=data.encode())
            if done:
                answer.complete, answer.session_token, answer.principal = True, "x" * 43, "User:ann"
            yield answer


def continued(first: str) -> str:
    return first.partition(",r=")[2] + "server"


@pytest.mark.parametrize(
    ("challenge", "has_proof"),
    [
        (lambda first: f"r={continued(first)},s=QUJDRA==,i=1", False),
        (lambda first: f"r={continued(first)},s=QUJDRA==,i=4095", False),
        (lambda first: f"r={continued(first)},s=QUJDRA==,i=2000000000", False),
        (lambda first: f"r={continued(first)},s=,i=4096", False),
        (lambda first: "r=abcserver,s=QUJDRA==,i=4096", False),
        (lambda first: f"r={continued(first)[:-6]},s=QUJDRA==,i=4096", False),
        (lambda first: "e=use-plain", False),
        (lambda first: f"r={continued(first)},s=QUJDRA==,i=4096", True),  # the signature is wrong
    ],
    ids=["one iteration", "4095", "2e9", "no salt", "another nonce", "no own nonce", "an error", "no password"],
)
def test_the_client_gives_a_false_server_nothing_to_guess_with(
    challenge: Callable[[str], str], has_proof: bool
) -> None:
    false = FalseServer(challenge)
    started_s = time.monotonic()
    why = refused_by_the_client(false)
    assert "SCRAM-SHA-512" in why
    assert PASSWORD.encode() not in b"".join(false.seen)
    assert any(b"p=" in each for each in false.seen) is has_proof
    check_in_time(started_s, 20)


def test_the_client_takes_no_welcome_before_the_servers_proof() -> None:
    assert refused_by_the_client(FalseServer(lambda first: "", at_once=True))
    assert refused_by_the_client(FalseServer(lambda first: f"r={continued(first)},s=QUJDRA==,i=4096", at_once=True))


def refused_by_the_client(false: FalseServer) -> str:
    """Log in to a false server with the SDK; returns the client's error."""
    server = grpc.server(ThreadPoolExecutor(4))
    security_pb2_grpc.add_AuthenticationServicer_to_server(false, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    config = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": PASSWORD,
    }
    try:
        with Admin(config) as admin, pytest.raises(SaslAuthenticationFailedError) as caught:
            admin.list_topics()
    finally:
        server.stop(0)
    return str(caught.value)


# -- tokens of OAUTHBEARER ---------------------------------------------------------------------------------------------


def claims(**changed: Any) -> dict[str, Any]:
    now_s = int(time.time())
    body = {"sub": "admin", "aud": "headrace", "iat": now_s, "exp": now_s + 600, **changed}
    return {name: value for name, value in body.items() if value is not None}


def token(user: Any, key: Any = AUTHORITY, *, header: dict[str, Any] | None = None, **changed: Any) -> str:
    head = {"alg": "RS256", "kid": "one"} | (header or {})
    return signed(head, claims(sub=user, **changed), key)


def signed(header: dict[str, Any], body: Any, key: Any) -> str:
    """A signed token. (By hand where the library would not sign such a header.)"""
    text = f"{part(header)}.{part(body)}"
    return f"{text}.{b64(key.private_key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def part(value: Any) -> str:
    return b64(json.dumps(value).encode())


def _hmac(algorithm: str, secret: bytes) -> str:
    header = {"alg": algorithm, "kid": "one"}
    return jws.serialize_compact(header, json.dumps(claims()).encode(), OctKey.import_key(secret), [algorithm])


def _changed() -> str:
    head, _, signature = token("ann").split(".")
    return f"{head}.{part(claims(sub='admin'))}.{signature}"


def unsigned(algorithm: str) -> str:
    return f"{part({'alg': algorithm, 'kid': 'one'})}.{part(claims())}."


_PEM, _PUBLIC = AUTHORITY.as_pem(private=False), ATTACKER.as_dict(private=False)
FORGED: dict[str, Callable[[], str]] = {
    "alg none": lambda: unsigned("none"),
    "alg NONE": lambda: unsigned("NONE"),
    "alg nOnE": lambda: unsigned("nOnE"),
    "an empty alg": lambda: unsigned(""),
    "no alg": lambda: f"{part({'kid': 'one'})}.{part(claims())}.",
    "HS256 with the public key": lambda: _hmac("HS256", _PEM.replace(b"-----", b"")),
    "HS512 with the public key": lambda: _hmac("HS512", b64(_PEM).encode()),
    "HS256 with nothing": lambda: f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(claims())}.{b64(bytes(32))}",
    "the attacker's key": lambda: token("admin", ATTACKER),
    "the attacker's key in the header": lambda: token("admin", ATTACKER, header={"jwk": _PUBLIC}),
    "the attacker's certificate in the header": lambda: token("admin", ATTACKER, header={"x5c": ["MIIB"]}),
    "no key id": lambda: token("admin", ATTACKER, header={"kid": None}),
    "a path as key id": lambda: token("admin", ATTACKER, header={"kid": "../../etc/passwd"}),
    "an empty file as key id": lambda: _hmac("HS256", b"\0" * 32).replace("one", "/dev/null"),
    "a key id with SQL": lambda: token("admin", ATTACKER, header={"kid": "x' UNION SELECT 'key"}),
    "a list as key id": lambda: token("admin", ATTACKER, header={"kid": ["one"]}),
    "changed claims": _changed,
    "no signature": lambda: token("admin").rpartition(".")[0] + ".",
    "half a signature": lambda: token("admin")[:-100],
    "another audience": lambda: token("admin", aud="another"),
    "a part of the audience": lambda: token("admin", aud="head"),
    "an audience as a key": lambda: token("admin", aud={"headrace": 1}),
    "no audience": lambda: token("admin", aud=None),
    "expired": lambda: token("admin", exp=int(time.time()) - 60),
    "never expires": lambda: token("admin", exp=None),
    "infinite": lambda: token("admin", exp=1e308),
    "a text as time": lambda: token("admin", exp="9999999999"),
    "from the future": lambda: token("admin", iat=int(time.time()) + 600),
    "an empty user": lambda: token(""),
    "a list of users": lambda: token(["admin"]),
    "a user with a newline": lambda: token("admin\n"),
    "a user with NUL": lambda: token("admin\0"),
    "a user of 10 kB": lambda: token("a" * 10_000),
    "70 kB": lambda: token("ann", padding="x" * 70_000),
    "nested 10,000 times": lambda: signed({"alg": "RS256", "kid": "one"}, json.loads("[" * 500 + "]" * 500), AUTHORITY),
    "four parts": lambda: token("admin") + ".x",
    "encrypted": lambda: ".".join([part({"alg": "RSA-OAEP", "enc": "A256GCM"}), "", "", "", ""]),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_token_opens_nothing(cluster: LocalCluster, door: Callable[[LocalCluster], Door], name: str) -> None:
    with door(cluster) as made:
        forged = FORGED[name]()
        assert refusal(lambda: _bear(made, forged)) in (FAILED, TOO_LARGE)


def _bear(door: Door, forged: str) -> None:
    """Send a token, and then RFC 7628's acknowledgement of the refusal."""
    answer = door.begin("OAUTHBEARER", f"n,,\x01auth=Bearer {forged}\x01\x01".encode())
    assert json.loads(answer) == {"status": "invalid_token"}
    door.proceed(b"\x01")


def test_no_header_of_a_token_makes_a_node_fetch_anything(cluster: LocalCluster, tmp_path: Path) -> None:
    asked: list[str] = []
    keys = json.dumps({"keys": [ATTACKER.as_dict(private=False)]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(keys)

    (tmp_path / "evil.json").write_bytes(keys)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/evil.json"
        try:
            for header in (
                {"jku": url},
                {"x5u": url},
                {"kid": url},
                {"jku": (tmp_path / "evil.json").as_uri()},
                {"crit": ["jku"], "jku": url},
            ):
                for kind in (SdkDoor, KafkaDoor):
                    with kind(cluster) as made:
                        assert refusal(lambda: _bear(made, token("admin", ATTACKER, header=header))) == FAILED  # noqa: B023
        finally:
            server.shutdown()
            thread.join()
    assert asked == []


@pytest.mark.parametrize(
    "message",
    [
        "n,a=admin,\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=Bearer {}\x01auth=Bearer {}\x01\x01",
        "y,,\x01auth=Bearer {}\x01\x01",
        "n,,\x01auth=Basic {}\x01\x01",
        "n,,\x01auth=Bearer {}\x01" + "x=y\x01" * 1_000 + "\x01",
    ],
)
def test_a_good_token_in_a_message_with_tricks_is_refused(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door], message: str
) -> None:
    def bear(made: Door) -> None:
        made.begin("OAUTHBEARER", message.replace("{}", token("ann")).encode())
        made.proceed(b"\x01")

    with door(cluster) as made:
        assert refusal(lambda: bear(made)) == FAILED


# -- sessions and metadata of calls ------------------------------------------------------------------------------------


def test_a_session_is_worth_nothing_elsewhere(cluster: LocalCluster) -> None:
    controller = json.loads((cluster.directory / "controller-1" / "node.json").read_text())["listeners"]["client"]
    with SdkDoor(cluster) as made, channel(cluster) as thief, channel(cluster, controller) as other:
        log_in(made, ann())
        assert made.topics() == ["orders"]
        for elsewhere in (thief, other):
            assert refusal(lambda: topics_of(elsewhere, made.token)) == FAILED  # noqa: B023
        for guess in ("", made.token[:-1], made.token + "=", made.token.swapcase(), "*", "' OR 1=1", "x" * 8_000):
            assert refusal(lambda: topics_of(made.channel, guess)) in (FAILED, CLOSED)  # noqa: B023
        with SdkDoor(cluster, address=cluster.bootstrap_servers) as second:  # a session of its own does not help
            log_in(second, ScramClient(SHA_512, "*", PASSWORD))
            assert refusal(lambda: topics_of(second.channel, made.token)) == FAILED
            assert topics_of(second.channel, made.token, (SESSION_KEY, second.token)) == []
        made.close()
        assert made.token


def test_the_metadata_of_a_broker_are_worth_nothing_from_a_client(cluster: LocalCluster) -> None:
    forged = (
        (PRINCIPAL_KEY, "User:admin"),
        (HOST_KEY, "10.1.2.3"),  # an entry lets ann see payroll from this address
        (CLIENT_ID_KEY, '%0A{"decision": "ALLOWED"}'),
        ("headrace-role", "broker"),
        ("x-forwarded-for", "10.1.2.3"),
    )
    with SdkDoor(cluster) as made:
        assert refusal(lambda: topics_of(made.channel, "", *forged)) == FAILED
        log_in(made, ann())
        assert topics_of(made.channel, made.token, *forged) == ["orders"]


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRANGE)
def test_a_user_with_a_strange_name_is_no_other_user(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door], name: str
) -> None:
    with door(cluster) as made:
        log_in(made, ScramClient(SHA_512, name, PASSWORD))
        assert made.topics() == []


BAD_USERS = ["", "a\nb", "a\0b", "a\u200bdmin", "a\u202enimd", "a\ud7ff\u0085", "a" * 10_000]
BAD_NAMES = [
    "../orders", "..", ".", "/etc/passwd", "orders/../payroll", "*", "ord*", "orders\0", "orders\n", "оrders",
    "orders ", "a" * 250, "a" * 10_000, "orders;rm -rf", "%2e%2e%2f", "\u202eorders",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_USERS, ids=lambda each: repr(each[:12]))
def test_no_user_gets_a_name_that_lines_and_people_misread(cluster: LocalCluster, name: str) -> None:
    with administrator(cluster) as admin:
        with pytest.raises(HeadraceError):
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(name, PASSWORD, ScramMechanism.SCRAM_SHA_512)]
            )
        assert name not in admin.describe_user_scram_credentials()


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda each: repr(each[:12]))
def test_no_topic_gets_a_name_that_leaves_its_directory(cluster: LocalCluster, name: str) -> None:
    before = sorted(path.name for path in cluster.directory.rglob("*-0"))
    with administrator(cluster) as admin, pytest.raises(InvalidTopicError):
        admin.create_topics([NewTopic(name)])
    refusals = (TopicAuthorizationFailedError, InvalidTopicError)
    with Producer(login(cluster, "SCRAM-SHA-512", "ann", PASSWORD)) as producer, pytest.raises(refusals):
        producer.send(name, b"x").result(timeout=10)
    assert sorted(path.name for path in cluster.directory.rglob("*-0")) == before


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "*.example.com", "10.0.0.0/0.0.0.1", "10.0.0.0/33", "127.0.0.1\0", "127.1", "1" * 10_000, "../x"],
)
def test_an_entry_has_an_address_that_can_match(cluster: LocalCluster, host: str) -> None:
    with administrator(cluster) as admin, pytest.raises(InvalidRequestError):
        admin.create_acls([allowed("User:ann", "orders", host)])


@pytest.mark.parametrize(
    ("kind", "code"),
    [("GROUP", GroupAuthorizationFailedError.number), ("TRANSACTION", TransactionalIdAuthorizationFailedError.number)],
)
def test_no_group_and_no_transaction_passes_an_entry_by_a_trick(cluster: LocalCluster, kind: str, code: int) -> None:
    """ann may use ``reports``, and no name that a reader or a file system would take for it."""
    with administrator(cluster) as admin:
        types = (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        admin.create_acls([replace(allowed("User:ann", "reports"), resource_type=each) for each in types])
    tricks = ["*", "report", "reports ", "reports\0", "./reports", "Reports", "rеports", "reports\n", "r" * 10_000]
    with SdkDoor(cluster) as made:
        log_in(made, ann())
        stub = metadata_pb2_grpc.MetadataStub(made.channel)  # type: ignore[no-untyped-call]
        request = metadata_pb2.FindCoordinatorRequest(type=f"COORDINATOR_TYPE_{kind}", keys=["reports", *tricks])
        answer = stub.FindCoordinator(request, metadata=[(SESSION_KEY, made.token)], timeout=10)
        found = [each.error.code for each in answer.coordinators]
    assert found[0] != code
    assert found[1:] == [code] * len(tricks)


def test_a_client_id_writes_no_line_of_the_audit_log(cluster: LocalCluster, audit_log: Path) -> None:
    forged = '{"decision": "ALLOWED", "principal": "User:forged"}'
    with SdkDoor(cluster) as made:
        log_in(made, ann())
        stub = metadata_pb2_grpc.MetadataStub(made.channel)  # type: ignore[no-untyped-call]
        request = metadata_pb2.MetadataRequest(topics=[f"payroll\n{forged}", "p" * 10_000])
        metadata = [(SESSION_KEY, made.token), (CLIENT_ID_KEY, quote(f"x\r\n{forged}\n" + "y" * 2_000))]
        answer = stub.GetMetadata(request, metadata=metadata, timeout=10)
        assert len(answer.topics) == 2
    lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
    assert [line for line in lines if line["principal"] == "User:forged"] == []
    refused = [line for line in lines if line["decision"] == "DENIED" and line["client_id"].startswith("x\r\n")]
    assert {line["principal"] for line in refused} == {"User:ann"}
    assert all(len(line["client_id"]) <= 255 and len(line["resource"]) <= 512 for line in refused)


def test_every_failed_login_leaves_a_line_in_the_audit_log(
    cluster: LocalCluster, door: Callable[[LocalCluster], Door], audit_log: Path
) -> None:
    secret = "typed-into-the-wrong-field"
    before = len(audit_log.read_text().splitlines())
    with door(cluster) as made:
        assert refusal(lambda: log_in(made, ScramClient(SHA_512, secret, secret))) == FAILED
    with door(cluster) as made:
        assert refusal(lambda: made.begin("ANONYMOUS", b"")) == UNSUPPORTED
    with door(cluster) as made:
        log_in(made, ann())
    text = audit_log.read_text()
    lines = [json.loads(line) for line in text.splitlines()[before:]]
    assert [line["error"] for line in lines] == [FAILED, UNSUPPORTED]
    assert {(line["decision"], line["principal"], line["host"]) for line in lines} == {("DENIED", None, "127.0.0.1")}
    assert lines[0]["mechanism"] == "SCRAM-SHA-512"
    assert secret not in text


def test_every_refusal_by_kafkas_protocol_leaves_a_line_in_the_audit_log(
    cluster: LocalCluster, audit_log: Path
) -> None:
    """Every request of Kafka's protocol, as a user without any right."""
    with KafkaDoor(cluster) as door:
        log_in(door, ann())
        named = door.wire.ask(
            Api.METADATA, topics=[{"name": "orders", "topic_id": NO_UUID}], allow_auto_topic_creation=False
        )
        ids = {"orders": named.topics[0].topic_id, "orders-lost-Admin": named.topics[0].topic_id}
    refused, silent = 0, []
    for case in cases("Admin"):
        with KafkaDoor(cluster) as door:
            log_in(door, ScramClient(SHA_512, "Admin", PASSWORD))
            before = audit_log.stat().st_size
            codes = set(error_codes(outline(door.wire.ask(case.api, case.version, **case.fields(ids)))))
        if codes & REFUSALS:
            refused += 1
            added = audit_log.read_bytes()[before:].decode()
            if '"decision": "DENIED", "principal": "User:Admin"' not in added:
                silent.append(case.name)
    assert refused > 60
    assert silent == []


def test_a_node_that_does_what_its_role_may_not_leaves_a_line_in_the_audit_log(
    cluster: LocalCluster, audit_log: Path
) -> None:
    """A stolen certificate of the coordinator asks for votes."""
    security = cluster.directory / "security"
    pem = (security / "coordinator-1.pem").read_bytes()
    at = pem.index(b"-----BEGIN CERTIFICATE")
    credentials = grpc.ssl_channel_credentials((security / "ca.pem").read_bytes(), pem[:at], pem[at:])
    address = json.loads((cluster.directory / "controller-1" / "node.json").read_text())["listeners"]["internal"]
    with grpc.secure_channel(address, credentials) as made:
        stream = raft_pb2_grpc.RaftStub(made).Exchange(iter([raft_pb2.RaftEnvelope()]), timeout=10)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError, match="a coordinator is not authorized to call Raft/Exchange"):
            next(stream)
    lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
    refused = [line for line in lines if line["principal"] == "Node:coordinator:1" and line["decision"] == "DENIED"]
    assert [(line["call"], line["operation"]) for line in refused] == [("Raft/Exchange", "CLUSTER_ACTION")]


# -- certificates ------------------------------------------------------------------------------------------------------


class Named(node_pb2_grpc.NodeServicer):
    """Answers with the name of the caller."""

    async def DescribeNode(self, request: Any, context: Any) -> Any:
        return node_pb2.DescribeNodeResponse(role=str(current_caller().principal))


def distinguished(*pairs: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    with warnings.catch_warnings(action="ignore"):  # of lengths that the standard does not allow
        return x509.Name([x509.NameAttribute(oid, value, _validate=False) for oid, value in pairs])


CN, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
#: Certificates that a careless authority signs for the user eve, and the principal of each; None: refused.
CERTIFICATES: dict[str, tuple[x509.Name, Sequence[str], str | None]] = {
    "her own": (distinguished((CN, "eve")), (), "User:eve"),
    "a comma": (distinguished((CN, "admin,O=x")), (), "User:admin\\"),
    "an escaped comma": (distinguished((CN, "admin\\,x")), (), "User:admin\\\\\\"),
    "a newline": (distinguished((CN, "admin\n")), (), None),
    "NUL": (distinguished((CN, "admin\0.evil")), (), "User:admin\\00.evil"),
    "an invisible character": (distinguished((CN, "admin\u200b")), (), None),
    "a type": (distinguished((CN, "User:admin")), (), "User:User:admin"),
    "a space": (distinguished((CN, " admin")), (), "User:\\ admin"),
    "a homoglyph": (distinguished((CN, "аdmin")), (), "User:аdmin"),
    "all users": (distinguished((CN, "*")), (), "User:*"),
    "another part": (distinguished((OU, "CN=admin")), (), "User:OU=CN\\=admin"),
    "an empty name": (distinguished((CN, "")), (), "User:CN="),
    "no name": (distinguished(), (), None),
    "2,000 characters": (distinguished((CN, "a" * 2_000)), (), None),
    "the URI of a broker": (distinguished((CN, "eve")), ("headrace:broker:1",), None),
    "a URI that resembles one": (distinguished((CN, "eve")), ("headrace:admin",), None),
    "two URIs": (distinguished((CN, "eve")), ("headrace:broker:1", "headrace:controller:1"), None),
}


def test_a_users_certificate_names_no_other_user(tmp_path: Path) -> None:
    """The mapping rules are those of `headrace up --secure`. Only an authority that signs CN=admin makes an admin."""
    authority = TestAuthority(tmp_path)
    server = TlsSource(tls_settings(authority.issue("server.pem"), authority.ca), needs_key=True, needs_trust=True)
    mapper = PrincipalMapper(MAPPING_RULES)
    gate = Gate("client", "SSL", Authorization(), principal_of=lambda pem: user_principal(pem, mapper))

    async def work() -> dict[str, str | None]:
        listener = Listener("client", credentials=server.server_credentials(requires_client=True), gate=gate)
        listener.add(node_pb2_grpc.add_NodeServicer_to_server, Named(), "headrace.v1.Node")
        await listener.start()
        found = {}
        try:
            for label, (name, uris, _) in CERTIFICATES.items():
                file = authority.issue("eve.pem", name=name, uris=uris, hosts=(), only_client=True)
                found[label] = await caller_name(listener.address, file, authority.ca)
        finally:
            await listener.stop(0)
        return found

    assert asyncio.run(work()) == {label: principal for label, (_, _, principal) in CERTIFICATES.items()}


def test_a_kafka_listener_takes_a_users_certificate_as_a_node_does(tmp_path: Path) -> None:
    authority = TestAuthority(tmp_path)
    settings = tls_settings(authority.issue("server.pem"), authority.ca)
    settings = replace(settings, mapping_rules=MAPPING_RULES)
    tls = ListenerTls(TlsSource(settings, needs_key=True, needs_trust=True), "required")

    def named(name: x509.Name, uris: Sequence[str]) -> str | None:
        file = authority.issue("eve.pem", name=name, uris=uris, hosts=(), only_client=True)
        certificate = x509.load_pem_x509_certificates(file.read_bytes())[0]
        try:
            return str(tls.principal_of(certificate.public_bytes(serialization.Encoding.DER)))
        except SaslAuthenticationFailedError:
            return None

    found = {label: named(name, uris) for label, (name, uris, _) in CERTIFICATES.items()}
    assert found == {label: principal for label, (_, _, principal) in CERTIFICATES.items()}


async def caller_name(address: str, file: Path, ca: Path) -> str | None:
    tls = TlsSource(tls_settings(file, ca), needs_key=True, needs_trust=True)
    async with Channels(tls).open(address, ChannelPurpose.RAFT) as made:
        stub = node_pb2_grpc.NodeStub(made)  # type: ignore[no-untyped-call]
        call = stub.DescribeNode(node_pb2.DescribeNodeRequest(), timeout=10)
        code = await call.code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED), await call.details()
        return str((await call).role) if code is grpc.StatusCode.OK else None


def tls_settings(certificate: Path, ca: Path) -> TlsSettings:
    keys = {"ssl.keystore.location": str(certificate), "ssl.truststore.location": str(ca)}
    return TlsSettings.of(SERVER.parse(keys))
