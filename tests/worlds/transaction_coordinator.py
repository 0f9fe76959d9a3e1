"""A transaction coordinator that the test controls: it collects the brokers' verifications, and answers when the test
calls a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace_broker.leader_replica import ProducerTransaction
from headrace_broker.partition.verification import WaitingRoom
from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition


class Verification(NamedTuple):
    transaction: ProducerTransaction
    partition: TopicPartition
    done: Callable[[HeadraceError | None], None]

    @property
    def what(self) -> tuple[str, int, int, int, int]:
        """(transactional id, producer id, epoch, version, partition)."""
        return (*self.transaction[:4], self.partition.partition)


class PlayedCoordinator:
    """Replaces ``Verifier``: ``asked`` are the verifications without an answer."""

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self.room = room or WaitingRoom()
        self.asked: list[Verification] = []

    def transaction(self, transactional_id: str, producer_id: int, epoch: int, version: int) -> ProducerTransaction:
        return ProducerTransaction(transactional_id, producer_id, epoch, version, self._verify, self.room)

    def _verify(
        self,
        transaction: ProducerTransaction,
        partition: TopicPartition,
        done: Callable[[HeadraceError | None], None],
    ) -> None:
        self.asked.append(Verification(transaction, partition, done))

    def answer(self, error: HeadraceError | None = None, *, nth: int = 0) -> None:
        """Answer the oldest verification, or the nth one."""
        self.asked.pop(nth).done(error)
