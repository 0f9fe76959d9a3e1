"""The end of the process, as the I/O thread sees it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import subprocess
import sys
import threading
from typing import Any

import pytest

from headrace.engine import io_thread
from headrace_core.errors import ClosedError


class Ending(dict[Any, Any]):
    """Closes of which the I/O thread removes the last one just after somebody has counted them."""

    def __len__(self) -> int:
        count = super().__len__()
        self.clear()
        return count


def test_a_close_may_end_while_the_end_of_the_process_counts_the_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: concurrent.futures.Future[None] = concurrent.futures.Future()
    ended.set_result(None)
    monkeypatch.setattr(io_thread, "_closes", Ending({ended: (20.0, str)}))
    io_thread._await_closes()


@pytest.mark.parametrize("is_ending", [False, True])
def test_a_call_that_a_close_interrupts_says_why(monkeypatch: pytest.MonkeyPatch, is_ending: bool) -> None:
    io = io_thread.io_thread()
    monkeypatch.setattr(io_thread, "_is_ending", is_ending)

    async def closed() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ClosedError) as caught:
        io.run(closed())
    assert ("the process is ending" in caught.value.message) is is_ending
    assert ("no variable refers to" in caught.value.message) is not is_ending


def test_ctrl_c_in_a_call_that_a_close_has_just_cancelled_is_a_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(future: Any, timeout: float | None = None) -> None:
        concurrent.futures.Future.cancel(future)
        raise KeyboardInterrupt

    monkeypatch.setattr(io_thread._Outcome, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        io_thread.io_thread().run(asyncio.sleep(0))


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_ctrl_c_while_a_call_is_handed_over_reaches_its_work(
    monkeypatch: pytest.MonkeyPatch, is_scheduled: bool
) -> None:
    io, ended = io_thread.io_thread(), threading.Event()
    schedule = io.loop.call_soon_threadsafe

    def pressed(*call: Any) -> None:
        monkeypatch.undo()
        if is_scheduled:
            schedule(*call)
        raise KeyboardInterrupt

    async def work() -> None:
        await asyncio.Event().wait()

    def interrupted(task: asyncio.Task[None]) -> None:
        task.cancel()
        ended.set()

    monkeypatch.setattr(io.loop, "call_soon_threadsafe", pressed)
    with pytest.raises(KeyboardInterrupt):
        io.run(work(), interrupted=interrupted)
    assert ended.wait(60)


_PROGRAM = """
import multiprocessing, sys
from headrace.engine import io_thread

def work(generations):
    io_thread.io_thread()  # as the first use of a client does
    if generations:
        io_thread._at_exit()  # no client is open at the fork
        io_thread._is_ending = False
        child = multiprocessing.get_context("fork").Process(target=work, args=(generations - 1,))
        child.start()
        child.join(20)
        hangs = child.is_alive()
        child.kill()
        sys.exit(hangs or child.exitcode)

work(int(sys.argv[1]))
"""


@pytest.mark.parametrize("generations", [1, 2, 3])
def test_a_forked_child_ends_although_its_parents_used_clients_before(generations: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(generations)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
