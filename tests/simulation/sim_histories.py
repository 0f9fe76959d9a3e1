"""Histories, which are a part of a schedule: the cluster's rules without a network, with brokers that hold records.

In the world of controllers brokers hold no records, so that world cannot notice a record that an election loses.
Histories with records can notice a record that an election loses: they make many decisions in little time, with
crashes, lost tails, wiped disks and requests that arrive late. The rule is that a clean leader has every committed
record (tests/simulation/cluster_histories.py, ledger_histories.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace_controller.cluster.requests import AlteredPartition, AlterPartition, Request
from headrace_core.metadata import MetadataImage
from tests.simulation.cluster_histories import PROFILES, Broken, Histories
from tests.simulation.ledger_histories import LedgerHistories

STEPS = 400
#: A history with moves, coordinators and feature levels takes three times as long, so only every n-th schedule has one.
LEDGER_EVERY = 4


class _Asked(Histories):
    """Checks also granted requests, because the effect of a wrong in-sync set may show much later."""

    def ask(self, request: Request) -> Any:
        before = self.world.image
        reply = super().ask(request)
        if isinstance(request, AlterPartition) and isinstance(reply, tuple):
            for item in request.partitions:
                self._granted(before, item)
        return reply

    def _granted(self, before: MetadataImage, item: AlteredPartition) -> None:
        old = before.partition(item.topic_id, item.partition)
        new = self.world.image.partition(item.topic_id, item.partition)
        if old is None or new is None or new.partition_epoch == old.partition_epoch:
            return
        if item.partition_epoch != old.partition_epoch:
            raise Broken("granted", f"{item} was of another partition epoch than {old} (KIP-497)")
        for broker_id, broker_epoch in item.isr:
            broker = before.brokers.get(broker_id)
            if broker is None or broker.broker_epoch != broker_epoch:
                raise Broken(
                    "granted",
                    f"{item} adds a former process of broker {broker_id} to the ISR, which is now {broker} (KIP-903)",
                )


class _AskedLedger(_Asked, LedgerHistories):
    pass


def run_histories(seed: int, parts: tuple[str, ...], profile: int | None = None) -> Counter[tuple[str, str]]:
    """``parts``: a selection of "brokers" and "ledger". ``profile``: run only histories of this kind of cluster; None:
    the kind depends on the seed. Raises Broken, an assertion or a HeadraceError."""
    counts: Counter[tuple[str, str]] = Counter()
    if profile is not None:
        seed = seed * len(PROFILES) + profile
    found: list[Histories] = []
    if "brokers" in parts:
        small = {"metadata_max_records_per_request": 4} if seed // len(PROFILES) % 2 == 0 else {}
        found.append(_Asked(seed, **small))
    if "ledger" in parts and seed % LEDGER_EVERY == 0:
        number = seed // LEDGER_EVERY
        found.append(_AskedLedger(number, level=1 if number % 4 == 0 else 2))
    for history in found:
        history.run(STEPS)
        for what, times in history.counts.items():
            counts["cluster", what] += times
    return counts
