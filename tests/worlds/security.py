"""Secured clusters in tests: certificates, a port with TLS, SASL exchanges by hand, users of the console, a Kerberos
realm."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import queue
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import grpc
import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headrace import Admin, LocalCluster, NewTopic, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.engine.io_thread import io_thread
from headrace_console.app import ConsoleNode
from headrace_console.settings import ConsoleSettings
from headrace_core.errors import IllegalSaslStateError, SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from headrace_core.node.properties import read_properties
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.rpc.server import Listener
from headrace_core.security.gate import SESSION_KEY
from headrace_core.security.sasl.exchange import ClientExchange
from headrace_core.security.tls import TlsSettings, TlsSource
from headrace_kafka.wire.apis import Api
from headrace_protos.v1 import metadata_pb2, metadata_pb2_grpc, security_pb2, security_pb2_grpc
from tests.worlds.kafka_protocol import ClosedError, KafkaWire
from tests.worlds.this_process import free_port
from tests.worlds.waiting import until

HOSTS = ("127.0.0.1", "localhost")


class TestAuthority:
    """An authority in a directory: ``ca`` is the path of its certificate."""

    __test__ = False

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(self._name, self._key, timedelta(days=1), timedelta(days=-1)).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca = directory / "ca.pem"
        self.ca.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _build(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, ends_in: timedelta, begins_in: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        ends = now + ends_in
        # A certificate has whole seconds. Cut off, a life of one second could have only a millisecond left.
        ends = ends.replace(microsecond=0) + timedelta(seconds=1 if ends.microsecond else 0)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins_in)
            .not_valid_after(ends)
        )

    def issue(
        self,
        file: str,
        *,
        name: x509.Name | str = "someone",
        hosts: Iterable[str] = HOSTS,
        uris: Iterable[str] = (),
        ends_in: timedelta = timedelta(days=1),
        begins_in: timedelta = timedelta(days=-1),
        only_client: bool = False,
    ) -> Path:
        """Make a key and a certificate in one PEM file."""
        key = ec.generate_private_key(ec.SECP256R1())
        whole = name if isinstance(name, x509.Name) else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[Any] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if only_client else [ExtendedKeyUsageOID.SERVER_AUTH])]
        builder = self._build(whole, key, ends_in, begins_in).add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self.directory / file
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        path.chmod(0o600)
        return path


@contextmanager
def listening(own: Path | None, ca: Path | None = None) -> Iterator[str]:
    """Serve the health check; yields the address. ``own``: the file of the port's certificate and key; None: the port
    does not encrypt. With ``ca`` the port requires certificates of clients."""
    made = None
    if own is not None:
        keys = {"ssl.keystore.location": str(own)} | ({} if ca is None else {"ssl.truststore.location": str(ca)})
        made = TlsSource(TlsSettings.of(keys)).server_credentials(requires_client=ca is not None)
    served = Listener("client", credentials=made)
    ready, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        await served.start()
        await served.serving(True)
        ready.set()
        await over.wait()
        await served.stop(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield served.address
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(60)
        loop.close()


CLOSED = "closed"  #: The code of a refusal if the server only closes the connection.
FAILED, UNSUPPORTED, ILLEGAL = (
    each.code for each in (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)
)
_CODES = {
    each.number: each.code
    for each in (SaslAuthenticationFailedError, UnsupportedSaslMechanismError, IllegalSaslStateError)
}


class Refused(Exception):
    """``code``: Kafka's name of the error, or CLOSED."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Door(Protocol):
    """One connection, which carries an attacker's bytes. Its methods raise Refused, with Kafka's name of the error."""

    def begin(self, mechanism: str, data: bytes) -> bytes:
        """Send the first message of an exchange; returns the server's answer."""

    def proceed(self, data: bytes) -> bytes:
        """Send the next message."""

    @property
    def is_open(self) -> bool:
        """Whether the exchange is complete, and the client has a session."""

    def topics(self) -> list[str]:
        """The topics that the client sees, as the authenticated user or without authentication."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


class _Closing:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


def channel(cluster: LocalCluster, address: str = "") -> grpc.Channel:
    """A separate connection to a node's port; without ``address``, to the first broker's client port."""
    ca = (cluster.directory / "security" / "ca.pem").read_bytes()
    options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(address or cluster.bootstrap_servers, grpc.ssl_channel_credentials(ca), options)


class SdkDoor(_Closing):
    """The door for the SDK, used without the SDK: gRPC's Authenticate on a separate connection."""

    def __init__(self, cluster: LocalCluster, *, through: grpc.Channel | None = None, address: str = "") -> None:
        self.channel = through or channel(cluster, address)
        self._own = through is None
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stub = security_pb2_grpc.AuthenticationStub(self.channel)  # type: ignore[no-untyped-call]
        self._answers = stub.Authenticate(iter(self._requests.get, None))
        self.token = ""

    def begin(self, mechanism: str, data: bytes) -> bytes:
        return self._ask(security_pb2.AuthenticateRequest(mechanism=mechanism, data=data))

    def proceed(self, data: bytes) -> bytes:
        return self._ask(security_pb2.AuthenticateRequest(data=data))

    def _ask(self, request: Any) -> bytes:
        self._requests.put(request)
        try:
            answer = next(self._answers)
        except grpc.RpcError as error:
            raise _refused(error) from None
        if answer.complete:
            self.token = answer.session_token
        return bytes(answer.data)

    @property
    def is_open(self) -> bool:
        return bool(self.token)

    def topics(self) -> list[str]:
        return topics_of(self.channel, self.token)

    def close(self) -> None:
        self._requests.put(None)
        self._answers.cancel()
        if self._own:
            self.channel.close()


