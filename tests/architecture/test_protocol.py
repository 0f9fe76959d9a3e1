"""The protocol: generated code is up to date, every call has a comment, error codes agree everywhere, and no change
breaks a client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import proto_compat
import proto_tool
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

from headrace_core import errors
from headrace_protos.v1 import common_pb2


def test_generated_code_is_what_the_protos_make() -> None:
    assert proto_tool.stale_files() == []


def test_nothing_in_the_baseline_is_broken_and_all_of_the_protos_is_in_it() -> None:
    assert proto_tool.problems() == []


def test_error_codes_of_the_wire_are_those_of_the_error_tree() -> None:
    wire = {
        value.name.removeprefix("ERROR_CODE_"): value.number
        for value in common_pb2.ErrorCode.DESCRIPTOR.values
        if value.number != 0
    }
    tree = {cls.code: number for number, cls in errors.BY_NUMBER.items()}
    assert wire == tree


def _described(tmp_path: Path) -> FileDescriptorSet:
    file = tmp_path / "all.binpb"
    proto_tool.run_protoc("--include_source_info", f"--descriptor_set_out={file}")
    return FileDescriptorSet.FromString(file.read_bytes())


def test_every_call_says_what_it_does(tmp_path: Path) -> None:
    silent = []
    for file in _described(tmp_path).file:
        explained = {tuple(place.path) for place in file.source_code_info.location if place.leading_comments.strip()}
        silent += [
            f"{file.name}: {service.name}.{method.name}"
            for s, service in enumerate(file.service)
            for m, method in enumerate(service.method)
            if (6, s, 2, m) not in explained  # the descriptor's path of the method
        ]
    assert silent == [], "write a comment above each of these"


def test_every_proto_file_opens_with_its_story() -> None:
    silent = [p.name for p in proto_tool.proto_files() if not p.read_text().startswith("// ")]
    assert silent == []


Change = Callable[[FileDescriptorSet], None]


def _find(files: FileDescriptorSet, kind: str, name: str) -> tuple[Any, Any]:
    """A declaration at the top of a file, and the list that it is in."""
    lists = [getattr(file, kind) for file in files.file if file.package == "headrace.v1"]
    ((found, inside),) = [(each, inside) for inside in lists for each in inside if each.name == name]
    return found, inside


def _field(files: FileDescriptorSet, number: int) -> Any:
    (found,) = [each for each in _find(files, "message_type", "ProducePartition")[0].field if each.number == number]
    return found


def _produce(files: FileDescriptorSet) -> Any:
    (found,) = _find(files, "service", "Produce")[0].method[:1]
    assert found.name == "Produce"
    return found


def _remove(kind: str, name: str) -> Change:
    def change(files: FileDescriptorSet) -> None:
        found, inside = _find(files, kind, name)
        inside.remove(found)

    return change


def _remove_field(files: FileDescriptorSet) -> None:
    _find(files, "message_type", "ProducePartition")[0].field.remove(_field(files, 4))


def _move_field_into_oneof(files: FileDescriptorSet) -> None:
    message = _find(files, "message_type", "ProducePartition")[0]
    message.oneof_decl.add(name="where")
    _field(files, 2).oneof_index = len(message.oneof_decl) - 1


def _retype_field(files: FileDescriptorSet) -> None:
    _field(files, 2).type = FieldDescriptorProto.TYPE_STRING


def _value(files: FileDescriptorSet) -> Any:
    (found,) = [each for each in _find(files, "enum_type", "Acks")[0].value if each.name == "ACKS_NONE"]
    return found


def _remove_value(files: FileDescriptorSet) -> None:
    _find(files, "enum_type", "Acks")[0].value.remove(_value(files))


def _remove_method(files: FileDescriptorSet) -> None:
    del _find(files, "service", "Produce")[0].method[0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_remove_field, "ProducePartition.records: field 4 is gone"),
        (lambda files: setattr(_field(files, 4), "number", 40), "ProducePartition.records: renumbered from 4 to 40"),
        (lambda files: setattr(_field(files, 4), "name", "b"), "ProducePartition.records: field 4 is now called b"),
        (_retype_field, "ProducePartition.partition: field 2 was int32, is string"),
        (
            lambda files: setattr(_field(files, 2), "label", FieldDescriptorProto.LABEL_REPEATED),
            "ProducePartition.partition: field 2 was singular, is repeated",
        ),
        (
            lambda files: setattr(_field(files, 2), "proto3_optional", True),
            "ProducePartition.partition: field 2 was singular, is optional",
        ),
        (_move_field_into_oneof, "ProducePartition.partition: field 2 was in oneof (none), is in where"),
        (_remove("message_type", "ProducePartition"), "ProducePartition: message is gone"),
        (_remove_value, "Acks.ACKS_NONE: value 3 is gone"),
        (lambda files: setattr(_value(files), "number", 9), "Acks.ACKS_NONE: renumbered from 3 to 9"),
        (_remove("enum_type", "Acks"), "Acks: enum is gone"),
        (_remove_method, "Produce.Produce: method is gone"),
        (
            lambda files: setattr(_produce(files), "output_type", ".headrace.v1.FetchResponse"),
            "Produce.Produce: was (stream headrace.v1.ProduceRequest)",
        ),
        (
            lambda files: setattr(_produce(files), "client_streaming", False),
            "Produce.Produce: was (stream headrace.v1.ProduceRequest)",
        ),
        (_remove("service", "Produce"), "Produce: service is gone"),
    ],
)
def test_a_breaking_change_is_caught_and_named(change: Change, complaint: str) -> None:
    before, after = proto_tool.load_baseline(), proto_tool.load_baseline()
    change(after)
    found = proto_compat.breaking_changes(before, after)
    assert any(complaint in line for line in found), found


def test_additions_break_nothing_and_must_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = proto_tool.load_baseline(), proto_tool.load_baseline()
    (file,) = [each for each in after.file if each.name.endswith("/produce.proto")]
    file.message_type.add(name="New")
    _find(after, "message_type", "ProducePartition")[0].field.add(
        name="new", number=99, type=FieldDescriptorProto.TYPE_INT32, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    _find(after, "enum_type", "Acks")[0].value.add(name="ACKS_NEW", number=99)
    _find(after, "service", "Produce")[0].method.add(name="New", input_type=".headrace.v1.New")
    assert proto_compat.breaking_changes(before, after) == []
    monkeypatch.setattr(proto_tool, "descriptors", lambda: after)
    assert proto_tool.problems() == ["protos/baseline.binpb lacks additions to the .proto files; run make proto"]


def test_a_breaking_edit_of_a_proto_file_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the whole tool on an edited copy of the sources."""
    for source in proto_tool.proto_files():
        copied = tmp_path / source.relative_to(proto_tool.SOURCES)
        copied.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text()
        if source.name == "produce.proto":
            assert "bytes records = 4;" in text
            text = text.replace("bytes records = 4;", "string records = 15;")
        copied.write_text(text)
    monkeypatch.setattr(proto_tool, "SOURCES", tmp_path)
    found = proto_tool.problems()
    assert any("ProducePartition.records: renumbered from 4 to 15" in line for line in found), found
    assert any("produce_pb2.py: missing" in line for line in found), found
