"""Avro against two other implementations: the packages ``avro`` (a port of Java's check) and ``fastavro`` (a reader).

``avro`` compares schemas as Headrace does. ``fastavro`` says what resolution means: when the check calls a schema a
reader of another one, ``fastavro`` decodes what was written with the other one.
"""

from __future__ import annotations

import io
import json
import random
import tomllib
import warnings
from pathlib import Path
from typing import Any

import avro.compatibility
import avro.schema
import fastavro
import pytest
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_registry.compat import Level, check
from headrace_registry.schemas import Schema, SchemaType, parse
from tests.worlds.this_process import examples

ROWS = tomllib.loads((Path(__file__).parent / "avro.toml").read_text())["row"]
TEXTS = list(dict.fromkeys(row[side] for row in ROWS for side in ("old", "new")))
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def can_read(reader: str, writer: str) -> bool:
    schemas = (parse(Schema(SchemaType.AVRO, text), {}) for text in (reader, writer))
    return not check(Level.BACKWARD, next(schemas), [next(schemas)])


def python_avro_can_read(reader: str, writer: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of logical types that it does not know
        schemas = [avro.schema.parse(text) for text in (reader, writer)]
    result = avro.compatibility.ReaderWriterCompatibilityChecker().get_compatibility(*schemas)
    return result.compatibility is avro.compatibility.SchemaCompatibilityType.compatible


def has_an_alias(text: str) -> bool:
    return '"aliases"' in text


@pytest.mark.parametrize("part", range(8))
def test_verdicts_equal_those_of_python_avro(part: int) -> None:
    """All pairs of the table's schemas. Without names as aliases: ``avro`` does not complete them by the namespace."""
    texts = [text for text in TEXTS if not has_an_alias(text) and text != "[]"]  # nor does it know empty unions
    different = [
        (reader, writer)
        for reader in texts[part::8]
        for writer in texts
        if can_read(reader, writer) != python_avro_can_read(reader, writer)
    ]
    assert different == []


@pytest.mark.parametrize("reader", PRIMITIVES)
@pytest.mark.parametrize("writer", PRIMITIVES)
def test_promotions_equal_those_of_python_avro(reader: str, writer: str) -> None:
    texts = [json.dumps(one) for one in (reader, writer)]
    assert can_read(*texts) == python_avro_can_read(*texts)


def test_what_can_be_read_is_read_by_fastavro() -> None:
    chance = random.Random(1)
    pairs = [(row["new"], row["old"]) for row in ROWS] + [(row["old"], row["new"]) for row in ROWS]
    compared = 0
    for reader, writer in pairs:
        # fastavro knows neither an empty union nor a changed decimal, and it prefers an alias to the field's own name.
        # Random bytes are no UTF-8, so that no reader makes a string of them.
        unlike_java = ("decimal", '"aliases": ["b"]')
        if (
            {"[]", '"bytes"'} & {reader, writer}
            or any(part in reader for part in unlike_java)
            or not can_read(reader, writer)
        ):
            continue
        written, read = (fastavro.parse_schema(json.loads(text)) for text in (writer, reader))
        random.seed(chance.random())  # of generate_one
        value = _shallow(written)
        if value is None:
            continue
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, written, value)
        stream.seek(0)
        fastavro.schemaless_reader(stream, written, read)
        compared += 1
    assert compared > 70


def _shallow(schema: Any) -> Any:
    """A random value, or None for a recursive schema, whose random values may have no end."""
    try:
        return generate_one(schema)
    except RecursionError:
        return None


def types(names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Random types. A name is defined at its first place, see ``defined_once``."""
    primitive = st.sampled_from(PRIMITIVES)
    enum = st.builds(
        lambda name, symbols, default: (
            {"type": "enum", "name": f"E{name}", "symbols": symbols} | ({"default": symbols[0]} if default else {})
        ),
        names,
        st.lists(st.sampled_from("ABCD"), min_size=1, max_size=4, unique=True),
        st.booleans(),
    )
    fixed = st.builds(lambda name, size: {"type": "fixed", "name": f"F{name}", "size": size}, names, st.integers(0, 2))

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        record = st.builds(
            lambda name, fields: {
                "type": "record",
                "name": f"R{name}",
                "fields": [{"name": f"f{key}", "type": kind} for key, kind in fields.items()],
            },
            names,
            st.dictionaries(st.integers(0, 3), inner, max_size=3),
        )
        union = st.lists(inner.filter(lambda one: not isinstance(one, list)), min_size=1, max_size=3, unique_by=_label)
        return st.one_of(
            record,
            union,
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda values: {"type": "map", "values": values}, inner),
        )

    return st.recursive(st.one_of(primitive, enum, fixed), larger, max_leaves=8)


def _label(kind: Any) -> str:
    return kind if isinstance(kind, str) else kind.get("name", kind["type"])


def defined_once(kind: Any, defined: set[str]) -> Any:
    """The type with every later definition of a name replaced by the name."""
    if isinstance(kind, list):
        return [defined_once(one, defined) for one in kind]
    if not isinstance(kind, dict):
        return kind
    name = kind.get("name")
    if name in defined:
        return name
    if name:
        defined.add(name)
    changed = dict(kind)
    for key in ("items", "values"):
        if key in kind:
            changed[key] = defined_once(kind[key], defined)
    if "fields" in kind:
        changed["fields"] = [{**one, "type": defined_once(one["type"], defined)} for one in kind["fields"]]
    return changed


TYPES = types(st.sampled_from("12")).map(lambda kind: json.dumps(defined_once(kind, set())))


@settings(max_examples=examples(300), deadline=None)
@given(TYPES, TYPES)
def test_random_verdicts_equal_those_of_python_avro(reader: str, writer: str) -> None:
    assert can_read(reader, writer) == python_avro_can_read(reader, writer)


@settings(max_examples=examples(300), deadline=None)
@given(TYPES)
def test_random_schemas_survive_their_canonical_text(text: str) -> None:
    schema = parse(Schema(SchemaType.AVRO, text), {})
    again = parse(Schema(SchemaType.AVRO, schema.canonical), {})
    assert again.canonical == schema.canonical
    assert json.loads(schema.canonical) == json.loads(text)
    assert parse(Schema(SchemaType.AVRO, schema.normalized), {}).normalized == schema.normalized
    assert check(Level.FULL, again, [schema]) == []
    avro.schema.parse(schema.canonical)
    fastavro.parse_schema(json.loads(schema.canonical))
