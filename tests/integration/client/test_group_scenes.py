"""The classic scenarios of Kafka's groups on real processes: which member reads which partitions, from which offset,
and which records are read twice or never after a crash. One cluster for all: a controller, a broker, a coordinator.

``HEADRACE_STORM=50`` sets the number of members that are restarted one by one (``make verify``). By default few members
are restarted.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, TopicPartition
from tests.worlds.readers import (
    Crash,
    Feed,
    Reader,
    Readers,
    Watcher,
    gaps,
    new_name,
    new_topic,
    send,
    until,
)

STORM_MEMBERS = int(os.environ.get("HEADRACE_STORM", "6"))
#: Limit for a partition that does not move in a rebalance. (docs/sizing.md has measured values. The limit
#: is for a slow machine that runs other tests too, and is far below the session timeout of 45 s.)
STANDSTILL_MAX_S = 15.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    keys = {"offsets.topic.num.partitions": 4, "group.consumer.assignment.interval.ms": 200}
    with LocalCluster(brokers=1, controllers=1, coordinators=1, config=keys) as cluster:
        yield cluster.bootstrap_servers


def consumer_of(bootstrap: str, group: str, **settings: Any) -> Consumer:
    keys = {key.replace("_", "."): value for key, value in settings.items()}
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **keys})


def poll_some(consumer: Consumer, count: int) -> list[Any]:
    """Poll exactly the given number of records."""
    found: list[Any] = []

    def has_all() -> bool:
        found.extend(consumer.poll(0.2, max_records=count - len(found)))
        return len(found) >= count

    until(has_all, lambda: f"{len(found)} of {count} records")
    return found


def places(records: Any) -> list[tuple[int, int]]:
    return sorted((record.partition, record.offset) for record in records)


def all_of(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in sorted(counts.items()) for offset in range(count)]


# -- who reads what --------------------------------------------------------------------------------------------------


def test_of_six_consumers_four_work_and_two_stand_by_and_take_over(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 4)
    with Readers(bootstrap, new_name("g"), topic, 4) as group:
        group.add(6)
        until(lambda: group.counts() == [0, 0, 1, 1, 1, 1], lambda: f"four work: {group.counts()}")
        send(bootstrap, topic, dict.fromkeys(range(4), 50))
        assert set(group.until_read(dict.fromkeys(range(4), 50)).values()) == {1}
        workers = [each for each in group.living if each.partitions]
        idle = [each for each in group.living if not each.partitions]
        assert [len(each.read) for each in workers] == [50] * 4
        stay = {each: each.partitions for each in workers[2:]}
        begun = time.monotonic()
        group.stop(*workers[:2])
        until(lambda: group.counts() == [1, 1, 1, 1], lambda: f"the idle ones take over: {group.counts()}")
        assert all(len(each.partitions) == 1 for each in idle)
        send(bootstrap, topic, dict.fromkeys(range(4), 50))
        assert set(group.until_read(dict.fromkeys(range(4), 100)).values()) == {1}, "they left, so nothing comes again"
        for each, partitions in stay.items():
            assert each.partitions == partitions
            assert [change for change in each.changes if change.at > begun] == [], "who stays is not disturbed"


def test_two_groups_read_the_same_topic_and_know_nothing_of_each_other(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 3)
    ends = dict.fromkeys(range(3), 40)
    one, other = new_name("g"), new_name("g")
    with Readers(bootstrap, one, topic, 3) as first, Readers(bootstrap, other, topic, 3) as second:
        first.add(2)
        second.add(3)
        send(bootstrap, topic, ends)
        assert set(first.until_read(ends).values()) == {1}
        assert set(second.until_read(ends).values()) == {1}
        first.stop(*first.living)
        with Watcher(bootstrap, one, topic, 3) as watcher:
            assert watcher.committed() == ends
        send(bootstrap, topic, ends)
        second.until_read(dict.fromkeys(range(3), 80))
        with Watcher(bootstrap, one, topic, 3) as watcher:
            assert watcher.committed() == ends, "what the other one reads is none of its business"
            assert watcher.lag() == 120
        first.add()
        first.until_read(dict.fromkeys(range(3), 80))
        assert set(first.times().values()) == {1}


def test_a_pattern_finds_topics_that_come_later(bootstrap: str) -> None:
    prefix = new_name("shop")
    seen: list[str] = []
    with Admin(bootstrap_servers=bootstrap) as admin, consumer_of(bootstrap, new_name("g")) as consumer:
        admin.create_topics([NewTopic(f"{prefix}-a", partitions=1)])
        consumer.subscribe(pattern=f"{prefix}-[a-z]+")

        def has(topic: str) -> bool:
            seen.extend(record.topic for record in consumer.poll(0.1))
            return topic in {tp.topic for tp in consumer.assignment()}

        until(lambda: has(f"{prefix}-a"), "the topic that was there")
        admin.create_topics([NewTopic(f"{prefix}-b", partitions=1), NewTopic(f"{prefix}-9", partitions=1)])
        until(lambda: has(f"{prefix}-b"), "the topic that came later")
        assert {tp.topic for tp in consumer.assignment()} == {f"{prefix}-a", f"{prefix}-b"}
        send(bootstrap, f"{prefix}-b", {0: 3})
        until(lambda: has(f"{prefix}-b") and len(seen) == 3, lambda: f"its records: {seen}")


# -- from where ------------------------------------------------------------------------------------------------------


def test_a_group_replays_from_the_start_and_from_a_time(bootstrap: str) -> None:
    topic, group = new_topic(bootstrap, 2), new_name("g")
    counts = {0: 30, 1: 30}
    times = [1_700_000_000_000 + 1_000 * number for number in range(30)]
    send(bootstrap, topic, counts, timestamps_ms=times)
    with consumer_of(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        assert places(poll_some(consumer, 60)) == all_of(counts)
    # The group continues at its committed offsets, so there are no new records for the group.
    send(bootstrap, topic, {0: 1, 1: 1}, timestamps_ms=[times[-1] + 1_000])
    with consumer_of(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        assert places(poll_some(consumer, 2)) == [(0, 30), (1, 30)]
    # From the start.
    with consumer_of(bootstrap, group) as consumer:
        consumer.subscribe([topic], on_assigned=lambda consumer, partitions: consumer.seek_to_beginning(*partitions))
        assert places(poll_some(consumer, 62)) == all_of({0: 31, 1: 31})
        # Start from a time: the timestamp of the tenth record from the end.
        wanted = dict.fromkeys(consumer.assignment(), times[20])
        for tp, found in consumer.offsets_for_times(wanted).items():
            assert found is not None
            assert (found.offset, found.timestamp_ms) == (20, times[20])
            consumer.seek(tp, found.offset)
        again = poll_some(consumer, 22)
        assert places(again) == [(partition, offset) for partition in (0, 1) for offset in range(20, 31)]
        assert min(record.timestamp_ms for record in again) == times[20]
    with Watcher(bootstrap, group, topic, 2) as watcher:
        assert watcher.committed() == {0: 31, 1: 31}


def test_partitions_that_are_added_are_read_from_their_start_and_the_old_ones_are_not_disturbed(bootstrap: str) -> None:
    topic = new_topic(bootstrap, 2)
    with Readers(bootstrap, new_name("g"), topic, 2) as group:
        group.add(2)
        group.until_shared()
        send(bootstrap, topic, {0: 20, 1: 20})
        group.until_read({0: 20, 1: 20})
        before = {each: each.partitions for each in group.living}
        begun = time.monotonic()
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_partitions({topic: 6})
        send(bootstrap, topic, {2: 20, 3: 20, 4: 20, 5: 20})
        assert set(group.until_read(dict.fromkeys(range(6), 20)).values()) == {1}
        group.partitions = 6
        group.until_shared()
        for each, partitions in before.items():
            assert partitions < each.partitions
            assert {change.what for change in each.changes if change.at > begun} == {"assigned"}


# -- what comes twice, and what never ---------------------------------------------------------------------------------


def test_a_commit_after_processing_repeats_what_was_not_committed_and_skips_nothing(bootstrap: str) -> None:
    topic, group = new_topic(bootstrap, 1), new_name("g")
    send(bootstrap, topic, {0: 100})
    done: list[int] = []

    def program() -> None:
        with consumer_of(bootstrap, group, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            while True:
                for record in poll_some(consumer, 10):
                    done.append(record.offset)
                    if record.offset == 47:
                        raise Crash
                consumer.commit()

    with pytest.raises(Crash):
        program()
    assert done == list(range(48))
    with consumer_of(bootstrap, group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        again = [record.offset for record in poll_some(consumer, 60)]
        assert again == list(range(40, 100)), "from what was committed: 40 to 47 are handled twice, nothing is missing"
        assert consumer.committed(TopicPartition(topic, 0)) == 40
        consumer.commit()
        assert consumer.committed(TopicPartition(topic, 0)) == 100


def test_a_commit_before_processing_repeats_nothing_and_skips_what_was_not_handled(bootstrap: str) -> None:
    topic, group = new_topic(bootstrap, 1), new_name("g")
    send(bootstrap, topic, {0: 100})
    done: list[int] = []

    def program() -> None:
        with consumer_of(bootstrap, group, enable_auto_commit=False) as consumer:
            consumer.subscribe([topic])
            while True:
                records = poll_some(consumer, 10)
                consumer.commit()
                for record in records:
                    if record.offset == 47:
                        raise Crash
                    done.append(record.offset)

    with pytest.raises(Crash):
        program()
    with consumer_of(bootstrap, group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        done += [record.offset for record in poll_some(consumer, 50)]
    assert done == [*range(47), *range(50, 100)], "47 to 49 are handled by nobody, nothing twice"


def test_an_auto_commit_leaves_a_window_that_is_read_again_after_a_crash_and_none_after_a_close(bootstrap: str) -> None:
    topic, group = new_topic(bootstrap, 1), new_name("g")
    partition = TopicPartition(topic, 0)
    send(bootstrap, topic, {0: 100})

    def program() -> None:
        with consumer_of(bootstrap, group, auto_commit_interval_ms=100) as consumer:
            consumer.subscribe([topic])
            poll_some(consumer, 30)
            consumer.pause(partition)  # so that polls return no more records; they still commit

            def is_committed() -> bool:
                assert not consumer.poll(0.05)
                return consumer.committed(partition) == 30

            until(is_committed, "what was handed out to be committed by itself")
            raise Crash

    def program_that_commits_seldom() -> None:
        with consumer_of(bootstrap, group, auto_commit_interval_ms=600_000) as consumer:
            consumer.subscribe([topic])
            assert poll_some(consumer, 40)[0].offset == 30
            raise Crash

    with pytest.raises(Crash):
        program()
    with pytest.raises(Crash):
        program_that_commits_seldom()
    with consumer_of(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        again = poll_some(consumer, 50)
        assert again[0].offset == 30, "40 records were handled, and are handled again"
    with consumer_of(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        assert consumer.committed(partition) == 80, "a close commits"
        assert poll_some(consumer, 20)[0].offset == 80


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_an_iteration_commits_by_itself_in_the_middle_of_a_fetched_part(bootstrap: str, how: str) -> None:
    topic, group = new_topic(bootstrap, 1), new_name("g")
    partition = TopicPartition(topic, 0)
    send(bootstrap, topic, {0: 2_000})
    work = threading.Event()  # never set: a handler that takes 10 ms

    def committed_in_the_loop() -> int:
        with (
            consumer_of(bootstrap, group, auto_commit_interval_ms=100) as consumer,
            Consumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False) as other,
        ):
            consumer.subscribe([topic]) if how == "subscribe" else consumer.assign([partition])
            for record in consumer:
                work.wait(0.01)
                found = other.committed(partition)
                if found:  # 0: a commit while the program handled the first record
                    assert found <= record.offset, "a record is committed after the program has handled it"
                    return int(found)
                if record.offset == 1_999:
                    return 0
        raise AssertionError("the iteration ended")

    assert committed_in_the_loop() > 0


# -- how far behind ---------------------------------------------------------------------------------------------------


def test_lag_grows_while_one_consumer_is_too_slow_and_ten_bring_it_down(bootstrap: str) -> None:
    """500 records arrive per second, one consumer can process 100."""
    topic = new_topic(bootstrap, 10)
    work = threading.Event()  # never set: a handler that takes 10 ms
    handling = {"handle": lambda _: work.wait(0.01), "max_records": 20, "settings": {"auto.commit.interval.ms": 200}}
    with (
        Readers(bootstrap, group_id := new_name("g"), topic, 10, **handling) as group,
        Watcher(bootstrap, group_id, topic, 10) as watcher,
    ):
        with Feed(bootstrap, topic, 10, 500) as feed:
            group.add()
            until(lambda: watcher.lag() > 800, lambda: f"the lag grows; it is {watcher.lag()}")
            group.add(9)
            until(lambda: watcher.lag() < 300, lambda: f"ten of them bring it down; it is {watcher.lag()}")
            until(lambda: group.counts() == [1] * 10, lambda: f"each has a partition: {group.counts()}")
            feed.stop()
        assert set(group.until_read(feed.ends()).values()) == {1}
        until(lambda: watcher.lag() == 0, lambda: f"in the end there is none; it is {watcher.lag()}")


# -- a storm ----------------------------------------------------------------------------------------------------------


def test_a_rebalance_storm_ends_and_partitions_that_stay_are_never_stopped(bootstrap: str) -> None:
    """Members are restarted one by one under load; each restart is two rebalances."""
    partitions = 2 * STORM_MEMBERS
    topic = new_topic(bootstrap, partitions)
    with (
        Readers(bootstrap, new_name("g"), topic, partitions) as group,
        Feed(bootstrap, topic, partitions, 20 * partitions) as feed,
    ):
        group.add(STORM_MEMBERS)
        group.until_shared()
        begun = time.monotonic()
        before = list(group.living)
        for old in before:
            group.stop(old)
            group.add()
            # (The next member starts at once, in the middle of the group's rebalance.)
        group.until_shared()
        ended = time.monotonic()
        assert set(group.living).isdisjoint(before)
        feed.stop()
        read = group.until_read(feed.ends())
        # All members left cleanly and revoked partitions cleanly: nothing is read twice.
        assert [place for place, times in read.items() if times > 1] == []
        moves = [change for each in group.every for change in each.changes if begun < change.at < ended]
        assert {change.what for change in moves} <= {"assigned", "revoked"}, "nobody was taken for dead"
        given = sum(len(change.partitions) for change in moves if change.what == "assigned")
        # Each restart moves the partitions of the old member and those of the new member. The old member and the new
        # member have two partitions each, or three while one member is missing.
        assert given <= STORM_MEMBERS * 2 * 3, f"{given} partitions moved in {STORM_MEMBERS} restarts"
        stood = standstills(group.every, begun, ended)
        assert stood, "some partition stayed where it was for a while"
        assert max(stood) < STANDSTILL_MAX_S, f"a partition that stayed was not read for {max(stood):.1f} s"


def standstills(readers: list[Reader], begun: float, ended: float) -> list[float]:
    """The longest pause of each partition at each reader, while this reader owned the partition."""
    found = []
    for reader in readers:
        since: dict[int, float] = {}
        for change in reader.changes:
            for partition in change.partitions:
                if change.what == "assigned":
                    since[partition] = change.at
                    continue
                start, end = max(since.pop(partition), begun), min(change.at, ended)
                found += pauses(reader, partition, start, end)
        for partition, start in since.items():
            found += pauses(reader, partition, max(start, begun), ended)
    return found


def pauses(reader: Reader, partition: int, start: float, end: float) -> list[float]:
    if end <= start:
        return []
    return list(gaps((read for read in reader.read if read.partition == partition and read.at < end), start).values())
