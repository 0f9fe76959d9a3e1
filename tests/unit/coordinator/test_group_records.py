"""The bytes of a group's records: they survive the round trip, and damaged or newer bytes raise a typed error."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.group import records
from headrace_coordinator.group.groups import Groups
from headrace_coordinator.group.records import (
    CurrentValue,
    GroupValue,
    Key,
    MemberValue,
    StoryMove,
    StoryValue,
    TargetValue,
)
from headrace_coordinator.group.state import unpacked
from headrace_coordinator.state_machine import RecordKind
from headrace_core.errors import CorruptLogError, UnsupportedVersionError

PARTS = ((b"o" * 16, (0, 1, 5)), (b"p" * 16, (2,)))
VALUES = {
    RecordKind.GROUP: GroupValue(7, 6, "sticky", 123, -1, 4),
    RecordKind.MEMBER: MemberValue("i", "r", "c", "/10.0.0.1", 60_000, ("a", "b"), "x.*", "range"),
    RecordKind.TARGET_ASSIGNMENT: TargetValue(PARTS),
    RecordKind.CURRENT_ASSIGNMENT: CurrentValue(
        5, 2, 9, ((b"o" * 16, (0, 1), (3, 4)),), PARTS, ((2, 3, 3), (5,)), PARTS
    ),
    RecordKind.STORY: StoryValue(3, 1_000, 7, "member a joined", 1, (StoryMove(b"o" * 16, "orders", 0, "a", "b", 12),)),
}
KEYS = {kind: Key(kind, "payments", {RecordKind.GROUP: "", RecordKind.STORY: "3"}.get(kind, "m-1")) for kind in VALUES}


@pytest.mark.parametrize("kind", list(VALUES), ids=lambda kind: kind.name)
def test_keys_and_values_are_read_as_they_were_written(kind: RecordKind) -> None:
    key = records.encode_key(KEYS[kind])
    assert key[:2] == int(kind).to_bytes(2, "big")
    assert records.decode_key(key) == KEYS[kind]
    assert records.decode_value(kind, records.encode_value(VALUES[kind])) == VALUES[kind]


def test_keys_and_values_have_the_bytes_they_always_had() -> None:
    """Existing logs contain these bytes."""
    assert records.encode_key(KEYS[RecordKind.STORY]).hex() == "03ed92a87061796d656e747303"
    assert records.encode_value(VALUES[RecordKind.GROUP]).hex() == "0001960706a6737469636b797bff04"


def test_a_field_that_a_later_version_adds_is_passed_over_and_one_that_is_missing_has_its_default() -> None:
    longer = b"\x00\x01" + msgspec.msgpack.encode([7, 6, "sticky", 1, -1, 4, "later"])
    shorter = b"\x00\x01" + msgspec.msgpack.encode([7])
    assert records.decode_value(RecordKind.GROUP, longer) == GroupValue(7, 6, "sticky", 1, -1, 4)
    assert records.decode_value(RecordKind.GROUP, shorter) == GroupValue(7)


def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        records.decode_value(RecordKind.GROUP, b"\x00\x02\x91\x07")


@given(data=st.binary(max_size=60), kind=st.sampled_from(list(VALUES)))
def test_any_bytes_are_read_or_refused(data: bytes, kind: RecordKind) -> None:
    for read in (lambda: records.decode_key(data), lambda: records.decode_value(kind, data)):
        with contextlib.suppress(CorruptLogError, UnsupportedVersionError):
            read()


@pytest.mark.parametrize("kind", list(VALUES), ids=lambda kind: kind.name)
def test_every_truncation_of_a_value_is_refused(kind: RecordKind) -> None:
    whole = records.encode_value(VALUES[kind])
    for end in range(len(whole)):
        with pytest.raises(CorruptLogError):
            records.decode_value(kind, whole[:end])


def test_a_log_that_gives_a_partition_to_two_members_is_not_served() -> None:
    groups = Groups()
    value = records.encode_value(CurrentValue(1, 1, 1, ((b"o" * 16, (0,), (1,)),)))
    groups.replay(records.encode_key(Key(RecordKind.CURRENT_ASSIGNMENT, "g", "a")), value, 0)
    with pytest.raises(CorruptLogError, match="belongs to member 'a'"):
        groups.replay(records.encode_key(Key(RecordKind.CURRENT_ASSIGNMENT, "g", "b")), value, 0)


def test_assigned_partitions_without_epochs_are_damage() -> None:
    groups = Groups()
    value = records.encode_value(CurrentValue(1, 1, 1, ((b"o" * 16, (0, 1), (1,)),)))
    with pytest.raises(CorruptLogError, match="are listed with 1 epochs"):
        groups.replay(records.encode_key(Key(RecordKind.CURRENT_ASSIGNMENT, "g", "a")), value, 0)


@pytest.mark.parametrize("epochs", [((3, 3, 3),), ((3, 3), (5,))], ids=["of fewer topics", "of fewer partitions"])
def test_revoked_partitions_with_too_few_epochs_are_damage(epochs: tuple[tuple[int, ...], ...]) -> None:
    value = records.encode_value(CurrentValue(5, 2, 9, (), PARTS, epochs))
    with pytest.raises(CorruptLogError, match="are listed with"):
        Groups().replay(records.encode_key(Key(RecordKind.CURRENT_ASSIGNMENT, "g", "a")), value, 0)


def test_revoked_partitions_of_an_older_headrace_have_the_members_epoch() -> None:
    """Their epochs are unknown, so only a commit with the member's present epoch counts."""
    current = unpacked(CurrentValue(5, 2, 9, (), PARTS))
    assert set(current.revoking.values()) == {5}
    assert len(current.revoking) == 4


def test_nothing_was_taken_from_a_member_of_an_older_headrace() -> None:
    whole = CurrentValue(5, 2, 9, ((b"o" * 16, (0,), (1,)),), PARTS, ((2, 3, 3), (5,)))
    older = b"\x00\x01" + msgspec.msgpack.encode(msgspec.to_builtins(whole, builtin_types=(bytes,))[:-1])
    found = records.decode_value(RecordKind.CURRENT_ASSIGNMENT, older)
    assert found == whole
    assert unpacked(whole).taken == frozenset()


def test_what_is_left_of_a_member_without_its_record_is_cleared_away() -> None:
    groups = Groups()
    value = records.encode_value(CurrentValue(1, 1, 1))
    groups.replay(records.encode_key(Key(RecordKind.CURRENT_ASSIGNMENT, "g", "a")), value, 0)
    decision = groups.loaded(0)
    assert [record.value for record in decision.records] == [None]
    assert groups.group_ids() == ()
