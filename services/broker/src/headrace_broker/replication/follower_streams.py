"""The streams of this broker as a follower. There is one live stream to each broker that leads a partition replicated
on this broker. A catch-up stream to a broker is added while this broker is far behind in any partition that the other
broker leads.

For each stream, a task connects to the leader, and reconnects as long as the stream has partitions. Within a stream,
one task writes and one reads (rpc/duplex.py). While a message is being sent, outgoing items are collected, so under
load one message contains hundreds of acknowledgements. After a stream broke, the first reconnection has no pause; the
following pauses grow to one second. The partitions of a broken stream join again on the next stream.

The leaders and their addresses come from the metadata (``roles``). Each stream has its own connection, so records delay
no heartbeat, and catching up delays no live stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from headrace_core.errors import HeadraceError, NetworkError
from headrace_core.membership.broker_session import LackingLeader
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.node.listeners import INTERNAL
from headrace_core.rpc import PLAINTEXT, ChannelPurpose, Channels
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.outage import Backoff, Outage
from headrace_core.telemetry import Emitter, Metrics, PushRefused, ReplicaTruncated, TruncationRefused
from headrace_protos.v1.replication_pb2 import (
    FollowAck,
    FollowEnded,
    FollowHello,
    FollowJoin,
    FollowJoined,
    FollowOffsetsUpdate,
    FollowPush,
    FollowRequest,
    FollowResponse,
    ReplicationLane,
)
from headrace_protos.v1.replication_pb2_grpc import ReplicationStub

from ..partition.follower_joins import FollowerJoins
from ..partition.push_stream import CATCH_UP, LIVE
from ..settings import BrokerIdentity
from ..tracing import BrokerTraces, Outcome
from .follower_replica import FollowerReplica

logger = logging.getLogger("headrace.broker.replication")

STREAM_WINDOW_BYTES = 32 * 1024 * 1024  #: Maximum bytes of unacknowledged records on one replication stream.
HEARTBEAT_S = 1.0  #: Seconds between two heartbeats to a leader (``sends_heartbeats`` in replication.proto).
#: A leader that sends heartbeats counts as disconnected or frozen after this number of seconds without a message. The
#: silence limit doubles, up to SILENCE_MOST_S, after each stream that ended by silence, because a large push may take
#: long. The next push of the leader resets the silence limit.
SILENCE_S, SILENCE_MOST_S = 3.0, 30.0
#: If a silence check runs STALLED_S late, the event loop has stalled, and the check does not count the leader as
#: silent.
STALLED_S = 0.5
_HEARTBEAT = FollowRequest()
#: First and longest pause in milliseconds between two attempts to connect to a leader. After a stream that lasted
#: _LASTED_S seconds, the follower reconnects at once.
_RETRY_FIRST_MS, _RETRY_MOST_MS, _LASTED_S = 50.0, 1_000.0, 1.0
#: Seconds until the follower repeats an action that failed after the leader had confirmed a leave.
_CONFIRM_AGAIN_S = 1.0

_Call = Duplex[Any, Any]


class FollowerStreams:
    """All replication streams of this broker as a follower. Call all methods in the event loop."""

    def __init__(
        self,
        identity: BrokerIdentity,
        *,
        events: Emitter,
        metrics: Metrics,
        channels: Channels = PLAINTEXT,
        traces: BrokerTraces | None = None,
        on_lacking: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_lacking`` is called when ``lacking_leaders`` has a new item."""
        self._on_lacking = on_lacking
        #: Replicas whose leaders lacked committed records at a join.
        self._lacking: dict[FollowerReplica, None] = {}
        self._identity = identity
        self._traces = traces
        self.channels = channels
        self._events = events
        self.bytes_in = metrics.counter("replication-bytes-in")
        self.pushes_in = metrics.counter("replication-pushes-in")
        self.refused_pushes = metrics.counter("replication-pushes-refused")
        self._addresses: dict[int, str] = {}
        self._streams: dict[tuple[int, ReplicationLane], _Stream] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_open = True

    def follow(self, replica: FollowerReplica) -> None:
        """Follow ``replica``'s leader."""
        replica.begin(self)

    def unfollow(self, replica: FollowerReplica) -> None:
        """Stop following with this replica, because it gets another role."""
        self._lacking.pop(replica, None)
        self.leave(replica)

    def confirm_leave(self, replica: FollowerReplica, done: Callable[[], None]) -> Callable[[], None]:
        """Call ``done`` when the leader of ``replica`` has confirmed the receipt of the leave. The leader's answer
        arrives on the stream on which the leave was sent, or on a later stream. Returns a function that cancels the
        confirmation."""
        confirmation = LeaveConfirmation(replica, self, done)
        self.join(confirmation)
        return confirmation.cancel

    def metadata_changed(self, image: MetadataImage, delta: MetadataDelta | None = None) -> None:
        """Update broker addresses; call this before the partitions change. ``delta`` None means that everything in the
        image is new."""
        for broker_id in image.brokers if delta is None else delta.brokers:
            broker = image.brokers.get(broker_id)
            endpoint = None if broker is None else broker.endpoint(INTERNAL)
            if endpoint is None:
                self._addresses.pop(broker_id, None)
                continue
            self._addresses[broker_id] = f"{endpoint.host}:{endpoint.port}"
            for kind in (LIVE, CATCH_UP):
                stream = self._streams.get((broker_id, kind))
                if stream is not None:
                    stream.look_again()

    def address_of(self, broker_id: int) -> str | None:
        """Address of a broker's internal listener."""
        return self._addresses.get(broker_id)

    def hello(self, leader_id: int, kind: ReplicationLane) -> FollowHello:
        me = self._identity
        return FollowHello(
            cluster_id=me.cluster_id,
            broker_id=me.broker_id,
            broker_epoch=me.broker_epoch,
            leader_id=leader_id,
            lane=kind,
            window_bytes=STREAM_WINDOW_BYTES,
            sends_heartbeats=True,
        )

    async def close(self) -> None:
        """End all streams. Idempotent."""
        self._is_open = False
        streams, self._streams = list(self._streams.values()), {}
        for stream in streams:
            stream.end()
        await asyncio.gather(*(stream.task for stream in streams), *self._ending, return_exceptions=True)

    def join(self, replica: OnStream) -> None:
        if not self._is_open:
            return
        self._take_off((replica.leader_id, CATCH_UP if replica.kind == LIVE else LIVE), replica)
        key = (replica.leader_id, replica.kind)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(self, *key)
        stream.joins.join(replica)
        stream.wake()

    def leave(self, replica: OnStream, *, cannot_append: bool = False) -> None:
        for kind in (LIVE, CATCH_UP):
            self._take_off((replica.leader_id, kind), replica, cannot_append=cannot_append)

    def ack_due(self, replica: FollowerReplica) -> None:
        stream = self._streams.get((replica.leader_id, replica.kind))
        if stream is not None:
            stream.joins.ack_due(replica)
            stream.wake()

    def wake(self, replica: FollowerReplica) -> None:
        stream = self._streams.get((replica.leader_id, replica.kind))
        if stream is not None:
            stream.wake()

    def replicating(self, replica: FollowerReplica, push: FollowPush) -> Callable[[Outcome], None] | None:
        traces = self._traces
        return None if traces is None else traces.replicate(replica.partition, replica.leader_id, push.traces)

    def refused(self, replica: FollowerReplica, error: HeadraceError) -> None:
        self.refused_pushes.value += 1
        self._events.emit(PushRefused(partition=replica.partition, leader_id=replica.leader_id, reason=error.message))

    def leader_lacks(self, replica: FollowerReplica, error: HeadraceError) -> None:
        if replica not in self._lacking:
            self._lacking[replica] = None
            self._events.emit(
                TruncationRefused(
                    partition=replica.partition,
                    leader_id=replica.leader_id,
                    leader_epoch=replica.leader_epoch,
                    reason=error.message,
                )
            )
            self._on_lacking()  # not at every retry: the retries of 1,000 replicas would be 500 heartbeats a second

    def lacking_leaders(self) -> list[LackingLeader]:
        """The leaders that lack committed records, as the controllers need them."""
        return [
            LackingLeader(each.topic_id, each.number, each.leader_epoch)
            for each in self._lacking
            if each.follower.leader_lacks is not None
        ]

    def truncated(self, replica: FollowerReplica, from_offset: int) -> None:
        self._events.emit(
            ReplicaTruncated(
                partition=replica.partition,
                leader_id=replica.leader_id,
                leader_epoch=replica.leader_epoch,
                from_offset=from_offset,
                to_offset=replica.log.log_end_offset,
            )
        )

    def describe(self) -> list[tuple[int, ReplicationLane, int, bool]]:
        """(leader, kind, partitions, connected) of every stream; for tests and operators."""
        return [(*key, len(stream.joins), stream.is_connected) for key, stream in self._streams.items()]

    def _take_off(self, key: tuple[int, ReplicationLane], replica: OnStream, *, cannot_append: bool = False) -> None:
        stream = self._streams.get(key)
        if stream is None:
            return
        if replica in stream.joins:
            stream.joins.leave(replica, cannot_append=cannot_append)
            stream.wake()
        if stream.joins or cannot_append:  # keep the stream: the leave must be sent, and the replica returns
            return
        # The stream has no partitions: the last partition has left, or the leader ended the stream and the partition
        # has not joined again. The next partition that joins this leader opens a new stream.
        del self._streams[key]
        stream.end()
        self._ending.add(stream.task)
        stream.task.add_done_callback(self._ending.discard)


