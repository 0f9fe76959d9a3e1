"""Requirements of every declared key; and whole files as operators paste them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace_core.config import ConfigDef, ConfigKey, Kind, Scope, Status
from headrace_core.config.client_keys import ADMIN, CONSUMER, PRODUCER
from headrace_core.config.security_keys import PER_LISTENER
from headrace_core.config.server_keys import SERVER, listener_values
from headrace_core.config.topic_keys import COARSE_DEFAULT_KEYS, TOPIC, TOPIC_DEFAULT_KEYS
from headrace_core.errors import InvalidConfigError
from headrace_core.node.arguments import StartCommand, parse_command
from headrace_core.node.config import NodeConfig

ROOT = Path(__file__).resolve().parents[3]
DEFINITIONS = (TOPIC, SERVER, PRODUCER, CONSUMER, ADMIN)
KEYS = [
    pytest.param(key, id=f"{definition.where}-{key.name}")
    for definition in DEFINITIONS
    for key in (*definition.keys.values(), *definition.families.values())
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_declared_whole(key: ConfigKey) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9.]*(\.\*)?", key.name)
    assert key.doc[0].isupper() or key.doc.split()[0].rstrip(",") in key.doc
    assert key.doc[-1] in ".?)", key.doc
    assert key.source in ("Kafka", "Headrace", "Confluent", "librdkafka") or re.fullmatch(r"KIP-\d+", key.source)
    assert not (key.note and key.refusal)
    for said in (key.note, key.refusal):
        assert said is None or said.strip() == said != ""
    if key.kind is Kind.PASSWORD:
        assert key.default is None


@pytest.mark.parametrize("key", KEYS)
def test_its_default_is_legal_and_survives_its_text(key: ConfigKey) -> None:
    if key.default is None or key.kind is Kind.CLASS:
        return
    assert key.parse(key.default) == key.default
    assert key.parse(key.format(key.default)) == key.default


def test_a_default_is_a_number_that_clients_in_java_and_go_can_parse() -> None:
    """Java's Double.parseDouble and Go's ParseFloat accept Infinity; Java does not accept inf."""
    texts = {
        key.name: key.format(key.default)
        for definition in DEFINITIONS
        for key in definition.keys.values()
        if key.kind is Kind.DOUBLE and key.default is not None
    }
    assert texts["log.cleaner.io.max.bytes.per.second"] == "Infinity"
    number = re.compile(r"Infinity|[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
    assert [name for name, text in texts.items() if not number.fullmatch(text)] == []


def test_no_key_has_two_spellings_in_underscores() -> None:
    for definition in DEFINITIONS:
        assert len({name.replace(".", "_") for name in definition.keys}) == len(definition.keys)


def test_a_key_of_several_clients_means_the_same_to_each_that_shares_it() -> None:
    for name in ADMIN.keys.keys() & PRODUCER.keys.keys() & CONSUMER.keys.keys():
        assert PRODUCER.keys[name] is CONSUMER.keys[name] is ADMIN.keys[name]


def test_only_topic_keys_are_per_topic_and_clients_keys_stay() -> None:
    assert {key.scope for key in TOPIC.keys.values()} == {Scope.PER_TOPIC}
    assert Scope.PER_TOPIC not in {key.scope for key in SERVER.keys.values()}
    assert {key.scope for client in (PRODUCER, CONSUMER, ADMIN) for key in client.keys.values()} == {Scope.READ_ONLY}


def _read_by_code() -> str:
    """All code except the declarations. Code that honours a key must name the key."""
    declarations = ROOT / "core/src/headrace_core/config"
    texts = []
    for folder in ("core/src", "kafka-protocol/src", "services", "clients", "pipelines"):
        paths = [path for path in (ROOT / folder).rglob("*.py") if path.parent != declarations]
        texts += [path.read_text(encoding="utf-8") for path in paths]
    return "\n".join(texts)


def test_an_honoured_key_is_read_somewhere() -> None:
    """A key that no code names cannot be honoured: it needs a note. (Other tests check the effect of keys.)"""
    code = _read_by_code()
    unread = []
    # the topic key for which they are the default counts
    defaults = set(TOPIC_DEFAULT_KEYS.values()) | set(COARSE_DEFAULT_KEYS)
    for definition in DEFINITIONS:
        for key in definition.keys.values():
            if key.status is Status.HONOURED and not (definition is SERVER and key.name in defaults):
                by_pattern = key.name.startswith("compression.") and 'f"compression.{' in code
                if f'"{key.name}"' not in code and f"'{key.name}'" not in code and not by_pattern:
                    unread.append(f"{definition.where}: {key.name}")
    assert unread == []


# -- pasted files ------------------------------------------------------------------------------------------------------

#: Modelled on Kafka 4's config/server.properties, but not copied.
KAFKAS_FILE = """
# who it is
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=localhost:19093

