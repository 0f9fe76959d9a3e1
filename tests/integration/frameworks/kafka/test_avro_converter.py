"""Connect with Avro: Apicurio's converter and the registry of the cluster, by Headrace's resolver of Confluent's API.

Confluent's own converter is in no public registry of packages. Apicurio's converter writes Confluent's wire format, and
``ConfluentSchemaResolver`` lets it use a registry with Confluent's REST API.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.schemas import AvroDeserializer, AvroSerializer, SchemaRegistry
from headrace_pipelines.cdc.connect import compile_converter
from tests.integration.frameworks.java_apps import KAFKA, maven_jars
from tests.integration.frameworks.kafka.test_kafka_connect import STARTED_S, Worker
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(600)

CONVERTER = ("io.apicurio", "apicurio-registry-utils-converter", "2.6.13.Final")
LINES = 200


@pytest.fixture(scope="module")
def libs() -> Path:
    names = ("connect-runtime", "connect-file", "connect-json", "connect-transforms")
    found = maven_jars("connect-avro", *(("org.apache.kafka", name, KAFKA) for name in names), CONVERTER)
    compile_converter(found)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, controllers=1, coordinators=1, kafka=True, registries=1) as running:
        yield running


def of_source(registry: str) -> dict[str, str]:
    """The keys of docs/frameworks.md for a connector that registers schemas."""
    keys = {
        "": "headrace.connect.AvroConverter",
        ".apicurio.registry.url": registry,
        ".apicurio.registry.auto-register": "true",
        ".replace.null.with.default": "false",
    }
    return {f"value.converter{name}": value for name, value in keys.items()}


def of_sink(registry: str) -> dict[str, str]:
    """The keys of Apicurio's own converter, with the resolver."""
    keys = {
        "": "io.apicurio.registry.utils.converter.AvroConverter",
        ".apicurio.registry.schema-resolver": "headrace.connect.ConfluentSchemaResolver",
        ".apicurio.registry.url": registry,
        ".apicurio.registry.as-confluent": "true",
        ".apicurio.registry.headers.enabled": "false",
    }
    return {f"value.converter{name}": value for name, value in keys.items()}


def test_a_source_and_a_sink_write_and_read_avro_of_a_validated_topic(
    cluster: LocalCluster, libs: Path, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"line {number}\n" for number in range(LINES)))
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("lines", partitions=1, config={"value.schema.validation": "true"})])
    of_files = {"topic": "lines", "file": str(source), "connector.class": "FileStreamSource"}
    to_files = {"topics": "lines", "file": str(sink), "connector.class": "FileStreamSink"}
    with (
        SchemaRegistry(cluster.registry_urls) as registry,
        Worker(libs, tmp_path, cluster.kafka_bootstrap_servers) as worker,
    ):
        until(lambda: worker.ask("GET", "/connectors") is not None, "the worker starts", STARTED_S, pause_s=0.5)
        for name, config, converter in (("source", of_files, of_source), ("sink", to_files, of_sink)):
            keys = config | converter(cluster.registry_urls)
            until(
                lambda name=name, keys=keys: worker.ask("PUT", f"/connectors/{name}/config", keys),  # type: ignore[misc]
                f"the connector {name} is accepted",
                STARTED_S,
                pause_s=0.5,
            )
        assert until(lambda: registry.subjects(), "the converter registers a schema", STARTED_S) == ["lines-value"]
        with Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            value_deserializer=AvroDeserializer(registry),
        ) as consumer:
            consumer.assign([TopicPartition("lines", 0)])
            values: list[str] = []
            while len(values) < LINES:
                values += [record.value for record in consumer.poll(5)]
        assert values == [f"line {number}" for number in range(LINES)]
        with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            value_serializer=AvroSerializer(registry, use_latest_version=True),
        ) as producer:
            producer.send("lines", "from Python").result(30)
        wanted = source.read_text() + "from Python\n"
        until(lambda: sink.exists() and sink.read_text() == wanted, "the sink has every line", STARTED_S, pause_s=0.2)
