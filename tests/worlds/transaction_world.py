"""One transaction shard, the leaders of its partitions and its producers, in memory, driven by a seed.

All failures that the protocol allows occur. Responses are lost and requests repeated; an append fails after a decision;
the shard gets a new coordinator. Markers arrive late and twice; replaced producers continue as zombies; timeouts
expire. Producer epochs end at 6, so producer ids change often. ``check`` and the assertions verify three rules. A
transaction has one outcome everywhere: the outcome that its producer received. A replaced producer writes nothing more.
No identity is given twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headrace_coordinator.state_machine import Decision
from headrace_coordinator.transaction.messages import (
    AbortTransaction,
    AddPartitions,
    CompleteTransaction,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    ProducerIdReply,
    TransactionEnded,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import PREPARING, ProducerIdentity, TransactionState
from headrace_coordinator.transaction.transactions import TransactionSettings, TransactionsStateMachine
from headrace_core.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    HeadraceError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from headrace_core.types import TopicPartition

EPOCH_MAX = 6
TIMEOUT_MS = 1_000
FENCED = (ProducerFencedError, InvalidProducerIdMappingError)


class LostAnswerError(Exception):
    """The response was lost: the request may have had its effect."""


@dataclass
class Leader:
    """One partition with the rules of transaction version 2. Data needs a partition that was added to the transaction,
    and markers need a new epoch."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, list[str]] = field(default_factory=dict)
    #: The outcomes of each transaction that has data in this partition.
    outcomes: dict[str, set[bool]] = field(default_factory=dict)

    def write_marker(self, marker: WriteMarkers) -> bool:
        producer_id, epoch = marker.identity
        known = self.epochs.get(producer_id, -1)
        if epoch < known or (epoch == known and self.open.get(producer_id)):
            return False
        self.epochs[producer_id] = epoch
        for name in self.open.pop(producer_id, []):
            self.outcomes[name].add(marker.commit)
        return True


@dataclass(eq=False)
class Instance:
    """A producer's process. ``transaction``: the name of the instance's open transaction; "" if none is open."""

    transactional_id: str
    number: int
    identity: ProducerIdentity
    transaction: str = ""
    transactions: int = 0
    #: The last request that got no answer, as a pair (request, transaction).
    unanswered: tuple[EndTransaction | CompleteTransaction, str] | None = None
    #: The identity of the transaction that the instance has prepared or taken over.
    token: ProducerIdentity | None = None
    is_over: bool = False


