"""Confluent's verdicts on changes of schemas: the tables avro.toml, json.toml and protobuf.toml beside this file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from headrace_registry.compat import Level, check
from headrace_registry.compat.avro import AMBIGUOUS
from headrace_registry.schemas import Parsed, Schema, SchemaType, parse

FILES = {"avro.toml": SchemaType.AVRO, "json.toml": SchemaType.JSON, "protobuf.toml": SchemaType.PROTOBUF}
ROWS = [
    pytest.param(kind, row, id=f"{kind.lower()}: {row['name']}")
    for name, kind in FILES.items()
    for row in tomllib.loads((Path(__file__).parent / name).read_text())["row"]
]


def _parsed(kind: SchemaType, text: str) -> Parsed:
    return parse(Schema(kind, text), {})


def test_the_tables_have_at_least_150_rows() -> None:
    assert len(ROWS) >= 150


@pytest.mark.parametrize(("kind", "row"), ROWS)
def test_verdict_is_confluents(kind: SchemaType, row: dict[str, Any]) -> None:
    old, new = _parsed(kind, row["old"]), _parsed(kind, row["new"])
    backward = check(Level.BACKWARD, new, [old])
    forward = check(Level.FORWARD, new, [old])
    assert sorted(f"{one.kind} {one.path}" for one in backward) == sorted(row["backward"])
    assert (not forward) == row["forward"], forward
    assert len(check(Level.FULL, new, [old])) == len(backward) + len(forward)
    for one in (*backward, *forward):
        assert "{" not in one.reason.replace(one.path, ""), "every place in the words is filled in"
        assert one.reason or one.kind == "SCHEMA_ADDED", "Confluent has no words for this one kind"


@pytest.mark.parametrize(("kind", "row"), ROWS)
def test_no_schema_is_incompatible_with_itself(kind: SchemaType, row: dict[str, Any]) -> None:
    for text in (row["old"], row["new"]):
        schema = _parsed(kind, text)
        for written in (schema.canonical, schema.normalized):
            found = check(Level.FULL_TRANSITIVE, _parsed(kind, written), [schema])
            assert {one.kind for one in found} <= {AMBIGUOUS}, "only a field whose alias is its own name"
