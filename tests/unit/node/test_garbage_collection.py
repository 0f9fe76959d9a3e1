"""A collection of young objects in a server pauses the event loop for milliseconds, also beside thousands of unfinished
calls."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from headrace_core.node import run


class Node:
    async def start(self) -> None:
        pass

    async def run(self, stop: asyncio.Event) -> None:
        await stop.wait()

    async def stop(self, *, at_once: bool = False) -> None:
        pass


def test_every_broker_and_coordinator_sets_the_thresholds_when_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Python's defaults a coordinator spent 0.2 s in collections while 8,000 calls began, 95 ms at a time."""
    thresholds: list[tuple[int, ...]] = []

    async def scenario() -> None:
        stop = asyncio.Event()

        def set_threshold(*numbers: int) -> None:
            thresholds.append(numbers)
            stop.set()

        collector = SimpleNamespace(collect=lambda: 0, freeze=lambda: None, set_threshold=set_threshold)
        monkeypatch.setattr(run, "_owns_process", True)
        monkeypatch.setattr(run, "gc", collector)
        await run.serve_until(Node(), stop)

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert thresholds == [run.GC_THRESHOLDS]
    young, passes, _ = run.GC_THRESHOLDS
    assert young * passes <= 50_000
