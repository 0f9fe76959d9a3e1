"""The parser's cache, and the resolution of references."""

from __future__ import annotations

import pytest

from headrace_registry.compat import Level
from headrace_registry.schemas import InvalidSchemaError, Reference
from headrace_registry.schemas.model import REFERENCES_MAX
from headrace_registry.state import Image, Mode, Parser, RegistryError, Submission
from headrace_registry.state.parsing import resolve, with_versions
from tests.unit.registry.state.world import Writer, avro, record


def submitted(schema: object) -> Submission:
    return Submission("s", avro(schema))


def test_an_equal_schema_is_parsed_once() -> None:
    parser, image = Parser(), Image()
    first = parser.parse_submitted(image, submitted('"int"'), is_new=True)
    assert parser.parse_submitted(image, submitted('"int"'), is_new=True) is first
    assert parser.parse_submitted(image, submitted(' "int"'), is_new=True) is not first
    assert parser.parse_submitted(image, submitted('"int"'), is_new=False) is not first


def test_the_least_recently_used_schema_leaves_the_cache() -> None:
    parser, image = Parser(entries_max=2), Image()
    texts = ['"int"', '"long"', '"float"']
    first, _ = (parser.parse_submitted(image, submitted(each), is_new=True) for each in texts[:2])
    assert parser.parse_submitted(image, submitted(texts[0]), is_new=True) is first
    parser.parse_submitted(image, submitted(texts[2]), is_new=True)
    assert len(parser) == 2
    assert parser.parse_submitted(image, submitted(texts[0]), is_new=True) is first


def test_the_cache_holds_a_limited_length_of_texts() -> None:
    parser, image = Parser(characters_max=1_000), Image()
    for number in range(20):
        parser.parse_submitted(image, submitted(record(f"R{number}", ("f" * 300, "int"))), is_new=True)
        assert len(parser) <= 3
    parser.parse_submitted(image, submitted(record("Long", ("f" * 5_000, "int"))), is_new=True)
    assert len(parser) == 1


def test_the_cache_counts_the_schemas_that_a_schema_references() -> None:
    """A parsed schema keeps the types of its references, so a short text can take much memory."""
    writer, parser = Writer(), Parser(characters_max=10_000)
    writer.register("inner", avro(record("Inner", ("f" * 4_000, "int"))))
    for number in range(20):
        outer = Submission("s", avro(record(f"R{number}", ("f", "Inner")), ("Inner", "inner", 1)))
        parser.parse_submitted(writer.image, outer, is_new=True)
    assert len(parser) == 2


def test_the_cache_counts_long_names() -> None:
    parser, image = Parser(characters_max=100_000), Image()
    for number in range(20):
        fixed = [{"type": "fixed", "name": f"F{number}_{i}", "namespace": "n", "size": 1} for i in range(20)]
        outer = {"type": "record", "name": "R", "namespace": "n" * 2_000, "fields": []}
        outer["fields"] = [
            {"name": f"f{i}", "type": {**each, "namespace": "n" * 2_000}} for i, each in enumerate(fixed)
        ]
        parser.parse_submitted(image, submitted(outer), is_new=True)
    assert len(parser) == 1


def test_a_schema_in_use_is_not_parsed_again() -> None:
    """A decision in the event loop finds the schema that its request has parsed in a thread."""
    parser, image = Parser(entries_max=1), Image()
    first = parser.parse_submitted(image, submitted('"int"'), is_new=True)
    parser.parse_submitted(image, submitted('"long"'), is_new=True)
    assert parser.parse_submitted(image, submitted('"int"'), is_new=True) is first
    job = parser.job(image, submitted('"int"'), is_new=True)
    parser.parse_submitted(image, submitted('"long"'), is_new=True)
    del first
    assert parser.kept(job) is None


def test_an_invalid_schema_is_not_cached() -> None:
    parser, image = Parser(), Image()
    for _ in range(2):
        with pytest.raises(RegistryError, match="Invalid schema"):
            parser.parse_submitted(image, submitted('"nothing"'), is_new=True)
    assert len(parser) == 0


def test_a_version_that_was_registered_again_makes_another_schema_of_its_references() -> None:
    writer = Writer()
    outer = avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 1))
    kinds = []
    for kind in ("int", "string"):
        writer.register("inner", avro(record("Inner", ("f", kind))))
        parsed = writer.deciding.parser.parse_submitted(writer.image, Submission("s", outer), is_new=True)
        kinds.append(parsed)
        writer.delete_subject("inner")
        writer.delete_subject("inner", permanent=True)
    assert kinds[0] is not kinds[1]


def test_an_import_that_gives_an_id_again_makes_another_schema_of_references() -> None:
    writer = Writer()
    outer = Submission("s", avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 1)))
    parsed = []
    for kind in ("int", "string"):
        writer.set_mode("inner", Mode.IMPORT, force=True)
        writer.register("inner", avro(record("Inner", ("f", kind))), version=1, id=7)
        parsed.append(writer.deciding.parser.parse_submitted(writer.image, outer, is_new=True))
        writer.delete_subject("inner")
        writer.delete_subject("inner", permanent=True)
    assert parsed[0].formatted("resolved") != parsed[1].formatted("resolved")


def test_references_of_references_are_resolved_and_the_first_of_a_name_counts() -> None:
    writer = Writer()
    writer.set_level(None, Level.NONE)
    writer.register("a", avro(record("A", ("f", "int"))))
    writer.register("a", avro(record("A", ("f", "long"))))
    writer.register("b", avro(record("B", ("f", "A")), ("A", "a", 1)))
    found = resolve(writer.image, (Reference("A", "a", 2), Reference("B", "b", 1)), deleted=False)
    assert {name: stored.id for name, stored in found.items()} == {"A": 2, "B": 3}
    found = resolve(writer.image, (Reference("B", "b", 1), Reference("A", "a", 2)), deleted=False)
    assert {name: stored.id for name, stored in found.items()} == {"A": 1, "B": 3}


def test_too_many_references_are_refused() -> None:
    writer = Writer()
    writer.register("a", avro('"int"'))
    references = tuple(Reference(f"n{number}", "a", 1) for number in range(REFERENCES_MAX + 1))
    assert len(resolve(writer.image, references[:-1], deleted=False)) == REFERENCES_MAX
    with pytest.raises(InvalidSchemaError, match="more than 1000 references"):
        resolve(writer.image, references, deleted=False)


def test_references_that_point_at_each_other_end() -> None:
    """Only a version that was deleted permanently and registered again can close a circle."""
    writer = Writer()
    writer.register("a", avro(record("A", ("f", "int"))))
    writer.register("b", avro(record("B", ("f", "A")), ("A", "a", 1)))
    circle = b'{"id":9,"schema":"\\"int\\"","references":[{"name":"B","subject":"b","version":1}]}'
    writer.image.apply(b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}', circle, 9)
    found = resolve(writer.image, (Reference("B", "b", 1),), deleted=False)
    assert sorted(found) == ["A", "B"]
    with pytest.raises(RegistryError, match="cycle"):
        writer.deciding.parser.parse_version(writer.image, writer.image.versions("b")[0])


def test_minus_one_of_an_unknown_subject_stays() -> None:
    reference = Reference("A", "a", -1)
    assert with_versions(Image(), (reference,)) == (reference,)
