"""Doctor rules about partitions and their replicas, reassignments and consumer groups. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from headrace.cluster_models import PartitionDescription
from headrace_core.lag import verdict
from headrace_core.plurals import counted

from .facts import Facts, GroupFacts
from .findings import Finding, Severity, brokers_named, count, rule, some
from .node_rules import starting

#: STORM_REBALANCES rebalances within STORM_MS milliseconds are a rebalance storm, if the last rebalance is recent.
STORM_REBALANCES, STORM_MS = 6, 60_000

# -- partitions -------------------------------------------------------------------------------------------------------


@rule("partition-offline")
def partition_offline(facts: Facts) -> Iterator[Finding]:
    """Partitions without a leader: clients can neither write nor read them."""
    by_awaited: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for topic, part in _partitions(facts):
        if part.leader < 0:
            by_awaited[part.elr or part.isr or part.last_known_elr].append(f"{topic}-{part.partition}")
    for awaited, names in by_awaited.items():
        if awaited:
            cure = f"{_brought_back(facts, awaited)}; only there are all acknowledged records"
        else:
            cure = "no replica has all records: start every broker that had it, or accept the loss "
            cure += "(`headrace partitions elect --unclean`)"
        yield Finding("partition-offline", Severity.ERROR, f"{count(names)} without a leader", some(names), cure)


@rule("log-dir-outdated")
def log_dir_outdated(facts: Facts) -> Iterator[Finding]:
    """A broker returned with an older copy of a log directory: it is elected nowhere until it has caught up, except
    where a partition has no other replica."""
    for broker in () if facts.cluster is None else facts.cluster.brokers:
        if not broker.outdated_directory_ids:
            continue
        behind, alone = [], []
        for topic, part in _partitions(facts):
            if part.replicas == (broker.broker_id,):
                alone.append(f"{topic}-{part.partition}")
            elif broker.broker_id in part.replicas and broker.broker_id not in part.isr:
                behind.append(f"{topic}-{part.partition}")
        directories = facts.log_dirs.get(broker.broker_id, ())
        paths = [each.path for each in directories if each.directory_id in broker.outdated_directory_ids]
        cures = [] if behind or alone else ["nothing to do: it has caught up; its next restart ends this message"]
        if behind:
            cures.append(
                "start the brokers of the other replicas, and wait: one of them leads, and this broker copies what it "
                "lacks; if they are gone for good, accept the loss (`headrace partitions elect --unclean`)"
            )
        if alone:
            cures.append(
                f"{count(alone)} without another replica lost the records since the copy: {some(alone)}; restore a "
                "newer copy if there is one, or restart the broker to end this message"
            )
        yield Finding(
            "log-dir-outdated",
            Severity.WARNING if behind or alone else Severity.ADVICE,
            f"broker {broker.broker_id} returned with an older copy of a log directory, a snapshot or a backup "
            "(docs/operations/damage.md)",
            f"broker {broker.broker_id}: {', '.join(paths) or 'a log directory'}",
            "; ".join(cures),
        )


@rule("min-isr-impossible")
def min_isr_impossible(facts: Facts) -> Iterator[Finding]:
    """min.insync.replicas exceeds the replication factor: every acks=all write is refused, permanently."""
    for topic in facts.topics:
        minimum = facts.min_insync.get(topic.name, 1)
        short = [part for part in topic.partitions if len(part.replicas) < minimum]
        if short:
            copies = max(len(part.replicas) for part in short)
            yield Finding(
                "min-isr-impossible",
                Severity.WARNING,
                f"min.insync.replicas is {minimum}, but the topic has {counted(copies, 'replica')}: writes with "
                "acks=all stop as soon as one replica is missing",
                f"topic {topic.name}",
                f"`headrace partitions reassign --topic {topic.name} -r {minimum + 1}` for more copies, or "
                f"`headrace configs alter --topic {topic.name} --set min.insync.replicas={max(1, copies - 1)}`",
            )


@rule("min-isr")
def min_isr(facts: Facts) -> Iterator[Finding]:
    """Partitions with fewer in-sync replicas than min.insync.replicas: writes with acks=all are refused
    (NOT_ENOUGH_REPLICAS)."""
    by_missing: dict[tuple[int, ...], list[str]] = defaultdict(list)
    adding = _adding(facts)
    for topic, part in _partitions(facts):
        minimum = min(facts.min_insync.get(topic, 1), len(part.replicas))
        if part.leader >= 0 and len(part.isr) < minimum:
            by_missing[_missing(topic, part, adding)].append(f"{topic}-{part.partition}")
    for missing, names in by_missing.items():
        yield Finding(
            "min-isr",
            Severity.ERROR,
            f"{count(names)} below min.insync.replicas: writes with acks=all are refused",
            some(names),
            f"bring back {brokers_named(missing)}; to accept writes until then, with fewer copies of each record: "
            "`headrace configs alter --topic TOPIC --set min.insync.replicas=1`",
        )


@rule("under-replicated")
def under_replicated(facts: Facts) -> Iterator[Finding]:
    """Replicas that are not in sync although they should be."""
    by_missing: dict[tuple[int, ...], list[str]] = defaultdict(list)
    adding = _adding(facts)
    for topic, part in _partitions(facts):
        missing = _missing(topic, part, adding)
        if missing and part.leader >= 0:
            by_missing[missing].append(f"{topic}-{part.partition}")
    fenced = facts.fenced()
    for missing, names in by_missing.items():
        if set(missing) <= fenced:
            cure = f"{_brought_back(facts, missing)}; the replicas then catch up automatically"
        else:
            cure = (
                f"find out what delays {brokers_named(missing)}: a disk (`headrace log-dirs describe`), a throttle, "
                "the network between brokers, or a replica that was just added; `headrace topics describe "
                "--under-replicated-partitions` shows when they are in sync"
            )
        yield Finding(
            "under-replicated",
            Severity.WARNING,
            f"{count(names)} with a copy missing on {brokers_named(missing)}",
            some(names),
            cure,
        )


@rule("reassignment-stuck")
def reassignment_stuck(facts: Facts) -> Iterator[Finding]:
    """A reassignment that cannot finish: a target broker is down, or no data were copied during the check."""
    fenced = facts.fenced()
    for move in facts.moves:
        dead = tuple(broker for broker in move.adding if broker in fenced)
        name = f"{move.topic}-{move.partition}"
        if dead:
            what = f"the reassignment of {name} waits for {brokers_named(dead)}, not alive"
            cure = f"{_brought_back(facts, dead)}, or `headrace partitions reassign --cancel {name}`"
        elif not move.waits and move.copied_bytes == 0 and move.adding:
            what = (
                f"the reassignment of {name} to {brokers_named(move.adding)} copied nothing within {move.apart_s:.0f} s"
            )
            cure = (
                "raise the throttle (`headrace partitions reassign --throttle BYTES_PER_S`), look for fetch errors "
                f"in the log of {brokers_named(move.adding)}, or cancel the reassignment (`headrace partitions "
                f"reassign --cancel {name}`)"
            )
        else:
            continue
        yield Finding("reassignment-stuck", Severity.WARNING, what, name, cure)


# -- groups -----------------------------------------------------------------------------------------------------------


@rule("no-coordinator")
def no_coordinator(facts: Facts) -> Iterator[Finding]:
    """Groups or transactions exist, but no coordinator is alive."""
    if facts.cluster is None or facts.cluster.coordinators:
        return
    used = {topic.name for topic in facts.topics}
    stopped = {"__consumer_offsets": "groups", "__transaction_state": "transactional producers"}
    names = [name for topic, name in stopped.items() if topic in used]
    if names:
        yield Finding(
            "no-coordinator",
            Severity.ERROR,
            f"no coordinator is alive: {' and '.join(names)} make no progress",
            " and ".join(f"all {name}" for name in names),
            "start one: `headrace up --data DIR --coordinators 1`, or python -m headrace_coordinator --config FILE",
        )


@rule("group-unknown")
def group_unknown(facts: Facts) -> Iterator[Finding]:
    """A group that its coordinator cannot describe."""
    for group in facts.groups:
        error = group.described.error
        # GROUP_ID_NOT_FOUND: the group was deleted during the check. GROUP_AUTHORIZATION_FAILED: this user may not
        # describe the group.
        if error is not None and error.code not in ("GROUP_ID_NOT_FOUND", "GROUP_AUTHORIZATION_FAILED"):
            yield Finding(
                "group-unknown",
                Severity.ERROR,
                f"group {group.described.group_id!r} cannot be described: {error.message} [{error.code}]",
                f"group {group.described.group_id}",
                "its coordinator is starting or down: run the doctor again in a minute, then look at the "
                "coordinator's log",
            )


@rule("group-storm")
def group_storm(facts: Facts) -> Iterator[Finding]:
    """A group that rebalances continuously (a rebalance storm)."""
    for group in facts.groups:
        now_ms = facts.now_ms + group.clock_ahead_ms
        recent = [each for each in group.rebalances if now_ms - each.at_ms <= STORM_MS]
        if len(recent) < STORM_REBALANCES:
            continue
        reasons = Counter(each.reason for each in recent)
        reason, times = reasons.most_common(1)[0]
        moved = sum(each.moved_count for each in recent)
        yield Finding(
            "group-storm",
            Severity.WARNING,
            f"group {group.described.group_id!r} rebalanced {len(recent)} times within {STORM_MS // 1000} s and moved "
            f"{counted(moved, 'partition')}; {f'{times} times because: ' if times > 1 else 'the last because: '}"
            f"{reason if times > 1 else recent[-1].reason}",
            f"group {group.described.group_id}",
            f"`headrace groups explain {group.described.group_id}` shows each rebalance and its reason; if members "
            "come and go (crashes, an autoscaler), set group.instance.id; if they poll too seldom, raise "
            "max.poll.interval.ms or lower max.poll.records",
        )


_LAG_WORDS = {
    "STOP": ("has stopped committing", "see whether its consumers run, and whether they call commit"),
    "STALL": (
        "commits the same offset again and again",
        "look at the consumer's log for a record that it cannot handle, or a call that hangs",
    ),
    "REWIND": (
        "went back to an older offset",
        "check whether someone has reset the group, or whether two programs use its name",
    ),
    "WARN": (
        "falls further behind with each commit",
        "add members (at most one for each partition), or make the consumer faster",
    ),
}


@rule("group-lag")
def group_lag(facts: Facts) -> Iterator[Finding]:
    """Groups whose verdict is not OK; `headrace lag`, the metrics and the console use the same function for their
    verdicts."""
    for group in facts.groups:
        is_empty = group.described.state == "empty"
        by_status: dict[str, list[str]] = defaultdict(list)
        lag = 0
        for part in () if group.lag is None else group.lag.partitions:
            status = verdict(part.status, lag=part.lag, complete=part.complete, is_empty=is_empty)
            if status != "OK":
                by_status[status].append(f"{part.topic}-{part.partition}")
                lag += part.lag or 0
        for status, names in by_status.items():
            words, cure = _LAG_WORDS[status]
            yield Finding(
                "group-lag",
                Severity.WARNING,
                f"group {group.described.group_id!r} {words} ({status}) in {count(names)}, {lag} records behind"
                + _members_shown(group),
                f"group {group.described.group_id}: {some(names)}",
                cure + f"; `headrace groups describe {group.described.group_id}`",
            )


@rule("group-records-lost")
def group_records_lost(facts: Facts) -> Iterator[Finding]:
    """Groups that lost records: retention deleted them before the group had read them."""
    for group in facts.groups:
        parts = [part for part in (() if group.lag is None else group.lag.partitions) if part.records_lost > 0]
        if parts:
            lost = sum(part.records_lost for part in parts)
            names = [f"{part.topic}-{part.partition}" for part in parts]
            yield Finding(
                "group-records-lost",
                Severity.ERROR,
                f"{counted(lost, 'record')} deleted before group {group.described.group_id!r} read them",
                f"group {group.described.group_id}: {some(names)}",
                "raise retention.ms or retention.bytes of the topic, or let the group catch up sooner; it "
                "continues where auto.offset.reset says",
            )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _partitions(facts: Facts) -> Iterator[tuple[str, PartitionDescription]]:
    for topic in facts.topics:
        for part in topic.partitions:
            yield topic.name, part


def _adding(facts: Facts) -> dict[tuple[str, int], set[int]]:
    """The replicas that reassignments are adding, which are still expected to be incomplete."""
    return {(move.topic, move.partition): set(move.adding) for move in facts.moves}


def _missing(topic: str, part: PartitionDescription, adding: dict[tuple[str, int], set[int]]) -> tuple[int, ...]:
    return tuple(sorted(set(part.replicas) - set(part.isr) - adding.get((topic, part.partition), set())))


def _brought_back(facts: Facts, brokers: Sequence[int]) -> str:
    """The cure for absent brokers: start the brokers that are down, and bring back the brokers that hang. Wait for the
    brokers that send heartbeats; do not start them a second time."""
    coming = starting(facts)
    awaited = [each for each in brokers if each in coming]
    hung = [each for each in brokers if each not in coming and facts.hung(each)]
    down = [each for each in brokers if each not in awaited and each not in hung]
    steps = []
    if down:
        steps.append(f"start {brokers_named(down)}")
    if hung:
        steps.append(f"bring back {brokers_named(hung)}, which hang{plural_verb(hung)} (broker-down says how)")
    if awaited:
        steps.append(f"wait for {brokers_named(awaited)}, which start{plural_verb(awaited)} just now")
    return ", and ".join(steps)


def plural_verb(subjects: Sequence[int]) -> str:
    return "s" if len(subjects) == 1 else ""


def _members_shown(group: GroupFacts) -> str:
    members = len(group.described.members)
    return f"; it has {counted(members, 'member')}" if members else "; it has no members"
