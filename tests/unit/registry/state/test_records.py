"""The bytes of the topic ``_schemas``: what we write, and what Confluent's registries have written."""

from __future__ import annotations

import pytest

from headrace_registry.compat import Level
from headrace_registry.schemas import Reference, SchemaType
from headrace_registry.state.records import (
    ClearSubjectKey,
    Config,
    ConfigKey,
    DeleteSubjectKey,
    Key,
    Mode,
    ModeKey,
    NoopKey,
    SchemaKey,
    SchemaValue,
    UnreadableRecordError,
    decode_config,
    decode_delete_subject,
    decode_key,
    decode_max_id,
    decode_mode,
    decode_schema,
    encode_clear_subject,
    encode_config,
    encode_delete_subject,
    encode_key,
    encode_max_id,
    encode_mode,
    encode_schema,
)

KEYS: list[tuple[Key, bytes]] = [
    (SchemaKey("orders-value", 3), b'{"keytype":"SCHEMA","subject":"orders-value","version":3,"magic":1}'),
    (ConfigKey(None), b'{"keytype":"CONFIG","subject":null,"magic":0}'),
    (ConfigKey("s"), b'{"keytype":"CONFIG","subject":"s","magic":0}'),
    (ModeKey(None), b'{"keytype":"MODE","subject":null,"magic":0}'),
    (ModeKey("s"), b'{"keytype":"MODE","subject":"s","magic":0}'),
    (DeleteSubjectKey("s"), b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}'),
    (ClearSubjectKey(None), b'{"keytype":"CLEAR_SUBJECT","subject":null,"magic":0}'),
    (ClearSubjectKey("s"), b'{"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}'),
    (NoopKey(), b'{"keytype":"NOOP","magic":0}'),
    (NoopKey(is_max_id=True), b'{"keytype":"NOOP","magic":0,"of":"maxId"}'),
    (SchemaKey('übung "1"', 1), '{"keytype":"SCHEMA","subject":"übung \\"1\\"","version":1,"magic":1}'.encode()),
]


@pytest.mark.parametrize(("key", "data"), KEYS, ids=lambda each: str(each)[:40])
def test_keys_have_confluents_bytes(key: Key, data: bytes) -> None:
    assert encode_key(key) == data
    assert decode_key(data) == key


def test_an_avro_schema_has_no_type_and_no_references() -> None:
    value = SchemaValue("s", 1, 7, SchemaType.AVRO, '"string"')
    data = b'{"subject":"s","version":1,"id":7,"schema":"\\"string\\"","deleted":false}'
    assert encode_schema(value) == data
    assert decode_schema(SchemaKey("s", 1), data) == value


def test_other_types_and_references_stand_before_the_schema() -> None:
    value = SchemaValue(
        "s", 2, 9, SchemaType.PROTOBUF, 'syntax = "proto3";', (Reference("a.proto", "a", 1),), is_deleted=True
    )
    data = (
        b'{"subject":"s","version":2,"id":9,"schemaType":"PROTOBUF",'
        b'"references":[{"name":"a.proto","subject":"a","version":1}],'
        b'"schema":"syntax = \\"proto3\\";","deleted":true}'
    )
    assert encode_schema(value) == data
    assert decode_schema(SchemaKey("s", 2), data) == value


def test_settings_modes_and_deletions_have_confluents_bytes() -> None:
    assert encode_config(None, Config(level=Level.FULL)) == b'{"compatibilityLevel":"FULL"}'
    config = Config(normalize=True, validate_fields=False, level=Level.NONE)
    data = b'{"subject":"s","normalize":true,"validateFields":false,"compatibilityLevel":"NONE"}'
    assert encode_config("s", config) == data
    assert decode_config(data) == config
    assert encode_mode("s", Mode.READONLY) == b'{"subject":"s","mode":"READONLY"}'
    assert encode_mode(None, Mode.IMPORT) == b'{"mode":"IMPORT"}'
    assert decode_mode(b'{"mode":"READONLY_OVERRIDE"}') is Mode.READONLY_OVERRIDE
    assert encode_delete_subject("s", 4) == b'{"subject":"s","version":4}'
    assert decode_delete_subject(b'{"subject":"s","version":4}') == 4
    assert encode_clear_subject(None) == b"{}"
    assert decode_max_id(encode_max_id(12)) == 12


