"""Clients and tools of Kafka, unchanged, against a broker with SASL_SSL and SSL: each mechanism, right and wrong
credentials, users, quotas and access control lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, NewTopic
from tests.integration.kafka_protocol.kafka_tools import KafkaTools
from tests.integration.kafka_protocol.secured_clients import LIBRARIES, Login, confluent_config
from tests.worlds.kafka_protocol import address_of, secure_broker
from tests.worlds.security import TestAuthority

pytestmark = pytest.mark.timeout(300)
TOPIC = "secured"
SECRET = "it is planted"
MODULES = "org.apache.kafka.common.security"
SASL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


class Secured:
    """A cluster whose broker takes SASL_SSL and SSL from Kafka's clients. The certificates of its users have an
    authority of their own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = TestAuthority(directory)
        self.authority.issue("alice.pem", name="alice")
        self.sasl = self.ssl = self.ca = ""

    def keys(self) -> dict[str, str]:
        plain = f'{MODULES}.plain.PlainLoginModule required user_root="{SECRET}" user_alice="{SECRET}";'
        bearer = f'{MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredValidatorPrincipalClaimName="sub";'
        return {
            "listener.security.protocol.map": "client:SASL_SSL,internal:SSL,kafka:SASL_SSL,kafkacert:SSL",
            "listener.name.kafka.sasl.enabled.mechanisms": ",".join(SASL),
            "listener.name.kafka.plain.sasl.jaas.config": plain,
            "listener.name.kafka.oauthbearer.sasl.jaas.config": bearer,
            "listener.name.kafkacert.ssl.client.auth": "required",
            "listener.name.kafkacert.ssl.truststore.location": str(self.authority.ca),
            "listener.name.kafkacert.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
        }

    def login(self, mechanism: str | None, password: str = SECRET, user: str = "alice") -> tuple[str, Login]:
        """The address and the login for a mechanism; None: by certificate."""
        if mechanism is None:
            return self.ssl, Login(self.ca, certificate=str(self.directory / "alice.pem"))
        return self.sasl, Login(self.ca, mechanism, user, password)

    def properties(self, module: str, mechanism: str) -> str:
        """A file of client properties for Kafka's Java tools."""
        path = self.directory / f"{abs(hash((module, mechanism)))}.properties"
        path.write_text(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.ca}\n"
            f"sasl.mechanism={mechanism}\nsasl.jaas.config={MODULES}.{module}\n"
        )
        return str(path)

    @property
    def root(self) -> str:
        return self.properties(f'plain.PlainLoginModule required username="root" password="{SECRET}";', "PLAIN")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    with secure_broker(made.keys(), listeners=",kafkacert://127.0.0.1:0") as cluster:
        made.ca = str(cluster.directory / "security" / "ca.pem")
        made.sasl, made.ssl = cluster.kafka_bootstrap_servers, address_of(cluster, "kafkacert")
        with Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=1)])
        _prepare(made)
        yield made


def _prepare(secured: Secured) -> None:
    """Create a user for SCRAM, and allow alice what the tests do."""
    from confluent_kafka.admin import (  # type: ignore[attr-defined]
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        ResourcePatternType,
        ResourceType,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    bootstrap, login = secured.login("PLAIN", user="root")
    admin = AdminClient(confluent_config(bootstrap, login))
    wanted: list[Any] = [
        UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4_096), SECRET.encode())
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for each in admin.alter_user_scram_credentials(wanted).values():
        each.result(30)
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    bindings = [
        AclBinding(kind, name, literal, "User:alice", "*", operation, allow)
        for kind, name, operation in (
            (ResourceType.TOPIC, TOPIC, AclOperation.READ),
            (ResourceType.TOPIC, TOPIC, AclOperation.WRITE),
            (ResourceType.GROUP, "secured", AclOperation.READ),
        )
    ]
    for each in admin.create_acls(bindings).values():
        each.result(30)


@pytest.mark.parametrize("mechanism", [*SASL, None])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_writes_and_reads(secured: Secured, library: str, mechanism: str | None) -> None:
    there_and_back, _ = LIBRARIES[library]
    assert there_and_back(*secured.login(mechanism), TOPIC) == library.split("-kafka")[0].encode()


#: What each library says of a wrong password.
WRONG = {
    "confluent-kafka": "_AUTHENTICATION: .*SASL authentication error: {mechanism}: the credentials are wrong",
    "kafka-python": "SaslAuthenticationFailed.*{mechanism}: the credentials are wrong",
    "aiokafka": "SaslAuthenticationFailed: {mechanism}: the credentials are wrong",
    "franz-go": "SASL_AUTHENTICATION_FAILED: .*{mechanism}: the credentials are wrong",
}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_credentials_have_the_librarys_own_error(secured: Secured, library: str, mechanism: str) -> None:
    _, refused = LIBRARIES[library]
    for user in ("alice", "nobody"):
        bootstrap, login = secured.login(mechanism, "wrong", user)
        said = refused(bootstrap, login)
        assert re.search(WRONG[library].format(mechanism=mechanism), said), said
        assert SECRET not in said


