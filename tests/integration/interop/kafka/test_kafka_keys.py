"""Compares Kafka's lists of keys, as its classes print them for its documentation, with Headrace's keys. Headrace knows
every key. Type, default and update mode are Kafka's, unless a table in this file gives the reason for a difference.

Marked `kafka`: needs Java and Kafka's jars.
"""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import pytest

from headrace_core.config import ConfigDef, Kind, Status
from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.config.server_keys import SERVER
from headrace_core.config.topic_keys import TOPIC
from tests.integration.interop.kafka_peer import jars

pytestmark = pytest.mark.timeout(600)

#: For each class of Kafka that prints keys: Headrace's definition of the keys, and the minimum number of keys. (With
#: fewer keys, the test has misread the output.)
PAGES = {
    "kafka.server.KafkaConfig": (SERVER, 300),
    "org.apache.kafka.storage.internals.log.LogConfig": (TOPIC, 30),
    "org.apache.kafka.clients.producer.ProducerConfig": (PRODUCER, 100),
    "org.apache.kafka.clients.consumer.ConsumerConfig": (CONSUMER, 100),
    "org.apache.kafka.clients.admin.AdminClientConfig": (ADMIN, 80),
}

#: Defaults that differ from Kafka's, and the reasons. Kafka's default null has one of two reasons: a coarser key
#: decides (hours instead of ms), or the description of Headrace's key gives the reason.
OTHER_DEFAULTS = {
    "server": {
        "listeners": "ours are called client and internal",
        "listener.security.protocol.map": "ours are all PLAINTEXT",
        "ssl.keystore.type": "no JKS",
        "ssl.truststore.type": "no JKS",
        "log.dir": "no directory is guessed",
        "log.flush.interval.ms": "Kafka: null, which means never",
        "log.retention.hours": "the default stands at log.retention.ms",
        "log.retention.ms": "Kafka: null, and log.retention.hours=168",
        "log.roll.hours": "the default stands at log.roll.ms",
        "log.roll.ms": "Kafka: null, and log.roll.hours=168",
        "log.roll.jitter.hours": "the default stands at log.roll.jitter.ms",
        "log.roll.jitter.ms": "Kafka: null, and log.roll.jitter.hours=0",
        "log.cleaner.io.max.bytes.per.second": "Kafka: the largest double",
        "max.connections": "memory and descriptors of one process bound them",
        "metric.reporters": "no JMX",
        "node.id": "a broker gets one with its directories",
        "socket.request.max.bytes": "Kafka's 100 MiB is what every connection can make a broker hold",
    },
    "topic": {},
    "producer": {
        "batch.size": "a message costs the same whatever it carries",
        "client.id": "a name in logs helps",
        "linger.ms": "0 lets records gather while a request is under way",
        "metric.reporters": "no JMX",
        "receive.buffer.bytes": "the system's",
        "send.buffer.bytes": "the system's",
        "ssl.keystore.type": "no JKS",
        "ssl.truststore.type": "no JKS",
    },
    "consumer": {
        "client.id": "a name in logs helps",
        "group.protocol": "the newer one",
        "metric.reporters": "no JMX",
        "partition.assignment.strategy": "the server assigns",
        "receive.buffer.bytes": "the system's",
        "send.buffer.bytes": "the system's",
        "ssl.keystore.type": "no JKS",
        "ssl.truststore.type": "no JKS",
    },
    "admin": {
        "client.id": "a name in logs helps",
        "connections.max.idle.ms": "one for all clients, and without effect",
        "enable.metrics.push": "one for all clients, and without effect",
        "metric.reporters": "no JMX",
        "receive.buffer.bytes": "the system's",
        "send.buffer.bytes": "the system's",
        "ssl.keystore.type": "no JKS",
        "ssl.truststore.type": "no JKS",
    },
}
#: In Kafka a broker takes a new keystore when its key is set again; Headrace looks at the files.
_TLS = (
    *(f"ssl.keystore.{name}" for name in ("type", "location", "password", "certificate.chain", "key")),
    *(f"ssl.truststore.{name}" for name in ("type", "location", "password", "certificates")),
    *(f"ssl.{name}" for name in ("key.password", "protocol", "provider", "cipher.suites", "enabled.protocols")),
    *(f"ssl.{name}.algorithm" for name in ("keymanager", "trustmanager", "endpoint.identification")),
    *(f"ssl.{name}" for name in ("client.auth", "secure.random.implementation", "engine.factory.class")),
    *(f"ssl.allow.{name}.changes" for name in ("dn", "san")),
)
#: In Kafka, one broker's SASL keys can be altered.
_SASL = (
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.mechanism.inter.broker.protocol",
    *(f"sasl.kerberos.{name}" for name in ("kinit.cmd", "min.time.before.relogin", "service.name")),
    *(f"sasl.kerberos.ticket.renew.{name}" for name in ("jitter", "window.factor")),
    "sasl.kerberos.principal.to.local.rules",
    *(f"sasl.login.refresh.{name}" for name in ("buffer.seconds", "min.period.seconds")),
    *(f"sasl.login.refresh.window.{name}" for name in ("factor", "jitter")),
)
OTHER_SCOPES = {
    "listeners": "by a restart only",
    "listener.security.protocol.map": "by a restart only",
    **dict.fromkeys(_TLS, "by a restart, or by new files in the old place"),
    **dict.fromkeys(_SASL, "by a restart only, or without effect"),
    "log.retention.check.interval.ms": "ours can be altered",
    "max.connections": "gRPC takes it when the listener opens",
    "max.connections.per.ip": "a listener reads it at its start",
}
OTHER_TYPES = {
    "linger.ms": "fractions of a millisecond are allowed",
    "listener.security.protocol.map": "with commas",
    "log.dir": "one directory",
    "num.replica.alter.log.dirs.threads": "null is not a number",
}
_KINDS = {
    "boolean": {Kind.BOOLEAN},
    "int": {Kind.INT},
    "short": {Kind.INT},
    "long": {Kind.LONG},
    "double": {Kind.DOUBLE},
    "string": {Kind.STRING},
    "list": {Kind.LIST},
    "class": {Kind.STRING, Kind.CLASS},
    "password": {Kind.PASSWORD},
}


