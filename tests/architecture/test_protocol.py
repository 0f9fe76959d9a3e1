"""The protocol: generated code is up to date, every call has a comment, error codes agree everywhere, and no change
breaks a client."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import proto_compat
import proto_tool
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

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


Change = Callable[[proto_compat.Description], None]


def _remove_field(d: proto_compat.Description) -> None:
    del d["messages"]["headrace.v1.ProducePartition"]["4"]


def _renumber_field(d: proto_compat.Description) -> None:
    fields = d["messages"]["headrace.v1.ProducePartition"]
    fields["40"] = fields.pop("4")


def _rename_field(d: proto_compat.Description) -> None:
    d["messages"]["headrace.v1.ProducePartition"]["4"]["name"] = "batches"


def _retype_field(d: proto_compat.Description) -> None:
    d["messages"]["headrace.v1.ProducePartition"]["2"]["type"] = "string"


def _repeat_field(d: proto_compat.Description) -> None:
    d["messages"]["headrace.v1.ProducePartition"]["2"]["cardinality"] = "repeated"


def _move_field_into_oneof(d: proto_compat.Description) -> None:
    d["messages"]["headrace.v1.ProducePartition"]["2"]["oneof"] = "where"


def _remove_message(d: proto_compat.Description) -> None:
    del d["messages"]["headrace.v1.ProducePartition"]


def _remove_value(d: proto_compat.Description) -> None:
    del d["enums"]["headrace.v1.Acks"]["3"]


def _renumber_value(d: proto_compat.Description) -> None:
    values = d["enums"]["headrace.v1.Acks"]
    values["9"] = values.pop("3")


def _remove_enum(d: proto_compat.Description) -> None:
    del d["enums"]["headrace.v1.Acks"]


def _remove_method(d: proto_compat.Description) -> None:
    del d["services"]["headrace.v1.Produce"]["Produce"]


def _retype_method(d: proto_compat.Description) -> None:
    d["services"]["headrace.v1.Produce"]["Produce"]["output"] = "headrace.v1.FetchResponse"


def _unstream_method(d: proto_compat.Description) -> None:
    d["services"]["headrace.v1.Produce"]["Produce"]["client_streaming"] = False


def _remove_service(d: proto_compat.Description) -> None:
    del d["services"]["headrace.v1.Produce"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_remove_field, "ProducePartition.records: field 4 is gone"),
        (_renumber_field, "ProducePartition.records: renumbered from 4 to 40"),
        (_rename_field, "ProducePartition.records: field 4 is now called batches"),
        (_retype_field, "ProducePartition.partition: field 2 was int32, is string"),
        (_repeat_field, "ProducePartition.partition: field 2 was singular, is repeated"),
        (_move_field_into_oneof, "ProducePartition.partition: field 2 was in oneof (none), is in where"),
        (_remove_message, "ProducePartition: message is gone"),
        (_remove_value, "Acks.ACKS_NONE: value 3 is gone"),
        (_renumber_value, "Acks.ACKS_NONE: renumbered from 3 to 9"),
        (_remove_enum, "Acks: enum is gone"),
        (_remove_method, "Produce.Produce: method is gone"),
        (_retype_method, "Produce.Produce: was (stream headrace.v1.ProduceRequest)"),
        (_unstream_method, "Produce.Produce: was (stream headrace.v1.ProduceRequest)"),
        (_remove_service, "Produce: service is gone"),
    ],
    ids=lambda value: value.__name__.lstrip("_") if callable(value) else "",
)
def test_a_breaking_change_is_caught_and_named(change: Change, complaint: str) -> None:
    before = proto_tool.load_baseline()
    after = copy.deepcopy(before)
    change(after)
    found = proto_compat.breaking_changes(before, after)
    assert any(complaint in line for line in found), found


def test_additions_break_nothing() -> None:
    before = proto_tool.load_baseline()
    after = copy.deepcopy(before)
    after["messages"]["headrace.v1.New"] = {}
    after["messages"]["headrace.v1.ProducePartition"]["99"] = proto_compat.Field(
        name="new", type="int32", cardinality="singular", oneof=""
    )
    after["enums"]["headrace.v1.Acks"]["99"] = ["ACKS_NEW"]
    after["services"]["headrace.v1.Produce"]["New"] = after["services"]["headrace.v1.Produce"]["Produce"]
    assert proto_compat.breaking_changes(before, after) == []


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