class TransactionWorld:
    def __init__(self, seed: int, *, machine_class: type[TransactionsStateMachine] = TransactionsStateMachine) -> None:
        self.random = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.leaders = {TopicPartition("t", number): Leader() for number in range(3)}
        self.instances: list[Instance] = []
        #: The newest instance of each transactional id.
        self.newest: dict[str, Instance] = {}
        #: Instances that an InitProducerId without an answer may have fenced.
        self.perhaps_replaced: set[Instance] = set()
        #: Instances that are certainly fenced, because an InitProducerId was answered after it had aborted their
        #: transaction.
        self.replaced: set[Instance] = set()
        self.markers: list[tuple[WriteMarkers, set[TopicPartition]]] = []
        self.old_markers: list[WriteMarkers] = []
        self.answered: dict[str, bool] = {}
        self.given: dict[ProducerIdentity, str] = {}
        self.counts: dict[str, int] = {}
        self._machine_class = machine_class
        self._last_producer_id = 0
        self.machine = self._loaded()

    # -- the shard ---------------------------------------------------------------------------------------------------

    def _producer_id(self) -> int:
        if self.random.random() < 0.1:
            raise CoordinatorLoadInProgressError("no producer id is left")
        self._last_producer_id += 1
        return self._last_producer_id

    def _loaded(self) -> TransactionsStateMachine:
        machine = self._machine_class(
            self._producer_id, TransactionSettings(epoch_max=EPOCH_MAX, timeout_ms_max=TIMEOUT_MS)
        )
        for key, value in self.log:
            machine.replay(key, value, self.now_ms)
        self.machine = machine
        self._commit(machine.loaded(self.now_ms))
        return machine

    def _commit(self, decision: Decision) -> None:
        self.log += [(record.key, record.value) for record in decision.records]
        for push in decision.pushes:
            if isinstance(push, WriteMarkers):
                self.markers.append((push, set(push.partitions)))
            elif isinstance(push, TransactionEnded):
                producer_id = self.machine.transactions[push.transactional_id].previous_producer_id
                for partition, leader in self.leaders.items():
                    assert not leader.open.get(producer_id), f"{push}: {partition} has no marker yet"

    def ask(self, request: object) -> object:
        """The answer to a request; LostAnswerError if the append failed or the answer was lost."""
        decision = self.machine.handle(request, self.now_ms)
        fate = self.random.random()
        if decision.records and fate < 0.05:
            self.count("append failed")
            self._loaded()
            raise LostAnswerError
        self._commit(decision)
        if fate < 0.15:
            raise LostAnswerError
        if isinstance(decision.reply, HeadraceError):
            raise decision.reply
        return decision.reply

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- events ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_ms += self.random.randrange(20)
        what = self.random.choices(
            (
                self.init,
                self.send,
                self.end,
                self.repeat,
                self.prepare,
                self.marker,
                self.old_marker,
                self.move,
                self.wait,
                self.abort,
            ),
            (3, 30, 12, 12, 3, 30, 4, 2, 1, 1),
        )[0]
        what()

    def some(self) -> Instance | None:
        alive = [instance for instance in self.instances if not instance.is_over]
        return self.random.choice(alive) if alive else None

    def init(self) -> None:
        """A new instance takes over a transactional id; sometimes it continues the transaction that its predecessor has
        prepared."""
        transactional_id = self.random.choice("ab")
        keep = self.random.random() < 0.5
        was = self.machine.transactions.get(transactional_id)
        try:
            reply = self.ask(InitProducerId(transactional_id, TIMEOUT_MS, keep_prepared=keep))
        except (LostAnswerError, ConcurrentTransactionsError, CoordinatorLoadInProgressError) as error:
            if transactional_id in self.newest:
                self.perhaps_replaced.add(self.newest[transactional_id])
                is_aborted = was is not None and was.state is TransactionState.ONGOING
                if is_aborted and isinstance(error, ConcurrentTransactionsError):
                    self.replaced.add(self.newest[transactional_id])
            return
        assert isinstance(reply, ProducerIdReply)
        instance = Instance(transactional_id, len(self.instances), reply.identity)
        self.give(reply.identity, f"{transactional_id}{instance.number}.0")
        before = self.newest.get(transactional_id)
        if reply.prepared is not None:
            assert before is not None
            assert keep
            self.count("kept prepared")
            instance.transaction = next(
                other.transaction
                for other in reversed(self.instances)
                if other.transactional_id == transactional_id and other.token == reply.prepared
            )
            instance.token = reply.prepared
        self.instances.append(instance)
        self.newest[transactional_id] = instance

    def give(self, identity: ProducerIdentity, to: str) -> None:
        assert identity.epoch < EPOCH_MAX, f"{identity} may not be given to a producer"
        assert self.given.setdefault(identity, to) == to, f"{identity} is {self.given[identity]}'s, and given to {to}"
        self.count("identities")

    def send(self) -> None:
        instance = self.some()
        if instance is None or instance.unanswered or instance.token:
            return
        name = instance.transaction or f"{instance.transactional_id}{instance.number}.{instance.transactions}"
        partition = self.random.choice(list(self.leaders))
        leader = self.leaders[partition]
        producer_id, epoch = instance.identity
        if epoch < leader.epochs.get(producer_id, -1):
            self.refused(instance)
            return
        try:
            if name not in leader.open.get(producer_id, ()):
                self.ask(AddPartitions(instance.transactional_id, instance.identity, frozenset({partition})))
        except (LostAnswerError, ConcurrentTransactionsError):
            return
        except FENCED:
            self.refused(instance)
            return
        assert self.newest[instance.transactional_id] is instance, (
            f"{name} writes, although {instance.number} was replaced"
        )
        others = [other for other in leader.open.get(producer_id, []) if other != name]
        assert not others, f"{name} writes to {partition}, where {others} are open"
        instance.transaction = name
        leader.epochs[producer_id] = epoch
        leader.open.setdefault(producer_id, [])
        if name not in leader.open[producer_id]:
            leader.open[producer_id].append(name)
        leader.outcomes.setdefault(name, set())
        self.count("sends")

    def refused(self, instance: Instance) -> None:
        """Handle a refused request, from which the instance learns that it was replaced, or that its transaction has
        timed out."""
        self.count("fenced")
        if self.newest[instance.transactional_id] is not instance:
            instance.is_over = True

    def end(self) -> None:
        instance = self.some()
        if instance is None or instance.unanswered or not instance.transaction:
            return
        commit = self.random.random() < 0.6
        request: EndTransaction | CompleteTransaction
        request = EndTransaction(instance.transactional_id, instance.identity, commit)
        if instance.token and self.random.random() < 0.3:
            request = CompleteTransaction(instance.transactional_id, instance.token, commit)
        self.ask_end(instance, request, instance.transaction)

    def repeat(self) -> None:
        instance = self.some()
        if instance is not None and instance.unanswered:
            self.count("repeated")
            self.ask_end(instance, *instance.unanswered)

    def ask_end(self, instance: Instance, request: EndTransaction | CompleteTransaction, name: str) -> None:
        try:
            owner = self.ask(request)
        except LostAnswerError:
            instance.unanswered = (request, name)
            return
        except (ConcurrentTransactionsError, CoordinatorLoadInProgressError):
            return
        except TransactionAbortableError:
            assert request.commit
            self.count("abortable")
            self.tell(name, commit=False)
            instance.unanswered = (request._replace(commit=False), name)
            return
        except InvalidTxnStateError:
            # Another instance has completed the prepared transaction the other way.
            assert instance.token, f"{name}: {request}"
            instance.is_over = True
            return
        except FENCED:
            is_newest = self.newest[instance.transactional_id] is instance
            assert not is_newest or instance in self.perhaps_replaced, f"{name}: {request} is fenced"
            self.refused(instance)
            instance.is_over = True
            return
        self.tell(name, commit=request.commit)
        if isinstance(request, CompleteTransaction):
            self.count("completed by token")
            instance.is_over = True
            return
        assert isinstance(owner, ProducerIdentity)
        instance.transactions += 1
        instance.identity, instance.transaction, instance.unanswered = owner, "", None
        instance.token = None
        self.count("commits" if request.commit else "aborts")
        assert instance not in self.replaced, f"{name}: {instance.number} was replaced, but continues as {owner}"
        if self.newest[instance.transactional_id] is instance:
            self.give(owner, f"{instance.transactional_id}{instance.number}.{instance.transactions}")

    def tell(self, name: str, *, commit: bool) -> None:
        assert self.answered.setdefault(name, commit) == commit, f"{name} was committed and aborted"

    def prepare(self) -> None:
        instance = self.some()
        if instance is None or instance.unanswered or not instance.transaction or instance.token:
            return
        while instance.token is None:
            try:
                token = self.ask(PrepareTransaction(instance.transactional_id, instance.identity))
            except LostAnswerError:
                continue
            except TransactionAbortableError:
                self.count("abortable")
                self.tell(instance.transaction, commit=False)
                request = EndTransaction(instance.transactional_id, instance.identity, False)
                instance.unanswered = (request, instance.transaction)
                return
            except FENCED:
                self.refused(instance)
                return
            assert isinstance(token, ProducerIdentity)
            instance.token = token
        self.count("prepared")

    def machine_state(self, transactional_id: str) -> TransactionState:
        return self.machine.transactions[transactional_id].state

    def marker(self) -> None:
        if not self.markers:
            return
        at = self.random.randrange(len(self.markers))
        marker, left = self.markers[at]
        partition = self.random.choice(sorted(left))
        written = self.leaders[partition].write_marker(marker)
        transaction = self.machine.transactions[marker.transactional_id]
        is_waited_for = transaction.state in PREPARING and transaction.identity == marker.identity
        assert written or not is_waited_for, f"{partition} refuses {marker}"
        self.old_markers.append(marker)
        if self.random.random() < 0.2:
            return  # the answer is lost, so the marker is written again
        left.discard(partition)
        if not left:
            del self.markers[at]
        try:
            self.ask(MarkersWritten(marker.transactional_id, marker.identity, frozenset({partition})))
        except LostAnswerError:
            if marker not in (other for other, _ in self.markers):
                self.markers.append((marker, {partition}))

    def old_marker(self) -> None:
        if self.old_markers:
            marker = self.random.choice(self.old_markers)
            self.leaders[self.random.choice(sorted(marker.partitions))].write_marker(marker)
            self.count("old markers")

    def move(self) -> None:
        """The shard gets a new coordinator; markers that the former coordinator has sent may still arrive."""
        self.count("moves")
        before = self.machine
        self._loaded()
        assert self.machine.transactions == before.transactions, "the log gives the same state as memory"

    def wait(self) -> None:
        self.now_ms += self.random.randrange(2 * TIMEOUT_MS)
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and due_ms <= self.now_ms:
            prepared = {name for name, transaction in self.machine.transactions.items() if transaction.is_prepared}
            self._commit(self.machine.tick(self.now_ms))
            ended = {name for name in prepared if not self.machine.transactions[name].is_prepared}
            assert not ended, f"prepared, and timed out: {ended}"
            self.count("time-outs")

    def abort(self) -> None:
        """Abort the open transaction, as an operator does."""
        try:
            self.ask(AbortTransaction(self.random.choice("ab")))
        except (LostAnswerError, InvalidTxnStateError, TransactionalIdNotFoundError, CoordinatorLoadInProgressError):
            return
        self.count("aborted by an operator")

    # -- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End all failures: prepared transactions are completed, other transactions time out, all markers arrive."""
        for transactional_id, transaction in list(self.machine.transactions.items()):
            if transaction.is_undecided_for_ever:
                request = CompleteTransaction(transactional_id, transaction.identity, commit=True)
                while self.machine_state(transactional_id) is TransactionState.ONGOING:
                    try:
                        self._commit(self.machine.handle(request, self.now_ms))
                    except CoordinatorLoadInProgressError:
                        continue
        rounds = 0
        while any(t.state is TransactionState.ONGOING for t in self.machine.transactions.values()):
            rounds += 1
            assert rounds < 100, f"never timed out: {self.machine.transactions}"
            self.now_ms += TIMEOUT_MS + 1
            self._commit(self.machine.tick(self.now_ms))
        rounds = 0
        while self.markers:
            rounds += 1
            assert rounds < 10_000, f"markers are refused again and again: {self.markers}"
            self.marker()
            if not self.markers and any(t.state in PREPARING for t in self.machine.transactions.values()):
                self._loaded()

    def check(self) -> None:
        for partition, leader in self.leaders.items():
            left = [names for names in leader.open.values() if names]
            assert not left, f"{partition}: {left} never ended"
        outcomes: dict[str, set[bool]] = {}
        for leader in self.leaders.values():
            for name, found in leader.outcomes.items():
                outcomes.setdefault(name, set()).update(found)
        for name, found in outcomes.items():
            assert len(found) == 1, f"{name} is torn: {found}"
            assert name not in self.answered or self.answered[name] in found, (
                f"{name}: answered {self.answered[name]}, is {found}"
            )
