"""Find the anomalies that Jepsen's Kafka workload finds, in a history of transactions. A pure function.

    find(History(transactions, readers, final)) -> [Anomaly(name, what), ...]

A history contains the observations of clients: transactions with their writes, reads and outcomes, and the polls of
readers. After all transactions have ended, ``final`` is one read_committed read of each partition. A commit without an
answer has the outcome *unknown*: all of its acknowledged writes must be visible, or none.

    name                 what the history shows
    -------------------  -----------------------------------------------------------------------------------------------
    aborted read (G1a)   a read_committed reader returned a value of a transaction that did not commit
    intermediate read    a read_committed reader returned a value before the commit of its transaction was requested, or
      (G1b)              some values of a transaction, and skipped others of the same partition
    lost write           an acknowledged write of a committed transaction is not in the last read, or a value that
                         a reader has returned is not in it
    torn transaction     some acknowledged writes of a transaction are in the last read, and others are not
    duplicate            a value is in a log twice
    dirty write (G0)     a transaction that began after the commit of another one is before it in a partition
    circular reads       transactions that read from each other in a circle
      (G1c)
    offsets and records  the offsets of a transaction count and its records do not, or the reverse
      apart

Kafka's transactions are not isolated from each other: the writes of concurrent transactions may have any order. Only an
order that contradicts real time counts as a dirty write. As in Jepsen's analyses of Kafka-like systems, write cycles
(G0) are allowed; G1a, G1b and cycles of reads are not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

ABORTED_READ = "aborted read (G1a)"
INTERMEDIATE_READ = "intermediate read (G1b)"
LOST_WRITE = "lost write"
TORN = "torn transaction"
DUPLICATE = "duplicate"
DIRTY_WRITE = "dirty write (G0)"
CIRCULAR_READS = "circular reads (G1c)"
APART = "offsets and records apart"


class Anomaly(NamedTuple):
    name: str
    what: str


class Result(Enum):
    """The result of a transaction. UNKNOWN: the client requested the commit, and received no answer."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(eq=False)
class Transacted:
    """A transaction as its client observed it; all times are on the clock of the history."""

    name: str
    began: float
    #: When the commit was first requested; None: never.
    commit_asked: float | None = None
    #: When the client learned the result.
    ended: float | None = None
    #: None while the transaction is open, or its client waits for the answer.
    result: Result | None = None
    #: ``sent``: value -> partition of each sent record; ``acknowledged``: the acknowledged values.
    sent: dict[str, int] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    #: Values that the transaction has read at read_committed.
    read: list[str] = field(default_factory=list)
    #: (group, partition) -> the offset that the transaction commits.
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def outcome(self) -> Result:
        if self.result is not None:
            return self.result
        return Result.ABORTED if self.commit_asked is None else Result.UNKNOWN


@dataclass(eq=False)
class Reader:
    """A reader of one partition from its start, at read_committed. ``seen``: (time, offset, value) in the order of
    arrival; ``position``: the next offset."""

    name: str
    partition: int
    seen: list[tuple[float, int, str]] = field(default_factory=list)
    position: int = 0


@dataclass
class History:
    transactions: list[Transacted] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    #: Partition -> (offset, value) in the order of the log, from the last read at read_committed.
    final: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    #: Values that were sent without a transaction.
    plain: set[str] = field(default_factory=set)
    #: (group, partition) -> the committed offset at the end; None if offsets are not part of the history.
    final_offsets: dict[tuple[str, int], int] | None = None


def find(history: History) -> list[Anomaly]:
    """Return all anomalies of a history."""
    of = {value: each for each in history.transactions for value in each.sent}
    visible = {value for values in history.final.values() for _, value in values}
    return [
        *_duplicates(history),
        *_aborted_reads(history, of),
        *_intermediate_reads(history, of),
        *_lost_and_torn(history, visible),
        *_dirty_writes(history, of),
        *_circular_reads(history, of),
        *_apart(history, visible),
    ]


def _duplicates(history: History) -> Iterator[Anomaly]:
    counts = Counter(value for values in history.final.values() for _, value in values)
    for value, count in counts.items():
        if count > 1:
            yield Anomaly(DUPLICATE, f"{value} is in the logs {count} times")
    for reader in history.readers:
        for value, count in Counter(value for _, _, value in reader.seen).items():
            if count > 1:
                yield Anomaly(DUPLICATE, f"{reader.name} has read {value} {count} times")


def _aborted_reads(history: History, of: dict[str, Transacted]) -> Iterator[Anomaly]:
    for who, value in _reads(history):
        transaction = of.get(value)
        if transaction is not None and transaction.outcome is Result.ABORTED:
            yield Anomaly(ABORTED_READ, f"{who} has read {value}, and {transaction.name} is aborted")


def _reads(history: History) -> Iterator[tuple[str, str]]:
    """(reader, value) of all reads at read_committed."""
    for partition, values in history.final.items():
        for _, value in values:
            yield f"the last read of partition {partition}", value
    for reader in history.readers:
        for _, _, value in reader.seen:
            yield reader.name, value
    for transaction in history.transactions:
        for value in transaction.read:
            yield transaction.name, value


