"""The stream between a group member and its coordinator. The stream runs on the I/O thread, so that heartbeats never
wait for the caller."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Any

from headrace_core.clock import boottime_s
from headrace_core.errors import BootstrapError, HeadraceError, NetworkError, NotCoordinatorError, from_number
from headrace_core.rpc.duplex import Duplex
from headrace_protos.v1 import groups_pb2

from ..engine.client import Engine
from ..engine.coordinators import LOOK_EVERY_S, Coordinators
from .member import Answer, Member, Part, Request, Subscription

logger = logging.getLogger("headrace")

#: FindCoordinator timeout in seconds while the member's lease depends on the answer, and seconds between
#: FindCoordinator calls after the coordinator has lost the group's shard.
NEWS_TIMEOUT_S, NEWS_EVERY_S = 1.0, 1.0
#: Number of lookups of the group's shard in one grace period, until the coordinator is known to have lost the shard.
NEWS_IN_GRACE = 6
#: Timeout of a leave request in seconds. A lost leave request is harmless: the coordinator also notices the closed
#: connection.
LEAVE_S = 3.0
FIRST_RETRY_S = 0.02
#: Number of failures in a row that are normal while a group gets a new coordinator; the member logs the next failure,
#: once.
FAILURES_BEFORE_WARNING = 6


Stream = Duplex[groups_pb2.MembershipRequest, groups_pb2.MembershipResponse]

#: Correlation id of the leave request; heartbeats have the numbers from 1 on.
_LEAVE = 1 << 62


class Membership:
    """The membership of a consumer; ``has_events`` is called when the member has events for the consumer
    (``member.take_events``)."""

    def __init__(
        self,
        engine: Engine,
        coordinators: Coordinators,
        config: dict[str, Any],
        member_id: str,
        has_events: Callable[[], None],
    ) -> None:
        self.member = Member(
            retry_s=config["retry.backoff.ms"] / 1000, rebalance_timeout_s=config["max.poll.interval.ms"] / 1000
        )
        self.group_id: str = config["group.id"]
        self.member_id = member_id
        self.instance_id: str | None = config["group.instance.id"]
        self._engine = engine
        self._coordinators = coordinators
        self._config = config
        self._has_events = has_events
        self._subscription = Subscription()
        self._event = asyncio.Event()
        self._lease_changed = asyncio.Event()
        self._disconnected = asyncio.Event()
        self._address = ""
        self._stream: Stream | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._goodbye: groups_pb2.MembershipRequest | None = None  # the leave request that the stream has to write
        self._left: asyncio.Future[None] | None = None
        #: Called with an error that an operator must resolve; the client continues to retry the failed operation.
        self.has_trouble: Callable[[HeadraceError], None] = lambda _: None
        #: The time (time.monotonic()) of the first failure after the last success, and the last error; None while
        #: requests succeed.
        self.waiting: tuple[float, HeadraceError] | None = None
        #: Called when ``waiting`` changes from None to a value.
        self.begins_to_wait: Callable[[], None] = lambda: None
        self._was_answered = False

    # -- called by the consumer --------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self._subscription = subscription
        if self.member.is_wanted:
            self.member.subscribed_anew()
        else:
            self.member.join(boottime_s())
        if not self._tasks:
            self._engine.start()
            spawn = self._engine.io.spawn
            self._tasks = [
                spawn(self._run(), "headrace-member"),
                spawn(self._watch_lease(), "headrace-member-lease"),
                spawn(self._watch_shard(), "headrace-member-shard"),
            ]
        self.nudge()

    def nudge(self) -> None:
        """Wake the stream, because the member has new input."""
        self._event.set()
        self._lease_changed.set()
        self._has_events()

    async def leave(self) -> None:
        """Send a leave request if there is a connection, then end the stream. A static member stays in the group until
        its session times out. Do not call ``leave`` during another leave or during ``subscribe``."""
        # A join may be in flight, so the member may belong to the group.
        may_be_member = self.member.epoch != 0 or self.member.is_waiting
        self.member.left()
        self.waiting = None
        tasks, self._tasks = self._tasks, []
        try:
            if self._stream is not None and may_be_member:
                await self._say_goodbye()
        finally:  # also on cancellation
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Drop the references to the consumer, after ``leave``: without reference cycles, Python frees a closed
        consumer at once."""
        self.waiting = None
        self._has_events = self.begins_to_wait = lambda: None
        self.has_trouble = lambda _: None

    async def _say_goodbye(self) -> None:
        """Send the leave request, and wait for its response or for the end of the stream."""
        self._left = asyncio.get_running_loop().create_future()
        request = self._goodbye = groups_pb2.MembershipRequest(correlation_id=_LEAVE)
        request.leave.group_id, request.leave.member_id = self.group_id, self.member_id
        if self.instance_id is not None:
            request.leave.instance_id, request.leave.temporarily = self.instance_id, True
        self._event.set()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._left
        except TimeoutError:
            logger.info(
                "group %r: the coordinator did not confirm in time that member %s left", self.group_id, self.member_id
            )
        finally:
            self._left = self._goodbye = None

    # -- the stream --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            while not self.member.is_wanted:
                self._event.clear()
                await self._event.wait()
            self._was_answered = False
            try:
                self._address = await self._coordinators.address(self.group_id, self._engine.request_timeout_s)
                await self._session(self._address)
            except HeadraceError as error:
                self._waits(error)
                self._coordinators.forget(self.group_id, self._address)
                log = logger.warning if failures == FAILURES_BEFORE_WARNING else logger.info
                log("group %r: the stream to the coordinator ended: %s", self.group_id, error)
                if isinstance(error, BootstrapError):
                    self.has_trouble(error)
                elif not error.retriable and not isinstance(error, NetworkError):
                    self.member.refused(0, error, boottime_s())
                    self.nudge()
            except Exception:  # a bug of the client: the member and its reading continue
                logger.exception(
                    "group %r: the stream to the coordinator: unexpected error; reconnecting", self.group_id
                )
            failures = 0 if self._was_answered else failures + 1
            # (The first retry has no wait: a member keeps its partitions only if it is connected again within the grace
            # period.)
            await asyncio.sleep(self._engine.backoff.delay_s(failures - 1) if failures else FIRST_RETRY_S)

    async def _session(self, address: str) -> None:
        """Run one stream until it breaks; raises HeadraceError."""
        stream = self._stream = self._engine.connections.membership_stream(address)
        try:
            await stream.run(self._read(stream), self._write(stream))
        finally:
            self._stream = None
            self.member.disconnected(boottime_s())
            self._disconnected.set()
            self._goodbye_is_over()
            self.nudge()

    async def _read(self, stream: Stream) -> None:
        while True:
            self._received(await stream.read())

    async def _write(self, stream: Stream) -> None:
        member, timeout_s, sent_at = self.member, self._engine.request_timeout_s, boottime_s()
        look_at = sent_at
        try:
            async with asyncio.timeout(timeout_s):
                await stream.connected()
        except TimeoutError:
            raise NetworkError(f"{stream.address}: cannot connect to the coordinator within {timeout_s:g} s") from None
        member.connected(boottime_s())
        while True:
            self._event.clear()
            now = boottime_s()
            if self._goodbye is not None:
                goodbye, self._goodbye = self._goodbye, None
                await stream.write(goodbye)
            elif (request := member.request(now)) is not None:
                sent_at, look_at = now, now + LOOK_EVERY_S
                await stream.write(self._encode(request))
            elif member.is_waiting and now - sent_at > timeout_s:
                raise NetworkError(f"{stream.address}: the coordinator did not answer a heartbeat for {timeout_s:g} s")
            elif member.is_waiting and now >= look_at:
                look_at = now + LOOK_EVERY_S
                if await self._coordinators.has_moved(self.group_id, stream.address) and member.is_waiting:
                    raise NetworkError(
                        f"{stream.address}: the coordinator did not answer a heartbeat, and the group has moved to "
                        "another coordinator"
                    )
            else:
                await _wait(self._event, min(member.next_at(), now + 1.0))

    def _goodbye_is_over(self) -> None:
        if self._left is not None and not self._left.done():
            self._left.set_result(None)

    def _received(self, response: groups_pb2.MembershipResponse) -> None:
        now, member = boottime_s(), self.member
        if response.correlation_id == _LEAVE:
            self._goodbye_is_over()
            return
        self._was_answered = True
        if response.error.code:
            error = from_number(response.error.code, response.error.message)
            if isinstance(error, NotCoordinatorError):
                member.not_coordinator(response.correlation_id)
                raise error
            self._waits(error)
            member.refused(response.correlation_id, error, now)
        else:
            self.waiting = None
            member.answered(_answer(response), now)
        self.nudge()

    def _waits(self, error: HeadraceError) -> None:
        begins = self.waiting is None
        since = time.monotonic() if self.waiting is None else self.waiting[0]
        # Drop the error's traceback, which would keep the stack frames of this object's tasks in memory.
        self.waiting = since, error.with_traceback(None)
        if begins:
            self.begins_to_wait()

    async def _watch_lease(self) -> None:
        """Call the member's ``tick`` by the time that ``look_at`` returns, with or without a connection."""
        member = self.member
        while True:
            self._lease_changed.clear()
            member.tick(boottime_s())
            self._has_events()
            await _wait(self._lease_changed, member.look_at())

    async def _watch_shard(self) -> None:
        """While the member reads without a connection, look up the coordinator of the group's shard. The lookup runs in
        a task of its own, because the task that connects may hang."""
        member, is_logged = self.member, False
        while True:
            if not member.needs_news:
                is_logged = False
                self._disconnected.clear()
                await self._disconnected.wait()
            pause_s = NEWS_EVERY_S if member.is_orphaned else member.grace_s / NEWS_IN_GRACE
            await asyncio.sleep(pause_s * random.uniform(0.7, 1.0))
            if not member.needs_news:
                continue
            asked_at = boottime_s()
            try:
                found = await self._coordinators.who_has(self.group_id, NEWS_TIMEOUT_S)
            except HeadraceError as error:
                logger.debug("group %r: cannot look up the coordinator of its shard: %s", self.group_id, error)
                continue
            as_of = None if found.age_s is None else asked_at - found.age_s
            member.looked_up(found.shard_epoch, as_of, boottime_s(), is_vacant=found.is_vacant)
            if member.is_orphaned and not is_logged:
                is_logged = True
                logger.warning(
                    "group %r: no coordinator is available; reading continues, commits wait for a coordinator",
                    self.group_id,
                )
            self.nudge()

    def _encode(self, request: Request) -> groups_pb2.MembershipRequest:
        message = groups_pb2.MembershipRequest(correlation_id=request.number)
        heartbeat = message.heartbeat
        heartbeat.group_id, heartbeat.member_id = self.group_id, self.member_id
        heartbeat.member_epoch, heartbeat.revision = request.epoch, request.revision
        if request.is_full:
            config, subscription = self._config, self._subscription
            if self.instance_id is not None:
                heartbeat.instance_id = self.instance_id
            if config["client.rack"]:
                heartbeat.rack = config["client.rack"]
            heartbeat.client_id = config["client.id"] or ""
            heartbeat.rebalance_timeout_ms = config["max.poll.interval.ms"]
            heartbeat.topics.names.extend(subscription.topics)
            heartbeat.topics.SetInParent()
            heartbeat.topic_regex = subscription.pattern
            if config["group.remote.assignor"]:
                heartbeat.assignor = config["group.remote.assignor"]
        if request.owned is not None:
            heartbeat.owned.SetInParent()
            last: Any = None
            for part in sorted(request.owned):
                if last is None or last.topic_id != part.topic_id:
                    last = heartbeat.owned.topics.add(topic_id=part.topic_id, topic=part.topic)
                last.partitions.append(part.partition)
        return message


async def _wait(event: asyncio.Event, moment: float) -> None:
    """Wait for ``event``, at most until ``moment`` (boottime_s(); may be infinite)."""
    try:
        async with asyncio.timeout(None if moment == float("inf") else max(moment - boottime_s(), 0.001)):
            await event.wait()
    except TimeoutError:
        pass


def _answer(response: groups_pb2.MembershipResponse) -> Answer:
    assignment = None
    if response.HasField("assignment"):
        assignment = frozenset(
            Part(topic.topic_id, topic.topic, partition)
            for topic in response.assignment.topics
            if topic.topic  # a topic without a name was just deleted, and its partitions are about to be revoked
            for partition in topic.partitions
        )
    return Answer(
        response.correlation_id,
        response.member_epoch,
        response.revision,
        assignment,
        response.heartbeat_interval_ms / 1000,
        response.session_timeout_ms / 1000,
        response.connection_grace_ms / 1000,
        response.shard_epoch,
        response.ownership_age_ms / 1000 if response.HasField("ownership_age_ms") else None,
    )
