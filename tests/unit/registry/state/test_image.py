"""The image: replay, deletion, one id for one schema, references, drafts."""

from __future__ import annotations

import logging
import tracemalloc

import pytest

from headrace_registry.compat import Level
from headrace_registry.schemas import SchemaType
from headrace_registry.state import LATEST, Decision, Image, Mode
from headrace_registry.state.records import (
    DeleteSubjectKey,
    SchemaKey,
    SchemaValue,
    encode_delete_subject,
    encode_key,
    encode_schema,
)
from tests.unit.registry.state.world import Writer, avro, compacted, record, replayed, state


def put(image: Image, subject: str, version: int, id: int, text: str, *, deleted: bool = False) -> None:  # noqa: A002
    value = SchemaValue(subject, version, id, SchemaType.AVRO, text, is_deleted=deleted)
    image.apply(encode_key(SchemaKey(subject, version)), encode_schema(value), image.offset + 1)


def test_subjects_are_sorted_and_found_by_their_prefix() -> None:
    image = Image()
    for number, subject in enumerate(("b", "a-value", "a", "ab", "c")):
        put(image, subject, 1, number + 1, f'"{subject}"')
    assert list(image.subjects()) == ["a", "a-value", "ab", "b", "c"]
    assert list(image.subjects("a")) == ["a", "a-value", "ab"]
    assert list(image.subjects("d")) == []


def test_latest_is_the_highest_version_that_is_not_soft_deleted() -> None:
    image = Image()
    put(image, "s", 1, 1, '"int"')
    put(image, "s", 3, 2, '"long"', deleted=True)
    put(image, "s", 2, 3, '"float"')
    latest = image.version("s", LATEST, deleted=True)
    assert latest is not None
    assert latest.number == 2
    assert image.version("s", 3) is None
    deleted = image.version("s", 3, deleted=True)
    assert deleted is not None
    assert deleted.stored.id == 2
    assert [each.number for each in image.versions("s")] == [1, 2, 3]


def test_one_schema_of_several_subjects_is_one_object() -> None:
    writer = Writer()
    assert {writer.register(each, avro(' {"type": "string"}')) for each in ("a", "b", "c")} == {1}
    stored = {id(each.stored) for subject in "abc" for each in writer.image.versions(subject)}
    assert len(stored) == 1
    assert writer.image.schema_count == 1
    assert [(each.subject, each.number) for each in writer.image.uses(1)] == [("a", 1), ("b", 1), ("c", 1)]


def test_a_schema_is_forgotten_with_its_last_version_and_its_id_is_not_given_again() -> None:
    writer = Writer()
    writer.register("a", avro('"int"'))
    writer.register("b", avro('"int"'))
    writer.delete_subject("a")
    assert [each.subject for each in writer.image.uses(1)] == ["b"]
    assert [each.subject for each in writer.image.uses(1, deleted=True)] == ["a", "b"]
    writer.delete_subject("a", permanent=True)
    assert writer.image.schema(1) is not None
    writer.delete_subject("b")
    writer.delete_subject("b", permanent=True)
    assert writer.image.schema(1) is None
    assert writer.image.id_of(avro('"int"')) is None
    assert writer.register("c", avro('"int"')) == 2


def test_ids_are_not_given_again_after_compaction_and_a_restart() -> None:
    writer = Writer()
    writer.set_level(None, Level.NONE)
    assert [writer.register("s", avro(each)) for each in ('"int"', '"long"', '"string"')] == [1, 2, 3]
    writer.delete_subject("s")
    writer.delete_subject("s", permanent=True)
    restarted = Writer()
    restarted.image = replayed(compacted(writer.topic))
    assert list(restarted.image.subjects()) == []
    assert restarted.register("t", avro('"int"')) == 4


def test_an_import_that_replaces_a_version_keeps_the_old_id_from_being_given_again() -> None:
    writer = Writer()
    writer.set_mode("s", Mode.IMPORT)
    writer.register("s", avro('"int"'), version=1, id=40)
    writer.register("s", avro('"long"'), version=1, id=7)
    assert writer.image.schema(40) is None
    restarted = Writer()
    restarted.image = replayed(compacted(writer.topic))
    assert state(restarted.image) == state(writer.image)
    assert restarted.register("t", avro('"float"')) == 41