def topics_of(made: grpc.Channel, token: str, *more: tuple[str, str]) -> list[str]:
    """The topics that a session sees. ``more``: further gRPC metadata of the call. Raises Refused."""
    metadata = [*([(SESSION_KEY, token)] if token else []), *more]
    try:
        stub = metadata_pb2_grpc.MetadataStub(made)  # type: ignore[no-untyped-call]
        answer = stub.GetMetadata(metadata_pb2.MetadataRequest(all_topics=True), metadata=metadata, timeout=10)
    except grpc.RpcError as error:
        raise _refused(error) from None
    return sorted(each.name for each in answer.topics)


def _refused(error: Any) -> Refused:
    code, colon, message = str(error.details()).partition(": ")
    return Refused(code, message) if colon else Refused(CLOSED, code)


class KafkaDoor(_Closing):
    """The door for Kafka's clients: SaslHandshake and SaslAuthenticate."""

    def __init__(self, cluster: LocalCluster) -> None:
        context = ssl.create_default_context(cafile=str(cluster.directory / "security" / "ca.pem"))
        self.wire = KafkaWire(cluster.kafka_bootstrap_servers, tls=context)
        self._has_answered = False

    def begin(self, mechanism: str, data: bytes) -> bytes:
        answer = self._ask(Api.SASL_HANDSHAKE, mechanism=mechanism)
        if answer.error_code:
            raise Refused(_CODES[answer.error_code])
        return self.proceed(data)

    def proceed(self, data: bytes) -> bytes:
        answer = self._ask(Api.SASL_AUTHENTICATE, auth_bytes=data)
        if answer.error_code:
            raise Refused(_CODES[answer.error_code], answer.error_message or "")
        return bytes(answer.auth_bytes)

    def _ask(self, api: Api, **fields: Any) -> Any:
        try:
            return self.wire.ask(api, **fields)
        except ClosedError as error:
            raise Refused(CLOSED, str(error)) from None

    @property
    def is_open(self) -> bool:
        """Whether the broker answers a request that needs authentication. (It closes the connection otherwise.)"""
        try:
            self.topics()
        except Refused:
            return False
        return True

    def topics(self) -> list[str]:
        answer = self._ask(Api.METADATA, topics=None, allow_auto_topic_creation=False)
        return sorted(each.name for each in answer.topics)

    def close(self) -> None:
        self.wire.__exit__(None, None, None)


def log_in(door: Door, client: ClientExchange) -> list[bytes]:
    """Authenticate; returns the client's messages. Raises Refused, or the error of a client that refuses the server."""
    sent = [client.first()]
    answer = door.begin(client.mechanism, sent[0])
    while not client.is_complete:
        data = client.step(answer)
        if data is None:
            break
        sent.append(data)
        answer = door.proceed(data)
    assert client.is_complete
    return sent


