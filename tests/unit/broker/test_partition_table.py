"""The table of partitions keeps the errors with which it refuses requests, for as long as a broker is fenced or a log
directory is offline. No refused request may stay in memory with the stored errors: each raise of one error lengthens
its traceback, and the traceback keeps the frames of the callers."""

from __future__ import annotations

import pytest

from headrace_broker.partition_table import PartitionTable
from headrace_broker.replication.pushes import PendingPushes
from headrace_broker.settings import BrokerIdentity
from headrace_core.errors import FencedBrokerError, StorageError
from headrace_core.types import TopicPartition

PARTITION = TopicPartition("orders", 0)


def table() -> PartitionTable:
    return PartitionTable(BrokerIdentity("tests", 1, 11), PendingPushes())


def test_a_fenced_broker_keeps_nothing_of_the_requests_that_it_refuses() -> None:
    fenced = table()
    fenced.refusal = refusal = FencedBrokerError("broker 1 is fenced")
    for ask in (fenced.leader, fenced.readable, lambda _: fenced.check_serving()) * 3:
        with pytest.raises(FencedBrokerError, match="broker 1 is fenced"):
            ask(PARTITION)
    assert refusal.__traceback__ is None


def test_an_offline_directory_keeps_nothing_of_the_requests_to_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = table()
    serving.refusal = None
    serving.failed[PARTITION] = failure = StorageError("the disk of /logs failed")
    monkeypatch.setattr(serving, "state_of", lambda _: object())
    for _ in range(3):
        with pytest.raises(StorageError, match="/logs failed"):
            serving.leader(PARTITION)
    assert failure.__traceback__ is None
