"""Decisions: which records a write appends, and which error it gets. Statuses and codes are Confluent's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace_registry.compat import Level
from headrace_registry.state import Config, Mode, RegistryError, Rules, Submission
from headrace_registry.state.records import INT_MAX
from tests.unit.registry.state.world import Writer, avro, record

V1 = record("R", ("a", "int"))
V2 = record("R", ("a", "int"), ("b", "string", ""))
BROKEN = record("R", ("a", "int"), ("c", "string"))
READ_ONLY = (422, 42205, "Subject s is in read-only mode")


def refusal(call: Callable[[], object]) -> tuple[int, int, str]:
    with pytest.raises(RegistryError) as caught:
        call()
    return caught.value.status, caught.value.code, caught.value.message


def keys(writer: Writer, since: int) -> list[tuple[str, Any]]:
    """Kind and deletion of each record after ``since``."""
    return [(json.loads(key)["keytype"], value is None) for key, value in writer.topic[since:]]


# --- register --------------------------------------------------------------------------------------------------------


def test_versions_are_counted_by_subject_and_ids_by_schema() -> None:
    writer = Writer()
    assert writer.register("s", avro(V1)) == 1
    assert writer.register("s", avro(V2)) == 2
    assert writer.register("t", avro(V2)) == 2
    assert (writer.live("s"), writer.live("t")) == ([1, 2], [1])


def test_a_schema_that_the_subject_has_appends_nothing() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.register("s", avro(V2))
    assert writer.register("s", avro(json.dumps(V1, indent=3))) == 1
    assert len(writer.topic) == 2


def test_a_soft_deleted_schema_is_registered_as_a_new_version_with_its_old_id() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.register("s", avro(V2))
    writer.delete_version("s", 1)
    since = len(writer.topic)
    assert writer.register("s", avro(V1)) == 1
    assert keys(writer, since) == [("SCHEMA", True), ("SCHEMA", False)]
    assert [(each.number, each.is_deleted) for each in writer.image.versions("s")] == [(2, False), (3, False)]


def test_version_numbers_go_on_after_soft_deletion_and_begin_again_after_permanent_deletion() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.delete_subject("s")
    writer.register("s", avro(V2))
    assert writer.live("s") == [2]
    writer.delete_subject("s")
    writer.delete_subject("s", permanent=True)
    writer.register("s", avro(V1))
    assert writer.live("s") == [1]


def test_an_incompatible_schema_is_refused_with_its_reasons() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    status, code, message = refusal(lambda: writer.register("s", avro(BROKEN)))
    old = json.dumps(V1, separators=(",", ":"))
    assert (status, code) == (409, 409)
    assert message == (
        'Schema being registered is incompatible with an earlier schema for subject "s", details: '
        "[{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'c' at path '/fields/1' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'c'}, "
        f"{{oldSchemaVersion: 1}}, {{oldSchema: '{old}'}}, {{validateFields: 'false', compatibility: 'BACKWARD'}}]"
    )
    assert len(writer.topic) == 1


@pytest.mark.parametrize(
    ("level", "fails"),
    [(Level.BACKWARD, False), (Level.BACKWARD_TRANSITIVE, True), (Level.FORWARD, False), (Level.NONE, False)],
)
def test_transitive_levels_compare_with_all_versions(level: Level, fails: bool) -> None:
    writer = Writer()
    writer.register("s", avro(record("R", ("a", "int"))))
    writer.register("s", avro(record("R", ("a", "int"), ("b", "int", 0))))
    writer.set_level("s", level)
    new = avro(record("R", ("a", "int"), ("b", "int")))
    if not fails:
        assert writer.register("s", new) == 3
        return
    status, _, message = refusal(lambda: writer.register("s", new))
    assert status == 409
    assert "{oldSchemaVersion: 1}" in message
    assert message.endswith("compatibility: 'BACKWARD_TRANSITIVE'}]")


@pytest.mark.parametrize("is_transitive", [False, True])
@pytest.mark.parametrize(
    ("level", "more", "fewer"),
    [("NONE", True, True), ("BACKWARD", False, True), ("FORWARD", True, False), ("FULL", False, False)],
)
def test_a_level_says_who_must_read_whose_data(level: str, more: bool, fewer: bool, is_transitive: bool) -> None:
    """``more``: whether a field without default may be added, which a new reader lacks in old data. ``fewer``: whether
    it may be removed, which an old reader lacks in new data."""
    if is_transitive and level == "NONE":
        return
    for before, after, is_legal in ((V1, BROKEN, more), (BROKEN, V1, fewer)):
        writer = Writer(Rules(Level(f"{level}_TRANSITIVE" if is_transitive else level)))
        writer.register("s", avro(before))
        if is_legal:
            writer.register("s", avro(after))
        else:
            assert refusal(lambda: writer.register("s", avro(after)))[:2] == (409, 409)  # noqa: B023
        assert writer.live("s") == ([1, 2] if is_legal else [1])


def test_full_names_the_forward_reasons_first() -> None:
    writer = Writer(Rules(Level.FULL))
    writer.register("s", avro(record("R", ("a", "int"))))
    _, _, message = refusal(lambda: writer.register("s", avro(record("R", ("b", "int")))))
    forward = message.index("in the old schema has no default value and is missing in the new schema")
    assert forward < message.index("in the new schema has no default value and is missing in the old schema")
    assert message.count("oldSchemaVersion") == 1


def test_soft_deleted_versions_are_not_compared() -> None:
    writer = Writer()
    writer.register("s", avro('"string"'))
    writer.delete_version("s", 1)
    assert writer.register("s", avro('"int"')) == 2


def test_the_level_of_the_subject_counts_then_the_registrys() -> None:
    writer = Writer()
    writer.register("s", avro('"string"'))
    writer.set_level(None, Level.NONE)
    writer.set_level("s", Level.BACKWARD)
    assert refusal(lambda: writer.register("s", avro('"int"')))[0] == 409
    writer.carry_out(writer.deciding.delete_config(writer.image, "s"))
    assert writer.register("s", avro('"int"')) == 2


def test_an_empty_text_repeats_the_latest_schema() -> None:
    writer = Writer()
    assert refusal(lambda: writer.register("s", avro(" "))) == (422, 42201, "Empty schema")
    writer.register("s", avro(V1))
    assert writer.register("s", avro("")) == 1


def test_a_named_version_must_be_the_next_one() -> None:
    writer = Writer()
    assert writer.register("s", avro(V1), version=1) == 1
    expected = (422, 42201, "Version is not one more than previous version")
    assert refusal(lambda: writer.register("s", avro(V2), version=3)) == expected
    assert writer.register("s", avro(V1), version=2) == 1
    assert writer.live("s") == [1, 2]


def test_an_invalid_schema_is_shown_as_confluent_does() -> None:
    status, code, message = refusal(lambda: Writer().register("s", avro('{"type":"nothing"}')))
    assert (status, code) == (422, 42201)
    assert message.startswith(
        "Invalid schema {subject=s,version=0,id=-1,schemaType=AVRO,references=[],metadata=null,ruleSet=null,"
        'schema={"type":"nothing"}} with refs [] of type AVRO, details: '
    )


def test_a_long_invalid_schema_is_shortened_in_the_message() -> None:
    message = refusal(lambda: Writer().register("s", avro('"' + 500_000 * "x" + '"')))[2]
    assert len(message) < 32_000


def test_a_missing_reference_is_an_invalid_schema() -> None:
    outer = avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 3))
    message = refusal(lambda: Writer().register("s", outer))[2]
    assert "with refs [{name='Inner', subject='inner', version=3}] of type AVRO" in message
    assert message.endswith('details: No schema reference found for subject "inner" and version 3')


def test_a_new_schema_cannot_reference_a_soft_deleted_version_and_an_old_one_still_can() -> None:
    writer = Writer()
    writer.register("inner", avro(record("Inner", ("f", "int"))))
    outer = avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 1))
    writer.register("s", outer)
    writer.delete_subject("s")
    writer.delete_subject("inner")
    assert "No schema reference found" in refusal(lambda: writer.register("t", outer))[2]
    submitted = Submission("s", outer)
    found = writer.deciding.look_up(writer.image, submitted, normalize=False, deleted=True)
    assert found is not None


def test_a_reference_to_version_minus_one_is_stored_with_the_latest_version() -> None:
    writer = Writer()
    writer.set_level("inner", Level.NONE)
    for kind in ("int", "string"):
        writer.register("inner", avro(record("Inner", ("f", kind))))
    writer.register("s", avro(record("Outer", ("f", "Inner")), ("Inner", "inner", -1)))
    assert [each.version for each in writer.image.versions("s")[0].stored.schema.references] == [2]


def test_an_avro_schema_with_copied_references_is_the_schema_that_references_them() -> None:
    writer = Writer()
    writer.register("inner", avro(record("Inner", ("f", "int"))))
    writer.register("s", avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 1)))
    copied = avro(record("Outer", ("f", record("Inner", ("f", "int")))))
    assert writer.register("s", copied) == 2
    assert writer.live("s") == [1]
    assert writer.register("t", copied) == 3


def test_ids_end_at_the_largest_int() -> None:
    writer = Writer()
    writer.set_mode(None, Mode.IMPORT)
    writer.register("s", avro(V1), version=1, id=INT_MAX)
    writer.set_mode(None, Mode.READWRITE)
    status, code, _ = refusal(lambda: writer.register("s", avro(V2)))
    assert (status, code) == (500, 50001)
    assert writer.register("t", avro(V1)) == INT_MAX


def test_metadata_of_another_registry_makes_another_schema_and_is_kept() -> None:
    writer = Writer()
    key = b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    writer.topic.append((key, b'{"id":1,"metadata":{"properties":{"o":"me"}},"schema":"\\"int\\""}'))
    writer.image.apply(*writer.topic[0], 0)
    assert writer.register("t", avro('"int"')) == 2
    writer.set_mode("u", Mode.IMPORT)
    expected = (422, 42205, "Overwrite new schema with id 1 is not permitted.")
    assert refusal(lambda: writer.register("u", avro('"int"'), version=1, id=1)) == expected
    writer.delete_version("s", 1)
    assert writer.topic[-1][1] == (
        b'{"subject":"s","version":1,"id":1,"metadata":{"properties":{"o":"me"}},"schema":"\\"int\\"","deleted":true}'
    )


# --- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.READONLY, Mode.READONLY_OVERRIDE])
def test_a_read_only_registry_refuses_every_write_but_modes(mode: Mode) -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.set_mode(None, mode)
    assert refusal(lambda: writer.register("s", avro(V1))) == READ_ONLY
    assert refusal(lambda: writer.delete_version("s", 1)) == READ_ONLY
    assert refusal(lambda: writer.delete_subject("s")) == READ_ONLY
    assert refusal(lambda: writer.set_level("s", Level.NONE)) == READ_ONLY
    null = (422, 42205, "Subject null is in read-only mode")
    assert refusal(lambda: writer.set_level(None, Level.NONE)) == null
    writer.set_mode(None, Mode.READWRITE)
    writer.set_level(None, Level.NONE)


def test_a_subjects_mode_counts_before_the_registrys_but_not_before_an_override() -> None:
    writer = Writer()
    writer.set_mode(None, Mode.READONLY)
    writer.set_mode("s", Mode.READWRITE)
    writer.register("s", avro(V1))
    writer.set_mode(None, Mode.READONLY_OVERRIDE)
    assert refusal(lambda: writer.register("s", avro(V2))) == READ_ONLY


def test_an_import_names_its_id() -> None:
    writer = Writer()
    expected = (422, 42205, "Subject s is not in import mode")
    assert refusal(lambda: writer.register("s", avro(V1), version=1, id=5)) == expected
    writer.set_mode("s", Mode.IMPORT)
    expected = (422, 42205, "Subject s is not in read-write mode")
    assert refusal(lambda: writer.register("s", avro(V1))) == expected
    assert writer.register("s", avro(V1), version=4, id=5) == 5
    assert writer.live("s") == [4]
    expected = (422, 42205, "Overwrite new schema with id 5 is not permitted.")
    assert refusal(lambda: writer.register("s", avro(V2), version=5, id=5)) == expected
    writer.set_mode("s", Mode.READWRITE)
    assert writer.register("s", avro(V2)) == 6


def test_an_import_may_give_a_known_schema_another_id() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.set_mode("t", Mode.IMPORT)
    assert writer.register("t", avro(V1), version=1, id=8) == 8
    assert writer.register("t", avro(V1), version=2, id=1) == 1


def test_an_import_is_not_checked_for_compatibility() -> None:
    writer = Writer()
    writer.set_mode(None, Mode.IMPORT)
    writer.register("s", avro('"int"'), version=1, id=1)
    assert writer.register("s", avro('"string"'), version=2, id=2) == 2


def test_mode_import_needs_a_subject_without_versions() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    expected = (422, 42205, "Cannot import since found existing subjects")
    assert refusal(lambda: writer.set_mode("s", Mode.IMPORT)) == expected
    assert refusal(lambda: writer.set_mode(None, Mode.IMPORT)) == expected
    writer.set_mode("t", Mode.IMPORT)
    writer.set_mode("s", Mode.IMPORT, force=True)
    assert writer.live("s") == [1]


def test_mode_import_deletes_soft_deleted_versions_permanently() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.delete_subject("s")
    since = len(writer.topic)
    writer.set_mode(None, Mode.IMPORT)
    assert keys(writer, since) == [
        ("NOOP", False),
        ("SCHEMA", True),
        ("CLEAR_SUBJECT", False),
        ("MODE", False),
    ]
    assert list(writer.image.subjects()) == []


def test_modes_cannot_change_when_the_configuration_forbids_it() -> None:
    writer = Writer(Rules(may_change_modes=False))
    expected = (422, 42205, "Mode changes are not allowed")
    assert refusal(lambda: writer.set_mode(None, Mode.READONLY)) == expected
    assert refusal(lambda: writer.deciding.delete_mode(writer.image, None)) == expected


def test_a_deleted_mode_is_the_registrys() -> None:
    writer = Writer()
    assert refusal(lambda: writer.deciding.delete_mode(writer.image, "s")) == (404, 40401, "Subject 's' not found.")
    writer.set_mode("s", Mode.READONLY)
    assert writer.carry_out(writer.deciding.delete_mode(writer.image, "s")) is Mode.READONLY
    assert writer.image.mode("s") is None
    writer.set_mode(None, Mode.READONLY)
    assert writer.carry_out(writer.deciding.delete_mode(writer.image, None)) is Mode.READONLY
    assert writer.image.mode_in_scope("s") is Mode.READWRITE


# --- deletion --------------------------------------------------------------------------------------------------------


def test_a_version_is_deleted_softly_then_permanently() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.register("s", avro(V2))
    assert refusal(lambda: writer.delete_version("s", 1, permanent=True)) == (
        404,
        40407,
        "Subject 's' Version 1 was not deleted first before being permanently deleted",
    )
    assert writer.delete_version("s", 1) == 1
    assert refusal(lambda: writer.delete_version("s", 1)) == (
        404,
        40406,
        "Subject 's' Version 1 was soft deleted.Set permanent=true to delete permanently",
    )
    assert writer.delete_version("s", 1, permanent=True) == 1
    assert refusal(lambda: writer.delete_version("s", 1)) == (404, 40402, "Version 1 not found.")
    assert refusal(lambda: writer.delete_version("t", 1)) == (404, 40401, "Subject 't' not found.")


def test_latest_of_a_deleted_subject_is_version_minus_one() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    assert writer.delete_version("s", -1) == 1
    assert refusal(lambda: writer.delete_version("s", -1)) == (404, 40402, "Version -1 not found.")


def test_the_last_version_takes_the_subjects_settings_with_it() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.register("s", avro(V2))
    writer.set_level("s", Level.FULL)
    writer.set_mode("s", Mode.READWRITE)
    writer.delete_version("s", 2)
    assert writer.image.config("s") is not None
    since = len(writer.topic)
    writer.delete_version("s", 1)
    assert keys(writer, since) == [("SCHEMA", False), ("MODE", True), ("CONFIG", True)]
    assert writer.image.config("s") is None


def test_a_subject_is_deleted_softly_then_permanently() -> None:
    writer = Writer()
    assert refusal(lambda: writer.delete_subject("s")) == (404, 40401, "Subject 's' not found.")
    writer.register("s", avro(V1))
    writer.register("s", avro(V2))
    writer.set_level("s", Level.FULL)
    assert refusal(lambda: writer.delete_subject("s", permanent=True)) == (
        404,
        40405,
        "Subject 's' was not deleted first before being permanently deleted",
    )
    since = len(writer.topic)
    assert writer.delete_subject("s") == [1, 2]
    assert keys(writer, since) == [("DELETE_SUBJECT", False), ("CONFIG", True)]
    assert refusal(lambda: writer.delete_subject("s")) == (
        404,
        40404,
        "Subject 's' was soft deleted.Set permanent=true to delete permanently",
    )
    assert writer.delete_subject("s", permanent=True) == [1, 2]
    assert refusal(lambda: writer.delete_subject("s", permanent=True)) == (404, 40401, "Subject 's' not found.")


def test_a_referenced_version_cannot_be_deleted() -> None:
    writer = Writer()
    writer.register("inner", avro(record("Inner", ("f", "int"))))
    writer.register("s", avro(record("Outer", ("f", "Inner")), ("Inner", "inner", 1)))
    expected = (
        422,
        42206,
        "One or more references exist to the schema {magic=1,keytype=SCHEMA,subject=inner,version=1}.",
    )
    assert refusal(lambda: writer.delete_version("inner", 1)) == expected
    assert refusal(lambda: writer.delete_subject("inner")) == expected
    writer.delete_subject("s")
    assert writer.delete_subject("inner") == [1]


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_merged() -> None:
    writer = Writer()
    writer.set_level("s", Level.FULL)
    writer.carry_out(writer.deciding.set_config(writer.image, "s", Config(normalize=True)))
    assert writer.image.config("s") == Config(normalize=True, level=Level.FULL)
    assert writer.image.config_in_scope("t", Level.NONE) == Config(level=Level.NONE)


def test_settings_without_a_level_use_the_registrys() -> None:
    writer = Writer()
    writer.carry_out(writer.deciding.set_config(writer.image, "s", Config(normalize=True)))
    writer.set_level(None, Level.FORWARD)
    assert writer.image.config_in_scope("s", Level.NONE) == Config(normalize=True, level=Level.FORWARD)


def test_deleted_settings_are_answered() -> None:
    writer = Writer(Rules(Level.FULL))
    assert refusal(lambda: writer.deciding.delete_config(writer.image, "s")) == (404, 40401, "Subject 's' not found.")
    writer.set_level("s", Level.NONE)
    assert writer.carry_out(writer.deciding.delete_config(writer.image, "s")) == Config(level=Level.NONE)
    assert writer.carry_out(writer.deciding.delete_config(writer.image, None)) == Config(level=Level.FULL)
    writer.set_level(None, Level.NONE)
    assert writer.carry_out(writer.deciding.delete_config(writer.image, None)) == Config(level=Level.NONE)
    assert writer.image.config(None) is None


# --- look-up and compatibility ---------------------------------------------------------------------------------------


def test_look_up_finds_what_the_subject_has() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.register("t", avro(V2))

    def look_up(subject: str, schema: object, *, deleted: bool = False) -> int | None:
        submitted = Submission(subject, avro(schema))
        found = writer.deciding.look_up(writer.image, submitted, normalize=False, deleted=deleted)
        return None if found is None else found.number

    assert look_up("s", V1) == 1
    assert look_up("s", V2) is None
    assert look_up("s", "") is None
    writer.delete_subject("s")
    assert look_up("s", V1) is None
    assert look_up("s", V1, deleted=True) == 1


def test_look_up_prefers_a_version_that_is_not_deleted() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    writer.register("s", avro(V1), version=2)
    writer.delete_version("s", 2)
    found = writer.deciding.look_up(writer.image, Submission("s", avro(V1)), normalize=False, deleted=True)
    assert found is not None
    assert found.number == 1


def test_compatibility_names_no_reason_for_the_level_none_and_for_no_versions() -> None:
    writer = Writer()
    writer.register("s", avro('"int"'))
    versions = writer.image.versions("s")
    new = Submission("s", avro('"string"'))
    assert len(writer.deciding.compatibility(writer.image, new, versions)) == 4
    assert writer.deciding.compatibility(writer.image, new, []) == []
    writer.set_level("s", Level.NONE)
    assert writer.deciding.compatibility(writer.image, new, versions) == []
    empty = Submission("s", avro(""))
    assert refusal(lambda: writer.deciding.compatibility(writer.image, empty, [])) == (422, 42201, "Empty schema")


def test_a_long_old_schema_is_truncated_in_the_reasons() -> None:
    writer = Writer()
    writer.register("s", avro(record("R", ("a", "int"), *((f"f{number}", "int", 0) for number in range(1_000)))))
    _, _, message = refusal(lambda: writer.register("s", avro(BROKEN)))
    assert "{oldSchema: <truncated> '{" in message
    assert len(message) < 11_500


def test_a_reason_is_limited() -> None:
    writer = Writer()
    writer.register("s", avro(record("R", ("a", "int"))))
    message = refusal(lambda: writer.register("s", avro(record("R", (100_000 * "f", "int")))))[2]
    assert "ffff..., {oldSchemaVersion: 1}" in message
    assert len(message) < 3_000


def test_a_decision_changes_nothing() -> None:
    writer = Writer()
    writer.register("s", avro(V1))
    decision = writer.deciding.register(writer.image, Submission("s", avro(V2)), normalize=False)
    assert decision.answer == 2
    assert writer.live("s") == [1]
    version = writer.image.versions("s")[0]
    assert version.stored.id == 1


def test_too_many_characters_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_registry.state.decisions.COMPARED_CHARACTERS_MAX", 200)
    writer = Writer()
    for number in range(3):
        writer.register("s", avro(record("R", (f"f{number}", "int", 0))))
    writer.set_level("s", Level.BACKWARD_TRANSITIVE)
    reason = r"with 3 versions of subject s: they have \d+ characters.*set the level"
    with pytest.raises(RegistryError, match=reason) as refused:
        writer.register("s", avro(record("R", ("f", "int", 0))))
    assert (refused.value.status, refused.value.code) == (422, 42201)
    writer.set_level("s", Level.BACKWARD)
    assert writer.register("s", avro(record("R", ("f", "int", 0)))) == 4


def test_versions_with_long_references_are_not_all_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version is parsed together with its references, so many small versions can take hours."""
    monkeypatch.setattr("headrace_registry.state.decisions.REFERENCED_CHARACTERS_MAX", 10_000)
    writer = Writer()
    writer.register("inner", avro(record("Inner", ("f" * 4_000, "int"))))
    versions = [avro(record("R", ("i", "Inner"), (f"f{n}", "int", 0)), ("Inner", "inner", 1)) for n in range(5)]
    writer.set_level("s", Level.BACKWARD_TRANSITIVE)
    for schema in versions[:3]:
        writer.register("s", schema)
    with pytest.raises(
        RegistryError, match=r"with the schemas that they reference, .* more than 10000 .*BACKWARD"
    ) as it:
        writer.register("s", versions[3])
    assert (it.value.status, it.value.code) == (422, 42201)
    writer.set_level("s", Level.BACKWARD)
    assert writer.register("s", versions[3])
