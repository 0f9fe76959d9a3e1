"""Apache Kafka's command-line tools, unchanged, against brokers: what each prints, judged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from tests.integration.kafka_protocol.kafka_tools import KafkaTools, page

#: What all tools printed; docs/reference/kafka-tools.md is a copy of one run.
PAGE = Path(__file__).parents[4] / "build" / "kafka-tools.md"
TOOLS = "org.apache.kafka.tools."
TOPICS, CONFIGS = f"{TOOLS}TopicCommand", "kafka.admin.ConfigCommand"
GROUPS, REASSIGN = f"{TOOLS}consumer.group.ConsumerGroupCommand", f"{TOOLS}reassign.ReassignPartitionsCommand"
CONSUMER, OFFSETS = f"{TOOLS}consumer.ConsoleConsumer", f"{TOOLS}GetOffsetShell"


class Console:
    """Tools with the addresses of the brokers; a tool that ends with an exit code fails the test."""

    def __init__(self, tools: KafkaTools, bootstrap: str, directory: Path) -> None:
        self.tools, self.bootstrap, self.directory = tools, bootstrap, directory

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool with --bootstrap-server; return its text."""
        return self.plain(tool, "--bootstrap-server", self.bootstrap, *arguments, stdin=stdin)

    def plain(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Run a tool with these arguments alone; return its text."""
        printed = self.tools.run(tool, *arguments, stdin=stdin)
        assert printed.code == 0, f"{tool} {' '.join(arguments)} ended with {printed.code}:\n{printed.text}"
        return printed.text

    def file(self, name: str, content: object) -> str:
        """Write a JSON file; return its path."""
        path = self.directory / name
        path.write_text(json.dumps(content))
        return str(path)

    def topic(self, name: str, records: int = 0) -> str:
        """Create a topic of three partitions with three replicas; write records "k0:v0", "k1:v1", … to it."""
        self(TOPICS, "--create", "--topic", name, "--partitions", "3", "--replication-factor", "3")
        if records:
            keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
            lines = "".join(f"k{number}:v{number}\n" for number in range(records))
            self(f"{TOOLS}ConsoleProducer", "--topic", name, *keyed, stdin=lines)
        return name

    def offsets(self, topic: str, time: str = "latest") -> list[int]:
        """The offsets of a topic's partitions as kafka-get-offsets prints them."""
        text = self(OFFSETS, "--topic", topic, "--time", time)
        return [int(offset) for offset in re.findall(rf"(?m)^{topic}:\d+:(\d+)$", text)]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    directory = tmp_path_factory.mktemp("tools")
    with (
        LocalCluster(brokers=3, controllers=1, coordinators=1, kafka=True, mode="process") as cluster,
        KafkaTools(directory) as tools,
    ):
        yield Console(tools, cluster.kafka_bootstrap_servers, directory)
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page(tools.transcript, directory))


def test_topics_are_created_listed_described_widened_and_deleted(console: Console) -> None:
    console(TOPICS, "--create", "--topic", "t", "--partitions", "3", "--replication-factor", "3")
    assert "t" in console(TOPICS, "--list").split()
    console(TOPICS, "--alter", "--topic", "t", "--partitions", "4")
    lines = console(TOPICS, "--describe", "--topic", "t").splitlines()
    assert "PartitionCount: 4\tReplicationFactor: 3" in lines[0]
    assert len(re.findall(r"Partition: \d\tLeader: [123]\tReplicas: \d,\d,\d\tIsr: \d,\d,\d", "\n".join(lines))) == 4
    assert "Topic: t" not in console(TOPICS, "--describe", "--under-replicated-partitions")
    console(TOPICS, "--delete", "--topic", "t")
    assert "t" not in console(TOPICS, "--list").split()


def test_an_unknown_topic_ends_the_tool_with_kafkas_error(console: Console) -> None:
    printed = console.tools.run(TOPICS, "--bootstrap-server", console.bootstrap, "--describe", "--topic", "absent")
    assert printed.code == 1
    assert "Topic 'absent' does not exist as expected" in printed.text


