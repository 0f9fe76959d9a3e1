"""A simulated transaction coordinator with the product's shards, handlers and marker sender, on an event loop of
virtual time. The module also simulates the links between coordinators and brokers.

A link replaces ``RequestLink``. A link delivers requests of brokers to coordinators (AddPartitions), and of
coordinators to brokers (WriteMarkers), to the product's handlers. Requests arrive in order, unless a fault delays or
duplicates them. A request of transaction version 1 is never delayed into the next transaction, because late requests of
version 1 end the wrong transaction (KAFKA-17754). Version 2 exists because of late requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace_broker.handlers.transactions import MarkersStream
from headrace_controller.cluster.requests import AllocateProducerIds
from headrace_coordinator.handlers.transactions import AddPartitionsStream, TransactionsService
from headrace_coordinator.runtime.runner import ShardRunner
from headrace_coordinator.runtime.shard import ShardState
from headrace_coordinator.runtime.transaction_offsets import TransactionOffsets
from headrace_coordinator.runtime.transactions import Transactions
from headrace_coordinator.state_machine import StateMachine
from headrace_coordinator.transaction.messages import WriteMarkers
from headrace_coordinator.transaction.state import Transaction
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from headrace_coordinator.transport.brokers import Leader
from headrace_coordinator.transport.markers import MarkerSender
from headrace_core.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    NetworkError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.producer_ids import ProducerIdBlock, ProducerIds
from headrace_core.membership.transaction_partitions import TransactionPartitions
from headrace_core.metadata import MetadataImage
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC
from headrace_core.types import NO_LEADER, TopicPartition, join_address
from headrace_protos.v1 import transactions_pb2
from tests.simulation.broker_loop import SimLoop
from tests.simulation.broker_node import CLUSTER
from tests.simulation.group_hosts import Coordinator, CoordinatorHost, Ordered
from tests.simulation.group_log import SimBrokers

if TYPE_CHECKING:
    from tests.simulation.txn_sim_world import TxnWorld

#: The port of a coordinator is 1,000 times its number, plus the number of its process.
PORTS = 1_000


class TxnCoordinatorHost(CoordinatorHost):
    def new_process(self, loop: SimLoop) -> Coordinator:
        return TxnCoordinator(self, loop)


class TxnBrokers(SimBrokers):
    """Return the leader of a partition: for a shard's log the leader that this host knows, for other partitions the
    leader in its metadata."""

    channels = None  #: The simulated calls need no channel.

    def __init__(self, host: CoordinatorHost, process: TxnCoordinator) -> None:
        super().__init__(host)
        self._process = process

    @property
    def image(self) -> MetadataImage:
        return self._process.image

    def leader_of(self, partition: TopicPartition) -> Leader:
        if partition.topic == TRANSACTIONS_TOPIC:
            return super().leader_of(partition)
        topic = self.image.topic(partition.topic)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"{partition} does not exist")
        state = topic.partitions[partition.partition]
        broker = self.image.brokers.get(state.leader) if state.leader != NO_LEADER else None
        if broker is None:
            raise LeaderNotAvailableError(f"{partition} has no leader")
        (endpoint,) = broker.endpoints
        address = join_address(endpoint.host, endpoint.port)
        return Leader(state.leader, state.leader_epoch, address, address)


class _OrderedTasks(dict[Any, Any]):
    """The marker sender's tasks by shard; each set is in the order of arrival (see ``Ordered``)."""

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return super().setdefault(key, Ordered())


