"""Turn requests into log entries: decide them on the speculative image, propose the records to Raft, and accept the
decision."""

from __future__ import annotations

import logging

from headrace_core.clock import Clock
from headrace_core.metadata import MetadataRecord
from headrace_core.metadata.codec import encode_decision
from headrace_core.metadata.records import ClientQuotaRecord, ConfigRecord, RemoveScramCredentialRecord
from headrace_core.unexpected import answer_to, log_fields

from .cluster.core import ClusterCore
from .cluster.decision import Decision
from .cluster.requests import (
    AlterClientQuotas,
    AlterConfigs,
    AlterPartitionReassignments,
    AlterScramCredentials,
    CreateAcls,
    CreatePartitions,
    CreateToken,
    CreateTopics,
    Request,
)
from .raft import Entry, RaftNode
from .storage import MetadataStorage

logger = logging.getLogger("headrace.controller")

UPKEEP_MAX = 16  #: Maximum number of upkeep decisions in one turn of the controller.
#: Number of metadata records after which the remaining work waits for the next turn of the controller. Changing a
#: thousand partitions takes 7 ms; followers elect a new leader if the leader is busy for a second.
TURN_RECORDS_MAX = 5_000
#: Requests that add metadata, which a controller with a full disk refuses. Requests of all other kinds keep the cluster
#: running or remove metadata, so a full disk does not refuse them.
_GROWTH = (
    AlterClientQuotas,
    AlterConfigs,
    AlterPartitionReassignments,
    AlterScramCredentials,
    CreateAcls,
    CreatePartitions,
    CreateToken,
    CreateTopics,
)


def _removes(record: MetadataRecord) -> bool:
    """Whether ``record`` only removes an entry of a request that may also add some."""
    match record:
        case ConfigRecord() | ClientQuotaRecord():
            return record.value is None
        case _:
            return isinstance(record, RemoveScramCredentialRecord)


class Decider:
    """Makes the decisions of an active leader on its core. ``raft`` is passed to each call, because the RaftNode is
    replaced after a write failed for lack of space. A gap of up to ``sleep_ms`` between two ticks is no pause, because
    the leader of an idle quorum sleeps for nearly ``sleep_ms``."""

    def __init__(self, core: ClusterCore, storage: MetadataStorage, clock: Clock, *, sleep_ms: float) -> None:
        self._core = core
        self._storage = storage
        self._clock = clock
        self._sleep_ms = sleep_ms
        self._last_tick_ms = 0.0
        self._turn_end = 0

    @property
    def end(self) -> int:
        """End of the speculative image: the next decision depends on all entries below it."""
        return self._core.speculative.next_offset

    def begin_turn(self) -> None:
        self._turn_end = self.end + TURN_RECORDS_MAX

    @property
    def has_decided_much(self) -> bool:
        """Whether the remaining requests should wait for the next turn, because the present turn has made many
        records."""
        return self.end >= self._turn_end

    def lead(self, now_ms: float) -> None:
        """Begin a term as the active leader."""
        self._last_tick_ms = now_ms
        self._core.lead(now_ms)

    def decide(self, request: Request, now_ms: float) -> Decision:
        """Decide a request. A rule of the cluster only returns records and changes no state, so a bug in a rule fails
        only its own request."""
        try:
            decision = self._core.decide(request, now_ms)
            if isinstance(request, _GROWTH) and not all(map(_removes, decision.records)):
                full = self._storage.refusal(len(decision.records))
                return decision if full is None else Decision(failure=full)
            return decision
        except OSError:  # the disk failed
            raise
        except Exception as error:
            what = type(request).__name__
            logger.exception(
                "unexpected error while the controller decided a %s request", what, extra=log_fields(error)
            )
            return Decision(failure=answer_to(error, what))

    def propose(self, raft: RaftNode, decision: Decision) -> None:
        """Append the decision to the log, and apply the decision to the speculative image."""
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
        assert entry.base_offset == speculative.next_offset, "the log and the speculative image have different ends"
        self._core.accept(decision, entry.next_offset, entry.term)

    def skip(self, entry: Entry) -> None:
        """Called when Raft itself has appended an entry without a decision, such as new voters."""
        assert entry.base_offset == self._core.speculative.next_offset, "log and speculative image have different ends"
        self._core.skip(entry.next_offset, entry.term)

    def forgive_pause(self, now_ms: float) -> None:
        """Call this method with each tick, before any decision of the tick. After a pause of this process, the silence
        of the nodes proves nothing, so their sessions start again. A planned sleep is no pause, even with short
        sessions; otherwise short sessions would never end."""
        paused_ms, self._last_tick_ms = now_ms - self._last_tick_ms, now_ms
        if paused_ms > self._sleep_ms:
            self._core.served_late(now_ms)
        if paused_ms > max(self._core.settings.broker_session_timeout_ms / 2, self._sleep_ms):
            logger.warning(
                "this process was paused for %.0f ms; the session timeout of each broker starts again", paused_ms
            )
            self._core.stood_still(now_ms)

    def upkeep(self, raft: RaftNode, now_ms: float) -> None:
        """Decide work that is due by time, as much as the turn allows; the next tick continues. Each turn of the
        controller does some of the work that is due by time, even under a high load of requests."""
        for count in range(UPKEEP_MAX):
            if count and self.has_decided_much:
                return
            try:
                decision = self._core.upkeep(now_ms)
            except Exception:  # a bug in a rule must not end the controller
                logger.exception("periodic work of the controller failed unexpectedly; trying again later")
                return
            if not decision.records:
                return
            self.propose(raft, decision)
