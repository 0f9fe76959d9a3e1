"""Placement of new replicas: evenly over brokers, and over as many racks as possible.

The preferred leader of each partition is placed on the broker that leads the fewest partitions (of the topic first,
then of all topics). Each further replica is placed in a rack without a replica of the same partition. Within a rack,
the replica is placed on the broker with the fewest replicas (of the topic first, then of all topics). The counts of a
placement start from the image's ``loads``, so many topics with one partition balance as well as one large topic. At the
end of a placement, moving followers evens out the remaining imbalance. The placement uses no randomness. Brokers with
equal counts are taken in a fixed order, which is rotated for each leader. Without the rotation, all partitions of one
leader would have the same followers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace_core.errors import InvalidReplicationFactorError
from headrace_core.metadata import BrokerImage, BrokerLoad
from headrace_core.plurals import counted

#: Maximum number of attempts to place one topic's replicas evenly: with uneven racks there may be no solution.
_LOOKS_MAX = 20_000


class _Slot:
    """A broker during a placement, with its replica counts of the placed topic and of all topics."""

    __slots__ = ("broker_id", "leaders", "rack", "replicas", "topic_leaders", "topic_replicas")

    def __init__(self, broker: BrokerImage, load: BrokerLoad) -> None:
        self.broker_id = broker.broker_id
        self.rack = broker.rack
        self.replicas = load.replicas
        self.leaders = load.preferred_leaders
        self.topic_replicas = 0
        self.topic_leaders = 0

    def count(self, replicas: int) -> None:
        """Add ``replicas`` to both replica counts; a negative number subtracts."""
        self.replicas += replicas
        self.topic_replicas += replicas


class Placer:
    """Places the partitions of one decision, and counts the replicas that it has placed."""

    def __init__(self, brokers: Sequence[BrokerImage], loads: Mapping[int, BrokerLoad]) -> None:
        """``brokers`` are the brokers that may take replicas."""
        self._slots = [_Slot(broker, loads.get(broker.broker_id, BrokerLoad())) for broker in brokers]
        self._rack_of: dict[int, str | int] = {slot.broker_id: slot.rack or slot.broker_id for slot in self._slots}

    def begin_topic(self, placed: Sequence[Sequence[int]] = ()) -> None:
        """Start the next topic, of which the partitions ``placed`` (replicas, leader first) exist already."""
        by_id = {slot.broker_id: slot for slot in self._slots}
        for slot in self._slots:
            slot.topic_replicas = slot.topic_leaders = 0
        for replicas in placed:
            for position, broker_id in enumerate(replicas):
                slot_or_none = by_id.get(broker_id)
                if slot_or_none is not None:
                    slot_or_none.topic_replicas += 1
                    slot_or_none.topic_leaders += position == 0

    def place_all(self, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Replicas of the next partitions, chosen as in ``place``. The replica counts of any two brokers differ by at
        most one where the racks permit it."""
        placed = [self.place(replication_factor) for _ in range(partitions)]
        self._even_out(placed)
        return placed

    def place(self, replication_factor: int) -> tuple[int, ...]:
        """Replicas of the topic's next partition, preferred leader first. Raises InvalidReplicationFactorError if there
        are too few brokers."""
        slots = self._slots
        if not 1 <= replication_factor <= len(slots):
            raise too_few_brokers(replication_factor, [slot.broker_id for slot in slots])
        first = min(
            range(len(slots)),
            key=lambda i: (slots[i].topic_leaders, slots[i].leaders, slots[i].topic_replicas, slots[i].replicas, i),
        )
        chosen = [first]
        racks = {slots[first].rack}
        while len(chosen) < replication_factor:
            best = min((i for i in range(len(slots)) if i not in chosen), key=self._follower_order(first, racks))
            chosen.append(best)
            racks.add(slots[best].rack)
        for position, index in enumerate(chosen):
            slot = slots[index]
            slot.replicas += 1
            slot.topic_replicas += 1
            slot.leaders += position == 0
            slot.topic_leaders += position == 0
        return tuple(slots[index].broker_id for index in chosen)

    def _even_out(self, placed: list[tuple[int, ...]]) -> None:
        """Change followers in ``placed``, which are all counted already, until the replica counts of the brokers are
        even. In the result, any two brokers differ by at most one in replicas of the topic. A broker with one more
        replica of the topic than another broker has at most one more replica of all topics than that broker."""
        followed: dict[int, list[int]] = {}
        for number, replicas in enumerate(placed):
            for broker_id in replicas[1:]:
                followed.setdefault(broker_id, []).append(number)
        looks = _LOOKS_MAX
        moved = True
        while moved:
            moved = False
            for giver, taker in _uneven_pairs(self._slots):
                numbers = followed.get(giver.broker_id, [])
                looks -= len(numbers)
                number = next((each for each in numbers if self._may_follow(taker, giver, placed[each])), -1)
                if number >= 0:
                    numbers.remove(number)
                    followed.setdefault(taker.broker_id, []).append(number)
                    placed[number] = _replaced(placed[number], giver.broker_id, taker.broker_id)
                    giver.count(-1)
                    taker.count(+1)
                    moved = True
                    break
                if looks < 0:
                    return

    def _may_follow(self, taker: _Slot, giver: _Slot, replicas: tuple[int, ...]) -> bool:
        """Whether ``taker`` may replace ``giver`` in ``replicas``: ``taker`` has no replica yet, and the replicas are
        then in no fewer racks."""
        after = _replaced(replicas, giver.broker_id, taker.broker_id)
        return taker.broker_id not in replicas and len(self._racks(after)) >= len(self._racks(replicas))

    def _racks(self, replicas: Sequence[int]) -> set[str | int]:
        """Racks of ``replicas``. A broker without a rack counts as a rack by itself."""
        return {self._rack_of[each] for each in replicas if each in self._rack_of}

    def _follower_order(self, leader: int, racks: set[str | None]) -> Callable[[int], tuple[bool, int, int, int]]:
        slots = self._slots
        # Rotate the order of the followers by one more for each further partition of the topic with the same leader.
        turn = slots[leader].topic_leaders

        def order(i: int) -> tuple[bool, int, int, int]:
            slot = slots[i]
            # Brokers without a rack are independent of each other, so a missing rack never counts as a used rack.
            used = slot.rack is not None and slot.rack in racks
            return used, slot.topic_replicas, slot.replicas, (i - leader - 1 - turn) % len(slots)

        return order


def _uneven_pairs(slots: Sequence[_Slot]) -> Iterator[tuple[_Slot, _Slot]]:
    """(has more, has less), most uneven first."""
    by_load = sorted(slots, key=lambda slot: (slot.topic_replicas, slot.replicas))
    for giver in reversed(by_load):
        for taker in by_load:
            of_topic, of_all = giver.topic_replicas - taker.topic_replicas, giver.replicas - taker.replicas
            if of_topic >= 2 or (of_topic == 1 and of_all >= 2):
                yield giver, taker
            elif of_topic <= 0:
                break


def _replaced(replicas: tuple[int, ...], gone: int, comes: int) -> tuple[int, ...]:
    return tuple(comes if each == gone else each for each in replicas)


def too_few_brokers(replication_factor: int, alive: Sequence[int]) -> InvalidReplicationFactorError:
    """The error for a replication factor above the number of ``alive`` brokers."""
    named = f"{len(alive)} {'is' if len(alive) == 1 else 'are'} alive (broker {', '.join(map(str, alive))})"
    return InvalidReplicationFactorError(
        f"replication factor {replication_factor} needs {counted(replication_factor, 'broker')}, "
        f"{named if alive else 'none is alive'}; start more brokers, or ask for fewer replicas"
    )
