"""Plan which replicas move when brokers join or leave the cluster. The planner is pure, and makes the whole plan with
as few moves as possible.

    divert    redirect replicas that are on their way to a draining broker
    drain     move each replica of a draining broker to the broker with the fewest replicas; if possible, to one
              that does not bring two replicas of the partition into one rack
    fill      move replicas to brokers below their share (all replicas / all brokers, rounded down), from the brokers
              with most replicas; never more moves than replicas were missing
    lead      even out preferred leaders by changing the order of replicas, which moves no data: first over all
              partitions, then within each topic (topics differ in load) as far as the first permits

A new replica takes the position of the replica that it replaces, so the preferred leadership moves with the replica.
Partitions that are already moving are left out of the plan; ``fill`` and ``lead`` also leave out unhealthy partitions.
Fenced brokers keep their replicas and get no new ones, so a restart causes no moves. Source: the replica and leader
distribution goals of Cruise Control. Cruise Control's load model is not used: all replicas count alike.

The planned moves are queued; ``reassignment.py`` starts a few at a time, and ``balancing.py`` decides when to plan.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace_core.metadata import BrokerImage, MetadataImage, PartitionImage
from headrace_core.types import NO_LEADER

Key = tuple[bytes, int]  #: (topic id, partition number)

_Edges = dict[int, dict[int, dict[Key, None]]]  #: leader -> another replica -> the partitions that both have

#: Maximum number of a broker's replicas that are examined before the best of them is moved; topics are then spread
#: well, not perfectly.
_CANDIDATES_MAX = 64


@dataclass(frozen=True, slots=True)
class Move:
    """A planned move: the replicas that a partition will have, preferred leader first."""

    topic_id: bytes
    partition: int
    targets: tuple[int, ...]


def plan(image: MetadataImage, *, fill: bool, moves_max: int) -> list[Move]:
    """Plan at most ``moves_max`` moves; with ``fill`` False, only the moves of drains.

    All planned moves are valid together on ``image``. The targets of a move are distinct, and added targets are active
    and not being drained. Each partition keeps its number of replicas and, if possible, its number of racks.
    """
    planner = _Planner(image, moves_max)
    draining = [broker for broker in sorted(image.brokers) if image.brokers[broker].draining]
    for broker in draining:
        planner.divert(broker)
    for broker in draining:
        planner.drain(broker)
    if fill:
        planner.fill()
        planner.lead()
    return planner.moves()


def planned_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas that a partition will have after its reassignment in progress."""
    if not partition.removing:
        return partition.replicas
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


