"""The producer of a pipeline run, which sends records at a fixed rate."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from headrace import Producer

from .access import Access
from .workers import Worker


class Sending(Worker):
    """Sends records (key, value) to a topic in a thread, ``rate`` a second, with an idempotent producer; waits for all
    acknowledgements."""

    def __init__(
        self, name: str, access: Access, topic: str, records: Sequence[tuple[bytes, bytes]], rate: float
    ) -> None:
        super().__init__(name)
        self._access, self._topic, self._records, self._rate = access, topic, records, rate
        self.sent = 0

    def work(self) -> None:
        futures: list[Future[Any]] = []
        began_s = time.monotonic()
        with Producer(self._access.producer() | {"acks": "all", "linger.ms": 5}) as producer:
            for key, value in self._records:
                due_s = began_s + self.sent / self._rate
                while (left_s := due_s - time.monotonic()) > 0 and not self.is_stopped.is_set():
                    self.is_stopped.wait(min(left_s, 0.1))
                if self.is_stopped.is_set():
                    return
                futures.append(producer.send(self._topic, value, key))
                self.sent += 1
            producer.flush(timeout=120)
        for future in futures:
            future.result(timeout=0)
