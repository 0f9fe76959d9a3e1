"""Random pairs of schemas: an accepted version reads every earlier value, and keeps every field of it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_tools import protoc

from headrace_registry.compat import Level, check
from headrace_registry.schemas import Schema, SchemaType, parse
from tests.worlds.schema_pairs import JSON_KINDS, PROTOBUF_KINDS, SchemaPair, pairs
from tests.worlds.this_process import examples

SEED = 1
COUNT = {"JSON": 1_849, "PROTOBUF": 1_850}  # whole rounds of their kinds of edit


def is_accepted(pair: SchemaPair) -> bool:
    old, new = (parse(Schema(SchemaType[pair.language], text), {}) for text in (pair.old, pair.new))
    return not check(Level.BACKWARD, new, [old])


@pytest.mark.parametrize(("language", "kinds"), [("JSON", JSON_KINDS), ("PROTOBUF", PROTOBUF_KINDS)])
def test_each_kind_of_edit_comes_20_times_and_each_verdict_in_30_percent(language: str, kinds: dict[str, Any]) -> None:
    edits = Counter(edit for pair in pairs(SEED, COUNT[language], language) for edit in pair.edits)
    assert set(edits) == set(kinds)
    assert min(edits.values()) >= 20
    some = list(pairs(SEED, 8 * len(kinds), language))
    assert 0.3 <= sum(map(is_accepted, some)) / len(some) <= 0.7


# --- JSON Schema ------------------------------------------------------------------------------------------------------

_SCALARS = [None, True, "a", "b", "abc", "aaaaaa", "", 0, 1, 2, 3.5, 6, 12, "2020-01-01"]
_KEYS = ["a", "b", "c", "d", "xa", "xb", "long"]


def _value(choice: random.Random, depth: int) -> Any:
    kind = choice.random()
    if depth and kind < 0.35:
        return {name: _value(choice, depth - 1) for name in choice.sample(_KEYS, choice.randint(0, 4))}
    if depth and kind < 0.6:
        return [_value(choice, depth - 1) for _ in range(choice.randint(0, 4))]
    return choice.choice(_SCALARS)


#: A required property with a default may be added by Confluent's rules, although validators fill no default.
_DEFAULTS = {"required with a default", "required property with a default"}


def test_an_accepted_json_schema_refuses_no_earlier_value() -> None:
    choice = random.Random(SEED)
    read = 0
    for pair in pairs(SEED, examples(COUNT["JSON"]), "JSON"):
        if _DEFAULTS & set(pair.edits) or not is_accepted(pair):
            continue
        old, new = jsonschema_rs.validator_for(pair.old), jsonschema_rs.validator_for(pair.new)
        for _ in range(60):
            value = {"id": 1} | {f"p{at}": _value(choice, 2) for at in range(len(pair.edits)) if choice.random() < 0.9}
            if old.is_valid(value):
                read += 1
                assert new.is_valid(value), (value, pair)
    assert read >= examples(COUNT["JSON"])


# --- Protobuf ---------------------------------------------------------------------------------------------------------


def _classes(text: str, directory: Path) -> dict[str, type[Message]]:
    """The message classes of a file by their names within its package."""
    (directory / "pair.proto").write_text(text)
    made = directory / "made"
    assert protoc.main(["protoc", f"-I{directory}", f"--descriptor_set_out={made}", str(directory / "pair.proto")]) == 0
    file = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name)
    return {name: message_factory.GetMessageClass(one) for name, one in found.message_types_by_name.items()}


def _fill(choice: random.Random, message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        is_needed = field.is_required
        if not is_needed and choice.random() < 0.2:
            continue
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            key, value = (_scalar(choice, one) for one in field.message_type.fields)
            getattr(message, field.name)[key] = value
        elif field.is_repeated:
            getattr(message, field.name).extend(_scalar(choice, field) for _ in range(2))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(choice, getattr(message, field.name))
        else:
            setattr(message, field.name, _scalar(choice, field))


def _scalar(choice: random.Random, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return choice.choice([one.number for one in field.enum_type.values])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "text" if field.type == FieldDescriptor.TYPE_STRING else b"text"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return 1.5
    return choice.randint(1, 100)


def _lost(old: Message, new: Message) -> list[int]:
    """The numbers of fields that ``old`` has set, that the new type knows, and that ``new`` lost."""
    known = new.DESCRIPTOR.fields_by_number
    unread = {one.field_number for one in unknown_fields.UnknownFieldSet(new)}
    kept = {field.number for field, _ in new.ListFields()}
    lost = []
    for field, value in old.ListFields():
        if field.number not in known or field.enum_type is not None:
            continue  # proto2 keeps an enum's unknown value among the unknown fields; the rules allow that
        if field.number in unread or field.number not in kept:
            lost.append(field.number)
        elif field.message_type is not None and not field.is_repeated and not known[field.number].is_repeated:
            lost += _lost(value, getattr(new, known[field.number].name))
    return lost


def test_an_accepted_protobuf_file_keeps_every_earlier_field(tmp_path: Path) -> None:
    choice = random.Random(SEED)
    read = 0
    for pair in pairs(SEED, examples(COUNT["PROTOBUF"]), "PROTOBUF"):
        if not is_accepted(pair):
            continue
        old, new = _classes(pair.old, tmp_path), _classes(pair.new, tmp_path)
        assert set(old) <= set(new), pair
        for name, kind in old.items():
            for _ in range(3):
                message = kind()
                _fill(choice, message)
                try:
                    again = new[name].FromString(message.SerializeToString())
                except DecodeError as error:
                    raise AssertionError(pair) from error
                assert again.IsInitialized(), pair
                assert _lost(message, again) == [], (message, pair)
                read += 1
    assert read >= examples(COUNT["PROTOBUF"])