#: The rights of each user, and their topics.
RIGHTS: dict[str, dict[str, tuple[AclOperation, ...]]] = {
    "alice": {"orders": (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)},
    "bob": {"payments": (AclOperation.READ, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)},
    "carol": {},
}


def password_of(user: str) -> str:
    return f"pl4nted-{user}-s3cret"


def prepare(cluster: LocalCluster) -> None:
    """Make the users, their rights, and the topics orders and payments with a record in each."""
    with admin_of(cluster) as admin:
        for user in RIGHTS:
            set_password(admin, user, password_of(user))
        admin.create_topics([NewTopic("orders", partitions=2), NewTopic("payments", partitions=1)])
        bindings = [
            AclBinding(
                resource_type=ResourceType.TOPIC, resource_name=topic, principal=f"User:{user}", operation=operation
            )
            for user, topics in RIGHTS.items()
            for topic, operations in topics.items()
            for operation in operations
        ]
        admin.create_acls(bindings)
    with Producer.from_properties(properties(cluster), bootstrap_servers=cluster.bootstrap_servers) as producer:
        for topic in ("orders", "payments"):
            producer.send(topic, value=f"a record of {topic}".encode(), partition=0)


def properties(cluster: LocalCluster) -> Path:
    """The file with the credentials of the user admin."""
    return cluster.directory / "security" / "client.properties"


def admin_of(cluster: LocalCluster) -> Admin:
    return Admin.from_properties(properties(cluster), bootstrap_servers=cluster.bootstrap_servers)


def set_password(admin: Admin, user: str, password: str) -> None:
    admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, password, ScramMechanism.SCRAM_SHA_512)])


class Browser:
    """A minimal browser with cookies and forms. ``address``: its source address, on loopback."""

    def __init__(self, cluster: LocalCluster, url: str = "", *, address: str = "127.0.0.1") -> None:
        context = ssl.create_default_context(cafile=str(cluster.directory / "security" / "ca.pem"))
        self.url = url or f"{cluster.console_url}/"
        self.client = httpx.Client(
            base_url=self.url,
            transport=httpx.HTTPTransport(verify=context, local_address=address),
            headers={"Accept": "text/html"},
            timeout=30,
        )

    def get(self, page: str, **headers: str) -> httpx.Response:
        return self.client.get(page, headers=headers)

    def post(self, page: str, **fields: str) -> httpx.Response:
        return self.client.post(page, data=fields)

    def sign_in(self, user: str, password: str | None = None, *, then: str = "") -> httpx.Response:
        """Fill in the form and send it."""
        form = self.get("sign-in")
        given = password_of(user) if password is None else password
        return self.post("sign-in", token=token(form.text), user=user, password=given, next=then)

    @property
    def cookies(self) -> dict[str, str]:
        return dict(self.client.cookies)

    def close(self) -> None:
        self.client.close()


def token(page: str) -> str:
    found = re.search(r'name="token" value="([\w-]+)"', page)
    assert found is not None, page
    return found[1]


def alert(page: str) -> str:
    """The error message of a page, or its sentence about the end of a session."""
    found = re.search(r'<p class="alert[^>]*>(.*?)</p>', page, re.DOTALL)
    return "" if found is None else found[1]


@contextlib.contextmanager
def console_beside(cluster: LocalCluster, **more: object) -> Iterator[str]:
    """A second console of the cluster, as `headrace console` runs it at http:// on loopback; yields its URL."""
    given: dict[str, object] = {
        "listeners": ["http://127.0.0.1:0"],
        "bootstrap_servers": tuple(cluster.bootstrap_servers.split(",")),
        "client": dict(read_properties(properties(cluster))),
        "path_prefix": "",
        "is_read_only": False,
        "allowed_hosts": [],
        "registry_urls": "",
        "directory": "",
    }
    node = ConsoleNode(ConsoleSettings.checked(**(given | more)))  # type: ignore[arg-type]
    io_thread().run(node.start())
    try:
        yield node.url
    finally:
        io_thread().run(node.stop())


REALM = "HEADRACE.TEST"
PASSWORD = "k3rb-s3cret"
#: Seconds that the clocks of this realm may differ.
CLOCK_SKEW_S = 2

