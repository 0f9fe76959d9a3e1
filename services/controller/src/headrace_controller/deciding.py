"""From a request to an entry of the log: decided on the speculation, proposed to raft, and accepted into it."""

from __future__ import annotations

import logging

from headrace_core.clock import Clock
from headrace_core.errors import UnknownServerError
from headrace_core.metadata.codec import encode_decision

from .cluster.core import ClusterCore
from .cluster.decision import Decision
from .cluster.requests import AlterConfigs, AlterPartitionReassignments, CreatePartitions, CreateTopics, Request
from .raft import Entry, RaftNode
from .storage import MetadataStorage

logger = logging.getLogger("headrace.controller")

#: What time demands is decided at most so often in one turn.
UPKEEP_MAX = 16
#: Once so many records were decided, the rest waits for the next turn: a thousand changed partitions take 7 ms, and a
#: leader that is busy for a second is taken for dead by the others.
TURN_RECORDS_MAX = 5_000
#: What asks for more metadata to be kept; all else keeps the cluster alive, or makes room.
_GROWTH = (CreateTopics, CreatePartitions, AlterConfigs, AlterPartitionReassignments)


class Decider:
    """What an active leader does with its core. ``raft`` is handed in each time: after a full disk it is another. Of
    ``sleep_ms`` between two ticks nothing is to be concluded: the leader of an idle quorum sleeps for nearly so long.
    """

    def __init__(self, core: ClusterCore, storage: MetadataStorage, clock: Clock, *, sleep_ms: float) -> None:
        self._core = core
        self._storage = storage
        self._clock = clock
        self._sleep_ms = sleep_ms
        self._last_tick_ms = 0.0
        self._turn_end = 0

    @property
    def end(self) -> int:
        """Where the speculation ends: what is decided next is decided on everything below."""
        return self._core.speculative.next_offset

    def begin_turn(self) -> None:
        self._turn_end = self.end + TURN_RECORDS_MAX

    @property
    def has_decided_much(self) -> bool:
        """Should the rest wait for the next turn?"""
        return self.end >= self._turn_end

    def lead(self, now_ms: float) -> None:
        """A term as active leader begins."""
        self._last_tick_ms = now_ms
        self._core.lead(now_ms)

    def decide(self, request: Request, now_ms: float) -> Decision:
        """Deciding changes nothing, so a rule that stumbles over a request costs that request only, not the cluster its
        controller."""
        try:
            decision = self._core.decide(request, now_ms)
            if decision.records and isinstance(request, _GROWTH):
                full = self._storage.refusal(len(decision.records))
                return decision if full is None else Decision(failure=full)
            return decision
        except OSError:  # the disk is gone
            raise
        except Exception as error:
            logger.exception("%s could not be decided", type(request).__name__)
            return Decision(failure=UnknownServerError(f"{type(request).__name__}: {type(error).__name__}: {error}"))

    def propose(self, raft: RaftNode, decision: Decision) -> None:
        """Put the decision into the log, and the speculation behind it."""
        speculative = self._core.speculative
        if not decision.records:
            self._core.accept(decision, speculative.next_offset, speculative.epoch)
            return
        data = encode_decision(
            decision.records,
            timestamp_ms=self._clock.now_ms(),
            base_offset=speculative.next_offset,
            epoch=raft.term,
        )
        entry = raft.propose(data, len(decision.records))
        assert entry.base_offset == speculative.next_offset, "the log and the speculation have parted"
        self._core.accept(decision, entry.next_offset, entry.term)

    def skip(self, entry: Entry) -> None:
        """Raft itself has appended something that decides nothing (new voters)."""
        assert entry.base_offset == self._core.speculative.next_offset, "the log and the speculation have parted"
        self._core.skip(entry.next_offset, entry.term)

    def forgive_pause(self, now_ms: float) -> None:
        """With each tick, before anything is decided: what was missed while this process stood still is forgiven, for
        nobody could be heard. Not what was merely slept for, however short the sessions are: they would never end."""
        paused_ms, self._last_tick_ms = now_ms - self._last_tick_ms, now_ms
        if paused_ms > max(self._core.settings.broker_session_timeout_ms / 2, self._sleep_ms):
            logger.warning("this process stood still for %.0f ms; every broker's session begins anew", paused_ms)
            self._core.stood_still(now_ms)

    def upkeep(self, raft: RaftNode, now_ms: float) -> None:
        """What time alone demands, as far as this turn goes; the next tick goes on. Something of it is decided in each
        turn, however much was asked for."""
        for count in range(UPKEEP_MAX):
            if count and self.has_decided_much:
                return
            try:
                decision = self._core.upkeep(now_ms)
            except Exception:  # a rule stumbled; the cluster keeps its controller
                logger.exception("upkeep could not be decided")
                return
            if not decision.records:
                return
            self.propose(raft, decision)
