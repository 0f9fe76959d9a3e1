"""Consumers with the code of the SDK: its pure member state machine decides, and its code encodes and decodes messages.

The simulation adds the connection, the lookup of coordinators, and the consumer around the member: positions that
advance, commits in order (``headrace.group.commits``), and partitions that are revoked sooner or later.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.group.member import Assign, Failed, Lost, Part, Parts, Resumed, Revoke, Subscription, Suspended
from headrace.group.membership import NEWS_IN_GRACE, Membership
from headrace_core.errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
    from_number,
)
from headrace_protos.v1 import groups_pb2

if TYPE_CHECKING:
    from tests.simulation.group_connections import MemberConnection
    from tests.simulation.group_hosts import Coordinator
    from tests.simulation.group_sim_world import GroupWorld

#: Timeouts of a client in ms: of one answer, and of a whole commit or fetch.
REQUEST_TIMEOUT_MS, GIVE_UP_MS = 600.0, 700.0
LEAVE_NUMBER = 1 << 62
Answered = Callable[[Any], None]


class Attempt(NamedTuple):
    """The contents of a commit, identified by a tag in the commit's metadata."""

    group_id: str
    topic: str
    partition: int
    offset: int
    member_id: str
    epoch: int
    admin: bool


class Caller:
    """Calls to a group's coordinator, wherever it runs, like ``Coordinators.call``."""

    def __init__(self, world: GroupWorld, name: str, group_id: str) -> None:
        self.world = world
        self.name = name
        self.group_id = group_id
        self.coordinator: tuple[int, int] | None = None  # host and life, from the last lookup
        self.is_alive = True

    def __str__(self) -> str:
        return self.name

    def call(
        self, method: str, make: Callable[[], Any], answered: Answered, check: Callable[[Any], None] | None = None,
        refused: Callable[[HeadraceError, bool], bool] | None = None,
    ) -> None:  # fmt: skip
        """``make`` makes the request of each attempt. ``check`` raises the error in an answer. ``refused`` is called
        for each failed attempt, with the information whether the whole attempt failed. If ``refused`` returns True the
        error is final; otherwise retriable errors are retried until the call's time is over."""
        world, give_up_ms = self.world, self.world.scheduler.now_ms + GIVE_UP_MS

        def attempt() -> None:
            if not self.is_alive:
                return
            coordinator = self.look_up()
            if coordinator is None:
                failed(CoordinatorNotAvailableError("the group has no coordinator"), True)
                return
            world.call(self, coordinator, method, make(), came)

        def came(outcome: Any) -> None:
            if not self.is_alive:
                return
            if not isinstance(outcome, HeadraceError):
                try:
                    if check is not None:
                        check(outcome)
                except HeadraceError as error:
                    failed(error, False)
                    return
                answered(outcome)
                return
            failed(outcome, True)

        def failed(error: HeadraceError, is_whole: bool) -> None:
            forgotten = (NetworkError, RequestTimedOutError, NotCoordinatorError, CoordinatorNotAvailableError)
            if isinstance(error, forgotten):
                self.coordinator = None
            is_final = refused is not None and refused(error, is_whole)
            if is_final or not error.retriable or world.scheduler.now_ms > give_up_ms:
                answered(error)
                return
            world.scheduler.after(world.rng.uniform(10.0, 60.0), attempt)

        attempt()

    def look_up(self) -> tuple[int, int] | None:
        """The coordinator, as some broker reports it."""
        if self.coordinator is None:
            self.coordinator = self.world.find_coordinator(self)
        return self.coordinator


