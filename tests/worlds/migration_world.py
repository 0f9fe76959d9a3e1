"""Groups of one shard that change between the classic protocol and KIP-848, without a network: consumers of both
protocols that behave like Kafka's clients, a log, and coordinators that start and stop.

Each consumer does one step at a time: it sends a request, or reads the answer to a request that had to wait.
``reading`` has the partitions that it reads now."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_coordinator.classic.consumer_protocol import (
    NamedPart,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from headrace_coordinator.classic.messages import (
    Answered,
    ClassicHeartbeat,
    Join,
    Joined,
    LeaveClassic,
    LeavingMember,
    MemberIdNeeded,
    Sync,
    Synced,
    Waiting,
)
from headrace_coordinator.classic.settings import ClassicSettings
from headrace_coordinator.group.messages import (
    LEAVE_EPOCH,
    DescribeGroup,
    Heartbeat,
    HeartbeatReply,
    Leave,
    Topic,
    TopicsChanged,
)
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    HeadraceError,
    IllegalGenerationError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from tests.worlds.group_world import topics

GROUP = "moving"
COOPERATIVE, EAGER = "cooperative-sticky", "range"


def subscription(
    names: Iterable[str], owned: Iterable[NamedPart] = (), generation: int = -1, *, version: int = 3, data: bytes = b""
) -> bytes:
    """A subscription in the bytes of Kafka's clients."""
    listed = [name.encode() for name in names]
    out = struct.pack(">hi", version, len(listed))
    out += b"".join(struct.pack(">h", len(name)) + name for name in listed)
    out += struct.pack(">i", len(data)) + data
    if version >= 1:
        out += encode_assignment(owned, 0)[2:-4]
    if version >= 2:
        out += struct.pack(">i", generation)
    return out + (b"\xff\xff" if version >= 3 else b"")


