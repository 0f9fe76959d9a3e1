"""The security of a local cluster (`headrace up --secure`): its authority, certificates and client.properties.

    DIR/security/ca.pem               the authority's certificate; ca.key is its private key
    DIR/security/broker-1.pem  ...    a certificate for each node
    DIR/security/admin.pem            a certificate for HTTP: /metrics and the schema registry
    DIR/security/admin.password  ...  the random password of each user of USERS
    DIR/security/token.secret         the random secret of delegation tokens
    DIR/security/client.properties    Kafka's keys for clients: SDK, command line, Kafka's Java tools
    DIR/security/console.properties   the same without a user, for the console: its users sign in

Nodes authenticate each other with their certificates, clients with SCRAM. Certificates that end within RENEW_BEFORE are
issued again at the start of their node.
"""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from .. import services
from ..certs.authority import USER, Authority, Subject, read_file
from ..durable import replace_file
from .state import ClusterState, Node

ADMIN = "admin"  #: The user whom client.properties names.
REGISTRY = "schema-registry"  #: The user of the registry's replicas.
USERS = (ADMIN, REGISTRY)  #: The users of a new cluster; both are super users.
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
RENEW_BEFORE = timedelta(days=30)
_HOSTS = ("localhost", "127.0.0.1", "::1")
#: The principal of a certificate is "User:" followed by its common name.
MAPPING_RULES = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"


def directory_of(directory: Path) -> Path:
    return directory / "security"


def ca_path(directory: Path) -> Path:
    return directory_of(directory) / "ca.pem"


def client_properties_path(directory: Path) -> Path:
    return directory_of(directory) / "client.properties"


def prepare(directory: Path, nodes: Collection[Node], bootstrap_servers: str) -> None:
    """Make the authority, the users' passwords, client.properties, and certificates for ``nodes``. Existing files are
    kept, but client.properties names the present ``bootstrap_servers``. Raises MissingDependencyError without the
    package cryptography."""
    authority = Authority(directory_of(directory))
    if not authority.ca_path.exists():
        authority.init("Headrace local cluster")
    subjects = [Subject(USER, ADMIN), *(Subject(node.role, str(node.id), _HOSTS) for node in nodes)]
    for subject in subjects:
        path = _certificate(directory, subject.file_name)
        if not path.exists() or read_file(path)[0].not_after - datetime.now(UTC) < RENEW_BEFORE:
            authority.issue(subject, force=True)
    for user in USERS:
        if not _password_path(directory, user).exists():
            replace_file(_password_path(directory, user), f"password={secrets.token_urlsafe(24)}\n")
    if not _token_secret_path(directory).exists():
        replace_file(_token_secret_path(directory), f"{secrets.token_urlsafe(32)}\n")
    _write_client_properties(directory, bootstrap_servers)
    _write_console_properties(directory)


def has_users(directory: Path) -> bool:
    """Whether the cluster's users have passwords: a cluster that was formatted without security has none."""
    return all(_password_path(directory, user).exists() for user in USERS)


def credentials(directory: Path) -> list[Any]:
    """The SCRAM credentials of the users, for `format` (KIP-900)."""
    from headrace_core.security.sasl.scram import ITERATIONS_DEFAULT, SCRAM

    new_user = services.load("controller", "formatting").new_user
    return [
        new_user(user, mechanism, password(directory, user), ITERATIONS_DEFAULT)
        for user in USERS
        for mechanism in SCRAM.values()
    ]


def add_users(directory: Path, bootstrap_servers: str) -> None:
    """Add the users to a cluster that runs without security. Raises HeadraceError."""
    from headrace import Admin, ScramMechanism, UserScramCredentialUpsertion

    wanted = [
        UserScramCredentialUpsertion(user, password(directory, user), mechanism)
        for user in USERS
        for mechanism in ScramMechanism
    ]
    with Admin({"bootstrap.servers": bootstrap_servers, "client.id": "headrace-local"}) as admin:
        admin.alter_user_scram_credentials(wanted)


def remove_passwords(directory: Path) -> None:
    for user in USERS:
        _password_path(directory, user).unlink(missing_ok=True)


def admin_password_path(directory: Path) -> Path:
    """The file with the line ``password=…`` of the user admin."""
    return _password_path(directory, ADMIN)


def password(directory: Path, user: str) -> str:
    """The password of one of USERS."""
    return _password_path(directory, user).read_text().strip().removeprefix("password=")


def _password_path(directory: Path, user: str) -> Path:
    return directory_of(directory) / f"{user}.password"


def _token_secret_path(directory: Path) -> Path:
    return directory_of(directory) / "token.secret"


def _certificate(directory: Path, name: str) -> Path:
    return directory_of(directory) / f"{name}.pem"


def _write_client_properties(directory: Path, bootstrap_servers: str) -> None:
    path = client_properties_path(directory)
    lines = [
        "# Clients of this cluster: Producer.from_properties(path), headrace --command-config; and Kafka's tools, with",
        "# --bootstrap-server and a broker's Kafka address (headrace ps).",
        f"bootstrap.servers={bootstrap_servers}",
        *(f"{key}={value}" for key, value in client_keys(directory).items()),
    ]
    text = "\n".join(lines) + "\n"
    if not path.exists() or path.read_text() != text:
        replace_file(path, text)


def _console_properties_path(directory: Path) -> Path:
    return directory_of(directory) / "console.properties"


def _write_console_properties(directory: Path) -> None:
    keys = {key: value for key, value in client_keys(directory).items() if key != "sasl.jaas.config"}
    path, text = _console_properties_path(directory), "".join(f"{key}={value}\n" for key, value in keys.items())
    if not path.exists() or path.read_text() != text:
        replace_file(path, text)


def client_keys(directory: Path) -> dict[str, str]:
    """The keys of client.properties, with the password of the user admin."""
    return _login(directory, ADMIN, password(directory, ADMIN))


def _login(directory: Path, user: str, secret: str) -> dict[str, str]:
    """The keys of a client. ``secret``: the password, or a reference to its file (for Headrace's own clients)."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{_MODULE} required username="{user}" password="{secret}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory_of(directory) / "ca.pem"),
    }


def node_keys(directory: Path, state: ClusterState, node: Node) -> dict[str, str]:
    """The keys of security in a node's configuration."""
    protocols = {"client": "SASL_SSL", "internal": "SSL", "kafka": "SASL_SSL"}
    keys = {
        "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.location": str(_certificate(directory, node.name)),
        "ssl.truststore.location": str(directory_of(directory) / "ca.pem"),
        "ssl.client.auth": "required",  # nodes and HTTP; clients authenticate with SASL
        "listener.name.client.ssl.client.auth": "none",
        "listener.name.kafka.ssl.client.auth": "none",
        "ssl.principal.mapping.rules": MAPPING_RULES,
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": ";".join(f"User:{user}" for user in USERS),
        "delegation.token.secret.key": f"${{file:{_token_secret_path(directory)}}}",
    }
    if node.role == "registry":
        login = _login(directory, REGISTRY, f"${{file:{_password_path(directory, REGISTRY)}:password}}")
        keys |= {f"kafkastore.{key}": value for key, value in login.items()}
    if node.role == "console":
        keys["console.client.config"] = str(_console_properties_path(directory))
    return keys


def health_context(directory: Path) -> ssl.SSLContext:
    """The TLS context for health checks of the nodes, with the certificate of the user admin."""
    context = ssl.create_default_context(cafile=str(directory_of(directory) / "ca.pem"))
    context.load_cert_chain(str(_certificate(directory, ADMIN)))
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
