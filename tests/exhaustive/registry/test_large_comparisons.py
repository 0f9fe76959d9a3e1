"""Pairs of schemas that cost a check time or stack: each check ends within five seconds of computing."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from headrace_registry.compat import ComparisonTooLargeError, Level, check
from headrace_registry.compat.matching import largest_matching
from headrace_registry.compat.model import REPORTED_MAX, TEXT_MAX
from headrace_registry.schemas import Parsed, Schema, SchemaType, parse
from tests.worlds.waiting import check_spent


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    started = time.thread_time()
    yield
    check_spent(started, 5)


def avro(value: Any) -> Parsed:
    return parse(Schema(SchemaType.AVRO, json.dumps(value)), {})


def json_schema(value: Any) -> Parsed:
    return parse(Schema(SchemaType.JSON, json.dumps(value)), {})


def proto(text: str) -> Parsed:
    return parse(Schema(SchemaType.PROTOBUF, f'syntax = "proto3"; {text}'), {})


def fields(*types: Any) -> list[dict[str, Any]]:
    return [{"name": f"f{index}", "type": kind} for index, kind in enumerate(types)]


def test_a_long_chain_of_records_is_compared_to_its_end() -> None:
    def chain(kind: str) -> Parsed:
        records = [{"type": "record", "name": "R0", "fields": fields(kind)}]
        records += [{"type": "record", "name": f"R{i}", "fields": fields(f"R{i - 1}")} for i in range(1, 5000)]
        return avro({"type": "record", "name": "T", "fields": [{"name": "u", "type": records}, *fields("R4999")]})

    assert check(Level.BACKWARD, chain("long"), [chain("int")]) == []
    assert check(Level.BACKWARD, chain("int"), [chain("long")])


def test_a_long_chain_of_pointers_is_compared_to_its_end() -> None:
    def chain(kind: str) -> Parsed:
        links: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/definitions/d{i + 1}"}} for i in range(5000)}
        return json_schema({"$ref": "#/definitions/d0", "definitions": {**links, "d5000": {"type": kind}}})

    assert check(Level.BACKWARD, chain("number"), [chain("integer")]) == []
    (found,) = check(Level.BACKWARD, chain("integer"), [chain("number")])
    assert found.path == ("#/" + "/".join(["items"] * 5000))[:TEXT_MAX] + "…"


def test_a_long_chain_of_messages_is_compared_to_its_end() -> None:
    def chain(kind: str) -> Parsed:
        return proto(
            f"message M0 {{ {kind} f = 1; }}" + "".join(f"message M{i} {{ M{i - 1} f = 1; }}" for i in range(1, 5000))
        )

    assert check(Level.BACKWARD, chain("int64"), [chain("int32")]) == []
    assert len(check(Level.BACKWARD, chain("string"), [chain("int32")])) == 1


def test_shared_types_are_compared_once() -> None:
    """Each type is used twice by the next one, so that there are 2 ** 60 paths to the first one."""

    def shared_avro(kind: str) -> Parsed:
        records = [{"type": "record", "name": "R0", "fields": fields(kind)}]
        records += [
            {"type": "record", "name": f"R{i}", "fields": fields(f"R{i - 1}", f"R{i - 1}")} for i in range(1, 60)
        ]
        return avro({"type": "record", "name": "T", "fields": [{"name": "u", "type": records}, *fields("R59")]})

    def shared_json(kind: str) -> Parsed:
        pointer = {i: {"$ref": f"#/definitions/d{i}"} for i in range(60)}
        each: dict[str, Any] = {
            f"d{i}": {"properties": {"a": pointer[i - 1], "b": {"oneOf": [pointer[i - 1], {"type": "null"}]}}}
            for i in range(1, 60)
        }
        return json_schema({"$ref": "#/definitions/d59", "definitions": {"d0": {"type": kind}, **each}})

    for shared, old, new in ((shared_avro, "long", "int"), (shared_json, "number", "integer")):
        assert check(Level.BACKWARD, shared(old), [shared(new)]) == []
        found = check(Level.BACKWARD, shared(new), [shared(old)])
        assert 0 < len(found) <= REPORTED_MAX


def test_a_check_of_too_many_pairs_ends_with_an_error() -> None:
    branches = [{"type": "fixed", "name": f"n{index}.F", "size": 1} for index in range(1000)]
    others = [{"type": "fixed", "name": f"n{index}.F", "size": 2} for index in range(1000)]
    with pytest.raises(ComparisonTooLargeError, match="takes more than 250000 steps; split the schema"):
        check(Level.BACKWARD, avro(branches), [avro(others)])
    parts = [{"maxLength": index} for index in range(1000)]
    with pytest.raises(ComparisonTooLargeError, match="takes more than"):
        check(Level.BACKWARD, json_schema({"anyOf": parts}), [json_schema({"anyOf": parts})])


def _enums(count: int, symbols: list[str], **more: Any) -> Parsed:
    return avro([{"type": "enum", "name": "E", "namespace": f"n{i}", "symbols": symbols, **more} for i in range(count)])


def _records(count: int, name: str = "E", **more: Any) -> Parsed:
    record = {"type": "record", "fields": []}
    return avro([{**record, "name": name.format(i), "namespace": f"n{i}", **more} for i in range(count)])


#: New and old schemas that have few pairs of types and very many names to look at.
MANY_NAMES = {
    "symbols": lambda: (_enums(1, [f"S{i}" for i in range(60_000)]), _enums(8000, ["S1"])),
    "aliases of fields": lambda: (
        _records(1, fields=[{"name": "a", "type": "int", "aliases": [f"S{i}" for i in range(60_000)]}]),
        _records(8000),
    ),
    "aliases of types": lambda: (_records(1, aliases=[f"x.A{i}" for i in range(20_000)]), _records(8000, "A{}")),
    "patterns": lambda: (
        json_schema({"patternProperties": {f"x{i}$": {} for i in range(4000)}}),
        json_schema({"properties": {f"p{i}": False for i in range(40_000)}}),
    ),
}


@pytest.mark.parametrize("name", MANY_NAMES)
def test_a_check_that_looks_at_too_many_names_ends_with_an_error(name: str) -> None:
    new, old = MANY_NAMES[name]()
    with pytest.raises(ComparisonTooLargeError, match="takes more than 250000 steps"):
        check(Level.BACKWARD, new, [old])


def test_names_in_usual_numbers_are_compared() -> None:
    symbols = [f"S{i}" for i in range(20_000)]
    assert check(Level.FULL, _enums(3, symbols), [_enums(3, symbols)]) == []
    patterns = json_schema({"patternProperties": {f"^p{i}": {} for i in range(100)}, "additionalProperties": False})
    old = json_schema({"properties": {f"p{i}": {} for i in range(1000)}, "additionalProperties": False})
    assert check(Level.BACKWARD, patterns, [old]) == []


def test_a_message_with_many_options_is_used_by_many_fields() -> None:
    options, uses = "option a = 1;" * 10_000, "".join(f"O f{i} = {i + 1};" for i in range(10_000))
    text = f"message O {{ {options} }} message M {{ {uses} }}"
    assert check(Level.BACKWARD, proto(text + "message N {}"), [proto(text)]) == []


def test_large_unions_of_named_types_are_compared() -> None:
    branches = [{"type": "record", "name": f"R{index}", "fields": fields("int")} for index in range(5000)]
    assert check(Level.FULL, avro(branches), [avro(branches[::-1])]) == []
    (found,) = check(Level.BACKWARD, avro(branches[:-1]), [avro(branches)])
    assert (found.kind, found.path) == ("MISSING_UNION_BRANCH", "/4999")


def test_at_most_a_hundred_problems_are_reported() -> None:
    old, new = (
        avro({"type": "record", "name": "R", "fields": []}),
        avro({"type": "record", "name": "R", "fields": fields(*["int"] * 20_000)}),
    )
    assert len(check(Level.BACKWARD, new, [old])) == REPORTED_MAX
    wide = [
        json_schema({"properties": {f"p{i}": {"type": kind} for i in range(10_000)}}) for kind in ("string", "null")
    ]
    assert len(check(Level.BACKWARD, wide[0], [wide[1]])) == REPORTED_MAX
    protos = [proto("".join(f"message M{i} {{ {kind} f = 1; }}" for i in range(5000))) for kind in ("string", "int32")]
    assert len(check(Level.BACKWARD, protos[0], [protos[1]])) == REPORTED_MAX


def test_numbers_of_extreme_size_are_compared() -> None:
    def number(**keywords: str) -> Parsed:
        text = ",".join(f'"{keyword}":{value}' for keyword, value in keywords.items())
        return parse(Schema(SchemaType.JSON, f'{{"type":"number",{text}}}'), {})

    kinds = [
        one.kind
        for one in check(
            Level.BACKWARD,
            number(maximum="1e999999", multipleOf="3"),
            [number(maximum="1e9999999", multipleOf="1e999999")],
        )
    ]
    assert kinds == ["MAXIMUM_DECREASED", "MULTIPLE_OF_CHANGED"]


def _brute_force(partners: list[list[int]]) -> int:
    """The size of the largest matching, by trying all subsets of pairs from large to small."""
    pairs = [(left, right) for left, each in enumerate(partners) for right in each]
    for size in range(min(len(partners), len(pairs)), 0, -1):
        for chosen in combinations(pairs, size):
            if len({left for left, _ in chosen}) == len({right for _, right in chosen}) == size:
                return size
    return 0


def test_largest_matching_equals_brute_force() -> None:
    chance = random.Random(4)
    for _ in range(400):
        right = chance.randint(1, 4)
        partners = [[one for one in range(right) if chance.random() < 0.5] for _ in range(chance.randint(0, 4))]
        assert largest_matching(partners) == _brute_force(partners), partners


def test_largest_matching_of_many_elements_is_fast() -> None:
    assert largest_matching([list(range(500))] * 500) == 500
    assert largest_matching([[index, index + 1] for index in range(20_000)]) == 20_000
    assert largest_matching([[index // 2] for index in range(20_000)]) == 10_000
    # one long path of changes: every element but the last one must move on
    assert largest_matching([[index, index + 1] if index else [1] for index in range(20_000)]) == 20_000


def test_answers_do_not_repeat_long_names() -> None:
    symbols = [f"{'x' * 1000}{index}" for index in range(500)]
    old, new = (avro({"type": "enum", "name": "E", "symbols": each}) for each in (symbols, ["y"]))
    (found,) = check(Level.BACKWARD, new, [old])
    assert len(str(found)) < 3 * TEXT_MAX