class MigrationWorld:
    """The coordinator of one shard, its log, and the time."""

    def __init__(self, settings: GroupSettings | None = None, **partitions: int) -> None:
        self.settings = settings or GroupSettings(assignment_interval_ms=0)
        self.classic = ClassicSettings(initial_delay_ms=0)
        self.now_ms = 1_000_000
        self.log: list[ShardRecord] = []
        self.topics: dict[str, Topic] = topics(**(partitions or {"orders": 6}))
        self.consumers: list[ClassicConsumer | NewConsumer] = []
        self.tickets = 0
        self.answers: dict[int, object] = {}
        self.groups = self.take_over()

    def take_over(self, *, keep: int | None = None) -> GroupsOfBothTypes:
        """Another process becomes the shard's coordinator. ``keep``: how many records of the log remain."""
        if keep is not None:
            del self.log[keep:]
        self.groups = GroupsOfBothTypes(self.settings, self.classic)
        for key, value in self.log:
            self.groups.replay(key, value, self.now_ms)
        self.done(self.groups.loaded(self.now_ms))
        self.set_topics(self.topics)
        for consumer in self.consumers:
            consumer.coordinator_is_gone()
        return self.groups

    def set_topics(self, now: dict[str, Topic]) -> None:
        self.topics = now
        self.ask(TopicsChanged(now))
        self.tick()

    def ask(self, request: object) -> Any:
        return self.done(self.groups.handle(request, self.now_ms))

    def done(self, decision: Decision) -> Any:
        self.log += decision.records
        for push in decision.pushes:
            if isinstance(push, Answered):
                self.answers[push.ticket] = push.outcome
        return decision.reply

    def ticket(self) -> int:
        self.tickets += 1
        return self.tickets

    def tick(self) -> None:
        while (due_ms := self.groups.next_due_ms()) is not None and due_ms <= self.now_ms:
            self.done(self.groups.tick(self.now_ms))

    def sleep(self, duration_ms: int) -> None:
        """Advance the time; work that becomes due during the advance runs at its time."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.groups.next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.done(self.groups.tick(self.now_ms))
        self.now_ms = end_ms

    # -- consumers ----------------------------------------------------------------------------------------------------

    def classic_consumer(self, name: str, **about: Any) -> ClassicConsumer:
        self.consumers.append(consumer := ClassicConsumer(self, name, **about))
        return consumer

    def new_consumer(self, name: str, **about: Any) -> NewConsumer:
        self.consumers.append(consumer := NewConsumer(self, name, **about))
        return consumer

    def alive(self) -> list[ClassicConsumer | NewConsumer]:
        return [each for each in self.consumers if each.is_alive]

    def settle(self, rounds: int = 150) -> None:
        """Let all consumers continue until every partition has a reader and nothing changes any more."""
        for _ in range(rounds):
            before = [(each.reading, each.is_stable) for each in self.alive()]
            for each in self.alive():
                each.step()
            self.sleep(1_000)
            self.check_readers()
            after = [(each.reading, each.is_stable) for each in self.alive()]
            if before == after and all(stable for _, stable in after) and self.is_all_read():
                return
        raise AssertionError(f"not settled after {rounds} rounds: {[str(each) for each in self.alive()]}")

    def is_all_read(self) -> bool:
        wanted = {(name, number) for name, topic in self.topics.items() for number in range(topic.partitions)}
        return wanted == {part for each in self.alive() for part in each.reading}

    def check_readers(self) -> None:
        """Check that no two consumers read the same partition."""
        readers: dict[NamedPart, str] = {}
        for each in self.consumers:
            for part in each.reading:
                assert part not in readers, f"{readers[part]} and {each.name} both read {part}"
                readers[part] = each.name

    def type(self) -> str:
        """The type of the group: "classic" or "consumer"."""
        reply = self.ask(DescribeGroup(GROUP))
        return str(getattr(reply, "type", "classic"))


class ClassicConsumer:
    """A consumer of the classic protocol. ``protocol``: an eager consumer stops reading all partitions before it joins,
    a cooperative consumer only the partitions that it loses. ``version``: the version of its subscriptions; ``data``:
    the user data in its subscriptions."""

    def __init__(
        self,
        world: MigrationWorld,
        name: str,
        *,
        protocol: str = COOPERATIVE,
        instance_id: str | None = None,
        version: int = 3,
        session_timeout_ms: int = 45_000,
        data: bytes = b"",
    ) -> None:
        self.world = world
        self.name = name
        self.protocol = protocol
        self.instance_id = instance_id
        self.version = version
        self.session_timeout_ms = session_timeout_ms
        self.data = data
        self.member_id = ""
        self.generation = -1
        self.reading: frozenset[NamedPart] = frozenset()
        self.is_alive = True
        self.errors: list[str] = []
        self.wants: str = "join"  # the next request: also "sync" or "heartbeat"
        self._assignments: tuple[tuple[str, bytes], ...] = ()
        self._assigned_topics: dict[str, Topic] | None = None  # the leader's topics
        self._waits_for: int | None = None

    def __str__(self) -> str:
        return f"{self.name} wants {self.wants} in generation {self.generation}, reads {sorted(self.reading)}"

    @property
    def is_stable(self) -> bool:
        return self.wants == "heartbeat"

    @property
    def is_waiting(self) -> bool:
        return self._waits_for is not None

    @property
    def waits_for_sync(self) -> bool:
        return self.is_waiting and self.wants == "sync"

    def coordinator_is_gone(self) -> None:
        if self._waits_for is not None:
            self._waits_for, self.wants = None, "join"

    def die(self) -> None:
        """kill -9."""
        self.is_alive, self.reading = False, frozenset()

    def leave(self) -> None:
        """Close: a static member does not leave the group."""
        self.is_alive, self.reading = False, frozenset()
        if self.member_id and self.instance_id is None:
            with contextlib.suppress(UnknownMemberIdError):  # the coordinator does not know the group
                self.world.ask(LeaveClassic(GROUP, (LeavingMember(self.member_id),)))

    def step(self) -> None:
        """Read the awaited answer, or send the next request."""
        if self._waits_for is not None:
            outcome = self.world.answers.pop(self._waits_for, None)
            if outcome is None:
                return
            self._waits_for = None
            self._got(outcome)
            return
        if self.is_stable and self._assigned_topics not in (None, self.world.topics):
            self.wants = "join"  # the leader assigns again when topics have changed
        try:
            reply = self.world.ask(self._request())
        except HeadraceError as error:
            reply = error
        if isinstance(reply, Waiting):
            self._waits_for = self.world.tickets
        else:
            self._got(reply)

    def _request(self) -> Join | Sync | ClassicHeartbeat:
        if self.wants == "heartbeat":
            return ClassicHeartbeat(GROUP, self.member_id, self.generation, self.instance_id)
        if self.wants == "sync":
            return Sync(
                GROUP, self.member_id, self.generation, self.world.ticket(), self.instance_id, "consumer",
                self.protocol, self._assignments,
            )  # fmt: skip
        if self.protocol == EAGER:
            self.reading = frozenset()
        said = subscription(self.world.topics, self.reading, self.generation, version=self.version, data=self.data)
        ticket = self.world.ticket()
        return Join(
            GROUP, self.member_id, f"{self.name}-{ticket}", self.session_timeout_ms, 60_000, "consumer",
            ((self.protocol, said),), ticket, self.instance_id, self.name, "host", needs_known_id=True,
            can_skip_assignment=True,
        )  # fmt: skip

    def _got(self, reply: object) -> None:
        if isinstance(reply, HeadraceError):
            self._failed(reply)
        elif isinstance(reply, MemberIdNeeded):
            self.member_id = reply.member_id
        elif isinstance(reply, Joined):
            self.member_id, self.generation = reply.member_id, reply.generation
            self._assignments = () if reply.skip_assignment else self._assign(reply)
            # (the new process of a static leader does not know the topics of the last assignment, KIP-814)
            self._assigned_topics = None if not reply.members else {} if reply.skip_assignment else self.world.topics
            self.wants = "sync"
        elif isinstance(reply, Synced):
            assigned = frozenset(decode_assignment(reply.assignment).parts)
            revoked = self.reading - assigned
            self.reading = assigned
            self.wants = "join" if revoked and self.protocol == COOPERATIVE else "heartbeat"

    def _failed(self, error: HeadraceError) -> None:
        self.errors.append(error.code)
        if isinstance(error, FencedInstanceIdError):
            self.die()
            return
        if isinstance(error, UnknownMemberIdError | IllegalGenerationError):
            self.reading, self.generation = frozenset(), -1
            if isinstance(error, UnknownMemberIdError):
                self.member_id = ""
        elif not isinstance(error, RebalanceInProgressError | MemberIdRequiredError | CoordinatorLoadInProgressError):
            raise error
        self.wants = "join"

    def _assign(self, joined: Joined) -> tuple[tuple[str, bytes], ...]:
        """The leader's assignment: each member an equal share. A cooperative leader withholds partitions that another
        member still reads."""
        if not joined.members:
            return ()
        world = self.world
        said = {each.member_id: decode_subscription(each.metadata) for each in joined.members}
        owners = {part: member_id for member_id, each in said.items() for part in each.owned}
        members = sorted(said)
        parts = [(name, number) for name, topic in sorted(world.topics.items()) for number in range(topic.partitions)]
        given: dict[str, list[NamedPart]] = {member_id: [] for member_id in members}
        for number, part in enumerate(parts):
            member_id = members[number % len(members)]
            if owners.get(part, member_id) == member_id:
                given[member_id].append(part)
        return tuple((member_id, encode_assignment(own, said[member_id].version)) for member_id, own in given.items())


class NewConsumer:
    """A consumer of KIP-848 with one heartbeat in flight, like a client of Kafka."""

    def __init__(self, world: MigrationWorld, name: str, *, instance_id: str | None = None) -> None:
        self.world = world
        self.name = name
        self.instance_id = instance_id
        self.lives = 0
        self.epoch = self.revision = 0
        self.reading: frozenset[NamedPart] = frozenset()
        self.is_alive = True
        self.is_stable = False
        self.errors: list[str] = []

    def __str__(self) -> str:
        return f"{self.name} in epoch {self.epoch}, reads {sorted(self.reading)}"

    @property
    def member_id(self) -> str:
        return self.name

    def coordinator_is_gone(self) -> None:
        pass

    def die(self) -> None:
        self.is_alive, self.reading = False, frozenset()

    def leave(self) -> None:
        was_member = self.epoch > 0
        self.die()
        if was_member:
            with contextlib.suppress(UnknownMemberIdError):  # it was removed
                self.world.ask(Leave(GROUP, self.name, LEAVE_EPOCH, self.instance_id, 0))

    def step(self) -> None:
        by_name = self.world.topics
        about: dict[str, Any] = {"instance_id": self.instance_id}
        if self.epoch == 0:
            about |= {"topics": tuple(by_name), "rebalance_timeout_ms": 60_000, "client_id": self.name}
        else:
            owned = frozenset((by_name[name].topic_id, number) for name, number in self.reading)
            about |= {"owned": owned, "revision": self.revision}
        try:
            reply: HeartbeatReply = self.world.ask(Heartbeat(GROUP, self.name, self.epoch, 0, **about))
        except (UnreleasedInstanceIdError, CoordinatorLoadInProgressError):
            self.is_stable = False
            return
        except (UnknownMemberIdError, FencedMemberEpochError) as error:
            self.errors.append(error.code)
            self.reading, self.epoch, self.revision, self.is_stable = frozenset(), 0, 0, False
            return
        self.is_stable = reply.assignment is None and reply.member_epoch == self.epoch
        self.epoch, self.revision = reply.member_epoch, reply.revision
        if reply.assignment is not None:
            self.reading = frozenset((reply.names[topic_id], number) for topic_id, number in reply.assignment)


CONSUMERS_MAX = 5


class MigrationMachine(RuleBasedStateMachine):
    """Consumers of both protocols join, leave, die and lag, and coordinators change. No two consumers may ever read
    the same partition, and at the end every partition must have a reader."""

    @initialize(
        protocol=st.sampled_from([COOPERATIVE, EAGER]),
        version=st.sampled_from([1, 3]),
        static=st.booleans(),
        interval_ms=st.sampled_from([0, 3_000]),
    )
    def begin(self, protocol: str, version: int, static: bool, interval_ms: int) -> None:
        self.world = MigrationWorld(GroupSettings(assignment_interval_ms=interval_ms), orders=5, audit=2)
        self.protocol = protocol
        self.version = version
        self.static = static
        self.lives = 0

    def alive(self) -> list[ClassicConsumer | NewConsumer]:
        return self.world.alive() if hasattr(self, "world") else []

    def one(self, number: int) -> ClassicConsumer | NewConsumer:
        alive = self.alive()
        return alive[number % len(alive)]

    @precondition(lambda self: len(self.alive()) < CONSUMERS_MAX)
    @rule(is_classic=st.booleans())
    def start(self, is_classic: bool) -> None:
        self.lives += 1
        used = {each.instance_id for each in self.alive()}
        host = next(host for host in (f"host-{number}" for number in range(CONSUMERS_MAX)) if host not in used)
        about: dict[str, Any] = {"instance_id": host if self.static else None}
        if is_classic:
            about |= {"protocol": self.protocol, "version": self.version}
            self.world.classic_consumer(f"c{self.lives}", **about).step()
        else:
            self.world.new_consumer(f"n{self.lives}", **about).step()

    @precondition(lambda self: self.alive())
    @rule(number=st.integers(0, 10), times=st.integers(1, 3))
    def step(self, number: int, times: int) -> None:
        consumer = self.one(number)
        for _ in range(times):
            if consumer.is_alive:
                consumer.step()

    @precondition(lambda self: self.alive())
    @rule(rounds=st.integers(1, 4))
    def steps(self, rounds: int) -> None:
        for _ in range(rounds):
            for consumer in self.alive():
                consumer.step()

    @precondition(lambda self: self.alive())
    @rule(number=st.integers(0, 10), dies=st.booleans())
    def end(self, number: int, dies: bool) -> None:
        consumer = self.one(number)
        if dies:
            consumer.die()
        else:
            consumer.leave()

    @rule(seconds=st.sampled_from([1, 5, 46, 61]))
    def sleep(self, seconds: int) -> None:
        """Advance the time; consumers send heartbeats in time."""
        for _ in range(seconds):
            self.world.sleep(1_000)
            if seconds > 5:
                for consumer in self.alive():
                    consumer.step()

    @rule(orders=st.integers(5, 8))
    def topics_change(self, orders: int) -> None:
        more = max(orders, self.world.topics["orders"].partitions)
        self.world.set_topics(topics(orders=more, audit=2))

    @rule()
    def take_over(self) -> None:
        """Another coordinator takes over the shard and replays the log; requests that wait for an answer get none."""
        self.world.take_over()

    # -- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        if hasattr(self, "world"):
            self.world.check_readers()

    @invariant()
    def the_log_says_what_the_coordinator_knows(self) -> None:
        if not hasattr(self, "world"):
            return
        copy = GroupsOfBothTypes(self.world.settings, self.world.classic)
        for key, value in self.world.log:
            copy.replay(key, value, 0)
        assert _seen(self.world.groups) == _seen(copy)

    def teardown(self) -> None:
        """At the end all live consumers continue, and every partition must have a reader."""
        if self.alive():
            self.world.settle()


def _seen(groups: GroupsOfBothTypes) -> object:
    """The group's state as far as the log contains it: for a classic group, without its members' sessions and a running
    rebalance."""
    group, classic = groups._groups._state.groups.get(GROUP), groups._classic.get(GROUP)
    if group is None:
        is_kept = classic is not None and classic.has_record
        return "classic" if is_kept else None
    members = {each.member_id: (each.value, each.target, each.current) for each in group.members.values()}
    return group.value, group.owners, group.classics, members, classic is not None and classic.has_record
