"""Avro against Java's own implementation, which Confluent's registry runs: PySpark brings Avro's jar and a JVM."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_registry.compat import Level, check
from headrace_registry.compat.avro import AMBIGUOUS
from headrace_registry.schemas import Schema, SchemaType, parse
from tests.unit.registry.schemas.test_avro import CANONICAL, DEFAULTS, INVALID

ROOT = Path(__file__).parents[3] / "unit" / "registry" / "compat"
ROWS = tomllib.loads((ROOT / "avro.toml").read_text())["row"]
TEXTS = list(dict.fromkeys(row[side] for row in ROWS for side in ("old", "new")))
#: Java reads a number without bound as infinity, and keeps half of a surrogate pair. Both could not be written again.
STRICTER_THAN_JAVA = ("too large for a double", "half of a surrogate pair")


@pytest.fixture(scope="module")
def java_avro() -> Iterator[Any]:
    """Java's package org.apache.avro."""
    launch_gateway = pytest.importorskip("pyspark.java_gateway").launch_gateway
    gateway = launch_gateway()
    yield gateway.jvm.org.apache.avro
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


def _java_accepts(java_avro: Any, text: str) -> bool:
    from py4j.protocol import Py4JJavaError

    try:
        java_avro.Schema.Parser().parse(text)
    except Py4JJavaError:
        return False
    return True


def test_canonical_text_is_that_of_java(java_avro: Any) -> None:
    for text in (*TEXTS, *(text for text, _ in CANONICAL)):
        expected = java_avro.Schema.Parser().parse(text).toString()
        assert parse(Schema(SchemaType.AVRO, text), {}).canonical == expected


def test_java_refuses_the_same_schemas(java_avro: Any) -> None:
    accepted = [problem for text, problem in INVALID if _java_accepts(java_avro, text)]
    assert all(any(part in problem for part in STRICTER_THAN_JAVA) for problem in accepted), accepted
    field = '{"type": "record", "name": "R", "fields": [{"name": "f", "type": %s, "default": %s}]}'
    for kind, default, is_valid in DEFAULTS:
        assert _java_accepts(java_avro, field % (kind, default)) == is_valid, (kind, default)


def test_incompatibilities_are_those_of_java(java_avro: Any) -> None:
    """Kinds, places, messages and their order are equal for the changes of the table and for 2,000 other pairs."""
    from py4j.protocol import Py4JJavaError

    chance = random.Random(7)
    pairs = [(row["new"], row["old"]) for row in ROWS] + [(row["old"], row["new"]) for row in ROWS]
    pairs += [(chance.choice(TEXTS), chance.choice(TEXTS)) for _ in range(2000)]
    java = {text: java_avro.Schema.Parser().parse(text) for text in TEXTS}
    ours = {text: parse(Schema(SchemaType.AVRO, text), {}) for text in TEXTS}
    for reader, writer in pairs:
        found = [(one.kind, one.path, one.detail) for one in check(Level.BACKWARD, ours[reader], [ours[writer]])]
        problem = ""
        try:
            result = java_avro.SchemaCompatibility.checkReaderWriterCompatibility(java[reader], java[writer])
        except Py4JJavaError as error:
            problem = str(error.java_exception)
        if problem:
            assert "matches multiple fields" in problem
            assert AMBIGUOUS in {kind for kind, _, _ in found} or _is_behind_a_name(found)
        else:
            expected = [
                (one.getType().toString(), one.getLocation(), one.getMessage())
                for one in result.getResult().getIncompatibilities()
            ]
            assert found == expected, (reader, writer)


def _is_behind_a_name(found: list[tuple[str, str, str | None]]) -> bool:
    """Java compares all branches of a union before it decides; Headrace only those of the writer's name."""
    return [kind for kind, _, _ in found] == ["MISSING_UNION_BRANCH"]
