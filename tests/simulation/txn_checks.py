"""Check the guarantees of transactions after every event; at the end ``txn_checker`` checks the clients' history.

In addition to the guarantees of brokers (``broker_checks``):

* A value is committed to a log once, and at the offset that its producer received.
* For each marker in a log, the transaction's shard has a committed decision with the same outcome.
* Under version 2 no batch is after the marker that ended its epoch, and no batch of a later epoch is before that
  marker. Under version 2 a marker ends only transactions of earlier epochs.
* The records of a shard make only legal transitions, and the epoch of a producer id never decreases.
* A transaction is aborted only if a client requested it, or after its timeout; a prepared transaction has no timeout.
* A producer is fenced only if another producer has taken over its transactional id.
* The coordinator's state equals a replay of its shard's log.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from headrace_coordinator.runtime.claims import is_claim
from headrace_coordinator.transaction.codec import decode_key, decode_value
from headrace_coordinator.transaction.state import COMMITTED, LEGAL, PREPARING, Transaction, TransactionState
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from headrace_core.records import COMMIT, decode_batch, read_header
from headrace_core.testing.clock import EPOCH_MS
from headrace_core.types import NO_LEADER
from tests.simulation.broker_checks import BrokerChecks, Truth
from tests.simulation.group_log import LogPartition
from tests.simulation.sim_checks import Violation
from tests.simulation.txn_checker import find

#: The clocks of two coordinators differ by at most this time, unless a fault sets a clock.
CLOCKS_APART_MS = 50

if TYPE_CHECKING:
    from tests.simulation.txn_clients import Producer
    from tests.simulation.txn_sim_world import TxnWorld


class _Written:
    """The state of a producer id in a partition, from the committed log."""

    __slots__ = ("ended_epoch", "first_offset", "open_epoch")

    def __init__(self) -> None:
        self.open_epoch: int | None = None
        self.first_offset = -1
        #: All transactions up to this epoch have a marker (version 2).
        self.ended_epoch = -1


class TxnChecks(BrokerChecks):
    """See the module."""

    world: TxnWorld  # type: ignore[assignment]

    def __init__(self, world: TxnWorld) -> None:
        super().__init__(world)
        self._written: defaultdict[tuple[int, int], _Written] = defaultdict(_Written)
        #: (producer id, epoch of the marker) -> the outcomes that were decided.
        self._decided: defaultdict[tuple[int, int], set[bool]] = defaultdict(set)
        #: transactional id -> its last committed record; producer id -> its transactional id.
        self.last: dict[str, Transaction] = {}
        self._owners: dict[int, str] = {}
        self._epochs: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        #: When the open transaction of a transactional id began, by a right clock.
        self._began_ms: dict[str, float] = {}

    # -- the partitions' logs ----------------------------------------------------------------------------------------

    def _commit(self, truth: Truth, base_offset: int, batch: bytes) -> None:
        header = read_header(batch)
        truth.batches[base_offset] = batch
        written = self._written[truth.number, header.producer_id]
        if header.is_control:
            self._marker_committed(truth, written, batch)
            return
        for record in decode_batch(batch):
            value = bytes(record.value or b"")
            if value in truth.offsets:
                raise Violation(
                    "doubled", f"{value!r} is committed at {truth.offsets[value]} and again at {record.offset}"
                )
            truth.values[record.offset] = value
            truth.offsets[value] = record.offset
        epoch = header.producer_epoch
        if written.open_epoch is not None and epoch != written.open_epoch:
            raise Violation(
                "mixed",
                f"partition {truth.number}: at {base_offset} is a batch of epoch {epoch} of producer "
                f"{header.producer_id}, whose transaction of epoch {written.open_epoch} is open since "
                f"{written.first_offset}",
            )
        if epoch <= written.ended_epoch:
            raise Violation(
                "late batch",
                f"partition {truth.number}: at {base_offset} is a batch of epoch {epoch} of producer "
                f"{header.producer_id}, whose transactions up to epoch {written.ended_epoch} have ended there",
            )
        if written.open_epoch is None:
            written.open_epoch, written.first_offset = epoch, base_offset

    def _marker_committed(self, truth: Truth, written: _Written, batch: bytes) -> None:
        header = read_header(batch)
        (record,) = decode_batch(batch)
        assert record.key is not None
        commit = int.from_bytes(record.key[2:4], "big") == COMMIT
        key = header.producer_id, header.producer_epoch
        if commit not in self._decided[key]:
            raise Violation(
                "marker",
                f"partition {truth.number}: the marker at {header.base_offset} {'commits' if commit else 'aborts'} the "
                f"transaction of producer {key[0]}, epoch {key[1]}, and no decision says so",
            )
        if self._versions.get(header.producer_id, 1) >= 2:
            if written.open_epoch is not None and header.producer_epoch <= written.open_epoch:
                raise Violation(
                    "late marker",
                    f"partition {truth.number}: the marker at {header.base_offset} of producer {key[0]} has epoch "
                    f"{key[1]}, and ends the transaction of epoch {written.open_epoch} that is open since "
                    f"{written.first_offset}",
                )
            written.ended_epoch = max(written.ended_epoch, header.producer_epoch - 1)
        self.world.count("marker", "commits" if commit else "aborts")
        if written.open_epoch is None:
            self.world.count("marker", "without a batch")
        written.open_epoch = None

    def acknowledged_in_transaction(self, number: int, values: list[str], base_offset: int) -> None:
        truth = self.truths[number]
        for index, value in enumerate(values):
            if truth.values.get(base_offset + index) != value.encode():
                raise Violation(
                    "acknowledged",
                    f"{value} was acknowledged at {base_offset + index} of partition {number}, where "
                    f"{truth.values.get(base_offset + index)!r} is committed",
                )

    # -- the shards' logs --------------------------------------------------------------------------------------------

    def committed(self, log: LogPartition, before: int) -> None:
        """Called when records of a shard are committed."""
        for batch in log.batches:
            if batch.base < before or batch.end > log.committed:
                continue
            for record in batch.records:
                if not is_claim(record.key):
                    self._decision(decode_key(record.key), record.value, log.owners[batch.epoch].off_ms)

    def _decision(self, transactional_id: str, value: bytes | None, off_ms: float = 0.0) -> None:
        """``off_ms``: how far the clock of the coordinator is ahead that has decided."""
        world, was = self.world, self.last.get(transactional_id)
        if value is None:
            self._legal(transactional_id, was, None)
            del self.last[transactional_id]
            world.count("record", "tombstone")
            return
        now = decode_value(value)
        self._legal(transactional_id, was, now)
        if now.state is TransactionState.ONGOING and (was is None or was.state is not now.state):
            self._began_ms[transactional_id] = now.started_ms - off_ms
        self._timely(transactional_id, was, now, off_ms)
        self.last[transactional_id] = now
        world.count("record", "PREPARED" if now.is_prepared else now.state.name)
        world.tell(transactional_id, f"is {now.state.name}{' (prepared)' if now.is_prepared else ''}, producer "
                   f"{now.producer_id} with epoch {now.producer_epoch}, {len(now.partitions)} partitions")  # fmt: skip
        if now.version:
            self._versions[now.producer_id] = now.version
        if now.state in PREPARING:
            self._decided[now.identity].add(now.state in COMMITTED)
            if now.next_producer_id >= 0:
                world.count("transaction", "epochs ran out")

    def _timely(self, transactional_id: str, was: Transaction | None, now: Transaction, off_ms: float) -> None:
        """Check an abort that no client has requested since the transaction began."""
        world = self.world
        if was is None or was.state is not TransactionState.ONGOING or now.state is not TransactionState.PREPARE_ABORT:
            return
        started_ms = self._began_ms[transactional_id]
        began_ms = -math.inf if world.are_clocks_wrong else started_ms - EPOCH_MS - CLOCKS_APART_MS
        if world.may_be_aborted(transactional_id, prepared=was.is_prepared, since_ms=began_ms):
            return
        world.count("transaction", "timed out")
        if was.is_prepared:
            raise Violation(
                "prepared", f"{transactional_id} was prepared, and is aborted; no client has asked for that"
            )
        after_ms = now.updated_ms - off_ms - started_ms
        if not world.are_clocks_wrong and after_ms < now.timeout_ms - CLOCKS_APART_MS:
            raise Violation(
                "timeout",
                f"{transactional_id} is aborted {after_ms:.0f} ms after it began, and no client has asked for that; "
                f"its timeout is {now.timeout_ms} ms",
            )

    def fenced(self, producer: Producer) -> None:
        """Called when a producer is fenced: another producer must have taken over its transactional id. (Under version
        1 also a timeout or an operator fences the producer. A producer that repeats InitProducerId can fence itself, if
        the coordinator decides the first request after the repeated one: seed 20261122245.)"""
        unanswered = +self.world.initializing[producer.transactional_id]
        others = (self.world.initialized[producer.transactional_id] | set(unanswered)) - {producer.name}
        if not others and producer.version > 1 and self.world.inits[producer.name] < 2:
            raise Violation("fenced", f"{producer} is fenced, and no other producer has taken its transactional id")

    def _legal(self, transactional_id: str, was: Transaction | None, now: Transaction | None) -> None:
        before, after = None if was is None else was.state, None if now is None else now.state
        if after not in LEGAL[before]:
            raise Violation("transitions", f"{transactional_id} goes from {before} to {after}")
        if now is None:
            return
        owner = self._owners.setdefault(now.producer_id, transactional_id)
        if owner != transactional_id:
            raise Violation("producer ids", f"{owner} and {transactional_id} have producer id {now.producer_id}")
        if now.producer_epoch < self._epochs.get(now.producer_id, -1):
            raise Violation(
                "epochs",
                f"{transactional_id}: producer {now.producer_id} goes back from epoch {self._epochs[now.producer_id]} "
                f"to {now.producer_epoch}",
            )
        self._epochs[now.producer_id] = now.producer_epoch
        if now.producer_epoch > self.world.plan.epoch_max:
            raise Violation("epochs", f"{transactional_id} is at epoch {now.producer_epoch}")

    # -- at the end --------------------------------------------------------------------------------------------------

    def why_not_over(self) -> str | None:
        """Return why transactions are still open, or readers lag, after all producers have ended; "": none."""
        world = self.world
        for transactional_id, transaction in self.last.items():
            if transaction.state in (TransactionState.ONGOING, *PREPARING):
                return f"{transactional_id} is {transaction.state.name}{' (prepared)' * transaction.is_prepared}"
        for number in range(world.plan.partitions):
            replica = self._leader(number)
            if replica is None:
                return f"partition {number} has no leader"
            stable, mark, end = replica.last_stable_offset, replica.leader.high_watermark, replica.log.log_end_offset
            if not stable == mark == end:
                return f"partition {number}: last stable offset {stable}, high watermark {mark}, log end {end}"
            for reader in world.all_readers:
                if reader.partition == number and reader.reader.position < end:
                    return f"{reader} is at {reader.reader.position} of {end}"
        return self.why_not_equal()

    def _leader(self, number: int) -> Any:
        topic = self.world.image.topic("orders")
        assert topic is not None
        state = topic.partitions[number]
        host = None if state.leader == NO_LEADER else self.world.host_of(state.leader)
        if host is None or host.broker is None:
            return None
        return next((each for key, each in host.broker.partitions.led.items()
                     if (key.topic, key.partition) == ("orders", number)), None)  # fmt: skip

    def coordinators_equal_their_logs(self) -> None:
        for host in self.world.coordinators:
            for runner in host.process.shards or () if host.process is not None else ():
                state_machine = runner.state_machine
                if not isinstance(state_machine, TransactionsStateMachine) or not runner.is_serving:
                    continue
                log, shard = self.world.logs[int(runner.shard.name.rpartition("-")[2])], runner.shard
                if log.end != log.committed or shard._flying is not None or shard._gathering:
                    continue
                replayed = TransactionsStateMachine(lambda: 0)
                for batch in log.batches:
                    for record in batch.records:
                        if not is_claim(record.key):
                            replayed.replay(record.key, record.value, record.timestamp_ms)
                self.world.count("check", "state machine compared with its log")
                if replayed.transactions != state_machine.transactions:
                    known, logged = state_machine.transactions, replayed.transactions
                    differing = next(key for key in sorted({*known, *logged}) if known.get(key) != logged.get(key))
                    raise Violation(
                        "replay",
                        f"{runner.shard.name} at {host}: {differing} is {known.get(differing)}, and "
                        f"{logged.get(differing)} in the log",
                    )

    def check_history(self) -> None:
        """Raise a Violation for the first anomaly of the history, under the anomaly's name."""
        history = self.world.history
        history.readers = [each.reader for each in self.world.readers]
        history.final = {number: self.world.read_all(number) for number in range(self.world.plan.partitions)}
        for anomaly in find(history):
            raise Violation(anomaly.name, anomaly.what)
