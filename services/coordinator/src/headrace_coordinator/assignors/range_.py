"""The ``range`` assignor: partitions with the same number are assigned to the same member, so that topics can be
joined.

Topics with the same number of partitions and the same subscribers form a class. In a class of topics, each partition
*number* is assigned to one member for all topics. The numbers of partitions of any two members in a class of topics
differ by at most one. In a new group each member gets a block of consecutive numbers. Members are sorted by instance
id, and members without an instance id by member id, as in Kafka's RangeAssignor. After a change of members, each member
keeps its partition numbers as far as possible. The blocks of kept numbers may have gaps, but as few numbers as possible
move.
"""

from __future__ import annotations

from collections import Counter

from .spec import Assignment, Members, Part, Topics, quotas


def assign(members: Members, topics: Topics) -> Assignment:
    """Assign every partition of the subscribed topics to one member that subscribes to it."""
    order = sorted(members, key=lambda name: (members[name].instance_id or name, name))
    classes: dict[tuple[int, tuple[str, ...]], list[bytes]] = {}
    for topic_id in sorted(topics):
        subscribers = tuple(name for name in order if topic_id in members[name].topics)
        if subscribers:
            classes.setdefault((topics[topic_id].partitions, subscribers), []).append(topic_id)
    shares: dict[str, set[Part]] = {name: set() for name in members}
    for (size, subscribers), topic_ids in classes.items():
        for number, name in enumerate(_numbers(members, subscribers, topic_ids, size)):
            shares[name].update((topic_id, number) for topic_id in topic_ids)
    return {name: frozenset(parts) for name, parts in shares.items()}


def _numbers(members: Members, subscribers: tuple[str, ...], topic_ids: list[bytes], size: int) -> list[str]:
    """The member that owns each partition number."""
    owners: list[str | None] = [None] * size
    in_class = set(topic_ids)
    claims: list[Counter[str]] = [Counter() for _ in range(size)]
    for name in subscribers:
        for topic_id, number in members[name].owned:
            if topic_id in in_class and 0 <= number < size:
                claims[number][name] += 1
    for number, claim in enumerate(claims):
        if claim:
            owners[number] = min(claim, key=lambda name: (-claim[name], name))
    if all(owner is None for owner in owners):
        least, odd = divmod(size, len(subscribers))
        return [name for place, name in enumerate(subscribers) for _ in range(least + (place < odd))]
    held: Counter[str] = Counter(dict.fromkeys(subscribers, 0))
    held.update(owner for owner in owners if owner is not None)
    room = quotas(held, size)
    done: list[str | None] = []
    for owner in owners:  # every owner keeps its first partitions
        keeps = owner is not None and room[owner] > 0
        done.append(owner if keeps else None)
        if keeps:
            assert owner is not None
            room[owner] -= 1
    free = (name for name in subscribers for _ in range(room[name]))
    return [next(free) if owner is None else owner for owner in done]
