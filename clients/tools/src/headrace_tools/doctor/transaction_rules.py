"""Doctor rules about transactions that hang, or that delay readers with read_committed for a long time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headrace.group_models import PendingOffset
from headrace.transaction_models import TransactionDescription
from headrace_core.plurals import counted
from headrace_core.sinks import SinkTransaction, parse_sink_transaction

from ..hanging import OFFSETS_TOPIC
from ..orphaned_offsets import how_dropped
from ..sink_decisions import how_decided
from .facts import Facts, TransactionFacts
from .findings import Finding, Severity, rule, some

#: An open transaction is a fault if it is this number of milliseconds older than its timeout: the coordinator should
#: have aborted the transaction.
LATE_MS = 30_000
#: Milliseconds after which an open or prepared transaction counts as old. The value is Kafka's default of
#: transaction.max.timeout.ms; from this age on kafka-transactions.sh reports a transaction.
OLD_MS = 900_000
#: Milliseconds after which missing markers of a committed or aborted transaction are a fault.
MARKERS_MS = 30_000
#: After this number of milliseconds, the doctor gives advice about a prepared transaction.
PREPARED_MS = 60_000


@rule("transaction-hanging")
def transaction_hanging(facts: Facts) -> Iterator[Finding]:
    """Report transactions that are open in a partition and unknown to their coordinator. Readers with read_committed
    stop at the first offset of a hanging transaction forever. A hanging transaction in ``__consumer_offsets`` was
    copied from Kafka; it prevents the compaction of its partition."""
    for each in facts.hanging:
        name = f"{each.topic}-{each.partition}"
        harm = "readers with read_committed stop there"
        if each.topic == OFFSETS_TOPIC:
            harm = "the partition is not compacted behind it, and grows; Kafka left it open"
        yield Finding(
            "transaction-hanging",
            Severity.ERROR,
            f"{name}: a transaction of producer {each.producer_id} that no coordinator knows is open since offset "
            f"{each.start_offset}: {harm}",
            name,
            f"`headrace transactions abort -t {each.topic} -p {each.partition} --start-offset {each.start_offset}`",
        )


@rule("offsets-orphaned")
def offsets_orphaned(facts: Facts) -> Iterator[Finding]:
    """Report pending offsets whose transaction is unknown to every coordinator: no marker will commit or drop the
    offsets."""
    ahead_ms = {each.described.group_id: each.clock_ahead_ms for each in facts.groups}
    by_group: dict[str, list[PendingOffset]] = defaultdict(list)
    for each in facts.orphaned:
        by_group[each.group_id].append(each.pending)
    for group_id, pending in sorted(by_group.items()):
        oldest = min(pending, key=lambda each: each.received_at_ms)
        age_ms = facts.now_ms + ahead_ms.get(group_id, 0.0) - oldest.received_at_ms
        names = sorted({f"{each.topic}-{each.partition}" for each in pending})
        yield Finding(
            "offsets-orphaned",
            Severity.WARNING,
            f"group {group_id!r} has {counted(len(pending), 'pending offset')} of transactions that no coordinator "
            f"has, the oldest sent {_words(age_ms)} ago by producer {oldest.producer_id}: consumers that start on "
            "these partitions wait forever",
            some(names),
            how_dropped(group_id, oldest),
        )


@rule("transaction-old")
def transaction_old(facts: Facts) -> Iterator[Finding]:
    """Report open transactions that are old, or older than their timeout. Readers with read_committed wait for the end
    of an open transaction."""
    for each in facts.transactions:
        found = each.described
        if found.state != "ongoing" or found.started_at_ms is None:
            continue
        open_ms = _age_ms(facts, each, found.started_at_ms)
        is_late = found.timeout_ms is not None and open_ms > found.timeout_ms + LATE_MS
        if is_late or open_ms > OLD_MS:
            part = parse_sink_transaction(found.transactional_id)
            limit = "no timeout" if found.timeout_ms is None else f"a timeout of {_words(found.timeout_ms)}"
            yield Finding(
                "transaction-old",
                Severity.WARNING,
                f"a transaction of {found.transactional_id!r} has been open for {_words(open_ms)}, with {limit}: "
                "readers with read_committed wait for it",
                _where(found),
                (
                    f"see what its producer waits for; `headrace transactions abort {found.transactional_id}` ends it"
                    if part is None
                    else how_decided(part)
                )
                + (f"; look at the log of coordinator {found.coordinator_id}" if is_late else ""),
            )


@rule("transaction-prepared")
def transaction_prepared(facts: Facts) -> Iterator[Finding]:
    """Report transactions that have been prepared for more than PREPARED_MS, because no timeout ends them. All
    transactions of a batch of an exactly-once sink make one finding."""
    batches: dict[tuple[str, int], list[tuple[float, SinkTransaction, TransactionDescription]]] = defaultdict(list)
    for each in facts.transactions:
        found = each.described
        if found.state != "prepared" or found.started_at_ms is None:
            continue
        open_ms = _age_ms(facts, each, found.started_at_ms)
        if open_ms <= PREPARED_MS:
            continue
        part = parse_sink_transaction(found.transactional_id)
        if part is not None:
            batches[part.sink, part.batch].append((open_ms, part, found))
            continue
        yield Finding(
            "transaction-prepared",
            Severity.WARNING if open_ms > OLD_MS else Severity.ADVICE,
            f"a transaction of {found.transactional_id!r} is prepared and undecided, and was begun "
            f"{_words(open_ms)} ago: readers with read_committed wait for it, and no timeout ends it",
            _where(found),
            f"decide it: `headrace transactions complete {found.token} --commit` (or --abort)",
        )
    for (_, batch), prepared in sorted(batches.items()):
        oldest_ms, part, oldest = max(prepared, key=lambda item: item[0])
        yield Finding(
            "transaction-prepared",
            Severity.WARNING if oldest_ms > OLD_MS else Severity.ADVICE,
            f"batch {batch} of Spark query {part.query!r} has {counted(len(prepared), 'prepared transaction')}, the "
            f"oldest begun {_words(oldest_ms)} ago: readers with read_committed wait for the batch",
            _where(oldest),
            f"{how_decided(part)}. Without a decision, the coordinator aborts the transactions after "
            "transaction.sink.timeout.ms",
        )


@rule("transaction-markers")
def transaction_markers(facts: Facts) -> Iterator[Finding]:
    """Report transactions that were committed or aborted, but still lack a marker, because the leader of a partition
    does not accept it."""
    for each in facts.transactions:
        found = each.described
        if found.state not in ("prepare-commit", "prepare-abort"):
            continue
        waiting_ms = _age_ms(facts, each, found.updated_at_ms)
        if waiting_ms > MARKERS_MS:
            decision = "committed" if found.state == "prepare-commit" else "aborted"
            names = [str(partition) for partition in found.partitions]
            yield Finding(
                "transaction-markers",
                Severity.WARNING,
                f"a transaction of {found.transactional_id!r} was {decision} {_words(waiting_ms)} ago, and "
                f"{counted(len(names), 'partition')} still lack its marker: readers with read_committed wait there",
                f"{some(names)} (coordinator {found.coordinator_id})",
                "bring back the leaders and in-sync replicas of these partitions (`headrace topics describe`); the "
                "coordinator repeats the markers",
            )


def _age_ms(facts: Facts, transaction: TransactionFacts, since_ms: int) -> float:
    return facts.now_ms + transaction.clock_ahead_ms - since_ms


def _where(described: TransactionDescription) -> str:
    partitions = some([str(partition) for partition in described.partitions])
    return f"coordinator {described.coordinator_id}" + (f": {partitions}" if partitions else "")


def _words(ms: float) -> str:
    return (
        f"{ms / 1_000:.0f} s"
        if ms < 120_000
        else f"{ms / 60_000:.0f} min"
        if ms < 7_200_000
        else f"{ms / 3_600_000:.0f} h"
    )
