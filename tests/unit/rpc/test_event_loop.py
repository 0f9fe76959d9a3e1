"""Headrace's own event loop is uvloop's if uvloop is installed. A user's event loop is not changed."""

from __future__ import annotations

import asyncio
import importlib
import sys

import pytest

from headrace.engine.io_thread import io_thread
from headrace_core.rpc import event_loop


def test_our_threads_turn_uvloop_and_a_users_loop_is_its_own() -> None:
    uvloop = pytest.importorskip("uvloop", reason="neither Windows nor PyPy has it")
    assert isinstance(io_thread().loop, uvloop.Loop)

    async def of_a_user() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert not issubclass(asyncio.run(of_a_user()), uvloop.Loop)


def test_without_uvloop_asyncios_own_loop_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    try:
        loop = importlib.reload(event_loop).new_event_loop()
        assert isinstance(loop, asyncio.SelectorEventLoop)
        loop.close()
    finally:
        monkeypatch.undo()
        importlib.reload(event_loop)
