"""Random damage to schemas: a parser refuses a text with InvalidSchemaError, or reads it, writes it and compares it."""

from __future__ import annotations

import base64
import os
import random
import tomllib
from pathlib import Path

import pytest

from headrace_registry.compat import Level, check
from headrace_registry.compat.avro import AMBIGUOUS
from headrace_registry.schemas import InvalidSchemaError, Schema, SchemaType, parse
from tests.unit.registry.schemas.test_protobuf import EVERYTHING

TABLES = Path(__file__).parents[1] / "compat"
SEED = int(os.environ.get("HEADRACE_TEST_SEED", "1"))
MUTANTS = int(os.environ.get("HEADRACE_TEST_MUTANTS", "2000"))
#: What damage inserts: signs of the languages, words, extreme numbers, and characters outside of ASCII.
PARTS = [
    *"{}[]()<>:;,.\"'\\/*=-+#$%~\n\x00 é😀",
    *("null", "true", "1e999", "-1", "9" * 25, "0x1F", "{}", "[]", '"a"', "\\u0000", "\ud800", "//", "/*", "*/"),
    *(
        '"type"',
        '"record"',
        '"fields"',
        '"name"',
        '"items"',
        '"default"',
        '"$ref"',
        '"#"',
        '"$id"',
        '"allOf"',
        '"enum"',
    ),
    *("message", "enum", "oneof", "repeated", "option", "group", "map<", "reserved", "extend", "to", "max", "import"),
]


def seeds(kind: SchemaType) -> list[str]:
    rows = tomllib.loads((TABLES / f"{kind.lower()}.toml").read_text())["row"]
    texts = list(dict.fromkeys(row[side] for row in rows for side in ("old", "new")))
    return [*texts, EVERYTHING] if kind is SchemaType.PROTOBUF else texts


def damaged(text: str, others: list[str], chance: random.Random) -> str:
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((0, 1, 1, 2, 5, 20)))
        match chance.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + chance.choice(PARTS) + text[end:]
            case 2:
                text = text[:start] + text[start:end] * chance.choice((2, 3, 20)) + text[end:]
            case _:
                other = chance.choice(others)
                cut = chance.randrange(len(other) + 1)
                text = text[:start] + other[cut : cut + chance.choice((1, 5, 40))] + text[end:]
    return text


def read_or_refused(kind: SchemaType, text: str, old: str) -> bool:
    """Whether the text is a schema. A schema survives its own texts and can be compared."""
    try:
        schema = parse(Schema(kind, text), {})
    except InvalidSchemaError:
        return False
    assert parse(Schema(kind, schema.canonical), {}).canonical == schema.canonical
    again = parse(Schema(kind, schema.normalized), {})
    assert again.normalized == schema.normalized
    assert {one.kind for one in check(Level.FULL, again, [schema])} <= {AMBIGUOUS}
    check(Level.FULL, schema, [parse(Schema(kind, old), {})])
    if kind is SchemaType.PROTOBUF:
        parse(Schema(kind, schema.formatted("serialized")), {})
    return True


@pytest.mark.parametrize("kind", SchemaType)
def test_damaged_schemas_are_refused_or_read(kind: SchemaType) -> None:
    chance = random.Random(SEED)
    texts = seeds(kind)
    read = 0
    for index in range(MUTANTS):
        old = chance.choice(texts)
        text = damaged(old, texts, chance)
        try:
            read += read_or_refused(kind, text, old)
        except Exception as error:
            raise AssertionError(f"seed {SEED}, mutant {index}: {text!r}") from error
    assert 0 < read < MUTANTS


def test_damaged_descriptors_are_refused_or_read() -> None:
    chance = random.Random(SEED)
    kind = SchemaType.PROTOBUF
    texts = seeds(kind)
    data = [base64.b64decode(parse(Schema(kind, text), {}).formatted("serialized")) for text in texts]
    read = 0
    for index in range(MUTANTS):
        changed = bytearray(chance.choice(data))
        for _ in range(chance.choice((1, 1, 2, 5))):
            start = chance.randrange(len(changed) + 1)
            match chance.randrange(3):
                case 0:
                    del changed[start : start + chance.choice((1, 3))]
                case 1:
                    changed[start : start + 1] = bytes([chance.choice((0, 1, 8, 10, 18, 26, 34, 127, 128, 255))])
                case _:
                    changed[start:start] = chance.choice(data)[:40]
        text = base64.b64encode(changed).decode()
        try:
            read += read_or_refused(kind, text, texts[0])
        except Exception as error:
            raise AssertionError(f"seed {SEED}, mutant {index}: {text!r}") from error
    assert 0 < read < MUTANTS