def _end_waiting(waiting: asyncio.Future[bool]) -> None:
    if not waiting.done():
        waiting.set_result(False)


class _Stream:
    """The task that keeps one stream (live or catch-up) to one leader open, over one connection after another."""

    def __init__(self, streams: FollowerStreams, leader_id: int, kind: ReplicationLane) -> None:
        self.joins: FollowerJoins[OnStream] = FollowerJoins()
        self.is_connected = False
        self._streams = streams
        self.leader_id = leader_id
        self._kind = kind
        self._call: _Call | None = None
        self._silence_s = SILENCE_S
        #: The future on which the stream's writer waits until there is a message to send.
        self.waiting: asyncio.Future[bool] | None = None
        #: An event that is set when the stream ends, or when it should reconnect without a pause.
        self._changed = asyncio.Event()
        self._address = ""
        self._is_ending = False
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"following broker {leader_id}")

    def wake(self) -> None:
        """Note that there may be a message to send on the stream."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(True)

    def hello(self) -> FollowHello:
        return self._streams.hello(self.leader_id, self._kind)

    def look_again(self) -> None:
        """Reconnect at once, because the leader may have another address or be reachable again."""
        self._changed.set()
        if self._call is not None and self._streams.address_of(self.leader_id) != self._address:
            self._call.cancel()

    def end(self) -> None:
        """Begin to end the stream; the call does not wait for the end."""
        self._is_ending = True
        self._changed.set()
        if self._call is not None:
            self._call.cancel()

    async def _run(self) -> None:
        backoff, outage = (
            Backoff(first_ms=_RETRY_FIRST_MS, most_ms=_RETRY_MOST_MS),
            Outage(logger, "replication", whom=f"broker {self.leader_id}"),
        )
        loop = asyncio.get_running_loop()
        while not self._is_ending:
            self._changed.clear()
            address = self._streams.address_of(self.leader_id)
            # The leader is not registered; a later metadata change will contain the leader's address, or another
            # leader.
            if address is None:
                await self._changed.wait()
                continue
            began_s = loop.time()
            try:
                await self._converse(address, outage, backoff)
            except HeadraceError as error:
                if not self._is_ending:
                    outage.failed(address, error)
            except Exception:  # one of the parts of the stream has a bug
                logger.exception(
                    "the replication stream from broker %d: unexpected error; reconnecting", self.leader_id
                )
            for lost in self.joins.broken():
                lost.lost()
            if self._is_ending:
                break
            if loop.time() - began_s >= _LASTED_S:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._changed.wait()

    async def _converse(self, address: str, outage: Outage, backoff: Backoff) -> None:
        """Run one connection to its end; raises HeadraceError."""
        purpose = ChannelPurpose.REPLICATION if self._kind == LIVE else ChannelPurpose.CATCH_UP
        call: _Call = Duplex(
            address,
            purpose,
            lambda channel: ReplicationStub(channel).Follow(),  # type: ignore[no-untyped-call]
            self._streams.channels,
        )
        self._call, self._address = call, address
        silence = _Silence(self._silence_s, self._fell_silent)
        loop = asyncio.get_running_loop()

        async def read() -> None:
            while True:
                response = await call.read()
                if not self.is_connected:
                    self.is_connected = True
                    outage.over()
                    backoff.reset()
                silence.over_s = loop.time() + silence.max_s
                if response.sends_heartbeats:
                    silence.watch()
                if response.pushes:
                    self._silence_s = SILENCE_S
                self._received(response)
                del response

        try:
            await call.run(read(), self._write(call))
        finally:
            self.is_connected = False
            self._call = None
            silence.end()

    async def _write(self, call: _Call) -> None:
        """Write what there is to send; a heartbeat if there has been nothing for HEARTBEAT_S seconds."""
        await call.connected()
        await call.write(FollowRequest(hello=self.hello()))
        loop = asyncio.get_running_loop()
        while True:
            request = self.joins.next()
            if request is None:
                waiting = self.waiting = loop.create_future()
                timer = loop.call_later(HEARTBEAT_S, _end_waiting, waiting)
                try:
                    if await waiting:
                        continue
                finally:
                    timer.cancel()
                    self.waiting = None
                request = _HEARTBEAT
            await call.write(request)

    def _fell_silent(self) -> None:
        silence_s, self._silence_s = self._silence_s, min(self._silence_s * 2, SILENCE_MOST_S)
        if self._call is not None:
            self._call.cancel(
                NetworkError(
                    f"{self._address}: broker {self.leader_id} sent nothing for {silence_s:.0f} s; reconnecting"
                )
            )

    def _received(self, response: FollowResponse) -> None:
        joins, streams = self.joins, self._streams
        for answer in response.joined:
            replica = joins.joined(answer)
            if replica is not None:
                self._apply(replica, replica.joined, answer)
        for push in response.pushes:
            records = push.records  # a bytes object of its own, which keeps no other part of the message in memory
            streams.bytes_in.value += len(records)
            replica = joins.find(push.handle)
            if replica is not None:
                self._apply(replica, replica.pushed, push, records)
        streams.pushes_in.value += len(response.pushes)
        for update in response.updates:
            replica = joins.find(update.handle)
            if replica is not None:
                self._apply(replica, replica.updated, update)
        for ended in response.ended:
            replica = joins.ended(ended)
            if replica is not None:
                self._apply(replica, replica.ended, ended)

    def _apply(self, replica: OnStream, apply: Callable[..., None], *message: Any) -> None:
        """Pass a part of a message to ``replica``. An error in ``replica`` affects this replica alone; the other
        replicas on the stream continue."""
        try:
            apply(*message)
        except Exception as error:
            logger.exception(
                "cannot apply a %s message of leader %d to a replica, which leaves the stream and joins again",
                type(message[0]).__name__.removeprefix("Follow"),
                self.leader_id,
            )
            self._streams.leave(replica)
            replica.stumbled(error)


class _Silence:
    """Calls ``is_over`` if a leader that sends heartbeats has sent no message for ``max_s`` seconds."""

    def __init__(self, max_s: float, is_over: Callable[[], None]) -> None:
        self.max_s = max_s
        self.over_s = 0.0  #: Loop time at which the silence is too long.
        self._is_over = is_over
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self.over_s, self._look)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        if now_s - self.over_s > STALLED_S:
            self.over_s = now_s + self.max_s  # this broker has read nothing, so silence proves nothing
        if now_s >= self.over_s:
            self._is_over()
        else:
            self._timer = self._loop.call_at(self.over_s, self._look)


class LeaveConfirmation:
    """Confirms a leave: the empty replica joins the same stream again after the leave, and leaves the stream when the
    answer arrives.

    The leader reads the messages of a stream in order. An answer to a join that was sent after a leave shows that the
    leader received the leave. An answer on a later stream also confirms the leave, because the joins of an earlier
    stream ended with that stream.
    """

    def __init__(self, replica: FollowerReplica, streams: FollowerStreams, done: Callable[[], None]) -> None:
        self.leader_id = replica.leader_id
        self.kind = replica.kind
        self.can_join = True
        self._leader_epoch = replica.leader_epoch
        self._topic_id, self._partition = replica.topic_id, replica.number
        self._streams = streams
        self._done = done
        self._again: asyncio.TimerHandle | None = None

    def join(self, handle: int) -> FollowJoin:
        return FollowJoin(
            handle=handle,
            topic_id=self._topic_id,
            partition=self._partition,
            leader_epoch=self._leader_epoch,
            last_epoch=-1,
            window_bytes=1,
        )

    def next_ack(self) -> FollowAck | None:
        return None

    def joined(self, answer: FollowJoined) -> None:
        """Called with the leader's answer to the join; any answer confirms the leave."""
        self._streams.leave(self)
        self._done()

    def pushed(self, push: FollowPush, records: bytes) -> None:
        pass

    def updated(self, update: FollowOffsetsUpdate) -> None:
        pass

    def ended(self, message: FollowEnded) -> None:
        pass

    def lost(self) -> None:
        pass

    def stumbled(self, error: Exception) -> None:
        """Called when the callback ``done`` failed: join again after a pause, so that the next answer calls ``done``
        again."""
        self._again = asyncio.get_running_loop().call_later(_CONFIRM_AGAIN_S, self._streams.join, self)

    def cancel(self) -> None:
        """Stop confirming the leave, because the confirmation is not needed any more."""
        if self._again is not None:
            self._again.cancel()
        self._streams.leave(self)


#: A replica on a stream: it follows its leader, or it has left and waits until the leader confirms the leave.
OnStream = FollowerReplica | LeaveConfirmation