def test_the_id_and_the_version_of_a_skipped_schema_are_not_given_again() -> None:
    """A plug-in of Confluent's registry adds a schema type, and clients use the schema's id."""
    writer = Writer()
    value = b'{"subject":"s","version":2,"id":7,"schemaType":"THRIFT","schema":"struct S {}","deleted":false}'
    writer.carry_out(Decision(((encode_key(SchemaKey("s", 2)), value),), None))
    draft = writer.image.draft()
    assert (draft.next_version("s"), draft.next_version("t")) == (3, 1)
    assert writer.register("s", avro('"int"')) == 8
    assert (encode_key(SchemaKey("s", 2)), value) in compacted(writer.topic)
    assert state(replayed(compacted(writer.topic))) == state(writer.image)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_permanent_deletion_also_deletes_the_key_of_an_old_registry(is_replaced: bool) -> None:
    """Registries before 3.1 wrote the magic number 0, so compaction keeps two records of one version."""
    writer = Writer()
    old_key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":0}'
    value = SchemaValue("s", 1, 1, SchemaType.AVRO, '"int"')
    writer.carry_out(Decision(((old_key, encode_schema(value)),), None))
    writer.delete_version("s", 1)
    if is_replaced:
        writer.register("s", avro('"int"'))
    else:
        writer.delete_version("s", 1, permanent=True)
    assert [each.number for each in writer.image.versions("s")] == ([2] if is_replaced else [])
    assert state(replayed(compacted(writer.topic))) == state(writer.image)


def test_a_second_deletion_of_a_subject_covers_the_first_one_after_compaction() -> None:
    writer = Writer()
    writer.set_level(None, Level.NONE)
    writer.register("s", avro('"int"'))
    writer.register("s", avro('"long"'))
    writer.delete_subject("s")
    writer.set_mode("s", Mode.IMPORT, force=True)
    writer.register("s", avro('"int"'), version=1, id=1)
    assert writer.delete_subject("s") == [1]
    assert writer.live("s") == []
    assert state(replayed(compacted(writer.topic))) == state(writer.image)


def test_a_deletion_of_a_subject_covers_the_versions_up_to_its_number_only() -> None:
    writer = Writer()
    writer.register("s", avro('"int"'))
    writer.delete_subject("s")
    writer.register("s", avro('"long"'))
    image = replayed(writer.topic)
    assert [(each.number, each.is_deleted) for each in image.versions("s")] == [(1, True), (2, False)]
    assert state(replayed(compacted(writer.topic))) == state(image)


def test_a_deletion_record_leaves_later_versions() -> None:
    image = Image()
    for number, kind in enumerate(("int", "long", "float"), 1):
        put(image, "s", number, number, f'"{kind}"')
    image.apply(encode_key(DeleteSubjectKey("s")), encode_delete_subject("s", 2), 9)
    assert [(each.number, each.is_deleted) for each in image.versions("s")] == [(1, True), (2, True), (3, False)]


def test_the_last_id_of_a_schema_with_several_ids_counts() -> None:
    writer = Writer()
    writer.set_mode(None, Mode.IMPORT)
    writer.register("a", avro('"int"'), version=1, id=9)
    writer.register("b", avro('"int"'), version=1, id=4)
    assert writer.image.id_of(avro('"int"')) == 4
    writer.delete_subject("b")
    writer.delete_subject("b", permanent=True)
    assert writer.image.id_of(avro('"int"')) == 9


def test_an_id_that_an_import_takes_again_has_no_old_references() -> None:
    writer = Writer()
    writer.register("inner", avro(record("Inner", ("f", "int"))))
    writer.set_mode("s", Mode.IMPORT)
    writer.register("s", avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 1)), version=1, id=7)
    assert writer.image.referenced_by("inner", 1) == [7]
    writer.delete_subject("s")
    writer.delete_subject("s", permanent=True)
    writer.set_mode("s", Mode.IMPORT, force=True)
    writer.register("s", avro('"int"'), version=1, id=7)
    assert writer.image.referenced_by("inner", 1) == []


