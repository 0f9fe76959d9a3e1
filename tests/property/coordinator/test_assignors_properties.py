"""Rules of every assignment for any members and topics, and the further guarantees of each assignor."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.assignors import ASSIGNORS, Assignment, Members, MemberSpec, Topics, TopicSpec

TOPIC_IDS = [bytes([number]) * 16 for number in range(5)]
RACKS = ["a", "b", "c"]
every_assignor = pytest.mark.parametrize("name", sorted(ASSIGNORS))

topic_specs = st.integers(0, 7).flatmap(
    lambda count: st.builds(
        TopicSpec,
        st.just(count),
        st.just(()) | st.lists(st.frozensets(st.sampled_from(RACKS)), min_size=count, max_size=count).map(tuple),
    )
)
worlds = st.dictionaries(st.sampled_from(TOPIC_IDS), topic_specs, max_size=4)
#: Claimed ownership: of topics and partitions that may not exist, or that another member also owns.
owned = st.frozensets(st.tuples(st.sampled_from(TOPIC_IDS), st.integers(-1, 8)), max_size=12)


@st.composite
def groups(draw: st.DrawFn, *, alike: bool) -> dict[str, MemberSpec]:
    names = draw(st.lists(st.sampled_from([f"m{number}" for number in range(8)]), unique=True, min_size=1, max_size=6))
    subscriptions = st.frozensets(st.sampled_from(TOPIC_IDS), max_size=4)
    same = draw(subscriptions)
    return {
        name: MemberSpec(
            same if alike else draw(subscriptions), draw(owned), draw(st.none() | st.sampled_from([*RACKS, "d"]))
        )
        for name in names
    }


any_group = st.booleans().flatmap(lambda alike: groups(alike=alike))


def wanted(members: Members, topics: Topics) -> set[tuple[bytes, int]]:
    subscribed = {topic_id for member in members.values() for topic_id in member.topics}
    return {
        (topic_id, number)
        for topic_id, topic in topics.items()
        if topic_id in subscribed
        for number in range(topic.partitions)
    }


def counts(assignment: Assignment) -> list[int]:
    return sorted(len(parts) for parts in assignment.values())


def owning(members: Members, assignment: Assignment) -> dict[str, MemberSpec]:
    return {name: member._replace(owned=assignment[name]) for name, member in members.items()}


@every_assignor
@given(members=any_group, topics=worlds)
def test_every_partition_has_one_reader_that_subscribes_to_it(name: str, members: Members, topics: Topics) -> None:
    assignment = ASSIGNORS[name](members, topics)
    assert assignment.keys() == members.keys()
    given_out = [part for parts in assignment.values() for part in parts]
    assert len(given_out) == len(set(given_out)), "a partition is read twice"
    assert set(given_out) == wanted(members, topics)
    for member, parts in assignment.items():
        assert {topic_id for topic_id, _ in parts} <= members[member].topics


@every_assignor
@given(members=any_group, topics=worlds, chance=st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(name: str, members: Members, topics: Topics, chance) -> None:
    shuffled = list(members.items())
    chance.shuffle(shuffled)
    assert ASSIGNORS[name](dict(shuffled), dict(reversed(topics.items()))) == ASSIGNORS[name](members, topics)


@every_assignor
@given(members=any_group, topics=worlds)
def test_who_is_assigned_anew_without_a_reason_keeps_everything(name: str, members: Members, topics: Topics) -> None:
    first = ASSIGNORS[name](members, topics)
    assert ASSIGNORS[name](owning(members, first), topics) == first


@pytest.mark.parametrize("name", ["uniform", "sticky"])
@given(members=groups(alike=True), topics=worlds)
def test_equal_subscriptions_get_equal_shares_to_within_one(name: str, members: Members, topics: Topics) -> None:
    shares = counts(ASSIGNORS[name](members, topics))
    assert shares[-1] - shares[0] <= 1


@pytest.mark.parametrize("name", ["uniform", "range"])
@given(members=groups(alike=True), topics=worlds)
def test_each_topic_is_even_to_within_one(name: str, members: Members, topics: Topics) -> None:
    assignment = ASSIGNORS[name](members, topics)
    for topic_id in topics:
        shares = counts(
            {member: frozenset(part for part in parts if part[0] == topic_id) for member, parts in assignment.items()}
        )
        assert shares[-1] - shares[0] <= 1


def fewest_moves(members: Members, topics: Topics) -> int:
    """The minimum number of partitions that must leave their owner for an even assignment. The function tries all even
    assignments."""
    claimed: set[tuple[bytes, int]] = set()
    held = []
    everything = wanted(members, topics)
    for name in sorted(members):
        mine = (members[name].owned & everything) - claimed
        claimed |= mine
        held.append(len(mine))
    least, odd = divmod(len(everything), len(members))
    kept = max(
        sum(min(have, least + (place in lucky)) for place, have in enumerate(held))
        for lucky in itertools.combinations(range(len(held)), odd)
    )
    return sum(held) - kept


@given(members=groups(alike=True), topics=worlds)
def test_sticky_moves_the_fewest_that_an_even_assignment_allows(members: Members, topics: Topics) -> None:
    assignment = ASSIGNORS["sticky"](members, topics)
    everything = wanted(members, topics)
    claimed: set[tuple[bytes, int]] = set()
    moved = 0
    for name in sorted(members):
        mine = (members[name].owned & everything) - claimed
        claimed |= mine
        moved += len(mine - assignment[name])
    assert moved == fewest_moves(members, topics)


small_topics = st.dictionaries(st.sampled_from(TOPIC_IDS[:3]), st.integers(0, 2).map(TopicSpec), max_size=3)
small_subscriptions = st.frozensets(st.sampled_from(TOPIC_IDS[:3]), max_size=3)
small_groups = st.dictionaries(
    st.sampled_from(["m1", "m2", "m3"]), st.builds(MemberSpec, small_subscriptions, owned, st.none()), min_size=1
)


@pytest.mark.parametrize("name", ["uniform", "sticky"])
@given(members=small_groups, topics=small_topics)
def test_different_subscriptions_get_the_most_even_shares_there_are(
    name: str, members: Members, topics: Topics
) -> None:
    """The largest share is as small as possible, then the second largest, and so on. The test compares with all
    possible assignments."""
    parts = sorted(wanted(members, topics))
    readers = [[member for member in sorted(members) if topic_id in members[member].topics] for topic_id, _ in parts]
    empty = dict.fromkeys(members, 0)
    best = min(sorted((empty | Counter(choice)).values(), reverse=True) for choice in itertools.product(*readers))
    assert counts(ASSIGNORS[name](members, topics)) == best[::-1]


@given(
    members=groups(alike=True), topics=st.dictionaries(st.sampled_from(TOPIC_IDS), st.just(TopicSpec(5)), min_size=2)
)
def test_range_gives_the_same_number_of_every_topic_to_the_same_member(members: Members, topics: Topics) -> None:
    readers: dict[int, set[str]] = {}
    for member, parts in ASSIGNORS["range"](members, topics).items():
        for _, number in parts:
            readers.setdefault(number, set()).add(member)
    assert all(len(each) == 1 for each in readers.values())


@every_assignor
@given(
    partitions=st.integers(1, 30), before=st.integers(1, 8), joined=st.integers(0, 8), left=st.integers(0, 7)
)  # fmt: skip
def test_of_one_topic_only_what_must_move_moves(
    name: str, partitions: int, before: int, joined: int, left: int
) -> None:
    """Members join and leave: a remaining member revokes only its surplus, and gets only unowned partitions."""
    topics = {TOPIC_IDS[0]: TopicSpec(partitions)}
    subscribed = frozenset(topics)
    members = {f"m{number:02}": MemberSpec(subscribed) for number in range(before)}
    first = ASSIGNORS[name](members, topics)
    after = {f"m{number:02}": MemberSpec(subscribed) for number in range(min(left, before - 1), before + joined)}
    after = {member: spec._replace(owned=first.get(member, frozenset())) for member, spec in after.items()}
    second = ASSIGNORS[name](after, topics)
    moved = sum(len(spec.owned - second[member]) for member, spec in after.items())
    assert moved == fewest_moves(after, topics)
