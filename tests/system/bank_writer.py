"""A producer of transfers (``bank_history``), which runs as a process of ``transactional_process``. The process prints
these steps of each transfer: begins (number, entries, whether it intends to abort), commits (number), committed or
aborted (number).
"""

from __future__ import annotations

import random
import threading
from typing import Any

from headrace import Producer
from headrace.errors import TransactionAbortableError
from tests.system.bank_history import Entry, Transfer
from tests.system.transactional_process import LONG_S, insist, main, report

#: The shares of transfers that the writer aborts, that it prepares and completes, and during which it pauses after
#: sending the records.
ABORTED, PREPARED, SLOW = 0.15, 0.05, 0.1
SLOW_S = 0.3
AMOUNT_MAX = 100
VALUE_BYTES = (60, 600)


class _Bank:
    """One process with a transactional producer."""

    def __init__(self, asked: dict[str, Any], is_over: threading.Event) -> None:
        self.topic, self.partitions, self.life = asked["topic"], asked["partitions"], asked["life"]
        self.pause_s: float = asked["pause_s"]
        self.is_over = is_over
        self._rng = random.Random(asked["seed"])
        self._producer = Producer(asked["settings"])
        self._name: str = asked["settings"]["transactional.id"]

    def run(self) -> None:
        with self._producer:
            token = insist(lambda: self._producer.init_transactions(keep_prepared=True))
            report("ready")
            if token is not None:
                insist(lambda: self._producer.complete(token, commit=True))
            number = 0
            while not self.is_over.wait(self.pause_s):
                self._transfer(number)
                number += 1

    def _transfer(self, number: int) -> None:
        rng, producer = self._rng, self._producer
        transfer = Transfer(self._name, self.life, number)
        is_doomed = rng.random() < ABORTED
        places = rng.sample(range(self.partitions), rng.choice([2, 2, 3]))
        amounts = [rng.randint(-AMOUNT_MAX, AMOUNT_MAX) for _ in places[1:]]
        entries = [
            Entry(transfer, index, len(places), place, amount, is_doomed)
            for index, (place, amount) in enumerate(zip(places, [-sum(amounts), *amounts], strict=True))
        ]
        report("begins", number, [(each.partition, each.amount) for each in entries], is_doomed)
        try:
            insist(producer.begin_transaction)
            for entry in entries:
                producer.send(self.topic, entry.encode(rng.randint(*VALUE_BYTES)), partition=entry.partition)
            if rng.random() < SLOW:
                producer.flush(LONG_S)
                self.is_over.wait(SLOW_S)
            if is_doomed:
                insist(producer.abort_transaction)
            elif rng.random() < PREPARED:
                token = insist(producer.prepare)
                insist(lambda: producer.complete(token, commit=True))
            else:
                report("commits", number)
                insist(producer.commit_transaction)
        except TransactionAbortableError as error:
            report("error", f"{error.code}: {error.message[:300]}")
            insist(producer.abort_transaction)
            is_doomed = True
        report("aborted" if is_doomed else "committed", number)


if __name__ == "__main__":
    main(lambda asked, is_over: _Bank(asked, is_over).run())
