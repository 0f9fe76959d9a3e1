"""Which members may commit, fetch and delete offsets, and the responses (KIP-848, KIP-211, KIP-447, KIP-496)."""

from __future__ import annotations

import pytest

from headrace_coordinator.group.messages import Topic, TopicsChanged
from headrace_coordinator.offsets.codec import decode_value
from headrace_coordinator.offsets.logic import NAMESAKE_AGE_MS, OffsetSettings
from headrace_coordinator.offsets.messages import (
    NO_OFFSET,
    DeleteOffsets,
    DescribeLag,
    FetchOffsets,
    OffsetToCommit,
    OffsetToFetch,
    PartitionEnd,
    WatermarksSeen,
)
from headrace_core.errors import (
    GroupIdNotFoundError,
    HeadraceError,
    InvalidCommitOffsetSizeError,
    InvalidGroupIdError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import NOW_MS, Group, OffsetsWorld

OLD_ID, NEW_ID = bytes(15) + b"\x01", bytes(15) + b"\x02"


def _topics(**counts: tuple[bytes, int]) -> TopicsChanged:
    return TopicsChanged({name: Topic(name, topic_id, partitions) for name, (topic_id, partitions) in counts.items()})


def _codes(decision: object) -> list[str | None]:
    return [one.error.code if one.error else None for one in decision.reply.results]  # type: ignore[attr-defined]


def test_what_was_committed_is_fetched_with_all_that_came_along() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("orders", 0, 42, 7, "note", OLD_ID), now_ms=NOW_MS + 5)
    found = world.fetch("g", partitions=(OffsetToFetch("orders", 0), OffsetToFetch("orders", 1)))
    assert found["orders", 0][2:] == (42, 7, "note", NOW_MS + 5, OLD_ID, None)
    assert found["orders", 1][2:] == (NO_OFFSET, -1, "", -1, None, None)


def test_a_later_commit_replaces_an_earlier_one_also_when_it_goes_back() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 42))
    world.commit("g", OffsetToCommit("t", 0, 10))
    assert world.fetch("g")["t", 0].offset == 10


def test_all_of_a_group_are_fetched_in_order_and_none_of_another() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("b", 1, 1), OffsetToCommit("b", 0, 2), OffsetToCommit("a", 5, 3))
    world.commit("other", OffsetToCommit("c", 0, 4))
    assert list(world.fetch("g")) == [("a", 5), ("b", 0), ("b", 1)]
    assert world.fetch("nobody") == {}


def test_a_successor_that_replays_the_log_answers_the_same() -> None:
    world = OffsetsWorld()
    for number in range(50):
        world.commit(f"g{number % 3}", OffsetToCommit("t", number % 5, number, 3, f"m{number}", OLD_ID))
    world.log += world.logic.remove([("g1", TopicPartition("t", 2))])
    assert list(world.successor().book) == list(world.logic.book)


def test_a_member_commits_at_its_epoch_only() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m1": 5})
    world.commit("g", OffsetToCommit("t", 0, 1), member_id="m1", member_epoch=5)
    with pytest.raises(StaleMemberEpochError):
        world.commit("g", OffsetToCommit("t", 0, 2), member_id="m1", member_epoch=4)
    with pytest.raises(UnknownMemberIdError):
        world.commit("g", OffsetToCommit("t", 0, 3), member_id="zombie", member_epoch=5)
    with pytest.raises(UnknownMemberIdError):  # an administrator may reset offsets only of groups without members
        world.commit("g", OffsetToCommit("t", 0, 4))
    assert world.logic.book.of("g")[TopicPartition("t", 0)].offset == 1
    assert len(world.log) == 1, "a refused commit leaves no record"


def test_a_group_is_asked_about_the_very_partitions_that_are_committed() -> None:
    """A member with an older epoch may commit only partitions that it has owned since that epoch (KIP-1251)."""
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m1": 5})
    world.commit("g", OffsetToCommit("t", 1, 1), OffsetToCommit("u", 0, 1), member_id="m1", member_epoch=5)
    assert world.groups.asked_about == [("t", 1), ("u", 0)]