def test_configs_are_set_described_and_deleted(console: Console) -> None:
    of = ("--entity-type", "topics", "--entity-name", console.topic("configs"))
    console(CONFIGS, "--alter", *of, "--add-config", "max.message.bytes=200000")
    assert "max.message.bytes=200000 sensitive=false" in console(CONFIGS, "--describe", *of)
    console(CONFIGS, "--alter", *of, "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in console(CONFIGS, "--describe", *of)
    broker = console(CONFIGS, "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert "All configs for broker 1 are:" in broker
    assert "  min.insync.replicas=" in broker
    assert "  broker.id=1 sensitive=false synonyms={STATIC_BROKER_CONFIG:broker.id=1, " in broker
    assert "  advertised.host.name=null sensitive=false synonyms={}" in broker


def test_a_brokers_configuration_is_altered_unless_the_key_is_read_only(console: Console) -> None:
    of = ("--entity-type", "brokers", "--entity-name", "1")
    console(CONFIGS, "--alter", *of, "--add-config", "log.cleaner.threads=2")
    dynamic = "  log.cleaner.threads=2 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.cleaner.threads=2, "
    assert dynamic in console(CONFIGS, "--describe", *of)
    command = ("--bootstrap-server", console.bootstrap, "--alter", *of, "--add-config", "broker.rack=b")
    printed = console.tools.run(CONFIGS, *command)
    assert printed.code == 1
    assert "InvalidRequestException: broker.rack cannot be altered while brokers run" in printed.text
    console(CONFIGS, "--alter", *of, "--delete-config", "log.cleaner.threads")
    assert "log.cleaner.threads" not in console(CONFIGS, "--describe", *of)
    everyone = ("--entity-type", "brokers", "--entity-default")
    console(CONFIGS, "--alter", *everyone, "--add-config", "log.cleaner.threads=2")
    assert "  log.cleaner.threads=2 sensitive=false" in console(CONFIGS, "--describe", *everyone)
    console(CONFIGS, "--alter", *everyone, "--delete-config", "log.cleaner.threads")


def test_a_group_reads_is_described_reset_and_deleted(console: Console) -> None:
    topic = console.topic("grouped", 20)
    text = console(CONSUMER, "--topic", topic, "--from-beginning", "--max-messages", "20", "--group", "readers")
    assert sorted(re.findall(r"(?m)^v\d+$", text)) == sorted(f"v{number}" for number in range(20))
    assert "readers" in console(GROUPS, "--list").split()
    assert re.search(r"readers .* Empty +0", console(GROUPS, "--describe", "--group", "readers", "--state"))
    described = console(GROUPS, "--describe", "--group", "readers")
    rows = re.findall(r"(?m)^readers +grouped +\d +(\d+) +(\d+) +0 ", described)
    assert sum(int(committed) for committed, _ in rows) == sum(int(end) for _, end in rows) == 20
    of = ("--group", "readers", "--topic", topic)
    reset = console(GROUPS, "--reset-offsets", "--to-earliest", *of, "--execute")
    assert len(re.findall(r"(?m)^readers +grouped +\d +0 *$", reset)) == 3
    assert console(GROUPS, "--delete-offsets", *of).count("Successful") == 3
    assert "was successful" in console(GROUPS, "--delete", "--group", "readers")
    assert "readers" not in console(GROUPS, "--list").split()


def test_records_are_counted_and_deleted(console: Console) -> None:
    topic = console.topic("counted", 20)
    ends = console.offsets(topic)
    assert sum(ends) == 20
    part = {"topic": topic, "partition": 0, "offset": -1}
    file = console.file("delete.json", {"version": 1, "partitions": [part]})
    text = console(f"{TOOLS}DeleteRecordsCommand", "--offset-json-file", file)
    assert f"partition: {topic}-0\tlow_watermark: {ends[0]}" in text
    assert console.offsets(topic, "earliest") == [ends[0], 0, 0]


def test_replicas_are_reassigned_and_their_leaders_elected(console: Console) -> None:
    topic = console.topic("moved", 20)
    part = {"topic": topic, "partition": 0, "replicas": [2, 3, 1]}
    plan = ("--reassignment-json-file", console.file("plan.json", {"version": 1, "partitions": [part]}))
    assert "Successfully started partition reassignment for moved-0" in console(REASSIGN, "--execute", *plan)
    assert "Reassignment of partition moved-0 is completed." in console(REASSIGN, "--verify", *plan)
    assert "No partition reassignments found." in console(REASSIGN, "--list")
    election = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    assert f"{topic}-0" in console(f"{TOOLS}LeaderElectionCommand", *election)
    described = console(TOPICS, "--describe", "--topic", topic)
    assert "Partition: 0\tLeader: 2\tReplicas: 2,3,1" in described
    logs = json.loads(console(f"{TOOLS}LogDirsCommand", "--describe", "--topic-list", topic).splitlines()[-1])
    sizes = [part["size"] for one in logs["brokers"] for log in one["logDirs"] for part in log["partitions"]]
    assert len(sizes) == 9
    assert min(sizes) > 0


def test_transactions_features_and_the_quorum_are_described(console: Console) -> None:
    topic = console.topic("described", 20)
    transactions = f"{TOOLS}TransactionsCommand"
    assert "TransactionalId\tCoordinator" in console(transactions, "list")
    of = ("--topic", topic, "--partition", "0")
    assert len(console(transactions, "describe-producers", *of).strip().splitlines()) == 2
    assert len(console(transactions, "find-hanging", "--topic", topic).strip().splitlines()) == 1
    features = console(f"{TOOLS}FeatureCommand", "describe")
    assert re.search(r"Feature: transaction.version .*FinalizedVersionLevel: 2", features)
    quorum = f"{TOOLS}MetadataQuorumCommand"
    assert re.search(r"LeaderId: +1\n", console(quorum, "describe", "--status"))
    assert re.search(r"(?m)^1 .*Leader", console(quorum, "describe", "--replication"))
    assert "Cluster ID: " in console.plain(f"{TOOLS}ClusterTool", "cluster-id", "--bootstrap-server", console.bootstrap)
    assert "Produce(0): 0 to 13" in console(f"{TOOLS}BrokerApiVersionsCommand")


def test_the_performance_tools_write_and_read_every_record(console: Console) -> None:
    topic = console.topic("measured")
    many = ("--topic", topic, "--num-records", "5000")
    address = ("--command-property", f"bootstrap.servers={console.bootstrap}")
    text = console.plain(f"{TOOLS}ProducerPerformance", *many, "--record-size", "100", "--throughput", "-1", *address)
    assert "5000 records sent" in text
    assert sum(console.offsets(topic)) == 5000
    row = console(f"{TOOLS}ConsumerPerformance", *many).strip().splitlines()[-1].split(", ")
    assert int(row[4]) >= 5000
    arguments = ("--topic", topic, "--num-records", "20", "--producer-acks", "all", "--record-size", "100")
    assert "Percentiles: 50th" in console(f"{TOOLS}EndToEndLatency", *arguments)
    assert sum(console.offsets(topic)) == 5020


def test_the_verifiable_tools_write_and_read_every_record(console: Console) -> None:
    topic = console.topic("verified")

    def events(tool: str, *arguments: str) -> list[dict[str, Any]]:
        of = ("--bootstrap-server", console.bootstrap, "--topic", topic, "--max-messages", "50")
        printed = console.tools.run_alone(f"{TOOLS}{tool}", *of, *arguments)
        assert printed.code == 0
        return [json.loads(line) for line in printed.text.splitlines() if line.startswith("{")]

    sent = [each["value"] for each in events("VerifiableProducer") if each["name"] == "producer_send_success"]
    assert sorted(map(int, sent)) == [*range(50)]
    read = events("VerifiableConsumer", "--group-id", "verifiers", "--reset-policy", "earliest")
    assert sum(each["count"] for each in read if each["name"] == "records_consumed") == 50
    assert all(each["success"] for each in read if each["name"] == "offsets_committed")
