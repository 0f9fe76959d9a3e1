"""BulkTurns: large messages are handled one at a time, between small messages, and never starve."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headrace_broker.flow import LIVE_S, QUIET_PASSES, REST_MAX_S, TURN_PASSES, WAIT_MAX_S, BulkTurns

#: Passes of the event loop from one turn to the next, or from the question to the first turn, without live traffic.
FIRST, NEXT = QUIET_PASSES + 1, QUIET_PASSES + 1 + TURN_PASSES
PASS_S = 0.0001


class Loop:
    """An event loop whose passes the test runs, with a clock of its own."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self._ready: list[Callable[[], None]] = []
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self._ready.append(partial(callback, *arguments))

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._timers.append((self.now_s + delay_s, partial(callback, *arguments)))

    def run_pass(self, took_s: float) -> None:
        self.now_s += took_s
        ready, self._ready = self._ready, []
        ready += [callback for due_s, callback in self._timers if due_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer[0] > self.now_s]
        for callback in ready:
            callback()

    @property
    def is_idle(self) -> bool:
        return not self._ready and not self._timers


class World:
    def __init__(self) -> None:
        self.loop = Loop()
        self.turns = BulkTurns(self.loop, lambda: self.loop.now_s)  # type: ignore[arg-type]
        self.taken: list[str] = []
        self.turn_s = 0.0  # how long each turn of ``ask`` takes

    def ask(self, name: str) -> None:
        def turn() -> None:
            self.taken.append(name)
            self.loop.now_s += self.turn_s

        self.turns.ask(turn)

    def passes_until(self, count: int, *, took_s: float = PASS_S, note: bool = False) -> int:
        """Passes of the event loop until ``count`` turns were taken, each with a small message if ``note``."""
        passes = 0
        while len(self.taken) < count:
            assert not self.loop.is_idle, f"no turn is coming: {self.taken}"
            if note:
                self.turns.noted_s = self.loop.now_s
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
    assert world.passes_until(1) == FIRST


def test_nothing_runs_when_no_turn_waits(world: World) -> None:
    world.ask("a")
    world.passes_until(1)
    for _ in range(TURN_PASSES):
        world.loop.run_pass(PASS_S)
    assert world.loop.is_idle
    world.ask("b")
    assert world.passes_until(2) == FIRST


def test_large_messages_are_handled_one_at_a_time_in_order(world: World) -> None:
    for name in "abc":
        world.ask(name)
    assert [world.passes_until(count) for count in (1, 2, 3)] == [FIRST, NEXT, NEXT]
    assert world.taken == ["a", "b", "c"]


def test_a_small_message_comes_before_a_turn_that_is_due(world: World) -> None:
    world.ask("bulk")
    for _ in range(QUIET_PASSES):
        world.loop.run_pass(PASS_S)
    world.turns.noted_s = world.loop.now_s
    world.loop.run_pass(PASS_S)
    assert world.taken == []
    assert world.passes_until(1) == QUIET_PASSES


def test_beside_live_traffic_bulk_traffic_gets_at_most_half_of_the_event_loop(world: World) -> None:
    world.turn_s = 0.005
    for number in range(40):
        world.ask(str(number))
    began_s = world.loop.now_s
    world.passes_until(40, note=True)
    share = 40 * world.turn_s / (world.loop.now_s - began_s)
    assert 0.25 < share <= 0.5 * 40 / 39


def test_without_live_traffic_bulk_traffic_gets_nearly_all_of_it(world: World) -> None:
    world.turn_s = 0.005
    for number in range(40):
        world.ask(str(number))
    began_s = world.loop.now_s
    world.passes_until(40, took_s=0.00001)
    assert 40 * world.turn_s / (world.loop.now_s - began_s) > 0.95


def test_the_rests_end_with_the_live_traffic(world: World) -> None:
    for name in "ab":
        world.ask(name)
    world.turns.noted_s = world.loop.now_s
    world.passes_until(1)
    world.loop.now_s += LIVE_S
    assert world.passes_until(2) == NEXT


def test_live_traffic_without_end_does_not_stop_bulk_traffic(world: World) -> None:
    for name in "abc":
        world.ask(name)
    for count in (1, 2, 3):
        passes = world.passes_until(count, took_s=0.0005, note=True)
        assert passes * 0.0005 <= WAIT_MAX_S + 2 * TURN_PASSES * 0.0005 + 0.001
    assert world.taken == ["a", "b", "c"]


def test_a_process_that_was_stopped_in_a_turn_does_not_rest_as_long(world: World) -> None:
    world.turn_s = 60.0
    for name in "ab":
        world.ask(name)
    world.turns.noted_s = world.loop.now_s
    world.passes_until(1)
    world.turns.noted_s = world.loop.now_s
    resumed_s = world.loop.now_s
    world.passes_until(2, note=True)
    assert world.loop.now_s - world.turn_s - resumed_s < REST_MAX_S + WAIT_MAX_S + 20 * PASS_S


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
    world.passes_until(1)
    assert world.taken == ["b"]