class TxnCoordinator(Coordinator):
    cluster_id = CLUSTER
    listeners = ("client", "internal")
    world: TxnWorld

    def __init__(self, host: CoordinatorHost, loop: SimLoop) -> None:
        super().__init__(host, loop)
        self.brokers = TxnBrokers(host, self)
        self.producer_ids = ProducerIds(self._allocate)
        self.sender = MarkerSender(
            self.brokers,  # type: ignore[arg-type]
            self._wait_current,
            lambda runner, report: self.transactions.markers_written(runner, report),
        )
        self.sender._tasks = _OrderedTasks()
        self.transactions = Transactions(self.current_shards, self._send)
        offsets = TransactionOffsets(self.current_shards, TransactionPartitions(MetadataState(), host.clock).verify)
        self.service = TransactionsService(  # type: ignore[assignment]
            self.current_shards, self.transactions, offsets, self.producer_ids
        )

    def _new_state_machine(self) -> StateMachine:
        return TransactionsStateMachine(self.producer_ids.take, self.world.settings)

    async def _allocate(self) -> ProducerIdBlock:
        assert self.registered is not None
        known = self.registered.coordinator_id, self.registered.coordinator_epoch
        block = await self._call(AllocateProducerIds(coordinator=known))
        # The controllers give out large blocks of producer ids. Most ids of a block are left unused in the simulation,
        # so that blocks are used up.
        return ProducerIdBlock(block.first, min(block.length, 3))

    def _send(self, runner: ShardRunner, order: WriteMarkers) -> None:
        self.world.count("transaction", "markers for " + ("a commit" if order.commit else "an abort"))
        self.sender.send(runner, order)

    def _tell(self, runner: ShardRunner, pushes: Sequence[Any]) -> None:
        self.transactions.tell(runner, pushes)

    def _became(self, runner: ShardRunner, state: ShardState, error: Exception | None) -> None:
        if state is not ShardState.SERVING:
            self.sender.shard_left(runner)
            self.transactions.shard_left(runner)
        elif isinstance(runner.state_machine, TransactionsStateMachine):
            for transaction in runner.state_machine.transactions.values():
                self.world.count("hand-over", state_of(transaction))
        super()._became(runner, state, error)

    def metadata_arrived(self) -> None:
        for _, image, delta in self.world.steps[self._applied : self.host.known]:
            self._applied += 1
            self._act(image, delta)
            self.brokers.news(image, delta)
        self._is_current.set()


def state_of(transaction: Transaction) -> str:
    return "PREPARED" if transaction.is_prepared else transaction.state.name


class OneAnswer:
    """Replaces ServerStream: the stream of one request."""

    queued_bytes = 0
    paused = False

    def __init__(self, reply: Callable[[Any], None]) -> None:
        self._reply = reply

    def send(self, response: Any, size: int = 0) -> None:
        self._reply(response)

    def finish(self, error: HeadraceError | None = None) -> None:
        self._reply(error or NetworkError("the stream ended"))

    def check_idle(self) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


class SimRequestLink:
    """Stands for RequestLink. A message carries one request."""

    def __init__(
        self,
        address: str,
        purpose: object,
        open_call: object,
        *,
        what: str,
        packed: object,
        channels: object,
        check: Callable[[Any, Any], None] = lambda request, response: None,
    ) -> None:
        self.address = address
        self._what = what
        self._check = check
        self._loop: Any = asyncio.get_running_loop()

    async def ask(self, request: Any, timeout_s: float) -> Any:
        sent = type(request)()
        sent.CopyFrom(request)
        answer: asyncio.Future[Any] = self._loop.create_future()
        host = self._loop._host

        def answered(outcome: Any) -> None:
            if answer.done():
                return
            if isinstance(outcome, HeadraceError):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

        Carriage(
            host, self.address, sent, lambda outcome: host.loop is self._loop and self._loop.run(answered, outcome)
        )
        try:
            async with asyncio.timeout(timeout_s):
                response = await answer
        except TimeoutError:
            raise RequestTimedOutError(f"{self.address}: no answer to {self._what}") from None
        self._check(request, response)
        return response

    async def close(self) -> None:
        pass


