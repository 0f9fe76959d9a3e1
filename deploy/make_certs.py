"""The one-shot job of compose.secure.yaml: certificates for every node and the secret of delegation tokens, once. A
repeated run renews certificates that end soon, and keeps the secret.

    /certs/ca            the authority: ca.pem, ca.key and token.secret; only this job mounts this volume
    /certs/ROLE          for the containers of a role: ROLE-N.pem for N up to NODES_MAX, ca.pem, health.pem, and
                         token.secret (delegation.token.secret.key) for the roles of TOKEN_ROLES
    /certs/console       the same, and console.properties: the keys of its clients, without a user
    /certs/edge          ca.pem and health.pem, for the health check of the edge
    /certs/admin         admin.pem, ca.pem, client.properties, and client-host.properties for use on the host

PROJECT is the name of the Compose project, which is part of the containers' host names. The job runs as root, and gives
the files to the user of the containers.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace_core.errors import HeadraceError
from headrace_tools.certs.authority import USER, Authority, Subject, read_file

ROOT = Path("/certs")
NODE_ROLES = ("controller", "broker", "coordinator", "registry", "console")
#: The roles that make or check delegation tokens (KIP-48); all of them need the same secret.
TOKEN_ROLES = ("controller", "broker", "coordinator")
TOKEN_SECRET = "token.secret"
OWNER = 10_001  #: The user and group of the containers (Dockerfile).
RENEW_BEFORE = timedelta(days=60)


def hosts(project: str, role: str, number: int) -> tuple[str, ...]:
    """The names at which a node is reached: by containers in both networks, by its service, and through the edge."""
    name = f"{project}-{role}-{number}"
    return (name, f"{name}.{project}-client", f"{name}.{project}-internal", role, "localhost", "127.0.0.1")


def issue(authority: Authority, directory: Path, subject: Subject) -> None:
    """Issue a certificate unless the directory has one that is valid long enough."""
    path = directory / f"{subject.file_name}.pem"
    if not path.exists() or read_file(path)[0].not_after - datetime.now(UTC) < RENEW_BEFORE:
        authority.issue(subject, out=path, force=True)


def token_secret(root: Path) -> str:
    """The secret of delegation tokens. It is made only once: with another secret all tokens become invalid."""
    path = root / "ca" / TOKEN_SECRET
    if not path.exists():
        write_secret(path, f"{secrets.token_urlsafe(32)}\n")
    return path.read_text()


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, even while it is being written. A file that already has this text is
    not replaced, because nodes may read it at any moment."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    if path.exists() and path.read_text() == text:
        return
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def client_properties(place: str) -> str:
    """The keys of a client whose files are in ``place``."""
    keys = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{place}/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{place}/admin.pem",
    }
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def console_properties() -> str:
    """The keys of the console's clients: each session adds the name and password of its user."""
    keys = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/certs/ca.pem",
    }
    return "".join(f"{key}={value}\n" for key, value in keys.items())


def make(root: Path, project: str, nodes_max: int) -> None:
    """Make everything that is missing below ``root``."""
    authority = Authority(root / "ca")
    if not authority.ca_path.exists():
        authority.init(f"Headrace {project}")
    secret = token_secret(root)
    for place in (*NODE_ROLES, "edge", "admin"):
        directory = root / place
        directory.mkdir(exist_ok=True)
        shutil.copy(authority.ca_path, directory / "ca.pem")
        if place == "admin":
            issue(authority, directory, Subject(USER, "admin"))
            (directory / "client.properties").write_text(client_properties("/certs"))
            (directory / "client-host.properties").write_text(client_properties("security"))
            continue
        issue(authority, directory, Subject(USER, "health"))
        if place in TOKEN_ROLES:
            write_secret(directory / TOKEN_SECRET, secret)
        if place == "registry":
            issue(authority, directory, Subject(USER, "schema-registry"))
        if place == "console":
            (directory / "console.properties").write_text(console_properties())
        for number in range(1, nodes_max + 1) if place != "edge" else ():
            issue(authority, directory, Subject(place, str(number), hosts(project, place, number)))


def give(root: Path) -> None:
    """Give all files, except the authority's files, to the user of the containers."""
    for place in (*NODE_ROLES, "edge", "admin"):
        for path in (root / place, *(root / place).iterdir()):
            os.chown(path, OWNER, OWNER)


def main() -> int:
    try:
        make(ROOT, os.environ["PROJECT"], int(os.environ.get("NODES_MAX", "9")))
        if os.geteuid() == 0:
            give(ROOT)
    except (HeadraceError, OSError) as error:
        print(f"make_certs: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
