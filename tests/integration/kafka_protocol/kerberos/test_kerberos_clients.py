"""Kafka's own clients at a broker with GSSAPI: Java's Krb5LoginModule, and librdkafka (kcat with Cyrus SASL)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Admin, NewTopic
from headrace.acl_models import AclBinding, AclOperation, ResourceType
from headrace_core.config.client_keys import PRODUCER
from headrace_core.errors import SaslAuthenticationFailedError
from headrace_core.security.sasl.client import Login
from headrace_core.security.sasl.exchange import ClientExchange
from headrace_kafka.wire.apis import Api
from tests.integration.kafka_protocol.kafka_tools import KafkaTools, Printed
from tests.worlds.kafka_protocol import ClosedError, KafkaWire, address_of, secure_broker
from tests.worlds.security import REALM, Realm, krb5_module, running_realm
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(180)
TOPIC = "kerberized"
TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCE, CONSUME = "org.apache.kafka.tools.ConsoleProducer", "org.apache.kafka.tools.consumer.ConsoleConsumer"


class Kerberized:
    """A broker with a listener that takes GSSAPI only. Clients know it as localhost."""

    def __init__(self, realm: Realm, bootstrap: str) -> None:
        self.realm, self.bootstrap = realm, bootstrap

    def properties(self, module: str, service: str = "kafka", **more: Any) -> str:
        """A file of client properties for Kafka's Java tools."""
        lines = [
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=GSSAPI",
            f"sasl.kerberos.service.name={service}",
            f"sasl.jaas.config={module}",
            *(f"{key.replace('_', '.')}={value}" for key, value in more.items()),
        ]
        path = self.realm.directory / f"{abs(hash(tuple(lines)))}.properties"
        path.write_text("\n".join(lines) + "\n")
        return str(path)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    with running_realm(tmp_path_factory.mktemp("realm")) as running:
        yield running


@pytest.fixture(scope="module")
def kerberized(realm: Realm) -> Iterator[Kerberized]:
    keys = {
        "listener.security.protocol.map": "client:SASL_SSL,internal:SSL,kafka:SASL_SSL,kafkakerberos:SASL_PLAINTEXT",
        "listener.name.kafkakerberos.sasl.enabled.mechanisms": "GSSAPI",
        "listener.name.kafkakerberos.connections.max.reauth.ms": "1500",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.kafkakerberos.gssapi.sasl.jaas.config": krb5_module(
            realm.keytab("kafka/localhost", name="kafka"), f"kafka/localhost@{REALM}"
        ),
    }
    with secure_broker(keys, listeners=",kafkakerberos://localhost:0") as cluster:
        with Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=1), NewTopic("hidden", partitions=1)])
            admin.create_acls(
                [
                    AclBinding(
                        resource_type=kind, resource_name=name, principal="User:alice", operation=AclOperation.ALL
                    )
                    for kind, name in ((ResourceType.TOPIC, TOPIC), (ResourceType.GROUP, "alices"))
                ]
            )
        yield Kerberized(realm, address_of(cluster, "kafkakerberos"))


@pytest.fixture(scope="module")
def alice(realm: Realm) -> str:
    return realm.keytab("alice")


@pytest.fixture(scope="module")
def tools(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaTools]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={realm.krb5_conf}")
        with KafkaTools(tmp_path_factory.mktemp("tools")) as made:
            yield made


def listed(tools: KafkaTools, kerberized: Kerberized, properties: str) -> Printed:
    return tools.run(TOPICS, "--bootstrap-server", kerberized.bootstrap, "--command-config", properties, "--list")


def test_java_with_a_keytab_sees_the_topics_of_its_user(tools: KafkaTools, kerberized: Kerberized, alice: str) -> None:
    printed = listed(tools, kerberized, kerberized.properties(krb5_module(alice, f"alice@{REALM}")))
    assert printed.code == 0, printed.text
    assert TOPIC in printed.text
    assert "hidden" not in printed.text


def test_java_with_a_ticket_cache_writes_and_reads(
    tools: KafkaTools, kerberized: Kerberized, realm: Realm, alice: str
) -> None:
    cache = realm.kinit("alice", alice).removeprefix("FILE:")
    module = f'com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true ticketCache="{cache}";'
    of = ("--bootstrap-server", kerberized.bootstrap, "--topic", TOPIC)
    properties = kerberized.properties(module)
    written = tools.run(PRODUCE, *of, "--command-config", properties, stdin="from java\n")
    assert written.code == 0, written.text
    read = tools.run(CONSUME, *of, "--command-config", properties, "--group", "alices", "--from-beginning",
                     "--max-messages", "1", "--timeout-ms", "30000")  # fmt: skip
    assert "from java" in read.text, read.text


