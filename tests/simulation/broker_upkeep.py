"""Retention, compaction and DeleteRecords in the brokers' half: the product's upkeep code on a broker of the
simulation.

Retention runs unchanged. Compaction uses the product's planning, cleaning and swaps, one log at a time. The simulation
replaces the pool of cleaner threads by ``Aside``, a thread that runs only while the event loop is stopped, until it
waits for a turn of the directory's writer. DeleteRecords uses the Offsets service; ``Deleter``, an operator, sends the
requests.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace_broker.handlers import offsets
from headrace_broker.handlers.offsets import OffsetsService
from headrace_broker.partition import PartitionLeader
from headrace_broker.settings import LiveSettings
from headrace_broker.upkeep.cleaners import Cleaners
from headrace_broker.upkeep.retention import Retention
from headrace_core.errors import HeadraceError
from headrace_core.log import PartitionLog
from headrace_core.log.checkpoints import LOG_STARTS
from headrace_core.log.compaction.cleaner import Cleaner
from headrace_core.log.compaction.planning import CleanerConfig
from headrace_core.log.directory import LogDirectory
from headrace_core.log.writer import DirectoryWriter
from headrace_core.telemetry import Emitter
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2

if TYPE_CHECKING:
    from tests.simulation.broker_node import Broker, BrokerHost
    from tests.simulation.broker_sim_world import BrokerWorld

RETENTION_MS = 120
CLEANER_PAUSE_MS = 150.0
DELETE_TIMEOUT_MS = 800
#: Interval of the checks for free space and for files to be removed (the product's 5 s would be as long as a schedule).
TICK_S = 0.1


class Aside:
    """A thread that works while the simulation is stopped, and waits while the simulation runs."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._raised: BaseException | None = None
        self._must_end = False
        self.is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Run the thread until it waits or has ended; raise the error that ended it."""
        if self.is_over:
            return
        self._go.release()
        self._back.acquire()
        if self.is_over:
            self._thread.join()
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised

    def wait(self) -> None:
        """Called in the thread: wait for the next step."""
        self._back.release()
        self._go.acquire()
        if self._must_end:
            raise SystemExit

    def end(self) -> None:
        """End the thread, because its world has ended."""
        if not self.is_over:
            self._must_end = True
            try:
                self.step()
            except BaseException:  # noqa: BLE001 - its process is gone
                return

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._must_end:
                self._work()
        except BaseException as error:  # noqa: BLE001 - whoever steps raises it
            self._raised = error
        self.is_over = True
        self._back.release()


class SimCleaners(Cleaners):
    """Cleaners without threads: ``run`` plans and cleans."""

    aside: Aside | None = None

    def _in_turn(self, writer: DirectoryWriter, log: PartitionLog, action: Callable[[], bool]) -> bool:
        assert self.aside is not None
        outcome: list[Any] = []
        aside = self.aside

        def ended(done: asyncio.Future[bool]) -> None:
            outcome.append(done.exception() or done.result())
            self._goes_on(aside)

        def begin() -> None:
            try:
                writer.run(action, log=log).add_done_callback(ended)
            except HeadraceError as error:
                outcome.append(error)
                self._goes_on(aside)

        self._loop.call_soon_threadsafe(begin)
        aside.wait()
        (result,) = outcome
        if isinstance(result, BaseException):
            raise result
        return bool(result)

    def _goes_on(self, aside: Aside) -> None:
        try:
            aside.step()
        finally:
            if aside.is_over:
                self._over.set_result(None)

    async def run(self, broker: Broker) -> None:
        """Run until the process ends."""
        world = broker.world
        while True:
            await asyncio.sleep(world.rng.uniform(0.5, 1.5) * CLEANER_PAUSE_MS / 1_000)
            self._cleaned: dict[PartitionLog, None] = {}
            self.aside = Aside(self._clean_all)
            world.asides.append(self.aside)
            self.aside.step()
            if not self.aside.is_over:
                self._over = self._loop.create_future()
                await self._over
            world.asides.remove(self.aside)
            self.aside = None
            for log in self._cleaned:
                if not log.is_closed:
                    world.count("state", "log compacted")
                    world.checks.compacted(broker.host, log)

    def _clean_all(self) -> None:
        config = CleanerConfig(dedupe_buffer_bytes=32_768, load_factor=0.9, io_buffer_bytes=65_536)
        cleaner: Cleaner | None = None
        for job in self.plan():
            directory = job.writer.directory
            if cleaner is None:
                cleaner = Cleaner(directory.fs, config, clock=self._clock, secret=bytes(16))
            if self.clean(cleaner, job, lambda: False):
                log = directory.get(job.partition)
                if log is not None:
                    self._cleaned[log] = None


def begin_upkeep(broker: Broker) -> None:
    """Start retention and compaction, as the broker's startup code does."""
    plan = broker.world.plan
    if plan.retention_bytes is not None or plan.deletes:
        settings = LiveSettings(
            {"log.retention.check.interval.ms": RETENTION_MS, "log.initial.task.delay.ms": RETENTION_MS}, Emitter()
        )
        retention = Retention(
            broker.storage.writers,
            broker.partitions,
            clock=broker.host.clock,
            settings=settings,
            events=broker.events,
            loop=broker.loop,
        )
        broker.loop.create_task(retention.run())
    if plan.compacts:
        cleaners = SimCleaners(
            broker.storage.writers,
            broker.partitions,
            clock=broker.host.clock,
            settings=LiveSettings({}, Emitter()),
            events=broker.events,
            loop=broker.loop,
        )
        broker.loop.create_task(cleaners.run(broker))


