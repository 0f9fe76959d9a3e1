"""How old the metadata that this controller shows may be, for itself and for those who follow it.

A *barrier* is a linearizable read (ReadIndex): the leader notes how far it has committed, and a majority confirms
afterwards that it still leads. A leader asks its own quorum, any other controller asks the leader. Whoever comes while
a barrier is under way waits for the one after it, since a barrier says nothing of what was committed after it began;
all who wait then share one. A leader that is cut off from the majority, or was replaced without knowing it, gets no
answer, so nobody takes its state for a fresh one.

Every controller knows how old its own copy is, and has it vouched for about once a second. For that it is *patient*:
its barrier is the leader's next regular round of heartbeats, and costs the quorum no message. Who follows a controller,
and only wants to know now and then how old its copy is, gets the vouch of the last half second at once, with its age:
all that was committed so long before the question came lies below the offset. By the asker's own clock it is older
still, by the way of the question, so nothing looks younger than it is. When there is none so young the question joins
the patient barrier that is under way, if that began within the last half second, and takes the time since as its age;
else it is patient, too. (Who always waited for the next one would wait for nearly two rounds of heartbeats here, and
for as many at the leader. Five nodes that each had a round of their own begun four times a second kept an idle leader
busier than its own heartbeats did.) The patient and the others do not wait for each other.
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
from headrace_core.rpc import ChannelPurpose, error_from_rpc, open_channel
from headrace_protos.v1 import cluster_pb2, cluster_pb2_grpc

#: A controller looks how old its own state is when nobody has asked for so long.
VOUCH_EVERY_S = 0.8
#: A vouch that is older is no answer any more: another one is asked for, patiently.
OF_LATE_MS = 500
#: One that is older still should have been followed by others: something is wrong, and whoever asks is to be told what.
OVERDUE_MS = 1_500
#: A barrier that takes longer is given up: a leader without a majority resigns after one to two seconds.
BARRIER_TIMEOUT_S = 2.0


class Quorum(Protocol):
    """What is needed of the controller (ControllerDriver)."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...

    @property
    def image(self) -> MetadataImage:
        """What is committed, as far as it is applied here."""

    @property
    def leader_id(self) -> int:
        """-1: not known."""

    @property
    def term(self) -> int: ...

    def controller_addresses(self) -> Mapping[int, str]:
        """Of all voters, ``host:port`` of their internal listeners."""

    def subscribe(self, subscriber: Callable[[MetadataImage, MetadataDelta], None]) -> Callable[[], None]: ...

    async def barrier(self, *, is_patient: bool = False) -> int:
        """A linearizable read of this leader: how far it has committed. ``is_patient``: with its next heartbeats.
        NotControllerError unless this node leads, and goes on leading until a majority has confirmed it."""


class Vouched(NamedTuple):
    """All that was committed ``age_ms`` before the question came lies below ``offset``."""

    offset: int
    leader_id: int
    leader_epoch: int
    age_ms: float = 0.0


class _Queue:
    """Those who wait for a barrier, the patient ones or the others; ``rounds`` serves them, over a link of its own:
    closing a channel cancels whatever is under way on it, and the other queue's question may wait for a leader that
    hangs."""

    def __init__(self, *, is_patient: bool) -> None:
        self.is_patient = is_patient
        self.next: asyncio.Future[Vouched] | None = None
        self.under_way: tuple[float, asyncio.Future[Vouched]] | None = None  # since when, and for whom
        self.rounds: asyncio.Task[None] | None = None
        self._link: tuple[str, grpc.aio.Channel] | None = None

    async def channel_to(self, address: str) -> grpc.aio.Channel:
        """To whoever leads. For ``rounds`` alone."""
        if self._link is None or self._link[0] != address:
            await self.close_link()
            self._link = (address, open_channel(address, ChannelPurpose.CONTROL))
        return self._link[1]

    async def close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link[1].close()