def test_records_of_other_versions_of_confluents_registry_are_read() -> None:
    """Keys without a subject (7.x), the magic number 0 of old schemas, values with md5, metadata and rule sets."""
    assert decode_key(b'{"keytype":"CONFIG","magic":0}') == ConfigKey(None)
    assert decode_key(b'{"magic":0,"subject":"s","version":1,"keytype":"SCHEMA"}') == SchemaKey("s", 1)
    newer = decode_schema(
        SchemaKey("s", 1),
        b'{"subject":"s","version":1,"id":3,"md5":"AAAAAAAAAAAAAAAAAAAAAA==","metadata":{"properties":{"owner":"me"}},'
        b'"ruleSet":{"domainRules":[]},"schema":"\\"int\\"","deleted":false,"ts":1}',
    )
    assert newer.extras == '{"metadata":{"properties":{"owner":"me"}},"ruleSet":{"domainRules":[]}}'
    assert b'"id":3,"metadata":{"properties":{"owner":"me"}},"ruleSet":{"domainRules":[]},"schema"' in encode_schema(
        newer
    )
    oldest = decode_schema(SchemaKey("s", 1), b'{"subject":"s","version":1,"id":0,"schema":"\\"int\\""}')
    assert (oldest.is_deleted, oldest.type, oldest.references) == (False, SchemaType.AVRO, ())
    assert decode_config(b'{"compatibilityLevel":"FORWARD","alias":"t"}') == Config(level=Level.FORWARD)


def test_kinds_of_newer_registries_are_no_error() -> None:
    assert decode_key(b'{"keytype":"CONTEXT","tenant":"default","context":".x","magic":0}') is None


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (None, "no key"),
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":2}', "magic number 2"),
        (b'{"keytype":"SCHEMA","subject":"s","version":0,"magic":1}', '"version"'),
        (b'{"keytype":"SCHEMA","subject":"s","version":2147483648,"magic":1}', '"version"'),
        (b'{"keytype":"SCHEMA","subject":"s","version":true,"magic":1}', '"version"'),
        (b'{"keytype":"SCHEMA","version":1,"magic":1}', '"subject"'),
        (b'{"keytype":"CONFIG","subject":5,"magic":0}', '"subject"'),
        (b'{"keytype":"MODE","subject":"s","magic":1}', "magic number 1"),
        (b'{"keytype":"DELETE_SUBJECT","magic":0}', '"subject"'),
    ],
)
def test_a_foreign_key_is_unreadable(key: bytes | None, reason: str) -> None:
    with pytest.raises(UnreadableRecordError, match=reason):
        decode_key(key)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "not valid JSON"),
        (b"null", "not a JSON object"),
        (b'{"id":1}', '"schema"'),
        (b'{"schema":"x"}', '"id"'),
        (b'{"id":-1,"schema":"x"}', '"id"'),
        (b'{"id":1,"schema":{}}', '"schema"'),
        (b'{"id":1,"schema":"x","schemaType":"XML"}', "schemaType"),
        (b'{"id":1,"schema":"x","references":{"a":1}}', "references"),
        (b'{"id":1,"schema":"x","references":[1]}', "references"),
        (b'{"id":1,"schema":"x","references":[{"name":"n","subject":"s"}]}', '"version"'),
        (b'{"id":1,"schema":"x","deleted":"no"}', '"deleted"'),
    ],
)
def test_a_foreign_schema_is_unreadable(value: bytes, reason: str) -> None:
    with pytest.raises(UnreadableRecordError, match=reason):
        decode_schema(SchemaKey("s", 1), value)