class SimMember(Caller):
    """A process with one consumer."""

    def __init__(self, world: GroupWorld, name: str, group: int, instance_id: str | None) -> None:
        super().__init__(world, name, world.group_ids[group])
        self.group = group
        self.rng = random.Random(f"{world.plan.seed} {name}")
        self.instance_id = instance_id
        self.life = 0
        self.is_alive = False
        self.is_paused = False
        self.is_slow_until_ms = 0.0
        self.is_late_until_ms = 0.0
        #: Until this time the answers with committed offsets come late, by so many ms; those on the stream do not.
        self.offsets_late_until_ms, self.offsets_late_ms = 0.0, 0.0
        self.subscribes: tuple[str, ...] = world.topic_names
        #: The process is started again when it has ended, unless the member has left the group permanently.
        self.is_needed = True
        self._queue: list[Callable[[], None]] = []  # events that arrived while the process was paused

    def start(self) -> None:
        """A new process."""
        if self.is_alive:
            return
        world = self.world
        self.life += 1
        self.is_alive, self.is_paused = True, False
        self.member_id = f"{self.name}.{self.life}"
        config = {
            "retry.backoff.ms": 50,
            "group.id": self.group_id,
            "group.instance.id": self.instance_id,
            "client.rack": None,
            "client.id": self.name,
            "max.poll.interval.ms": world.plan.rebalance_timeout_ms,
            "group.remote.assignor": world.plan.assignors[self.group],
        }
        # (Only the SDK's encoding and decoding of messages is used; the stream is simulated.)
        self.membership = Membership(None, None, config, self.member_id, self._settle)  # type: ignore[arg-type]
        self.member = self.membership.member
        self._subscribe()
        self.connection: MemberConnection | None = None
        self.coordinator = None
        self.held: dict[Part, int] = {}  # the partitions that it reads, and their positions
        self.reading: dict[Part, None] = {}
        self._revoking: dict[int, Revoke] = {}
        self._commits: deque[tuple[dict[Part, int], int, Callable[[], None]]] = deque()
        self._is_committing = False
        self._sequence = 0
        self._is_dialing = False
        self._failures = 0
        self._wake: Any = None
        self._asked_ms = 0.0
        self._is_looking = False
        self.member.join(self._now())
        world.tell(self, f"starts as {self.member_id}")
        self._dial_later(0.0)
        life = self.life
        world.scheduler.after(self.rng.uniform(20.0, 60.0), self._read_on, life)
        world.scheduler.after(self.rng.uniform(60.0, 200.0), self._commit_now_and_then, life)

    def _subscribe(self) -> None:
        if self.rng.random() < 0.2:
            self.membership._subscription = Subscription(pattern="t[" + "".join(t[1:] for t in self.subscribes) + "]")
        else:
            self.membership._subscription = Subscription(self.subscribes)

    def _now(self) -> float:
        return self.world.scheduler.now_ms / 1_000

    # -- its life ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """kill -9: the kernel closes its connections."""
        if not self.is_alive:
            return
        self.is_alive = self.is_paused = False
        self._queue.clear()
        self._let_go_of_all()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.closed_by_member()
        self.world.pipes_closed(self)

    def pause(self) -> None:
        if self.is_alive and not self.is_paused:
            self.is_paused = True
            for part in self.reading:
                self.world.checks.stops_reading(self, part)

    def resume(self) -> None:
        if not self.is_alive or not self.is_paused:
            return
        self.is_paused = False
        # The caller may run before the timer that calls ``tick``, so it checks the clock itself (Inbox.is_shut).
        reads = not self.member.is_suspended and self._now() < self.member.reads_until()
        if reads:
            self._begins_again()
        self.member.tick(self._now())
        if not reads and not self.member.is_suspended:
            self._begins_again()
        self._settle()
        queue, self._queue = self._queue, []
        for act in queue:
            self.do(act)
        self.do(self._pump)

    def _begins_again(self) -> None:
        for part in self.reading:
            self.world.checks.reads(self, part)

    def do(self, act: Callable[[], None]) -> None:
        """Deliver an event to the process."""
        if not self.is_alive:
            return
        if self.is_paused:
            self._queue.append(act)
            return
        act()

    def _in_this_life(self, act: Callable[[], None]) -> Callable[[], None]:
        life = self.life

        def later() -> None:
            if self.is_alive and self.life == life:
                self.do(act)

        return later

    def subscribe(self, topics: tuple[str, ...]) -> None:
        def act() -> None:
            self.subscribes = topics
            self._subscribe()
            self.member.subscribed_anew()
            self._pump()

        self.do(act)

    def leave(self, *, is_coming_back: bool) -> None:
        """close(): commit and revoke what it reads, leave, end the process."""
        self.do(lambda: self._leave(is_coming_back))

    def _leave(self, is_coming_back: bool) -> None:
        self.world.tell(self, "leaves" + (", to come back" if is_coming_back else ""))

        def goodbye() -> None:
            epoch = self.member.epoch
            self._let_go_of_all()
            self.member.left()
            self.member.take_events()
            connection = self.connection
            if connection is None or epoch == 0:
                self.kill()
                return
            request = groups_pb2.MembershipRequest(correlation_id=LEAVE_NUMBER)
            request.leave.group_id, request.leave.member_id = self.group_id, self.member_id
            if self.instance_id is not None:
                request.leave.instance_id, request.leave.temporarily = self.instance_id, is_coming_back
            connection.to_coordinator(request)
            self.world.scheduler.after(100.0, self._in_this_life(self.kill))

        for part in self.reading:
            if not self.member.is_suspended:
                self.world.checks.stops_reading(self, part)
        self.reading.clear()
        self._commit(dict(self.held), goodbye)

    # -- the stream --------------------------------------------------------------------------------------------------

    def _dial_later(self, after_ms: float) -> None:
        if not self._is_dialing:
            self._is_dialing = True
            self.world.scheduler.after(after_ms, self._in_this_life(self._dial))

    def _dial(self) -> None:
        self._is_dialing = False
        if self.connection is not None or not self.member.is_wanted:
            return
        found = self.look_up()
        connection = None if found is None else self.world.dial(self, found)
        if connection is None:
            self.coordinator = None
            self._failures += 1
            self._dial_later(min(20.0 * 2 ** min(self._failures, 4), 200.0) * self.rng.uniform(0.5, 1.0))
            return
        self.connection = connection

    def connected(self, connection: MemberConnection) -> None:
        if connection is self.connection:
            self.member.connected(self._now())
            self._pump()

    def received(self, connection: MemberConnection, response: Any) -> None:
        if connection is not self.connection:
            return
        if response.correlation_id == LEAVE_NUMBER:
            self.kill()
            return
        misled_since_ms = self.world.checks.member_answered(self, response)
        self._failures = 0
        try:
            self.membership._received(response)
        except NotCoordinatorError as error:
            self.disconnected(connection, error)
            connection.closed_by_member()
            return
        self._pump()
        if misled_since_ms is not None:
            self.world.checks.misled_no_more(self, misled_since_ms)

    def disconnects(self, connection: MemberConnection, error: HeadraceError) -> None:
        self.do(lambda: self.disconnected(connection, error))

    def disconnected(self, connection: MemberConnection, error: HeadraceError | None) -> None:
        """The stream has ended, from either side."""
        if connection is not self.connection:
            return
        self.connection = None
        self.coordinator = None
        self.world.tell(self, f"is disconnected: {error}")
        self.member.disconnected(self._now())
        if error is not None and not error.retriable and not isinstance(error, NetworkError):
            self.member.refused(0, error, self._now())
        self._pump()
        self._failures += 1
        self._dial_later(20.0 if self._failures <= 1 else min(20.0 * 2 ** min(self._failures, 4), 200.0))

    def _look_who_has_the_shard(self) -> None:
        """``Membership._watch_shard``."""
        if self._is_looking or not self.member.needs_news:
            return
        self._is_looking = True
        world = self.world
        pause_ms = 200.0 if self.member.is_orphaned else self.member.grace_s * 1_000 / NEWS_IN_GRACE
        asked_s = 0.0

        def ask() -> None:
            nonlocal asked_s
            asked_s = self._now()
            found = world.who_has(self)
            world.scheduler.after(world.rng.uniform(0.5, 30.0), self._in_this_life(lambda: answered(*found)))

        def answered(shard_epoch: int, is_vacant: bool, age_ms: float | None) -> None:
            self._is_looking = False
            was_orphaned = self.member.is_orphaned
            as_of_s = None if age_ms is None else asked_s - age_ms / 1_000
            self.member.looked_up(shard_epoch, as_of_s, self._now(), is_vacant=is_vacant)
            if self.member.is_orphaned and not was_orphaned:
                world.count("member", "reads on without a coordinator")
            self._pump()

        world.scheduler.after(pause_ms * self.rng.uniform(0.7, 1.0), self._in_this_life(ask))

    def _pump(self) -> None:
        """Send what the member has to send, and schedule the check for the next message."""
        now, member = self._now(), self.member
        member.tick(now)
        self._settle()
        if not self.is_alive:
            return
        self._look_who_has_the_shard()
        request = member.request(now)
        if request is not None and self.connection is not None:
            self._asked_ms = self.world.scheduler.now_ms
            self.connection.to_coordinator(self.membership._encode(request))
        wake_s = min(member.next_at(), member.look_at())
        if member.is_waiting:
            if self.world.scheduler.now_ms - self._asked_ms >= REQUEST_TIMEOUT_MS and self.connection is not None:
                connection = self.connection
                self.world.count("member", "gave a connection up")
                self.disconnected(connection, NetworkError("no answer"))
                connection.closed_by_member()
                return
            wake_s = min(wake_s, (self._asked_ms + REQUEST_TIMEOUT_MS) / 1_000)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if wake_s != float("inf"):
            self._wake = self.world.scheduler.at(max(wake_s * 1_000, self.world.scheduler.now_ms + 0.5),
                                                 self._in_this_life(self._pump))  # fmt: skip

    # -- what the member has for its consumer to do ------------------------------------------------------------------

    def _settle(self) -> None:
        for event in self.member.take_events():
            self.world.tell(self, f"{event}"[:300]) if self.world.story.is_wanted else None
            match event:
                case Assign(ticket, parts):
                    self._arrive(ticket, parts)
                case Revoke():
                    self._revoke(event)
                case Lost():
                    self.world.count("member", "lost its partitions")
                    self._let_go_of_all()
                case Suspended():
                    self.world.count("member", "suspended")
                    self.world.checks.suspends(self)
                case Resumed():
                    self.world.checks.resumes(self)
                case Failed(error):
                    self.world.count("member", f"refused for good: {error.code}")
                    self.world.tell(self, f"ends: {error}")
                    self.kill()
                    self.world.member_ended(self)
                    return

    def _arrive(self, ticket: int, parts: Parts) -> None:
        """Fetch the committed offsets of the assigned partitions, then read them."""
        wanted = sorted(parts)
        life = self.life
        floors = self.world.checks.floors(self.group_id, wanted)

        def make() -> Any:
            request = groups_pb2.FetchOffsetsRequest(require_stable=True)
            of_group = request.groups.add(group_id=self.group_id, member_epoch=-1)
            of_group.partitions.SetInParent()
            for part in wanted:
                of_group.partitions.partitions.add(topic=part.topic, partition=part.partition)
            floors.update(self.world.checks.floors(self.group_id, wanted))
            return request

        def check(answer: Any) -> None:
            (received,) = answer.groups
            for each in (received, *received.offsets):
                if each.error.code:
                    raise from_number(each.error.code, each.error.message)

        def answered(outcome: Any) -> None:
            if not self.is_alive or self.life != life:
                return
            if isinstance(outcome, HeadraceError):
                self.world.scheduler.after(200.0, self._in_this_life(lambda: self._arrive(ticket, parts)))
                return
            found = {(each.topic, each.partition): each.offset for each in outcome.groups[0].offsets}
            begun = self.member.begin(ticket, self._now())
            for part in wanted:
                if part not in begun:
                    continue
                offset = found[part.topic, part.partition]
                self.world.checks.begins_at(self, part, offset, floors.get(part))
                self.held[part] = max(offset, 0)
                self.reading[part] = None
                self.world.checks.holds(self, part)
                if not self.member.is_suspended:
                    self.world.checks.reads(self, part)
            self._pump()

        def came(outcome: Any) -> None:
            if self.world.scheduler.now_ms < self.offsets_late_until_ms:
                later = self._in_this_life(lambda: answered(outcome))
                self.world.scheduler.after(self.offsets_late_ms, later)
            else:
                self.do(lambda: answered(outcome))

        self.call("FetchOffsets", make, came, check)

    def _revoke(self, event: Revoke) -> None:
        self._revoking[event.ticket] = event
        for part in sorted(event.parts):
            if part in self.reading:
                del self.reading[part]
                if not self.member.is_suspended:
                    self.world.checks.stops_reading(self, part)
        self.world.checks.revokes(self, event.parts)
        timeout_ms, delay_ms = self.world.plan.rebalance_timeout_ms, 0.0
        if self.world.scheduler.now_ms < self.is_late_until_ms:
            delay_ms = timeout_ms + self.rng.uniform(700.0, 1_500.0)
        elif self.world.scheduler.now_ms < self.is_slow_until_ms:
            delay_ms = self.rng.uniform(0.1, 0.8) * timeout_ms

        def let_go() -> None:
            if self._revoking.pop(event.ticket, None) is None:
                return
            for part in event.parts:
                if self.held.pop(part, None) is not None:
                    self.world.checks.lets_go(self, part)
            self.member.released(event.ticket)
            self._pump()

        def commit() -> None:
            if event.ticket in self._revoking:
                self._commit({part: self.held[part] for part in sorted(event.parts) if part in self.held}, let_go)

        if delay_ms:
            self.world.scheduler.after(delay_ms, self._in_this_life(commit))
        else:
            commit()

    def _let_go_of_all(self) -> None:
        is_reading = not self.member.is_suspended and not self.is_paused
        for part in self.reading:
            if is_reading:
                self.world.checks.stops_reading(self, part)
        for part in self.held:
            self.world.checks.lets_go(self, part)
        self.reading.clear()
        self.held.clear()
        self._revoking.clear()

    # -- reading and committing --------------------------------------------------------------------------------------

    def _read_on(self, life: int) -> None:
        if not self.is_alive or self.life != life:
            return
        if not self.is_paused and not self.member.is_suspended:
            for part in self.reading:
                self.held[part] += self.rng.randrange(3)
        self.world.scheduler.after(self.rng.uniform(20.0, 60.0), self._read_on, life)

    def _commit_now_and_then(self, life: int) -> None:
        if not self.is_alive or self.life != life:
            return

        def act() -> None:
            if self.held and not self._is_committing and self.world.may_commit:
                self._commit(dict(self.held), lambda: None)

        self.do(act)
        self.world.scheduler.after(self.rng.uniform(60.0, 250.0), self._commit_now_and_then, life)

    def _commit(self, offsets: dict[Part, int], done: Callable[[], None]) -> None:
        """Commits are sent one after the other, each with the epoch under which its partitions are or were owned at the
        request (``headrace.group.commits``)."""
        epoch = self.member.epoch if self.member.epoch != 0 else -1  # (GroupConsumer._who)
        by_epoch: dict[int, dict[Part, int]] = {epoch: {}}
        for part, offset in offsets.items():
            by_epoch.setdefault(self.member.ended.get(part, epoch), {})[part] = offset
        *first, last = sorted(by_epoch.items(), reverse=True)
        self._commits.extend((theirs, of, lambda: None) for of, theirs in first)
        self._commits.append((last[1], last[0], done))
        self._next_commit()

    def _next_commit(self) -> None:
        if self._is_committing or not self._commits or not self.is_alive:
            return
        offsets, epoch, done = self._commits.popleft()
        if not offsets:
            done()
            self._next_commit()
            return
        self._is_committing = True
        self._sequence += 1
        life, sequence = self.life, self._sequence
        tags: list[str] = []
        earlier: list[list[str]] = []

        def make() -> Any:
            request = groups_pb2.CommitOffsetsRequest(
                group_id=self.group_id, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id,
                sequence=sequence,
            )  # fmt: skip
            earlier.append(list(tags))
            tags.clear()
            for part, offset in sorted(offsets.items()):
                attempt = Attempt(self.group_id, part.topic, part.partition, offset, self.member_id, epoch, False)
                tags.append(self.world.checks.attempted(attempt))
                request.offsets.add(topic=part.topic, partition=part.partition, offset=offset, metadata=tags[-1],
                                    topic_id=part.topic_id)  # fmt: skip
            return request

        def check(answer: Any) -> None:
            errors = []
            for number, (tag, each) in enumerate(zip(tags, answer.results, strict=True)):
                if each.error.code:
                    errors.append(from_number(each.error.code, each.error.message))
                    self.world.checks.refused(tag, errors[-1])
                else:  # (a repeated commit that has succeeded is not written again)
                    self.world.checks.acknowledged(tag, *(attempt[number] for attempt in earlier if attempt))
            raise_worst(errors)

        def refused(error: HeadraceError, is_whole: bool) -> bool:
            if is_whole:
                for tag in tags:
                    self.world.checks.refused(tag, error)
            return False

        def finish() -> None:
            if self.life == life:
                self._is_committing = False
                done()
                self._next_commit()

        self.call("CommitOffsets", make, lambda outcome: self.do(finish), check, refused)


