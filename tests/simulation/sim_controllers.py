"""The machine of a controller: its disk, its clock, and its process, which is the product's QuorumController.

The steps that a real driver does in its loop are separate events in the simulation, each with its own delay: a turn
begins, its disk work is done, the turn ends. Messages, crashes and pauses therefore come between the steps, as in a
real process.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.quorum_controller import QuorumController
from headrace_controller.raft import Message, ReplicaKey, Role, VoterSet
from headrace_controller.storage import write_first_voters
from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    InvalidConfigError,
    OutdatedVoterError,
    ServerShuttingDownError,
    StorageError,
)
from headrace_core.log.directory import format_directory
from headrace_core.log.files import NO_SPACE
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.snapshot import decode_snapshot, encode_snapshot
from headrace_core.testing.clock import NodeClock
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss, SimulatedCrash
from headrace_core.testing.histories import HistoryViolation
from headrace_core.testing.scheduler import Planned
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_copies import Copy, Heard, Restored, witnesses_of
from tests.simulation.sim_disk import ROOT, DiskRecord, ObservedStorage, flip_something

if TYPE_CHECKING:
    from tests.simulation.sim_plan import Fault
    from tests.simulation.sim_world import ControllersWorld


def disk_identity(node_id: int, disk_number: int) -> ReplicaKey:
    """The replica key of a node with its first, second, ... disk."""
    return ReplicaKey(node_id, bytes([node_id, 0xD0 + disk_number]) * 8)


class ControllerHost:
    """See the module. The process is running while ``controller`` is not None."""

    def __init__(self, world: ControllersWorld, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.clock = NodeClock(world.scheduler, started_ms=10_000.0 * node_id)
        self.rng = random.Random(f"{world.plan.seed} controller {node_id}")
        self.disk_number = 0
        self.controller: QuorumController | None = None
        self.storage: ObservedStorage
        #: A start has found the disk damaged, so the disk must be replaced.
        self.is_broken = False
        self.is_paused = False
        self.is_slow = False
        #: The current turn writes to a slow disk, even if the fault that slows the disk has ended by now, so the
        #: controller does not tick.
        self.turn_is_slow = False
        #: The controller must stay down until this time, because of a fault.
        self.down_until_ms = 0.0
        self.published: list[tuple[MetadataImage, MetadataDelta]] = []
        self.heard = Heard()
        #: Set while the disk is an older copy that was not found yet.
        self.restored: Restored | None = None
        #: Counts the starts and the ends of the controller's processes.
        self.life = 0
        self._stage = 0
        self._planned: Planned | None = None
        #: The fault that will crash the disk during a write, and the data that the crash loses.
        self.torn_by: tuple[Fault, Loss] | None = None
        #: The fault that will kill the process when a full disk refuses an append, before its entries are removed.
        self.killed_by: tuple[Fault, Loss] | None = None
        self._sets: list[VoterSet] = []
        self._snapshot_job: Any = None
        self._buffered: list[Message] = []
        self._seen: tuple[Role, int, int] | None = None
        self._led = (-1, -1)
        self._voters_changed = False

    def __str__(self) -> str:
        return f"controller {self.node_id}"

    # -- the disk -----------------------------------------------------------------------------------------------------

    def format(self, voters: VoterSet | None) -> None:
        """Give the machine a new, empty disk with a new id. ``voters``: the first voters; None: the controller waits to
        be added to the voters."""
        self.disk_number += 1
        self.fs = CrashingFileSystem(keep_trace=False)
        self.fs.clock = self.clock
        self.record = DiskRecord()
        self.restored = None
        self.is_broken = False
        self.key = disk_identity(self.node_id, self.disk_number)
        identity = uuid.UUID(bytes=self.key.directory_id)
        format_directory(self.fs, ROOT, cluster_id=self.world.cluster_id, node_id=self.node_id, directory_id=identity)
        write_first_voters(self.fs, ROOT, VoterSet.of(()) if voters is None else voters)
        self.fs.sync_directory("/")

    def restore(self, found: Copy) -> bool:
        """Lose power, and come back with an older copy of the directory, unless no other process remembers more than
        the copy has; returns whether the copy is used."""
        world = self.world
        self.power_loss(Loss.ALL)
        witnesses = witnesses_of(found, world.up())
        if not witnesses:
            world.count("state", "older copy that nobody remembers")
            return False
        world.checks.lost(self.key, [each for each in self.record.shadow.entries if each.next_offset > found.end])
        self.fs, self.record = found.fs, found.record
        self.fs.clock = self.clock
        self.record.is_damaged = True  # (it counts as a lost disk)
        self.restored = Restored(self, witnesses)
        world.count("state", "older copy restored")
        return True

    # -- the process --------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.controller is not None

    @property
    def is_sound(self) -> bool:
        """Whether the process runs and the disk is undamaged, as far as the simulation knows."""
        return self.controller is not None and not self.record.is_damaged

    @property
    def leads(self) -> bool:
        return self.controller is not None and self.controller.role is Role.LEADER

    def start(self) -> None:
        """Open the disk and start the process; a damaged disk prevents the start."""
        world = self.world
        assert self.controller is None
        self.life += 1
        self._stage, self.turn_is_slow = 0, False
        self._snapshot_job = None
        self.heard = Heard()
        self.published.clear()
        self.is_paused = False
        try:
            storage = ObservedStorage.open(
                self.fs,
                ROOT,
                clock=self.clock,
                cluster_id=world.cluster_id,
                node_id=self.node_id,
                reserve_bytes=world.reserve_bytes,
                segment_bytes=world.plan.segment_bytes,
            )
            self.storage = storage
            storage.watch(self.key, self.record, world.checks, self._disk_says)
            storage.recovered()
            core = ClusterCore(world.cluster_settings, new_id=self._new_id)
            controller = QuorumController(
                core,
                storage,
                node_id=self.node_id,
                cluster_id=world.cluster_id,
                clock=self.clock,
                draw=self._draw,
                settings=world.quorum_settings,
                send=self._send,
            )
            controller.subscribe(self._publish)
            controller.start()
        except (CorruptLogError, InvalidConfigError, StorageError) as error:
            if not self.record.is_damaged:
                raise Violation("recovery", f"{self} cannot start: {type(error).__name__}: {error}") from error
            self.is_broken = True
            self.record.is_damaged = True
            world.count("state", "damaged disk refused")
            world.tell(self, f"finds its disk damaged, and does not start ({type(error).__name__})")
            return
        except (OSError, SimulatedCrash, HeadraceError) as error:
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise Violation("full disk", f"{self} cannot start, and does not say why: {error}") from error
            world.tell(self, f"cannot start now: {type(error).__name__}: {error}")
            self.power_loss(Loss.ALL)
            self.down_until_ms = world.now_ms + 300.0
            world.restart_later(self, 300.0)
            return
        self.controller = controller
        self._seen = None
        self._led = (-1, -1)
        self._voters_changed = False
        world.tell(self, f"starts with term {controller.term}, log up to {controller.raft.log_end_offset}")
        world.count("state", "controller started")
        self.check()
        world.checks.image(str(self), controller.image, None)
        self._plan(0.0)
        world.controller_came(self)

    def stop_process(self) -> None:
        """End the process: its memory and its connections are lost, the machine remains."""
        if self.controller is None:
            return
        self._sets = self.known_sets()
        self.controller = None
        self.life += 1
        self._buffered.clear()
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None
        self.world.controller_went(self)

    def power_loss(self, loss: Loss) -> None:
        """Lose power: everything that was not synced is lost, or a part of it (``loss``)."""
        self.stop_process()
        self.fs.crash(self.rng, loss)

    def disarm(self) -> None:
        """Cancel a planned power loss or kill during a write."""
        self.fs.crash_after = None
        self.torn_by = self.killed_by = None

    def known_sets(self) -> list[VoterSet]:
        """All sets of voters in the controller's log; if the process is down, the sets of the log that it had."""
        return self._sets if self.controller is None else self.controller.raft.log.voters_since(0)

    @property
    def has_a_true_clock(self) -> bool:
        return self.clock.rate == 1.0

    def voters(self) -> list[int]:
        """The node ids of the voters that the controller knows."""
        return [] if self.controller is None else [key.node_id for key in self.controller.voters]

    def end(self) -> int:
        return 0 if self.controller is None else self.controller.raft.log_end_offset

    @property
    def log_start(self) -> int:
        assert self.controller is not None
        return self.controller.raft.log.start.offset

    def snapshot_for_observers(self) -> MetadataImage:
        """The snapshot that FollowMetadata sends to observers whose offset is below the start of the log."""
        assert self.controller is not None
        image = self.controller.image
        data = b"".join(encode_snapshot(image, voters=(), timestamp_ms=self.clock.now_ms()))
        return decode_snapshot(data)[0]

    def flip_something(self, rng: random.Random) -> str:
        """Damage a byte of the disk in a place where recovery or a reader must notice; return the place, or "" if there
        is none."""
        return flip_something(self.fs, rng, self.record)

    def pause(self) -> None:
        """Suspend the process with SIGSTOP: no code in it runs, and its connections stay open."""
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        buffered, self._buffered = self._buffered, []
        if self.controller is not None:
            self._plan(0.0)
            for message in buffered:
                self.receive(message)

    # -- its loop -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has arrived."""
        if self.controller is not None and self._stage == 0 and not self.is_paused:
            self._plan(self.world.loop_ms(self.rng))

    def replan(self) -> None:
        """Schedule the next turn again, because the clock has been changed."""
        if self.controller is not None and self._stage == 0:
            self._plan_next()

    def _plan(self, delay_ms: float) -> None:
        planned, at_ms = self._planned, self.world.now_ms + delay_ms
        if planned is not None and planned.action is not None:
            if self._stage or planned.at_ms <= at_ms:
                return
            planned.cancel()
        self._planned = self.world.scheduler.after(delay_ms, self._step)

    def _plan_next(self) -> None:
        controller = self.controller
        if controller is None or self.is_paused:
            return
        if self._planned is not None:
            self._planned.cancel()
        delay_ms = self.clock.due_in_ms(controller.next_due_ms())
        self._planned = self.world.scheduler.after(max(delay_ms, self.world.loop_ms(self.rng)), self._step)

    def _step(self) -> None:
        """Run one of the three parts of a turn."""
        self._planned = None
        if self.is_paused:
            return
        self.guarded(self._part_of_a_turn)

    def _part_of_a_turn(self) -> None:
        controller, world = self.controller, self.world
        assert controller is not None
        if self._stage == 0:
            if controller.begin():
                self._stage = 1
                self.turn_is_slow = self.is_slow
                self._planned = world.scheduler.after(world.disk_ms(self.rng, is_slow=self.is_slow), self._step)
                return
            controller.finish()
        elif self._stage == 1:
            self.turn_is_slow = False
            controller.persist()
            self._stage = 2
            self._planned = world.scheduler.after(world.loop_ms(self.rng), self._step)
            return
        else:
            self._stage = 0
            controller.finish()
        self._see_to_snapshots(controller)
        self._plan_next()

    def guarded(self, action: Callable[[], object]) -> None:
        """Run a part of the process; an error that would end a real process ends this one. After the part all checks
        run."""
        world = self.world
        try:
            action()
        except (Violation, HistoryViolation):
            raise
        except SimulatedCrash:
            world.tell(self, "loses power in the midst of writing")
            world.count("state", "power lost while writing")
            torn, self.torn_by = self.torn_by, None
            if torn is not None:
                world.fault_happened(torn[0], f"{self} loses power in the midst of writing")
            world.crash_now(self, world.draw_loss(self.rng) if torn is None else torn[1])
            return
        except OutdatedVoterError as error:
            if self.restored is None and not self.record.is_damaged:
                raise Violation("recovery", f"{self} takes its sound disk for an older copy: {error}") from error
            assert self.controller is not None
            with contextlib.suppress(SimulatedCrash):  # power may be lost while it marks the directory
                self.controller.withdraw(error)
            self._give_up("older copy found", f"finds that its directory is an older copy, and ends: {error}")
            return
        except (CorruptLogError, StorageError) as error:
            if not self.record.is_damaged:
                raise Violation("recovery", f"{self} ends: {type(error).__name__}: {error}") from error
            self._give_up(
                "damaged disk noticed while running", f"finds its disk damaged, and ends ({type(error).__name__})"
            )
            return
        except OSError as error:
            if error.errno in NO_SPACE:
                raise Violation("full disk", f"{self} ends, because its disk is full: {error}") from error
            world.tell(self, f"ends, because its disk fails: {error}")
            world.crash_now(self, Loss.NONE)
            return
        except Exception as error:
            if not world.goes_past_exceptions:
                raise
            world.exception = world.exception or error
            world.tell(self, f"ends of {error!r}")
            world.crash_now(self, Loss.NONE)
            return
        if self.restored is not None and self.restored.has_lapsed:
            self._give_up("older copy whose witnesses were silent", "is stopped: nobody could find its older copy")
            return
        self.check()

    def _give_up(self, counted: str, told: str) -> None:
        """The disk must not be used again; the process ends."""
        world = self.world
        world.tell(self, told)
        world.count("state", counted)
        world.calm_since_ms = None  # another controller may have to lead now
        self.is_broken, self.restored = True, None
        self.stop_process()
        self.fs.crash(self.rng, Loss.NONE)

    def _see_to_snapshots(self, controller: QuorumController) -> None:
        if self._snapshot_job is not None:
            return
        job = controller.snapshot_due()
        if job is not None:
            self._snapshot_job = job
            self.world.scheduler.after(
                self.world.disk_ms(self.rng, is_slow=self.is_slow), self._snapshot_run, self.life
            )

    def _snapshot_run(self, life: int) -> None:
        if life == self.life and not self.is_paused:
            failures: list[HeadraceError] = []
            self.guarded(lambda: self._snapshot_runs(failures))
            self.world.scheduler.after(
                self.world.disk_ms(self.rng, is_slow=self.is_slow), self._snapshot_done, life, failures
            )
        elif life == self.life:
            self.world.scheduler.after(20.0, self._snapshot_run, life)

    def _snapshot_runs(self, failures: list[HeadraceError]) -> None:
        try:
            self._snapshot_job.run()
        except DiskFullError as error:
            failures.append(error)

    def _snapshot_done(self, life: int, failures: list[HeadraceError]) -> None:
        if life != self.life:
            return
        if self._stage or self.is_paused:  # the process has one thread, so this cannot happen during a turn's disk work
            self.world.scheduler.after(2.0, self._snapshot_done, life, failures)
            return
        job, self._snapshot_job = self._snapshot_job, None
        controller = self.controller
        assert controller is not None
        if failures:
            self.world.count("state", "no room for a snapshot")
            self.guarded(lambda: controller.snapshot_failed(job, failures[0]))
            return
        self.guarded(lambda: controller.snapshot_done(job))
        self.world.count("state", "snapshot taken")
        self.world.tell(self, "has a snapshot, and forgets the log before it")
        self.wake()

    # -- what goes in and out -----------------------------------------------------------------------------------------

    def receive(self, message: Message) -> None:
        controller = self.controller
        if controller is None:
            return
        if self.is_paused:
            self._buffered.append(message)  # in its socket
            return
        self.heard.hear(self, message)
        self.guarded(lambda: controller.receive(message))
        self.wake()

    def _send(self, messages: Sequence[Message]) -> None:
        checks, shadow, own, world = self.world.checks, self.record.shadow, self.key, self.world
        term = 0 if self.controller is None else self.controller.term
        for message in messages:
            if self.restored is not None and self.restored.promises(message):
                self.restored.has_lapsed = True
                return
            checks.said(own, term, shadow, message)
            world.controller_says(self, message)

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.published.append((image, delta))

    def _disk_says(self, what: str, value: object) -> None:
        if what == "cuts" or (what == "appends" and any(entry.voters is not None for entry in value)):  # type: ignore[attr-defined]
            self._voters_changed = True
        self.world.disk_says(self, what, value)
        if what == "refuses" and self.killed_by is not None:
            self.torn_by, self.killed_by = self.killed_by, None
            raise SimulatedCrash("killed before the entries of a refused append are removed")

    def _draw(self, below: int) -> int:
        spread = self.world.spread
        return int(self.rng.randrange(below) * spread) if spread else 0

    def _new_id(self) -> bytes:
        return self.rng.randbytes(16)

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check what has changed in this process since the last check."""
        controller, checks, world = self.controller, self.world.checks, self.world
        if controller is None:
            return
        if self.restored is not None:
            self.restored.look()
        raft = controller.raft
        role, term = raft.role, raft.term
        before = self._seen
        if before is None or role is not before[0] or term != before[1] or raft.leader != before[2]:
            self._seen = seen = (role, term, raft.leader)
            if role is Role.LEADER:
                checks.leads(self.key, term, lambda offset, term: raft.log.term_below(offset) == term)
            world.role_changed(self, before, seen)
        # (Entries beyond the durable end may still belong to another leader, and are about to be truncated.)
        shadow = self.record.shadow
        if raft.committed > shadow.checked:
            committed = min(raft.committed, raft.log.durable_offset)
            # (Skip the check if a snapshot was received that has not replaced the old log on the disk yet.)
            if committed > shadow.checked >= raft.log.start.offset and checks.committed_at(
                self.key, shadow, committed, self.known_sets
            ):
                world.history_grew()
        if role is Role.LEADER and (raft.committed != self._led[1] or term != self._led[0]):
            if self._led[0] == term:
                checks.counts(self.key, term, raft.committed, raft.log.term_below(raft.committed))
            self._led = (term, raft.committed)
        if self._voters_changed and self._stage == 0 and raft.log.durable_offset == raft.log.end_offset == shadow.end:
            self._voters_changed = False
            self._check_voters(controller)
        if self.published:
            published, self.published = self.published, []
            for image, delta in published:
                checks.image(str(self), image, delta)
        if world.has_to_settle:
            world.settle_answers()

    def _check_voters(self, controller: QuorumController) -> None:
        for entry in reversed(self.record.shadow.entries):
            if entry.voters is not None:
                if entry.voters != controller.voters:
                    raise Violation(
                        "voters",
                        f"{self} uses the voters {controller.voters}, but the latest voters in its log are "
                        f"{entry.voters} (T 4.1)",
                    )
                return

    def fail_all(self) -> None:
        """Answer all waiting callers, as a clean stop does."""
        if self.controller is not None:
            with contextlib.suppress(HeadraceError):
                self.controller.fail_all(ServerShuttingDownError(f"{self} stops"))
