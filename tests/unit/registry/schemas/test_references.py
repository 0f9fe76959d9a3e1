"""References: their order, what may be missing, cycles, and the limits."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from headrace_registry.schemas import InvalidSchemaError, Reference, Schema, SchemaType, parse
from headrace_registry.schemas.model import REFERENCES_MAX, in_order
from tests.worlds.waiting import check_spent


def to(*names: str) -> tuple[Reference, ...]:
    return tuple(Reference(name, f"{name}-value", 1) for name in names)


def record(name: str, *uses: str) -> Schema:
    fields = ",".join(f'{{"name":"f{index}","type":"{use}"}}' for index, use in enumerate(uses))
    return Schema(SchemaType.AVRO, f'{{"type":"record","name":"{name}","fields":[{fields}]}}', to(*uses))


def test_dependencies_come_first_and_once() -> None:
    resolved = {"B": record("B", "D"), "C": record("C", "D"), "D": record("D")}
    schema = record("A", "B", "C")
    assert [name for name, _ in in_order(schema, resolved)] == ["D", "B", "C"]
    assert parse(schema, resolved).canonical == (
        '{"type":"record","name":"A","fields":[{"name":"f0","type":"B"},{"name":"f1","type":"C"}]}'
    )


def test_a_missing_reference_is_named() -> None:
    with pytest.raises(InvalidSchemaError, match=r'no schema for the reference "B" \(subject "B-value", version 1\)'):
        parse(record("A", "B"), {})
    with pytest.raises(InvalidSchemaError, match='no schema for the reference "C"'):
        parse(record("A", "B"), {"B": record("B", "C")})


def test_a_cycle_is_shown() -> None:
    resolved = {"B": record("B", "C"), "C": record("C", "D"), "D": record("D", "B")}
    with pytest.raises(InvalidSchemaError, match="form a cycle: B -> C -> D -> B"):
        parse(record("A", "B"), resolved)
    with pytest.raises(InvalidSchemaError, match="form a cycle: A -> A"):
        parse(record("X", "A"), {"A": record("A", "A")})


def test_a_schema_references_its_own_type_only() -> None:
    with pytest.raises(InvalidSchemaError, match="names a schema of type JSON, and a schema of type AVRO"):
        parse(record("A", "B"), {"B": Schema(SchemaType.JSON, "{}")})


def test_a_long_chain_of_references_needs_no_deep_stack() -> None:
    names = [f"R{index}" for index in range(REFERENCES_MAX)]
    resolved = {name: record(name, following) for name, following in pairwise(names)}
    resolved[names[-1]] = record(names[-1])
    assert [name for name, _ in in_order(record("A", names[0]), resolved)] == names[::-1]
    resolved[names[-1]] = record(names[-1], "one_more")
    resolved["one_more"] = record("one_more")
    with pytest.raises(InvalidSchemaError, match=f"the limits are {REFERENCES_MAX} schemas"):
        parse(record("A", names[0]), resolved)


def test_references_may_have_eight_mebibytes_in_all() -> None:
    text = '{"type":"record","name":"%s","doc":"' + "x" * (1 << 19) + '","fields":[]}'
    resolved = {f"R{index}": Schema(SchemaType.AVRO, text % f"R{index}") for index in range(20)}
    started = time.thread_time()
    with pytest.raises(InvalidSchemaError, match="the schema references too much"):
        parse(record("A", *resolved), resolved)
    check_spent(started, 5)  # 0.4 s on an idle machine


def test_normalized_references_are_sorted_and_unique() -> None:
    references = (Reference("b", "s", 2), Reference("a", "s", 1), Reference("b", "s", 2), Reference("c", "r", 9))
    parsed = parse(
        Schema(SchemaType.JSON, "{}", references), {name: Schema(SchemaType.JSON, "{}") for name in ("a", "b", "c")}
    )
    assert parsed.references == references
    assert parsed.normalized_references == (
        Reference("c", "r", 9),
        Reference("a", "s", 1),
        Reference("b", "s", 2),
    )