def test_java_authenticates_again_on_its_connection(
    tools: KafkaTools, kerberized: Kerberized, alice: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer stays longer than connections.max.reauth.ms."""
    properties = kerberized.properties(krb5_module(alice, f"alice@{REALM}"))
    read = tools.run(CONSUME, "--bootstrap-server", kerberized.bootstrap, "--topic", TOPIC, "--group", "alices",
                     "--command-config", properties, "--timeout-ms", "4000")  # fmt: skip
    assert "Authentication" not in read.text, read.text
    assert "Processed a total of" in read.text, read.text
    assert "after the end of the session" not in caplog.text


def test_java_with_another_service_is_refused(
    tools: KafkaTools, kerberized: Kerberized, realm: Realm, alice: str
) -> None:
    realm.admin("addprinc -randkey other/localhost")
    printed = listed(tools, kerberized, kerberized.properties(krb5_module(alice, f"alice@{REALM}"), "other"))
    assert printed.code != 0
    assert f"GSSAPI: the ticket is not for kafka/localhost@{REALM}" in printed.text


# -- librdkafka


def kcat(kerberized: Kerberized, keytab: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.keytab": keytab,
        "sasl.kerberos.principal": "alice",
    }
    options = [each for key, value in keys.items() for each in ("-X", f"{key}={value}")]
    environment = {**kerberized.realm.environment, "KRB5CCNAME": f"FILE:{kerberized.realm.directory}/kcat.cache"}
    return subprocess.run(
        ["kcat", "-b", kerberized.bootstrap, *options, *arguments],
        env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_librdkafka_writes_and_reads(kerberized: Kerberized, alice: str) -> None:
    written = kcat(kerberized, alice, "-P", "-t", TOPIC, stdin="from kcat\n")
    assert written.returncode == 0, written.stderr
    read = kcat(kerberized, alice, "-C", "-t", TOPIC, "-o", "beginning", "-e", "-q")
    assert "from kcat" in read.stdout, read.stderr
    denied = kcat(kerberized, alice, "-P", "-t", "hidden", stdin="no\n")
    assert "authorization failed" in denied.stderr.lower(), denied.stderr


# -- requests one by one


def exchange(keytab: str, principal: str = "alice") -> ClientExchange:
    keys = {
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_keytab": keytab,
        "sasl_kerberos_principal": principal,
    }
    return Login(PRODUCER.parse(keys)).start("localhost")


def begun(wire: KafkaWire, keytab: str, principal: str = "alice") -> bytes:
    """Go through an exchange up to the client's last message, which is returned."""
    assert has_begun(wire)
    return last_message(wire, keytab, principal)


def has_begun(wire: KafkaWire) -> bool:
    return bool(wire.ask(Api.SASL_HANDSHAKE, mechanism="GSSAPI").error_code == 0)


def last_message(wire: KafkaWire, keytab: str, principal: str) -> bytes:
    client = exchange(keytab, principal)
    data = client.first()
    for _ in range(2):
        answer = wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=data)
        assert answer.error_code == 0, answer.error_message
        data = client.step(answer.auth_bytes) or b""
    assert client.is_complete
    return data


def refusal(wire: KafkaWire, data: bytes) -> str:
    """The error message for a message of an exchange; the connection must be closed after it."""
    answer = wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=data)
    assert answer.error_code == SaslAuthenticationFailedError.number
    with pytest.raises(ClosedError):
        wire.ask(Api.METADATA, topics=None)
    return str(answer.error_message)


def test_a_connection_cannot_finish_the_exchange_of_another(kerberized: Kerberized, alice: str) -> None:
    with KafkaWire(kerberized.bootstrap) as mine, KafkaWire(kerberized.bootstrap) as thief:
        last = begun(mine, alice)
        assert has_begun(thief)
        assert "was refused" in refusal(thief, bytes(bytearray(last)))
    with KafkaWire(kerberized.bootstrap) as mine, KafkaWire(kerberized.bootstrap) as thief:
        last, _ = begun(mine, alice), begun(thief, alice)
        assert "does not belong to this exchange" in refusal(thief, bytes(bytearray(last)))
        answer = mine.ask(Api.SASL_AUTHENTICATE, auth_bytes=last)
        assert answer.error_code == 0
        assert 0 < answer.session_lifetime <= 1_500
        assert [topic.name for topic in mine.ask(Api.METADATA, topics=None).topics] == [TOPIC]


def test_a_stolen_ticket_request_is_refused_on_another_connection(kerberized: Kerberized, alice: str) -> None:
    request = exchange(alice).first()
    with KafkaWire(kerberized.bootstrap) as mine, KafkaWire(kerberized.bootstrap) as thief:
        for each in (mine, thief):
            assert has_begun(each)
        assert mine.ask(Api.SASL_AUTHENTICATE, auth_bytes=request).error_code == 0
        assert "a replay of an earlier one" in refusal(thief, request)


def test_a_connection_cannot_become_another_principals(kerberized: Kerberized, realm: Realm, alice: str) -> None:
    bob = realm.keytab("bob")
    with KafkaWire(kerberized.bootstrap) as wire:
        assert wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=begun(wire, alice)).error_code == 0
        until(lambda: has_begun(wire), within_s=5)  # (a connection may authenticate once a second)
        assert "cannot authenticate again as User:bob" in refusal(wire, last_message(wire, bob, "bob"))


def test_hostile_bytes_end_the_connection(kerberized: Kerberized) -> None:
    for data in (b"", b"garbage", b"\x60" * 10_000):
        with KafkaWire(kerberized.bootstrap) as wire:
            assert has_begun(wire)
            assert "GSSAPI: " in refusal(wire, data)
    with KafkaWire(kerberized.bootstrap) as wire:  # more than sasl.server.max.receive.size
        assert has_begun(wire)
        with pytest.raises(ClosedError):
            wire.ask(Api.SASL_AUTHENTICATE, auth_bytes=b"\x60" * 600_000)
