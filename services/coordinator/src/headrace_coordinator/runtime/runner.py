"""Runs a shard in the event loop: carries out the actions of ``Shard.ready``, and reports their results.

All methods of the runner run in one event loop. Requests that arrive in one event loop pass are decided at once and
share an append: ``ready`` is called at the end of the pass.

Under back-pressure the shard refuses clients' requests, but never the coordinator's internal updates (``Shard.ask``
with ``ticket`` None). A client repeats a refused request, but a lost internal update would leave partitions unread
until the shard is loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.unexpected import answer_to, log_fields

from ..state_machine import OwnershipAsked, OwnershipProven, ShardRecord, StateMachine
from .shard import Answer, Append, Became, Pause, Replay, Shard, ShardState, Tell

logger = logging.getLogger("headrace.coordinator.shard")

#: Longest sleep of a shard in milliseconds, because an operator may set the wall clock during a sleep.
TICK_MS_MAX = 1_000
#: Milliseconds between two ticks while the runner waits for a proof of ownership: the work that is due may need the
#: proof.
PROVING_TICK_MS = 100
#: If the difference between wall clock and monotonic clock changes by this number of milliseconds, the wall clock was
#: set.
CLOCK_STEP_MS = 20
_LOOKS_MAX = 5  #: Maximum number of attempts to read both clocks at the same moment.

Done = Callable[[object], None]  #: Callback for the reply to a request, or for the HeadraceError that ended it.
Take = Callable[[Sequence[tuple[bytes, bytes | None, int]]], None]


class ShardPartition(Protocol):
    """The partition that stores the shard's log (transport/shard_log.py)."""

    async def append(self, batches: Sequence[Sequence[ShardRecord]], expected_end: int) -> int: ...

    async def read(self, end: int, take: Take) -> None: ...


def resolve(reply: asyncio.Future[Any], outcome: object) -> None:
    """Set the result of ``reply``, or its exception if ``outcome`` is an exception."""
    if reply.done():  # the caller of the request has left
        return
    if isinstance(outcome, Exception):
        reply.set_exception(outcome)
    else:
        reply.set_result(outcome)


