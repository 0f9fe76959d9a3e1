"""Headrace's registry with Confluent's Java client and Flink's serializers, and Confluent's verdicts on changes.

Confluent's own jars are in no public registry of packages. Flink's jar has a copy of Confluent's client, which Flink's
serializers for Avro use; only the names of its packages differ.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from headrace.schemas import (
    AvroDeserializer,
    AvroSerializer,
    Compatibility,
    Mode,
    Reference,
    Schema,
    SchemaRegistry,
    wire,
)
from headrace_registry.compat import Level, check
from headrace_registry.compat.avro import AMBIGUOUS
from headrace_registry.schemas import Schema as ParsedText
from headrace_registry.schemas import SchemaType, parse
from tests.integration.frameworks.java_apps import maven_jars
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(300)

FLINK = "2.0.0"
PROGRAM = Path(__file__).parents[1] / "java" / "ConfluentClient.java"
TABLE = Path(__file__).parents[3] / "unit" / "registry" / "compat" / "avro.toml"
ROWS = tomllib.loads(TABLE.read_text())["row"]
LEVELS = ("BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE", "NONE")
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "com.acme",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
WIDER = ORDER | {"fields": [*ORDER["fields"], {"name": "region", "type": "string", "default": "EU"}]}


class Java:
    """The program ConfluentClient, which answers one command after the other."""

    def __init__(self, libs: Path, classes: Path, urls: str) -> None:
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libs}/*", "ConfluentClient"]
        self._process = subprocess.Popen(
            [*command, *urls.split(",")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def answer(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(base64.b64decode(self._process.stdout.readline()))
        return found

    def __call__(self, do: str, **arguments: Any) -> Any:
        answer = self.answer(do, **arguments)
        assert "error" not in answer, answer
        return answer["result"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, registries=2, mode="process") as running:
        yield running


@pytest.fixture(scope="module")
def java(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    flink = (("org.apache.flink", name, FLINK) for name in ("flink-sql-avro-confluent-registry", "flink-core"))
    libs, classes = maven_jars("flink-avro", *flink), tmp_path_factory.mktemp("classes")
    subprocess.run(
        ["javac", "--release", "17", "-d", str(classes), "-cp", f"{libs}/*", str(PROGRAM)], check=True, timeout=120
    )
    running = Java(libs, classes, cluster.registry_urls)
    yield running
    running.close()


@pytest.fixture
def registry(cluster: LocalCluster) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(cluster.registry_urls) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(each if each.isalnum() else "-" for each in request.node.name)


def text(schema: Any) -> str:
    return json.dumps(schema)


def test_flinks_serializer_registers_a_schema_and_python_reads_its_records(
    java: Java, registry: SchemaRegistry, topic: str
) -> None:
    value = {"id": 2**60, "price": "\u0004\u00d2", "tags": ["ü", ""], "note": {"string": "Grüße"}}
    data = base64.b64decode(java("write", subject=f"{topic}-value", schema=text(ORDER), value=json.dumps(value)))
    assert registry.version(f"{topic}-value").id == wire.schema_id(data)
    found = AvroDeserializer(registry).deserialize(topic, data)
    assert (found["id"], str(found["price"]), found["tags"], found["note"]) == (2**60, "12.34", ["ü", ""], "Grüße")


def test_flinks_deserializer_reads_records_of_python_by_its_own_schema(
    java: Java, registry: SchemaRegistry, topic: str
) -> None:
    registry.register(f"{topic}-value", Schema(text(ORDER)))
    value = {"id": 7, "price": Decimal("12.34"), "tags": ["a"], "note": None}
    data = AvroSerializer(registry, ORDER).serialize(topic, value)
    assert data is not None
    found = json.loads(java("read", schema=text(WIDER), data=base64.b64encode(data).decode()))
    assert (found["id"], found["price"], found["tags"]) == (7, "\u0004\u00d2", ["a"])
    assert (found["note"], found["region"]) == (None, "EU")


def test_their_client_and_ours_see_the_same_ids_and_versions(java: Java, registry: SchemaRegistry, topic: str) -> None:
    first = java("register", subject=topic, schema=text(ORDER))
    second = registry.register(topic, Schema(text(WIDER)))
    assert (first, java("id", subject=topic, schema=text(ORDER))) == (registry.version(topic, 1).id, first)
    assert java("version", subject=topic, schema=text(WIDER)) == second.version == 2
    assert java("versions", subject=topic) == [1, 2]
    latest = java("latest", subject=topic)
    assert (latest["id"], latest["version"], json.loads(latest["schema"])) == (second.id, 2, WIDER)
    assert json.loads(java("schema", id=first)) == ORDER
    assert topic in java("subjects")
    assert java("delete", subject=topic) == [1, 2]
    assert topic not in registry.subjects()
    assert java("delete", subject=topic, permanent=True) == [1, 2]


def test_levels_modes_and_reasons_go_through_their_client(java: Java, registry: SchemaRegistry, topic: str) -> None:
    registry.register(topic, Schema(text(ORDER)))
    assert java("level", subject=topic, level="FULL_TRANSITIVE") == "FULL_TRANSITIVE"
    assert registry.compatibility(topic) is Compatibility.FULL_TRANSITIVE
    narrow = ORDER | {"fields": [{"name": "other", "type": "int"}]}
    reasons = java("reasons", subject=topic, schema=text(narrow))
    assert any("READER_FIELD_MISSING_DEFAULT_VALUE" in each for each in reasons), reasons
    assert java("reasons", subject=topic, schema=text(WIDER)) == []
    refused = java.answer("register", subject=topic, schema=text(narrow))
    assert (refused["error"], refused["status"], refused["code"]) == ("RestClientException", 409, 409)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused["message"]
    assert java("mode", subject=topic, mode="READONLY") == "READONLY"
    assert registry.mode(topic) is Mode.READONLY
    assert java.answer("register", subject=topic, schema=text(WIDER))["code"] == 42205
    assert java("mode", subject=topic, mode="READWRITE") == "READWRITE"


def test_their_client_gets_its_error_codes(java: Java, topic: str) -> None:
    assert java.answer("schema", id=1_000_000)["code"] == 40403
    assert java.answer("latest", subject=topic)["code"] == 40401
    assert java.answer("delete", subject=topic)["code"] == 40401


def test_references_of_their_client_are_resolved(java: Java, registry: SchemaRegistry, topic: str) -> None:
    named = {"type": "record", "namespace": "com.acme"}
    name = named | {"name": "Customer", "fields": [{"name": "name", "type": "string"}]}
    order = named | {"name": "Ref", "fields": [{"name": "by", "type": "Customer"}]}
    java("register", subject=f"{topic}-name", schema=text(name))
    reference = {"name": "com.acme.Customer", "subject": f"{topic}-name", "version": 1}
    given = java("register", subject=topic, schema=text(order), references=[{**reference, "schema": text(name)}])
    assert registry.schema(given).references == (Reference("com.acme.Customer", f"{topic}-name", 1),)
    assert json.loads(java("schema", id=given)) == order


def test_their_client_moves_to_another_replica_and_goes_on_with_its_cache(
    cluster: LocalCluster, java: Java, topic: str
) -> None:
    first = java("register", subject=topic, schema=text(ORDER))
    with cluster.killed("registry", 1):
        wider = until(
            lambda: java.answer("register", subject=topic, schema=text(WIDER)).get("result"),
            "the other replica writes",
            60,
        )
        assert java("versions", subject=topic) == [1, 2]
        with cluster.killed("registry", 2):
            assert json.loads(java("schema", id=first)) == ORDER
            assert java("register", subject=topic, schema=text(WIDER)) == wider
            assert java.answer("versions", subject=topic)["error"].endswith("Exception")
    assert java("versions", subject=topic) == [1, 2]


@pytest.mark.parametrize("level", LEVELS)
def test_confluents_verdicts_on_the_documented_changes_are_ours(java: Java, level: str) -> None:
    """Confluent's own code gives the verdict on each row of the table, in both directions."""
    differ = []
    for row in ROWS:
        for old, new in ((row["old"], row["new"]), (row["new"], row["old"])):
            ours, earlier = (parse(ParsedText(SchemaType.AVRO, each), {}) for each in (new, old))
            found = check(Level[level], ours, [earlier])
            answer = java.answer("check", level=level, schema=new, earlier=[old])
            if any(one.kind == AMBIGUOUS for one in found):  # Avro raises an error for it
                continue
            theirs = answer.get("result")
            if theirs is None or bool(theirs) != bool(found):
                differ.append((row["name"], new, found, answer))
            kinds = {one.kind for one in found}
            if theirs and not all(any(kind in each for each in theirs) for kind in kinds):
                differ.append((row["name"], new, found, answer))
    assert not differ, differ[:5]
