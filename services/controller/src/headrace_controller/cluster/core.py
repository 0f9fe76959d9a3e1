"""The controller's state machine (pure): it decides on requests, then replays the records of the decision.

The core has two images. The *committed* image is the state after all committed entries of the metadata log, as it is
published. The *speculative* image is the committed image plus the decisions in flight; the next decision is made on the
speculative image. Because of the speculative image, the controller can decide a thousand requests while the disk writes
the first request's records.

    decide(request, now) -> Decision        reads, changes nothing
    accept(decision, next_offset)           the decision is being written: the speculative image has it
    commit(offset)                          it is committed: the committed image applies the same records
    resign()                                decisions in flight may be lost: the speculative image is dropped
    upkeep(now) -> Decision                 work that is due by time, most urgent first; empty: no work
    replay(batch)                           another controller's decision, or from before a restart: committed at once

Only records change an image, and records depend neither on a clock nor on randomness. Replaying the same records on any
controller therefore gives the same image. The times of the nodes' heartbeats are not in the log but in ``sessions``.
The times of heartbeats only decide *whether* a record is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_core.errors import HeadraceError, InconsistentClusterIdError, UnsupportedVersionError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    ClusterRecord,
    ConfigRecord,
    ConfigResourceType,
    MetadataDelta,
    MetadataImage,
    MetadataRecord,
)

from . import (
    acls,
    balancing,
    brokers,
    configs,
    directories,
    features,
    isr,
    leaders,
    producer_ids,
    quotas,
    reassignment,
    shards,
    tokens,
    topics,
    users,
)
from .decision import Agenda, ClusterSettings, Decision, View
from .elections import MIN_INSYNC_KEY, UNCLEAN_KEY, brokers_with_elections_pending
from .requests import (
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    AlterPartition,
    AlterPartitionReassignments,
    AlterScramCredentials,
    AssignDirectories,
    Bootstrap,
    CoordinatorHeartbeat,
    CoordinatorHeartbeatsEnded,
    CreateAcls,
    CreatePartitions,
    CreateToken,
    CreateTopics,
    DeleteAcls,
    DeleteTopics,
    DrainBroker,
    ElectLeaders,
    ExpireToken,
    FenceSilentBrokers,
    Heartbeat,
    HeartbeatsEnded,
    RegisterBroker,
    RegisterController,
    RegisterCoordinator,
    RemoveExpiredTokens,
    RenewToken,
    Request,
    UnregisterBroker,
    UpdateFeatures,
)
from .sessions import BrokerSessions, CoordinatorSessions, FirstContacts


def _bootstrap(view: View, request: Bootstrap) -> Decision:
    """Write this cluster's identity and first users into an empty log; raises InconsistentClusterIdError if the log
    belongs to another cluster."""
    image = view.image
    if image.cluster_id and image.cluster_id != request.cluster_id:
        raise InconsistentClusterIdError(
            f"the metadata log belongs to cluster {image.cluster_id}, but meta.properties says {request.cluster_id}"
        )
    if image.metadata_version > METADATA_VERSION:
        raise UnsupportedVersionError(
            f"the metadata log has feature level {image.metadata_version}, but this controller supports at "
            f"most {METADATA_VERSION}: upgrade this controller"
        )
    if image.cluster_id:
        return Decision()
    records: list[MetadataRecord] = [ClusterRecord(request.cluster_id, METADATA_VERSION)]
    # Later changes of the properties file have no effect: see min_insync_replicas().
    if view.settings.min_insync_replicas != 1:
        value = str(view.settings.min_insync_replicas)
        records.append(ConfigRecord(int(ConfigResourceType.BROKER), "", MIN_INSYNC_KEY, value))
    return Decision((*records, *request.users))


_RULES: dict[type, Callable[[View, Any], Decision]] = {
    Bootstrap: _bootstrap,
    RegisterBroker: brokers.register,
    Heartbeat: brokers.heartbeat,
    HeartbeatsEnded: brokers.heartbeats_ended,
    FenceSilentBrokers: brokers.fence_silent,
    AssignDirectories: directories.assign,
    AlterPartition: isr.alter,
    ElectLeaders: leaders.elect,
    CreateTopics: topics.create,
    DeleteTopics: topics.delete,
    CreatePartitions: topics.create_partitions,
    AlterConfigs: configs.alter,
    AlterClientQuotas: quotas.alter,
    AlterScramCredentials: users.alter,
    CreateAcls: acls.create,
    DeleteAcls: acls.delete,
    CreateToken: tokens.create,
    RenewToken: tokens.renew,
    ExpireToken: tokens.expire,
    RemoveExpiredTokens: tokens.remove_expired,
    AlterPartitionReassignments: reassignment.alter,
    DrainBroker: balancing.drain,
    UnregisterBroker: balancing.unregister,
    AllocateProducerIds: producer_ids.allocate,
    UpdateFeatures: features.update,
    RegisterController: features.register_controller,
    RegisterCoordinator: shards.register,
    CoordinatorHeartbeat: shards.heartbeat,
    CoordinatorHeartbeatsEnded: shards.heartbeats_ended,
}


@dataclass(frozen=True, slots=True)
class Duty:
    """Periodic work that no request causes. ``every_ms`` None: the duty is checked at every tick, so a check that finds
    no work must be cheap. With ``every_ms`` a check may examine all partitions; the next check is due ``every_ms``
    after the last check that found no work."""

    name: str
    rule: Callable[[View], Decision]
    every_ms: Callable[[ClusterSettings], float] | None = None


#: Most urgent first.
DUTIES = (
    Duty("fence", brokers.fence_silent),
    Duty("settle", brokers.settle),
    Duty("coordinators", shards.sweep),
    Duty("reassignments complete", reassignment.complete),
    Duty("shards", shards.distribute),
    Duty("reassignments begin", reassignment.begin),
    Duty("unclean", leaders.elect_uncleanly, lambda settings: settings.unclean_leader_election_interval_ms),
    Duty("leaders", leaders.balance, lambda settings: settings.leader_imbalance_check_interval_seconds * 1_000),
)

#: Milliseconds between two steps of a periodic task that examines all partitions; the controller does other work
#: between the steps.
STEP_MS = 100


class ClusterCore:
    """The committed and the speculative image, and the rules that decide requests. All times are monotonic
    milliseconds."""

    def __init__(self, settings: ClusterSettings, *, new_id: Callable[[], bytes]) -> None:
        self.settings = settings
        self.committed: MetadataImage = EMPTY_IMAGE
        self.speculative: MetadataImage = EMPTY_IMAGE
        timeout_ms, grace_ms = settings.broker_session_timeout_ms, settings.broker_session_disconnect_grace_ms
        self._first_contacts = FirstContacts.of(settings.broker_heartbeat_interval_ms, timeout_ms)
        self.sessions = BrokerSessions(timeout_ms, grace_ms, self._first_contacts)
        self.coordinator_sessions = CoordinatorSessions(timeout_ms, grace_ms, self._first_contacts)
        self.agenda = Agenda()
        self._due_ms: dict[str, float] = {}  # duty -> time at which the duty is due
        self._planning = balancing.PlanningClock()
        self._new_id = new_id
        self._in_flight: deque[tuple[MetadataImage, MetadataDelta]] = deque()
        self._at_rest: MetadataImage | None = None  # the last image for which ``upkeep`` had nothing to do

    def replay(self, image: MetadataImage) -> None:
        """Set the committed image that was rebuilt from the log (see MetadataImage.apply); no decision may be in
        flight."""
        assert not self._in_flight, "replaying while decisions are in flight"
        assert image.next_offset >= self.committed.next_offset, "replaying backwards"
        self.committed = self.speculative = image

    def lead(self, now_ms: float) -> None:
        """Begin a term as leader. In a new term every broker counts as just having sent a heartbeat, so that no broker
        is fenced too early."""
        self._first_contacts.forget()
        self.sessions.forget()
        for broker in self.speculative.brokers.values():
            self.sessions.begin(broker.broker_id, broker.broker_epoch, now_ms)
        coordinators = self.speculative.ledger.coordinators.values()
        self.coordinator_sessions.begin_anew(
            ((each.coordinator_id, each.coordinator_epoch) for each in coordinators), now_ms
        )
        self.agenda = Agenda(brokers_with_elections_pending(self.speculative), self.speculative.next_offset)
        self._due_ms = {
            duty.name: now_ms + duty.every_ms(self.settings) for duty in DUTIES if duty.every_ms is not None
        }
        self._planning.start_anew()
        self._at_rest = None

    def served_late(self, now_ms: float) -> None:
        """Called after a pause of this process that is short beside a session, but not beside the time that nodes have
        to reach a new leader."""
        self._first_contacts.stood_still(now_ms)

    def stood_still(self, now_ms: float) -> None:
        """Called after a pause of this process, during which no message could arrive: no broker must be fenced for its
        silence during the pause."""
        self.sessions.stood_still(now_ms)
        self.coordinator_sessions.stood_still(now_ms)

    def resign(self) -> None:
        """Drop uncommitted decisions."""
        self._in_flight.clear()
        self.speculative = self.committed
        self.sessions.forget()
        self.coordinator_sessions.forget()

    def decide(self, request: Request, now_ms: float) -> Decision:
        """Decide ``request`` on the speculative image. ``decide`` never raises a HeadraceError: a refusal is a Decision
        with ``failure``. Like any other decision, a refusal is answered when the image that the refusal depends on is
        committed."""
        view = self._view(now_ms)
        try:
            return features.at_level(view.image, _RULES[type(request)](view, request))
        except HeadraceError as failure:
            return Decision(failure=failure)

    def upkeep(self, now_ms: float) -> Decision:
        """Decide the most urgent work that is due by time; accept the result like any decision. A decision without
        records means that no work is due."""
        view = self._view(now_ms)
        for duty in DUTIES:
            if duty.every_ms is not None and now_ms < self._due_ms.get(duty.name, now_ms):
                continue
            decision = duty.rule(view)
            if duty.every_ms is not None:
                self._due_ms[duty.name] = now_ms + (STEP_MS if decision.records else duty.every_ms(self.settings))
            if decision.records:
                return features.at_level(view.image, decision)
        decision = balancing.balance(view, self._planning)
        self._at_rest = None if decision.records else self.speculative
        return features.at_level(view.image, decision)

    def next_upkeep_ms(self, now_ms: float) -> float:
        """Monotonic milliseconds at which ``upkeep`` may have work. If anything changed after ``upkeep`` last found no
        work, ``upkeep`` may have work now. If nothing changed, the result is the time when a session may expire or a
        duty is due. (Balancing and queued reassignments wait for seconds, so a call of ``upkeep`` every few hundred
        milliseconds is often enough.)"""
        image = self.speculative
        if self._in_flight or image is not self._at_rest:
            return now_ms
        over_ms = self.sessions.over_at_ms
        gone_ms = self.coordinator_sessions.gone_at_ms
        times_ms = (
            *self._due_ms.values(),
            *(over_ms(each.broker_id, each.broker_epoch) for each in image.brokers.values() if not each.fenced),
            *(gone_ms(each.coordinator_id, each.coordinator_epoch) for each in image.ledger.coordinators.values()),
        )
        return max(min(times_ms, default=now_ms), now_ms)

    def accept(self, decision: Decision, next_offset: int, epoch: int) -> None:
        """Apply ``decision`` to the speculative image. The decision is being written to the log and ends at
        ``next_offset`` (the log's end, if the decision has no records)."""
        if decision.contact is not None:
            self.sessions.note(decision.contact)
        if decision.coordinator is not None:
            self.coordinator_sessions.note(decision.coordinator)
        if decision.elections_pending:
            self.agenda.elections_pending.update(decision.elections_pending)
            self._at_rest = None
        if decision.records:
            assert next_offset == self.speculative.next_offset + len(decision.records), "decisions out of order"
            self._push(self.speculative.apply_with_delta(decision.records, next_offset, epoch))

    def skip(self, next_offset: int, epoch: int) -> None:
        """Advance the speculative image to ``next_offset``, over an entry without a decision, such as a leader's first
        entry."""
        self._push(self.speculative.apply_with_delta((), next_offset, epoch))

    def commit(self, offset: int) -> list[tuple[MetadataImage, MetadataDelta]]:
        """Commit all decisions below ``offset``; returns the images that are now committed, oldest first."""
        done = []
        while self._in_flight and self._in_flight[0][0].next_offset <= offset:
            done.append(self._in_flight.popleft())
            self.committed = done[-1][0]
        return done

    def _view(self, now_ms: float) -> View:
        return View(
            self.speculative,
            self.sessions,
            self.coordinator_sessions,
            self.settings,
            now_ms,
            self._new_id,
            self.agenda,
            self.sessions.hindered,
        )

    def _push(self, step: tuple[MetadataImage, MetadataDelta]) -> None:
        self._in_flight.append(step)
        before, self.speculative = self.speculative, step[0]
        if step[1].configs:
            self._configs_changed(before, step[1])

    def _configs_changed(self, before: MetadataImage, delta: MetadataDelta) -> None:
        for resource in delta.configs:
            old, new = before.config(*resource), self.speculative.config(*resource)
            if old.get(MIN_INSYNC_KEY) != new.get(MIN_INSYNC_KEY):
                self.agenda.min_insync_offset = self.speculative.next_offset
            if old.get(UNCLEAN_KEY) != new.get(UNCLEAN_KEY):
                self._due_ms["unclean"] = 0.0  # unclean elections may just have been allowed: check at once
