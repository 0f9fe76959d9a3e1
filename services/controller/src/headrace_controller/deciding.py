"""Turn requests into log entries: decided on the speculation, proposed to Raft, and accepted into it."""

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

UPKEEP_MAX = 16  #: Most upkeep decisions in one turn of the controller.
#: After this many records the remaining work waits for the next turn. A thousand changed partitions take 7 ms;
#: followers elect another leader if this leader is busy for a second.
TURN_RECORDS_MAX = 5_000
#: Requests that add metadata, which a full disk refuses. All other requests keep the cluster running or remove
#: metadata.
_GROWTH = (CreateTopics, CreatePartitions, AlterConfigs, AlterPartitionReassignments)


class Decider:
    """Decisions of an active leader on its core. ``raft`` is passed each time: after a full disk it is another one. A
    pause of ``sleep_ms`` between two ticks proves nothing: the leader of an idle quorum sleeps for nearly so long."""

    def __init__(self, core: ClusterCore, storage: MetadataStorage, clock: Clock, *, sleep_ms: float) -> None:
        self._core = core
        self._storage = storage
        self._clock = clock
        self._sleep_ms = sleep_ms
        self._last_tick_ms = 0.0
        self._turn_end = 0

    @property
    def end(self) -> int:
        """End of the speculation: the next decision depends on everything below."""
        return self._core.speculative.next_offset

    def begin_turn(self) -> None:
        self._turn_end = self.end + TURN_RECORDS_MAX

    @property
    def has_decided_much(self) -> bool:
        """Whether the rest should wait for the next turn."""
        return self.end >= self._turn_end

    def lead(self, now_ms: float) -> None:
        """Begin a term as active leader."""
        self._last_tick_ms = now_ms
        self._core.lead(now_ms)

    def decide(self, request: Request, now_ms: float) -> Decision:
        """Decide a request. Deciding changes nothing, so a bug in a rule fails that request only."""
        try:
            decision = self._core.decide(request, now_ms)
            if decision.records and isinstance(request, _GROWTH):
                full = self._storage.refusal(len(decision.records))
                return decision if full is None else Decision(failure=full)
            return decision
        except OSError:  # the disk failed
            raise
        except Exception as error:
            logger.exception("the controller failed unexpectedly at %s", type(request).__name__)
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
        """Raft itself has appended an entry without a decision (new voters)."""
        assert entry.base_offset == self._core.speculative.next_offset, "the log and the speculation have parted"
        self._core.skip(entry.next_offset, entry.term)

    def forgive_pause(self, now_ms: float) -> None:
        """Call with each tick, before any decision: after a pause of this process, silence proves nothing, and sessions
        start again. A sleep is no pause, however short the sessions are: they would never end."""
        paused_ms, self._last_tick_ms = now_ms - self._last_tick_ms, now_ms
        if paused_ms > max(self._core.settings.broker_session_timeout_ms / 2, self._sleep_ms):
            logger.warning("this process was paused for %.0f ms; the session of each broker starts again", paused_ms)
            self._core.stood_still(now_ms)

    def upkeep(self, raft: RaftNode, now_ms: float) -> None:
        """Decide work that time demands, as far as this turn allows; the next tick continues. Each turn does some of
        it, under any load of requests."""
        for count in range(UPKEEP_MAX):
            if count and self.has_decided_much:
                return
            try:
                decision = self._core.upkeep(now_ms)
            except Exception:  # a bug in a rule; the cluster keeps its controller
                logger.exception("periodic work of the controller failed unexpectedly; trying again later")
                return
            if not decision.records:
                return
            self.propose(raft, decision)
