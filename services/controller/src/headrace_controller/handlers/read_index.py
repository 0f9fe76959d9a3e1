"""The age of this controller's metadata, for the controller itself and for the nodes that follow its metadata.

A *barrier* is a linearizable read (ReadIndex, Raft thesis 6.4). In a barrier the leader notes its commit offset;
afterwards a majority confirms that this controller still leads. A leader runs the barrier in its own quorum; any other
controller asks the leader for a barrier. A request that arrives during a barrier waits for the next barrier, because a
barrier covers no commit that is later than its start. All requests that wait share one barrier. A leader that lost its
majority, or was replaced without knowing it, gets no confirmation, so its state never counts as fresh.

Each controller confirms the age of its metadata about once a second with a *deferred* barrier. A deferred barrier uses
the leader's next regular heartbeats and costs the quorum no message. A follower that only asks for the age of its
metadata gets the first available of three answers:

1. the last barrier, if it began within RECENT_MS, with its age;
2. the deferred barrier in flight, if that began within RECENT_MS;
3. a new barrier, deferred unless the last barrier began more than OVERDUE_MS ago.

The follower adds the duration of its call to the age in the answer, so no copy of the metadata looks younger than it
is. Waiting for the next barrier would cost nearly two heartbeat rounds on the controller and two on the leader. With
one barrier for each request, five followers would keep an idle leader busier than its own heartbeats do. Deferred
barriers and other barriers do not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import grpc.aio

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError, NetworkError, NotControllerError, RequestTimedOutError
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.freshness import Freshness, MetadataLag
from headrace_core.rpc import PLAINTEXT, ChannelPurpose, Channels, LiveChannel, error_from_rpc
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

#: Seconds after which a controller without ReadIndex requests confirms the age of its own image.
READ_INDEX_EVERY_S = 0.8
#: Maximum age in milliseconds of a barrier whose result may answer a request. If the latest barrier is older, the
#: request waits for a new barrier, which starts after a delay.
RECENT_MS = 500
#: If the latest barrier is older than this number of milliseconds, later barriers have probably failed. After a late
#: barrier the next barrier is not deferred, so that the caller learns the error soon.
OVERDUE_MS = 1_500
#: Timeout of a ReadIndex barrier in seconds. A leader without a majority resigns after one to two seconds.
BARRIER_TIMEOUT_S = 2.0


class Quorum(Protocol):
    """The methods of a controller that ReadIndex barriers need."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def image(self) -> MetadataImage:
        """The committed metadata, as far as this node has applied it."""

    @property
    def leader_id(self) -> int:
        """Node id of the quorum's leader; -1 if no leader is known."""

    @property
    def term(self) -> int: ...

    def controller_addresses(self) -> Mapping[int, str]:
        """``host:port`` of the internal listener of each voter."""

    def subscribe(self, subscriber: Callable[[MetadataImage, MetadataDelta], None]) -> Callable[[], None]: ...

    async def barrier(self, *, is_deferred: bool = False) -> int:
        """A linearizable read; returns the committed offset. ``is_deferred``: use the next regular heartbeats instead
        of sending extra heartbeats. Raises NotControllerError unless this node leads until a majority has confirmed its
        leadership."""


class ReadIndex(NamedTuple):
    """Result of a barrier: every record that was committed ``age_ms`` before the call is below ``offset``."""

    offset: int
    leader_id: int
    leader_epoch: int
    age_ms: float = 0.0


#: The result of a barrier, which all waiters share: each waiter raises a copy of the error.
_Outcome = ReadIndex | HeadraceError


class _Queue:
    """The requests that wait for a barrier of one kind, deferred or not. The task ``rounds`` runs the barriers over a
    separate channel. If both kinds of barriers shared a channel, closing the channel for one kind would cancel the
    other kind's call."""

    def __init__(self, channels: Channels, *, is_deferred: bool) -> None:
        self._channels = channels
        self.is_deferred = is_deferred
        self.next: asyncio.Future[_Outcome] | None = None
        self.under_way: tuple[float, asyncio.Future[_Outcome]] | None = None  # (began_ms, its waiters)
        self.rounds: asyncio.Task[None] | None = None
        self._link: tuple[str, LiveChannel] | None = None

    async def channel_to(self, address: str) -> grpc.aio.Channel:
        """The channel to the leader; only the task ``rounds`` calls this method."""
        if self._link is None or self._link[0] != address:
            await self.close_link()
            self._link = (address, LiveChannel(self._channels, address, ChannelPurpose.CONTROL))
        return self._link[1].get()

    async def close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link[1].close()


