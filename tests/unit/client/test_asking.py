"""One request to many nodes returns each answer with its node, asks only a few nodes at a time, and ends at once on
Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from headrace.errors import RequestTimedOutError
from headrace_tools.asking import AT_ONCE_MAX, ask_each

#: A program that asks 40 nodes which never answer. The program simulates Ctrl-C when the maximum number of requests is
#: in flight.
_SILENT = """
import os, signal, threading
from headrace_tools.asking import AT_ONCE_MAX, ask_each

asked = threading.Semaphore(0)

def press():
    for _ in range(AT_ONCE_MAX):
        asked.acquire()
    os.kill(os.getpid(), signal.SIGINT)

def question(node):
    asked.release()
    threading.Event().wait(3_600)

threading.Thread(target=press, daemon=True).start()
ask_each(range(40), question)
"""


def test_ctrl_c_waits_for_no_silent_node() -> None:
    done = subprocess.run([sys.executable, "-c", _SILENT], capture_output=True, text=True, timeout=100, check=False)
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode != 0


def test_more_nodes_than_may_be_asked_at_once_are_all_asked_in_their_order() -> None:
    lock, under_way, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def question(node: int) -> int:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
            if under_way[0] == AT_ONCE_MAX:
                full.set()
        assert full.wait(60), "as many are asked at once as may be"
        with lock:
            under_way[0] -= 1
        if node % 7 == 0:
            raise RequestTimedOutError(f"node {node}")
        return node * 2

    answers = ask_each(range(50, 0, -1), question)
    assert list(answers) == list(range(50, 0, -1))
    assert most[0] == AT_ONCE_MAX
    for node, answer in answers.items():
        assert answer.value == (None if node % 7 == 0 else node * 2)
        assert (answer.error is not None) == (node % 7 == 0)


def test_what_is_no_answer_of_a_node_is_raised_and_nobody_else_is_asked() -> None:
    asked: list[int] = []
    going_on = threading.Event()

    def question(node: int) -> None:
        asked.append(node)
        if node == 0:
            raise ZeroDivisionError("a mistake of ours")
        going_on.wait(60)

    with pytest.raises(ZeroDivisionError):
        ask_each(range(100), question)
    others = [thread for thread in threading.enumerate() if thread.name.startswith("headrace-asks")]
    going_on.set()
    for thread in others:
        thread.join(60)
    assert len(asked) <= 2 * AT_ONCE_MAX
