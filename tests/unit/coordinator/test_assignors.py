"""Assignors: the standard cases, and the effect of racks. (Invariants are in tests/property/coordinator.)"""

from __future__ import annotations

import pytest

from headrace_coordinator.assignors import ASSIGNORS, Assignment, MemberSpec, TopicSpec

ORDERS, PAYMENTS, AUDIT = b"o" * 16, b"p" * 16, b"t" * 16
every_assignor = pytest.mark.parametrize("name", sorted(ASSIGNORS))


def member(*topics: bytes, owned: frozenset[tuple[bytes, int]] = frozenset(), rack: str | None = None) -> MemberSpec:
    return MemberSpec(frozenset(topics), owned, rack)


def sizes(assignment: Assignment) -> list[int]:
    return sorted(len(parts) for parts in assignment.values())


@every_assignor
def test_four_partitions_and_six_members_leave_two_standing_by(name: str) -> None:
    members = {f"m{number}": member(ORDERS) for number in range(6)}
    assert sizes(ASSIGNORS[name](members, {ORDERS: TopicSpec(4)})) == [0, 0, 1, 1, 1, 1]


@every_assignor
def test_of_twelve_partitions_three_move_to_a_fourth_member(name: str) -> None:
    topics = {ORDERS: TopicSpec(12)}
    before = ASSIGNORS[name]({each: member(ORDERS) for each in "abc"}, topics)
    members = {each: member(ORDERS, owned=before.get(each, frozenset())) for each in "abcd"}
    after = ASSIGNORS[name](members, topics)
    assert sizes(after) == [3, 3, 3, 3]
    assert all(after[each] < before[each] for each in "abc"), "who was there only gives"


@every_assignor
def test_what_a_member_leaves_behind_is_shared_and_nothing_else_moves(name: str) -> None:
    topics = {ORDERS: TopicSpec(12)}
    before = ASSIGNORS[name]({each: member(ORDERS) for each in "abcd"}, topics)
    after = ASSIGNORS[name]({each: member(ORDERS, owned=before[each]) for each in "abc"}, topics)
    assert sizes(after) == [4, 4, 4]
    assert all(after[each] > before[each] for each in "abc")


@every_assignor
def test_new_partitions_go_to_somebody_and_nothing_moves(name: str) -> None:
    before = ASSIGNORS[name]({each: member(ORDERS) for each in "abc"}, {ORDERS: TopicSpec(6)})
    members = {each: member(ORDERS, owned=before[each]) for each in "abc"}
    after = ASSIGNORS[name](members, {ORDERS: TopicSpec(9)})
    assert sizes(after) == [3, 3, 3]
    assert all(after[each] > before[each] for each in "abc")


@every_assignor
def test_a_topic_that_is_gone_is_nobody_s(name: str) -> None:
    owned = frozenset({(PAYMENTS, 0), (ORDERS, 0)})
    assignment = ASSIGNORS[name]({"a": member(ORDERS, PAYMENTS, owned=owned)}, {ORDERS: TopicSpec(1)})
    assert assignment == {"a": {(ORDERS, 0)}}


@every_assignor
def test_nobody_gets_nothing(name: str) -> None:
    assert ASSIGNORS[name]({}, {ORDERS: TopicSpec(3)}) == {}
    assert ASSIGNORS[name]({"a": member()}, {ORDERS: TopicSpec(3)}) == {"a": frozenset()}


def test_uniform_spreads_ten_topics_of_one_partition() -> None:
    """Each topic is even with any owner of its single partition. The total number of partitions of each member must be
    even, too."""
    topics = {bytes([number]) * 16: TopicSpec(1) for number in range(10)}
    everything = frozenset((topic_id, 0) for topic_id in topics)
    members = {"a": member(*topics, owned=everything), "b": member(*topics)}
    assert sizes(ASSIGNORS["uniform"](members, topics)) == [5, 5]


def test_uniform_gives_nobody_all_of_a_busy_topic() -> None:
    """The sticky assignor keeps the assignment, because the total is even. The uniform assignor changes the
    assignment."""
    topics = {ORDERS: TopicSpec(4), AUDIT: TopicSpec(4)}
    members = {
        "a": member(ORDERS, AUDIT, owned=frozenset((ORDERS, number) for number in range(4))),
        "b": member(ORDERS, AUDIT, owned=frozenset((AUDIT, number) for number in range(4))),
    }
    assert ASSIGNORS["sticky"](members, topics) == {name: spec.owned for name, spec in members.items()}
    uniform = ASSIGNORS["uniform"](members, topics)
    assert [sum(topic_id == ORDERS for topic_id, _ in uniform[each]) for each in "ab"] == [2, 2]


