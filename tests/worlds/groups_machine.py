"""Groups under any order of events: members join, leave, lag and lose connections; messages cross; coordinators change,
with truncated decisions; topics grow and are deleted. No two members may ever read the same partition, and at the end
every partition must have a reader. Members have positions, and no commit may set a committed offset back."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.group.messages import Heartbeat, Leave
from headrace_coordinator.group.settings import GroupSettings
from headrace_core.errors import HeadraceError
from tests.worlds.group_world import GROUP, Client, GroupShardWorld, topics

names = st.sampled_from(["a", "b", "c", "d", "e"])
REBALANCE_MS = 60_000


class GroupsMachine(RuleBasedStateMachine):
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
