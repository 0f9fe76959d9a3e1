"""The I/O thread's loop and errors of tasks that no code awaits."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from headrace.engine.io_thread import _note


class Loop:
    def __init__(self) -> None:
        self.contexts: list[dict[str, Any]] = []

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.contexts.append(context)


def _handle_events(number: int) -> None:
    """Call the method as grpc.aio's poller does."""
    raise OSError(number, "as told")


def context_of(number: int) -> dict[str, Any]:
    try:
        _handle_events(number)
    except OSError as error:
        return {"message": "Exception in callback None()", "exception": error}
    raise AssertionError


def test_a_poller_that_meets_a_closed_descriptor_shows_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    with caplog.at_level(logging.DEBUG, "headrace"):
        _note(loop, context_of(errno.EBADF))  # type: ignore[arg-type]
    assert loop.contexts == []
    assert "closed descriptor" in caplog.text


def test_everything_else_is_shown_as_ever() -> None:
    loop = Loop()
    elsewhere = OSError(errno.EBADF, "raised by nobody we know")
    for context in (context_of(errno.EIO), {"message": "x"}, {"message": "x", "exception": elsewhere}):
        _note(loop, context)  # type: ignore[arg-type]
    assert len(loop.contexts) == 3
