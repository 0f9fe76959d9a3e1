"""The ``sticky`` assignor distributes partitions as evenly as possible, considers racks, and lets members keep their
partitions if possible.

If all members subscribe to the same topics, their numbers of partitions differ by at most one. No assignment that is
equally even moves fewer partitions (``spec.quotas``).

If subscriptions of members differ, the assignment is as even as possible. Two members' numbers of partitions cannot be
made more equal by moving one partition, or by passing partitions along a chain of members. (An assignment without such
a chain is an optimal semi-matching: Harvey, Ladner, Lovasz, Tamir, *Semi-matchings for bipartite graphs and load
balancing*, 2003.) The algorithm starts with the present owners, so few partitions move, but not provably the fewest.

Racks (KIP-881): a partition without an owner is assigned to a member in the rack of a replica, if the assignment stays
equally even. A member that must give up partitions first gives up the partitions without a replica in the member's
rack. No partition moves only because of a rack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heapreplace

from .spec import Assignment, Members, Part, Topics, kept_by_owner, parts_of, quotas, subscribe_to_the_same


def assign(members: Members, topics: Topics) -> Assignment:
    """Assign every partition of the subscribed topics to one member that subscribes to it."""
    if not members:
        return {}
    kept = kept_by_owner(members, topics)
    if subscribe_to_the_same(members):
        _even(members, topics, kept)
    else:
        _as_even_as_can_be(members, topics, kept)
    return {name: frozenset(parts) for name, parts in kept.items()}


# -- equal subscriptions ----------------------------------------------------------------------------------------------


def _even(members: Members, topics: Topics, shares: dict[str, set[Part]]) -> None:
    wanted = next(iter(members.values())).topics
    everything = list(parts_of(topics, wanted))
    quota = quotas({name: len(parts) for name, parts in shares.items()}, len(everything))
    for name, parts in shares.items():
        parts.difference_update(_to_give_up(members[name].rack, topics, parts, len(parts) - quota[name]))
    taken = set().union(*shares.values())
    homeless = [part for part in everything if part not in taken]
    room = {name: quota[name] - len(parts) for name, parts in shares.items()}
    _deal(members, topics, shares, homeless, room)


def _to_give_up(rack: str | None, topics: Topics, parts: Iterable[Part], count: int) -> list[Part]:
    """Choose ``count`` partitions that a member gives up. Partitions without a replica in the member's rack come first;
    among equals, the highest partition numbers come first."""
    if count <= 0:
        return []
    return sorted(parts, key=lambda part: (topics[part[0]].is_near(part[1], rack), -part[1], part[0]))[:count]


def _deal(
    members: Members, topics: Topics, shares: dict[str, set[Part]], homeless: list[Part], room: dict[str, int]
) -> None:
    """Assign each partition without an owner to a member that has fewer partitions than its quota (``room`` has the
    difference). The partitions with the fewest members in the racks of their replicas are assigned first."""
    by_rack: dict[str, list[str]] = {}
    for name in sorted(members):
        if (rack := members[name].rack) is not None and room[name] > 0:
            by_rack.setdefault(rack, []).append(name)
    far = []
    near: list[tuple[int, Part, list[str]]] = []
    for part in homeless:
        racks = topics[part[0]].racks_of(part[1])
        names = [name for rack in sorted(racks) for name in by_rack.get(rack, ())]
        if names:
            near.append((len(names), part, names))
        else:
            far.append(part)
    for _, part, names in sorted(near):
        name = max(names, key=lambda each: room[each])
        if room[name] > 0:
            shares[name].add(part)
            room[name] -= 1
        else:
            far.append(part)
    # Deal the partitions to the members one by one, so that the partitions of a topic are spread.
    turns = deque(name for name in sorted(members, key=lambda each: (-room[each], each)) if room[name] > 0)
    for part in sorted(far):
        name = turns.popleft()
        shares[name].add(part)
        room[name] -= 1
        if room[name] > 0:
            turns.append(name)


# -- different subscriptions ------------------------------------------------------------------------------------------


def _as_even_as_can_be(members: Members, topics: Topics, shares: dict[str, set[Part]]) -> None:
    subscribers: dict[bytes, list[str]] = {}
    for name in sorted(members):
        for topic_id in members[name].topics:
            if topic_id in topics:
                subscribers.setdefault(topic_id, []).append(name)
    taken = set().union(*shares.values())
    homeless = [part for part in parts_of(topics, frozenset(subscribers)) if part not in taken]
    by_topic: dict[bytes, list[Part]] = {}
    for part in homeless:
        by_topic.setdefault(part[0], []).append(part)
    # Partitions with the fewest possible owners come first.
    for topic_id in sorted(by_topic, key=lambda each: (len(subscribers[each]), each)):
        _give_to_the_poorest(members, topics, shares, by_topic[topic_id], subscribers[topic_id])
    _level(members, topics, shares, subscribers)


def _give_to_the_poorest(
    members: Members, topics: Topics, shares: dict[str, set[Part]], parts: list[Part], subscribers: list[str]
) -> None:
    """Assign each partition of a topic to the subscriber with the fewest partitions; among equal subscribers, to a
    subscriber in the rack of a replica."""
    everybody = [(len(shares[name]), name) for name in subscribers]
    by_rack: dict[str | None, list[tuple[int, str]]] = {}
    for entry in everybody:
        by_rack.setdefault(members[entry[1]].rack, []).append(entry)
    heapify(everybody)
    for heap in by_rack.values():
        heapify(heap)
    for part in parts:
        name = _poorest(everybody, shares)
        racks = topics[part[0]].racks_of(part[1])
        near = [_poorest(by_rack[rack], shares) for rack in sorted(racks) if rack in by_rack]
        name = min([name, *near], key=lambda each: (len(shares[each]), each not in near, each))
        shares[name].add(part)


def _poorest(heap: list[tuple[int, str]], shares: Mapping[str, set[Part]]) -> str:
    """The member with the fewest partitions. During an assignment the members' numbers of partitions only grow. An
    outdated entry of the heap therefore has too small a number, and is pushed again with the present number."""
    while True:
        size, name = heap[0]
        if size == len(shares[name]):
            return name
        heapreplace(heap, (len(shares[name]), name))


def _level(
    members: Members, topics: Topics, shares: dict[str, set[Part]], subscribers: Mapping[bytes, list[str]]
) -> None:
    """Pass partitions along chains of members until no chain makes the members' numbers of partitions more alike.

    The search for chains starts with the member that has the most partitions. If no chain begins at the member with the
    most partitions, all members in its reach have at most one partition fewer. The reach of a member without a chain is
    closed: no other member subscribes to a partition of a member in the reach. As a result, members in the reach of an
    owner without a chain can get no chain later.
    """
    finished: set[str] = set()
    while True:
        giver = max(
            (name for name in shares if name not in finished), key=lambda each: (len(shares[each]), each), default=None
        )
        if giver is None:
            return
        chain, reached = _chain(giver, shares, subscribers)
        if not chain:
            finished |= reached
            continue
        for source, topic_id, target in chain:
            mine = [part for part in shares[source] if part[0] == topic_id]
            part = min(
                mine,
                key=lambda each: (
                    topics[topic_id].is_near(each[1], members[source].rack),
                    not topics[topic_id].is_near(each[1], members[target].rack),
                    -each[1],
                ),
            )
            shares[source].remove(part)
            shares[target].add(part)


def _chain(
    giver: str, shares: Mapping[str, set[Part]], subscribers: Mapping[bytes, list[str]]
) -> tuple[list[tuple[str, bytes, str]], set[str]]:
    """Shortest chain of (from, topic, to), last link first, from ``giver`` to a member with at least two partitions
    fewer. If no chain exists, the result is all members that chains reach, including the giver. The search for a chain
    is breadth first and visits each topic once."""
    came: dict[str, tuple[str, bytes]] = {}
    seen_topics: set[bytes] = set()
    queue = deque([giver])
    most = len(shares[giver]) - 2
    while queue:
        source = queue.popleft()
        for topic_id in sorted({part[0] for part in shares[source]} - seen_topics):
            seen_topics.add(topic_id)
            fresh = [name for name in subscribers[topic_id] if name not in came and name != giver]
            came.update(dict.fromkeys(fresh, (source, topic_id)))
            queue.extend(fresh)
            poorest = min(fresh, key=lambda name: (len(shares[name]), name), default=None)
            if poorest is not None and len(shares[poorest]) <= most:
                return _links(giver, poorest, came), set()
    return [], {giver, *came}


def _links(giver: str, last: str, came: Mapping[str, tuple[str, bytes]]) -> list[tuple[str, bytes, str]]:
    links = []
    target = last
    while target != giver:
        source, topic_id = came[target]
        links.append((source, topic_id, target))
        target = source
    return links
