"""Threads of the operating system for programs whose threads are greenlets; here without gevent's patches.
(tests/scenarios/client/test_other_runtimes.py has them.)"""

from __future__ import annotations

import threading

import pytest

from headrace_core.real_threads import RealThread, RealThreadPool, current_ident


def test_pool_returns_results_and_errors_and_ends_its_threads() -> None:
    pool = RealThreadPool(2, "test")
    idents = {pool.submit(current_ident).result(10) for _ in range(20)}
    assert threading.get_ident() not in idents
    assert len(idents) <= 2
    assert pool.submit(lambda a, b: a + b, 1, b=2).result(10) == 3

    def fail() -> None:
        raise KeyError("typed")

    with pytest.raises(KeyError):
        pool.submit(fail).result(10)
    assert pool.submit(len, "abc").result(10) == 3, "an error ends no thread"
    pool.shutdown()


def test_thread_tells_whether_it_runs_and_can_be_joined() -> None:
    go = threading.Event()
    seen: list[int] = []
    thread = RealThread(target=lambda *numbers: (seen.extend(numbers), go.wait()), args=(1, 2), name="test")
    assert not thread.is_alive()
    thread.start()
    assert thread.is_alive()
    thread.join(0)
    assert thread.is_alive()
    go.set()
    thread.join(10)
    assert not thread.is_alive()
    assert seen == [1, 2]