class _Planner:
    """Collects changes of replicas, and counts the replicas that each broker would have after the changes."""

    def __init__(self, image: MetadataImage, moves_max: int) -> None:
        self._image = image
        self._moves_max = moves_max
        self._takers: dict[int, BrokerImage] = {each.broker_id: each for each in image.placeable_brokers()}
        self._changed: dict[Key, tuple[int, ...]] = {}
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        self._by_topic: dict[bytes, Counter[int]] = {}
        self._leaders_by_topic: dict[bytes, Counter[int]] = {}
        self._count()

    def moves(self) -> list[Move]:
        return [
            Move(topic_id, number, targets)
            for (topic_id, number), targets in self._changed.items()
            if targets != planned_replicas(self._image.topics[topic_id].partitions[number])
        ]

    def divert(self, broker_id: int) -> None:
        """Redirect replicas that are being moved to the broker ``broker_id``. For each partition, either all replicas
        that move to draining brokers are redirected, or none. A move to a draining broker would not begin
        (reassignment.py), and would be planned again and again."""
        for topic, number, partition in self._image.partitions_on(broker_id):
            key = (topic.topic_id, number)
            if len(self._changed) >= self._moves_max:
                return
            if broker_id not in partition.adding or not self._may_leave(key, partition):
                continue
            before = after = self._now(key, partition)
            for gone in self._lost(partition, before):
                taker = self._best_taker(after, gone, partition.removing)
                if taker is not None:
                    after = tuple(taker if replica == gone else replica for replica in after)
            if not self._lost(partition, after):
                self._put(key, before, after)

    def _lost(self, partition: PartitionImage, replicas: Sequence[int]) -> list[int]:
        """The members of ``replicas`` that are being added on a draining broker."""
        brokers = self._image.brokers
        return [each for each in replicas if each in partition.adding and each in brokers and brokers[each].draining]

    def _may_leave(self, key: Key, partition: PartitionImage) -> bool:
        """Whether a replica of the partition may move: the partition has a leader to copy from, and no queued move."""
        return partition.leader != NO_LEADER and key not in self._image.ledger.queued

    def drain(self, broker_id: int) -> None:
        """Move the replicas of the broker ``broker_id`` to other brokers. Skips partitions with replicas that are being
        added on a draining broker, which ``divert`` handles first."""
        for topic, number, partition in self._image.partitions_on(broker_id):
            if len(self._changed) >= self._moves_max:
                return
            key = (topic.topic_id, number)
            now = self._now(key, partition)
            if broker_id not in now or self._lost(partition, now) or not self._may_leave(key, partition):
                continue
            taker = self._best_taker(now, broker_id, partition.removing)
            if taker is not None:
                self._replace(key, now, broker_id, taker)

    def _best_taker(self, now: tuple[int, ...], gone: int, leaving: tuple[int, ...]) -> int | None:
        """The broker that replaces ``gone``; None if every candidate already has a replica of the partition. A broker
        whose own replica is ``leaving`` is preferred, because it already has the data."""
        stay = [replica for replica in now if replica != gone]
        racks = self._racks(stay)
        able = [broker for broker in self._takers.values() if broker.broker_id not in now]
        if not able:
            return None
        counted = self._leaders if now[0] == gone else self._replicas
        return min(
            able,
            key=lambda each: (
                each.rack is not None and each.rack in racks,
                each.broker_id not in leaving,
                self._replicas[each.broker_id],
                counted[each.broker_id],
                each.broker_id,
            ),
        ).broker_id

    def fill(self) -> None:
        if not self._takers:
            return
        share = sum(self._replicas[each] for each in self._takers) // len(self._takers)
        hungry = [each for each in sorted(self._takers) if self._replicas[each] < share]
        if not hungry:
            return
        givers = {each: deque[Key]() for each in self._takers if self._replicas[each] > share}
        for key, partition in self._movable():
            for replica in self._now(key, partition):
                if replica in givers and len(givers[replica]) < 8 * self._moves_max:
                    givers[replica].append(key)
        moved = True
        while moved:  # repeat the search: a move may have made a rack available
            moved = self._feed(hungry, givers, share)

    def _feed(self, hungry: Sequence[int], givers: Mapping[int, deque[Key]], share: int) -> bool:
        """Give replicas to the ``hungry`` brokers, those with the fewest replicas first, until all have their share or
        can take no more. Returns whether any replica was moved."""
        moved = False
        able = [each for each in hungry if self._replicas[each] < share]
        while able and len(self._changed) < self._moves_max:
            taker = min(able, key=lambda each: (self._replicas[each], each))
            if self._take_one(taker, givers, share):
                moved = True
                if self._replicas[taker] < share:
                    continue
            able.remove(taker)
        return moved

    def _take_one(self, taker: int, givers: Mapping[int, deque[Key]], share: int) -> bool:
        """Move one replica to ``taker`` from the broker with the most replicas that has a suitable replica. Returns
        False if no broker has a suitable replica."""
        for giver in sorted(givers, key=lambda each: (-self._replicas[each], each)):
            if self._replicas[giver] <= share:
                return False
            best = self._best_key(giver, taker, givers[giver])
            if best is not None:
                givers[giver].remove(best)
                self._replace(best, self._now(best), giver, taker)
                return True
        return False

    def _best_key(self, giver: int, taker: int, keys: deque[Key]) -> Key | None:
        """The partition whose move from ``giver`` to ``taker`` improves the balance most: first of preferred leaders,
        then of the partition's topic."""
        wants_leader = self._leaders[taker] < self._leaders[giver] - 1
        best, best_score = None, (False, -(2**62))
        legal = 0
        for key in keys:
            now = self._now(key)
            if giver not in now or taker in now or not self._keeps_racks(now, giver, taker):
                continue
            of_topic = self._topic_counts(key[0])
            score = ((now[0] == giver) == wants_leader, of_topic[giver] - of_topic[taker])
            if best is None or score > best_score:
                best, best_score = key, score
            legal += 1
            if legal >= _CANDIDATES_MAX:
                break
        return best

    def _keeps_racks(self, now: tuple[int, ...], giver: int, taker: int) -> bool:
        after = [taker if replica == giver else replica for replica in now]
        return len(self._racks(after)) >= len(self._racks(now))

    def lead(self) -> None:
        """Even out the preferred leaders, first over all partitions, then within each topic. The two steps are
        repeated, because evening out within topics may make further changes over all partitions possible. Evening out
        within topics never undoes changes over all partitions, so the repetition ends."""
        if not (self._uneven_leaders() or self._uneven_topics()):
            return
        edges: _Edges = {}
        led: list[Key] = []
        for key, partition in self._movable():
            now = self._now(key, partition)
            if now[0] in self._takers:
                led.append(key)
                self._connect(edges, key, now)
        self._lead_evenly(edges)
        while self._lead_topics_evenly(edges, led):
            self._lead_evenly(edges)

    def _lead_evenly(self, edges: _Edges) -> None:
        """Pass preferred leadership along paths of brokers, from brokers that lead the most partitions to brokers that
        lead the fewest. Stop when no path leads from a broker to another broker that leads at least two partitions
        fewer."""
        for _ in range(self._moves_max):
            path = self._path(edges)
            if path is None or len(self._changed) + len(path) > self._moves_max:
                return
            for leader, follower in itertools.pairwise(path):
                self._hand_over(edges, next(reversed(edges[leader][follower])), follower)

    def _lead_topics_evenly(self, edges: _Edges, keys: Sequence[Key]) -> bool:
        """Pass the leadership of a partition to a follower that leads at least two fewer of the topic's partitions than
        the leader. The leader must lead more partitions in all than the follower, or get the leadership of another
        topic's partition in return. Returns False if no leadership was passed."""
        any_handed = False
        for key in keys:
            of_topic = self._topic_leaders(key[0])
            leader, *others = self._now(key)
            followers = [each for each in others if each in self._takers and of_topic[leader] - of_topic[each] >= 2]
            for follower in sorted(followers, key=lambda each: (of_topic[each], self._leaders[each], each)):
                handed = {key: follower}
                if self._leaders[leader] <= self._leaders[follower]:
                    back = self._way_back(edges, follower, leader, key[0])
                    if back is None:
                        continue
                    handed[back] = leader
                if len(handed.keys() | self._changed.keys()) > self._moves_max:
                    continue
                for each, taker in handed.items():
                    self._hand_over(edges, each, taker)
                any_handed = True
                break
        return any_handed

    def _way_back(self, edges: _Edges, leader: int, follower: int, not_of: bytes) -> Key | None:
        """A partition of another topic whose leadership ``leader`` may pass to ``follower`` without making the other
        topic less even; None if there is none."""
        best, best_more = None, 0
        for key in itertools.islice(edges.get(leader, {}).get(follower, ()), _CANDIDATES_MAX):
            of_topic = self._topic_leaders(key[0])
            more = of_topic[leader] - of_topic[follower]
            if key[0] != not_of and more > best_more:
                best, best_more = key, more
        return best

    def _uneven_leaders(self) -> bool:
        return self._is_uneven(self._leaders)

    def _uneven_topics(self) -> bool:
        return any(self._is_uneven(self._topic_leaders(topic_id)) for topic_id in self._image.topics)

    def _is_uneven(self, counts: Mapping[int, int]) -> bool:
        led = [counts[each] for each in self._takers]
        return bool(led) and max(led) - min(led) > 1

    def _connect(self, edges: _Edges, key: Key, now: tuple[int, ...]) -> None:
        for other in now[1:]:
            if other in self._takers:
                edges.setdefault(now[0], {}).setdefault(other, {})[key] = None

    def _path(self, edges: _Edges) -> list[int] | None:
        """Shortest path to a broker that leads at least two partitions fewer than the first broker of the path. The
        search begins at each broker, one after the other, first at the broker that leads the most partitions. The
        result is None if there is no path."""
        for source in sorted(self._takers, key=lambda each: (-self._leaders[each], each)):
            before = {source: source}
            waiting = deque([source])
            while waiting:
                at = waiting.popleft()
                if self._leaders[at] <= self._leaders[source] - 2:
                    path = [at]
                    while path[-1] != source:
                        path.append(before[path[-1]])
                    return path[::-1]
                for to in sorted(edges.get(at, ())):
                    if edges[at][to] and to not in before:
                        before[to] = at
                        waiting.append(to)
        return None

    def _hand_over(self, edges: _Edges, key: Key, follower: int) -> None:
        """Swap the leader of a partition with ``follower``."""
        now = self._now(key)
        for other in now[1:]:
            if other in self._takers:
                del edges[now[0]][other][key]
        after = tuple({now[0]: follower, follower: now[0]}.get(replica, replica) for replica in now)
        self._connect(edges, key, after)
        self._put(key, now, after)

    def _count(self) -> None:
        ledger = self._image.ledger
        for topic in self._image.topics.values():
            for number, partition in enumerate(topic.partitions):
                replicas = planned_replicas(partition)
                queued = ledger.queued.get((topic.topic_id, number)) if ledger.queued else None
                if queued is not None:
                    replicas = queued.targets
                self._replicas.update(replicas)
                self._leaders[replicas[0]] += 1

    def _movable(self) -> Iterator[tuple[Key, PartitionImage]]:
        """Healthy partitions that have no reassignment in progress or queued."""
        queued = self._image.ledger.queued
        for topic in self._image.topics.values():
            for number, partition in enumerate(topic.partitions):
                if partition.leader == NO_LEADER or len(partition.isr) < len(partition.replicas):
                    continue
                if partition.adding or partition.removing or (topic.topic_id, number) in queued:
                    continue
                yield (topic.topic_id, number), partition

    def _now(self, key: Key, partition: PartitionImage | None = None) -> tuple[int, ...]:
        planned = self._changed.get(key)
        if planned is not None:
            return planned
        topic_id, number = key
        return planned_replicas(partition or self._image.topics[topic_id].partitions[number])

    def _replace(self, key: Key, now: tuple[int, ...], gone: int, taker: int) -> None:
        self._put(key, now, tuple(taker if replica == gone else replica for replica in now))

    def _put(self, key: Key, now: tuple[int, ...], after: tuple[int, ...]) -> None:
        of_topic = self._topic_counts(key[0])
        for counted in (self._replicas, of_topic):
            counted.subtract(now)
            counted.update(after)
        led = self._leaders_by_topic.get(key[0])
        for leaders in (self._leaders,) if led is None else (self._leaders, led):
            leaders[now[0]] -= 1
            leaders[after[0]] += 1
        self._changed[key] = after

    def _topic_counts(self, topic_id: bytes) -> Counter[int]:
        counts = self._by_topic.get(topic_id)
        if counts is None:
            counts = self._by_topic[topic_id] = Counter()
            for number, partition in enumerate(self._image.topics[topic_id].partitions):
                counts.update(self._now((topic_id, number), partition))
        return counts

    def _topic_leaders(self, topic_id: bytes) -> Counter[int]:
        """The future leaders of a topic's partitions, counted by broker, with queued changes included."""
        counts = self._leaders_by_topic.get(topic_id)
        if counts is None:
            counts = self._leaders_by_topic[topic_id] = Counter()
            queued = self._image.ledger.queued
            for number, partition in enumerate(self._image.topics[topic_id].partitions):
                waits = queued.get((topic_id, number)) if queued else None
                counts[(self._now((topic_id, number), partition) if waits is None else waits.targets)[0]] += 1
        return counts

    def _racks(self, replicas: Collection[int]) -> set[str | int]:
        """Racks of ``replicas``; a broker without a rack counts as a rack by itself."""
        brokers = self._image.brokers
        racks: set[str | int] = set()
        for replica in replicas:
            broker = brokers.get(replica)
            racks.add(replica if broker is None or broker.rack is None else broker.rack)
        return racks
