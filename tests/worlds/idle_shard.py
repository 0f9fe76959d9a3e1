"""A shard whose state machine decides nothing and whose log stays empty, for tests of the runner."""

from __future__ import annotations

from typing import Any

from headrace_coordinator.state_machine import Decision


class IdleMachine:
    """A state machine that only records its requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None: ...

    def loaded(self, now_ms: int) -> Decision:
        return Decision()

    def handle(self, request: Any, now_ms: int) -> Decision:
        self.asked.append(request)
        return Decision()

    def tick(self, now_ms: int) -> Decision:
        return Decision()

    def next_due_ms(self) -> int | None:
        return None


class EmptyLog:
    async def append(self, batches: Any, expected_end: int) -> int:
        return 0

    async def read(self, end: int, take: Any) -> None: ...


class GrowingLog(EmptyLog):
    """A log that only counts its records."""

    def __init__(self) -> None:
        self.end = 0

    async def append(self, batches: Any, expected_end: int) -> int:
        base, self.end = self.end, self.end + sum(map(len, batches))
        return base