def test_who_leaves_member_and_epoch_out_on_the_wire_is_no_member() -> None:
    """A commit or fetch without a member has the member id "" and the epoch 0."""
    world = OffsetsWorld()
    for _ in range(2):
        world.commit("g", OffsetToCommit("t", 0, 1), member_epoch=0)
        assert world.fetch("g", member_epoch=0)["t", 0].offset == 1
        world.groups.groups["g"] = Group()
    world.groups.groups["g"] = Group({"m1": 5})
    assert world.fetch("g", member_epoch=0)["t", 0].offset == 1
    with pytest.raises(UnknownMemberIdError):
        world.commit("g", OffsetToCommit("t", 0, 1), member_epoch=0)


def test_a_member_of_a_group_that_is_gone_neither_commits_nor_fetches() -> None:
    """Kafka answers the fetch with "no offset": the member would start from auto.offset.reset."""
    world = OffsetsWorld()
    with pytest.raises(GroupIdNotFoundError):
        world.commit("g", OffsetToCommit("t", 0, 1), member_id="m1", member_epoch=5)
    with pytest.raises(UnknownMemberIdError):
        world.fetch("g", member_id="m1", member_epoch=5)


def test_a_member_of_a_group_that_has_only_offsets_joins_again() -> None:
    """Kafka's consumers join again after UNKNOWN_MEMBER_ID, and fail after GROUP_ID_NOT_FOUND. A group has only offsets
    if an administrator deleted the group of a suspended member, and then set the group's offsets."""
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1))
    with pytest.raises(UnknownMemberIdError):
        world.commit("g", OffsetToCommit("t", 0, 2), member_id="m1", member_epoch=5)
    assert world.fetch("g")["t", 0].offset == 1


def test_a_member_fetches_at_its_epoch_and_anybody_without_one() -> None:
    world = OffsetsWorld()
    world.groups.groups["g"] = Group({"m1": 5})
    world.commit("g", OffsetToCommit("t", 0, 1), member_id="m1", member_epoch=5)
    assert world.fetch("g", member_id="m1", member_epoch=5)["t", 0].offset == 1
    assert world.fetch("g")["t", 0].offset == 1
    with pytest.raises(StaleMemberEpochError):
        world.fetch("g", member_id="m1", member_epoch=6)


def test_the_empty_group_id_has_offsets_but_no_members() -> None:
    """Kafka's clients of before KIP-289 commit under it if they have no group.id. The answers are Kafka 4.3's."""
    world = OffsetsWorld()
    world.commit("", OffsetToCommit("t", 0, 5))
    assert [each.offset for each in world.fetch("").values()] == [5]
    assert list(world.successor().book) == list(world.logic.book)
    with pytest.raises(UnknownMemberIdError):
        world.commit("", OffsetToCommit("t", 0, 6), member_id="m", member_epoch=1)
    with pytest.raises(InvalidGroupIdError):
        world.logic.delete(DeleteOffsets("", ()))
    with pytest.raises(InvalidGroupIdError):
        world.send("", OffsetToCommit("t", 0, 6))
    world.log += world.logic.remove_group("")
    assert world.fetch("") == {}


@pytest.mark.parametrize("group_id", ["g" * 32_768, "ä" * 16_384])
def test_group_ids_that_no_record_holds_are_refused(group_id: str) -> None:
    world = OffsetsWorld()
    with pytest.raises(InvalidGroupIdError):
        world.commit(group_id, OffsetToCommit("t", 0, 1))
    with pytest.raises(InvalidGroupIdError):
        world.logic.fetch(FetchOffsets(group_id), NOW_MS)
    with pytest.raises(InvalidGroupIdError):
        world.logic.delete(DeleteOffsets(group_id, ()))


