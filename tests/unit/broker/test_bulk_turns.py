"""BulkTurns: large messages are handled one at a time, between small messages, and never starve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace_broker.bulk_turns import QUIET_PASSES, WAIT_MAX_S, BulkTurns


class Loop:
    """An event loop whose passes the test runs, with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._ready: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(partial(callback, *arguments))

    def run_pass(self, took_s: float = 0.0) -> None:
        self.now_s += took_s
        ready, self._ready = self._ready, []
        for callback in ready:
            callback()

    @property
    def is_idle(self) -> bool:
        return not self._ready


class World:
    def __init__(self) -> None:
        self.loop = Loop()
        self.turns = BulkTurns(self.loop, lambda: self.loop.now_s)  # type: ignore[arg-type]
        self.taken: list[str] = []

    def ask(self, name: str) -> None:
        self.turns.ask(lambda: self.taken.append(name))

    def passes_until(self, count: int, *, took_s: float = 0.0, note: bool = False) -> int:
        """Passes of the event loop until ``count`` turns were taken, each with a small message if ``note``."""
        passes = 0
        while len(self.taken) < count:
            assert not self.loop.is_idle, f"no turn is coming: {self.taken}"
            if note:
                self.turns.note()
            self.loop.run_pass(took_s)
            passes += 1
            assert passes < 10_000
        return passes


@pytest.fixture
def world() -> World:
    return World()


def test_a_turn_comes_after_quiet_passes_and_never_in_the_callback_that_asked(world: World) -> None:
    world.ask("a")
    assert world.taken == []
    assert world.passes_until(1) == QUIET_PASSES + 1
    assert world.loop.is_idle


def test_large_messages_are_handled_one_at_a_time_in_order(world: World) -> None:
    for name in "abc":
        world.ask(name)
    for count in (1, 2, 3):
        assert world.passes_until(count) == QUIET_PASSES + 1
    assert world.taken == ["a", "b", "c"]


def test_a_small_message_comes_before_a_turn_that_is_due(world: World) -> None:
    world.ask("bulk")
    for _ in range(QUIET_PASSES):
        world.loop.run_pass()
    world.turns.note()
    world.loop.run_pass()
    assert world.taken == []
    assert world.passes_until(1) == QUIET_PASSES


def test_live_traffic_without_end_does_not_stop_bulk_traffic(world: World) -> None:
    for name in "abc":
        world.ask(name)
    for count in (1, 2, 3):
        passes = world.passes_until(count, took_s=0.0005, note=True)
        assert passes * 0.0005 <= WAIT_MAX_S + 0.001
    assert world.taken == ["a", "b", "c"]


def test_a_pass_longer_than_the_limit_is_followed_by_a_turn(world: World) -> None:
    world.ask("bulk")
    assert world.passes_until(1, took_s=1.0, note=True) == 1


def test_a_client_that_asks_again_in_its_turn_goes_behind_the_others(world: World) -> None:
    def again() -> None:
        world.taken.append("a")
        world.turns.ask(again)

    world.turns.ask(again)
    world.ask("b")
    world.passes_until(4)
    assert world.taken == ["a", "b", "a", "a"]


def test_a_turn_that_fails_takes_no_turn_from_others(world: World) -> None:
    def fails() -> None:
        raise ValueError("planted")

    world.turns.ask(fails)
    world.ask("b")
    with pytest.raises(ValueError, match="planted"):
        world.passes_until(1)
    assert world.passes_until(1) <= QUIET_PASSES + 1
    assert world.taken == ["b"]
