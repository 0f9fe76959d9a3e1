"""The driver: one task that runs the turns of a QuorumController, when a turn is due by time or a message has arrived.
The module quorum_controller.py defines a turn; this module schedules turns and calls the waiters of completed requests.

A separate thread writes and flushes the log, while the event loop accepts the next requests. A request needs several
passes of the event loop to get from its socket into a turn. With an fdatasync in each pass of the event loop, a turn
would contain only one or two requests. Messages to other controllers are also sent while the log is being written.

A thread for snapshots encodes, writes and flushes them, one at a time. Only the renaming of the snapshot and the
trimming of the log run in the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    NotControllerError,
    OffsetNotAvailableError,
    OutdatedVoterError,
    RequestTimedOutError,
    ServerBusyError,
    ServerShuttingDownError,
)
from headrace_core.metadata import MetadataImage

from .applying import Subscriber
from .cluster.requests import Request
from .quorum_controller import Answer, QuorumController, SnapshotJob
from .raft import Message, ReplicaKey, Role, SnapshotId
from .storage import MetadataStorage
from .waiting import Done

logger = logging.getLogger("headrace.controller")

__all__ = ["Answer", "ControllerDriver"]

T = TypeVar("T")

QUEUED_REQUESTS_MAX = 20_000  #: Maximum number of requests in the controller's queue.
_NOTICE_S = 0.2  #: Seconds for the last messages of a voter with an older copy of its directory.
_HAND_OVER_S = 1.0  #: Seconds that a stopping leader waits until its successor leads.


class ControllerDriver:
    """See the module. ``run`` is the driver's only task; call all other methods in the same event loop."""

    def __init__(self, controller: QuorumController, storage: MetadataStorage) -> None:
        self.controller = controller
        self._storage = storage
        self._wake = asyncio.Event()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="metadata log")
        self._stopping = False
        self._failure: Exception | None = None
        self._snapshot: tuple[SnapshotJob, asyncio.Future[None]] | None = None
        self._turn_watchers: tuple[Callable[[], None], ...] = ()

    @property
    def node_id(self) -> int:
        return self.controller.node_id

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    @property
    def leader_id(self) -> int:
        return self.controller.leader_id

    @property
    def term(self) -> int:
        return self.controller.term

    @property
    def cluster_id(self) -> str:
        return self._storage.cluster_id

    @property
    def is_leader(self) -> bool:
        """Whether this node is the leader, as far as this node knows."""
        return self.controller.role is Role.LEADER

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each newly committed image; returns a function that ends the subscription."""
        return self.controller.subscribe(subscriber)

    def on_turn(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` after each turn, because leader, term, voters or health may have changed."""
        self._turn_watchers = (*self._turn_watchers, watcher)

    def read(self, offset: int) -> tuple[bytes, int]:
        """Committed batches from ``offset`` on (about 1 MiB at most), and the offset after the last batch. Raises
        OffsetOutOfRangeError if only a snapshot contains the entries from ``offset`` on."""
        return self._storage.read(offset, self.image.next_offset)

    @property
    def log_start_offset(self) -> int:
        """Start of the metadata log; earlier entries are only in the snapshot."""
        return self.controller.raft.log.start.offset

    def epoch_below(self, offset: int) -> int | None:
        """Leader epoch of the record just below ``offset``; None if the log starts later."""
        return self.controller.raft.log.term_below(offset)

    def newest_snapshot(self) -> SnapshotId | None:
        """The snapshot before the log's start; None if the log begins at 0."""
        snapshot = self.controller.raft.log.snapshot
        return snapshot if snapshot.place.offset else None

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """Bytes of the snapshot from ``position`` on, and whether the snapshot ends with them; None if the snapshot was
        removed."""
        return self._storage.snapshot_chunk(snapshot, position, max_bytes)

    def controller_addresses(self) -> Mapping[int, str]:
        """``host:port`` of the internal listener of each voter whose address is known, by node id."""
        return self.controller.addresses

    async def wait_applied(self, offset: int, timeout_s: float) -> MetadataImage:
        """Wait for a committed image that contains all entries below ``offset``. Raises RequestTimedOutError."""
        if self.image.next_offset < offset:
            reached = asyncio.Event()
            unsubscribe = self.subscribe(lambda image, _: reached.set() if image.next_offset >= offset else None)
            try:
                async with asyncio.timeout(timeout_s):
                    await reached.wait()
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the metadata log is committed up to {self.image.next_offset}, not yet up to {offset}; retry"
                ) from None
            finally:
                unsubscribe()
        return self.image

    async def ask(self, request: Request) -> Answer:
        """Decide ``request``; returns when the decision is committed. Raises the error of a refusal,
        NotControllerError, RequestTimedOutError (this node lost its leadership, so the outcome is unknown),
        ServerShuttingDownError, or ServerBusyError. If the caller of ``decide`` is cancelled, the decision is not
        undone."""
        if self.controller.queued >= QUEUED_REQUESTS_MAX:
            raise ServerBusyError(
                f"controller {self.node_id} has {self.controller.queued} requests waiting, the limit of its queue; "
                "retry later"
            )
        answer: Answer = await self._asked(lambda done: self.controller.submit(request, done))
        return answer

    def tell(self, request: Request) -> None:
        """Decide ``request`` without waiting for the answer."""
        if not self._stopping:
            self.controller.submit(request, None)
            self._wake.set()

    async def barrier(self, *, is_deferred: bool = False) -> int:
        """A linearizable read: returns a metadata offset. An image with all entries below the returned offset contains
        every change that was answered before this call. ``is_deferred``: the read costs no message, but takes up to 600
        ms longer than other reads (the heartbeat interval is 300 ms). Raises NotControllerError unless this node
        leads."""
        offset: int = await self._asked(lambda done: self.controller.read(done, is_deferred=is_deferred))
        return offset

    async def add_voter(self, key: ReplicaKey, address: str) -> Answer:
        """Add a voter; returns when the new voter set is committed. Raises the errors of ``RaftNode.add_voter``."""
        answer: Answer = await self._asked(lambda done: self.controller.add_voter(key, address, done))
        return answer

    async def remove_voter(self, key: ReplicaKey) -> Answer:
        """Remove a voter; returns when the new voter set is committed. Raises the errors of
        ``RaftNode.remove_voter``."""
        answer: Answer = await self._asked(lambda done: self.controller.remove_voter(key, done))
        return answer

    async def transfer(self, key: ReplicaKey) -> Answer:
        """Transfer the leadership; returns when ``key`` leads. Raises the errors of ``QuorumController.transfer``."""
        answer: Answer = await self._asked(lambda done: self.controller.transfer(key, done))
        return answer

    async def _asked(self, ask: Callable[[Done], None]) -> Any:
        if self._stopping:
            raise ServerShuttingDownError(f"controller {self.node_id} is shutting down")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: Any) -> None:
            if not future.done():  # a done future means that the caller has left
                future.set_result(result)

        ask(done)
        if self.controller.until_due_ms() <= 0:  # (a deferred read is not due yet)
            self._wake.set()
        result = await future
        if isinstance(result, HeadraceError):
            raise result.copy()  # raise a copy, whose traceback does not keep this frame in a reference cycle
        return result

    def receive(self, message: Message) -> None:
        """Process a message of another replica."""
        try:
            self.controller.receive(message)
        # Entries that a full disk refused are being truncated; the sender repeats the message
        except OffsetNotAvailableError as error:
            logger.info("dropped a message of controller %s, which sends it again: %s", message.sender, error)
        except (HeadraceError, OSError, AssertionError) as error:
            # The entries for a follower may be damaged; the stream itself is sound
            self._failure = self._failure or error
        if self._failure is not None or self.controller.until_due_ms() <= 0:
            self._wake.set()

    def peer_lost(self, key: ReplicaKey) -> None:
        """Called when the connection to another replica broke: notify the controller."""
        self.controller.peer_lost(key)
        self._wake.set()

    def observe(self, key: ReplicaKey) -> None:
        """Called when a non-voting replica has connected: notify the controller."""
        self.controller.observe(key)
        self._wake.set()

    def forget(self, key: ReplicaKey) -> None:
        """Called when a non-voting replica has disconnected: notify the controller."""
        self.controller.forget(key)

    def start(self) -> None:
        """See QuorumController.start."""
        self.controller.start()

    async def run(self) -> None:
        """Run turns until ``stop`` is called. Raises OSError or StorageError if the disk fails, and CorruptLogError if
        the log is damaged, and OutdatedVoterError if the directory is an older copy. The process must end then."""
        controller, loop = self.controller, asyncio.get_running_loop()
        try:
            while not (self._stopping and not controller.queued):
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                due_ms = controller.until_due_ms()
                if due_ms > 0:
                    await self._wait(due_ms / 1_000)
                if controller.begin():
                    if controller.may_persist_aside:
                        await loop.run_in_executor(self._disk, controller.persist)
                    else:
                        controller.persist()
                controller.finish()
                self._look_after_snapshots()
                for watcher in self._turn_watchers:
                    watcher()
                await asyncio.sleep(0)  # accept the requests that arrived during the turn, and send the answers
            if self._failure is not None:  # a disk that failed during the last turn had no clean stop
                raise self._failure
        except OutdatedVoterError as error:
            controller.withdraw(error)
            await asyncio.sleep(_NOTICE_S)
            raise
        except CorruptLogError as error:
            raise CorruptLogError(
                f"{error.message}. This controller stops: restore its directory, or format an empty one and add it "
                "to the quorum as a new voter (`headrace quorum remove`, then `headrace quorum add`)"
            ) from error
        finally:
            self._stopping = True
            self._disk.shutdown()
            await self._end_snapshot()
            controller.fail_all(ServerShuttingDownError(f"controller {self.node_id} has stopped"))

    async def hand_over(self) -> None:
        """Transfer the leadership before a stop, if this node leads and there are other voters. When a leader stops,
        its successor completes the requests in flight. The transfer waits at most a second, and only if a successor is
        reachable, because a whole cluster may be stopping."""
        successor = self.controller.best_successor()
        if successor is None:
            return
        handing_over = asyncio.ensure_future(self.transfer(successor))
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                while not handing_over.done() or self.controller.in_flight:
                    if self.controller.is_left_alone:
                        raise NotControllerError("the other controllers cannot be reached")
                    await self._next_turn()
                handing_over.result()
        except (HeadraceError, TimeoutError) as error:
            why = str(error) or f"no answer within {_HAND_OVER_S:.0f} s"
            logger.warning("controller %d stops without transferring its leadership: %s", self.node_id, why)
        finally:
            handing_over.cancel()

    async def _next_turn(self) -> None:
        turned = asyncio.Event()
        watchers = self._turn_watchers
        self._turn_watchers = (*watchers, turned.set)
        try:
            await turned.wait()
        finally:
            self._turn_watchers = tuple(each for each in self._turn_watchers if each != turned.set)

    def stop(self) -> None:
        """Answer the requests that have arrived, then end ``run``."""
        self._stopping = True
        self._wake.set()

    async def _wait(self, timeout_s: float) -> None:
        # Do not use asyncio.timeout, which would raise and catch a cancellation several times a second.
        timer = asyncio.get_running_loop().call_later(timeout_s, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _look_after_snapshots(self) -> None:
        """Complete a snapshot whose thread has finished, or start a due snapshot; call this method between turns."""
        if self._snapshot is not None and self._snapshot[1].done():
            (job, future), self._snapshot = self._snapshot, None
            try:
                future.result()
            except DiskFullError as error:
                self.controller.snapshot_failed(job, error)
            else:
                self.controller.snapshot_done(job)
        if self._snapshot is None and not self._stopping:
            due = self.controller.snapshot_due()
            if due is not None:
                future = asyncio.get_running_loop().run_in_executor(None, due.run)
                future.add_done_callback(lambda _: self._wake.set())
                self._snapshot = due, future

    async def _end_snapshot(self) -> None:
        """Wait for the snapshot thread, because a thread cannot be interrupted; the thread writes only a temporary
        file."""
        if self._snapshot is not None:
            (job, future), self._snapshot = self._snapshot, None
            await asyncio.gather(future, return_exceptions=True)
            job.abandon()
