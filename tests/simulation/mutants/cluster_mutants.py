"""The guards of the cluster's rules, each with the patch that removes it. (If a mutant breaks no promise, its guard is
useless. tests/simulation runs these mutants too.)

``break_it(patch)``: ``patch(object, name, value)`` replaces an attribute until the run has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace_controller.cluster import brokers, core, elections, isr, sessions
from headrace_controller.cluster.elections import Electorate
from headrace_core.metadata import BrokerImage

Patch = Callable[[Any, str, Any], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    source: str  # the KIP, the Kafka issue or the record in docs/decisions that asks for the guard
    removed: str  # the guard
    break_it: Callable[[Patch], None]
    profile: int | None = None  # the histories that are most likely to expose the mutant


def _everybody_is_eligible(patch: Patch) -> None:
    def eligible(self: Any, topic: Any, before: Any, wanted: Any, isr: Any) -> tuple[int, ...]:
        return tuple(each for each in wanted.replicas if each not in isr and (each in before.isr or each in before.elr))

    patch(Electorate, "eligible", eligible)


def _any_replica_leads(patch: Patch) -> None:
    clean = Electorate.clean_leader

    def clean_leader(self: Any, before: Any, wanted: Any, isr: Any, elr: Any, how: Any) -> int:
        leader = clean(self, before, wanted, isr, elr, how)
        return leader if leader >= 0 else next((each for each in wanted.replicas if self.works(wanted, each)), -1)

    patch(Electorate, "clean_leader", clean_leader)


def _last_known_leads_beside_an_elr(patch: Patch) -> None:
    unclean = Electorate.unclean_leader
    patch(
        Electorate,
        "unclean_leader",
        lambda self, topic, wanted, elr, *more: unclean(self, topic, wanted, (), *more),
    )


def _isr_keeps_who_does_not_work(patch: Patch) -> None:
    patch(Electorate, "in_sync", lambda self, wanted: tuple(each for each in wanted.isr if each in wanted.replicas))


def _leader_epoch_stays(patch: Patch) -> None:
    changed = elections.changed

    def same_epoch(topic_id: Any, number: Any, before: Any, after: Any) -> Any:
        record = changed(topic_id, number, before, after)
        if record is None or record.leader_epoch is None:
            return record
        return msgspec.structs.replace(record, leader_epoch=before.leader_epoch)

    patch(elections, "changed", same_epoch)


def _without(owner: Any, name: str, value: Any = lambda *_: None) -> Callable[[Patch], None]:
    return lambda patch: patch(owner, name, value)


def _no_epochs_of_the_request(patch: Patch) -> None:
    patch(isr.Altering, "check_leader_epoch", lambda *_: None)
    patch(isr.Altering, "check_partition_epoch", lambda *_: None)


def _grace_goes_on(patch: Patch) -> None:
    real = sessions.BrokerSessions.note

    def note(self: Any, contact: Any) -> None:
        session = self._sessions.get(contact.broker_id)
        broken_ms = None if session is None else session.broken_ms
        real(self, contact)
        if session is not None and broken_ms is not None:
            session.broken_ms = broken_ms

    patch(sessions.BrokerSessions, "note", note)


def _graces_begin_with_the_term(patch: Patch) -> None:
    real = sessions.BrokerSessions.begin

    def begin(self: Any, broker_id: int, broker_epoch: int, now_ms: float) -> None:
        real(self, broker_id, broker_epoch, now_ms)
        self._sessions[broker_id].broken_ms = now_ms

    patch(sessions.BrokerSessions, "begin", begin)


def _counts_before_anybody_came(patch: Patch) -> None:
    real = core.ClusterCore.lead

    def lead(self: Any, now_ms: float) -> None:
        real(self, now_ms)
        self._first_contacts.reached(now_ms)

    patch(core.ClusterCore, "lead", lead)


def _no_former_life(before: BrokerImage | None, previous_broker_epoch: int) -> BrokerImage | None:
    return None


MUTANTS = (
    Mutant(
        "elr-is-never-cleared",
        "KIP-966",
        "Electorate.eligible: nobody while the ISR is large enough",
        _everybody_is_eligible,
    ),
    Mutant(
        "unclean-restart-stays-eligible",
        "KIP-966",
        "brokers._lost_life: a registration whose previous epoch is not the former life's",
        _without(brokers, "_lost_life", _no_former_life),
    ),
    Mutant(
        "crash-keeps-all-eligible",
        "KIP-966, decisions 4 and 12",
        "Electorate.keeps_after_crash: only if the flush was commit throughout",
        _without(Electorate, "keeps_after_crash", lambda *_: True),
    ),
    Mutant(
        "any-replica-leads",
        "KIP-106",
        "Electorate.clean_leader: from the ISR or the ELR only",
        _any_replica_leads,
    ),
    Mutant(
        "unclean-without-being-asked",
        "KIP-106",
        "Electorate.allows_unclean",
        _without(Electorate, "allows_unclean", lambda *_: True),
    ),
    Mutant(
        "last-known-leads-beside-an-elr",
        "KIP-966",
        "Electorate.unclean_leader: the last known leader only when nobody is eligible",
        _last_known_leads_beside_an_elr,
    ),
    Mutant(
        "fenced-stay-in-sync",
        "KIP-841",
        "Electorate.in_sync: who does not work leaves the ISR",
        _isr_keeps_who_does_not_work,
    ),
    Mutant(
        "leader-epoch-stays",
        "KIP-101, KIP-320",
        "elections.changed: a new leader has a new leader epoch",
        _leader_epoch_stays,
    ),
    Mutant(
        "stale-leader-alters-the-isr",
        "KIP-497, promise 3",
        "isr.Altering.check_leader_epoch and check_partition_epoch (each alone catches a former leader)",
        _no_epochs_of_the_request,
    ),
    Mutant(
        "stale-partition-epoch",
        "KIP-497",
        "isr.Altering.check_partition_epoch",
        _without(isr.Altering, "check_partition_epoch"),
        profile=0,
    ),
    Mutant(
        "former-life-joins-the-isr",
        "KIP-903",
        "isr.Altering.check_broker_epochs",
        _without(isr.Altering, "check_broker_epochs"),
        profile=0,
    ),
    Mutant(
        "leader-that-does-not-know-the-minimum",
        "KIP-966 (a hole of its own)",
        "isr.Altering.check_min_insync",
        _without(isr.Altering, "check_min_insync"),
        profile=2,
    ),
    Mutant(
        "minimum-lowered-elr-stays",
        "KIP-966",
        "elections.after_min_insync_changed in configs.alter",
        _without(elections, "after_min_insync_changed", lambda *_: []),
    ),
    Mutant(
        "fresh-replica-stays-eligible",
        "KIP-903, a wiped disk",
        "elections.assigned: fresh",
        lambda patch: patch(
            elections,
            "assigned",
            lambda electorate, topic, number, broker_id, directory, fresh=False, real=elections.assigned: real(
                electorate, topic, number, broker_id, directory
            ),
        ),
    ),
    Mutant(
        "old-streams-end-fences",
        "decision 14",
        "BrokerSessions._is_latest: the end of an older stream says nothing",
        _without(sessions.BrokerSessions, "_is_latest", lambda self, session, contact: True),
    ),
    Mutant(
        "heartbeat-does-not-end-the-grace",
        "decision 14",
        "BrokerSessions.note: a heartbeat ends the grace",
        _grace_goes_on,
    ),
    Mutant(
        "new-leader-starts-graces",
        "decision 14",
        "BrokerSessions.begin: nobody's stream broke but the old leader's",
        _graces_begin_with_the_term,
    ),
    Mutant(
        "new-leader-awaits-the-dead-for-a-session",
        "a broker and the leading controller on one machine",
        "FirstContacts.reached: two heartbeat intervals to reach a new leader",
        _without(sessions.FirstContacts, "reached"),
    ),
    Mutant(
        "new-leader-counts-before-it-serves",
        "a slow new leader",
        "FirstContacts.forget: the window begins with the first contact, not with the term",
        _counts_before_anybody_came,
    ),
    Mutant(
        "new-leader-counts-through-its-pause",
        "a new leader that is suspended",
        "FirstContacts.stood_still: the window begins anew after a pause",
        _without(sessions.FirstContacts, "stood_still"),
    ),
    Mutant(
        "unfenced-before-it-is-settled",
        "KIP-966, in steps",
        "brokers._may_be_unfenced: what follows from the former life is written",
        _without(brokers, "_may_be_unfenced", lambda view, broker, applied: applied > broker.broker_epoch),
    ),
)
