"""The ``uniform`` assignor distributes the partitions of each topic evenly, and also the partitions of all topics
together. With the ``uniform`` assignor, members keep their partitions as far as possible. ``uniform`` is the default
assignor.

If all members subscribe to the same topics, their numbers of partitions *of each topic* differ by at most one. The
total numbers of partitions of any two members also differ by at most one. (``sticky`` evens out only the totals, so it
moves fewer partitions, but one member may own all partitions of a busy topic.) A topic with n partitions gives each of
m members n // m *seats*, and n % m of the members one *odd* seat more. Odd seats are first given to members that would
otherwise lose a partition, and are then passed on until the members' totals are even.

If subscriptions of members differ, ``uniform`` gives the same assignment as ``sticky`` without racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from . import sticky
from .spec import Assignment, Members, Part, Topics, kept_by_owner, subscribe_to_the_same


def assign(members: Members, topics: Topics) -> Assignment:
    """Assign every partition of the subscribed topics to one member that subscribes to it."""
    if not members:
        return {}
    if not subscribe_to_the_same(members):
        return sticky.assign({name: member._replace(rack=None) for name, member in members.items()}, topics)
    wanted = next(iter(members.values())).topics
    sizes = {topic_id: topics[topic_id].partitions for topic_id in sorted(wanted) if topic_id in topics}
    kept = kept_by_owner(members, topics)
    held = Counter((name, part[0]) for name, parts in kept.items() for part in parts)
    names = sorted(members)
    odd = _odd_seats(names, sizes, held)
    for name, parts in kept.items():
        _give_up(parts, {topic_id: size // len(names) + (name in odd[topic_id]) for topic_id, size in sizes.items()})
    taken = set().union(*kept.values())
    held = Counter((name, part[0]) for name, parts in kept.items() for part in parts)
    for topic_id, size in sizes.items():
        least = size // len(names)
        free = iter([number for number in range(size) if (topic_id, number) not in taken])
        for name in names:
            for _ in range(least + (name in odd[topic_id]) - held[name, topic_id]):
                kept[name].add((topic_id, next(free)))
    return {name: frozenset(parts) for name, parts in kept.items()}


def _give_up(parts: set[Part], seats: Mapping[bytes, int]) -> None:
    """Remove the partitions that exceed the member's seats in each topic, highest numbers first."""
    used: Counter[bytes] = Counter()
    for part in sorted(parts):
        used[part[0]] += 1
        if used[part[0]] > seats[part[0]]:
            parts.remove(part)


def _odd_seats(
    names: list[str], sizes: Mapping[bytes, int], held: Mapping[tuple[str, bytes], int]
) -> dict[bytes, set[str]]:
    """For each topic, the members that get one more partition of the topic than the other members. The numbers of odd
    seats of any two members differ by at most one."""
    seats: Counter[str] = Counter(dict.fromkeys(names, 0))
    odd: dict[bytes, set[str]] = {}
    for topic_id, size in sizes.items():
        least, extra = divmod(size, len(names))
        # Members that would lose a partition without an extra partition come first, then members with the fewest extra
        # partitions.
        order = sorted(names, key=lambda name: (held.get((name, topic_id), 0) <= least, seats[name], name))
        odd[topic_id] = set(order[:extra])
        seats.update(order[:extra])
    while True:
        rich = max(names, key=lambda name: (seats[name], name))
        poor = min(names, key=lambda name: (seats[name], name))
        if seats[rich] - seats[poor] <= 1:
            return odd
        # The member ``rich`` has extra partitions of more topics than ``poor``; in one of the topics, ``poor`` has no
        # extra partition. Pass the extra partition of the chosen topic from ``rich`` to ``poor``.
        topic_id = min(
            (topic_id for topic_id, sitting in odd.items() if rich in sitting and poor not in sitting),
            key=lambda each: (_moves(rich, poor, each, sizes[each] // len(names), held), each),
        )
        odd[topic_id] ^= {rich, poor}
        seats[rich] -= 1
        seats[poor] += 1


def _moves(rich: str, poor: str, topic_id: bytes, least: int, held: Mapping[tuple[str, bytes], int]) -> int:
    """How many more partitions move if ``rich`` passes its odd seat to ``poor``. The result is 1 if only ``rich`` owns
    a partition for the seat, -1 if only ``poor`` does, else 0."""
    return (held.get((rich, topic_id), 0) > least) - (held.get((poor, topic_id), 0) > least)