class ShardRunner:
    """A shard that this coordinator owns, from ``start`` to ``close``."""

    def __init__(
        self,
        shard: Shard,
        log: ShardPartition,
        *,
        clock: Clock,
        replays: asyncio.Semaphore,
        tell: Callable[[Sequence[Any]], None],
        became: Callable[[ShardRunner, ShardState, Exception | None], None],
        is_ours: Callable[[ShardRunner], Awaitable[bool]] | None = None,
        is_believed: Callable[[], bool] = lambda: True,
    ) -> None:
        """``replays`` limits how many shards replay at the same time. ``tell`` receives pushes. ``became`` is called at
        each change of the shard's state, before any request is served in the new state. ``is_ours`` returns whether
        this coordinator owned the shard under its epoch at the time of the call, and waits until the answer is certain.
        If ``is_ours`` is None, no work of the state machine needs a proof of ownership. ``is_believed`` returns whether
        the controllers may still consider this coordinator alive. Once the controllers may have removed this
        coordinator, another coordinator may own the shard, so every answer is fenced (Shard.ask). Members keep reading
        until the shard has a new owner."""
        self.shard = shard
        self._log = log
        self._clock = clock
        self._replays = replays
        self._tell = tell
        self._became = became
        self._is_ours = is_ours
        self._is_believed = is_believed
        self._proofs = 0
        self._is_proving = False
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._wall_ahead_ms = _looked_at_once(clock)[1]

    @property
    def is_serving(self) -> bool:
        return self.shard.state is ShardState.SERVING

    @property
    def state_machine(self) -> StateMachine | None:
        """The state machine while the shard serves, else None; the caller may only read it."""
        return self.shard.state_machine

    def start(self) -> None:
        self._schedule()

    async def ask(self, request: object, *, is_fenced: bool = False) -> Any:
        """Send a request to the shard; returns the reply when every record that the reply depends on is committed.
        ``ask`` raises the error if the request is refused. ``is_fenced``: return a reply only if no other coordinator
        owned the shard when the request was decided."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        self.put(request, partial(resolve, reply), is_fenced=is_fenced)
        try:
            return await reply
        finally:
            # Drop the reply: the traceback of the reply's error would keep this frame, in a reference cycle with the
            # request.
            del reply

    def put(self, request: object, done: Done | None = None, *, is_fenced: bool = False) -> None:
        """Send a request like ``ask``, but call ``done`` with the reply or the HeadraceError, in the same order as the
        pushes. None: no caller."""
        self.shard.ask(done, request, self._now_ms(), is_fenced=is_fenced or not self._is_believed())
        self._schedule()

    async def close(self) -> None:
        """Stop the runner, because another coordinator owns the shard, or this coordinator stops. All requests that
        wait for the shard fail, and later requests, of callers that still have the runner, are refused."""
        self.shard.resign()
        self._turn()
        for timer in (*self._timers, *([self._tick] if self._tick is not None else [])):
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _now_ms(self) -> int:
        """The wall-clock time for the state machine. If the wall clock was set, the state machine first receives a
        ClockSet."""
        wall_ms, ahead_ms = _looked_at_once(self._clock)
        step_ms, self._wall_ahead_ms = round(ahead_ms - self._wall_ahead_ms), ahead_ms
        if abs(step_ms) > CLOCK_STEP_MS:
            logger.warning("%s: the wall clock jumped by %d ms", self.shard.name, step_ms)
            self.shard.clock_was_set(step_ms, wall_ms)
        return wall_ms

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        for action in self.shard.ready():
            match action:
                case Answer(ticket, outcome):
                    ticket(outcome)  # type: ignore[operator]
                case Tell(pushes):
                    self._tell(pushes)
                case Became(state, error):
                    self._report(error)
                    self._became(self, state, error)
                case Append():
                    self._spawn(self._append(action), "append")
                case Replay():
                    self._spawn(self._replay(action), "replay")
                case Pause(attempt, delay_ms):
                    self._later(delay_ms, lambda attempt=attempt: self.shard.resume(attempt))  # type: ignore[misc]
        self._set_tick()

    def _report(self, error: Exception | None) -> None:
        if error is None:
            return
        if isinstance(error, HeadraceError):
            logger.warning("%s: %s: %s", self.shard.name, error.code, error)
        else:
            line = "%s: dropping the state and replaying it from the log"
            logger.error(line, self.shard.name, exc_info=error, extra=log_fields(error))

    async def _append(self, append: Append) -> None:
        try:
            base_offset = await self._log.append(append.batches, append.expected_end)
        except HeadraceError as error:
            self.shard.append_failed(append.attempt, error)
        except Exception as error:
            logger.exception("%s: an append failed", self.shard.name, extra=log_fields(error))
            self.shard.append_failed(append.attempt, answer_to(error, "an append"))
        else:
            self.shard.appended(append.attempt, base_offset)
        self._turn()

    async def _replay(self, replay: Replay) -> None:
        attempt = replay.attempt
        try:
            async with self._replays:
                await self._log.read(replay.end, lambda records: self.shard.replayed(attempt, records))
        except Exception as error:  # noqa: BLE001  (reported by the shard, which tries again)
            self.shard.replay_failed(attempt, error)
        else:
            self.shard.replay_ended(attempt, self._now_ms())
        self._turn()  # pass the topics to the shard at once, because a serving shard first needs the topics

    def _spawn(self, work: Any, what: str) -> None:
        task = self._loop.create_task(work, name=f"{what} of {self.shard.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _later(self, delay_ms: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            act()
            self._schedule()

        timer = self._loop.call_later(delay_ms / 1_000, fire)
        self._timers.add(timer)

    def _set_tick(self) -> None:
        due_ms = self.shard.next_due_ms()
        if self._tick is not None:
            if self._is_proving and due_ms is not None:
                return  # a shard with many requests ticks, too
            self._tick.cancel()
            self._tick = None
        if due_ms is not None:
            wait_ms = min(max(due_ms - self._clock.now_ms(), 0), TICK_MS_MAX)
            if self._is_proving:
                wait_ms = max(wait_ms, PROVING_TICK_MS)
            self._tick = self._loop.call_later(wait_ms / 1_000, self._ticked)

    def _ticked(self) -> None:
        """Do the work that is due. If work is left, it may need a proof of ownership. Work that needs no proof goes on
        meanwhile: the proof may take as long as the controllers have no leader, and a rebalance of a classic group
        must not take as long."""
        self._tick = None
        now_ms = self._now_ms()
        if self._is_due(now_ms):
            self.shard.tick(now_ms)
            if self._is_ours is not None and not self._is_proving and self._is_due(now_ms):
                self._is_proving = True
                self._spawn(self._tick_as_owner(self._is_ours), "proof of ownership")
        self._schedule()

    def _is_due(self, now_ms: int) -> bool:
        due_ms = self.shard.next_due_ms()
        return due_ms is not None and due_ms <= now_ms

    async def _tick_as_owner(self, is_ours: Callable[[ShardRunner], Awaitable[bool]]) -> None:
        """Prove that this coordinator owns the shard, then do the work that was due at the time of the proof. A member
        of a KIP-848 group is removed only if its timeout ended at a time at which no other coordinator could serve the
        member."""
        self._proofs += 1
        self.shard.ask(None, OwnershipAsked(self._proofs), self._now_ms())
        try:
            proven = await is_ours(self)
            now_ms = self._now_ms()
            if proven:
                self.shard.ask(None, OwnershipProven(self._proofs), now_ms)
                self.shard.tick(now_ms)
        except Exception:  # a bug must not cause a busy loop: the next regular tick handles the work that is still due
            logger.exception("%s: cannot prove that this coordinator still owns the shard", self.shard.name)
            await asyncio.sleep(TICK_MS_MAX / 1_000)
        # Guard: clear the flag also after an error, because otherwise no tick would come until the next request.
        finally:
            self._is_proving = False
            self._turn()


def _looked_at_once(clock: Clock) -> tuple[int, float]:
    """The wall-clock time, and how far it is ahead of the monotonic clock. Guard: if the thread pauses between the
    readings of the two clocks (on a busy machine), the function would see a false clock step. To avoid a false clock
    step, the function reads the clocks several times and uses the quickest reading."""
    quickest = float("inf")
    wall_ms, ahead_ms = 0, 0.0
    for _ in range(_LOOKS_MAX):
        before_ms = clock.monotonic_ms()
        seen_ms = clock.now_ms()
        took_ms = clock.monotonic_ms() - before_ms
        if took_ms < quickest:
            quickest, wall_ms, ahead_ms = took_ms, seen_ms, seen_ms - before_ms
        if took_ms < CLOCK_STEP_MS / 4:
            break
    return wall_ms, ahead_ms
