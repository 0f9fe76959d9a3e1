"""Delegation tokens at a broker, with Kafka's own tools, beside a real Kafka: the same answers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic
from tests.integration.kafka_protocol.kafka_tools import KafkaTools, Printed
from tests.integration.kafka_protocol.secured_kafka import SecuredKafka
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(300)
USERS = ("root", "alice", "bob")
PASSWORD = "it is planted"
KEY = "a secret of all nodes"
MODULES = "org.apache.kafka.common.security"
TOKENS, TOPICS = "org.apache.kafka.tools.DelegationTokenCommand", "org.apache.kafka.tools.TopicCommand"
ACLS = "org.apache.kafka.tools.AclCommand"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    users = " ".join(f'user_{user}="{PASSWORD}"' for user in USERS)
    config = {
        "super.users": "User:root;User:admin",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.kafka.plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule required {users};",
        "delegation.token.secret.key": KEY,
    }
    few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 1, "kafka": True, "mode": "inprocess"}
    with LocalCluster(**few, secure=True, config=config) as running:
        with Admin.from_properties(running.client_properties, bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", partitions=1)])
        yield running


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    with KafkaTools(tmp_path_factory.mktemp("tools")) as running:
        yield running


def properties(path: Path, module: str, mechanism: str, ca: Path | None) -> str:
    """A file of client properties. ``ca`` None: without TLS."""
    tls = "" if ca is None else f"ssl.truststore.type=PEM\nssl.truststore.location={ca}\n"
    protocol = "SASL_PLAINTEXT" if ca is None else "SASL_SSL"
    path.write_text(
        f"security.protocol={protocol}\n{tls}sasl.mechanism={mechanism}\nsasl.jaas.config={MODULES}.{module}\n"
    )
    return str(path)


def of_user(directory: Path, user: str, ca: Path | None) -> str:
    module = f'plain.PlainLoginModule required username="{user}" password="{PASSWORD}";'
    return properties(directory / f"{user}-{ca is None}.properties", module, "PLAIN", ca)


def ca_of(cluster: LocalCluster) -> Path:
    return cluster.directory / "security" / "ca.pem"


def created(printed: Printed) -> tuple[str, str]:
    """The id and the HMAC in the table that kafka-delegation-tokens prints."""
    (row,) = re.findall(r"^(\S+)\s+([A-Za-z0-9+/]{86}==)\s", printed.text, re.MULTILINE)
    return row[0], row[1]


def commands(tools: KafkaTools, bootstrap: str, root: str, alice: str, bob: str) -> list[tuple[str, int, Any]]:
    """What each command of kafka-delegation-tokens answered: by a stranger, by a renewer, and by the owner."""

    def command(login: str, *words: str) -> Printed:
        return tools.run(TOKENS, "--bootstrap-server", bootstrap, "--command-config", login, *words)

    made = command(root, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:alice")
    assert made.code == 0, made.text
    _, hmac = created(made)
    until(
        lambda: hmac in command(root, "--describe", "--owner-principal", "User:root").text,
        "Kafka's cache of tokens has the new one",
    )
    found: list[tuple[str, int, Any]] = []

    def is_gone() -> bool:
        return hmac not in command(root, "--describe", "--owner-principal", "User:root").text

    for who, login in (("bob", bob), ("alice", alice), ("root", root)):
        for words in (
            ("--renew", "--renew-time-period", "-1", "--hmac", "bm9uZQ=="),
            ("--renew", "--renew-time-period", "-1", "--hmac", hmac),
            ("--expire", "--expiry-time-period", "60000", "--hmac", hmac),
            ("--describe", "--owner-principal", "User:root"),
            *((("--expire", "--expiry-time-period", "-1", "--hmac", hmac),) * 2 if who in ("bob", "root") else ()),
        ):
            printed = command(login, *words)
            shows = words[0] == "--describe" and hmac in printed.text
            found.append((f"{who} {words[0]} {words[2]}", printed.code, (_errors(printed), shows)))
            if who == "root" and words[:3] == ("--expire", "--expiry-time-period", "-1"):
                until(is_gone, "Kafka's cache of tokens has lost the expired one")
    return found


def of_another_user(tools: KafkaTools, bootstrap: str, root: str, alice: str, bob: str) -> list[tuple[str, int, Any]]:
    """What each command answered about a token that bob created for alice."""

    def command(login: str, *words: str) -> Printed:
        return tools.run(TOKENS, "--bootstrap-server", bootstrap, "--command-config", login, *words)

    owned = ("--owner-principal", "User:alice")
    create = ("--create", "--max-life-time-period", "-1", *owned)
    refused = command(bob, *create)
    found: list[tuple[str, int, Any]] = [("bob has no right", refused.code, (_errors(refused), False, None))]
    right = ("--add", "--allow-principal", "User:bob", "--operation", "CreateTokens", "--user-principal", "User:alice")
    added = tools.run(ACLS, "--bootstrap-server", bootstrap, "--command-config", root, *right)
    assert added.code == 0, added.text
    made = until(lambda: (done := command(bob, *create)).code == 0 and done, "bob may create tokens of alice")
    _, hmac = created(made)
    until(lambda: hmac in command(alice, "--describe", *owned).text, "Kafka's cache of tokens has the new one")
    for who, login, words in (
        ("bob", bob, ("--describe", *owned)),
        ("bob", bob, ("--renew", "--renew-time-period", "-1", "--hmac", hmac)),
        ("bob", bob, ("--expire", "--expiry-time-period", "60000", "--hmac", hmac)),
        ("bob", bob, ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)),
        ("alice", alice, ("--expire", "--expiry-time-period", "60000", "--hmac", hmac)),
        ("alice", alice, ("--renew", "--renew-time-period", "0", "--hmac", hmac)),
        ("alice", alice, ("--expire", "--expiry-time-period", "-1", "--hmac", hmac)),
    ):
        printed = command(login, *words)
        date = re.search(r"expiry date\s*:\s*([-\dT:]+)", printed.text)
        is_soon = date and datetime.fromisoformat(date[1]) < datetime.now() + timedelta(hours=1)
        shows = words[0] == "--describe" and hmac in printed.text
        found.append((f"{who} {words[0]} {words[2]}", printed.code, (_errors(printed), shows, is_soon)))
    return found


def _errors(printed: Printed) -> list[str]:
    return sorted(set(re.findall(r"org\.apache\.kafka\.common\.errors\.(\w+)", printed.text)))


def test_every_command_answers_as_kafka_does(cluster: LocalCluster, tools: KafkaTools, tmp_path: Path) -> None:
    logins = [of_user(tmp_path, user, ca_of(cluster)) for user in USERS]
    ours = commands(tools, cluster.kafka_bootstrap_servers, *logins)
    ours += of_another_user(tools, cluster.kafka_bootstrap_servers, *logins)
    kafka = SecuredKafka(tmp_path, USERS, PASSWORD, delegation_token_secret_key=KEY)
    with kafka:
        plain = [of_user(tmp_path, user, None) for user in USERS]
        theirs = commands(tools, kafka.secured, *plain)
        theirs += of_another_user(tools, kafka.secured, *plain)
    seen = {error for _, _, (errors, *_) in theirs for error in errors}
    assert {"DelegationTokenNotFoundException", "DelegationTokenOwnerMismatchException"} <= seen, theirs
    assert ours == theirs


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_kafkas_clients_log_in_with_a_token(
    cluster: LocalCluster, tools: KafkaTools, tmp_path: Path, mechanism: str
) -> None:
    of = ("--bootstrap-server", cluster.kafka_bootstrap_servers, "--command-config")
    root = of_user(tmp_path, "root", ca_of(cluster))
    token_id, hmac = created(tools.run(TOKENS, *of, root, "--create", "--max-life-time-period", "-1"))

    def by(password: str) -> str:
        module = f'scram.ScramLoginModule required username="{token_id}" password="{password}" tokenauth="true";'
        return properties(tmp_path / "token.properties", module, mechanism, ca_of(cluster))

    assert "orders" in tools.run(TOPICS, *of, by(hmac), "--list").text
    refused = tools.run(TOKENS, *of, by(hmac), "--describe")
    assert "DelegationTokenAuthorization" in refused.text or "not allowed" in refused.text, refused.text
    wrong = tools.run(TOPICS, *of, by(hmac[1:] + hmac[0]), "--list")
    assert wrong.code != 0
    assert f"{mechanism}: the credentials are wrong" in wrong.text
    ended = tools.run(TOKENS, *of, root, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert ended.code == 0, ended.text
    assert tools.run(TOPICS, *of, by(hmac), "--list").code != 0
