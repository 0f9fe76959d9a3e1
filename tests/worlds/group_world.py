"""The groups of one shard without a network: members that behave like clients, a log, and coordinators that start and
stop.  A member follows the rules of the protocol. A member reads its last assignment, and revokes a partition
before it reports the revocation. A member stops reading when it is removed, or when its connection has been broken
for the grace period. The messages of a member stay in order, as on a stream, until the test delivers them.  A
member has positions: it begins at the committed offset, processes records, and commits, at the latest when it
releases a partition. No commit may set a committed offset back: some records would be processed twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.group.messages import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    DescribedGroup,
    DescribeGroup,
    Disconnected,
    ExplainGroup,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MemberRemoved,
    Part,
    Rebalance,
    Topic,
    TopicsChanged,
)
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.state_machine import Decision, OwnershipAsked, OwnershipProven, ShardRecord
from headrace_core.errors import HeadraceError
from headrace_core.security.access import Decider

GROUP = "payments"


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def topics(**partitions: int) -> dict[str, Topic]:
    return {name: Topic(name, topic_id(name), count) for name, count in partitions.items()}


def parts(name: str, *numbers: int) -> frozenset[Part]:
    return frozenset((topic_id(name), number) for number in numbers)


class Commit(NamedTuple):
    """A commit on its way: the offsets that are committed under each epoch."""

    member_id: str
    instance_id: str | None
    offsets: Mapping[int, Mapping[Part, int]]


class GroupShardWorld:
    """The coordinator of one shard, its log, and the time."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        *,
        now_ms: int = 1_000_000,
        awaits_proof: bool = False,
        **partitions: int,
    ) -> None:
        self.awaits_proof = awaits_proof
        #: Whether the coordinator can prove that it owns the shard.
        self.is_proven = True
        self.proofs = 0
        self.settings = settings or GroupSettings(assignment_interval_ms=0, connection_grace_ms=500)
        self.now_ms = now_ms
        self.log: list[ShardRecord] = []
        self.topics = topics(**(partitions or {"orders": 4}))
        self.authorizer: Decider | None = None
        self.clients: dict[str, Client] = {}
        self.connections = 0
        self.committed: dict[Part, int] = {}
        self.groups = self.take_over()

    # -- the coordinator ---------------------------------------------------------------------------------------------

    def take_over(self, *, keep: int | None = None) -> Groups:
        """Another process becomes the shard's coordinator. ``keep``: how many records of the log remain (the other
        records were never committed)."""
        if keep is not None:
            del self.log[keep:]
        self.groups = Groups(self.settings, awaits_proof=self.awaits_proof)
        for key, value in self.log:
            self.groups.replay(key, value, self.now_ms)
        self._done(self.groups.loaded(self.now_ms))
        self.set_topics(self.topics)
        self.connections = 0
        for client in self.clients.values():
            client.cut()
        return self.groups

    def ask(self, request: object) -> Any:
        return self._done(self.groups.handle(request, self.now_ms))

    def _done(self, decision: Decision) -> Any:
        self.log += decision.records
        for push in decision.pushes:
            if (client := self.clients.get(push.member_id)) is not None and client.connection is not None:
                client.inbox.append(push.message)
        return decision.reply

    def commit_arrives(self, commit: Commit) -> None:
        """Accept what the coordinator accepts."""
        names = {topic.topic_id: topic.name for topic in self.topics.values()}
        for epoch, offsets in commit.offsets.items():
            parts = [(names.get(topic_id, "gone"), number) for topic_id, number in offsets]
            try:
                self.groups.check_commit(GROUP, commit.member_id, epoch, commit.instance_id, parts)
            except HeadraceError:
                continue
            for part, offset in offsets.items():
                before = self.committed.get(part, 0)
                assert offset >= before, f"{commit.member_id} sets the offset of {part} back from {before} to {offset}"
                self.committed[part] = offset

    def set_topics(self, now: dict[str, Topic]) -> None:
        self.topics = now
        self.ask(TopicsChanged(now, None, self.authorizer))
        self.tick()

    def set_authorizer(self, authorizer: Decider | None) -> None:
        self.authorizer = authorizer
        self.ask(TopicsChanged(self.topics, frozenset(), authorizer))
        self.tick()

    def tick(self) -> None:
        while (due_ms := self._next_due_ms()) is not None and due_ms <= self.now_ms:
            self._tick_once()

    def _next_due_ms(self) -> int | None:
        return self.groups.next_due_ms() if self.is_proven else None

    def _tick_once(self) -> None:
        if self.awaits_proof:
            self.proofs += 1
            self.ask(OwnershipAsked(self.proofs))
            self.ask(OwnershipProven(self.proofs))
        self._done(self.groups.tick(self.now_ms))

    def sleep(self, duration_ms: int) -> None:
        """Advance the time; work that becomes due during the advance runs at its time."""
        end_ms = self.now_ms + duration_ms
        while (due_ms := self._next_due_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._tick_once()
        self.now_ms = end_ms

    # -- queries -------------------------------------------------------------------------------------------------------

    def described(self) -> DescribedGroup:
        reply = self.ask(DescribeGroup(GROUP))
        assert isinstance(reply, DescribedGroup)
        return reply

    def rebalances(self) -> tuple[Rebalance, ...]:
        reply: tuple[Rebalance, ...] = self.ask(ExplainGroup(GROUP))
        return reply

    def join(self, *names: str, **about: Any) -> list[Client]:
        """Make members that join and receive their assignments."""
        made = [Client(self, name, **about) for name in names]
        for client in made:
            client.join()
        self.converge()
        return made

    def converge(self, rounds: int = 30) -> None:
        """Let all connected members send heartbeats and receive responses until no message is in flight."""
        for _ in range(rounds):
            for client in self.clients.values():
                client.hear_all()
            if not any(client.has_news for client in self.clients.values()):
                return
            for client in list(self.clients.values()):
                client.heartbeat()
        raise AssertionError(f"not settled after {rounds} rounds: {self.described()}")

    def sizes(self) -> list[int]:
        return sorted(len(client.reading) for client in self.clients.values() if client.is_member)


class Client:
    """A simulated group member; ``reading`` has the partitions that it reads now."""

    def __init__(
        self, shard: GroupShardWorld, name: str, *, subscribes: Iterable[str] = ("orders",), **about: Any
    ) -> None:
        self.shard = shard
        self.name = name
        self.subscribes = tuple(subscribes)
        self.about = about
        self.epoch = 0
        self.revision = 0
        self.reading: frozenset[Part] = frozenset()
        self.letting_go: frozenset[Part] = frozenset()
        #: Partitions that the member owns but does not read: it was without a connection for the grace period, and has
        #: heard nothing yet, or has heard that it must release them.
        self.paused: frozenset[Part] = frozenset()
        self.connection: int | None = None
        self.cut_ms: int | None = None
        self.is_member = False
        self.removed: MemberRemoved | None = None
        self.error: HeadraceError | None = None
        self.inbox: deque[object] = deque()
        self.positions: dict[Part, int] = {}
        #: The partitions that it must release, each with the epoch under which it owned the partition.
        self.ended: dict[Part, int] = {}
        #: A commit whose answer it has not received; it sends no other commit meanwhile.
        self.committing: Commit | None = None
        self.last_request: Heartbeat | None = None
        self._said: tuple[int, int, frozenset[Part]] | None = None
        shard.clients[name] = self

    @property
    def has_news(self) -> bool:
        """Whether there is a message for the member, or a state of the member that the coordinator does not know
        yet."""
        if not self.is_member or self.connection is None:
            return bool(self.inbox)
        return bool(self.inbox) or self._said != (self.epoch, self.revision, self.owned)

    @property
    def owned(self) -> frozenset[Part]:
        return self.reading | self.paused

    def connect(self) -> None:
        if self.connection is None:
            self.shard.connections += 1
            self.connection = self.shard.connections
            self.cut_ms = None

    def cut(self) -> None:
        """Break the connection, with all messages in flight; only ``disconnect`` informs the coordinator."""
        if self.connection is not None:
            self.cut_ms = self.shard.now_ms
        self.connection = None
        self.inbox.clear()

    def disconnect(self) -> None:
        connection = self.connection
        self.cut()
        if connection is not None:
            self.shard.ask(Disconnected(GROUP, self.name, connection))

    def die(self) -> None:
        """kill -9: the kernel closes its connections."""
        self.disconnect()
        self.reading = self.letting_go = self.paused = frozenset()
        self.is_member = False

    def pause_if_cut_off(self, within_ms: int = 0) -> None:
        """The client's side of the grace period: after the grace period without a connection, the member reads nothing
        until it gets a response. With ``within_ms``, the member also stops if the grace period ends within this number
        of milliseconds."""
        grace_ms = self.shard.settings.connection_grace_ms
        if self.cut_ms is not None and self.shard.now_ms + within_ms - self.cut_ms >= grace_ms:
            self.paused |= self.reading
            self.reading = frozenset()

    def join(self) -> Any:
        self.connect()
        self.epoch, self.revision = 0, 0
        self.reading = self.letting_go = self.paused = frozenset()
        self.removed = None
        return self._send(
            Heartbeat(
                GROUP, self.name, 0, self.connection or 0, topics=self.subscribes,
                **{"rebalance_timeout_ms": 300_000, **self.about},
            )
        )  # fmt: skip

    def heartbeat(self, **more: Any) -> Any:
        if not self.is_member:
            return None
        if self.connection is None:  # the first heartbeat of a connection has all fields (member.py)
            more.setdefault("topics", self.subscribes)
        self.connect()
        self._said = (self.epoch, self.revision, self.owned)
        return self._send(
            Heartbeat(
                GROUP, self.name, self.epoch, self.connection or 0, instance_id=self.about.get("instance_id"),
                owned=self.owned, revision=self.revision, **more,
            )
        )  # fmt: skip

    def _send(self, request: Heartbeat) -> Any:
        self.error = None
        self.last_request = request
        try:
            reply = self.shard.ask(request)
        except HeadraceError as error:
            self.error = error
            self.reading = self.letting_go = self.paused = frozenset()
            self.is_member = False
            return None
        self.is_member = True
        self.inbox.append(reply)
        return reply

    def hear(self, *, lets_go: bool = True) -> None:
        """Receive the next message; with ``lets_go`` the member releases revoked partitions at once."""
        message = self.inbox.popleft()
        if isinstance(message, MemberRemoved):
            self.removed = message
            self.is_member = False
            self.reading = self.letting_go = self.paused = frozenset()
        elif isinstance(message, HeartbeatReply):
            if message.assignment is not None:
                self.revision = message.revision
                self.positions.update(
                    (part, self.shard.committed.get(part, 0)) for part in message.assignment - self.owned
                )
                self.letting_go = self.owned - message.assignment
                self.ended = {**dict.fromkeys(self.letting_go, self.epoch), **self.ended}
                self.reading = message.assignment | (self.reading & self.letting_go)
            self.epoch = message.member_epoch
            self.reading |= self.paused - self.letting_go
            self.paused &= self.letting_go
        if lets_go:
            self.let_go()

    def let_go(self) -> None:
        self.commit(self.letting_go)
        self.reading -= self.letting_go
        self.paused -= self.letting_go
        self.letting_go = frozenset()
        self.ended = {part: epoch for part, epoch in self.ended.items() if part in self.owned}

    def process(self, records: int = 5) -> None:
        for part in self.reading - self.letting_go:
            self.positions[part] += records

    def commit(self, parts: frozenset[Part] | None = None) -> None:
        """Commit positions, unless a commit is on its way."""
        if self.send_commit(parts):
            self.commit_is_answered()

    def send_commit(self, parts: frozenset[Part] | None = None) -> bool:
        if self.committing is not None or not self.is_member:
            return False
        by_epoch: dict[int, dict[Part, int]] = {}
        for part in sorted(self.owned if parts is None else parts):
            by_epoch.setdefault(self.ended.get(part, self.epoch), {})[part] = self.positions[part]
        self.committing = Commit(self.name, self.about.get("instance_id"), by_epoch)
        return True

    def commit_is_answered(self) -> None:
        commit, self.committing = self.committing, None
        if commit is not None:
            self.shard.commit_arrives(commit)

    def hear_all(self) -> None:
        while self.inbox:
            self.hear()

    def leave_without_answer(self) -> None:
        """Leave the group without receiving a response."""
        self.reading = self.letting_go = self.paused = frozenset()
        self.is_member = False
        self.cut()

    def leave(self, *, temporarily: bool = False) -> Any:
        self.commit()
        self.reading = self.letting_go = self.paused = frozenset()
        self.is_member = False
        epoch = AWAY_EPOCH if temporarily else LEAVE_EPOCH
        reply = self.shard.ask(Leave(GROUP, self.name, epoch, self.about.get("instance_id"), self.connection))
        self.cut()
        return reply


names = st.sampled_from(["a", "b", "c", "d", "e"])
REBALANCE_MS = 60_000


class GroupsMachine(RuleBasedStateMachine):
    """Members join, leave, lag and lose connections; messages cross; coordinators change, with truncated decisions;
    topics grow and are deleted. No two members may ever read the same partition, and at the end every partition must
    have a reader. No commit may set a committed offset back."""

    @initialize(
        assignor=st.sampled_from(["uniform", "range", "sticky"]), interval_ms=st.sampled_from([0, 300]),
        static=st.booleans(),
    )  # fmt: skip
    def begin(self, assignor: str, interval_ms: int, static: bool) -> None:
        self.shard = GroupShardWorld(GroupSettings(assignment_interval_ms=interval_ms), orders=5, audit=2)
        self.about = {"assignor": assignor, "rebalance_timeout_ms": REBALANCE_MS}
        self.static = static
        self.counts = {"orders": 5, "audit": 2}
        self.life = 0

    def client(self, name: str) -> Client | None:
        found = self.shard.clients.get(name)
        return found if found is not None and found.is_member else None

    @rule(name=names, both=st.booleans())
    def join(self, name: str, both: bool) -> None:
        if self.client(name) is not None:
            return
        self.life += 1
        about = {**self.about, **({"instance_id": f"host-{name}"} if self.static else {})}
        member_id = f"{name}{self.life}" if self.static else name
        subscribes = ("orders", "audit") if both else ("orders",)
        self.shard.clients.pop(name, None)
        client = Client(self.shard, member_id, subscribes=subscribes, **about)
        client.join()
        if not client.is_member:
            del self.shard.clients[member_id]

    def members(self) -> list[Client]:
        return [client for client in self.shard.clients.values() if client.is_member]

    def one(self, number: int) -> Client:
        members = self.members()
        return members[number % len(members)]

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10), lets_go=st.booleans())
    def hear(self, number: int, lets_go: bool) -> None:
        client = self.one(number)
        if client.inbox:
            client.hear(lets_go=lets_go)

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def let_go(self, number: int) -> None:
        self.one(number).let_go()

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def heartbeat(self, number: int) -> None:
        self.one(number).heartbeat()

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def heartbeat_arrives_again(self, number: int) -> None:
        """The network delivers the last heartbeat once more; the answer comes on the stream, if it is still there."""
        client = self.one(number)
        request = client.last_request
        if request is None:
            return
        try:
            reply = self.shard.ask(request)
        except HeadraceError:
            return
        if request.connection == client.connection:
            client.inbox.append(reply)

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def process_and_commit(self, number: int) -> None:
        client = self.one(number)
        client.process()
        client.commit()

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def send_a_commit(self, number: int) -> None:
        """A commit that arrives later, in whatever state the group is by then."""
        client = self.one(number)
        client.process()
        client.send_commit()

    @rule(number=st.integers(0, 10))
    def commit_arrives(self, number: int) -> None:
        """(Also of a process that has ended.)"""
        committing = [client for client in self.shard.clients.values() if client.committing is not None]
        if committing:
            committing[number % len(committing)].commit_is_answered()

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10), temporarily=st.booleans())
    def leave(self, number: int, temporarily: bool) -> None:
        client = self.one(number)
        if client.connection is not None:
            try:
                client.leave(temporarily=temporarily and self.static)
            except HeadraceError:  # the member has been removed
                client.is_member = False

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def die(self, number: int) -> None:
        self.one(number).die()

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10))
    def cut(self, number: int) -> None:
        self.one(number).disconnect()

    @rule(duration_ms=st.sampled_from([1, 100, 499, 501, 5_000, 46_000]))
    def sleep(self, duration_ms: int) -> None:
        """Advance the time. Members send heartbeats in time unless their connections are broken, and all due work runs
        at its time."""
        left_ms = duration_ms
        while left_ms > 0:
            step_ms = min(left_ms, 400)
            self.stop_who_is_cut_off(step_ms)
            self.shard.sleep(step_ms)
            left_ms -= step_ms
            if duration_ms > 501:
                for client in self.members():
                    if client.connection is not None:
                        client.heartbeat()

    def stop_who_is_cut_off(self, step_ms: int) -> None:
        """Stop members whose grace period ends during this step: real clients check the clock all the time, not only
        when the test advances it."""
        for client in self.shard.clients.values():
            client.pause_if_cut_off(within_ms=step_ms)

    @rule(orders=st.integers(0, 8), audit=st.integers(0, 3))
    def topics_change(self, orders: int, audit: int) -> None:
        """Change the topics: partitions can only be added, and a topic is deleted as a whole."""
        self.counts["orders"] = max(self.counts["orders"], orders)
        if audit == 0:
            self.counts.pop("audit", None)
        else:
            self.counts["audit"] = max(self.counts.get("audit", 0), audit)
        self.shard.set_topics(topics(**self.counts))

    @rule()
    def take_over(self) -> None:
        """Another coordinator takes over the shard and replays the log. Members without a connection get a new grace
        period; the grace period of other members does not begin."""
        self.shard.take_over()

    @precondition(lambda self: self.members())
    @rule(number=st.integers(0, 10), leaves=st.booleans(), kept=st.integers(0, 12))
    def append_is_cut_off(self, number: int, leaves: bool, kept: int) -> None:
        """Only the first records of a decision reach the log, no response is sent, and another coordinator takes
        over."""
        client = self.one(number)
        about = {"instance_id": client.about.get("instance_id")}
        subscribed = client.subscribes
        request: Leave | Heartbeat = Leave(GROUP, client.name, **about)
        if leaves:
            client.leave_without_answer()
        else:
            client.subscribes = ("audit", "orders")
            request = Heartbeat(
                GROUP, client.name, client.epoch, client.connection or 99, owned=client.reading | client.paused,
                revision=client.revision, topics=client.subscribes, **about,
            )  # fmt: skip
        try:
            decision = self.shard.groups.handle(request, self.shard.now_ms)
        except HeadraceError:  # such as a second join without a rebalance timeout: the coordinator learned nothing
            client.subscribes = subscribed
            return
        self.shard.log += decision.records[:kept]
        self.shard.take_over()

    @rule()
    def clock_jumps(self) -> None:
        before = {client.name for client in self.members()}
        self.shard.now_ms += 3_600_000
        for client in self.shard.clients.values():
            if client.cut_ms is not None:
                client.cut_ms += 3_600_000
        self.shard._done(self.shard.groups.tick(self.shard.now_ms))
        assert before == {client.name for client in self.members()}

    # -- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def nobody_reads_what_another_one_reads(self) -> None:
        readers: dict[tuple[bytes, int], str] = {}
        for client in self.shard.clients.values():
            for part in client.reading:
                assert part not in readers, f"{readers[part]} and {client.name} both read {part}"
                readers[part] = client.name

    @invariant()
    def the_log_says_what_the_coordinator_knows(self) -> None:
        if not self.shard.groups.exists(GROUP):
            return
        copy = Groups(self.shard.settings)
        for key, value in self.shard.log:
            copy.replay(key, value, 0)
        mine, others = (
            {
                member_id: (member.value, member.target, member.current)
                for member_id, member in each._state.groups[GROUP].members.items()
            }
            for each in (self.shard.groups, copy)
        )
        assert mine == others
        assert self.shard.groups._state.groups[GROUP].value == copy._state.groups[GROUP].value
        assert self.shard.groups._state.groups[GROUP].owners == copy._state.groups[GROUP].owners

    def teardown(self) -> None:
        """At the end all live members return, and every partition must have a reader."""
        if not hasattr(self, "shard"):
            return
        for client in self.members():
            client.heartbeat()
        self.shard.sleep(1)
        for _ in range(130):  # longer than every timeout
            for client in self.members():
                client.hear_all()
                client.heartbeat()
                client.hear_all()
            self.nobody_reads_what_another_one_reads()
            self.stop_who_is_cut_off(1_000)
            self.shard.sleep(1_000)
        members = self.members()
        if not members:
            return
        assert self.shard.described().state == "stable"
        read = {part for client in members for part in client.reading}
        wanted = {
            (self.shard.topics[name].topic_id, number)
            for client in members
            for name in client.subscribes
            if name in self.counts
            for number in range(self.counts[name])
        }
        assert read == wanted
