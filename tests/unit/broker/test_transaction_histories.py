"""Random histories of transactions through a leader, and the same histories with one guard of the leader removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace_broker.leader_replica import LeaderReplica, ProducerTransaction
from headrace_broker.partition.verification import Verifications
from headrace_core.log import partition_log, transactions
from headrace_core.log.producer_state import ProducerEntry
from headrace_core.log.transactions import Marker, TransactionalAppend
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker
from tests.worlds.threadless import run_without_threads
from tests.worlds.txn_leaders_world import PARTITIONS, TransactionsWorld

STEPS = 400


def history(seed: int, version: int, steps: int = STEPS) -> dict[str, int]:
    """Run and check a history; returns how often each event happened."""

    async def run() -> dict[str, int]:
        async with asyncio.timeout(120), SoloBroker(CrashingFileSystem(keep_trace=False)) as broker:
            await broker.topic("t", PARTITIONS)
            world = TransactionsWorld(broker, seed, version)
            for _ in range(steps):
                await world.step()
            await world.settle()
            world.check()
            return world.counts

    return run_without_threads(seed, run)


def test_a_seed_is_one_history() -> None:
    assert history(3, 2) == history(3, 2)
    assert history(3, 2) != history(4, 2)


@pytest.mark.parametrize("version", [1, 2])
def test_each_transaction_has_one_outcome_and_ends(version: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(12):
        counts.update(history(seed, version))
    assert min(counts[what] for what in ("commit", "abort", "hand-over", "time-out", "leader epoch")) > 5
    assert counts["marker"] > 100


_must_append = transactions.must_append


def _accept_late_markers(marker: Marker, entry: ProducerEntry | None, partition: TopicPartition) -> bool:
    """An equal epoch ends the open transaction also under version 2."""
    return _must_append(marker._replace(version=1), entry, partition)


def _accept_former_coordinators(marker: Marker, entry: ProducerEntry | None, partition: TopicPartition) -> bool:
    return _must_append(marker._replace(coordinator_epoch=1 << 30), entry, partition)


def _verify_nothing(self: LeaderReplica, append: Any, transaction: ProducerTransaction) -> bool:
    append.transaction = TransactionalAppend(transaction.version, is_verified=True)
    return True


def _cancel_nothing(self: Any, producer_id: int, last_epoch: int) -> list[Any]:
    return []


@pytest.mark.parametrize(
    ("place", "name", "guardless", "version"),
    [
        (partition_log, "must_append", _accept_late_markers, 2),
        (partition_log, "must_append", _accept_former_coordinators, 1),
        (LeaderReplica, "_is_verified", _verify_nothing, 2),
        (Verifications, "cancelled_by_marker", _cancel_nothing, 1),
    ],
)
def test_a_leader_without_a_guard_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, guardless: Callable[..., Any], version: int
) -> None:
    monkeypatch.setattr(place, name, guardless)
    for seed in range(60):
        try:
            history(seed, version)
        except AssertionError:
            return
    raise AssertionError(f"60 histories do not detect that {name} is replaced by {guardless.__name__}")