@pytest.mark.parametrize(
    ("fits", "does_not"),
    [
        ("x" * 10, "x" * 11),
        ("ä" * 10, "ä" * 11),
        ("€" * 10, "€" * 11),
        ("😀" * 5, "😀" * 6),
        ("😀" * 4 + "xy", "😀" * 5 + "x"),
    ],
)
def test_metadata_is_measured_in_javas_characters_and_refused_for_its_partition_only(fits: str, does_not: str) -> None:
    world = OffsetsWorld(OffsetSettings(metadata_chars_max=10))
    decision = world.commit("g", OffsetToCommit("t", 0, 1, metadata=fits), OffsetToCommit("t", 1, 1, metadata=does_not))
    assert _codes(decision) == [None, "OFFSET_METADATA_TOO_LARGE"]
    assert len(decision.records) == 1
    assert list(world.fetch("g")) == [("t", 0)]
    assert list(world.successor().book) == list(world.logic.book)


def test_metadata_that_no_reader_of_kafkas_takes_is_refused_whatever_the_settings_say() -> None:
    world = OffsetsWorld(OffsetSettings(metadata_chars_max=100_000))
    decision = world.commit(
        "g",
        *(
            OffsetToCommit("t", at, 1, metadata=text)
            for at, text in enumerate(("x" * 32_767, "x" * 32_768, "ä" * 16_384))
        ),
    )
    assert _codes(decision) == [None, "OFFSET_METADATA_TOO_LARGE", "OFFSET_METADATA_TOO_LARGE"]


def test_what_is_no_offset_of_any_partition_is_refused_by_itself() -> None:
    world = OffsetsWorld()
    decision = world.commit(
        "g",
        OffsetToCommit("t", -1, 1),
        OffsetToCommit("../t", 0, 1),
        OffsetToCommit("t", 0, 1, topic_id=b"short"),
        OffsetToCommit("t", 3, 9),
    )
    codes = ["UNKNOWN_TOPIC_OR_PARTITION", "INVALID_TOPIC_EXCEPTION", "INVALID_REQUEST", None]
    assert _codes(decision) == codes
    assert list(world.fetch("g")) == [("t", 3)]


def test_a_negative_offset_is_committed_as_in_kafka_and_has_no_lag() -> None:
    """kafkajs's resetOffsets commits -2 for the first record and -1 for the end."""
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 7))
    assert _codes(world.commit("g", OffsetToCommit("t", 0, -2))) == [None]
    world.logic.watermarks_seen(WatermarksSeen((PartitionEnd("t", 0, 100), PartitionEnd("t", 1, 10))), NOW_MS)
    for logic in (world.logic, world.successor()):
        assert logic.book.of("g")[TopicPartition("t", 0)].offset == -2
        lag = logic.describe_lag(DescribeLag("g"), NOW_MS).reply
        assert [one.partition for one in lag.partitions] == [1]
        assert set(logic.lags.watched()) == {("t", 1)}
    assert _codes(world.commit("g", OffsetToCommit("t", 0, 6))) == [None]
    assert set(world.logic.lags.watched()) == {("t", 0), ("t", 1)}


def test_a_commit_that_no_batch_holds_is_refused_and_nothing_of_it_counts() -> None:
    """If the shard decided a commit that is too large for a batch and the leader then refused it, the whole shard would
    lose its state and reload it."""
    world = OffsetsWorld(OffsetSettings(commit_bytes_max=10_000))
    many = [OffsetToCommit("t", number, 1, metadata="x" * 50) for number in range(200)]
    with pytest.raises(InvalidCommitOffsetSizeError, match="takes 23600 bytes"):
        world.commit("g", *many)
    assert list(world.logic.book) == []
    assert len(world.commit("g", *many[:60]).records) == 60


