"""Arguments and results of assignors. An assignment depends only on the assignor's arguments: the same members and
topics, in any order, give the same assignment.

Source: KIP-848 (server-side assignors; ``uniform`` and ``range`` are Kafka's names).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

Part = tuple[bytes, int]  #: (topic id, partition number)
Parts = frozenset[Part]
NOTHING: Parts = frozenset()

Assignment = dict[str, Parts]  #: Maps a member id to the member's partitions; every member has an entry.


class MemberSpec(NamedTuple):
    """A member. ``owned``: the partitions assigned to the member until now, which the member should keep if possible.
    ``instance_id``: the name of a static member, which stays the same when the member's process restarts."""

    topics: frozenset[bytes]
    owned: Parts = NOTHING
    rack: str | None = None
    instance_id: str | None = None


class TopicSpec(NamedTuple):
    """A topic. ``racks``: for each partition, the racks of its replicas. Partitions beyond the end of ``racks`` have
    unknown racks."""

    partitions: int
    racks: tuple[frozenset[str], ...] = ()

    def is_near(self, number: int, rack: str | None) -> bool:
        """Whether the partition has a replica in the rack."""
        return rack is not None and rack in self.racks_of(number)

    def racks_of(self, number: int) -> frozenset[str]:
        return self.racks[number] if number < len(self.racks) else frozenset()


Members = Mapping[str, MemberSpec]
Topics = Mapping[bytes, TopicSpec]
Assignor = Callable[[Members, Topics], Assignment]


def parts_of(topics: Topics, wanted: frozenset[bytes]) -> Iterator[Part]:
    """The existing partitions of the wanted topics, in order."""
    for topic_id in sorted(wanted):
        if (topic := topics.get(topic_id)) is not None:
            yield from ((topic_id, number) for number in range(topic.partitions))


def kept_by_owner(members: Members, topics: Topics) -> dict[str, set[Part]]:
    """The partitions that each member may keep: existing partitions that the member owns and subscribes to. If two
    members own a partition, the member whose name comes first keeps the partition."""
    taken: set[Part] = set()
    kept: dict[str, set[Part]] = {}
    for name in sorted(members):
        member = members[name]
        mine = {
            part
            for part in member.owned
            if part[0] in member.topics
            and (topic := topics.get(part[0])) is not None
            and 0 <= part[1] < topic.partitions
            and part not in taken
        }
        taken |= mine
        kept[name] = mine
    return kept


def subscribe_to_the_same(members: Members) -> bool:
    return len({member.topics for member in members.values()}) <= 1


def quotas(held: Mapping[str, int], total: int) -> dict[str, int]:
    """Quota of each member out of ``total``; the quotas of any two members differ by at most one. The members that own
    the most partitions get the larger quotas, so the fewest partitions move: each member keeps min(``held``, quota)."""
    least, odd = divmod(total, len(held))
    order = sorted(held, key=lambda name: (-held[name], name))
    return {name: least + (place < odd) for place, name in enumerate(order)}