# sockets
listeners=client://:9092,internal://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=client://localhost:9092,internal://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600

# logs
log.dirs=/tmp/combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
#log.flush.interval.messages=10000
#log.flush.interval.ms=1000
log.retention.hours=168
#log.retention.bytes=1073741824
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000

# what operators add
auto.create.topics.enable=false
auto.leader.rebalance.enable=true
broker.rack=eu-1a
compression.type=producer
default.replication.factor=3
delete.topic.enable=true
group.initial.rebalance.delay.ms=0
inter.broker.protocol.version=3.9
log.cleaner.threads=2
log.message.format.version=3.0
message.max.bytes=1048588
min.insync.replicas=2
num.replica.fetchers=4
offsets.retention.minutes=10080
replica.lag.time.max.ms=30000
unclean.leader.election.enable=false
authorizer.class.name=
metric.reporters=org.example.Reporter
confluent.support.metrics.enable=false
remote.log.storage.system.enable=false
remote.log.manager.thread.pool.size=4
"""


def start(text: str, tmp_path: Path, *more: str, role: str = "broker") -> NodeConfig:
    file = tmp_path / "server.properties"
    file.write_text(text)
    command = parse_command(["--config", str(file), *more], program="p", role=role)
    assert isinstance(command, StartCommand)
    return command.config


def test_kafkas_own_file_is_taken_and_what_does_nothing_is_reported(tmp_path: Path) -> None:
    config = start(KAFKAS_FILE, tmp_path)
    assert config.topic_defaults()["retention.ms"] == 604_800_000
    assert config.values["log.cleaner.threads"] == 2
    noted = {note.partition(":")[0] for note in config.notes()}
    given = {line.partition("=")[0] for line in KAFKAS_FILE.splitlines() if "=" in line and not line.startswith("#")}
    assert given - noted == {
        "process.roles",
        "group.initial.rebalance.delay.ms",
        "node.id",
        "controller.quorum.bootstrap.servers",
        "listeners",
        "listener.security.protocol.map",
        "advertised.listeners",
        "socket.request.max.bytes",
        "log.dirs",
        "num.partitions",
        "num.recovery.threads.per.data.dir",
        "auto.leader.rebalance.enable",
        "log.retention.hours",
        "log.segment.bytes",
        "log.retention.check.interval.ms",
        "auto.create.topics.enable",
        "broker.rack",
        "offsets.retention.minutes",
        "compression.type",
        "default.replication.factor",
        "delete.topic.enable",
        "log.cleaner.threads",
        "message.max.bytes",
        "min.insync.replicas",
        "offsets.topic.replication.factor",
        "transaction.state.log.min.isr",
        "transaction.state.log.replication.factor",
        "replica.lag.time.max.ms",
        "unclean.leader.election.enable",
        "authorizer.class.name",
    }
    assert all(len(note) > 20 for note in config.notes())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("process.roles=broker,controller", "one program for each role"),
        ("listeners=PLAINTEXT://:9092,CONTROLLER://:9093", "must be client .* or internal"),
        ("zookeeper.connect=zk:2181", "there is no ZooKeeper: the controllers keep the metadata"),
        ("zookeeper.connection.timeout.ms=18000", "there is no ZooKeeper"),
        ("ssl.keystore.type=JKS", "keytool -importkeystore"),
        ("ssl.enabled.protocols=TLSv1.1", "only TLSv1.2 and TLSv1.3"),
        ("ssl.client.auth=maybe", "must be one of required, requested, none"),
        ("ssl.endpoint.identification.algorithm=", "gRPC always checks the names"),
        ("ssl.engine.factory.class=X", "cannot load Java classes"),
        ("sasl.enabled.mechanisms=CRAM-MD5", "must be any of PLAIN"),
        ("listener.name.client.ssl.keystor.location=x", "did you mean"),
        ("listener.name.client.num.partitions=2", "listener client cannot have its own 'num.partitions'"),
        ("listener.security.protocol.map=client:SSL", "does not name internal: add internal:SSL"),
        ("listener.security.protocol.map=client:SSL,internal:PLAINTEXT", "internal must be SSL"),
        ("listener.security.protocol.map=client:SASL_SSL,internal:SASL_SSL", "internal must be SSL"),
        ("listener.security.protocol.map=client:TLS", "write NAME:PROTOCOL"),
        ("listener.security.protocol.map=client:SSL,CLIENT:SSL", "is given twice"),
        ("authorizer.class.name=org.example.Authorizer", "must be StandardAuthorizer"),
        ("config.providers=file", "only in passwords and secrets"),
        ("remote.log.storage.system.enable=true", "tiered storage is not built"),
        ("host.name=h", "write listeners="),
        ("retention.ms=5", "for a server it is called 'log.retention.ms'"),
        ("log.retention.ms=7d", r"7d is 604800000 \(.*server.properties, line 2\)"),
        ("log.segment.bytes=1g", "1g is 1073741824"),
        ("log.retention.hours=2 weeks", "2 weeks is 336"),
        ("compression.type=lz5", "did you mean 'lz4'"),
        ("log.cleaner.threds=1", r"did you mean 'log.cleaner.threads'\? \(.*line 2\)"),
        ("message.max.bytes=16777217", "message.max.bytes=16777217 is above socket.request.max.bytes=16777216"),
        ("broker.heartbeat.interval.ms=9000", "not below broker.session.timeout.ms=9000"),
        ("log.cleaner.threads=129", "each thread needs 1 MiB"),
        ("group.min.session.timeout.ms=1800001", "no session would fit"),
        ("replica.fetch.wait.max.ms=30001", "would lag"),
        ("group.consumer.session.timeout.ms=44999", "smallest value allowed"),
        ("compression.gzip.level=0", "must be -1, or 1 to 9"),
        ("unclean.leader.election.enable=yes", "must be true or false"),
    ],
)
def test_what_is_refused_is_refused_by_name_and_with_the_cure(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=said) as caught:
        start(f"log.dirs=/d\n{line}\n", tmp_path)
    assert line.partition("=")[0].split(".ssl")[0] in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", [*sorted(PER_LISTENER), "sasl.server.max.receive.size", "ssl.client.auth"])
def test_a_key_of_one_listener_has_the_type_of_the_general_key(key: str) -> None:
    """A fixed fault: connections.max.reauth.ms of one listener stayed text, and ended its clients' logins."""
    text = {"ssl.client.auth": "required"}.get(key, "1500")
    name = f"listener.name.kafka.{key}"
    values = SERVER.parse({name: text})
    assert listener_values(values, "kafka")[key] == SERVER.parse({key: text})[key]
    assert listener_values(values, "client")[key] == SERVER.parse({})[key]
    with pytest.raises(InvalidConfigError, match=key):
        listener_values(SERVER.parse({name: "neither"}), "kafka")