def raise_worst(errors: list[HeadraceError]) -> None:
    """Raise the first error, like the SDK's raise_first: errors that are not retriable come first."""
    for error in errors:
        if not error.retriable:
            raise error
    for error in errors:
        raise error


class Committer(Caller):
    """A consumer without a group membership that commits increasing offsets, one at a time, and sometimes fetches its
    committed offset."""

    def __init__(self, world: GroupWorld, number: int) -> None:
        super().__init__(world, f"committer {number}", f"plain{number}")
        self.number = number
        self.sent = 0
        #: Another client, which keeps its coordinator as long as that coordinator answers.
        self._reader = Caller(world, f"reader {number}", self.group_id)

    def begin(self) -> None:
        self.world.scheduler.after(self.world.rng.uniform(10.0, 60.0), self._next)

    def _part(self) -> Part | None:
        topic = self.world.image.topic(self.world.topic_names[0])
        return None if topic is None else Part(topic.topic_id, topic.name, 0)

    def _next(self) -> None:
        part = self._part()
        if part is None:
            self.begin()
        elif self.world.rng.random() < 0.4 or not self.world.may_commit:
            self._look(part)
        else:
            self._commit(part)

    def _commit(self, part: Part) -> None:
        self.sent += 1
        offset, tags = self.sent, []

        def make() -> Any:
            request = groups_pb2.CommitOffsetsRequest(group_id=self.group_id, member_epoch=-1)
            tags.append(self.world.checks.attempted(
                Attempt(self.group_id, part.topic, part.partition, offset, "", -1, False)))  # fmt: skip
            request.offsets.add(topic=part.topic, partition=0, offset=offset, metadata=tags[-1], topic_id=part.topic_id)
            return request

        def check(answer: Any) -> None:
            (result,) = answer.results
            if result.error.code:
                error = from_number(result.error.code, result.error.message)
                self.world.checks.refused(tags[-1], error)
                raise error
            self.world.checks.acknowledged(tags[-1])

        self.call("CommitOffsets", make, lambda outcome: self.begin(), check)

    def _look(self, part: Part) -> None:
        floors: dict[Part, Any] = {}

        def make() -> Any:
            request = groups_pb2.FetchOffsetsRequest()
            of_group = request.groups.add(group_id=self.group_id, member_epoch=-1)
            of_group.partitions.partitions.add(topic=part.topic, partition=0)
            floors.update(self.world.checks.floors(self.group_id, [part]))
            return request

        def check(answer: Any) -> None:
            (received,) = answer.groups
            for each in (received, *received.offsets):
                if each.error.code:
                    raise from_number(each.error.code, each.error.message)

        def answered(outcome: Any) -> None:
            if not isinstance(outcome, HeadraceError):
                offset = outcome.groups[0].offsets[0].offset
                self.world.checks.begins_at(self._reader, part, offset, floors.get(part))
            self.begin()

        self._reader.call("FetchOffsets", make, answered, check)


def host_of(found: tuple[int, int] | None, world: GroupWorld) -> Coordinator | None:
    """The process that was looked up, if it is still the same process."""
    if found is None:
        return None
    host = world.hosts[found[0] - 1]
    return host.process if host.life == found[1] else None
