"""Consumers in groups, against real processes: the SDK's behaviour under failures."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import (
    Admin,
    AsyncConsumer,
    Consumer,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from headrace.errors import (
    FencedInstanceIdError,
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidRegularExpressionError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.testing.verdicts import NotInTimeError
from headrace_tools.local.cluster import LocalCluster
from tests.worlds.waiting import check_in_time, until

LIMIT_S = 90.0
_names = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        controllers=1,
        brokers=1,
        coordinators=1,
        config={"group.consumer.assignment.interval.ms": 0, "group.consumer.min.session.timeout.ms": 1_000},
    ) as made:
        yield made


class ConsumerGroupWorld:
    """A test's own topic and group, and its consumers' callbacks."""

    def __init__(self, cluster: LocalCluster, partitions: int) -> None:
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap_servers
        number = next(_names)
        self.topic, self.group = f"in-{os.getpid()}-{number}", f"group-{os.getpid()}-{number}"
        self.partitions = [TopicPartition(self.topic, each) for each in range(partitions)]
        self.reported: list[tuple[str, str, list[int]]] = []
        self._made: list[Consumer] = []
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics([NewTopic(self.topic, partitions)])

    def consumer(self, **settings: Any) -> Consumer:
        given = {"group_id": self.group, "auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        made = Consumer(bootstrap_servers=self.bootstrap, **given)
        self._made.append(made)
        return made

    def member(self, name: str = "a", **settings: Any) -> Consumer:
        """A consumer that subscribes. The test records the calls of its callbacks."""
        made = self.consumer(**settings)
        made.subscribe([self.topic], **self.callbacks(name))
        return made

    def callbacks(self, name: str) -> dict[str, Any]:
        def note(what: str) -> Callable[[Consumer, list[TopicPartition]], None]:
            return lambda _, partitions: self.reported.append((name, what, [tp.partition for tp in partitions]))

        return {f"on_{what}": note(what) for what in ("assigned", "revoked", "lost")}

    def fill(self, count: int = 10) -> None:
        """Write ``count`` records to each partition."""
        with Producer(bootstrap_servers=self.bootstrap) as out:
            for number in range(count):
                for tp in self.partitions:
                    out.send(self.topic, value=b"%d" % number, partition=tp.partition)

    def committed(self) -> list[int | None]:
        with self.consumer() as asking:
            found = asking.committed(self.partitions)
        return [None if found[tp] is None else found[tp].offset for tp in self.partitions]

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture
def make_world(cluster: LocalCluster) -> Iterator[Callable[..., ConsumerGroupWorld]]:
    made: list[ConsumerGroupWorld] = []

    def make(partitions: int = 2) -> ConsumerGroupWorld:
        made.append(ConsumerGroupWorld(cluster, partitions))
        return made[-1]

    yield make
    for each in made:
        each.close()


def poll_until(condition: Callable[[], object], *consumers: Consumer) -> list[Any]:
    """What came meanwhile."""
    deadline = time.monotonic() + LIMIT_S
    came: list[Any] = []
    while not condition():
        if time.monotonic() >= deadline:
            raise NotInTimeError("it did not happen")
        for each in consumers:
            came += each.poll(0.05)
    return came


def test_reading_begins_where_the_group_committed(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world()
    world.fill()
    first = world.consumer()
    first.assign(world.partitions)  # commits need no subscription
    first.commit({world.partitions[0]: 7, world.partitions[1]: OffsetAndMetadata(3, "so far")})
    assert first.committed(world.partitions[0]) == 7
    assert first.committed(world.partitions)[world.partitions[1]] == OffsetAndMetadata(3, "so far")
    member = world.member()
    came: list[Any] = []
    poll_until(lambda: came.extend(member.poll(0.1)) or len(came) >= 10)
    assert sorted((record.partition, record.offset) for record in came) == [
        *((0, offset) for offset in range(7, 10)),
        *((1, offset) for offset in range(3, 10)),
    ]
    assert member.subscription() == {world.topic}
    assert member.group_metadata().generation_id > 0


def test_partitions_assigned_by_hand_begin_where_the_group_committed_and_are_committed(
    make_world: Callable[..., ConsumerGroupWorld],
) -> None:
    """In Kafka, too, ``assign`` begins at the group's committed offsets. Without Kafka's rule, a migrated program would
    start from the beginning each time."""
    world = make_world(3)
    world.fill()
    with world.consumer(enable_auto_commit=True, auto_commit_interval_ms=600_000) as first:
        first.commit({world.partitions[0]: 7})
        first.assign(world.partitions)
        first.seek(world.partitions[2], 9)
        came = poll_until(lambda: all(first.position(tp) == 10 for tp in world.partitions), first)
        assert sorted((record.partition, record.offset) for record in came) == [
            *((0, offset) for offset in range(7, 10)),
            *((1, offset) for offset in range(10)),
            (2, 9),
        ]
        assert world.committed()[1:] == [None, None]
    assert world.committed() == [10, 10, 10]
    with world.consumer(enable_auto_commit=True, auto_commit_interval_ms=50) as second:
        second.assign(world.partitions)
        assert second.position(world.partitions[1]) == 10
        world.fill(2)
        poll_until(lambda: world.committed() == [12, 12, 12], second)
        second.assign(world.partitions[:1])
        assert second.poll(0.1) == []


def test_what_was_being_handled_of_partitions_assigned_by_hand_is_not_committed(
    make_world: Callable[..., ConsumerGroupWorld],
) -> None:
    world = make_world(1)
    world.fill()

    def work() -> None:
        with world.consumer(enable_auto_commit=True, auto_commit_interval_ms=600_000) as consumer:
            consumer.assign(world.partitions)
            for record in consumer:
                if record.offset == 4:
                    raise RuntimeError("the fifth is too much")

    with pytest.raises(RuntimeError, match="the fifth"):
        work()
    assert world.committed() == [None]


def test_positions_are_committed_by_itself_and_at_the_end(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world()
    world.fill()
    with world.consumer(enable_auto_commit=True, auto_commit_interval_ms=50) as member:
        member.subscribe([world.topic])
        poll_until(lambda: world.committed() == [10, 10], member)
    world.fill(5)
    with world.consumer(enable_auto_commit=True) as member:  # (the interval is 5 s)
        member.subscribe([world.topic])
        for seen, _ in enumerate(member, 1):
            if seen == 10:
                break
    assert sum(offset or 0 for offset in world.committed()) == 30


def test_a_record_that_is_being_handled_is_not_committed(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    world.fill()

    def work() -> None:
        with world.consumer(enable_auto_commit=True, auto_commit_interval_ms=1) as member:
            member.subscribe([world.topic])
            for record in member:
                if record.offset == 4:
                    raise RuntimeError("the fifth is too much")

    with pytest.raises(RuntimeError, match="the fifth"):
        work()
    assert (world.committed()[0] or 0) <= 4


def test_commits_say_the_epoch_of_the_record_before_and_readers_begin_with_it(
    make_world: Callable[..., ConsumerGroupWorld],
) -> None:
    """KIP-320: a reader notices that the log diverged while no consumer read."""
    world = make_world(1)
    world.fill()
    (tp,) = world.partitions
    first = world.member()
    poll_until(lambda: first.assignment() and first.position(tp) == 10, first)
    first.commit()
    committed = first.committed([tp])[tp]
    assert committed is not None
    assert committed.leader_epoch >= 0
    first.close()
    second = world.member("b")
    poll_until(lambda: second.assignment(), second)
    second.commit()
    assert second.committed([tp])[tp] == committed


def test_callbacks_may_seek_and_commit(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    world.fill()
    (tp,) = world.partitions
    member = world.consumer()
    member.subscribe(
        [world.topic],
        on_assigned=lambda consumer, partitions: [consumer.seek(each, 6) for each in partitions],
        on_revoked=lambda consumer, partitions: consumer.commit(),
    )
    came = poll_until(lambda: world.partitions == sorted(member.assignment()), member)
    came += poll_until(lambda: member.position(tp) == 10, member)
    assert [record.offset for record in came] == [6, 7, 8, 9]
    member.unsubscribe()
    assert member.assignment() == set()
    assert world.committed() == [10]


def test_what_a_callback_raises_comes_out_of_poll_and_the_change_is_made(
    make_world: Callable[..., ConsumerGroupWorld],
) -> None:
    world = make_world(1)
    world.fill()
    member = world.consumer()

    def angry(_: Consumer, __: list[TopicPartition]) -> None:
        raise RuntimeError("not today")

    member.subscribe([world.topic], on_assigned=angry)
    with pytest.raises(RuntimeError, match="not today"):
        poll_until(lambda: False, member)
    assert member.assignment() == set(world.partitions)
    assert len(poll_until(lambda: member.position(world.partitions[0]) == 10, member)) == 10


def test_a_second_member_takes_its_share_and_the_rest_is_read_on(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(4)
    one = world.member("one")
    poll_until(lambda: len(one.assignment()) == 4, one)
    two = world.member("two")
    poll_until(lambda: len(two.assignment()) == 2, one, two)
    assert one.assignment() | two.assignment() == set(world.partitions)
    assert one.assignment() & two.assignment() == set()
    assert [what for name, what, _ in world.reported if name == "one"] == ["assigned", "revoked"]
    world.fill()
    came: list[Any] = []
    poll_until(lambda: came.extend(one.poll(0.05) + two.poll(0.05)) or len(came) >= 40)
    assert len({(record.partition, record.offset) for record in came}) == len(came) == 40
    one.close()
    poll_until(lambda: len(two.assignment()) == 4, two)


def test_a_pattern_takes_topics_as_they_come(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    member = world.consumer()
    member.subscribe(pattern=re.escape(world.topic) + "(-more)?", **world.callbacks("a"))
    poll_until(lambda: len(member.assignment()) == 1, member)
    with Admin(bootstrap_servers=world.bootstrap) as admin:
        admin.create_topics([NewTopic(world.topic + "-more", 2), NewTopic(world.topic + "-not-this", 2)])
    poll_until(lambda: len(member.assignment()) == 3, member)
    assert {tp.topic for tp in member.assignment()} == {world.topic, world.topic + "-more"}
    broken = world.consumer(group_id=world.group + "-broken")
    broken.subscribe(pattern="(")
    with pytest.raises(InvalidRegularExpressionError, match="RE2"):
        poll_until(lambda: False, broken)


def test_partitions_that_are_added_are_read(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    member = world.member()
    poll_until(lambda: len(member.assignment()) == 1, member)
    with Admin(bootstrap_servers=world.bootstrap) as admin:
        admin.create_partitions({world.topic: 3})
    poll_until(lambda: len(member.assignment()) == 3, member)
    assert world.reported == [("a", "assigned", [0]), ("a", "assigned", [1, 2])]


def test_a_static_member_that_comes_back_moves_nothing(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(4)
    one, two = (world.member(name, group_instance_id=name) for name in ("one", "two"))
    poll_until(lambda: len(one.assignment()) == len(two.assignment()) == 2, one, two)
    had = two.assignment()
    two.close()
    world.reported.clear()
    again = world.member("again", group_instance_id="two")
    poll_until(lambda: again.assignment(), one, again)
    assert again.assignment() == had
    assert [entry for entry in world.reported if entry[0] == "one"] == []


def test_a_second_process_of_the_same_name_waits_until_the_first_is_gone(
    make_world: Callable[..., ConsumerGroupWorld],
) -> None:
    world = make_world(1)
    first = world.member("first", group_instance_id="me")
    poll_until(lambda: first.assignment(), first)
    second = world.member("second", group_instance_id="me")
    for _ in range(10):
        assert second.poll(0.05) == []
        first.poll(0.05)
    assert first.assignment() == set(world.partitions)
    assert second.assignment() == set()
    first.close()
    poll_until(lambda: second.assignment(), second)


def test_a_caller_that_does_nothing_for_too_long_is_out_and_learns_why(
    make_world: Callable[..., ConsumerGroupWorld], caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(2)
    world.fill()
    slow = world.member("slow", max_poll_interval_ms=1_000)
    poll_until(lambda: slow.assignment(), slow)
    other = world.member("other")
    poll_until(lambda: len(other.assignment()) == 2, other)  # and slow is not polled meanwhile
    with pytest.raises(UnknownMemberIdError, match=r"max\.poll\.interval\.ms"):
        slow.commit({world.partitions[0]: 1})
    assert "was not polled for" in caplog.text
    poll_until(lambda: len(slow.assignment()) == 1, slow, other)  # it joins again
    assert [what for name, what, _ in world.reported if name == "slow"][:2] == ["assigned", "lost"]


def test_a_handler_that_makes_progress_is_no_idle_one(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    """The records of one poll or one slice may together take longer than the interval, because each step of a loop
    counts as progress."""
    world = make_world(1)
    world.fill()
    member = world.member("a", max_poll_interval_ms=3_000)
    pause = threading.Event()
    for seen, _ in enumerate(member, 1):
        pause.wait(0.4)
        if seen == 10:
            break
    member.commit()
    assert world.committed() == [10]
    assert [what for _, what, _ in world.reported] == ["assigned"]


def test_coordinators_come_and_go_and_nobody_stops_reading(
    make_world: Callable[..., ConsumerGroupWorld], cluster: LocalCluster
) -> None:
    world = make_world(2)
    member = world.member()
    poll_until(lambda: len(member.assignment()) == 2, member)
    world.fill(1)
    poll_until(lambda: all(member.position(tp) == 1 for tp in world.partitions), member)
    member.commit()
    cluster.kill("coordinator", 1)
    cluster.restart("coordinator", 1)
    world.fill(1)
    poll_until(lambda: all(member.position(tp) == 2 for tp in world.partitions), member)
    member.commit()
    assert world.committed() == [2, 2]
    assert [what for _, what, _ in world.reported] == ["assigned"]


def test_without_any_coordinator_reading_goes_on_and_commits_say_why_they_do_not(
    make_world: Callable[..., ConsumerGroupWorld], cluster: LocalCluster
) -> None:
    world = make_world(2)
    one = world.member("one", request_timeout_ms=2_000, default_api_timeout_ms=4_000)
    other = world.member("other")
    poll_until(lambda: len(one.assignment()) == len(other.assignment()) == 1, one, other)
    world.reported.clear()

    def reads_all() -> bool:
        return all(each.position(tp) == sent for each in (one, other) for tp in each.assignment())

    world.fill(sent := 1)
    poll_until(reads_all, one, other)
    one.commit()
    other.commit()
    cluster.kill("coordinator", 1)
    killed_at = time.monotonic()
    while time.monotonic() < killed_at + 10.0:  # the grace is 1.5 s
        world.fill(1)
        sent += 1
        poll_until(reads_all, one, other)
    with pytest.raises(RequestTimedOutError, match="no coordinator"):
        one.commit()
    cluster.restart("coordinator", 1)
    other.commit()  # waits longer than the first until the coordinator owns the group again
    one.commit()
    assert world.committed() == [sent, sent]
    world.fill(1)
    sent += 1
    poll_until(reads_all, one, other)
    assert world.reported == [], "no member lost or reread a record"


def test_commits_that_do_not_wait_keep_their_order(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    (tp,) = world.partitions
    committed: list[int] = []
    with world.consumer() as committing:
        futures = [
            committing.commit_async({tp: offset}, lambda offsets, error: committed.append(offsets[tp].offset))
            for offset in range(1, 51)
        ]
        for future in futures:
            future.result(LIMIT_S)
        until(lambda: len(committed) == 50, within_s=LIMIT_S)
        assert committed == list(range(1, 51))
        assert committing.committed(tp) == 50


def test_the_asyncio_face(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    world.fill()
    (tp,) = world.partitions

    async def main() -> None:
        reported: list[str] = []

        async def assigned(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            await consumer.seek(partitions[0], 2)
            reported.append("assigned")

        async def revoked(consumer: AsyncConsumer, partitions: list[TopicPartition]) -> None:
            await consumer.commit()
            reported.append("revoked")

        async with AsyncConsumer(
            bootstrap_servers=world.bootstrap, group_id=world.group, enable_auto_commit=False
        ) as member:
            await member.subscribe([world.topic], on_assigned=assigned, on_revoked=revoked)
            came = []
            async with asyncio.timeout(LIMIT_S):
                async for record in member:
                    came.append(record.offset)
                    if len(came) == 8:
                        break
            assert came == list(range(2, 10))
            await member.commit_async({tp: 5})
            assert await member.committed(tp) == 5
            assert member.group_metadata().group_id == world.group
        assert reported == ["assigned", "revoked"]

    asyncio.run(main())
    assert world.committed() == [10]


def test_a_blocking_consumer_takes_no_coroutine_functions(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    member = world.consumer()

    async def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None: ...

    with pytest.raises(InvalidArgumentError, match="plain function"):
        member.subscribe([world.topic], on_assigned=assigned)


def test_a_consumer_that_is_forgotten_leaves(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    other = world.member("other")
    forgotten = Consumer(bootstrap_servers=world.bootstrap, group_id=world.group)
    forgotten.subscribe([world.topic], on_assigned=lambda consumer, partitions: None)
    forgotten.poll(0.1)
    del forgotten
    poll_until(lambda: other.assignment(), other)


class Application:
    """A class as users write it: it has a consumer, and the consumer's callbacks are methods of the class."""

    def __init__(self, world: ConsumerGroupWorld) -> None:
        self.partitions: list[TopicPartition] = []
        self.consumer = Consumer(bootstrap_servers=world.bootstrap, group_id=world.group)
        self.consumer.subscribe([world.topic], on_assigned=self.has, on_revoked=self.has, on_lost=self.has)

    def has(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.partitions = partitions


def test_a_consumer_that_is_forgotten_by_the_owner_of_its_callbacks_leaves(
    make_world: Callable[..., ConsumerGroupWorld],
) -> None:
    world = make_world(1)

    def begin() -> None:
        application = Application(world)
        poll_until(lambda: application.partitions, application.consumer)

    begin()
    other = world.member("other")
    # The object and its consumer refer to each other. Only the I/O thread may also refer to them, for a moment.
    poll_until(lambda: gc.collect() >= 0 and other.assignment(), other)


def test_to_subscribe_to_nothing_is_to_unsubscribe(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    member, other = world.member("a"), world.consumer()
    poll_until(lambda: member.assignment(), member)
    member.subscribe([])
    assert world.reported == [("a", "assigned", [0]), ("a", "revoked", [0])]
    assert member.subscription() == frozenset()
    member.assign(world.partitions)  # a subscribed consumer may not do this
    other.subscribe([world.topic])
    poll_until(lambda: other.assignment(), other)

    async def from_asyncio() -> None:
        async with AsyncConsumer(bootstrap_servers=world.bootstrap, group_id=world.group) as consumer:
            await consumer.subscribe([world.topic])
            await consumer.subscribe([])
            assert consumer.subscription() == frozenset()
            consumer.assign(world.partitions)

    asyncio.run(from_asyncio())


def test_a_commit_of_a_topic_that_is_gone_fails_at_once(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    member = world.member(default_api_timeout_ms=300_000)
    poll_until(lambda: member.assignment(), member)
    gone = TopicPartition(f"{world.topic}-gone", 0)
    with Admin(bootstrap_servers=world.bootstrap) as admin:
        admin.create_topics([NewTopic(gone.topic, 1)])
        with world.consumer(group_id=f"{world.group}-by-hand") as by_hand:
            by_hand.assign([gone])
            by_hand.commit({gone: 0})  # however new it is
        admin.delete_topics([gone.topic])
    with (
        world.consumer(group_id=f"{world.group}-by-hand", default_api_timeout_ms=300_000) as by_hand,
        pytest.raises(UnknownTopicOrPartitionError, match=gone.topic),
    ):
        # The coordinator accepts the commit as long as it has not learned of the deletion.
        until(lambda: by_hand.commit({gone: 1}), "a refusal", LIMIT_S)


CHILD = """
import sys
from headrace import Consumer
bootstrap, group, topic = sys.argv[1:]
with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
    consumer.subscribe([topic], on_assigned=lambda c, p: print("assigned", flush=True),
                       on_revoked=lambda c, p: print("revoked", flush=True))
    for record in consumer:
        pass
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_partitions_of_a_process_that_ends_are_read_by_others(
    make_world: Callable[..., ConsumerGroupWorld], how: int
) -> None:
    """After Ctrl-C the member leaves the group; after a kill the coordinator notices the broken connection. Neither
    after Ctrl-C nor after a kill does the group wait for the session's time-out (45 s)."""
    world = make_world(1)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, world.bootstrap, world.group, world.topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "assigned\n"
        other = world.member("other")
        for _ in range(5):
            other.poll(0.05)
        assert other.assignment() == set()
        ended = time.monotonic()
        child.send_signal(how)
        poll_until(lambda: other.assignment(), other)
        check_in_time(ended, 30, "the partitions moved")
        if how == signal.SIGINT:
            assert child.stdout.readline() == "revoked\n"
    finally:
        child.kill()
        child.wait()


def test_a_closed_consumer_says_so(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    world = make_world(1)
    member = world.member()
    member.close()
    for call in (member.commit, member.unsubscribe, lambda: member.subscribe([world.topic])):
        with pytest.raises(HeadraceError, match="closed"):
            call()
    with pytest.raises(IllegalStateError), world.consumer() as never:
        never.poll(0)


def test_an_instance_that_was_replaced_is_out_for_good(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    """An operator, or a process that took the member for dead, has replaced the member. The older member must not
    return and replace the newer process."""
    world = make_world(1)
    first = world.member("first", group_instance_id="me")
    poll_until(lambda: first.assignment(), first)
    group = first._core.group
    assert group is not None
    first._core.engine.io.call(
        group._membership.member.refused, 0, FencedInstanceIdError("somebody else is 'me' by now"), time.monotonic()
    )
    first._core.engine.io.call(group._membership.nudge)
    with pytest.raises(FencedInstanceIdError):
        poll_until(lambda: False, first)
    assert ("first", "lost", [0]) in world.reported
    with pytest.raises(FencedInstanceIdError):
        first.poll(0)


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    """The committed offset of the deleted topic has no meaning for the new topic with the same name."""
    world = make_world(1)
    world.fill(3)
    member = world.member("a", enable_auto_commit=True, auto_commit_interval_ms=50)
    poll_until(lambda: world.committed() == [3], member)
    with Admin(bootstrap_servers=world.bootstrap) as admin:
        admin.delete_topics([world.topic])
        poll_until(lambda: not member.assignment(), member)
        admin.create_topics([NewTopic(world.topic, 1)])
    world.fill(10)
    came = poll_until(lambda: world.reported[-1][1] == "assigned", member)
    came += poll_until(lambda: member.position(world.partitions[0]) == 10, member)
    assert [record.offset for record in came] == list(range(10))
    poll_until(lambda: world.committed() == [10], member)
    assert [what for _, what, _ in world.reported] == ["assigned", "revoked", "assigned"]


def test_a_loop_goes_on_after_its_consumer_was_out(make_world: Callable[..., ConsumerGroupWorld]) -> None:
    """The iterating thread returns once, learns that its partitions are lost, and waits. The member must join again
    without another call."""
    world = make_world(1)
    world.fill(2)
    member = world.member("a", max_poll_interval_ms=3_000)
    offsets = []
    for record in member:
        offsets.append(record.offset)
        if len(offsets) == 1:
            # (it handles the first record for too long)
            until(lambda: member._core.reading.inbox.alarm, within_s=LIMIT_S)
        if record.offset == 1:
            break
    assert offsets == [0, 0, 1]  # nothing was committed
    assert [what for _, what, _ in world.reported] == ["assigned", "lost", "assigned"]