def test_references_count_while_the_referring_schema_is_in_use() -> None:
    writer = Writer()
    writer.register("inner", avro(record("Inner", ("f", "int"))))
    outer = avro(record("Outer", ("inner", "Inner")), ("Inner", "inner", 1))
    assert writer.register("outer", outer) == 2
    assert writer.register("twin", outer) == 2
    assert writer.image.referenced_by("inner", 1) == [2]
    writer.delete_subject("outer")
    assert writer.image.referenced_by("inner", 1) == [2]
    writer.delete_subject("twin")
    assert writer.image.referenced_by("inner", 1) == []
    assert writer.register("twin", outer) == 2
    assert writer.image.referenced_by("inner", 1) == [2]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"junk", b"{}", "the record's key is not valid JSON"),
        (encode_key(SchemaKey("s", 1)), b"junk", "the record's value is not valid JSON"),
        (encode_key(SchemaKey("t", 1)), b'{"id":1,"schema":"\\"long\\""}', "id 1 of another schema"),
        (encode_key(SchemaKey("t", 1)), b'{"id":1,"schema":"","metadata":{"a":"\\ud800"}}', "cannot be encoded"),
        (b'{"keytype":"SCHEMA","subject":"\\ud800","version":1,"magic":1}', b'{"id":1,"schema":""}', "surrogate"),
        (b'{"keytype":"MODE","subject":null,"magic":0}', b'{"mode":"SLOW"}', "unknown value 'SLOW'"),
    ],
)
def test_a_record_that_cannot_be_applied_is_skipped_with_its_offset(
    key: bytes, value: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    image = Image()
    put(image, "s", 1, 1, '"int"')
    before = state(image)
    with caplog.at_level(logging.WARNING, "headrace.registry"):
        image.apply(key, value, 17)
    assert state(image) == before
    assert image.offset == 17
    assert "offset 17" in caplog.text
    assert reason in caplog.text


def test_noop_records_and_unknown_kinds_change_nothing_but_the_offset() -> None:
    image = Image()
    put(image, "s", 1, 1, '"int"')
    before = state(image)
    for key in (b'{"keytype":"NOOP","magic":0}', b'{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}'):
        image.apply(key, b"{}", image.offset + 1)
        image.apply(key, None, image.offset + 1)
    assert (state(image), image.offset) == (before, 4)


def test_a_draft_sees_its_own_records_and_the_image_does_not() -> None:
    writer = Writer()
    for subject in ("a", "b"):
        writer.register(subject, avro('"int"'))
    before = state(writer.image)
    draft = writer.image.draft()
    other = Writer()
    other.image, other.topic = draft, list(writer.topic)
    other.set_level("a", Level.NONE)
    other.register("a", avro('"string"'))
    other.delete_subject("b")
    other.delete_subject("b", permanent=True)
    other.set_mode(None, Mode.READONLY)
    assert state(writer.image) == before
    assert (other.live("a"), other.live("b")) == ([1, 2], [])
    # The image applies the same records later: it becomes equal, and the draft stays as it is.
    expected = state(draft)
    for offset in range(len(writer.topic), len(other.topic)):
        writer.image.apply(*other.topic[offset], offset)
        assert state(draft) == expected
    assert state(writer.image) == expected


def test_drafts_of_drafts_are_separate() -> None:
    image = Image()
    put(image, "s", 1, 1, '"int"')
    first = image.draft()
    put(first, "s", 2, 2, '"long"')
    second = first.draft()
    put(second, "s", 3, 3, '"float"')
    assert [[each.number for each in one.versions("s")] for one in (image, first, second)] == [[1], [1, 2], [1, 2, 3]]


def test_a_schema_costs_little_more_memory_than_its_text() -> None:
    """20,000 schemas have to fit into 200 MiB together with the process."""
    count, text_size = 2_000, 1_000
    tracemalloc.start()
    try:
        image = Image()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            put(image, f"subject-{number}-value", 1, number + 1, f'"{number:0{text_size}}"')
        used = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert image.schema_count == count
    assert used < text_size + 2_500, f"{used:.0f} bytes for each schema"