def _intermediate_reads(history: History, of: dict[str, Transacted]) -> Iterator[Anomaly]:
    for reader in history.readers:
        for at, _, value in reader.seen:
            transaction = of.get(value)
            asked = None if transaction is None else transaction.commit_asked
            if asked is not None and at < asked:
                assert transaction is not None
                yield Anomaly(
                    INTERMEDIATE_READ,
                    f"{reader.name} has read {value} at {at:g}, and the commit of {transaction.name} was requested at "
                    f"{asked:g}",
                )
        seen = {value for _, _, value in reader.seen}
        parts_seen = {id(of[value]) for value in seen if value in of}
        for offset, value in history.final.get(reader.partition, ()):
            if offset >= reader.position or value in seen:
                continue
            if value in of and id(of[value]) in parts_seen:
                yield Anomaly(
                    INTERMEDIATE_READ,
                    f"{reader.name} has read a part of {of[value].name}, without {value} at offset {offset}",
                )
            else:
                yield Anomaly(
                    LOST_WRITE, f"{reader.name} is at {reader.position}, and has not read {value} at {offset}"
                )


def _lost_and_torn(history: History, visible: set[str]) -> Iterator[Anomaly]:
    for transaction in history.transactions:
        there = transaction.acknowledged & visible
        missing = sorted(transaction.acknowledged - visible)
        if transaction.outcome is Result.ABORTED or not missing:
            continue
        if there:
            yield Anomaly(TORN, f"of {transaction.name}, {len(there)} writes are there, and missing are {missing}")
        elif transaction.outcome is Result.COMMITTED:
            yield Anomaly(LOST_WRITE, f"{transaction.name} is committed, and its writes {missing} are not there")
    for value in sorted(history.plain - visible):
        yield Anomaly(LOST_WRITE, f"{value} was acknowledged without a transaction, and is not there")
    for reader in history.readers:
        there_now = set(history.final.get(reader.partition, ()))
        for _, offset, value in reader.seen:
            if (offset, value) not in there_now:
                yield Anomaly(LOST_WRITE, f"{reader.name} has read {value} at {offset}, which is not there")


def _dirty_writes(history: History, of: dict[str, Transacted]) -> Iterator[Anomaly]:
    for partition, values in history.final.items():
        latest: Transacted | None = None
        for offset, value in values:
            transaction = of.get(value)
            if transaction is None:
                continue
            if latest is not None and transaction.ended is not None and latest.began > transaction.ended:
                yield Anomaly(
                    DIRTY_WRITE,
                    f"{latest.name} began at {latest.began:g}, after {transaction.name} was committed at "
                    f"{transaction.ended:g}, and stands before {value}, at offset {offset} of partition {partition}",
                )
            if latest is None or transaction.began > latest.began:
                latest = transaction


def _circular_reads(history: History, of: dict[str, Transacted]) -> Iterator[Anomaly]:
    """Find cycles of transactions, in which each transaction has read a value of the next transaction."""
    after: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for transaction in history.transactions:
        for value in transaction.read:
            writer = of.get(value)
            if writer is not None and writer is not transaction:
                after[transaction.name][writer.name] = value
    done: set[str] = set()
    for first in list(after):
        path: list[str] = []
        yield from _circles(first, after, path, done)


def _circles(name: str, after: defaultdict[str, dict[str, str]], path: list[str], done: set[str]) -> Iterator[Anomaly]:
    if name in path:
        circle = path[path.index(name) :]
        yield Anomaly(CIRCULAR_READS, " reads from ".join([*circle, name]))
        return
    if name in done:
        return
    path.append(name)
    for other in list(after.get(name, ())):
        yield from _circles(other, after, path, done)
    path.pop()
    done.add(name)


def _apart(history: History, visible: set[str]) -> Iterator[Anomaly]:
    """Check each group's committed offset of a partition: it must be the largest offset in a transaction whose records
    are visible. A transaction without records counts if it was committed."""
    if history.final_offsets is None:
        return
    due: dict[tuple[str, int], tuple[int, str]] = {}
    possible: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for transaction in history.transactions:
        counts = (
            bool(transaction.acknowledged & visible)
            if transaction.acknowledged
            else transaction.outcome is Result.COMMITTED
        )
        for key, offset in transaction.offsets.items():
            if counts:
                due[key] = max(due.get(key, (-1, "")), (offset, transaction.name))
            elif transaction.outcome is Result.UNKNOWN and not transaction.acknowledged:
                possible[key].add(offset)
    for key in sorted({*due, *history.final_offsets}):
        offset, name = due.get(key, (-1, "no transaction"))
        found = history.final_offsets.get(key, -1)
        if found != offset and found not in possible[key]:
            yield Anomaly(APART, f"{name} committed offset {offset} of {key}, and the group is at {found}")