def test_range_deals_blocks_in_the_order_of_members_as_kafka_does() -> None:
    topics = {ORDERS: TopicSpec(10), PAYMENTS: TopicSpec(10)}
    assignment = ASSIGNORS["range"]({each: member(ORDERS, PAYMENTS) for each in "abc"}, topics)
    numbers = {each: sorted(number for topic_id, number in assignment[each] if topic_id == ORDERS) for each in "abc"}
    assert numbers == {"a": [0, 1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}
    assert {number for topic_id, number in assignment["a"] if topic_id == PAYMENTS} == {0, 1, 2, 3}


def test_range_orders_static_members_by_their_instance() -> None:
    members = {
        "z": MemberSpec(frozenset({ORDERS}), instance_id="host-1"),
        "a": MemberSpec(frozenset({ORDERS}), instance_id="host-2"),
    }
    assignment = ASSIGNORS["range"](members, {ORDERS: TopicSpec(3)})
    assert assignment["z"] == {(ORDERS, 0), (ORDERS, 1)}


def test_sticky_gives_a_partition_to_a_member_beside_a_replica() -> None:
    racks = tuple(frozenset({rack}) for rack in ("north", "south") * 3)
    members = {"n": member(ORDERS, rack="north"), "s": member(ORDERS, rack="south")}
    assignment = ASSIGNORS["sticky"](members, {ORDERS: TopicSpec(6, racks)})
    assert assignment == {"n": {(ORDERS, 0), (ORDERS, 2), (ORDERS, 4)}, "s": {(ORDERS, 1), (ORDERS, 3), (ORDERS, 5)}}


def test_sticky_gives_up_what_is_far_first() -> None:
    racks = tuple(frozenset({rack}) for rack in ("south", "north", "south", "north"))
    everything = frozenset((ORDERS, number) for number in range(4))
    members = {"n": member(ORDERS, owned=everything, rack="north"), "s": member(ORDERS, rack="south")}
    assignment = ASSIGNORS["sticky"](members, {ORDERS: TopicSpec(4, racks)})
    assert assignment["s"] == {(ORDERS, 0), (ORDERS, 2)}


def test_racks_do_not_make_shares_uneven_nor_move_what_has_an_owner() -> None:
    racks = tuple(frozenset({"north"}) for _ in range(4))
    members = {"n": member(ORDERS, rack="north"), "s": member(ORDERS, rack="south")}
    topics = {ORDERS: TopicSpec(4, racks)}
    first = ASSIGNORS["sticky"](members, topics)
    assert sizes(first) == [2, 2]
    crossed = {
        "n": member(ORDERS, owned=first["s"], rack="north"),
        "s": member(ORDERS, owned=first["n"], rack="south"),
    }
    assert ASSIGNORS["sticky"](crossed, topics) == {"n": first["s"], "s": first["n"]}


def test_different_subscriptions_are_levelled_along_a_chain() -> None:
    """Member a can give partitions only to b, and b only to c. The steps from a to b and from b to c are both needed,
    although no single step makes the assignment more even."""
    topics = {ORDERS: TopicSpec(3), PAYMENTS: TopicSpec(2), AUDIT: TopicSpec(1)}
    members = {
        "a": member(ORDERS, owned=frozenset((ORDERS, number) for number in range(3))),
        "b": member(ORDERS, PAYMENTS, owned=frozenset((PAYMENTS, number) for number in range(2))),
        "c": member(PAYMENTS, AUDIT, owned=frozenset({(AUDIT, 0)})),
    }
    for name in ("sticky", "uniform"):
        assert sizes(ASSIGNORS[name](members, topics)) == [2, 2, 2]


@pytest.mark.parametrize(("name", "mixed"), [(name, mixed) for name in sorted(ASSIGNORS) for mixed in (False, True)])
def test_a_thousand_members_and_ten_thousand_partitions_are_assigned(name: str, mixed: bool) -> None:
    """The assignment of a large group ends, also if subscriptions differ."""
    topics = {number.to_bytes(16, "big"): TopicSpec(100) for number in range(100)}
    names = sorted(topics)
    members = {
        f"m{number:04}": member(*(names[number % 50 :] if mixed else names)) for number in range(1_000)
    }  # fmt: skip
    assignment = ASSIGNORS[name](members, topics)
    assert sum(sizes(assignment)) == 10_000
    if name != "range":
        assert max(sizes(assignment)) <= 20