class ReadIndexBarriers:
    """The ReadIndex barriers of one controller. Call ``start`` in the event loop."""

    def __init__(self, quorum: Quorum, clock: Clock, channels: Channels = PLAINTEXT) -> None:
        self._quorum = quorum
        self._clock = clock
        self._freshness = Freshness()
        self._queues = _Queue(channels, is_deferred=False), _Queue(channels, is_deferred=True)
        self._own: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._newest: tuple[float, ReadIndex] | None = None  # the latest barrier as (began_ms, result)

    def start(self) -> None:
        self._freshness.applied(self._quorum.image.next_offset)
        self._unsubscribe = self._quorum.subscribe(lambda image, _: self._freshness.applied(image.next_offset))
        self._own = asyncio.create_task(self._keep_confirming(), name="metadata freshness")

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        tasks = [task for task in (self._own, *(queue.rounds for queue in self._queues)) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._queues:
            await queue.close_link()

    @property
    def lag(self) -> MetadataLag:
        """The lag of the metadata that this controller serves."""
        return self._freshness.lag(self._clock.monotonic_ms())

    @property
    def known_offset(self) -> int:
        """The highest offset up to which the log is known to be committed."""
        return self._freshness.known_offset

    @property
    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def confirmed_since(self, ms: float) -> int | None:
        """The offset of a barrier that began at ``ms`` or later; None if there is no such barrier yet."""
        return self._newest[1].offset if self._newest is not None and self._newest[0] >= ms else None

    async def read(self, *, is_deferred: bool = False) -> ReadIndex:
        """Wait for a barrier that begins after this call. Raises NotControllerError, RequestTimedOutError,
        NetworkError."""
        queue = self._queues[is_deferred]
        if queue.next is None:
            queue.next = asyncio.get_running_loop().create_future()
        shared = queue.next
        if queue.rounds is None or queue.rounds.done():
            queue.rounds = asyncio.create_task(self._run_rounds(queue), name="metadata barriers")
        return await _result(shared)

    async def recent(self) -> ReadIndex:
        """Return the latest barrier with its age, the barrier in flight, or a new barrier (see the module's docstring).
        Raises the errors of ``read``."""
        if self._newest is None or self._quorum.leader_id < 0:
            return await self.read()
        asked_ms = self._clock.monotonic_ms()
        began_ms, index = self._newest
        age_ms = asked_ms - began_ms
        if age_ms <= RECENT_MS:
            return index._replace(age_ms=age_ms)
        under_way = self._queues[True].under_way
        if under_way is not None and asked_ms - under_way[0] <= RECENT_MS:
            # The offset of a barrier covers every record that was committed before the barrier began.
            return (await _result(under_way[1]))._replace(age_ms=asked_ms - under_way[0])
        return await self.read(is_deferred=age_ms <= OVERDUE_MS)

    def not_leading(self) -> NotControllerError:
        """The error for a refused read; the error names the leader if this controller knows it."""
        quorum = self._quorum
        leader, address = quorum.leader_id, quorum.controller_addresses().get(quorum.leader_id, "")
        if leader < 0 or leader == quorum.node_id or not address:
            return NotControllerError("no controller is leader now; retry")
        return NotControllerError(
            f"controller {quorum.node_id} is not the leader; the leader is controller {leader}",
            leader=(leader, quorum.term, address),
        )

    async def _keep_confirming(self) -> None:
        while True:
            left_s = self._until_due_s()
            if left_s <= 0:
                left_s = READ_INDEX_EVERY_S
                # Ignore the error: without a leader, the growing lag shows the failure.
                with contextlib.suppress(HeadraceError):
                    await self.read(is_deferred=True)
            await asyncio.sleep(left_s)

    def _until_due_s(self) -> float:
        """Seconds until this controller's own barrier is due. A barrier that ran for a request also counts as this
        controller's own barrier."""
        if self._newest is None:
            return 0.0
        return READ_INDEX_EVERY_S - (self._clock.monotonic_ms() - self._newest[0]) / 1_000

    async def _run_rounds(self, queue: _Queue) -> None:
        while queue.next is not None:
            waiting, queue.next = queue.next, None
            began_ms = self._clock.monotonic_ms()
            queue.under_way = (began_ms, waiting)
            try:
                async with asyncio.timeout(BARRIER_TIMEOUT_S):
                    index = await self._barrier(queue)
            except TimeoutError:
                waiting.set_result(
                    RequestTimedOutError("no majority of the controllers answered before the timeout; retry")
                )
            except HeadraceError as error:
                waiting.set_result(error.copy())  # set a copy, whose traceback does not keep this frame
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    waiting.cancel()
                    raise
                # gRPC cancels the calls of a closed channel with CancelledError, although this task was not cancelled.
                waiting.set_result(NetworkError("the connection to the controllers' leader was closed; retry"))
            except BaseException:
                waiting.cancel()
                raise
            else:
                if self._newest is None or self._newest[0] <= began_ms:
                    self._newest = (began_ms, index)
                self._freshness.confirmed(index.offset, began_ms)
                waiting.set_result(index)
            finally:
                queue.under_way = None

    async def _barrier(self, queue: _Queue) -> ReadIndex:
        quorum = self._quorum
        if quorum.leader_id == quorum.node_id:
            term = quorum.term
            return ReadIndex(await quorum.barrier(is_deferred=queue.is_deferred), quorum.node_id, term)
        refusal = self.not_leading()
        if refusal.leader is None:
            raise refusal
        address = refusal.leader[2]
        stub = cluster_pb2_grpc.ClusterStub(await queue.channel_to(address))  # type: ignore[no-untyped-call]
        request = cluster_pb2.ReadIndexRequest(
            cluster_id=quorum.cluster_id, is_forwarded=True, is_deferred=queue.is_deferred
        )
        try:
            # VouchMetadata is the former name of ReadIndex: a leader of the previous release does not serve ReadIndex
            # (cluster.proto).
            answer = await stub.VouchMetadata(request, timeout=BARRIER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        return ReadIndex(answer.committed_offset, answer.leader_id, answer.leader_epoch)


async def _result(waiting: asyncio.Future[_Outcome]) -> ReadIndex:
    outcome = await asyncio.shield(waiting)
    if isinstance(outcome, HeadraceError):
        raise outcome.copy()
    return outcome