def test_partitions_that_do_not_exist_are_refused_once_the_topics_are_known() -> None:
    world = OffsetsWorld()
    assert _codes(world.commit("g", OffsetToCommit("t", 0, 1))) == [None]
    world.logic.topics_changed(_topics(t=(OLD_ID, 2)))
    decision = world.commit(
        "g",
        OffsetToCommit("t", 1, 1),
        OffsetToCommit("t", 2, 1),
        OffsetToCommit("u", 0, 1),
        OffsetToCommit("t", 0, 1, topic_id=NEW_ID),
    )
    retriable = ["UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID"]
    assert _codes(decision) == [None, *retriable]
    assert all(one.error.retriable for one in decision.reply.results[1:])  # type: ignore[attr-defined]


def test_a_reader_of_a_topic_of_coordinators_may_commit_too() -> None:
    world = OffsetsWorld()
    world.logic.topics_changed(_topics(__consumer_offsets=(OLD_ID, 50)))
    assert _codes(world.commit("audit", OffsetToCommit("__consumer_offsets", 49, 1))) == [None]


def test_a_commit_without_a_topic_id_is_recorded_with_that_of_the_topic() -> None:
    world = OffsetsWorld()
    world.logic.topics_changed(_topics(t=(OLD_ID, 1)))
    (record,) = world.commit("g", OffsetToCommit("t", 0, 1)).records
    assert decode_value(record.value or b"").topic_id == OLD_ID


def test_an_offset_of_a_deleted_namesake_is_no_offset() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 42, topic_id=OLD_ID))
    asked = [OffsetToFetch("t", 0, NEW_ID)], [OffsetToFetch("t", 0, OLD_ID)], [OffsetToFetch("t", 0)]
    assert [world.fetch("g", partitions=tuple(one))["t", 0].offset for one in asked] == [NO_OFFSET, 42, 42]


def test_who_names_no_topic_id_is_not_given_the_offset_of_a_deleted_namesake_either() -> None:
    """The topic was deleted and re-created while the shard had no owner."""
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 42, topic_id=OLD_ID), OffsetToCommit("u", 0, 43, topic_id=OLD_ID))
    world.logic = world.successor()
    world.logic.topics_changed(_topics(t=(NEW_ID, 1)))
    later_ms = NOW_MS + NAMESAKE_AGE_MS
    assert world.fetch("g", partitions=(OffsetToFetch("t", 0),), now_ms=later_ms)["t", 0].offset == NO_OFFSET
    assert list(world.fetch("g", now_ms=later_ms)) == [("u", 0)]


HOUR_MS, DAY_MS = 3_600_000, 86_400_000
OFF_MS = [0, *(sign * ms for ms in (100, HOUR_MS, DAY_MS) for sign in (1, -1))]


@pytest.mark.parametrize("off_ms", OFF_MS)
def test_a_commit_that_another_clock_stamped_does_not_hide_that_its_topic_is_gone_until_that_time_comes(
    off_ms: int,
) -> None:
    """The former owner's clock differs (found by simulation)."""
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 42, topic_id=OLD_ID))
    now_ms = NOW_MS + off_ms
    world.logic = world.successor(now_ms)
    world.logic.topics_changed(_topics(t=(NEW_ID, 1)))
    found = world.fetch("g", partitions=(OffsetToFetch("t", 0),), now_ms=now_ms + NAMESAKE_AGE_MS)["t", 0]
    assert (found.offset, found.error) == (NO_OFFSET, None)


@pytest.mark.parametrize("off_ms", OFF_MS)
@pytest.mark.parametrize("set_ms", [0, DAY_MS, -DAY_MS])
def test_an_offset_of_a_topic_that_is_not_known_yet_is_asked_for_again_and_not_taken_for_none(
    off_ms: int, set_ms: int
) -> None:
    """The former owner knew the new topic, and this owner, whose clock differs and may be set, has slightly older
    metadata. The answer "no offset" would lose the consumer's position."""
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 42, topic_id=NEW_ID))
    world.logic = world.successor(NOW_MS + off_ms)
    world.logic.topics_changed(_topics(t=(OLD_ID, 1)))
    world.logic.clock_set(set_ms)
    now_ms = NOW_MS + off_ms + set_ms + NAMESAKE_AGE_MS - 1
    for how in ({}, {"partitions": (OffsetToFetch("t", 0),)}):
        error = world.fetch("g", now_ms=now_ms, **how)["t", 0].error
        assert isinstance(error, HeadraceError)
        assert (error.code, error.retriable) == ("UNKNOWN_TOPIC_ID", True)
    world.logic.topics_changed(_topics(t=(NEW_ID, 1)))
    assert world.fetch("g", now_ms=now_ms)["t", 0].offset == 42


