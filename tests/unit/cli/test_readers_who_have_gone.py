"""Read-only commands end when the reader of their output has ended: `top`, `quorum status --watch`, `doctor`,
`metadata`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster_models import QuorumInfo
from headrace_tools.cli import doctor, metadata, quorum, top
from headrace_tools.cli.output import OutputFormat
from headrace_tools.doctor.diagnosis import diagnose
from headrace_tools.doctor.facts import Facts
from headrace_tools.top.frames import Frame, Sample, frame_of


@contextlib.contextmanager
def nobody_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """stdout is a pipe whose other end is closed."""
    theirs, ours = os.pipe()
    os.close(theirs)
    pipe = os.fdopen(ours, "w", buffering=1)
    monkeypatch.setattr(sys, "stdout", pipe)
    try:
        yield
    finally:
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            pipe.close()


@pytest.mark.parametrize("output", list(OutputFormat))
def test_top_does_not_go_on_for_a_reader_who_has_gone(monkeypatch: pytest.MonkeyPatch, output: OutputFormat) -> None:
    def frames(*_: Any) -> Iterator[Frame]:
        """More frames than a closed reader would read."""
        for second in range(1_000):
            yield frame_of(Sample(at_ms=0, steady_s=second), Sample(at_ms=0, steady_s=second + 1))

    monkeypatch.setattr(top, "_frames", frames)
    monkeypatch.setattr(top, "admin", lambda *_: contextlib.nullcontext())
    with nobody_reads(monkeypatch), pytest.raises(BrokenPipeError):
        top.top(output=output)


@pytest.mark.parametrize("output", list(OutputFormat))
def test_nor_does_quorum_status(monkeypatch: pytest.MonkeyPatch, output: OutputFormat) -> None:
    looks = iter(range(100))

    def described(*_: Any) -> QuorumInfo:
        next(looks)
        return QuorumInfo(1, 1, 0, (), ())

    monkeypatch.setattr(quorum, "_described", described)
    monkeypatch.setattr(quorum, "_WATCH_S", 0)
    monkeypatch.setattr(quorum, "admin", lambda *_: contextlib.nullcontext())
    with nobody_reads(monkeypatch), pytest.raises(BrokenPipeError):
        quorum.status(watch=True, timeout=1, output=output)


def test_nor_does_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """`headrace doctor | head -1` ends with 141, as every command whose reader has ended."""
    facts = Facts(now_ms=0, bootstrap=())
    with nobody_reads(monkeypatch), pytest.raises(BrokenPipeError):
        doctor._show(facts, diagnose(facts), healthy=False)


def test_nor_is_a_metadata_log_dumped_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    records = iter(range(1_000))
    monkeypatch.setattr(metadata, "_room", lambda: SimpleNamespace(read=lambda *_: records))
    monkeypatch.setattr("headrace_core.shell.state.document", lambda found: {"record": found})
    with nobody_reads(monkeypatch), pytest.raises(BrokenPipeError):
        metadata.dump(Path("anywhere"), output=OutputFormat.TEXT)
    assert next(records) < 10