class KafkasKey(NamedTuple):
    type: str
    default: str
    mode: str


def read(page: str) -> dict[str, KafkasKey]:
    """The keys of a page of Kafka's documentation."""
    found = {}
    for item in page.split("<h4>")[1:]:
        (name,) = re.findall(r'<a id="([^"]+)"></a>', item)[:1]
        cells = {head.rstrip(":"): cell for head, cell in re.findall(r"<th>(.*?)</th><td>(.*?)</td>", item, re.DOTALL)}
        # "604800000 (7 days)" is for people
        default = re.sub(r" \([^()]*\)$", "", html.unescape(cells["Default"]).strip()).strip('"')
        found[name] = KafkasKey(cells["Type"], "" if default == "null" else default, cells.get("Update Mode", ""))
    return found


@pytest.fixture(scope="module")
def kafkas() -> Callable[[str], dict[str, KafkasKey]]:
    libs = jars()

    def keys(java_class: str) -> dict[str, KafkasKey]:
        command = ["java", "-Xmx256m", "-cp", f"{libs}/*", java_class]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2_000:]
        return read(done.stdout)

    return keys


@pytest.mark.parametrize("java_class", PAGES)
def test_kafkas_keys_are_ours(java_class: str, kafkas: Callable[[str], dict[str, KafkasKey]]) -> None:
    definition, at_least = PAGES[java_class]
    theirs = kafkas(java_class)
    assert len(theirs) >= at_least
    differing = []
    for name, kafkas_key in theirs.items():
        key = definition.key(name)  # an unknown key raises an error with its name
        if name not in definition.keys or key.status is Status.REFUSED:
            continue  # a key of a family, or a key without a comparable default
        if key.kind not in _KINDS[kafkas_key.type] and name not in OTHER_TYPES:
            differing.append(f"{name}: Kafka's type is {kafkas_key.type}, ours {key.kind.value}")
        ours = key.format(key.default)
        if ours != kafkas_key.default and name not in OTHER_DEFAULTS[definition.where]:
            differing.append(f"{name}: Kafka's default is {kafkas_key.default!r}, ours {ours!r}")
        if definition is SERVER and key.scope.value != kafkas_key.mode and name not in OTHER_SCOPES:
            differing.append(f"{name}: Kafka's update mode is {kafkas_key.mode}, ours {key.scope.value}")
    assert differing == []


@pytest.mark.parametrize("java_class", PAGES)
def test_no_difference_is_explained_that_is_none(
    java_class: str, kafkas: Callable[[str], dict[str, KafkasKey]]
) -> None:
    definition: ConfigDef = PAGES[java_class][0]
    theirs = kafkas(java_class)
    same = [
        name
        for name in OTHER_DEFAULTS[definition.where]
        if name in theirs and definition.key(name).format(definition.key(name).default) == theirs[name].default
    ]
    assert same == []
