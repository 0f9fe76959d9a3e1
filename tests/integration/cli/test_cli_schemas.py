"""``headrace schemas``, and ``headrace consume -r``, against a registry of two replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster, Producer
from headrace.schemas import AvroSerializer, SchemaRegistry

Cli = Any  # conftest's

FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
WIDER = ORDER | {"fields": [*FIELDS, {"name": "new", "type": "int"}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, registries=2, mode="process") as running:
        yield running


@pytest.fixture
def at(cluster: LocalCluster) -> tuple[str, str]:
    return ("-r", cluster.registry_urls)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "wider.avsc").write_text(json.dumps(WIDER))
    return tmp_path


def test_a_schema_is_registered_shown_and_listed(bare_cli: Cli, at: tuple[str, str], files: Path) -> None:
    made = bare_cli("schemas", "register", "a-value", files / "order.avsc", *at, "-o", "json").json()
    assert made == {"subject": "a-value", "version": 1, "id": made["id"], "type": "AVRO"}
    again = bare_cli("schemas", "register", "a-value", "-", "--type", "avro", *at, stdin=json.dumps(ORDER).encode())
    assert again.text == f"a-value version 1 has the schema, with id {made['id']}\n"
    assert bare_cli("schemas", "list", "a-", *at, "-o", "json").json() == [made]
    assert bare_cli("schemas", "ls", "a-", *at).lines[0].split() == ["SUBJECT", "VERSION", "ID", "TYPE"]
    assert json.loads(bare_cli("schemas", "show", "a-value", *at).text) == ORDER
    shown = bare_cli("schemas", "show", "--id", made["id"], *at, "-o", "json").json()
    assert json.loads(shown["schema"]) == ORDER
    assert shown["versions"] == {"a-value": 1}


def test_a_reference_is_registered(bare_cli: Cli, at: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "money.proto").write_text('syntax = "proto3"; message Money { int64 units = 1; }')
    (tmp_path / "price.proto").write_text('syntax = "proto3"; import "money.proto"; message Price { Money money = 1; }')
    bare_cli("schemas", "register", "money", tmp_path / "money.proto", *at)
    bare_cli("schemas", "register", "price", tmp_path / "price.proto", "--reference", "money.proto=money:1", *at)
    shown = bare_cli("schemas", "show", "price", *at, "-o", "json").json()
    assert shown["references"] == [{"name": "money.proto", "subject": "money", "version": 1}]
    assert "message Price" in bare_cli("schemas", "show", "price", "1", *at).text


def test_a_check_and_a_diff_tell_what_is_wrong(bare_cli: Cli, at: tuple[str, str], files: Path) -> None:
    assert bare_cli("schemas", "check", "b-value", files / "wider.avsc", *at).text.startswith("compatible with b-value")
    bare_cli("schemas", "register", "b-value", files / "order.avsc", *at)
    refused = bare_cli("schemas", "check", "b-value", files / "wider.avsc", *at, code=1)
    assert refused.lines[0] == "incompatible with b-value (BACKWARD):"
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in refused.lines[1]
    assert "'/fields/2'" in refused.lines[1]
    checked = bare_cli("schemas", "check", "b-value", files / "wider.avsc", *at, "-o", "json", code=1).json()
    assert (checked["compatible"], checked["level"]) == (False, "BACKWARD")
    assert "[INCOMPATIBLE_SCHEMA]" in bare_cli("schemas", "register", "b-value", files / "wider.avsc", *at, code=1).err
    assert '+      "name": "new",' in bare_cli("schemas", "diff", "b-value", "-f", files / "wider.avsc", *at).lines
    assert "has no version before 1" in bare_cli("schemas", "diff", "b-value", *at, code=1).err
    assert bare_cli("schemas", "level", "b-value", "--set", "none", *at).text == "b-value: NONE\n"
    bare_cli("schemas", "register", "b-value", files / "wider.avsc", *at)
    lines = bare_cli("schemas", "diff", "b-value", *at).lines
    assert lines[:2] == ["--- b-value version 1", "+++ b-value version 2"]
    assert '+      "name": "new",' in lines
    assert bare_cli("schemas", "diff", "b-value", "1", "-f", files / "order.avsc", *at).text.endswith("are equal\n")
    assert bare_cli("schemas", "level", "b-value", "--set", "inherit", *at).text == "b-value: BACKWARD\n"


def test_a_version_is_deleted_softly_and_then_for_ever(bare_cli: Cli, at: tuple[str, str], files: Path) -> None:
    bare_cli("schemas", "register", "c-value", files / "order.avsc", *at)
    refused = bare_cli("schemas", "delete", "c-value", "--permanent", *at, code=1)
    assert "cannot delete a subject of subject 'c-value'" in refused.err
    assert bare_cli("schemas", "delete", "c-value", "--version", "1", *at).text == "deleted c-value, 1 version: 1\n"
    assert "[SCHEMA_NOT_FOUND]" in bare_cli("schemas", "show", "c-value", *at, code=1).err
    assert [each["subject"] for each in bare_cli("schemas", "list", "c-", "--deleted", *at, "-o", "json").json()] == [
        "c-value"
    ]
    bare_cli("schemas", "delete", "c-value", "--permanent", *at)
    assert bare_cli("schemas", "list", "c-", "--deleted", *at, "-o", "json").json() == []


def test_consume_decodes_by_the_registry(bare_cli: Cli, cluster: LocalCluster, at: tuple[str, str]) -> None:
    with SchemaRegistry(cluster.registry_urls) as registry:
        value = AvroSerializer(registry, ORDER, auto_register_schemas=True)("decoded", {"id": 7, "note": "ä"})
        schema_id = registry.latest("decoded-value").registered.id
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("decoded", value, key=b"\0\0\0\0\0\0\0\7").result(30)  # a long, and no schema's id
        producer.send("decoded", b"plain").result(30)
    consume = ("consume", "-b", cluster.bootstrap_servers, "-t", "decoded", "-e", "-q", *at)
    first, second = map(json.loads, bare_cli(*consume, "-J").lines)
    assert (first["payload"], first["value_schema_id"]) == ({"id": 7, "note": "ä"}, schema_id)
    assert first["key"] == "\0\0\0\0\0\0\0\7"
    assert (second["payload"], "value_schema_id" in second) == ("plain", False)
    assert bare_cli(*consume).lines == ['{"id":7,"note":"ä"}', "plain"]
    assert bare_cli(*consume, "-o", "json").json()[0]["value"] == {"id": 7, "note": "ä"}
    failed = bare_cli(*consume, "-s", "value=avro", code=1)
    assert failed.lines == ['{"id":7,"note":"ä"}']
    assert "decoded-0 at offset 1" in failed.err
    assert "[WRONG_MAGIC_BYTE]" in failed.err
    assert "must be registry (or avro, protobuf, json)" in bare_cli(*consume, "-s", "xml", code=2).err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("list", "-r", "http://127.0.0.1:1"), "[REGISTRY_UNAVAILABLE]"),
        (("show",), "pass a subject, or --id"),
        (("show", "a", "x"), "must be a version's number, or latest"),
        (("register", "a", "file.txt"), "the suffix is none of .avsc, .proto, .json"),
        (("register", "a", "/nowhere/x.avsc"), "No such file"),
        (("register", "a", "x.avsc", "--type", "xml"), "must be avro, protobuf or json"),
        (("register", "a", "/dev/null", "--type", "avro", "--reference", "x"), "NAME=SUBJECT:VERSION"),
        (("level", "a", "--set", "upward"), "must be one of none, backward, backward-transitive"),
        (("level", "--set", "inherit"), "only a subject can inherit the level"),
        (("list", "-X", "basic.auth.user=x"), "did you mean"),
        (("list", "-r", "ftp://x"), "is not a URL of a registry"),
        (("diff", "a", "1", "2", "-f", "x.avsc"), "only one of NEW and --file"),
    ],
)
def test_wrong_command_lines_say_what_to_do(bare_cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    done = bare_cli("schemas", *arguments, code=None)
    assert done.code in (1, 2)
    assert text in " ".join(done.err.split())
