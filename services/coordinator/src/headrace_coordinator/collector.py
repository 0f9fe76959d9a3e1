"""The coordinator's metrics, for the shards that it owns: each group with its lag and status, and the transactions.

A group's status is OK, WARN, REWIND, STALL or STOP.

Each group belongs to one shard, and each shard to one coordinator, so a group has one series in Prometheus. The names
``kafka_consumergroup_…`` are the names that kafka_exporter uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import cast

from headrace_core.clock import Clock
from headrace_core.lag import VERDICTS, verdict, worst
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace_core.metrics import catalog
from headrace_core.metrics.model import Metric, Row, Rows

from .classic.messages import ClassicState
from .group.messages import GroupState, ListedGroup
from .offsets.messages import GroupLag
from .runtime.shards import Shards
from .shard_state_machine import ShardStateMachine
from .transaction.state import PREPARING, TransactionState
from .transaction.transactions import TransactionsStateMachine

#: Maps each metric to the states of the groups that it counts. A state of classic groups (ClassicState) has the same
#: text as the same state of other groups. In a rebalance, a group first prepares the rebalance, and completes it before
#: the members get their partitions.
_STATES = {
    catalog.GROUPS_STABLE: (GroupState.STABLE,),
    catalog.GROUPS_EMPTY: (GroupState.EMPTY,),
    catalog.GROUPS_DEAD: (GroupState.DEAD,),
    catalog.GROUPS_PREPARING: (GroupState.ASSIGNING, ClassicState.PREPARING_REBALANCE),
    catalog.GROUPS_COMPLETING: (GroupState.RECONCILING, ClassicState.COMPLETING_REBALANCE),
}


class CoordinatorCollector:
    """``collect`` yields the rows of a scrape. ``shards``: returns the present shards; None before the first
    registration."""

    def __init__(self, shards: Callable[[], Shards | None], clock: Clock, partitions_max: int) -> None:
        self._shards = shards
        self._clock = clock
        self._partitions_max = partitions_max

    def collect(self) -> Rows:
        shards = self._shards()
        if shards is None:
            return
        states = Counter((runner.shard.name.rpartition("-")[0], runner.shard.state.value) for runner in shards)
        for (topic, state), count in sorted(states.items()):
            yield Row(catalog.SHARDS, (topic, state), count)
        yield from self._groups(shards)
        yield from self._transactions(shards)

    def _groups(self, shards: Shards) -> Rows:
        machines = [
            cast("ShardStateMachine", runner.state_machine)
            for runner in shards.of_topic(OFFSETS_TOPIC)
            if runner.state_machine is not None
        ]
        now_ms = self._clock.now_ms()
        found = [(machine, group) for machine in machines for group in machine.listed(now_ms)]
        states = Counter(str(group.state) for _, group in found)
        yield Row(catalog.GROUPS, (), len(found))
        for metric, some in _STATES.items():
            yield Row(metric, (), sum(states[each] for each in some))
        pairs = sum(machine.committed_count(group.group_id) for machine, group in found)
        yield Row(catalog.OFFSETS, (), pairs)
        if len(found) > self._partitions_max:
            return
        for machine, group in found:
            yield None
            lag = machine.lag_of(group.group_id, self._clock.now_ms())
            yield from _group_rows(group, lag, of_partitions=pairs <= self._partitions_max)

    def _transactions(self, shards: Shards) -> Rows:
        states = dict.fromkeys(TransactionState, 0)
        prepared = 0
        oldest_ms: int | None = None
        for runner in shards.of_topic(TRANSACTIONS_TOPIC):
            machine = cast("TransactionsStateMachine | None", runner.state_machine)
            for transaction in () if machine is None else list(machine.transactions.values()):
                yield None
                states[transaction.state] += 1
                if transaction.state is TransactionState.ONGOING or transaction.state in PREPARING:
                    prepared += transaction.is_prepared
                    if transaction.started_ms >= 0:
                        started = transaction.started_ms
                        oldest_ms = started if oldest_ms is None else min(oldest_ms, started)
        for state, count in states.items():
            yield Row(catalog.TRANSACTIONS, (state.name.lower(),), count)
        yield Row(catalog.TRANSACTIONS_PREPARED, (), prepared)
        age_ms = 0 if oldest_ms is None else max(0, self._clock.now_ms() - oldest_ms)
        yield Row(catalog.TRANSACTION_AGE, (), age_ms / 1000)


def _group_rows(group: ListedGroup, lag: GroupLag | None, *, of_partitions: bool) -> Iterator[Row]:
    name = group.group_id
    yield Row(catalog.GROUP_MEMBERS, (name,), group.members)
    offsets: Counter[str] = Counter()
    lags: Counter[str] = Counter()
    verdicts: list[str] = []
    lag_s: list[float] = []
    lost = 0
    # Compare with ==, not with "is", because a classic group's state has another type.
    is_empty = group.state == GroupState.EMPTY
    for part in () if lag is None else lag.partitions:
        offsets[part.topic] += part.committed.offset
        if part.lag is not None:
            lags[part.topic] += part.lag
        lost += part.records_lost
        verdicts.append(verdict(part.status.value, lag=part.lag, complete=part.complete, is_empty=is_empty))
        if part.lag_ms is not None:
            lag_s.append(part.lag_ms / 1000)
        if of_partitions:
            labels = name, part.topic, part.partition
            known: tuple[tuple[Metric, float | None], ...] = (
                (catalog.GROUP_OFFSET, part.committed.offset),
                (catalog.GROUP_LAG, part.lag),
                (catalog.GROUP_LAG_SECONDS, None if part.lag_ms is None else part.lag_ms / 1000),
            )
            for metric, value in known:
                if value is not None:
                    yield Row(metric, labels, value)
    for topic, total in offsets.items():
        yield Row(catalog.GROUP_OFFSET_SUM, (name, topic), total)
        if topic in lags:
            yield Row(catalog.GROUP_LAG_SUM, (name, topic), lags[topic])
    # Yield no lag for a group that this coordinator has just taken over: the lag is not known yet, and zero would be
    # wrong.
    if lag_s or not offsets:
        yield Row(catalog.GROUP_LAG_SECONDS_MAX, (name,), max(lag_s, default=0.0))
    yield Row(catalog.GROUP_RECORDS_LOST, (name,), lost)
    status = worst(verdicts)
    for each in VERDICTS:
        yield Row(catalog.GROUP_STATUS, (name, each), int(each == status))
