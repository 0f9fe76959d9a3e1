"""Writes the markers of transactions: sends each marker to the leaders of the transaction's partitions, until every
partition has it.

    WriteMarkers ---> by leader ---> a request on the broker's stream ---> MarkersWritten for the shard
                        ^                     |
                        `--- a pause <--- an error, a lost connection, a new leader

Each request names the partitions of one transaction that one broker leads. A broker that is slow, frozen or dead
therefore delays only markers of its own partitions. Markers are written at least once: leaders accept a repeated marker
without an append.

The markers for ``__consumer_offsets`` go to the coordinators that own the groups' shards, instead of the brokers that
lead the partitions. If a broker wrote a marker, the log end offset would change without the shard's owner knowing it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

from headrace_core.errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidProducerEpochError,
    LeaderNotAvailableError,
    NetworkError,
    UnknownTopicOrPartitionError,
    from_number,
)
from headrace_core.membership.node_links import NodeLinks
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, address_of, owner_of_shard
from headrace_core.node.listeners import INTERNAL
from headrace_core.rpc import ChannelPurpose, Channels
from headrace_core.rpc.limits import PARTITIONS_MAX, pages
from headrace_core.rpc.outage import Backoff, Outage
from headrace_core.rpc.request_link import RequestLink
from headrace_core.types import TopicPartition
from headrace_protos.v1 import transactions_pb2, transactions_pb2_grpc

from ..runtime.runner import ShardRunner
from ..transaction.messages import MarkersWritten, WriteMarkers
from .brokers import Brokers

logger = logging.getLogger("headrace.coordinator.markers")

IN_FLIGHT_MAX = 500  #: Maximum number of unanswered requests to one broker; further requests wait.
ANSWER_S = 10.0  #: Seconds after which a request without an answer is sent again.
#: Seconds between two checks whether a broker that does not answer still leads the partitions of the request.
LOOK_S = 0.5

_Target = tuple[int, str]  #: A broker's or coordinator's id, and the address of its internal listener.
Link = RequestLink[transactions_pb2.WriteMarkersRequest, transactions_pb2.WriteMarkersResponse]


class _Peer:
    """A link to one broker or coordinator, at its internal listener."""

    def __init__(self, address: str, whom: str, channels: Channels) -> None:
        """``whom``: the node in log lines, for instance "the broker"."""
        self.link: Link = RequestLink(
            address,
            ChannelPurpose.CONTROL,
            lambda channel: transactions_pb2_grpc.TransactionMarkersStub(channel).WriteMarkers(),  # type: ignore[no-untyped-call]
            what="a request to write markers",
            check=_check,
            packed=transactions_pb2.WriteMarkersRequests,
            channels=channels,
        )
        self.room = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.outage = Outage(logger, "transaction markers", whom=whom)

    async def close(self) -> None:
        await self.link.close()


class MarkerSender:
    """See the module. Call all methods in one event loop."""

    def __init__(
        self,
        brokers: Brokers,
        wait_current: Callable[[], Awaitable[Any]],
        report: Callable[[ShardRunner, MarkersWritten], None],
    ) -> None:
        """``wait_current`` returns when the metadata contains everything that was committed before the call. ``report``
        receives the written markers."""
        self._brokers = brokers
        self._wait_current = wait_current
        self._report = report
        self._peers: NodeLinks[_Peer] = NodeLinks(brokers.metadata)
        self._tasks: dict[ShardRunner, set[asyncio.Task[None]]] = {}
        #: Outages that were logged, by partition: the partition's leader refuses markers.
        self._refusals: dict[TopicPartition, Outage] = {}

    def send(self, runner: ShardRunner, order: WriteMarkers) -> None:
        """Write the markers, and report each written marker."""
        self._route(runner, order, order.partitions, Backoff())

    def shard_left(self, runner: ShardRunner) -> None:
        """Stop writing the markers of a shard that no longer serves; after its next replay the shard requests all
        missing markers again."""
        for task in self._tasks.pop(runner, ()):
            task.cancel()

    async def close(self) -> None:
        tasks = [task for some in self._tasks.values() for task in some]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._peers.close()

    def _route(
        self, runner: ShardRunner, order: WriteMarkers, partitions: Iterable[TopicPartition], backoff: Backoff
    ) -> None:
        by_leader: dict[_Target | None, list[TopicPartition]] = {}
        unknown: list[TopicPartition] = []
        for partition in sorted(partitions):
            if partition.topic == TRANSACTIONS_TOPIC:
                unknown.append(partition)
                continue
            try:
                leader: _Target | None = self._leader_of(partition)
            except (LeaderNotAvailableError, CoordinatorNotAvailableError):
                leader = None
            except UnknownTopicOrPartitionError:
                unknown.append(partition)
                continue
            by_leader.setdefault(leader, []).append(partition)
        for leader, some in by_leader.items():
            for page in pages(some, PARTITIONS_MAX):
                self._spawn(runner, self._write(runner, order, leader, page, backoff))
        if unknown:
            self._spawn(runner, self._check_deleted(runner, order, unknown, backoff))

    def _leader_of(self, partition: TopicPartition) -> _Target:
        """Return the node that writes the partition's markers."""
        if partition.topic == OFFSETS_TOPIC:
            owner = owner_of_shard(self._brokers.metadata.image, partition).coordinator
            return owner.coordinator_id, address_of(owner, INTERNAL)
        leader = self._brokers.leader_of(partition)
        return leader.broker_id, leader.internal

    def _spawn(self, runner: ShardRunner, work: Any) -> None:
        task = asyncio.create_task(work, name=f"markers of {runner.shard.name}")
        tasks = self._tasks.setdefault(runner, set())
        tasks.add(task)
        task.add_done_callback(lambda task: self._ended(runner, task))

    def _ended(self, runner: ShardRunner, task: asyncio.Task[None]) -> None:
        tasks = self._tasks.get(runner)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                del self._tasks[runner]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error(
                "%s: a marker is not written until the shard is loaded again", runner.shard.name, exc_info=error
            )

    async def _write(
        self,
        runner: ShardRunner,
        order: WriteMarkers,
        leader: _Target | None,
        partitions: Collection[TopicPartition],
        backoff: Backoff,
    ) -> None:
        """Write the markers of partitions with one leader, or wait for a leader."""
        written: frozenset[TopicPartition] = frozenset()
        if leader is not None:
            address = leader[1]
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = _Peer(address, _writer_of(partitions), self._brokers.metadata.channels)
            try:
                written = await self._ask(peer, leader, runner, order, partitions)
            except HeadraceError as error:
                peer.outage.failed(address, error)
            else:
                peer.outage.over()
        self._written(runner, order, written)
        await self._again(runner, order, [each for each in partitions if each not in written], backoff)

    async def _ask(
        self,
        peer: _Peer,
        leader: _Target,
        runner: ShardRunner,
        order: WriteMarkers,
        partitions: Collection[TopicPartition],
    ) -> frozenset[TopicPartition]:
        """Return the partitions that have the marker."""
        request = transactions_pb2.WriteMarkersRequest(
            producer_id=order.identity.producer_id,
            producer_epoch=order.identity.epoch,
            commit=order.commit,
            # A transaction record that Kafka wrote before KIP-890 has version 0.
            transaction_version=max(order.version, 1),
            coordinator_epoch=runner.shard.claim.shard_epoch,
        )
        for partition in partitions:
            request.partitions.add(topic=partition.topic, partition=partition.partition)
        async with peer.room:
            self._check_leader(leader, partitions)
            response = await self._unless_moved(peer.link.ask(request, ANSWER_S), leader, partitions)
        written = []
        for partition, result in zip(partitions, response.results, strict=True):
            error = from_number(result.error.code, result.error.message) if result.error.code else None
            # The transaction has already ended in this partition.
            if error is None or isinstance(error, InvalidProducerEpochError):
                written.append(partition)
                self._refusals.pop(partition, None)
            else:
                refusal = self._refusals.setdefault(
                    partition, Outage(logger, f"the marker of {partition}", whom=_writer_of([partition]))
                )
                refusal.failed(peer.link.address, error)
        return frozenset(written)

    async def _unless_moved(
        self, answer: Any, leader: _Target, partitions: Collection[TopicPartition]
    ) -> transactions_pb2.WriteMarkersResponse:
        """Return the answer. Raises NetworkError if a partition has another leader and no answer has arrived."""
        task = asyncio.ensure_future(answer)
        try:
            while True:
                await asyncio.wait({task}, timeout=LOOK_S)
                if task.done():
                    return task.result()  # type: ignore[no-any-return]
                self._check_leader(leader, partitions)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _check_leader(self, leader: _Target, partitions: Collection[TopicPartition]) -> None:
        """Raise NetworkError if one of the partitions has another leader now."""
        for partition in partitions:
            try:
                now = self._leader_of(partition)
            except HeadraceError:
                continue  # the partition has no other leader yet
            if now != leader:
                raise NetworkError(f"{leader[1]} has not answered, and {partition} has another leader now")

    async def _check_deleted(
        self, runner: ShardRunner, order: WriteMarkers, partitions: Collection[TopicPartition], backoff: Backoff
    ) -> None:
        """Guard: a partition that this coordinator does not know may be new. A partition counts as deleted only if the
        metadata lacks the partition after a wait for current metadata. A deleted partition needs no marker. Nor does a
        partition of ``__transaction_state``: earlier releases let clients add such partitions to a transaction, and the
        partition's leader refuses markers."""
        await self._wait_current()
        image = self._brokers.metadata.image
        gone = set()
        for partition in partitions:
            topic = image.topic(partition.topic)
            is_there = topic is not None and partition.partition < len(topic.partitions)
            if partition.topic == TRANSACTIONS_TOPIC or not is_there:
                gone.add(partition)
                self._refusals.pop(partition, None)
        self._written(runner, order, frozenset(gone))
        self._route(runner, order, [each for each in partitions if each not in gone], backoff)

    def _written(self, runner: ShardRunner, order: WriteMarkers, partitions: frozenset[TopicPartition]) -> None:
        if partitions:
            self._report(runner, MarkersWritten(order.transactional_id, order.identity, partitions))

    async def _again(
        self, runner: ShardRunner, order: WriteMarkers, partitions: Collection[TopicPartition], backoff: Backoff
    ) -> None:
        if partitions:
            await asyncio.sleep(backoff.next_s())
            self._route(runner, order, partitions, backoff)


def _writer_of(partitions: Iterable[TopicPartition]) -> str:
    """The name, for log lines, of the node that writes the markers of ``partitions``, which all have the same leader or
    the same owner."""
    return "the coordinator" if any(each.topic == OFFSETS_TOPIC for each in partitions) else "the broker"


def _check(request: transactions_pb2.WriteMarkersRequest, response: transactions_pb2.WriteMarkersResponse) -> None:
    if len(response.results) != len(request.partitions):
        raise NetworkError(
            f"an answer to WriteMarkers has {len(response.results)} results for {len(request.partitions)} partitions"
        )
