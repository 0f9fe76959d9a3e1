"""The end of the process, as the I/O thread sees it."""

from __future__ import annotations

import concurrent.futures
import subprocess
import sys
from typing import Any

import pytest

from headrace.engine import io_thread


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
