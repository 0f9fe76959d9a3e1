"""`headrace top` into a pipe: it ends when its reader has gone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli import top as command
from headrace.cli.output import OutputFormat
from headrace.top.frames import Frame, Sample, frame_of


def frames(*_: Any) -> Iterator[Frame]:
    """More than anybody who has gone would read."""
    for second in range(1_000):
        yield frame_of(Sample(at_ms=0, steady_s=second), Sample(at_ms=0, steady_s=second + 1))


@pytest.mark.parametrize("output", list(OutputFormat))
def test_top_does_not_go_on_for_a_reader_who_has_gone(monkeypatch: pytest.MonkeyPatch, output: OutputFormat) -> None:
    theirs, ours = os.pipe()
    os.close(theirs)
    monkeypatch.setattr(command, "_frames", frames)
    monkeypatch.setattr(command, "admin", lambda *_: contextlib.nullcontext())
    with open(ours, "w", buffering=1) as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(BrokenPipeError):
            command.top(output=output)
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