def test_a_client_without_a_certificate_gets_a_reason(secured: Secured) -> None:
    _, refused = LIBRARIES["confluent-kafka"]
    assert "certificate required" in refused(secured.ssl, Login(secured.ca))


# -- Kafka's Java tools


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    with KafkaTools(tmp_path_factory.mktemp("tools")) as made:
        yield made


def topics_of(text: str) -> list[str]:
    """The topics that kafka-topics --list printed. The last line, "exit", is the tool runner's."""
    return [line for line in re.findall(r"(?m)^(\S+)$", text) if line != "exit"]


def run(tools: KafkaTools, tool: str, *arguments: str) -> str:
    printed = tools.run(tool, *arguments)
    assert printed.code == 0, f"{tool} {' '.join(arguments)}:\n{printed.text}"
    return printed.text


def test_kafka_acls(secured: Secured, tools: KafkaTools) -> None:
    acls = "org.apache.kafka.tools.AclCommand"
    of = ("--bootstrap-server", secured.sasl, "--command-config", secured.root)
    made = run(tools, acls, *of, "--add", "--allow-principal", "User:bob", "--producer", "--topic", "bobs",
               "--resource-pattern-type", "prefixed", "--allow-host", "10.0.0.1")  # fmt: skip
    assert "operation=WRITE, permissionType=ALLOW" in made
    listed = run(tools, acls, *of, "--list", "--topic", "bobs-orders", "--resource-pattern-type", "match")
    assert "ResourcePattern(resourceType=TOPIC, name=bobs, patternType=PREFIXED)" in listed
    assert listed.count("principal=User:bob, host=10.0.0.1") == 3  # WRITE, DESCRIBE, CREATE
    run(tools, acls, *of, "--remove", "--force", "--topic", "bobs", "--resource-pattern-type", "prefixed")
    assert "User:bob" not in run(tools, acls, *of, "--list")


def test_kafka_configs_of_users_and_quotas(secured: Secured, tools: KafkaTools) -> None:
    configs = "kafka.admin.ConfigCommand"
    of = ("--bootstrap-server", secured.sasl, "--command-config", secured.root, "--entity-type", "users")
    carol = ("--entity-name", "carol")
    run(tools, configs, *of, *carol, "--alter", "--add-config", f"SCRAM-SHA-512=[iterations=4096,password={SECRET}]")
    described = run(tools, configs, *of, *carol, "--describe")
    assert "SCRAM-SHA-512=iterations=4096" in described
    login = f'scram.ScramLoginModule required username="carol" password="{SECRET}";'
    mine = ("--bootstrap-server", secured.sasl, "--command-config", secured.properties(login, "SCRAM-SHA-512"))
    topics = "org.apache.kafka.tools.TopicCommand"
    assert topics_of(run(tools, topics, *mine, "--list")) == []  # carol has authenticated, and sees nothing
    run(tools, configs, *of, *carol, "--alter", "--add-config", "producer_byte_rate=1024")
    assert "producer_byte_rate=1024.0" in run(tools, configs, *of, *carol, "--describe")
    for key in ("producer_byte_rate", "SCRAM-SHA-512"):
        run(tools, configs, *of, *carol, "--alter", "--delete-config", key)
    assert "carol" not in run(tools, configs, *of, *carol, "--describe").replace("'carol'", "")
    refused = tools.run(topics, *mine, "--list")
    assert refused.code != 0
    assert "SCRAM-SHA-512: the credentials are wrong" in refused.text


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", f'plain.PlainLoginModule required username="alice" password="{SECRET}";'),
        ("SCRAM-SHA-256", f'scram.ScramLoginModule required username="alice" password="{SECRET}";'),
        ("SCRAM-SHA-512", f'scram.ScramLoginModule required username="alice" password="{SECRET}";'),
    ],
)
def test_kafkas_java_clients(secured: Secured, tools: KafkaTools, mechanism: str, module: str) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    of = ("--bootstrap-server", secured.sasl, "--command-config")
    assert topics_of(run(tools, topics, *of, secured.properties(module, mechanism), "--list")) == [TOPIC]
    wrong = tools.run(topics, *of, secured.properties(module.replace(SECRET, "wrong"), mechanism), "--list")
    assert wrong.code != 0
    assert f"{mechanism}: the credentials are wrong" in wrong.text