class Carriage:
    """Delivers one request to its receiver, and the answer back."""

    def __init__(self, sender: Any, address: str, message: Any, answered: Callable[[Any], object]) -> None:
        self.world: TxnWorld = sender.world
        self.message = message
        self._answered = answered
        port = int(address.rpartition(":")[2])
        world, rng = self.world, self.world.rng
        self._receiver: Any = world.host_at(port)
        self._life = -1 if self._receiver is None else self._receiver.life
        if self._receiver is None or not self._receiver.is_up:
            world.scheduler.after(rng.uniform(0.2, 10.0), answered, NetworkError(f"{address}: connection refused"))
            return
        self._link = world.address_of(sender), world.address_of(self._receiver)
        kind = "markers" if hasattr(message, "commit") else "verifications"
        # (A verification changes nothing, so it may arrive late.)
        is_first_version = message.transaction_version < 2 and not getattr(message, "verify_only", False)
        faults = world.link_faults
        if kind == "markers" and faults.is_on("markers_held"):
            world.count("link", "marker held back")
            self._broken()
            return
        delay_ms = world.message_delay_ms(self._link)
        if delay_ms is None or (faults.is_on(f"{kind}_lost") and rng.random() < 0.4):
            world.count("link", f"{kind} lost")
            self._broken()
            return
        if is_first_version:
            world.in_order((*self._link, kind), delay_ms, self._arrives)
            return
        if faults.is_on(f"{kind}_late") and rng.random() < 0.5:
            world.count("link", f"{kind} late")
            if rng.random() < 0.7:
                self._broken()
            world.scheduler.after(
                delay_ms + rng.choice([rng.uniform(10.0, 120.0), rng.uniform(50.0, 1_500.0)]), self._arrives
            )
            return
        world.in_order((*self._link, kind), delay_ms, self._arrives)
        if faults.is_on(f"{kind}_doubled") and rng.random() < 0.5:
            world.count("link", f"{kind} doubled")
            world.scheduler.after(delay_ms + rng.uniform(0.0, 600.0), self._arrives)

    def _broken(self) -> None:
        world = self.world
        world.scheduler.after(world.rng.uniform(5.0, 120.0), self._answered, NetworkError("the stream broke"))

    def _arrives(self) -> None:
        receiver = self._receiver
        if receiver.life != self._life or receiver.loop is None:
            self._answered(NetworkError("the process has ended"))
            return
        if isinstance(receiver, TxnCoordinatorHost):
            receiver.loop.run(self._at_coordinator, receiver.process)
        else:
            receiver.loop.run(self._at_broker, receiver.broker)

    def _at_coordinator(self, process: TxnCoordinator) -> None:
        message = transactions_pb2.AddPartitionsRequests(requests=[self.message])
        AddPartitionsStream(process.transactions, OneAnswer(self._back)).on_request(message)  # type: ignore[arg-type]

    def _at_broker(self, broker: Any) -> None:
        message = transactions_pb2.WriteMarkersRequests(requests=[self.message])
        MarkersStream(broker.context, OneAnswer(self._back)).on_request(message)  # type: ignore[arg-type]
        world, marked = self.world, {each.partition for each in self.message.partitions}
        world.marker_traps = [trap for trap in world.marker_traps if not trap(self._receiver.number, marked)]

    def _back(self, response: Any) -> None:
        world = self.world
        delay_ms = world.message_delay_ms((self._link[1], self._link[0]))
        if delay_ms is None:
            self._broken()
        else:
            world.scheduler.after(delay_ms, self._answered, response)


class Switches:
    """Current faults of messages, each with the time at which it ends."""

    def __init__(self, world: TxnWorld) -> None:
        self._world = world
        self._until_ms: dict[str, float] = {}

    def on(self, kind: str, for_ms: float) -> None:
        self._until_ms[kind] = max(self._until_ms.get(kind, 0.0), self._world.scheduler.now_ms + for_ms)

    def is_on(self, kind: str) -> bool:
        return self._world.scheduler.now_ms < self._until_ms.get(kind, 0.0)

    def off(self) -> None:
        self._until_ms.clear()


CONTEXT = SimpleNamespace(time_remaining=lambda: 1.0)