_KRB5 = """[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 clockskew = {skew}
 udp_preference_limit = 1
 ticket_lifetime = 10h
 renew_lifetime = 0
 default_ccache_name = FILE:{directory}/default.cache
 kdc_timesync = 0
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
 SILENT.TEST = {{
  kdc = 127.0.0.1:1
 }}
"""
_KDC = """[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {directory}/principal
  key_stash_file = {directory}/stash
  acl_file = {directory}/kadm5.acl
  max_life = 10h
  default_principal_flags = +preauth
  supported_enctypes = aes256-cts-hmac-sha1-96:normal
 }}
[logging]
 kdc = FILE:{directory}/kdc.log
"""


class Realm:
    """A realm. ``environment``: the environment for child processes; the test's own process needs its KRB5_CONFIG."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        values = {"realm": REALM, "directory": directory, "port": self.port, "skew": CLOCK_SKEW_S}
        self.krb5_conf, kdc_conf = directory / "krb5.conf", directory / "kdc.conf"
        self.krb5_conf.write_text(_KRB5.format(**values))
        kdc_conf.write_text(_KDC.format(**values))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KRB5")},
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(kdc_conf),
            "KRB5RCACHEDIR": str(directory),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
        }
        self._kdc: subprocess.Popen[bytes] | None = None
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def start(self) -> None:
        """Start the KDC; returns when it answers."""
        with (self.directory / "kdc.out").open("ab") as output:
            self._kdc = subprocess.Popen(
                [self._program("krb5kdc"), "-n"], env=self.environment, stdout=output, stderr=output
            )
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert self._kdc.poll() is None, (self.directory / "kdc.out").read_text()
            time.sleep(0.02)
        raise TimeoutError("the KDC does not answer")

    def stop(self) -> None:
        if self._kdc is not None:
            self._kdc.terminate()
            self._kdc.wait(timeout=10)
            self._kdc = None

    def admin(self, *commands: str) -> None:
        """Run commands of kadmin.local."""
        for command in commands:
            done = self._run("kadmin.local", "-r", REALM, "-q", command)
            assert "while" not in done.stderr, done.stderr

    def keytab(self, *principals: str, name: str | None = None, options: str = "") -> str:
        """Create principals with random keys, and return the path of a keytab with them."""
        path = self.directory / f"{name or principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self.admin(f"addprinc -randkey {options} {principal}", f"ktadd -k {path} {principal}")
        return str(path)

    def kinit(self, principal: str, keytab: str, *options: str, cache: str | None = None) -> str:
        """Get a ticket, and return the name of its cache."""
        name = cache or f"FILE:{self.directory}/{principal.replace('/', '-')}.cache"
        self._run("kinit", *options, "-k", "-t", keytab, "-c", name, principal)
        return name

    def run(self, program: str, *arguments: str) -> str:
        """Run a program with the realm's environment, and return what it prints."""
        return self._run(program, *arguments).stdout

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [self._program(program), *arguments], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{program}: {done.stderr}{done.stdout}"
        return done

    def _program(self, name: str) -> str:
        found = shutil.which(name, path=self.environment["PATH"])
        assert found, f"{name} is missing; tools/test_kerberos.sh installs MIT Kerberos"
        return found


@contextlib.contextmanager
def running_realm(directory: Path) -> Iterator[Realm]:
    """Run a KDC, with KRB5_CONFIG in the environment of this process."""
    realm = Realm(directory)
    realm.start()
    before = {name: os.environ.get(name) for name in ("KRB5_CONFIG", "KRB5RCACHEDIR", "KRB5CCNAME")}
    os.environ.update({name: realm.environment[name] for name in ("KRB5_CONFIG", "KRB5RCACHEDIR")})
    os.environ.pop("KRB5CCNAME", None)
    try:
        yield realm
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        realm.stop()


def krb5_module(keytab: str, principal: str) -> str:
    """The JAAS configuration for a login with a keytab, for servers and clients."""
    return (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="{principal}";'
    )


def contents_of(directory: Path) -> dict[Path, bytes]:
    """The content of each file below ``directory``. Nodes replace files meanwhile: they write a new file and rename it.
    So a listing in which a file has vanished is made again."""

    def contents() -> list[dict[Path, bytes]] | None:
        with contextlib.suppress(FileNotFoundError):
            return [{path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}]
        return None

    (found,) = until(contents, "a listing whose files are all there")
    return dict(found)