class Voucher:
    """One per controller. ``start`` it in the event loop."""

    def __init__(self, quorum: Quorum, clock: Clock) -> None:
        self._quorum = quorum
        self._clock = clock
        self._freshness = Freshness()
        self._queues = _Queue(is_patient=False), _Queue(is_patient=True)
        self._own: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._newest: tuple[float, Vouched] | None = None  # the vouch that began last, and when

    def start(self) -> None:
        self._freshness.applied(self._quorum.image.next_offset)
        self._unsubscribe = self._quorum.subscribe(lambda image, _: self._freshness.applied(image.next_offset))
        self._own = asyncio.create_task(self._keep_vouching(), name="metadata freshness")

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
        """Of the state that this controller shows."""
        return self._freshness.lag(self._clock.monotonic_ms())

    @property
    def known_offset(self) -> int:
        """Up to here the log is known to be committed, here or elsewhere."""
        return self._freshness.known_offset

    @property
    def now_ms(self) -> float:
        return self._clock.monotonic_ms()

    def vouched_since(self, ms: float) -> int | None:
        """The offset of a vouch that began at ``ms`` or later; None: there is none yet."""
        return self._newest[1].offset if self._newest is not None and self._newest[0] >= ms else None

    async def vouch(self, *, is_patient: bool = False) -> Vouched:
        """A barrier that begins after this call. NotControllerError, RequestTimedOutError, NetworkError."""
        queue = self._queues[is_patient]
        if queue.next is None:
            queue.next = asyncio.get_running_loop().create_future()
            queue.next.add_done_callback(lambda done: done.cancelled() or done.exception())  # also if nobody waits
        shared = queue.next
        if queue.rounds is None or queue.rounds.done():
            queue.rounds = asyncio.create_task(self._run_rounds(queue), name="metadata barriers")
        return await asyncio.shield(shared)

    async def vouch_of_late(self) -> Vouched:
        """The newest vouch, with its age, or the one that is under way, or the next one; the errors of ``vouch``, when
        there is none, or nobody leads."""
        if self._newest is None or self._quorum.leader_id < 0:
            return await self.vouch()
        asked_ms = self._clock.monotonic_ms()
        began_ms, vouched = self._newest
        age_ms = asked_ms - began_ms
        if age_ms <= OF_LATE_MS:
            return vouched._replace(age_ms=age_ms)
        under_way = self._queues[True].under_way
        if under_way is not None and asked_ms - under_way[0] <= OF_LATE_MS:
            # All that was committed before it began lies below what it says.
            return (await asyncio.shield(under_way[1]))._replace(age_ms=asked_ms - under_way[0])
        return await self.vouch(is_patient=age_ms <= OVERDUE_MS)

    def not_leading(self) -> NotControllerError:
        """The refusal that names who leads, as far as this controller knows."""
        quorum = self._quorum
        leader, address = quorum.leader_id, quorum.controller_addresses().get(quorum.leader_id, "")
        if leader < 0 or leader == quorum.node_id or not address:
            return NotControllerError("no controller is known to lead at the moment")
        return NotControllerError(
            f"controller {quorum.node_id} does not lead, controller {leader} does",
            leader=(leader, quorum.term, address),
        )

    async def _keep_vouching(self) -> None:
        while True:
            left_s = self._until_vouch_s()
            if left_s <= 0:
                left_s = VOUCH_EVERY_S
                with contextlib.suppress(HeadraceError):  # nobody leads: the lag grows, which says it
                    await self.vouch(is_patient=True)
            await asyncio.sleep(left_s)

    def _until_vouch_s(self) -> float:
        """Whoever asked for a barrier meanwhile has asked for it, too."""
        if self._newest is None:
            return 0.0
        return VOUCH_EVERY_S - (self._clock.monotonic_ms() - self._newest[0]) / 1_000

    async def _run_rounds(self, queue: _Queue) -> None:
        while queue.next is not None:
            waiting, queue.next = queue.next, None
            began_ms = self._clock.monotonic_ms()
            queue.under_way = (began_ms, waiting)
            try:
                async with asyncio.timeout(BARRIER_TIMEOUT_S):
                    vouched = await self._barrier(queue)
            except TimeoutError:
                waiting.set_exception(RequestTimedOutError("no majority of the controllers has answered in time"))
            except HeadraceError as error:
                waiting.set_exception(error)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    waiting.cancel()
                    raise
                # gRPC's way to say that a call ended with its channel: nobody has cancelled us.
                waiting.set_exception(NetworkError("the connection to the controllers' leader was closed"))
            except BaseException:
                waiting.cancel()
                raise
            else:
                if self._newest is None or self._newest[0] <= began_ms:
                    self._newest = (began_ms, vouched)
                self._freshness.vouched(vouched.offset, began_ms)
                waiting.set_result(vouched)
            finally:
                queue.under_way = None

    async def _barrier(self, queue: _Queue) -> Vouched:
        quorum = self._quorum
        if quorum.leader_id == quorum.node_id:
            term = quorum.term
            return Vouched(await quorum.barrier(is_patient=queue.is_patient), quorum.node_id, term)
        refusal = self.not_leading()
        if refusal.leader is None:
            raise refusal
        address = refusal.leader[2]
        stub = cluster_pb2_grpc.ClusterStub(await queue.channel_to(address))  # type: ignore[no-untyped-call]
        request = cluster_pb2.VouchMetadataRequest(
            cluster_id=quorum.cluster_id, is_relayed=True, is_patient=queue.is_patient
        )
        try:
            answer = await stub.VouchMetadata(request, timeout=BARRIER_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        return Vouched(answer.committed_offset, answer.leader_id, answer.leader_epoch)