def test_offsets_that_a_transaction_may_change_are_not_stable() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1))
    for producer_id in (1_000, 1_001):
        world.send("g", OffsetToCommit("t", 0, 2), producer=(producer_id, 0))
    world.end((1_000, 1), commit=False)
    found = world.fetch("g", require_stable=True)
    assert isinstance(found["t", 0].error, HeadraceError)
    assert found["t", 0].error.code == "UNSTABLE_OFFSET_COMMIT"
    assert found["t", 0].error.retriable
    assert found["t", 1].offset == 1
    assert world.fetch("g")["t", 0].offset == 1, "who does not ask for stability gets the committed one"
    world.end((1_001, 1), commit=False)
    assert world.fetch("g", require_stable=True)["t", 0].error is None


def test_offsets_are_deleted_but_for_topics_that_members_subscribe_to() -> None:
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("read", 0, 1), OffsetToCommit("done", 0, 1))
    world.groups.groups["g"] = Group({"m1": 1}, topics={"read"})
    wanted = tuple(TopicPartition(topic, 0) for topic in ("read", "done", "done", "never"))
    decision = world.logic.delete(DeleteOffsets("g", wanted))
    assert _codes(decision) == ["GROUP_SUBSCRIBED_TO_TOPIC", None, None, None]
    world.log += decision.records
    assert [record.value for record in decision.records] == [None]
    assert list(world.fetch("g")) == [("read", 0)]
    assert list(world.successor().book) == list(world.logic.book)


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted() -> None:
    world = OffsetsWorld()
    with pytest.raises(GroupIdNotFoundError):
        world.logic.delete(DeleteOffsets("g", ()))


def test_a_topic_that_goes_takes_its_offsets_along() -> None:
    world = OffsetsWorld()
    world.logic.topics_changed(_topics(gone=(OLD_ID, 1), stays=(NEW_ID, 1)))
    for group_id in ("g", "h"):
        world.commit(group_id, OffsetToCommit("gone", 0, 1), OffsetToCommit("stays", 0, 1))
    world.logic.topics_changed(_topics(stays=(NEW_ID, 1)))
    assert world.logic.next_due_ms() == 0
    world.expire(NOW_MS + 1)
    assert [(group, partition.topic) for group, partition, _ in world.logic.book] == [("g", "stays"), ("h", "stays")]
    assert list(world.successor().book) == list(world.logic.book)
    assert world.logic.next_due_ms() == NOW_MS + 600_000


def test_offsets_of_the_new_topic_outlive_its_namesake() -> None:
    world = OffsetsWorld()
    world.logic.topics_changed(_topics(t=(OLD_ID, 2)))
    world.commit("g", OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1))
    world.logic.topics_changed(_topics(t=(NEW_ID, 2)))
    world.commit("g", OffsetToCommit("t", 1, 9))  # before the old offsets are deleted
    world.expire(NOW_MS + 1)
    assert {key: one.offset for key, one in world.fetch("g").items()} == {("t", 1): 9}


def test_offsets_of_topics_that_are_not_known_yet_stay() -> None:
    """A coordinator's metadata of the topics may be older than the commits of the previous owner."""
    world = OffsetsWorld()
    world.commit("g", OffsetToCommit("t", 0, 1, topic_id=OLD_ID))
    world.logic.topics_changed(_topics(other=(NEW_ID, 1)))
    world.logic.topics_changed(TopicsChanged({}, frozenset({"other", "never"})))
    assert world.logic.next_due_ms() == NOW_MS + 600_000
    assert list(world.fetch("g")) == [("t", 0)]