def test_everything_that_is_wrong_is_reported_at_once_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        start("log.dirs=/d\nnum.partitions=0\n\nno.such.key=1\n", tmp_path, "-o", "log.level=loud")
    text = str(caught.value)
    for part in (
        "num.partitions='0': must be between 1",
        "line 2)",
        "'no.such.key'",
        "line 4)",
        "(-o on the command line)",
    ):
        assert part in text


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    assert start("log.dirs=/d\nnum.partitions=0\n", tmp_path, "-o", "num.partitions=3").values["num.partitions"] == 3


def test_a_controller_may_keep_its_log_elsewhere(tmp_path: Path) -> None:
    text = "node.id=1\nlog.dirs=/d,/e\nmetadata.log.dir=/m/\n"
    assert start(text, tmp_path, role="controller").log_dirs == ("/m",)
    assert start(text, tmp_path, role="broker").log_dirs == ("/d", "/e")


def test_a_secret_is_shown_nowhere() -> None:
    definition = ConfigDef(
        [ConfigKey(name="a.password", kind=Kind.PASSWORD, default=None, doc="Secret.", check=lambda value: "is wrong")],
        where="test",
    )
    with pytest.raises(InvalidConfigError) as caught:
        definition.parse({"a.password": "hunter2"})
    assert str(caught.value) == "a.password=[hidden]: is wrong"


def test_a_key_declared_twice_is_a_mistake_of_ours() -> None:
    key = ConfigKey(name="a", kind=Kind.INT, default=1, doc="One.")
    with pytest.raises(ValueError, match="declared twice"):
        ConfigDef([key, key], where="test")
