"""The simulation of transactions: brokers and coordinators with the product's code, transactional producers, and
readers.

    world = TxnWorld(make_txn_plan(4711)); world.run()        raises Violation

Brokers are as in the simulation of brokers (``broker_sim_world``), with simulated disks. Coordinators are as in the
simulation of groups (``group_hosts``); the logs of their shards are simulated (``group_log``). The marker sender, the
verifier and the handlers of both sides are the product's; ``txn_hosts`` simulates the links between them. The largest
producer epoch is 6.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from headrace_controller.cluster.requests import (
    Bootstrap,
    CreateTopics,
    Heartbeat,
    HeartbeatsEnded,
    NewTopic,
    RegisterBroker,
)
from headrace_coordinator.handlers import transactions as transaction_handlers
from headrace_coordinator.transaction.transactions import TransactionSettings
from headrace_coordinator.transport import markers, shard_log
from headrace_core.errors import CoordinatorNotAvailableError, HeadraceError, from_number
from headrace_core.membership import transaction_partitions
from headrace_core.metadata import BrokerEndpoint
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC, owner_of
from headrace_core.testing.network import GOOD
from headrace_core.types import TopicPartition, join_address
from tests.simulation import wrong_clocks
from tests.simulation.broker_node import CLUSTER
from tests.simulation.broker_sim_world import BrokerWorld
from tests.simulation.coordinators_side import CONTROLLERS, CoordinatorsSide
from tests.simulation.group_hosts import CoordinatorHost
from tests.simulation.group_log import LogPartition
from tests.simulation.sim_checks import Violation
from tests.simulation.txn_checker import History, Result, Transacted
from tests.simulation.txn_checks import TxnChecks
from tests.simulation.txn_clients import Completer, Process, Producer, ReaderProcess, values_of
from tests.simulation.txn_faults import TxnFaults
from tests.simulation.txn_hosts import (
    CONTEXT,
    PORTS,
    SimRequestLink,
    Switches,
    TxnCoordinator,
    TxnCoordinatorHost,
)
from tests.simulation.txn_plan import TxnPlan

#: Within this virtual time after the end of all faults, each transactional id must commit, and all transactions must
#: end.
HEAL_MS = 15_000.0
#: The number of the first coordinator. The number of a broker that exists only in the metadata, for the topic of the
#: shards.
FIRST_COORDINATOR, GHOST = 21, 9
BROKER_PORTS = 9_000


class TxnWorld(CoordinatorsSide, BrokerWorld):
    """See the module."""

    EVENTS_MAX = 400_000
    SESSION_MS, GRACE_MS = 900, 200
    plan: TxnPlan
    checks: TxnChecks

    def __init__(self, plan: TxnPlan, *, with_story: bool = False) -> None:
        self.coordinators: Sequence[CoordinatorHost] = ()
        super().__init__(plan, with_story=with_story)
        del self.coverage["half", "brokers"]
        self.coverage["part", "transactions"] = 1
        self.coverage.update(wrong_clocks.events(plan.seed, wrong_clocks.COORDINATORS))
        self.settings = TransactionSettings(
            timeout_ms_max=60_000,
            expiration_ms=plan.expiration_ms,
            expiration_interval_ms=200,
            epoch_max=plan.epoch_max,
        )
        self.link_faults = Switches(self)
        #: Callbacks that learn which broker gets markers of which partitions; a callback that returns True is removed.
        self.marker_traps: list[Callable[[int, set[int]], bool]] = []
        self.logs = [LogPartition(self, TopicPartition(TRANSACTIONS_TOPIC, n)) for n in range(plan.shards)]
        self.coordinators = [TxnCoordinatorHost(self, FIRST_COORDINATOR + n) for n in range(plan.coordinators)]
        self.history = History()
        #: Identity of each prepared transaction -> the transaction, and whether it shall be committed.
        self.prepared: dict[tuple[int, int], tuple[Transacted, bool]] = {}
        self.processes: list[Process] = []
        self.readers = [ReaderProcess(self, number, committed=True) for number in range(plan.partitions)]
        self.all_readers = [*self.readers, ReaderProcess(self, 0, committed=False)]
        self._lives = {f"t{number}": 0 for number in range(len(plan.versions))}
        #: transactional id -> its present producer.
        self.current: dict[str, Producer] = {}
        #: By transactional id: the producers that sent InitProducerId while an older producer was alive, or whose
        #: request was decided since. (Requests of several producers may be decided in any order, also after the death
        #: of the producer: seed 97700.)
        self.initialized: defaultdict[str, set[str]] = defaultdict(set)
        #: By transactional id: the InitProducerId requests that coordinators have not answered, by their producers.
        self.initializing: defaultdict[str, Counter[str]] = defaultdict(Counter)
        #: The number of InitProducerId requests that each producer has sent.
        self.inits: Counter[str] = Counter()
        #: When a client's request to abort was last answered, and how many requests are not answered. The key is
        #: (transactional id, whether the request may end a prepared transaction).
        self.abort_asked_ms: dict[tuple[str, bool], float] = {}
        self.aborting: Counter[tuple[str, bool]] = Counter()
        #: Whether a fault has set a coordinator's clock.
        self.are_clocks_wrong = False
        self._is_ending = False
        self._completing: set[tuple[int, int]] = set()

    def _new_checks(self) -> TxnChecks:
        return TxnChecks(self)

    @property
    def nodes(self) -> Sequence[Any]:
        return [*self.hosts, *self.coordinators]

    # -- processes ---------------------------------------------------------------------------------------------------

    def process_died(self, host: Any, life: int) -> None:
        if not isinstance(host, CoordinatorHost):
            super().process_died(host, life)
        elif host.is_up and host.life == life:
            host.kill()
            self.scheduler.after(150.0, lambda: None if host.is_up else host.start())

    def coordinator_gone(self, host: CoordinatorHost, process: Any) -> None:
        self.stream_left(process)

    def _start_producer(self, transactional_id: str) -> None:
        self._lives[transactional_id] += 1
        alive = [each for each in self.processes if isinstance(each, Producer) and each.is_alive]
        if not any(each.transactional_id == transactional_id for each in alive):
            self.initialized[transactional_id].clear()
        version = self.plan.versions[int(transactional_id[1:])]
        producer = Producer(self, transactional_id, version, self._lives[transactional_id])
        self.current[transactional_id] = producer
        self.processes.append(producer)
        self.tell(producer, "starts")
        producer.begin()

    def next_producer(self, producer: Producer, after_ms: float) -> None:
        """Start the next producer of the transactional id, unless it has already started."""

        def start() -> None:
            if self.current[producer.transactional_id] is producer and not self._is_ending:
                self._start_producer(producer.transactional_id)

        self.scheduler.after(after_ms, start)

    def producer_ended(self, producer: Producer) -> None:
        producer.kill()
        self.next_producer(producer, self.rng.uniform(5.0, 60.0))

    def complete_elsewhere(self, transactional_id: str, token: tuple[int, int]) -> None:
        self.processes.append(Completer(self, transactional_id, token))

    def abort_asked(self, transactional_id: str, *, prepared: bool) -> None:
        """Called when a client requests an abort of the transaction; ``prepared``: the request aborts even a prepared
        transaction."""
        for is_prepared in (False, True) if prepared else (False,):
            self.abort_asked_ms[transactional_id, is_prepared] = self.scheduler.now_ms

    def may_be_aborted(self, transactional_id: str, *, prepared: bool, since_ms: float) -> bool:
        """Whether a client has requested an abort of the transaction since ``since_ms``."""
        is_asked = self.aborting[transactional_id, True] or (not prepared and self.aborting[transactional_id, False])
        return bool(is_asked) or self.abort_asked_ms.get((transactional_id, prepared), -math.inf) > since_ms

    # -- the history -------------------------------------------------------------------------------------------------

    def begun(self, name: str) -> Transacted:
        transaction = Transacted(name, self.scheduler.now_ms)
        self.history.transactions.append(transaction)
        return transaction

    def ended(self, transaction: Transacted, result: Result) -> None:
        """Called when a client learns the result of a transaction."""
        if transaction.result is None:
            transaction.result, transaction.ended = result, self.scheduler.now_ms
            self.count("transaction", result.value)
            self.tell(transaction.name, f"is {result.value}, for its client")
        elif transaction.result is not result:
            raise Violation("outcome", f"{transaction.name} is {transaction.result.value}, and now {result.value}")

    # -- the network -------------------------------------------------------------------------------------------------

    def address_of(self, node: Any) -> Any:
        """Return the name of a broker, a coordinator or a client, for the names of links."""
        return node.number if node in self.hosts else node.name

    def host_at(self, port: int) -> Any:
        if BROKER_PORTS < port < BROKER_PORTS + PORTS:
            return self.host_of(port - BROKER_PORTS)
        number, life = divmod(port, PORTS)
        host = next((each for each in self.coordinators if each.number == number), None)
        return host if host is not None and host.life == life else None

    def leader_of(self, number: int) -> int:
        """Return the leader of a partition that a client knows, which may be outdated."""
        topic = self.image.topic("orders")
        assert topic is not None
        if self.rng.random() < 0.05:
            return self.rng.choice(self.hosts).number
        return topic.partitions[number].leader

    def coordinator_address(self, transactional_id: str) -> str | None:
        """Return the coordinator of a transactional id that a client knows, which may be outdated."""
        image = self.image
        if self.steps and self.rng.random() < 0.1:
            image = self.steps[max(len(self.steps) - self.rng.choice([2, 3, 6]), 0)][1]
        try:
            endpoint = owner_of(image, TRANSACTIONS_TOPIC, transactional_id).coordinator.endpoints[0]
        except CoordinatorNotAvailableError:
            return None
        return join_address(endpoint.host, endpoint.port)

    def call_coordinator(self, process: Any, method: str, request: Any, answered: Callable[[Any], None]) -> None:
        """A client's call to the coordinator of its transactional id."""
        named = request.token if method == "CompleteTransaction" else request
        address = self.coordinator_address(named.transactional_id)
        host = None if address is None else self.host_at(int(address.rpartition(":")[2]))
        if host is None:
            self.scheduler.after(10.0, answered, CoordinatorNotAvailableError("no coordinator is known"))
            return
        if method == "InitProducer":
            self.initialized[named.transactional_id].add(process.name)
            self.inits[process.name] += 1
        sent = type(request)()
        sent.CopyFrom(request)
        may_abort = method in ("InitProducer", "AbortTransaction") or not getattr(request, "commit", True)
        ends_prepared = method != "InitProducer" or not request.keep_prepared

        def deliver(back: Callable[[Any], None]) -> None:
            if host.process is not None:
                if may_abort:
                    self.aborting[named.transactional_id, ends_prepared] += 1
                host.process.spawn(serve(host.process, back))

        async def serve(coordinator: TxnCoordinator, back: Callable[[Any], None]) -> None:
            initializing = self.initializing[named.transactional_id]
            initializing[process.name] += method == "InitProducer"
            try:
                answer = await getattr(coordinator.service, method)(sent, CONTEXT)
            except HeadraceError as error:
                answer = error
            finally:
                if method == "InitProducer":  # possibly of a producer that was killed while its request waited
                    initializing[process.name] -= 1
                    self.initialized[named.transactional_id].add(process.name)
            if may_abort:
                self.abort_asked(named.transactional_id, prepared=ends_prepared)
                self.aborting[named.transactional_id, ends_prepared] -= 1
            back(answer)

        is_first_version = method == "EndTransaction" and request.transaction_version < 2
        # InitProducerId is never duplicated, because the copy would fence the producer that sent it.
        process._carry(host, deliver, answered, "ends_late", in_order=is_first_version or method == "InitProducer")

    @staticmethod
    def error_of(error: Any) -> HeadraceError:
        return from_number(error.code, error.message)

    def _metadata_arrives(self, host: Any, index: int) -> None:
        if not isinstance(host, CoordinatorHost):
            super()._metadata_arrives(host, index)
        elif (CONTROLLERS, host.name) in self.cuts:
            self.scheduler.after(30.0, self._metadata_arrives, host, index)
        else:
            host.known = max(host.known, index)
            if host.process is not None and host.loop is not None:
                host.loop.run(host.process.metadata_arrived)

    # -- the run -----------------------------------------------------------------------------------------------------

    def _patches(self) -> list[tuple[Any, str, Any]]:
        return [
            *super()._patches(),
            (transaction_partitions, "RequestLink", SimRequestLink),
            (transaction_partitions, "Backoff", self._backoff),
            (transaction_partitions, "VERIFICATION_S", 0.9),
            (transaction_partitions, "ANSWER_S", 0.25),
            (markers, "RequestLink", SimRequestLink),
            (markers, "Backoff", self._backoff),
            (markers, "ANSWER_S", 0.6),
            (markers, "LOOK_S", 0.1),
            (transaction_handlers, "PARKED_S", 0.3),
            (shard_log, "Backoff", self._backoff),
            (shard_log, "_MOVED_S", 0.15),
        ]

    def _run(self) -> None:
        faults = TxnFaults(self)  # type: ignore[arg-type]
        for period in self.plan.periods:
            if period.is_quiet:
                self.scheduler.at(period.from_ms + 400.0, faults.mend)
        for fault in self.plan.faults:
            self.scheduler.at(fault.at_ms + 400.0, faults.strike, fault)
        self.core.lead(0.0)
        self.decide(Bootstrap(CLUSTER))
        self._create_shards()
        for host in chain(self.hosts, self.coordinators):
            host.start()
        self._upkeep()
        self.pass_until(100.0)
        while not self.image.brokers[GHOST].fenced:
            self.pass_until(self.scheduler.now_ms + 20.0)
        self._create_topic()
        self.pass_until(max(self.scheduler.now_ms, 350.0))
        for reader in self.all_readers:
            reader.begin()
        for transactional_id in self._lives:
            self._start_producer(transactional_id)
        self.pass_until(self.plan.length_ms + 400.0)
        faults.mend()
        self._prove(faults)

    def _create_shards(self) -> None:
        """Create the topic of the shards on a broker that is then removed. ``self.logs`` replace the partitions of the
        topic."""
        broker = self.decide(
            RegisterBroker(
                cluster_id=CLUSTER,
                incarnation_id=self.rng.randbytes(16),
                directory_ids=(self.rng.randbytes(16),),
                endpoints=(BrokerEndpoint("internal", "host", BROKER_PORTS + GHOST),),
                wanted_broker_id=GHOST,
                default_log_flush="commit",
            )
        )
        offset = self.image.next_offset
        self.decide(
            Heartbeat(
                broker_id=GHOST,
                broker_epoch=broker.broker_epoch,
                metadata_offset=offset,
                want_fence=False,
                want_shutdown=False,
                stream=1,
            )
        )
        topic = NewTopic(name=TRANSACTIONS_TOPIC, partitions=self.plan.shards, replication_factor=1)
        (result,) = self.decide(CreateTopics((topic,), internal=True))
        if result.error is not None:
            raise result.error
        self.decide(HeartbeatsEnded(GHOST, broker.broker_epoch, 1))

    def _prove(self, faults: TxnFaults) -> None:  # type: ignore[override]
        """After the repair: each transactional id must commit a transaction. After these commits, some producers stop,
        and others are killed; all transactions must end, and the history must have no anomaly."""
        self.quality = GOOD
        before = self.commits
        self._until(lambda: self.checks.why_not_well() or self._who_has_not_committed(before))
        self._is_ending = True
        for process in self.processes:
            if isinstance(process, Producer):
                process.must_stop = True
                if self.rng.random() < 0.4:
                    process.kill()
        if self.rng.random() < 0.5:  # a new owner of the shards ends the transactions of killed producers
            for host in self.coordinators:
                if host.is_up:
                    host.kill()
                    self.scheduler.after(self.rng.uniform(20.0, 200.0), faults._restart(host))
        self._until(self._why_not_stopped)
        for process in self.processes:
            process.kill()
        self._until(self._why_not_over)
        self.checks.final()
        self.checks.coordinators_equal_their_logs()
        self.checks.check_history()

    def _until(self, why_not: Callable[[], str | None]) -> None:
        until_ms = self.scheduler.now_ms + HEAL_MS
        while (why := why_not()) is not None:
            self.pass_until(self.scheduler.now_ms + 40.0)
            if self.scheduler.now_ms > until_ms:
                raise Violation("liveness", f"{HEAL_MS:.0f} ms after the end of all faults: {why}")

    @property
    def commits(self) -> dict[str, int]:
        found = dict.fromkeys(self._lives, 0)
        for process in self.processes:
            if isinstance(process, Producer):
                found[process.transactional_id] += process.commits
        return found

    def _who_has_not_committed(self, before: dict[str, int]) -> str | None:
        return next((f"{key} commits nothing" for key, count in self.commits.items() if count == before[key]), None)

    def _why_not_stopped(self) -> str | None:
        return next(
            (f"{each} does not end" for each in self.processes if isinstance(each, Producer) and each.is_alive), None
        )

    def _why_not_over(self) -> str | None:
        """Return why not all transactions have ended; start a completer for prepared transactions without one."""
        for transactional_id, transaction in self.checks.last.items():
            if transaction.is_prepared and transaction.identity not in self._completing:
                self._completing.add(transaction.identity)
                self.complete_elsewhere(transactional_id, transaction.identity)
        return self.checks.why_not_over()

    def read_all(self, number: int) -> list[tuple[int, str]]:
        """Read all records of a partition at read_committed, from its leader."""
        replica = self.checks._leader(number)
        found, position = [], 0
        while position < replica.last_stable_offset:
            read = replica.log.read_committed(position, 4_000, replica.leader.high_watermark)
            found += values_of(read, position)
            position = read.next_offset
        return found

    @property
    def acknowledged(self) -> int:
        return sum(each.result is Result.COMMITTED for each in self.history.transactions)