class Deleter:
    """An operator who deletes records at intervals: up to an offset, up to the high watermark, or further than
    allowed."""

    def __init__(self, world: BrokerWorld) -> None:
        self.world = world
        self.rng = random.Random(f"{world.plan.seed} deleter")

    def begin(self) -> None:
        self.world.scheduler.after(self.rng.uniform(100.0, 400.0), self._turn)

    def _turn(self) -> None:
        world, rng = self.world, self.rng
        number = rng.randrange(world.plan.partitions)
        topic = world.image.topic("orders")
        host = None if topic is None else world.host_of(topic.partitions[number].leader)
        if host is not None and host.broker is not None and host.broker.acting:
            end = world.checks.truths[number].end
            before = rng.choice([-1, max(end - rng.randrange(1, 30), 0), max(end - rng.randrange(1, 30), 0), end + 60])
            self.delete(host, number, before)
        world.scheduler.after(rng.uniform(120.0, 500.0), self._turn)

    def delete(self, host: BrokerHost, number: int, before: int) -> None:
        """Ask the partition's leader to delete the records before an offset (-1: up to the high watermark)."""
        broker, loop = host.broker, host.loop
        assert broker is not None
        assert loop is not None
        self.world.checks.asked_to_delete(number, before)
        loop.run(lambda: loop.create_task(self._delete(broker, number, before)) and None)

    async def _delete(self, broker: Broker, number: int, before: int) -> None:
        service = OffsetsService(broker.context)  # type: ignore[arg-type]
        request = offsets_pb2.DeleteRecordsRequest(timeout_ms=DELETE_TIMEOUT_MS)
        request.partitions.add(topic="orders", partition=number, before_offset=before)
        response = await service.DeleteRecords(request, _CALL)
        (result,) = response.results
        if result.HasField("error"):
            self.world.count("refusal", f"DeleteRecords {result.error.code}")
            return
        self.world.count("state", "records deleted")
        self.world.checks.deleted(number, before, result.low_watermark)


class NoTurns:
    """Replaces ``headrace_core.rpc.turns.Turns``, which would read the real clock."""

    def __init__(self, items: int) -> None:
        """The work on a few items is never long, so the event loop needs no pause."""

    async def __aenter__(self) -> NoTurns:
        return self

    async def __aexit__(self, *raised: object) -> None:
        return

    def is_over(self) -> bool:
        return False


#: The part of a gRPC call that a handler uses.
_CALL = SimpleNamespace(cancelled=lambda: False, done=lambda: False)


def observing_starts(world: BrokerWorld) -> list[tuple[Any, str, Any]]:
    """Patches that observe each move of a log start at once, because the process may end in the middle of the move."""
    expire, delete = LogDirectory.expire, LogDirectory.delete_records

    def observed_expire(self: LogDirectory, verdicts: Any) -> Any:
        judged = list(verdicts)
        before = {log: log.log_start_offset for log, _ in judged}
        try:
            done = expire(self, judged)
            for log, _ in done:
                # On a full disk only the names of the segments show the log start offset. DeleteRecords may have moved
                # the log start offset to a record within a segment.
                is_written = LOG_STARTS not in self._unwritten
                world.checks.start_moved(log, None if is_written else log.segments[0].base_offset)
            return done
        finally:
            for log, start in before.items():
                if log.log_start_offset > start:
                    world.checks.expired(log)

    def observed_delete(self: LogDirectory, log: PartitionLog, before_offset: int) -> int:
        world.checks.start_moves(log, before_offset)
        start = delete(self, log, before_offset)
        world.checks.start_moved(log)
        return start

    when_deleted = PartitionLeader.when_deleted

    def observed_when_deleted(self: PartitionLeader, offset: int, waiter: Any) -> None:
        def done(error: HeadraceError | None) -> None:
            if error is None:
                world.checks.deleted_by_all(self, offset)
            waiter(error)

        when_deleted(self, offset, done)

    return [
        (PartitionLeader, "when_deleted", observed_when_deleted),
        (LogDirectory, "expire", observed_expire),
        (LogDirectory, "delete_records", observed_delete),
        (offsets, "Turns", NoTurns),
    ]


def earliest(broker: Any, partition: TopicPartition, reply: Callable[[Any], None]) -> None:
    """Answer as the Offsets service does (ListOffsets, earliest)."""
    try:
        reply(broker.partitions.leader(partition).leader.log_start)
    except HeadraceError as error:
        reply(error)
