"""Users of a secured cluster with a console: their rights, and a browser for each."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx

from headrace import Admin, LocalCluster, NewTopic, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace.engine.io_thread import io_thread
from headrace_console.app import ConsoleNode
from headrace_console.settings import ConsoleSettings
from headrace_core.node.properties import read_properties

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
